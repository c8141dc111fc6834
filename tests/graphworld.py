"""What becomes of a graph whose process is killed: run it, kill it, and count what is lost, doubled, reordered or torn.

`World` is a folder with the stores of one graph of `graphprogram`. Its `check` reads everything that is durable, and
what the functions wrote down themselves, and asserts that each input was taken once, under one key, and that starting
the graph again, twice, changes nothing.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import detent
from detent import crash
from detent.journal import Message
from detent.processor import Graph, LiveGraph, Processor, provenance_of
from detent.processor.outcome import ERROR_TYPE, TYPE
from detent.processor.plan import errors_of
from detent.processor.records import OutputMark
from detent.processor.records import ProcessorRecord as Record
from detent.processor.runner import Runner
from detent.shard import operations as ops
from graphprogram import EFFECTS, GRAPHS, TRAIL, die_at, runs, serves, url_of
from processes import Child, Processes

STORES = ("", "b", "c")

SENT: dict[str, dict[str, list[int]]] = {
    "sorting": {"in": [0, 1, 2, 3, 4, 5]},
    "joining": {"left": [0, 1, 2], "right": [10, 11, 12]},
    "choosing": {"low": [0, 1, 2], "high": [10, 11, 12]},
    "forking": {"in": [0, 1, 2, 3]},
    "sinking": {"in": [0, 1, 2, 3]},
    "totalling": {"in": [0, 1, 2, 3, 4, 5]},
    "sharing": {"one": [0, 1, 2], "two": [10, 11, 12]},
    "polling": {},
}
EXPECTED: dict[str, dict[str, list[Any]]] = {
    "sorting": {"out@b": [0, 3], "failed@b": [[2], [5]]},
    "joining": {"pairs@b": [[0, 10], [1, 11], [2, 12]]},
    "forking": {"near": [0, 1, 2, 3], "all@b": [0, 1, 2, 3], "odd@c": [1, 3]},
    "totalling": {"totals@b": [[0, 1, 2, 3], [4, 5]]},
    "polling": {"counted@b": [0, 1, 2, 3, 4, 5]},
}
MERGED = {"choosing": "merged", "sharing": "out"}
"""What is sent to each graph, and what comes of it, where that has an order. Stores are those of a `far` one."""


class World:
    """The stores of one graph, and the processes that run it. Options are those of the graph's function."""

    def __init__(self, folder: Path, processes: Processes, graph: str, **options: Any) -> None:
        self.folder = folder
        self.graph = graph
        self.options = options
        self._processes = processes

    @contextmanager
    def store(self, name: str = "") -> Iterator[detent.Store]:
        """One of the stores; "" is the graph's own."""
        with detent.open(url_of(self.folder, name)) as opened:
            yield opened

    def stores(self) -> list[str]:
        """Those that exist."""
        return [name for name in STORES if (self.folder / (name or "a")).exists()]

    # -- what happens -------------------------------------------------------------------------------------------

    def send(self, journal: str, *numbers: Any, type: str | None = None) -> None:
        """Append messages, each in a commit of its own."""
        name, _, store = journal.partition("@")
        with self.store(store) as opened:
            for number in numbers:
                opened.journal(name).append(json.dumps(number).encode(), headers={} if type is None else {TYPE: type})

    def fill(self) -> None:
        """Send all that is `SENT`."""
        for journal, numbers in SENT[self.graph].items():
            self.send(f"{journal}@b" if self.graph == "sinking" and self.options["far"] else journal, *numbers)

    def die_at(self, processor: str, at: str = "") -> None:
        """See `graphprogram.die_at`."""
        die_at(self.folder, processor, at)

    def start(self, *, crash: str = "", stop: str = "", serve: bool = False, **given: Any) -> Child:
        """A process that runs the graph until nothing is left to do, or, to `serve`, until it is told to end."""
        environment = {"DETENT_CRASH_AT": crash, "DETENT_STOP_AT": stop}
        options = {**self.options, **given.pop("options", {})}
        function = serves if serve else runs
        return self._processes.start(
            function, environment=environment, graph=self.graph, folder=str(self.folder), options=options, **given
        )

    def killed(self, crash: str = "", **given: Any) -> None:
        """A process that ends at a crash point, or, without one, in a function that was told to."""
        child = self.start(crash=crash, **given)
        assert child.was_killed(), f"{crash or 'the function'} did not end it\n{child.errors()}"

    def finish(self, **given: Any) -> None:
        """A process that ends well, with nothing left to do."""
        child = self.start(**given)
        assert child.wait() == 0, child.errors()

    def refused(self, error: str, **given: Any) -> str:
        """A process that ends with an error of this kind; what it says."""
        child = self.start(**given)
        assert child.wait() == 1, child.errors()
        said = [line for line in child.errors().splitlines() if line.startswith(f"detent.errors.{error}: ")]
        assert said, child.errors()
        return said[-1]

    def run(self, **given: Any) -> None:
        """The same as `finish`, in this process."""
        options = {**self.options, **given.pop("options", {})}
        GRAPHS[self.graph](self.folder, **options).run(once=True, **given)

    def open(self, stack: ExitStack) -> LiveGraph:
        """The graph in this process, not started."""
        return stack.enter_context(GRAPHS[self.graph](self.folder, **self.options).open())

    # -- what came of it ----------------------------------------------------------------------------------------

    def look(self) -> Seen:
        """All that is durable."""
        messages: dict[str, list[Message]] = {}
        kept: dict[str, bytes] = {}
        for store in self.stores():
            with self.store(store) as opened:
                at = f"@{store}" if store else ""
                messages |= {f"{name}{at}": list(opened.journal(name).read()) for name in opened.journals()}
                kept |= {f"{name}{at}": data for name, data in checkpoints(opened).items()}
        return Seen(messages, kept)

    def values(self, journal: str) -> list[Any]:
        """The bodies of a journal's messages; of errors, the bodies of their inputs."""
        return self.look().values(journal)

    def records(self) -> dict[str, Record]:
        """What each processor has durably."""
        return self.look().records()

    def trail(self, processor: str | None = None) -> list[tuple[str, str]]:
        """Key and inputs of each call of a function, in order."""
        lines = [line.split(" ") for line in _lines(self.folder / TRAIL)]
        return [(key, inputs) for name, key, inputs in lines if processor in {None, name}]

    def effects(self) -> list[tuple[str, str]]:
        """Key and effect of each call of a sink."""
        return [(key, effect) for key, effect in (line.split(" ") for line in _lines(self.folder / EFFECTS))]

    # -- what must be -------------------------------------------------------------------------------------------

    def check(self, expected: Mapping[str, Sequence[Any]], *, filters: bool = False) -> Seen:
        """Each journal has just these values, in their order; keys and inputs belong together; and nothing changes any
        more. With `filters` functions do not see all inputs. Answers all that there is."""
        seen = self.look()
        for journal, wanted in expected.items():
            check_values(seen.values(journal), wanted, journal)
        self.check_keys(seen, filters=filters)
        self.check_rests(seen)
        return seen

    def check_all(self, **changed: list[Any]) -> None:
        """All that was `SENT` has had its effect, once. `changed` are journals with other values than usual."""
        far = self.options["far"]
        usual = {name if far else name.partition("@")[0]: some for name, some in EXPECTED.get(self.graph, {}).items()}
        seen = self.check({name: changed.get(name.partition("@")[0], some) for name, some in usual.items()})
        if self.graph in MERGED:
            merged = MERGED[self.graph]
            check_by_origin(seen.values(f"{merged}@b" if far else merged), SENT[self.graph])
        if self.graph == "sinking":
            self.check_effects(SENT[self.graph]["in"])

    def check_effects(self, numbers: Sequence[int]) -> None:
        """A sink may have run twice, with the same key; who asks for the key first has each effect once."""
        check_trail(self.effects())
        assert sorted(dict(self.effects()).values()) == [str(number) for number in numbers]

    def check_keys(self, seen: Seen, *, filters: bool = False) -> None:
        """A key always came with the same inputs, and these with the same key; and no input is missing."""
        for processor, record in seen.records().items():
            keys = check_trail(self.trail(processor))
            positions = record.snapshot.positions
            if positions:
                taken = Counter(one for inputs in keys.values() for one in inputs.split(","))
                assert max(taken.values(), default=1) == 1, "an input was in two sets"
                wanted = {f"{name}#{at}" for name, end in positions.items() for at in range(end)}
                assert filters or set(taken) == wanted, f"{processor} never saw {sorted(wanted - set(taken))[:5]}"
            totals = record.totals
            assert totals.outputs + totals.errors + totals.nils == record.snapshot.number
            check_origins(seen, processor, keys, record)

    def check_rests(self, before: Seen | None = None) -> None:
        """Whoever starts the graph twice more changes nothing, and calls no function."""
        before = self.look() if before is None else before
        trail = self.trail()
        for _ in range(2):
            self.run()
        after = self.look()
        assert after.messages == before.messages, "a graph with nothing to do has written something"
        assert after.kept == before.kept
        assert self.trail() == trail or self.graph == "polling"


