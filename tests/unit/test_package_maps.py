"""Each package's docstring is the map of its files: every module is on it, and nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import detent

ROOT = Path(detent.__file__).parent
PACKAGES = sorted(path.parent.relative_to(ROOT).as_posix() for path in ROOT.glob("**/__init__.py"))
ENTRY = re.compile(r"^    (\w+(?:\.py|/)) +\S", re.MULTILINE)
"""A line of a map: four spaces, a file or a folder, and what it does."""


@pytest.mark.parametrize("package", PACKAGES)
def test_docstring_names_every_module_once(package: str) -> None:
    folder = ROOT / package
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    modules = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    assert sorted(ENTRY.findall(docstring)) == sorted(modules | packages)


def test_every_package_has_a_map() -> None:
    assert {".", "journal", "queue", "engine", "kv", "remote", "bus", "spark", "server/sqs"} <= set(PACKAGES)
