"""More promises of processors that somebody who meant them ill has found broken: names, failures, stores, steering."""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Conflict, Invalid, NotFound, Store, Unavailable
from detent.processor import (
    Appender,
    Graph,
    LiveGraph,
    Polled,
    Tailer,
    any_of,
    moving,
    sink,
    source,
    stream,
)
from detent.processor.runner import consumer_name
from detent.stream import membership as members
from processes import eventually
from remoteserver import serving
from smallgraphs import graph_of, ran, values


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as opened:
        yield opened


# -- at most once -----------------------------------------------------------------------------------------------------


def test_who_drops_messages_does_not_drop_those_that_fail_while_it_is_stopped(store: Store) -> None:
    """Nobody tries them again, so they are tried to the end, and written as what they are: errors."""
    began = threading.Event()

    def fails(value: int) -> None:
        began.set()
        raise ValueError(value)

    one = stream("f", fails, input="a", output="x", batch=5, retries=2, retry_pause="60s", errors="e")
    for number in range(5):
        store.journal("a").append(b"%d" % number)
    with graph_of(source("a"), one, delivery="at-most-once").open(store) as live:
        live.start()
        assert began.wait(60)
    assert [(one["inputs"][0]["offset"], one["attempts"]) for one in values(store, "e")] == [(n, 3) for n in range(5)]


@pytest.mark.parametrize("delivery", ["exactly-once", "at-most-once"])
def test_what_had_no_room_is_not_run_again_although_it_is_alone(store: Store, delivery: Any) -> None:
    calls: Counter[bytes] = Counter()

    def large(value: bytes) -> bytes:
        calls[value] += 1
        return bytes(5 << 20)

    store.journal("a").append_many([b"0", b"1"])
    one = stream("f", large, input="a", output="x", batch=10, parallel=2)
    ran(graph_of(source("a"), one, delivery=delivery), store)
    assert (calls, store.journal("x").next_offset()) == ({b"0": 1, b"1": 1}, 2)


@pytest.mark.parametrize("options", [{}, {"parallel": 2}, {"batch": 4}, {"batch": 4, "whole": True}])
def test_who_drops_messages_drops_one_whatever_it_raises(store: Store, options: Any) -> None:
    seen: list[Any] = []

    def exits(value: Any) -> None:
        seen.extend(value if isinstance(value, list) else [value])
        if value in (1, [1]):
            raise SystemExit(3)

    one = sink("f", exits, input="a", delivery="at-most-once", **options)
    with graph_of(source("a"), one).open(store) as live:
        live.start()
        for number in range(4):
            live.send(number)
        eventually(lambda: len(seen) == 4)
    assert sorted(seen) == [0, 1, 2, 3]


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stores", ["one", "two"])
def test_a_batch_of_errors_is_several_steps(store: Store, stores: str) -> None:
    def fails(value: Any) -> None:
        raise ValueError("x" * 20_000)

    at = "@far" if stores == "two" else ""
    one = stream("f", fails, input="a", output=f"x{at}", batch=4_000, errors=f"e{at}")
    store.journal("a").append_many([b"1"] * 4_000)
    with graph_of(source("a"), one, stores={"far": "memory:"}).open(store) as live:
        live.start()
        live.settle()
        assert live.stores["far" if at else ""].journal("e").next_offset() == 4_000
        assert live.status()[0].steps > 5


def test_what_came_before_the_end_of_a_program_is_kept(store: Store) -> None:
    def exits(value: int) -> int:
        if value == 5:
            raise SystemExit("no")
        return value

    store.journal("a").append_many([b"%d" % number for number in range(8)])
    with graph_of(source("a"), stream("f", exits, input="a", output="x", batch=8)).open(store) as live:
        live.start()
        eventually(lambda: live.local_error("f"))
    assert values(store, "x") == [0, 1, 2, 3, 4]


