"""How a process reaches a store that another process owns: one wire protocol, both halves of it.

The protocol is HTTP, on a Unix socket beside a `file:` store or on a server's TCP port.

Finding the owner, or becoming it:

    connection.py      owns the store or talks to its owner; when that dies, takes over or reconnects
    address.py         where an owner answers, and what is needed to be let in
    leading.py         which of several servers owns the store, by asking them or by its lease
    storelease.py      the lease of a store on an object store: claimed, held, given back
    owner.py           the owner: engine, housekeeping, and the socket for others of its machine

A client's call, on its way to the owner and back:

    session.py         names each transaction, and sends it under that name until it is answered
    client.py          the client's half, sync and async
    lost_claims.py     undoes claims whose caller was cancelled or interrupted
    channel.py         lean connections for transactions and waits, blocking and for asyncio
    dialing.py         how a connection begins: connected, encrypted where asked for
    wire.py            what requests and answers look like, and how many values a request may hold
    answers.py         what an answer means: content, or the error that it stands for

The owner's half:

    app.py             the ASGI application over one engine
    asgi.py            one request and its answer
    handing.py         hands an answer over, or takes back what it gave away
    bodies.py          request bodies, bounded in size and time
    rights.py          which right each operation needs, and on what
    dispatch.py        from the committing thread to an event loop: one wake-up a group

For clients that have no files in common with the owner (a store behind a server):

    line.py            reads that are made again until one is answered
    contents.py        the owner puts message contents into its answers
    journals.py        reading journals, the client's half
    served_journals.py reading journals, the owner's half
    batches.py         the Arrow stream between these two, which says how it ended
    objects.py         fragments, the client's half
    served_objects.py  fragments, the owner's half
"""

from detent.remote.address import server_address, server_addresses
from detent.remote.answers import Disconnected, Overloaded
from detent.remote.app import OwnerApp
from detent.remote.client import AsyncRemoteOwner, RemoteOwner
from detent.remote.connection import Connection, Role
from detent.remote.dispatch import Dispatcher
from detent.remote.journals import RemoteJournalReader
from detent.remote.leading import held_alone
from detent.remote.line import OwnerLine
from detent.remote.lost_claims import AsyncLostClaims
from detent.remote.objects import RemoteReader
from detent.remote.owner import LocalOwner
from detent.remote.session import ClientSession
from detent.remote.storelease import HeldLease, Sight, StoreClaim, leader_of

__all__ = [
    "AsyncLostClaims",
    "AsyncRemoteOwner",
    "ClientSession",
    "Connection",
    "Disconnected",
    "Dispatcher",
    "HeldLease",
    "LocalOwner",
    "Overloaded",
    "OwnerApp",
    "OwnerLine",
    "RemoteJournalReader",
    "RemoteOwner",
    "RemoteReader",
    "Role",
    "Sight",
    "StoreClaim",
    "held_alone",
    "leader_of",
    "server_address",
    "server_addresses",
]
