"""Where a consumer keeps its state and its progress, together: in the engine, in a database, or in a recorded file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.state.base import ShardName, ShardState, Standby, State
    from detent.state.checkpoint import Checkpoint
    from detent.state.engine import EngineState
    from detent.state.keyed import KeyedState
    from detent.state.recorded import RecordedState
    from detent.state.sql import SqlHandle, SqlState

_HOME = {
    "Checkpoint": "detent.state.checkpoint",
    "EngineState": "detent.state.engine",
    "KeyedState": "detent.state.keyed",
    "RecordedState": "detent.state.recorded",
    "ShardName": "detent.state.base",
    "ShardState": "detent.state.base",
    "SqlHandle": "detent.state.sql",
    "SqlState": "detent.state.sql",
    "Standby": "detent.state.base",
    "State": "detent.state.base",
}

__all__ = [
    "Checkpoint",
    "EngineState",
    "KeyedState",
    "RecordedState",
    "ShardName",
    "ShardState",
    "SqlHandle",
    "SqlState",
    "Standby",
    "State",
]

if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
