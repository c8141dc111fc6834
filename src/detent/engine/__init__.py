"""Transactions: one owner applies them in order, one durable batch per group; layers above bring state machines."""

from detent.engine.engine import Engine, operation_union, wall_ms
from detent.engine.operation import Context, Done, Machine, Operation, Result
from detent.engine.request import MALFORMED, Request, Ticket

__all__ = [
    "MALFORMED",
    "Context",
    "Done",
    "Engine",
    "Machine",
    "Operation",
    "Request",
    "Result",
    "Ticket",
    "operation_union",
    "wall_ms",
]