class Died(BaseException):
    """A process ended here, as far as the code under test can tell."""


class Simulation(World):
    """The same without processes: stores in memory, and a process that dies is an exception that nobody catches. It
    takes milliseconds, so that one can die everywhere."""

    def __init__(self, folder: Path, stack: ExitStack, graph: str, **options: Any) -> None:
        super().__init__(folder, Processes(), graph, **options)
        self.opened = {name: stack.enter_context(detent.open("memory:")) for name in STORES}
        self._countdown = 0
        self._point: str | None = None

    @contextmanager
    def store(self, name: str = "") -> Iterator[detent.Store]:
        yield self.opened[name]

    def stores(self) -> list[str]:
        return list(self.opened)

    def run(self, **given: Any) -> None:
        """Run the processors one after another, each until it has nothing to do. Dies at the point that `die_at_point`
        has named, or in a function that was told to."""
        options = {**self.options, **given.pop("options", {})}
        graph = GRAPHS[self.graph](self.folder, **options)
        graph.check()
        for processor in graph.in_order():
            if processor.runs:
                self._live(graph, processor, **given)

    def _live(self, graph: Graph, processor: Processor, migrate: Sequence[str] = ()) -> None:
        bell = _LastBell()
        runner = Runner(
            graph.name,
            processor,
            {name: self.opened[name] for name in ("", *graph.stores)},
            errors=errors_of(processor, graph.errors),
            delivery=processor.delivery or graph.delivery,
            bell=bell,
            migrate=processor.name in migrate,
        )
        bell.stop = runner.stop
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(crash, "point", self._reached)
            patch.setattr(os, "kill", _die)
            try:
                runner.open()
                runner.run()
            finally:
                runner.close()

    def dies(self, point: str = "", count: int = 1, **given: Any) -> None:
        """Run, and die at a point; without one, in a function that was told to."""
        assert self.is_dead(point, count if point else 0, **given), f"{point}:{count} was never reached"

    def is_dead(self, point: str = "", count: int = 0, **given: Any) -> bool:
        """Run, and die at a point; without one, where any of them is reached for so many times. Whether it did."""
        self._point, self._countdown = point, count
        try:
            self.run(**given)
        except Died:
            return True
        finally:
            self._countdown = 0
        return False

    def _reached(self, point: str) -> None:
        if point.startswith("processor.") and point.endswith(self._point or ""):
            self._countdown -= 1
            if self._countdown == 0:
                raise Died(point)