def test_an_async_function_that_ends_programs_does_not_end_the_others(store: Store) -> None:
    async def exits(value: int) -> None:
        raise SystemExit(value)

    async def fine(value: int) -> int:
        await asyncio.sleep(0)
        return value

    graph = graph_of(source("a"), sink("bad", exits, input="a"), stream("good", fine, input="a", output="x"))
    with graph.open(store) as live:
        live.start()
        live.send(1)
        eventually(lambda: live.local_error("bad"))
        live.send(2)
        eventually(lambda: store.reader.next_offset("x") == 2)
        assert "SystemExit(1), which ends programs" in str(live.local_error("bad"))


def test_an_async_function_that_is_cut_off_is_no_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    async def endless(value: int) -> int:
        began.set()
        await asyncio.sleep(3600)
        return value

    graph = graph_of(source("a"), stream("f", endless, input="a", output="x", errors="e"))
    stop = LiveGraph.stop
    monkeypatch.setattr(LiveGraph, "stop", lambda self: stop(self, "100ms"))
    with pytest.raises(Unavailable, match="a function is still at work"), graph.open(store) as live:
        live.start()
        live.send(1)
        assert began.wait(60)
    eventually(lambda: not any(one.name == "detent-processor-f" for one in threading.enumerate()))
    assert "e" not in store.journals()
    monkeypatch.undo()
    ran(graph_of(source("a"), stream("f", lambda value: value, input="a", output="x", errors="e")), store)
    assert values(store, "x") == [1]


