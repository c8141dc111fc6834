"""A graph as people see it: as text, a row for each processor and a lane for each journal; or for Mermaid.

    orders  ●          source
    prices  │ ●        source
    valid   ○─┼─●┄┄┄✗  orders → checked, ✗ failed
    total     ○─○─●┄✗  checked + prices → totals, ✗ failed
    show          ○┄✗  totals → (outside), ✗ failed

A lane goes down from the first row that writes the journal to the last one that has to do with it. Nothing has to be
laid out, so that it stays readable however the graph is wired, and takes a line for each processor.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, Literal

from detent.processor.declaration import JournalPlace, Processor
from detent.processor.plan import GraphPlan, errors_of

READS: Final = "○"
WRITES: Final = "●"
FAILS: Final = "✗"
LEGEND: Final = f"{READS} reads   {WRITES} writes   {FAILS} writes input that failed"

JOINED: Final = {"none": "", "one": "", "zip": " + ", "any": " | "}
"""What is between the inputs: all of them at a time, or one of them."""


def drawn(graph: GraphPlan, kind: Literal["text", "mermaid"]) -> str:
    """As text, or for Mermaid."""
    return _mermaid(graph) if kind == "mermaid" else _text(graph)


def rows_of(graph: GraphPlan) -> list[Processor]:
    """The processors, each after those that write what it reads, and otherwise as they were declared, as
    in the file."""
    needed = {name: set(names) for name, names in graph.dependencies().items()}
    place = {one.name: index for index, one in enumerate(graph.processors)}
    readers: dict[str, list[str]] = {}
    for name, names in needed.items():
        for other in names:
            readers.setdefault(other, []).append(name)
    free = [place[name] for name, names in needed.items() if not names]
    heapq.heapify(free)
    rows = []
    while free:
        one = graph.processors[heapq.heappop(free)]
        rows.append(one)
        for name in readers.get(one.name, ()):
            needed[name].discard(one.name)
            if not needed[name]:
                heapq.heappush(free, place[name])
    return rows


# -- text -------------------------------------------------------------------------------------------------------------


def _text(graph: GraphPlan) -> str:
    rows = rows_of(graph)
    lanes = _lanes(rows, graph.errors)
    ends = _ends(rows, graph.errors)
    width = max(len(one.name) for one in rows)
    lines = []
    for index, one in enumerate(rows):
        live = [ends[lane][0] < index < ends[lane][1] for lane in lanes]
        marks = _marks(one, lanes, graph.errors)
        lines.append(f"{one.name:<{width}}  {_row(marks, live)}  {_said(one, graph.errors)}".rstrip())
    return "\n".join([*lines, "", LEGEND])


def _lanes(rows: Sequence[Processor], errors: JournalPlace | None) -> list[JournalPlace]:
    """The journals from left to right, as they are written; those for errors alone are at the right, so that their
    lines cross nothing but each other."""
    outputs = dict.fromkeys(place for one in rows for place in one.outputs.values())
    failed = dict.fromkeys(place for one in rows if (place := errors_of(one, errors)) is not None)
    return [*outputs, *(place for place in failed if place not in outputs)]


def _ends(rows: Sequence[Processor], errors: JournalPlace | None) -> dict[JournalPlace, tuple[int, int]]:
    """The first and the last row that has to do with a journal."""
    ends: dict[JournalPlace, tuple[int, int]] = {}
    for index, one in enumerate(rows):
        own = errors_of(one, errors)
        for place in (*one.inputs, *one.outputs.values(), *([] if own is None else [own])):
            ends[place] = (ends.get(place, (index, index))[0], index)
    return ends


def _marks(processor: Processor, lanes: Sequence[JournalPlace], errors: JournalPlace | None) -> dict[int, str]:
    """What a processor does, by lane."""
    own = errors_of(processor, errors)
    found: dict[int, str] = {}
    for index, lane in enumerate(lanes):
        if lane in processor.inputs:
            found[index] = READS
        elif lane in processor.outputs.values():
            found[index] = WRITES
        elif lane == own:
            found[index] = FAILS
    return found


def _row(marks: dict[int, str], live: Sequence[bool]) -> str:
    """A row of the picture: its marks with a line between them, which is dotted where it goes to a journal of errors
    only; and the lanes that it crosses, or that pass by."""
    solid = [index for index, mark in marks.items() if mark != FAILS] or list(marks)
    first, last = min(marks), max(marks)
    cells = []
    for index, passing in enumerate(live):
        line = "─" if min(solid) <= index < max(solid) else "┄"
        cell = marks.get(index)
        if cell is None:
            crossed = first < index < last
            cell = ("┼" if passing else line) if crossed else ("│" if passing else " ")
        cells.append(cell + (line if first <= index < last else " "))
    return "".join(cells)[:-1]


def _said(processor: Processor, errors: JournalPlace | None) -> str:
    """The same in words: a lane is known by the row in which it begins."""
    read = JOINED[processor.mode].join(map(str, processor.inputs))
    written = ", ".join(map(str, processor.outputs.values()))
    own = errors_of(processor, errors)
    failed = "" if own is None else f", {FAILS} {own}"
    if processor.kind == "source":
        return "source" if written == processor.name else f"source → {written}"
    return f"{read} → {written or '(outside)'}{failed}"


# -- Mermaid ----------------------------------------------------------------------------------------------------------


def _mermaid(graph: GraphPlan) -> str:
    """A flowchart. Nodes have ids of our own, so that no name can be a word of Mermaid's."""
    rows = rows_of(graph)
    lanes = _lanes(rows, graph.errors)
    journals = {place: f"j{index}" for index, place in enumerate(lanes)}
    lines = ["flowchart LR", *_journal_nodes(journals)]
    links = []
    for index, one in enumerate(rows):
        if not one.runs:
            continue  # a journal that other programs write
        name = f"p{index}"
        shape = {"source": "([{}])", "stream": "[{}]", "sink": "[[{}]]"}[one.kind]
        lines.append(f"    {name}{shape.format(_quoted(one.name))}")
        links += [f"    {journals[place]} --> {name}" for place in one.inputs]
        links += [f"    {name} --> {journals[place]}" for place in one.outputs.values()]
        own = errors_of(one, graph.errors)
        links += [] if own is None else [f"    {name} -. errors .-> {journals[own]}"]
    return "\n".join([*lines, *links])


def _journal_nodes(journals: dict[JournalPlace, str]) -> list[str]:
    """The journals, those of each other store in a box of its own."""
    lines = []
    stores = dict.fromkeys(place.store for place in journals)
    for index, store in enumerate(sorted(stores)):
        nodes = [f"{name}[({_quoted(place.journal)})]" for place, name in journals.items() if place.store == store]
        if store:
            inner = [f"        {node}" for node in nodes]
            lines += [f"    subgraph s{index}[{_quoted(store)}]", *inner, "    end"]
        else:
            lines += [f"    {node}" for node in nodes]
    return lines


def _quoted(text: str) -> str:
    """A label. Names have no quotes in them; what Mermaid would take for the beginning of an entity, or of Markdown, is
    written as one."""
    return '"' + "".join(f"#{ord(c)};" if c in '"#&<>`\\' else c for c in text) + '"'
