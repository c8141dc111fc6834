"""The bell that rings when a journal has grown: by the owner's commits, or by a thread that asks another process."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Invalid, Store, Unavailable
from detent.journal import memory as watch
from detent.remote import LocalOwner
from detent.stream import bell as growth
from detent.stream.bell import Growth
from processes import PATIENCE_S, eventually
from remoteserver import serving


def waiters(store: Store) -> int:
    owner = store._connection.current
    assert isinstance(owner, LocalOwner)
    return len(owner.journals.watch)


def askers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("detent-growth")]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """The owner."""
    with detent.open(f"file:{tmp_path}/store") as store:
        yield store
    assert askers() == []


@pytest.fixture(params=["owner", "client", "reader", "server"])
def other(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """A store to wait in, and the same one to write to."""
    with contextlib.ExitStack() as stack:
        if request.param == "owner":
            yield store, store
        elif request.param == "server":
            server = stack.enter_context(serving(f"file:{tmp_path}/served"))
            assert server.store is not None
            yield stack.enter_context(detent.open(server.url)), server.store
        else:
            role: Any = "auto" if request.param == "client" else "reader"
            yield stack.enter_context(detent.open(store.url, role=role)), store


@contextlib.contextmanager
def growing(store: Store, bell: threading.Event, journal: str = "j") -> Iterator[Growth]:
    made = Growth(store, journal, bell)
    try:
        yield made
    finally:
        made.close()


def test_rings_when_the_message_is_there(other: tuple[Store, Store]) -> None:
    waits, writes = other
    bell = threading.Event()
    with growing(waits, bell) as grown:
        assert not grown.expect(0)
        assert not bell.is_set()
        writes.journal("j").append(b"0")
        assert bell.wait(PATIENCE_S)
        bell.clear()
        assert grown.expect(0)
        assert not grown.expect(2)
        writes.journal("j").append(b"1")
        assert not bell.wait(0.05)
        writes.journal("j").append(b"2")
        assert bell.wait(PATIENCE_S)
    eventually(lambda: waiters(writes) == 0, what="nobody waiting")


def test_another_offset_takes_the_place_of_the_one_before(other: tuple[Store, Store]) -> None:
    waits, writes = other
    bell = threading.Event()
    with growing(waits, bell) as grown:
        assert not grown.expect(0)
        assert not grown.expect(3)
        writes.journal("j").append_many([b"x"] * 3)
        assert not bell.wait(0.05)
        assert grown.expect(1)
        assert not grown.expect(3)
        writes.journal("j").append(b"x")
        assert bell.wait(PATIENCE_S)


def test_nothing_is_expected_any_more(other: tuple[Store, Store]) -> None:
    waits, writes = other
    bell = threading.Event()
    with growing(waits, bell) as grown:
        assert not grown.expect(0)
        grown.stop()
        eventually(lambda: waiters(writes) == 0, what="nobody waiting")
        writes.journal("j").append(b"x")
        assert not bell.wait(0.05)
        assert not grown.expect(1)
        writes.journal("j").append(b"x")
        assert bell.wait(PATIENCE_S)


def test_one_bell_for_journals_of_several_stores(other: tuple[Store, Store]) -> None:
    waits, writes = other
    bell = threading.Event()
    with detent.open("memory:") as near, growing(near, bell) as one, growing(waits, bell, "k") as two:
        for journal in (near.journal("j"), writes.journal("k"), near.journal("j")):
            bell.clear()
            assert not one.expect(near.reader.next_offset("j"))
            assert not two.expect(writes.reader.next_offset("k"))
            journal.append(b"x")
            assert bell.wait(PATIENCE_S)
        one.stop()
        assert waiters(near) == 0


def test_the_owners_commits_need_no_thread_and_leave_nothing(store: Store) -> None:
    bell = threading.Event()
    with growing(store, bell) as grown:
        for number in range(3):
            assert not grown.expect(number)
            assert waiters(store) == 1
            store.journal("j").append(b"x")
            assert (bell.is_set(), waiters(store)) == (True, 0)
            assert grown.expect(number)
            assert waiters(store) == 0
        assert askers() == []


def test_who_knows_that_nothing_is_there_does_not_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bell = threading.Event()
    with growing(store, bell) as grown:
        assert not grown.is_still(0)  # nobody has announced anything yet
        store.journal("j").append(b"x")
        assert [grown.is_still(offset) for offset in range(3)] == [False, True, False]
        with monkeypatch.context() as patch:
            patch.setattr(store.reader, "next_offset", None)
            assert not grown.expect(1)
            assert waiters(store) == 1
        store.journal("j").append(b"x")
        assert bell.is_set()
        assert grown.expect(1)


def test_only_the_owner_knows_without_a_look(other: tuple[Store, Store]) -> None:
    waits, writes = other
    with growing(waits, threading.Event()) as grown:
        writes.journal("j").append(b"x")
        assert grown.is_still(1) is (waits is writes)


def test_what_is_known_of_a_journal_that_was_deleted_is_not_believed(store: Store) -> None:
    """Otherwise somebody who waits for its first message would be told for ever that it is there."""
    store.journal("j").append(b"x")
    store.journal("j").delete()
    with growing(store, threading.Event()) as grown:
        assert not grown.expect(0)
        store.journal("j").append(b"x")
        assert grown.expect(0)
        assert not grown.expect(1)


def test_what_was_announced_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "ANNOUNCED_MAX", 3)
    made = watch.Watch()
    for number in range(10):
        made.changed = {"j": number, f"j{number}": 5}
        made.announce()
        assert made.announced("j") == number
        assert made.announced(f"j{number}") == 5
        assert sum(made.announced(f"j{n}") is not None for n in range(10)) < 3


@pytest.mark.parametrize("before", [0, 1])
def test_grown_while_it_was_asked(store: Store, monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    """Between the first look, or what was known instead, and the waiting: found by the second look, and nothing is left
    waiting."""
    for _ in range(before):
        store.journal("j").append(b"x")
    watch = store.on_growth

    def on_growth(journal: str, offset: int, wake: Callable[[], None]) -> Callable[[], None] | None:
        store.journal("j").append(b"x")
        return watch(journal, offset, wake)

    monkeypatch.setattr(store, "on_growth", on_growth)
    with growing(store, threading.Event()) as grown:
        assert grown.expect(before)
        assert waiters(store) == 0


def test_a_thread_only_where_somebody_waits(store: Store) -> None:
    store.journal("j").append(b"x")
    with detent.open(store.url) as client, growing(client, threading.Event()) as grown:
        assert grown.expect(0)
        assert askers() == []
        for _ in range(3):
            assert not grown.expect(1)
            grown.stop()
        assert len(askers()) == 1
    assert askers() == []


def test_closed_twice_and_without_a_wait(store: Store) -> None:
    grown = Growth(store, "j", threading.Event())
    grown.close()
    grown.close()


def test_who_waits_is_rung_when_asking_fails(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It looks for itself then, and has the error too if it stays."""
    failures = [RuntimeError("broken"), Invalid("no"), Unavailable("not now")]
    bell = threading.Event()
    with detent.open(store.url) as client, caplog.at_level(logging.WARNING), growing(client, bell) as grown:
        wait = client.wait

        def failing(journal: str, offset: int, timeout_ms: int | None) -> bool:
            if failures:
                raise failures.pop(0)
            return wait(journal, offset, timeout_ms)

        monkeypatch.setattr(client, "wait", failing)
        for _ in range(3):
            bell.clear()
            assert not grown.expect(0)
            assert bell.wait(PATIENCE_S)
        bell.clear()
        assert not grown.expect(0)
        store.journal("j").append(b"x")
        assert bell.wait(PATIENCE_S)
    assert [record.message for record in caplog.records] == ["watching 'j': broken", "watching 'j': no"]


