"""Graphs of a processor or two, for tests that say in a few lines what they are about."""

from __future__ import annotations

from typing import Any

from detent import Store
from detent.processor import Graph, Processor


def graph_of(*processors: Processor, **options: Any) -> Graph:
    return Graph("g", processors=processors, **options)


def ran(graph: Graph, store: str | Store, **options: Any) -> None:
    """Run a graph until nothing is left to do."""
    with graph.open(store) as live:
        live.start(**options)
        live.settle()


def values(store: Store, journal: str) -> list[Any]:
    return [message.json() for message in store.journal(journal).read()]
