"""One wire protocol (HTTP on a Unix socket or TCP), both halves, and how a process finds the owner of a store."""

from detent.remote.address import server_address
from detent.remote.answers import Disconnected, Overloaded
from detent.remote.app import OwnerApp
from detent.remote.client import AsyncRemoteOwner, RemoteOwner
from detent.remote.connection import Connection, Role
from detent.remote.dispatch import Dispatcher
from detent.remote.journals import RemoteJournalReader
from detent.remote.line import Line
from detent.remote.objects import RemoteReader
from detent.remote.owner import LocalOwner
from detent.remote.session import ClientSession

__all__ = [
    "AsyncRemoteOwner",
    "ClientSession",
    "Connection",
    "Disconnected",
    "Dispatcher",
    "Line",
    "LocalOwner",
    "Overloaded",
    "OwnerApp",
    "RemoteJournalReader",
    "RemoteOwner",
    "RemoteReader",
    "Role",
    "server_address",
]
