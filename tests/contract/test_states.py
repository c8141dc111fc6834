"""The contract of states, kept by the engine's and the recorded one. SQL keeps it in test_state_sql.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.shard import operations as ops
from detent.state import EngineState, RecordedState, State
from statecontract import StateContract


class KeyedContract(StateContract):
    """Handles are dictionaries."""

    @pytest.fixture(params=["memory", "file"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[detent.Store]:
        url = "memory:" if request.param == "memory" else f"file:{tmp_path / 'store'}"
        with detent.open(url) as store:
            for name in ("totals", "others"):
                store.commit([ops.RegisterConsumer(name, 2, ["orders"])])
            yield store

    def put(self, handle: Any, key: str, value: int) -> None:
        handle[key] = value

    def get(self, handle: Any, key: str) -> int | None:
        return handle.get(key)  # type: ignore[no-any-return]


class TestEngineState(KeyedContract):
    @pytest.fixture
    def make_state(self) -> Callable[[], State]:
        return EngineState


class TestRecordedState(KeyedContract):
    @pytest.fixture(params=["one machine", "several machines"])
    def make_state(self, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], State]:
        """Processes with the same files, or each with its own: then there is only the log."""
        folders = iter(tmp_path / f"machine-{number}" for number in range(1000))
        if request.param == "one machine":
            return lambda: RecordedState(tmp_path / "machine", snapshot_bytes=200)
        return lambda: RecordedState(next(folders), snapshot_bytes=200)