def test_an_answer_that_comes_too_late(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is about an offset that is not expected any more, and the new one is asked for then."""
    asked, answered, bell = threading.Event(), threading.Event(), threading.Event()
    with detent.open(store.url) as client, growing(client, bell) as grown:
        wait = client.wait

        def late(journal: str, offset: int, timeout_ms: int | None) -> bool:
            if offset:
                return wait(journal, offset, timeout_ms)
            asked.set()
            return answered.wait(PATIENCE_S)

        monkeypatch.setattr(client, "wait", late)
        assert not grown.expect(0)
        assert asked.wait(PATIENCE_S)
        assert not grown.expect(1)
        answered.set()
        store.journal("j").append(b"x")
        assert not bell.wait(0.05)
        store.journal("j").append(b"x")
        assert bell.wait(PATIENCE_S)


def test_asks_longer_and_longer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def wait(_: str, __: int, timeout_ms: int | None) -> bool:
        assert timeout_ms is not None
        asked.append(timeout_ms)
        time.sleep(0.001)
        return False

    with detent.open(store.url) as client, growing(client, threading.Event()) as grown:
        monkeypatch.setattr(client, "wait", wait)
        assert not grown.expect(0)
        eventually(lambda: len(asked) > 10)
    first, longest = growth.ASK.first_s * 1000, growth.ASK.max_s * 1000
    assert asked[:9] == [min(longest, first * 2**step) for step in range(9)]


def test_whoever_closes_does_not_wait_for_a_server_that_is_stuck(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "CLOSE_S", 0.01)
    asked, answered = threading.Event(), threading.Event()

    def wait(*_: Any) -> bool:
        asked.set()
        return not answered.wait(PATIENCE_S)

    with detent.open(store.url) as client:
        grown = Growth(client, "j", threading.Event())
        monkeypatch.setattr(client, "wait", wait)
        assert not grown.expect(0)
        assert asked.wait(PATIENCE_S)
        grown.close()
        assert len(askers()) == 1
        answered.set()
        eventually(lambda: not askers(), what="the end of the thread")
