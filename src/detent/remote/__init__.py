"""One wire protocol (HTTP on a Unix socket or TCP), both halves, and how a process finds the owner of a store."""

from detent.remote.client import AsyncRemoteOwner, Disconnected, RemoteOwner
from detent.remote.connection import Connection, Role
from detent.remote.dispatch import Dispatcher
from detent.remote.owner import LocalOwner
from detent.remote.session import ClientSession

__all__ = [
    "AsyncRemoteOwner",
    "ClientSession",
    "Connection",
    "Disconnected",
    "Dispatcher",
    "LocalOwner",
    "RemoteOwner",
    "Role",
]