class _LastBell(threading.Event):
    """Who would wait ends."""

    def __init__(self) -> None:
        super().__init__()
        self.stop: Callable[[], None] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        self.stop()
        return True


def _die(pid: int, signal: int) -> None:
    raise Died(f"{pid} by {signal}")


class Seen(NamedTuple):
    """All that is durable: messages by journal, and what processors keep; those of other stores with ``@store``."""

    messages: dict[str, list[Message]]
    kept: dict[str, bytes]

    def values(self, journal: str) -> list[Any]:
        """The values of a journal's messages; of errors, those of their inputs."""
        return [_value(message) for message in self.messages.get(journal, [])]

    def records(self) -> dict[str, Record]:
        """By processor."""
        return {name.rpartition("/")[2]: Record.decode(data) for name, data in self.kept.items() if "@" not in name}

    def marks(self) -> dict[str, OutputMark]:
        """By processor and store."""
        return {name.rpartition("/")[2]: OutputMark.decode(data) for name, data in self.kept.items() if "@" in name}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _value(message: Message) -> Any:
    value = json.loads(message.body)
    if message.headers.get(TYPE) == ERROR_TYPE:
        return [json.loads(one["body"]) for one in value["inputs"]]
    return value


def checkpoints(store: detent.Store) -> dict[str, bytes]:
    """What processors have in a store, by their consumer's name: records, or marks."""
    found = {}
    for consumer in store.commit([ops.DescribeConsumers("graph/")])[0].consumers:
        checkpoint = store.commit([ops.FindShard(consumer.name, 0)])[0].checkpoint
        if checkpoint is not None:
            found[consumer.name] = checkpoint
    return found


