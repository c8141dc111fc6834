"""Graphs of processors: functions between journals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from detent.runtime.target import Sought, find

if TYPE_CHECKING:
    from detent.processor import Graph

MODULE: Final = "__detent_graph__"
"""The name of a file as a module. It stays imported: classes that are declared in it may look for it at any time."""


def sought() -> Sought[Graph]:
    """What a file is to declare."""
    from detent.processor import Graph

    return Sought(
        Graph,
        noun="graph",
        plural="graphs",
        article="a",
        example="shop.py:graph or shop.graphs:orders",
        lines='from detent.processor import Graph; graph = Graph("shop", store="file:./data")',
        usual="graph",
    )


def load_graph(target: str) -> Graph:
    """The graph that ``package.module:name`` or ``path/to/file.py:name`` means. The name may be left out where there is
    one graph, or one called `graph`. Modules are looked for in the current folder too.

    `Invalid` if it cannot run, with all that is wrong."""
    found = find(target, sought(), kept_as=MODULE)
    found.check()
    return found
