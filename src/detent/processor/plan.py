"""A graph as it was declared, and what is refused before it starts: unwritten inputs, names given twice, circles."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from detent import names
from detent.durations import Duration
from detent.errors import Invalid
from detent.processor.declaration import DELIVERIES, NAME_MAX, Delivery, JournalPlace, Processor, place
from detent.processor.function import Function
from detent.stream.opening import LEASE, lease_ms
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from detent.store import Store


class GraphPlan:
    """Processors, and what they have in common. `Graph` adds how they are declared and run."""

    def __init__(
        self,
        name: str,
        *,
        store: str | None = None,
        stores: Mapping[str, str] | None = None,
        processors: Iterable[Processor] = (),
        errors: str | None = None,
        system: Any = None,
        delivery: Delivery = "exactly-once",
        lease: Duration = LEASE,
    ) -> None:
        names.check_name(name, "graph")
        if "/" in name or len(name) > NAME_MAX:
            raise Invalid(f"a graph's name has up to {NAME_MAX} letters and no '/', not {name!r}")
        if delivery not in DELIVERIES:
            raise Invalid(f"delivery is {' or '.join(map(repr, DELIVERIES))}, not {delivery!r}")
        self.name = name
        self.store = store
        self.stores = dict(stores or {})
        for other in self.stores:
            names.check_name(other, "store")
        self.errors = None if errors is None else place(errors)
        self.system = system
        self.delivery: Delivery = delivery
        self.lease_ms = lease_ms(lease)
        self.processors: list[Processor] = []
        for processor in processors:
            self.add(processor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {len(self.processors)} processors)"

    def add(self, processor: Processor) -> Processor:
        """Add a processor that was declared with `source`, `stream` or `sink` of `detent.processor`."""
        if not isinstance(processor, Processor):
            raise Invalid(f"a processor is made by source(...), stream(...) or sink(...), not {processor!r}")
        if any(one.name == processor.name for one in self.processors):
            raise Invalid(f"{processor.name!r} is declared twice: each processor has a name of its own")
        self.processors.append(processor)
        return processor

    def check(self) -> None:
        """`Invalid`, with all that is wrong, unless this is a graph that can run."""
        if not self.processors:
            raise Invalid(f"the graph {self.name!r} has no processors: declare one with @graph.stream(...)")
        wrong = [*self._duplicates(), *self._unknown_stores(), *self._unknown_inputs(), *self._own_errors()]
        if wrong := wrong or self._circles():
            raise Invalid("; ".join(wrong))
        for processor in self.processors:
            if processor.runs:
                Function(processor, None)  # refuses functions with other parameters

    def in_order(self) -> list[Processor]:
        """The processors, each after those that write what it reads."""
        by_name = {one.name: one for one in self.processors}
        return [by_name[name] for name in TopologicalSorter(self.dependencies()).static_order()]

    def dependencies(self) -> dict[str, list[str]]:
        """Which processors write what a processor reads, by name, in the order of declaration."""
        writers: dict[JournalPlace, list[str]] = {}
        for one in self.processors:
            for where in writes(one, self.errors):
                writers.setdefault(where, []).append(one.name)
        return {one.name: [name for where in one.inputs for name in writers.get(where, ())] for one in self.processors}

    def processor(self, name: str) -> Processor:
        """The processor of that name."""
        for one in self.processors:
            if one.name == name:
                return one
        listed = ", ".join(one.name for one in self.processors)
        raise Invalid(f"the graph {self.name!r} has no processor {name!r}: it has {listed or 'none'}")

    def errors_of(self, processor: Processor) -> JournalPlace | None:
        """The journal of a processor's errors: its own, or the graph's, or none."""
        return errors_of(processor, self.errors)

    def delivery_of(self, processor: Processor) -> Delivery:
        """The delivery of a processor: its own, or the graph's."""
        return processor.delivery or self.delivery

    # -- what is refused ----------------------------------------------------------------------------------------

    def _duplicates(self) -> list[str]:
        seen: dict[str, int] = {}
        for one in self.processors:
            seen[one.name] = seen.get(one.name, 0) + 1
        twice = [name for name, count in seen.items() if count > 1]
        old = [one.formerly for one in self.processors if one.formerly in seen]
        claimed = [one.formerly for one in self.processors if one.formerly is not None]
        shared = sorted({name for name in claimed if claimed.count(name) > 1})
        return (
            [f"{name!r} is declared twice: each processor has a name of its own" for name in twice]
            + [f"{name!r} is declared, and another processor says that it was called so formerly" for name in old]
            + [f"several processors say formerly={name!r}: one of them takes over its progress" for name in shared]
        )

    def _unknown_stores(self) -> list[str]:
        found: dict[str, str] = {}
        for one in self.processors:
            for where in (*one.inputs, *writes(one, self.errors)):
                if where.store and where.store not in self.stores:
                    found.setdefault(where.store, f"{where} of {one.name!r}")
        return [
            f"{where} is in a store {store!r} that the graph does not name: "
            f"Graph(..., stores={{{store!r}: 'file:...'}})"
            for store, where in found.items()
        ]

    def _unknown_inputs(self) -> list[str]:
        written = {str(where) for one in self.processors for where in writes(one, self.errors)}
        wrong = []
        for one in self.processors:
            for where in one.inputs:
                if str(where) not in written:
                    near = difflib.get_close_matches(str(where), sorted(written), 1)
                    declared = f"{where.journal!r}, output={str(where)!r}" if where.store else repr(where.journal)
                    hint = f"did you mean {near[0]!r}?" if near else f"declare it: graph.source({declared})"
                    wrong.append(f"{one.name!r} reads {str(where)!r}, which is neither a source nor an output: {hint}")
        return wrong

    def _own_errors(self) -> list[str]:
        """A processor that reads the journal of its errors would feed itself."""
        return [
            f"{one.name!r} reads the journal {str(own)!r} that its own errors go to: give it errors=False or another "
            "one"
            for one in self.processors
            if (own := errors_of(one, self.errors)) in one.inputs
        ]

    def _circles(self) -> list[str]:
        try:
            TopologicalSorter({name: set(needed) for name, needed in self.dependencies().items()}).prepare()
        except CycleError as error:
            circle = " -> ".join(error.args[1])
            return [f"these processors feed each other in a circle: {circle}"]
        return []


