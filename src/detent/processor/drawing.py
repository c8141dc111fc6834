"""A graph as people see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from detent.processor.graph import Graph


def drawn(graph: Graph, kind: Literal["text", "mermaid"]) -> str:
    """As text, or for Mermaid."""
    raise NotImplementedError
