"""Finding the graph that a command was told to run or to show."""

from __future__ import annotations

from typing import Final

from detent.loading import Sought, load, split
from detent.processor.graph import Graph

MODULE: Final = "__detent_graph__"
"""The name of a file as a module. It stays imported: classes that are declared in it may look for it at any time."""

_SOUGHT: Final = Sought(
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

    `Invalid` if it is none that can run, with all that is wrong."""
    place, name = split(target, _SOUGHT)
    loaded = load(place, _SOUGHT, kept_as=MODULE)
    found = loaded.named(name) if name else loaded.only()
    found.check()
    return found
