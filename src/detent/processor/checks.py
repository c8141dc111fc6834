"""What is refused before a graph starts: inputs that nobody writes, names that are there twice, circles."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from detent.errors import Invalid
from detent.processor.declaration import Processor
from detent.processor.place import Place


def check_graph(processors: Sequence[Processor], errors: Place | None, stores: Iterable[str]) -> None:
    """`Invalid`, with all that is wrong, unless these processors make a graph."""
    wrong = [
        *_duplicates(processors),
        *_unknown_stores(processors, errors, {"", *stores}),
        *_unknown_inputs(processors, errors),
        *_own_errors(processors, errors),
    ]
    if not wrong:
        wrong = _circles(processors, errors)
    if wrong:
        raise Invalid("; ".join(wrong))


def in_order(processors: Sequence[Processor], errors: Place | None) -> list[Processor]:
    """The processors, each after those that write what it reads."""
    by_name = {one.name: one for one in processors}
    return [by_name[name] for name in TopologicalSorter(dependencies(processors, errors)).static_order()]


def dependencies(processors: Sequence[Processor], errors: Place | None = None) -> dict[str, list[str]]:
    """Which processors write what a processor reads, by name, in the order of declaration."""
    writers: dict[Place, list[str]] = {}
    for one in processors:
        for place in writes(one, errors):
            writers.setdefault(place, []).append(one.name)
    return {one.name: [name for place in one.inputs for name in writers.get(place, ())] for one in processors}


def writes(processor: Processor, errors: Place | None) -> list[Place]:
    """Where a processor writes, with the journal of its errors."""
    own = errors_of(processor, errors)
    return [*processor.outputs.values(), *([] if own is None else [own])]


def errors_of(processor: Processor, errors: Place | None) -> Place | None:
    """The journal of a processor's errors: its own, or the graph's, or none."""
    if processor.errors_off:
        return None
    return processor.errors or errors


def _duplicates(processors: Sequence[Processor]) -> list[str]:
    seen: dict[str, int] = {}
    for one in processors:
        seen[one.name] = seen.get(one.name, 0) + 1
    twice = [name for name, count in seen.items() if count > 1]
    old = [one.formerly for one in processors if one.formerly in seen]
    claimed = [one.formerly for one in processors if one.formerly is not None]
    shared = sorted({name for name in claimed if claimed.count(name) > 1})
    return (
        [f"{name!r} is declared twice: each processor has a name of its own" for name in twice]
        + [f"{name!r} is declared, and another processor says that it was called so formerly" for name in old]
        + [f"several processors say formerly={name!r}: one of them takes over its progress" for name in shared]
    )


def _unknown_stores(processors: Sequence[Processor], errors: Place | None, stores: set[str]) -> list[str]:
    found: dict[str, str] = {}
    for one in processors:
        for place in (*one.inputs, *writes(one, errors)):
            if place.store not in stores:
                found.setdefault(place.store, f"{place} of {one.name!r}")
    return [
        f"{where} is in a store {store!r} that the graph does not name: Graph(..., stores={{{store!r}: 'file:...'}})"
        for store, where in found.items()
    ]


def _unknown_inputs(processors: Sequence[Processor], errors: Place | None) -> list[str]:
    written = {str(place) for one in processors for place in writes(one, errors)}
    wrong = []
    for one in processors:
        for place in one.inputs:
            if str(place) not in written:
                near = difflib.get_close_matches(str(place), sorted(written), 1)
                declared = f"{place.journal!r}, output={str(place)!r}" if place.store else repr(place.journal)
                hint = f"did you mean {near[0]!r}?" if near else f"declare it: graph.source({declared})"
                wrong.append(f"{one.name!r} reads {str(place)!r}, which is no source and nobody's output: {hint}")
    return wrong


def _own_errors(processors: Sequence[Processor], errors: Place | None) -> list[str]:
    """A processor that reads the journal of its errors would feed itself."""
    return [
        f"{one.name!r} reads the journal {str(own)!r} that its own errors go to: give it errors=False or another one"
        for one in processors
        if (own := errors_of(one, errors)) in one.inputs
    ]


def _circles(processors: Sequence[Processor], errors: Place | None) -> list[str]:
    try:
        TopologicalSorter(_as_sets(dependencies(processors, errors))).prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        return [f"these processors feed each other in a circle: {circle}"]
    return []


def _as_sets(found: Mapping[str, list[str]]) -> dict[str, set[str]]:
    return {name: set(needed) for name, needed in found.items()}
