"""Who works on which shard: the rules, and workers that keep them, in threads over one store."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent.consumer import Consumer, Worker, worker
from detent.consumer import task as lives
from detent.consumer.progress import Progress
from detent.errors import Conflict, Fenced, NotFound, OutcomeUnknown, Unavailable
from detent.runtime.backoff import Backoff
from detent.shard.operations import ConsumerDescription, MemberDescription, ShardDescription
from detent.state import RecordedState
from detent.stream import sharing
from processes import eventually
from shardunit import PendingState, committed


def table(holders: list[str], members: list[str]) -> ConsumerDescription:
    states = [
        ShardDescription(index, index + 1, 0, holder, 0, 0, {}, "", "", {}, {}) for index, holder in enumerate(holders)
    ]
    alive = [MemberDescription(member, "", 0) for member in members]
    return ConsumerDescription("c", len(holders), "journal", False, {}, 0, alive, states)


# -- the rules --------------------------------------------------------------------------------------------------


def test_everybody_has_a_fair_share() -> None:
    assert sharing.fair_share(table([""] * 5, ["a", "b"])) == 3
    assert sharing.fair_share(table([""] * 5, [])) == 5
    assert sharing.wanted(table([""] * 5, ["a", "b"]), "a", 0, [0.0] * 5, []) == [0, 1, 2]
    assert sharing.wanted(table(["b", "", "b", "", ""], ["a", "b"]), "a", 0, [0.0] * 5, []) == [1, 3, 4]
    assert sharing.wanted(table(["a", "", "b"], ["a", "b"]), "a", 0, [0.0] * 3, [0]) == [1]
    assert sharing.wanted(table(["a", "a", ""], ["a", "b"]), "a", 0, [0.0] * 3, [0, 1]) == []


def test_what_is_beyond_the_share_is_given_back() -> None:
    assert sharing.excess(table(["a"] * 4, ["a", "b"]), [3, 0, 1, 2]) == [2, 3]
    assert sharing.excess(table(["a", "a", "b"], ["a", "b"]), [0, 1]) == []


def test_a_shard_that_became_free_is_left_to_its_standby_for_a_while() -> None:
    found = table([""], ["a", "b", "c"])
    (standby,) = sharing.standbys_of(found, found.states[0], 1)
    others = [member for member in "abc" if member != standby]
    assert sharing.wanted(found, standby, 1, [0.0], []) == [0]
    assert [sharing.wanted(found, other, 1, [0.0], []) for other in others] == [[], []]
    assert sharing.wanted(found, others[0], 1, [sharing.STANDBY_FIRST_S], []) == [0]
    assert sharing.wanted(found, standby, 1, [5.0], [7]) == [], "one that has its share gives the others the time"


def test_standbys_do_not_hold_the_shard_and_all_agree_on_them() -> None:
    found = table(["a", "b", "c"] * 10, ["a", "b", "c", "d"])
    chosen = [sharing.standbys_of(found, shard, 2) for shard in found.states]
    assert all(
        len(set(some)) == 2 and shard.holder not in some for some, shard in zip(chosen, found.states, strict=True)
    )
    assert len(Counter(member for some in chosen for member in some)) == 4, "everybody gets some"


# -- workers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as store:
        yield store


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "BEAT_S", 0.02)
    monkeypatch.setattr(worker, "REBALANCE_S", 0.1)
    monkeypatch.setattr(lives, "RETRY", Backoff(0.05, 30.0))
    monkeypatch.setattr(worker, "LIST_S", 0.05)


class Member:
    """A worker in a thread."""

    def __init__(self, app: Consumer, store: detent.Store, name: str) -> None:
        self.events: list[tuple[str, int, str]] = []
        self.worker = Worker(app, store, {}, member=name, on_event=lambda *event: self.events.append(event))
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self.worker.stop()
        self._thread.join()


@contextlib.contextmanager
def members(*made: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for one in made:
            one.stop()
    for one in made:
        if one.error is not None:
            raise one.error


def copying(**options: Any) -> Consumer:
    app = Consumer(
        "c", **{"read": [f"in/{number}" for number in range(4)], "shards": 4, "state": PendingState(), **options}
    )

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        publish(message.journal.replace("in", "out"), message.body)

    return app


def holders(store: detent.Store) -> list[str]:
    return [shard.holder for shard in store.consumer("c").info().shards]


def test_two_workers_share_the_shards_and_one_takes_over(store: detent.Store) -> None:
    app = copying()
    for number in range(4):
        store.journal(f"in/{number}").append(b"0")
    a = Member(app, store, "a")
    with members(a):
        eventually(lambda: holders(store) == ["a"] * 4, what="a has all")
        b = Member(app, store, "b")
        with members(b):
            eventually(lambda: Counter(holders(store)) == {"a": 2, "b": 2}, what="a share for each")
            for number in range(4):
                store.journal(f"in/{number}").append(b"1")
                store.consumer("c").await_processed(f"in/{number}", 1, timeout="30s")
        eventually(lambda: holders(store) == ["a"] * 4, what="a has all again")
        for number in range(4):
            store.journal(f"in/{number}").append(b"2")
            store.consumer("c").await_processed(f"in/{number}", 2, timeout="30s")
    assert holders(store) == [""] * 4
    for number in range(4):
        assert committed(store, f"out/{number}") == [b"0", b"1", b"2"]


def test_a_shard_that_fails_starts_over_until_it_works(store: detent.Store) -> None:
    app = Consumer("c", read="in", state=PendingState())
    broken = threading.Event()
    broken.set()

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        if broken.is_set():
            raise ZeroDivisionError("a bug of the user's")
        publish("out", message.body)

    store.journal("in").append(b"a")
    a = Member(app, store, "a")
    with members(a):
        eventually(lambda: store.consumers() and store.consumer("c").info().shards[0].status == "failed")
        error = store.consumer("c").info().shards[0].error
        assert error.endswith("ZeroDivisionError: a bug of the user's")
        assert error.startswith(f"{__file__}:"), "where in the application it was"
        assert holders(store) == ["a"], "it keeps the shard"
        broken.clear()
        store.consumer("c").await_processed("in", 0, timeout="30s")
        eventually(lambda: store.consumer("c").info().shards[0].status == "running")
        assert store.consumer("c").info().shards[0].error == ""
    assert committed(store, "out") == [b"a"]


def test_a_transaction_that_is_too_large_is_tried_smaller(store: detent.Store) -> None:
    app = Consumer("c", read="in")
    sizes: list[int] = []

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        state[message.body.decode()] = "x" * 900_000

    app.finalize(lambda transaction: sizes.append(transaction.messages))
    store.journal("in").append_many([b"%d" % number for number in range(100)])
    a = Member(app, store, "a")
    with members(a):
        eventually(store.consumers)
        store.consumer("c").await_processed("in", 99, timeout="60s")
    assert sizes[0] == 100
    assert sizes[1] == 50
    assert [what for what, _, _ in a.events].count("failed") >= 1
    assert sum(1 for _ in store.consumer("c").state(0).items()) == 100


def test_pause_and_resume(store: detent.Store) -> None:
    app = copying(read="in/0", shards=1)
    a = Member(app, store, "a")
    with members(a):
        store.journal("in/0").append(b"0")
        eventually(store.consumers)
        store.consumer("c").await_processed("in/0", 0, timeout="30s")
        store.consumer("c").pause()
        eventually(lambda: store.consumer("c").info().shards[0].status == "paused")
        store.journal("in/0").append(b"1")
        with pytest.raises(Unavailable):
            store.consumer("c").await_processed("in/0", 1, timeout="300ms")
        assert store.consumer("c").lag() == {0: {"in/0": 1}}
        store.consumer("c").resume()
        store.consumer("c").await_processed("in/0", 1, timeout="30s")
        assert store.consumer("c").lag() == {0: {"in/0": 0}}
    assert committed(store, "out/0") == [b"0", b"1"]


def test_a_reset_reaches_a_shard_at_work(store: detent.Store) -> None:
    app = copying(read="in/0", shards=1)
    a = Member(app, store, "a")
    with members(a):
        store.journal("in/0").append_many([b"0", b"1"])
        eventually(store.consumers)
        store.consumer("c").await_processed("in/0", 1, timeout="30s")
        store.consumer("c").reset({"in/0": 1})
        eventually(lambda: committed(store, "out/0") == [b"0", b"1", b"1"], what="the second one again")
        store.consumer("c").await_processed("in/0", 1, timeout="30s")


def test_journals_that_come_later_are_found_by_their_pattern(store: detent.Store) -> None:
    app = copying(read="in/*", shards=2)
    store.journal("in/0").append(b"0")
    a = Member(app, store, "a")
    with members(a):
        eventually(lambda: committed(store, "out/0") == [b"0"])
        store.journal("in/new").append(b"n")
        store.journal("other").append(b"not mine")
        eventually(lambda: committed(store, "out/new") == [b"n"])
    assert store.consumer("c").info().sources == {"in/0": 0, "in/new": 1}


def test_a_deleted_consumer_ends_its_workers(store: detent.Store) -> None:
    a = Member(copying(), store, "a")
    eventually(lambda: store.consumers() and holders(store) == ["a"] * 4)
    store.consumer("c").delete(force=True)
    eventually(lambda: a.error is not None, what="its end")
    a.stop()
    assert isinstance(a.error, NotFound)


def test_a_standby_takes_over(store: detent.Store, tmp_path: Path) -> None:
    app = copying(read="in/0", shards=1, standbys=1, state=RecordedState(tmp_path))
    a = Member(app, store, "a")
    with members(a):
        eventually(lambda: store.consumers() and holders(store) == ["a"])
        other = copying(read="in/0", shards=1, standbys=1, state=RecordedState(tmp_path / "b"))
        b = Member(other, store, "b")
        with members(b):
            eventually(lambda: ("following", 0, "b") in b.events)
            store.journal("in/0").append(b"0")
            store.consumer("c").await_processed("in/0", 0, timeout="30s")
            a.stop()
            eventually(lambda: holders(store) == ["b"])
            store.journal("in/0").append(b"1")
            store.consumer("c").await_processed("in/0", 1, timeout="30s")
    assert committed(store, "out/0") == [b"0", b"1"]


@pytest.mark.parametrize("lost", ["LeaseShard", "ReleaseShards"])
def test_a_lost_answer_leaves_no_shard_to_nobody(store: detent.Store, lost: str) -> None:
    """The lease is this member's, or still is, and it does not know: every heartbeat would renew it."""
    app = copying(read="in/0", shards=1)
    store.journal("in/0").append(b"0")
    real, failures = store.commit, [1]

    def losing(operations: list[Any]) -> list[Any]:
        is_it = type(operations[0]).__name__ == lost and failures
        if is_it and lost == "ReleaseShards":
            failures.pop()
            raise Unavailable("not sent")
        done = real(operations)
        if is_it:
            failures.pop()
            raise OutcomeUnknown("nobody answered")
        return done

    store.commit = losing  # type: ignore[method-assign]
    a = Member(app, store, "a")
    with members(a):
        eventually(lambda: store.consumers())
        if lost == "ReleaseShards":
            store.consumer("c").await_processed("in/0", 0, timeout="30s")
            a.worker._held[0].leave()
            eventually(lambda: not failures, what="the lost word")
            store.journal("in/0").append(b"1")
        store.consumer("c").await_processed("in/0", store.journal("in/0").next_offset() - 1, timeout="30s")
    assert failures == []


