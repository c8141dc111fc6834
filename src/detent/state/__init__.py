"""Where a consumer keeps its state and its progress: one commit for both.

The contract, and the three kinds of state that keep it:

    base.py          the contract: restore behind a fence, hand out the state, commit
    checkpoint.py    the checkpoint: how far a shard has read, what it promised to acknowledge
    keyed.py         state as a dictionary; used by the engine's and the recorded state
    engine.py        in the store: state, checkpoint and output messages are one commit of the engine
    sql.py           in the user's SQL database: the user's rows and the checkpoint are one commit
    recorded.py      in memory, each change written to a recovery-log journal first
    recovery_log.py  that journal: every change, and now and then the whole
    state_file.py    a copy of the state on disk, so that less of the log has to be replayed
"""

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
