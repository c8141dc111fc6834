"""Packages whose modules import each other in one direction only, lazy and type-checking imports included.

What several modules work on has a module of its own there (a machine's memory), and the one that puts them together is
imported by none of them.
"""

from __future__ import annotations

import pytest

grimp = pytest.importorskip("grimp")

PACKAGES = ("codec", "engine", "journal", "ledger", "message", "queue", "settings", "shard", "remote")

TOGETHER = {("detent.queue.handle", "detent.queue.worker")}
"""`Queue.work` runs a worker, and a worker's signature names the queue."""


def test_modules_do_not_import_in_a_circle() -> None:
    graph = grimp.build_graph("detent", cache_dir=None)
    for package in PACKAGES:
        modules = graph.find_descendants(f"detent.{package}")
        imports = {module: graph.find_modules_directly_imported_by(module) & modules for module in modules}
        for one, other in TOGETHER:
            imports.get(one, set()).discard(other)
        assert not circle(imports), f"detent.{package}"


def circle(imports: dict[str, set[str]]) -> list[str]:
    """What is left of the modules when those go, again and again, that import none of the others."""
    left = {module: set(found) for module, found in imports.items()}
    while leaves := {module for module, found in left.items() if not found}:
        left = {module: found - leaves for module, found in left.items() if module not in leaves}
    return sorted(left)


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == ["a", "b", "c", "d"]
    assert not circle({"a": {"b", "c"}, "b": {"c"}, "c": set()})