@dataclass(frozen=True, slots=True)
class OpenGraph:
    """A graph with its stores open, by their names; "" is its own."""

    plan: GraphPlan
    stores: Mapping[str, Store]

    @property
    def store(self) -> Store:
        """The graph's own store."""
        return self.stores[""]

    def record(self, processor: str, store: str = "") -> FencedRecord:
        """What a store keeps of a processor: its record, or in another store its mark."""
        return FencedRecord(self.stores[store], consumer_name(self.plan.name, processor))

    def marks(self, processor: str) -> Iterator[tuple[str, FencedRecord]]:
        """The marks of a processor in the other stores that have one, with their names."""
        kept = ((name, self.record(processor, name)) for name in self.stores if name)
        return ((name, mark) for name, mark in kept if mark.describe() is not None)


def consumer_name(graph: str, processor: str) -> str:
    """Under which name a store keeps a processor's record, and its mark."""
    return f"graph/{graph}/{processor}"


def writes(processor: Processor, errors: JournalPlace | None) -> list[JournalPlace]:
    """Where a processor writes, with the journal of its errors."""
    own = errors_of(processor, errors)
    return [*processor.outputs.values(), *([] if own is None else [own])]


def errors_of(processor: Processor, errors: JournalPlace | None) -> JournalPlace | None:
    """The journal of a processor's errors: its own, or the graph's, or none."""
    if processor.errors_off:
        return None
    return processor.errors or errors
