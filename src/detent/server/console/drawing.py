"""Pictures as SVG: curves of counts over time, and graphs of processors.

What is drawn is made of numbers and of text that is escaped, and has no style of its own: its classes are in the style
sheet. So a picture is safe wherever a page has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final, NamedTuple

from markupsafe import Markup

from detent.server.console.wording import number_text, visible_text

WIDTH, HEIGHT = 520, 120
"""Of a curve, in units of its own: the page scales it."""

LEFT, BOTTOM, TOP = 46, 18, 8

NODES_MAX: Final = 60
"""Processors of one picture; a page of more shows the table alone."""

NODE_W, NODE_H, GAP_X, GAP_Y = 168, 44, 64, 18
NAME_CHARS: Final = 20


class Curve(NamedTuple):
    """A line of a picture: a value for each moment, None where nothing was seen."""

    name: str
    values: Sequence[float | None]


def chart(curves: Sequence[Curve], words: str, span: str, unit: Callable[[float], str] = number_text) -> Markup:
    """Curves over time, with the scale at the left and the time below. `words` say what is shown."""
    top = _round_up(max((value for curve in curves for value in curve.values if value is not None), default=0))
    count = max((len(curve.values) for curve in curves), default=0)
    step = (WIDTH - LEFT - 4) / max(1, count - 1)
    room = HEIGHT - TOP - BOTTOM
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = TOP + room * (1 - share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="axis" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(unit(top * share))}</text>'
        )
    for at, curve in enumerate(curves):
        points = [
            (LEFT + place * step, TOP + room * (1 - value / top)) if value is not None else None
            for place, value in enumerate(curve.values)
        ]
        parts.append(_paths(_lines(points), f"p{at + 1}"))
    parts.append(f'<text class="axis" x="{LEFT}" y="{HEIGHT - 3}">{escape(span)} ago</text>')
    parts.append(f'<text class="axis" x="{WIDTH - 2}" y="{HEIGHT - 3}" text-anchor="end">now</text>')
    return Markup(  # made of numbers, and of words that are escaped
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"><title>{escape(words)}</title>'
        f"{''.join(parts)}</svg>"
    )


def _round_up(value: float) -> float:
    """The next round number: 1, 2 or 5 and noughts."""
    if value <= 0:
        return 1.0
    size = 10 ** math.floor(math.log10(value))
    return next(float(step * size) for step in (1, 2, 5, 10) if step * size >= value)


def _lines(points: Sequence[tuple[float, float] | None]) -> list[list[tuple[float, float]]]:
    """The stretches between gaps."""
    found: list[list[tuple[float, float]]] = [[]]
    for point in points:
        if point is None:
            if found[-1]:
                found.append([])
        else:
            found[-1].append(point)
    return [line for line in found if line]


def _paths(lines: Sequence[Sequence[tuple[float, float]]], name: str) -> str:
    parts = []
    for line in lines:
        if len(line) == 1:
            parts.append(f'<circle class="dot {name}" cx="{line[0][0]:.1f}" cy="{line[0][1]:.1f}" r="1.5"/>')
        else:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
            parts.append(f'<polyline class="line {name}" points="{points}"/>')
    return "".join(parts)


# -- graphs ---------------------------------------------------------------------------------------------------------


class Processor(NamedTuple):
    """A processor: its state, what waits for it, what it reads and writes, and its page."""

    name: str
    state: str
    lag: int
    reads: Sequence[str]
    writes: Sequence[str]
    page: str


def graph(processors: Sequence[Processor], page_of: Callable[[str], str]) -> Markup | None:
    """Processors and journals in layers, from left to right; None if there are too many for a picture."""
    if len(processors) > NODES_MAX:
        return None
    layers = _layers(processors)
    places: dict[str, tuple[int, int]] = {}
    for x, layer in enumerate(layers):
        for y, node in enumerate(layer):
            places[node] = (8 + x * (NODE_W + GAP_X), 8 + y * (NODE_H + GAP_Y))
    width = 16 + len(layers) * (NODE_W + GAP_X) - GAP_X
    height = 16 + max(len(layer) for layer in layers) * (NODE_H + GAP_Y) - GAP_Y
    parts = [_edge(places[source], places[target]) for source, target in _edges(processors)]
    known = {f"p/{one.name}": one for one in processors}
    for node, place in places.items():
        processor = known.get(node)
        if processor is None:
            journal = node.removeprefix("j/")
            parts.append(_box(place, journal, "", "journal", page_of(journal)))
        else:
            words = f"{processor.state}, {number_text(processor.lag)} behind"
            parts.append(_box(place, processor.name, words, f"processor {processor.state}", processor.page))
    return Markup(  # made of numbers, and of words that are escaped
        f'<svg class="graph" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group" '
        f'aria-label="Processors and the journals between them">{"".join(parts)}</svg>'
    )


def _edges(processors: Sequence[Processor]) -> list[tuple[str, str]]:
    into = [(f"j/{journal}", f"p/{one.name}") for one in processors for journal in one.reads]
    return into + [(f"p/{one.name}", f"j/{journal}") for one in processors for journal in one.writes]


def _layers(processors: Sequence[Processor]) -> list[list[str]]:
    """Nodes by their longest way from the beginning; in a circle, by the way up to where it closes."""
    edges = _edges(processors)
    nodes = sorted({node for edge in edges for node in edge} | {f"p/{one.name}" for one in processors})
    depth = dict.fromkeys(nodes, 0)
    for _ in nodes:
        before = dict(depth)
        for source, target in edges:
            depth[target] = max(depth[target], min(depth[source] + 1, len(nodes)))
        if depth == before:
            break
    found: dict[int, list[str]] = {}
    for node in nodes:
        found.setdefault(depth[node], []).append(node)
    return [found[at] for at in sorted(found)]


def _edge(source: tuple[int, int], target: tuple[int, int]) -> str:
    x1, y1 = source[0] + NODE_W, source[1] + NODE_H // 2
    x2, y2 = target[0], target[1] + NODE_H // 2
    middle = (x1 + x2) / 2
    line = f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2 - 6} {y2}"
    return f'<path class="edge" d="{line}"/><path class="tip" d="M{x2} {y2}l-8 -4v8z"/>'


def _box(place: tuple[int, int], name: str, words: str, kind: str, page: str) -> str:
    x, y = place
    shown = visible_text(name)
    short = shown if len(shown) <= NAME_CHARS else f"{shown[: NAME_CHARS - 1]}…"
    second = f'<text class="what" x="{x + 12}" y="{y + 35}">{escape(words)}</text>' if words else ""
    corner = 20 if kind == "journal" else 6
    return (
        f'<a class="{escape(kind)}" href="{escape(page)}"><title>{escape(shown)}</title>'
        f'<rect x="{x}" y="{y}" width="{NODE_W}" height="{NODE_H}" rx="{corner}"/>'
        f'<text x="{x + 12}" y="{y + (27 if not words else 18)}">{escape(short)}</text>{second}</a>'
    )
