"""Processors that fail and go on, processes that take over from each other, and what is left when they have ended."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import detent
from detent import Conflict, Fenced, Invalid, Store, Unavailable
from detent.processor import Graph, LiveGraph, Processor, Step, sink, source, stream
from detent.processor import task as life
from detent.runtime.backoff import Backoff
from detent.shard import operations as ops
from processes import PATIENCE_S, Child, Io, Processes, eventually
from remoteserver import serving


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as store:
        yield store


@pytest.fixture
def url(store_dir: Path) -> str:
    return f"file:{store_dir}"


def graph_of(*processors: Processor, **options: Any) -> Graph:
    return Graph("g", processors=[source("a"), *processors], **{"lease": "500ms", **options})


def values(live: LiveGraph, journal: str = "x") -> list[Any]:
    return [message.json() for message in live.read(journal)]


class Faulty:
    """A function that fails at one number until it is mended, and notes under which keys it was called."""

    def __init__(self, at: int = 3) -> None:
        self.at = at
        self.mended = threading.Event()
        self.calls: list[tuple[int, str]] = []

    def __call__(self, number: int, step: Step) -> int:
        self.calls.append((number, step.key))
        if number == self.at and not self.mended.is_set():
            raise ConnectionError(f"no {number} today")
        return number

    def keys_of(self, number: int) -> list[str]:
        return [key for called, key in self.calls if called == number]


# -- failing and going on ---------------------------------------------------------------------------------------------


def test_a_processor_that_fails_rests_and_goes_on_when_it_is_mended(store: Store) -> None:
    function = Faulty()
    seen: list[tuple[str, str, str]] = []
    graph = graph_of(
        stream("f", function, input="a", output="x", batch=10),
        stream("well", lambda number: number, input="a", output="y"),
    )
    store.journal("a").append_many([b"%d" % number for number in range(6)])
    with graph.open(store, on_event=lambda *event: seen.append(event)) as live:
        live.start()
        eventually(lambda: len(function.keys_of(3)) > 2)
        assert values(live) == [0, 1, 2], "what came before the failure in its batch is kept"
        assert values(live, "y") == [*range(6)], "others go on"
        assert [len(function.keys_of(number)) for number in (0, 1, 2)] == [1, 1, 1], "and not done again"
        assert isinstance(live.local_error("f"), ConnectionError)
        function.mended.set()
        eventually(lambda: len(values(live)) == 6)
        live.settle()
        assert values(live) == [*range(6)]
        assert live.local_error("f") is None
    assert len(set(function.keys_of(3))) == 1, "whoever tries again does so under the same key"
    assert len({key for _, key in function.calls}) == 6
    told = [(what, more) for what, which, more in seen if which == "f"]
    assert any(
        what == "failed" and more.startswith("ConnectionError: no 3 today; g/f was at a#3") for what, more in told
    )
    assert [what for what, _ in told][:3] == ["running", "failed", "running"]
    assert [what for what, which, _ in seen if which == "well"] == ["running"]


@pytest.mark.parametrize(
    "options", [{"parallel": 4}, {"whole": True, "batch": 10}, {"retries": 2, "retry_pause": "0ms"}]
)
def test_other_ways_to_fail(store: Store, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "RETRY", Backoff(0.01, 30.0))
    mended = threading.Event()
    keys: list[str] = []

    def function(value: Any, step: Step) -> Any:
        if 3 in ([value] if isinstance(value, int) else value):
            keys.append(step.key)
            if not mended.is_set():
                raise ConnectionError("not yet")
        return value

    store.journal("a").append_many([b"%d" % number for number in range(6)])
    with graph_of(stream("f", function, input="a", output="x", **options)).open(store) as live:
        live.start()
        eventually(lambda: len(keys) > 3)
        live.send(6)
        mended.set()
        eventually(lambda: live.status()[0].lag == 0)
        live.settle()
        found = values(live)
        assert [*range(7)] == [each for value in found for each in (value if isinstance(value, list) else [value])]
        if "whole" in options:
            assert found[0] == [*range(6)], "a batch that was begun is the same when it is tried again"
    assert len(set(keys)) == 1


def test_a_failing_processor_rests_longer_each_time(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    function = Faulty(0)
    with graph_of(stream("f", function, input="a", output="x")).open(store) as live:
        live.send(0)
        with caplog.at_level(logging.WARNING, logger="detent.processor"):
            live.start()
            eventually(lambda: len(function.calls) > 2)
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == [f"the processor f failed, and starts over in {pause} s" for pause in (0.1, 0.2)]
    assert all(record.exc_info for record in caplog.records[:2])


def test_one_that_rests_is_restarted_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "RETRY", Backoff(3_600.0, 3_600.0))
    function = Faulty(0)
    with graph_of(stream("f", function, input="a", output="x")).open(store) as live:
        with pytest.raises(Invalid, match="was not started here"):
            live.restart("f")
        live.send(0)
        live.start()
        eventually(lambda: live.local_error("f"))
        function.mended.set()
        live.restart("f")
        eventually(lambda: values(live) == [0])
        live.restart("f")  # one that is well, too
        live.send(1)
        eventually(lambda: values(live) == [0, 1])
        live.settle()
        assert len(function.calls) == 3
        with pytest.raises(Invalid, match="no processor 'nobody'"):
            live.restart("nobody")
        live.stop()
        live.restart("f")
        live.send(2)
        eventually(lambda: values(live) == [0, 1, 2])


def test_status_shows_who_fails_and_why(store: Store) -> None:
    function = Faulty(1)
    graph = graph_of(stream("f", function, input="a", output="x"))
    with graph.open(store) as live, graph.open(store) as looking:
        live.start()
        for number in range(3):
            live.send(number)

        def shown(status: str) -> Any:
            (found,) = looking.status()
            return found if found.status == status else None

        found = eventually(lambda: shown("failed"))
        assert found.error.startswith("ConnectionError: no 1 today; g/f was at a#1, under the key ")
        assert (found.lag, found.outputs) == (2, 1)
        function.mended.set()
        found = eventually(lambda: shown("running"))
        live.stop()
        assert (looking.status()[0].status, looking.status()[0].error) == ("stopped", "")


def test_a_function_that_calls_exit(store: Store) -> None:
    """It ends neither the process nor, without a word, the processor."""
    left = [2]

    def function(number: int) -> int:
        if left[0]:
            left[0] -= 1
            sys.exit("enough")
        return number

    with graph_of(stream("f", function, input="a", output="x")).open(store) as live:
        live.send(1)
        live.start()
        error = eventually(lambda: live.local_error("f"))
        assert "SystemExit('enough')" in str(error)
        eventually(lambda: values(live) == [1])


def test_a_function_whose_own_writer_was_replaced(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """It fails like any other, and rests: nobody has taken the processor itself."""
    calls: list[int] = []

    def function(number: int) -> None:
        calls.append(number)
        raise Fenced("another appender of that name was opened")

    seen: list[str] = []
    graph = graph_of(sink("f", function, input="a"), errors="e")
    with graph.open(store, on_event=lambda what, *_: seen.append(what)) as live:
        live.send(1)
        with caplog.at_level(logging.WARNING, logger="detent.processor"):
            live.start()
            eventually(lambda: len(calls) > 2)
        assert isinstance(live.local_error("f"), Fenced)
        assert values(live, "e") == []
    assert "fenced" not in seen
    assert len(caplog.records) == len(calls), "each is told, and rested after"


def test_a_graph_that_cannot_start_leaves_nothing_running(store: Store) -> None:
    with graph_of(stream("f", lambda value: value, input="a", output="x")).open(store) as live:
        live.start()
    changed = graph_of(
        source("b"),
        stream("well", lambda value: value, input="a", output="y"),
        stream("f", lambda left, right: left, join=["a", "b"], output="x"),
    )
    with changed.open(store) as live:
        with pytest.raises(Conflict, match="g/f was a stream of a"):
            live.start()
        assert [one.holder for one in live.status()] == ["", ""]
        live.start(only=["well"])
        live.send(1, "a")
        live.settle()
        assert values(live, "y") == [1]


# -- stopping ---------------------------------------------------------------------------------------------------------


class Slow:
    """A function that says when it is called, and goes on when it may."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.may_end = threading.Event()
        self.calls = 0

    def __call__(self, value: int) -> int:
        self.calls += 1
        self.called.set()
        assert self.may_end.wait(PATIENCE_S)
        return value


