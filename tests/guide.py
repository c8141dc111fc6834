"""Running the examples of a page of the documentation, one after another, as somebody would who reads it."""

from __future__ import annotations

import os
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

from processes import Io


def blocks(page: Path) -> list[tuple[int, str]]:
    """The examples in Python, with the line that each begins at."""
    text = page.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(text[: one.start(1)].count("\n"), one[1]) for one in found]


def read(io: Io, page: Path, folder: str) -> dict[str, Any]:
    """Run all examples in one module; those that are a file of tests, by pytest. Answers the module's names."""
    os.chdir(folder)
    module = types.ModuleType("guide")
    sys.modules["guide"] = module
    warnings.simplefilter("error")
    sys.stdout = sys.stderr  # the other one is how this process talks to the test
    for line, block in blocks(page):
        named = re.match(r"# (\w+\.py)\n", block)
        if named is not None:
            Path(named[1]).write_text(block)
        if named is not None and named[1].startswith("test_"):
            assert pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-c", os.devnull, named[1]]) == 0
        else:
            exec(compile("\n" * line + block, str(page), "exec"), vars(module))
        io.say("ran", line=line)
    return vars(module)
