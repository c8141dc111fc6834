"""The engine: one owner applies transactions in order, and one sync makes a whole group durable.

The layers above register a state machine each (journal, queue, ledger, shard). A transaction, in
the order in which things happen:

    ownertime.py   what time it is, whatever the wall clock does
    lead.py        which thread commits next, and which waiting transactions it takes along
    engine.py      applies the group to memory, commits it once, answers; tells the truth on failure
    operation.py   what an operation is, what a machine has to do with it; the request and its ticket
    sessions.py    answers are stored in the same commit, so that a retry is answered, not repeated
    twins.py       handles and their twins for asyncio, from one body
    verify.py      the engine's part of `store verify`, and what a finding is
"""

from detent.engine.engine import Engine, Trouble, operation_union
from detent.engine.operation import MALFORMED, ApplyContext, Done, Machine, Operation, Request, Result, Ticket
from detent.engine.ownertime import OwnerTime, steady_s, wall_ms

__all__ = [
    "MALFORMED",
    "ApplyContext",
    "Done",
    "Engine",
    "Machine",
    "Operation",
    "OwnerTime",
    "Request",
    "Result",
    "Ticket",
    "Trouble",
    "operation_union",
    "steady_s",
    "wall_ms",
]