def test_stopped_while_a_function_runs(store: Store) -> None:
    """Its step is finished, and committed; the next is not begun."""
    function = Slow()
    with graph_of(stream("f", function, input="a", output="x")).open(store) as live:
        live.send(1)
        live.send(2)
        live.start()
        assert function.called.wait(PATIENCE_S)
        with pytest.raises(Unavailable, match="f did not end within 10ms: a function is still at work"):
            live.stop("10ms")
        assert values(live) == []
        function.may_end.set()
        live.stop()
        assert (values(live), function.calls) == ([1], 1)
        live.stop()  # twice is fine
        live.start()
        live.start()  # and so is this
        live.settle()
        assert (values(live), function.calls) == ([1, 2], 2)


def test_started_again_before_the_last_step_has_ended(store: Store) -> None:
    function = Slow()
    with graph_of(stream("f", function, input="a", output="x")).open(store) as live:
        live.send(1)
        live.start()
        assert function.called.wait(PATIENCE_S)
        with pytest.raises(Unavailable):
            live.stop("1ms")
        timer = threading.Timer(0.05, function.may_end.set)
        timer.start()
        live.start()
        live.settle()
        timer.join()
        assert (values(live), function.calls) == ([1], 1)


def test_stopped_between_retries(store: Store) -> None:
    """Nobody waits for an hour; and what was not tried often enough is no error yet."""
    function = Faulty(1)
    options: dict[str, Any] = {"input": "a", "output": "x", "retries": 5, "retry_pause": "1h", "errors": "e"}
    with graph_of(stream("f", function, **options)).open(store) as live:
        live.send(1)
        live.start()
        eventually(lambda: function.calls)
        live.stop("30s")
        assert (values(live), values(live, "e")) == ([], [])
        function.mended.set()
        live.start()
        live.settle()
        assert (values(live), values(live, "e")) == ([1], [])
    assert len(set(function.keys_of(1))) == 1