def check_origins(seen: Seen, processor: str, keys: Mapping[str, str], record: Record) -> None:
    """What outputs say of themselves is what the function was given; and each set gave outputs, or an error, or none of
    both."""
    outputs: set[str] = set()
    errors: set[str] = set()
    for message in (one for messages in seen.messages.values() for one in messages):
        origin = provenance_of(message)
        if origin is None or origin.processor.partition("/")[2] != processor:
            continue
        (errors if message.headers.get(TYPE) == ERROR_TYPE else outputs).add(origin.key)
        inputs = [f"{one.place}#{at}" for one in origin.inputs for at in range(one.first, one.last + 1)]
        assert sorted(filter(None, keys[origin.key].split(","))) == sorted(inputs)
    assert not outputs & errors, "an input set gave an output and an error"
    if not record.shape.whole:
        assert (len(outputs), len(errors)) == (record.totals.outputs, record.totals.errors)


def check_values(found: Sequence[Any], expected: Sequence[Any], what: str) -> None:
    """Each value once, in order."""
    there, wanted = Counter(map(json.dumps, found)), Counter(map(json.dumps, expected))
    lost, more = wanted - there, there - wanted
    strange = [one for one in more if one not in wanted]
    doubled = [one for one in more if one in wanted]
    assert not lost, f"{what}: lost {list(lost)[:5]} of {lost.total()}"
    assert not doubled, f"{what}: duplicated {doubled[:5]} of {len(doubled)}"
    assert not strange, f"{what}: torn or stale {strange[:5]} of {len(strange)}"
    assert list(found) == list(expected), f"{what}: reordered"


def check_by_origin(found: Sequence[Any], sent: Mapping[str, Sequence[int]]) -> None:
    """Each value once, and those of each journal in their order."""
    assert len(found) == sum(map(len, sent.values())), found
    for journal, numbers in sent.items():
        check_values([number for origin, number in found if origin == journal], numbers, journal)


def check_trail(trail: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The inputs by key, of which there is one for each."""
    keys: dict[str, str] = {}
    inputs_of: dict[str, str] = {}
    for key, inputs in trail:
        assert keys.setdefault(key, inputs) == inputs, f"{key} was given to {keys[key]} and to {inputs}"
        if inputs:
            assert inputs_of.setdefault(inputs, key) == key, f"{inputs} had the keys {inputs_of[inputs]} and {key}"
    return keys