def test_a_member_that_joins_gets_its_share_although_others_stand_by(store: detent.Store, tmp_path: Path) -> None:
    """Whoever gives a shard back does not take it again as its standby."""
    apps = [copying(read=["in/0", "in/1"], shards=2, standbys=1, state=RecordedState(tmp_path / name)) for name in "ab"]
    a = Member(apps[0], store, "a")
    with members(a):
        eventually(lambda: store.consumers() and holders(store) == ["a"] * 2)
        b = Member(apps[1], store, "b")
        with members(b):
            eventually(lambda: Counter(holders(store)) == {"a": 1, "b": 1}, what="a share for each")


def test_a_paused_consumer_does_not_run_once(store: detent.Store) -> None:
    app = copying(read="in/0", shards=1)
    app.run(store=store, once=True)
    store.consumer("c").pause()
    with pytest.raises(Conflict, match="resume it first"):
        app.run(store=store, once=True)


def test_an_error_of_the_application_is_not_taken_for_a_fence(store: detent.Store) -> None:
    app = Consumer("c", read="in", state=PendingState())

    @app.consume
    def consume(message: Any, state: Any, publish: Any) -> None:
        raise Fenced("of something else")

    store.journal("in").append(b"a")
    a = Member(app, store, "a")
    with members(a):
        eventually(lambda: store.consumers() and store.consumer("c").info().shards[0].status == "failed")
        assert holders(store) == ["a"]