def test_some_of_a_graph(store: Store) -> None:
    graph = graph_of(
        stream("f", lambda value: value, input="a", output="x"),
        stream("g", lambda value: value, input="x", output="y"),
    )
    with graph.open(store) as live, graph.open(store) as other:
        live.send(1)
        live.start(only=["f"])
        live.settle()
        assert (values(live), values(live, "y")) == ([1], [])
        with pytest.raises(Invalid, match="no processor 'h': it has a, f, g"):
            live.start(only=["h"])
        other.start(only=["g", "a"])  # a is only written to
        eventually(lambda: values(live, "y") == [1])
        holders = {one.name: one.holder for one in live.status()}
        assert holders == {"f": live._member, "g": other._member}


def run_of(graph: Graph, store: Store, **options: Any) -> threading.Thread:
    thread = threading.Thread(target=graph.run, args=(store,), kwargs=options)
    thread.start()
    return thread


def test_running_once(store: Store) -> None:
    graph = graph_of(stream("f", lambda value: value, input="a", output="x"))
    store.journal("a").append_many([b"1", b"2"])
    graph.run(store, once=True)
    assert store.journal("x").next_offset() == 2
    thread = run_of(graph, store, once=True)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


# -- leases -----------------------------------------------------------------------------------------------------------


def shard(store: Store, processor: str = "f") -> ops.ShardDescription:
    found: ops.ShardDescription = (
        store.commit([ops.DescribeConsumers(name=f"graph/g/{processor}")])[0].consumers[0].states[0]
    )
    return found