@pytest.mark.parametrize("itself", [True, False])
def test_a_coroutine_that_was_cancelled_by_what_it_called_has_failed(store: Store, itself: bool) -> None:
    async def cancelled(value: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        if itself:
            task.cancel()
            await asyncio.sleep(60)
        raise asyncio.CancelledError

    graph = graph_of(source("a"), stream("f", cancelled, input="a", output="x", errors="e"))
    store.journal("a").append(b"1")
    ran(graph, store)
    assert values(store, "e")[0]["error"] == "RuntimeError"


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("nothing")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Mute(), "Mute: str() of this error failed with KeyError"),
        (ValueError("caf\udce9"), "ValueError: caf\\udce9; g/odd was at a#0"),
    ],
)
def test_an_error_that_cannot_be_told_is_told(
    tmp_path: Path, error: Exception, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the processor's thread nor the one that renews all leases ends, also where a server has to be told."""
    caplog.set_level(logging.CRITICAL, "detent.processor")

    def fails(value: int) -> None:
        raise error

    graph = graph_of(
        source("a"), sink("odd", fails, input="a"), stream("fine", lambda value: value, input="a", output="x")
    )
    with serving(f"file:{tmp_path}/served") as server, graph.open(server.url) as live:
        live.start()
        live.send(1)
        eventually(lambda: live.status()[0].error.startswith(said))
        with pytest.raises(type(error)):
            live.settle()
        live.send(2)
        eventually(lambda: live.stores[""].reader.next_offset("x") == 2)


def test_who_does_not_want_to_hear_ends_nobody(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def deaf(*_: str) -> None:
        raise BrokenPipeError("nobody reads")

    caplog.set_level(logging.CRITICAL, "detent.processor")
    with graph_of(source("a"), stream("f", lambda value: 6 // value, input="a", output="x")).open(
        store, on_event=deaf
    ) as live:
        live.start()
        live.send(2)
        live.settle()
        live.send(0)
        eventually(lambda: live._lives["f"].restarts > 1)
        assert live._lives["f"].is_alive
    assert values(store, "x") == [3]


def test_a_processor_that_ended_by_itself_has_not_settled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with graph_of(source("a"), sink("f", lambda value: None, input="a")).open(store) as live:
        live.start()
        life = live._lives["f"]
        monkeypatch.setattr(life, "_stopping", True)
        life._interrupt()
        eventually(lambda: not life.is_alive)
        monkeypatch.setattr(life, "_stopping", False)
        with pytest.raises(Unavailable, match="f does not run any more"):
            live.settle()


@pytest.mark.parametrize("cursor", [b"\x00", bytearray(b"7"), memoryview(b"{}")])
def test_a_cursor_that_would_not_come_back_is_refused(store: Store, cursor: Any) -> None:
    one = source("rows", lambda cursor: Polled([1], cursor or given), every="1ms")
    given = cursor
    with graph_of(one).open(store) as live:
        live.start()
        eventually(lambda: live.local_error("rows"))
        assert "a cursor is kept as JSON" in str(live.local_error("rows"))
    assert store.reader.next_offset("rows") == 0
    given = "7"
    with graph_of(one).open(store) as live:
        live.start()
        eventually(lambda: store.reader.next_offset("rows") > 1)


@pytest.mark.parametrize("name", ["first", "only by place"])
def test_the_step_is_no_input(name: str) -> None:
    def first(step: Any, value: Any) -> None: ...

    def by_place(value: Any, step: Any, /) -> None: ...

    with pytest.raises(Invalid, match="has 'step' where an input belongs"):
        graph_of(source("a"), sink("f", {"first": first, "only by place": by_place}[name], input="a")).check()


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_source_of_another_name_does_not_begin_anew(store: Store) -> None:
    def rows(cursor: int | None) -> Polled:
        at = cursor or 0
        return Polled([at] if at < 3 else [], min(3, at + 1))

    with graph_of(source("rows", rows, every="1ms", output="x")).open(store) as live:
        live.start()
        eventually(lambda: store.reader.next_offset("x") == 3)
    with pytest.raises(Conflict, match="'lines' is new, and writes what 'rows' has written"):
        ran(graph_of(source("lines", rows, every="1ms", output="x")), store)
    with graph_of(source("lines", rows, every="1ms", output="x", formerly="rows")).open(store) as live:
        live.start()
        eventually(lambda: live.status()[0].holder)
    assert values(store, "x") == [0, 1, 2]


def test_a_renaming_that_broke_off_and_was_taken_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the moment that the new name has the progress, nobody goes on under the old one."""

    def graph(name: str, formerly: str | None = None) -> Graph:
        one = stream(name, lambda value: value, input="a", output="x@far", formerly=formerly)
        return graph_of(source("a"), one, stores={"far": far})

    def breaks(*_: Any) -> None:
        raise Unavailable("the process ends here")

    with serving("memory:") as server:
        far = server.url
        assert server.store is not None
        store.journal("a").append_many([b"1", b"2"])
        ran(graph("old"), store)
        with monkeypatch.context() as patch, pytest.raises(Unavailable):
            patch.setattr(moving, "_forget_marks", breaks)
            ran(graph("new", "old"), store)
        store.journal("a").append(b"3")
        with pytest.raises(Conflict, match="'old' is new, and reads what 'new' has read"):
            ran(graph("old"), store)
        assert server.store.consumer(consumer_name("g", "old")).info().shards
        ran(graph("new", "old"), store)
        assert values(server.store, "x") == [1, 2, 3]
        with pytest.raises(NotFound):
            server.store.consumer(consumer_name("g", "old")).info()


def test_what_was_asked_for_under_the_old_name_is_done_under_the_new_one(store: Store) -> None:
    seen: list[int] = []

    def graph(name: str, formerly: str | None = None) -> Graph:
        return graph_of(source("a"), sink(name, seen.append, input="a", formerly=formerly))

    def taken() -> list[int]:
        found = list(seen)
        seen.clear()
        return found

    store.journal("a").append_many([b"0", b"1", b"2"])
    ran(graph("f"), store)
    store.consumer(consumer_name("g", "f")).reset({"a": 1})
    ran(graph("f"), store)
    store.consumer(consumer_name("g", "f")).reset({"a": 2})
    assert taken() == [0, 1, 2, 1, 2]
    ran(graph("k", "f"), store)
    assert taken() == [2], "a reset that nobody had heard of yet"
    store.consumer(consumer_name("g", "k")).reset({"a": 0})
    ran(graph("k", "f"), store)
    assert taken() == [0, 1, 2], "the first reset under the new name"
    store.consumer(consumer_name("g", "k")).pause()
    with pytest.raises(Unavailable, match="m is paused"):
        ran(graph("m", "k"), store)
    assert taken() == []


def test_a_name_that_somebody_else_has_in_another_store_is_not_taken(store: Store) -> None:
    with serving("memory:") as server, detent.open("memory:") as second:
        assert server.store is not None

        def graph(name: str, formerly: str | None = None) -> Graph:
            one = stream(name, lambda value: value, input="a", output="x@far", formerly=formerly)
            return graph_of(source("a"), one, stores={"far": server.url})

        for home, name in ((store, "old"), (second, "new")):
            home.journal("a").append(b"1")
            ran(graph(name), home)
        with pytest.raises(Conflict, match="the store 'far' has outputs of a g/new that is another one"):
            ran(graph("new", "old"), store)
        for home, name in ((store, "old"), (second, "new")):
            home.journal("a").append(b"2")
            ran(graph(name), home)
        assert values(server.store, "x") == [1, 1, 2, 2]


def test_batches_are_not_taken_whole_unasked(store: Store) -> None:
    """A step that was begun has other keys then, and sinks would do it again."""
    store.journal("a").append_many([b"1", b"2"])
    ran(graph_of(source("a"), sink("f", lambda value: None, input="a", batch=5)), store)
    whole = graph_of(source("a"), sink("f", lambda values: None, input="a", batch=5, whole=True))
    with pytest.raises(Conflict, match="g/f was a sink of a, and is a sink of a, in whole batches now"):
        ran(whole, store)
    ran(whole, store, migrate=["f"])
    ran(graph_of(source("a"), sink("f", lambda value: None, input="a", batch=5)), store)


# -- stores -----------------------------------------------------------------------------------------------------------


def test_another_store_that_is_made_anew_is_not_gone_on_with(tmp_path: Path, store: Store) -> None:
    """Its journals have the numbers of those that were there before, and other messages."""
    far = f"file:{tmp_path}/far"

    def fill(*bodies: bytes) -> None:
        with detent.open(far) as opened:
            opened.journal("a").append_many(bodies)

    one = stream("f", lambda value: value, input="a@far", output="x")
    graph = graph_of(source("a", output="a@far"), one, stores={"far": far})
    fill(b"1", b"2")
    ran(graph, store)
    shutil.rmtree(tmp_path / "far")
    fill(b"3", b"4", b"5", b"6")
    with pytest.raises(NotFound, match="'a@far' was read to 2, which is not there"):
        ran(graph, store)
    assert values(store, "x") == [1, 2]
    with graph.open(store) as live:
        live.reset("f")
        live.start()
        live.settle()
    assert values(store, "x") == [1, 2, 3, 4, 5, 6]


def test_one_store_has_one_name_through_a_link(tmp_path: Path) -> None:
    with detent.open(f"file:{tmp_path}/store"):
        (tmp_path / "link").symlink_to(tmp_path / "store")
        one = stream("f", lambda value: value, input="a", output="x@far")
        graph = graph_of(source("a"), one, stores={"far": f"file:{tmp_path}/link"})
        with (
            pytest.raises(Invalid, match="the graph's own store and the store 'far' are one"),
            graph.open(f"file:{tmp_path}/store"),
        ):
            pytest.fail("they are one")


def test_one_store_has_one_name_through_a_server(tmp_path: Path) -> None:
    with serving(f"file:{tmp_path}/store") as server:
        one = stream("f", lambda value: value, input="a", output="x@far", errors="e@farther")
        for stores, match in (
            ({"far": server.url, "farther": "memory:"}, "the graph's own store and the store 'far' are one"),
            ({"far": server.url, "farther": server.url.replace("127.0.0.1", "localhost")}, "'far' and .*'farther' are"),
        ):
            home = f"file:{tmp_path}/store" if "memory:" in stores.values() else "memory:"
            with graph_of(source("a"), one, stores=stores).open(home) as live, pytest.raises(Conflict, match=match):
                live.start()


# -- steering ---------------------------------------------------------------------------------------------------------


def test_a_processor_rests_when_the_store_says_so(store: Store) -> None:
    seen: list[tuple[str, int]] = []
    events: list[str] = []
    graph = graph_of(source("a"), sink("f", lambda value: seen.append(value), input="a"), lease="500ms")
    with graph.open(store, on_event=lambda what, *_: events.append(what)) as live:
        live.start()
        live.send(1)
        live.settle()
        consumer = store.consumer(consumer_name("g", "f"))
        consumer.pause()
        eventually(lambda: live._lives["f"].status == "paused")
        live.send(2)
        with pytest.raises(Unavailable, match="f is paused: detent resume graph/g/f"):
            live.settle()
        assert seen == [1]
        consumer.resume()
        live.settle()  # although it has not heard of it yet
        assert seen == [1, 2]
        consumer.reset({"a": 0})
        eventually(lambda: seen == [1, 2, 1, 2])
    assert events[:3] == ["running", "paused", "running"]


def test_who_stands_by_for_one_that_rests_is_told(store: Store) -> None:
    graph = graph_of(source("a"), sink("f", lambda value: None, input="a"), lease="500ms")
    with graph.open(store) as live, graph.open(store) as other:
        live.start()
        other.start()
        eventually(lambda: other._lives["f"].status == "standby")
        store.consumer(consumer_name("g", "f")).pause()
        eventually(lambda: live._lives["f"].status == "paused")
        live.send(1)
        with pytest.raises(Unavailable, match="f is paused"):
            other.settle()


def test_a_processor_that_ended_reports_nothing_any_more(store: Store) -> None:
    """Another process may run it."""
    two = [sink(name, lambda value: None, input="a") for name in ("f", "k")]
    graph = graph_of(source("a"), *two, lease="500ms")
    with graph.open(store) as live, graph.open(store) as other:
        live.start()
        live.stop()
        other.start(only=["k"])
        live.start(only=["f"])
        eventually(lambda: [one.status for one in live.status()] == ["running", "running"])
        for _ in range(5):
            time.sleep(0.1)
            assert [one.status for one in live.status()] == ["running", "running"]


def test_an_end_does_not_wait_for_a_store_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(source("a"), sink("f", lambda value: None, input="a"), lease="500ms")
    stuck, goes_on = threading.Event(), threading.Event()
    with detent.open("memory:") as store, graph.open(store) as live:
        live.start()
        commit = store.commit

        def away(operations: Any, *more: Any) -> Any:
            if threading.current_thread().name == "detent-graph-g":
                stuck.set()
                assert goes_on.wait(60)
            return commit(operations, *more)

        monkeypatch.setattr(store, "commit", away)
        assert stuck.wait(60)
        beating = live._beats
        assert beating is not None
        live.stop("1s")
        assert beating.is_alive
        live.start()
        goes_on.set()
        beating.join(60)
        assert not beating.is_alive, "there are not two of them after another start"
        assert live._beats is not None
        assert live._beats.is_alive


# -- tailers and appenders --------------------------------------------------------------------------------------------


def test_any_of_ends_when_one_that_reads_backward_is_unblocked(store: Store) -> None:
    with Tailer(store, "a") as forward, Tailer(store, "b") as backward:
        backward.backward()
        threading.Timer(0.05, backward.unblock).start()
        assert any_of([forward, backward], "60s") is None
        waiting = threading.Thread(target=lambda: any_of([forward, backward.blockable()], None))
        waiting.start()
        eventually(lambda: forward._bell.event is not None)
        backward.close()
        waiting.join(60)
        assert not waiting.is_alive()


def test_an_appender_knows_after_its_first_message_that_the_journal_is_gone(store: Store) -> None:
    Appender(store, "a", "import").append(b"x", number=0)
    store.journal("a").delete()
    with pytest.raises(NotFound, match="deleted, or is another one"):
        Appender(store, "a", "import")
    store.journal("a").append(b"y")
    with pytest.raises(NotFound, match="deleted, or is another one"):
        Appender(store, "a", "import")


def test_machines_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first space of processes has the same number on all of them."""
    mine = members.new_member()
    assert not members.has_died(mine)
    assert members.has_died(f"{mine.rpartition('-')[0].rpartition('-')[0]}-{2**30}-00000000")
    (tmp_path / "boot_id").write_text("00000000-1111-2222-3333-444444444444\n")
    monkeypatch.setattr(members, "BOOT_ID", tmp_path / "boot_id")
    assert not members.has_died(f"{mine.rpartition('-')[0].rpartition('-')[0]}-{2**30}-00000000")