def test_a_pattern_does_not_match_the_consumers_own_log(store: detent.Store, tmp_path: Path) -> None:
    app = Consumer("c", read="c/*", state=RecordedState(tmp_path))
    app.consume(lambda message, state, publish: state.update(n=state.get("n", 0) + 1))
    store.journal("c/in").append(b"a")
    app.run(store=store, once=True)
    app.run(store=store, once=True)
    assert store.consumer("c").info().sources == {"c/in": 0}


def test_the_owner_forgets_reports_and_hears_them_again(store: detent.Store) -> None:
    """Reports are in memory: whoever owns the store next learns them from the workers, although nothing is new."""
    a = Member(copying(read="in/0", shards=1), store, "a")
    with members(a):
        store.journal("in/0").append(b"0")
        eventually(store.consumers)
        store.consumer("c").await_processed("in/0", 0, timeout="30s")
        owner: Any = store._connection.current
        owner.engine._stale = True
        owner.engine.tick()
        store.consumer("c").await_processed("in/0", 0, timeout="30s")


# -- progress ---------------------------------------------------------------------------------------------------


def test_progress_answers_when_an_offset_is_done() -> None:
    progress = Progress()
    progress.advance({"in": 3}, {"out": 5})
    assert progress.wait({"in": 3, "not mine": 99}) == {"out": 5}
    with pytest.raises(Unavailable, match="not yet"):
        progress.wait({"in": 4}, "10ms")
    done: list[dict[str, int]] = []
    thread = threading.Thread(target=lambda: done.append(progress.wait({"in": 4})))
    thread.start()
    progress.advance({"in": 4}, {"out": 6})
    thread.join()
    assert done == [{"out": 6}]
    progress.advance({"in": 2}, {"out": 1})
    assert progress.processed == {"in": 4}, "it never goes back"