def test_leases_are_kept_and_given_back(store: Store) -> None:
    graph = graph_of(stream("f", lambda value: value, input="a", output="x"))
    with graph.open(store) as live, graph.open(store) as other:
        live.start()
        other.start()
        eventually(lambda: other._lives["f"].status == "standby")
        renewed, last = 0, 0
        while renewed < 5:  # a lease would have ended by now
            left = shard(store).lease_ms
            renewed, last = renewed + (left > last), left
            time.sleep(0.02)
        assert (shard(store).holder, other._lives["f"].status) == (live._member, "standby")
        assert other.status()[0].status == "running", "as the store knows it"
        live.stop()
        eventually(lambda: other._lives["f"].status == "running")
        assert shard(store).holder == other._member
        other.send(1)
        other.settle()
        assert values(other) == [1]
    assert shard(store).holder == ""


def test_who_stands_by_says_so_once(store: Store) -> None:
    seen: list[str] = []
    graph = graph_of(stream("f", lambda value: value, input="a", output="x"))
    with graph.open(store) as live, graph.open(store, on_event=lambda what, *_: seen.append(what)) as other:
        live.start()
        other.start()
        eventually(lambda: seen)
        other.send(1)
        other.settle()  # whoever does it
        assert values(other) == [1]
        live.stop()
        eventually(lambda: "running" in seen)
    assert seen == ["standby", "running"]


