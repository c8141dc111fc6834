"""The public names: the list, the lazy loader and what type checkers see agree."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import detent
import detent.bus
import detent.processor
import detent.testing
import detent.transports
from detent import errors

PACKAGES = (detent, detent.bus, detent.processor, detent.testing, detent.transports)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_loads(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package._HOME) == set(package.__all__) - {"__version__"}
    assert dir(package) == sorted(package.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_same_names(package: ModuleType) -> None:
    tree = ast.parse(Path(inspect.getfile(package)).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name: node.module for node in block.body for alias in node.names}
    assert imported == package._HOME


def test_every_exception_is_exported_and_travels() -> None:
    kinds = {kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.DetentError)}
    assert {kind.__name__ for kind in kinds} <= set(detent.__all__)
    assert set(errors.BY_NAME.values()) == kinds


def test_importing_the_package_is_light() -> None:
    code = "import detent, sys; print([m for m in ('pyarrow', 'httpx', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_opening_a_store_does_not_import_pandas() -> None:
    """Arrow looks for it in many calls, and it takes longer to import than everything of ours."""
    code = (
        "import detent, sys; store = detent.open('memory:'); store.journal('a').append(b'x'); "
        "store.queue('q').create(); store.queue('q').publish(b'x'); list(store.queue('q').claim()); "
        "import detent.cli; print('pandas' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "False"


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(detent, "nothing")


def test_unavailable_never_says_that_an_outcome_is_unknown() -> None:
    """`Unavailable` is that nothing was applied; where that cannot be said it is `OutcomeUnknown`."""
    told = []
    for path in Path(detent.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Unavailable":
                texts = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant)]
                told += [f"{path.name}:{node.lineno}" for text in texts if "unknown" in str(text)]
    assert not told
