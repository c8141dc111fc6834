"""Health and readiness: whatever keeps the store from taking transactions, a load balancer is told 503, and why; and a
supervisor is told when only a new process helps."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from detent.engine import Engine, Request, Trouble
from detent.errors import Busy, Corrupt, DetentError, Fenced, LimitExceeded, OutcomeUnknown, StaleReceipt, Unavailable
from detent.journal import operations as journals
from detent.server.access import UNKNOWN
from detent.server.app import refusal
from detent.server.http import HttpRequest
from detent.server.metrics import Metrics
from detent.server.operators import HEALTH, READY, STUCK_S, Operators
from world import World


class Committing:
    """An engine in a state that the test says."""

    def __init__(self, trouble: Trouble | None = None, *, is_full: bool = False) -> None:
        self._trouble = trouble
        self.is_full = is_full

    def trouble(self) -> Trouble | None:
        return self._trouble


class Answering:
    async def unmatched(self) -> int:
        return 0


async def receive() -> dict[str, Any]:
    raise AssertionError


def probe(path: str, engine: Any, store: Any = None) -> tuple[int, dict[str, str]]:
    """The status and the document of a probe."""

    async def main() -> tuple[int, dict[str, str]]:
        operators = Operators(Answering() if store is None else store, Metrics(), engine)
        scope = {"method": "GET", "path": path, "query_string": b"", "headers": []}
        try:
            answer = await operators.answer(HttpRequest(scope, receive), UNKNOWN)
        except DetentError as error:
            answer = refusal(error)
        assert isinstance(answer.body, bytes)
        return answer.status, msgspec.json.decode(answer.body)

    return asyncio.run(main())


@pytest.mark.parametrize("error", [LimitExceeded, Busy, Fenced, Corrupt, OutcomeUnknown, StaleReceipt, DetentError])
def test_a_store_that_refuses_makes_the_server_not_ready(error: type[DetentError]) -> None:
    class Refusing:
        async def unmatched(self) -> int:
            raise error("a store has at most so many sessions")

    status, said = probe(READY, Committing(), Refusing())
    assert (status, "so many sessions" in said["message"]) == (503, True)


def test_fenced_server_is_neither_alive_nor_ready() -> None:
    engine = Committing(Trouble(True, 0.0, "epoch 7 came after 6"))
    for path in (HEALTH, READY):
        status, said = probe(path, engine)
        assert status == 503
        assert "another process owns the store" in said["message"]
        assert "epoch 7 came after 6" in said["message"]


def test_server_that_commits_nothing_is_not_ready_and_after_a_while_not_alive() -> None:
    brief, soon, late = (Committing(Trouble(False, seconds, "no bucket")) for seconds in (0.5, 5.0, STUCK_S))
    assert [probe(READY, engine)[0] for engine in (brief, soon, late)] == [200, 503, 503]
    assert [probe(HEALTH, engine)[0] for engine in (brief, soon, late)] == [200, 200, 503]
    assert "no bucket" in probe(READY, soon)[1]["message"]
    assert "no bucket" in probe(HEALTH, late)[1]["message"]


def test_full_disk_leaves_the_server_ready_and_is_said() -> None:
    status, said = probe(READY, Committing(is_full=True))
    assert (status, said["status"], "disk" in said["refuses"]) == (200, "ready", True)


# -- what an engine knows of itself -----------------------------------------------------------------------------------


def test_engine_is_in_trouble_from_a_failed_commit_until_one_succeeds() -> None:
    world = World()
    assert world.engine.trouble() is None
    world.writer.fail_before = 2
    with pytest.raises(Unavailable):
        world.commit(journals.Append("j", [b"1"]))
    trouble = world.engine.trouble()
    assert trouble is not None
    assert (trouble.is_final, "the disk is full" in trouble.reason) == (False, True)
    with pytest.raises(Unavailable):
        world.engine.tick()  # tries a commit although nothing is due
    assert world.engine.trouble() is not None
    world.engine.tick()
    assert world.engine.trouble() is None


def test_a_refused_transaction_is_not_trouble() -> None:
    world = World()
    with pytest.raises(DetentError):
        world.commit(journals.CheckRegisters("j", {"a": "1"}))
    assert world.engine.trouble() is None


def test_fenced_engine_is_in_trouble_for_good() -> None:
    world = World()
    engine: Engine = world.engine
    session = engine.new_session()
    world.reopen()
    with pytest.raises(DetentError):
        engine.commit(Request(session, 0, 0, [journals.Append("j", [b"1"])]))
    trouble = engine.trouble()
    assert trouble is not None
    assert trouble.is_final


def test_commit_that_does_not_end_is_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    begun, go_on = threading.Event(), threading.Event()
    real = world.writer.commit

    def hang(batch: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        real(batch)

    monkeypatch.setattr(world.writer, "commit", hang)
    thread = threading.Thread(target=lambda: world.commit(journals.Append("j", [b"1"])))
    thread.start()
    try:
        assert begun.wait(60)
        trouble = world.engine.trouble()
        assert trouble is not None
        assert "under way" in trouble.reason
    finally:
        go_on.set()
        thread.join()
    assert world.engine.trouble() is None