def test_who_stands_by_for_one_that_fails_is_told(store: Store) -> None:
    graph = graph_of(stream("f", lambda value: 1 // value, input="a", output="x"))
    with graph.open(store) as live, graph.open(store) as other:
        live.start()
        other.start()
        eventually(lambda: other._lives["f"].status == "standby")
        other.send(0)
        with pytest.raises(
            Unavailable, match=rf"f fails in the process that runs it, {live._member}: ZeroDivisionError"
        ):
            other.settle("60s")


def test_a_consumer_of_the_same_name(store: Store) -> None:
    store.commit([ops.RegisterConsumer("graph/g/f", 2, [])])
    graph = graph_of(stream("f", lambda value: value, input="a", output="x"))
    with graph.open(store) as live, pytest.raises(Invalid, match="'graph/g/f' is a consumer of another kind"):
        live.start()


# -- several processes ------------------------------------------------------------------------------------------------


def program(io: Io, url: str, lease: str = "500ms", only: list[str] | None = None) -> None:
    """A graph in a process of its own; it says what happens to its processors."""
    graph = graph_of(
        stream("f", lambda number: [number, os.getpid()], input="a", output="x"),
        stream("g", lambda number: [number, os.getpid()], input="a", output="y"),
        lease=lease,
    )
    with graph.open(url, on_event=lambda what, which, more: io.say(what, which=which, more=more)) as live:
        live.start(only=only)
        io.hear()


def statuses(child: Child) -> dict[str, str]:
    """What a child said last of each processor."""
    return {event["which"]: event["event"] for event in list(child.events)}


def has(child: Child, status: str, names: str = "fg") -> Callable[[], bool]:
    return lambda: statuses(child) == dict.fromkeys(names, status)


def has_messages(store: Store, journal: str, count: int) -> bool:
    return store.reader.next_offset(journal) == count


def filled(store: Store, *numbers: int, writer: Child) -> None:
    """Send messages, and wait until this process has dealt with them."""
    count = store.reader.next_offset("a")
    store.journal("a").append_many([b"%d" % number for number in numbers])
    for journal in ("x", "y"):
        eventually(functools.partial(has_messages, store, journal, count + len(numbers)))
        found = [message.json() for message in store.journal(journal).read(count)]
        assert found == [[number, writer.pid] for number in numbers]


@contextmanager
def pair(processes: Processes, url: str, **options: Any) -> Iterator[tuple[Child, Child]]:
    """A process that runs the graph, and one that stands by."""
    first = processes.start(program, url=url, **options)
    eventually(has(first, "running"))
    second = processes.start(program, url=url, **options)
    eventually(has(second, "standby"))
    yield first, second


def test_a_second_process_takes_over_when_the_first_ends(url: str, processes: Processes) -> None:
    with pair(processes, url, lease="1h") as (first, second):
        with detent.open(url) as store:
            filled(store, 1, 2, writer=first)
            first.finish()
            eventually(has(second, "running"))
            filled(store, 3, writer=second)
        second.finish()


@pytest.mark.parametrize("owns", [True, False])
def test_a_second_process_takes_over_when_the_first_is_killed(url: str, processes: Processes, owns: bool) -> None:
    """Nobody waits for the end of its lease: on this machine it is seen that it has died."""
    with ExitStack() as stack:
        if not owns:
            stack.enter_context(detent.open(url))
        first, second = stack.enter_context(pair(processes, url, lease="1h"))
        store = stack.enter_context(detent.open(url))
        filled(store, 1, writer=first)
        first.kill()
        eventually(has(second, "running"))
        filled(store, 2, writer=second)
        second.finish()


def test_a_second_process_takes_over_when_the_first_stands_still(url: str, processes: Processes) -> None:
    """Its lease ends. When it goes on it stands by, and writes nothing."""
    with detent.open(url) as store, pair(processes, url) as (first, second):
        filled(store, 1, writer=first)
        first.stop()
        eventually(has(second, "running"))
        filled(store, 2, 3, writer=second)
        first.resume()
        eventually(has(first, "standby"))
        filled(store, 4, writer=second)
        second.finish()
        eventually(has(first, "running"))
        filled(store, 5, writer=first)
        first.finish()


def test_a_process_that_has_died_is_shown(url: str, processes: Processes) -> None:
    with detent.open(url) as store:
        child = processes.start(program, url=url, lease="1h", only=["f"])
        eventually(has(child, "running", "f"))
        child.kill()
        with graph_of(stream("f", lambda value: value, input="a", output="x")).open(store) as live:
            (status,) = [one for one in live.status() if one.name == "f"]
            assert (status.status, status.holder != "") == ("died", True)
            live.start()
            assert live.status()[0].holder == live._member, "nobody has to wait for the end of its lease"


def test_processes_that_run_some_each(url: str, processes: Processes) -> None:
    with detent.open(url) as store:
        one = processes.start(program, url=url, only=["f"])
        two = processes.start(program, url=url, only=["g"])
        eventually(has(one, "running", "f"))
        eventually(has(two, "running", "g"))
        store.journal("a").append_many([b"1", b"2"])
        for journal, child in (("x", one), ("y", two)):
            eventually(functools.partial(has_messages, store, journal, 2))
            assert [message.json()[1] for message in store.journal(journal).read()] == [child.pid] * 2
        one.finish()
        two.finish()
        assert {shard(store, "f").holder, shard(store, "g").holder} == {""}


def running_until_told(io: Io, url: str) -> None:
    """What a program does that has nothing but a graph."""
    graph = graph_of(stream("f", lambda number: number, input="a", output="x"), lease="1h")

    def end() -> None:
        io.hear()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    graph.run(url)
    io.say("ended")


def test_a_program_that_is_told_to_stop(url: str, processes: Processes) -> None:
    with detent.open(url) as store:
        store.journal("a").append(b"1")
        child = processes.start(running_until_told, url=url)
        eventually(lambda: store.reader.next_offset("x") == 1)
        child.tell(call="stop")
        child.expect("ended")
        assert child.wait() == 0
        assert shard(store).holder == "", "nobody has to wait for the end of its lease"


# -- what is left -----------------------------------------------------------------------------------------------------


def open_ends() -> list[str]:
    """What this process has open; a socket and a pipe with their number, which no other one has while it is open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except FileNotFoundError:  # the folder's own
            continue
    return found


def open_files(of_others: Collection[str]) -> list[str]:
    """What a test has open, without what earlier ones left to the garbage collector, which goes whenever it likes."""
    others = {one for one in of_others if one.startswith(("socket:[", "pipe:["))}
    return sorted(one.partition(":[")[0] for one in open_ends() if one not in others)


def threads() -> list[str]:
    """Who is at work in this process, without the helpers of the server's loop, which come when they are needed."""
    return sorted(thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_"))


def whole_graph(far: str) -> Graph:
    """Something of everything that could be left behind."""

    async def later(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    return graph_of(
        source("b"),
        stream("f", lambda value: value, input="a", output="x@far", parallel=3, types="t"),
        stream("j", lambda left, right: left, join=["x@far", "b"], output="y"),
        stream("k", later, any_of=["y", "x@far"], output="z@far"),
        sink("s", lambda values: None, input="z@far", whole=True, batch=5),
        stream("bad", lambda value: 1 // 0, input="a", output="w"),
        stores={"far": far},
    )


def ours(name: str) -> bool:
    return name.startswith(("detent-processor", "detent-graph", "detent-growth", "detent-f", "detent-loop"))


@pytest.mark.parametrize("kind", ["owner", "client", "http"])
def test_nothing_is_left_when_a_graph_has_ended(kind: str, url: str, tmp_path: Path) -> None:
    """No thread, no watch, no socket, no file: neither after a stop with the stores open, nor after the end."""

    def cycle(home: str | Store, far: str) -> None:
        with whole_graph(far).open(home) as live:
            for _ in range(2):
                live.start()
                for number in range(3):
                    live.send(number, "a", type="t")
                live.send(1, "b")
                eventually(lambda: live.local_error("bad"))
                eventually(lambda: all(one.lag == 0 for one in live.status() if one.name in {"f", "k", "s"}))
                live.stop()
                assert [name for name in threads() if ours(name) and name != "detent-loop"] == []
        assert [name for name in threads() if ours(name)] == []

    gc.collect()
    of_others = open_ends()
    with serving(f"file:{tmp_path}/served") as server, detent.open(url) as owner:
        assert server.store is not None
        homes: dict[str, str | Store] = {"owner": owner, "client": url, "http": server.url}
        home = homes[kind]
        far = url if kind == "http" else server.url

        def left() -> tuple[list[str], list[str], int]:
            watched = [len(each._connection.current.journals.watch) for each in (owner, server.store)]  # type: ignore[union-attr]
            return open_files(of_others), threads(), sum(watched)

        cycle(home, far)  # with what is made once for the process
        before = settled(left)
        assert before[2] == 0
        for _ in range(2):
            cycle(home, far)
        after = settled(left)
        assert after == before


def test_a_read_that_was_not_finished_is_ended(tmp_path: Path) -> None:
    """Through a server it holds a connection."""
    function = Slow()
    graph = graph_of(sink("f", lambda message: function(0), input="a"))
    with serving(f"file:{tmp_path}/served") as server, detent.open(server.url) as far:
        assert server.store is not None
        for _ in range(30):
            server.store.journal("a").append_many([b'"%s"' % (b"x" * 100_000)] * 5)
        with graph.open(far) as live:
            live.start()
            assert function.called.wait(PATIENCE_S)
            owner: Any = far._connection.current
            assert owner._users == 1
            timer = threading.Timer(0.01, function.may_end.set)
            timer.start()
            live.stop()
            timer.join()
            assert (owner._users, function.calls < 150) == (0, True)


def settled(look: Callable[[], Any]) -> Any:
    """What is found three times in a row: the other end of a connection takes a moment to see that it was closed."""
    found = [look(), None]

    def same() -> bool:
        time.sleep(0.2)
        found.append(look())
        return bool(found[-1] == found[-2] == found[-3])

    eventually(same)
    return found[-1]
