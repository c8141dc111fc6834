"""The examples of docs/processors.md run, one after another, as somebody would try them who reads the page."""

from __future__ import annotations

import os
import re
import sys
import types
import warnings
from pathlib import Path

from processes import Io, Processes

PAGE = Path(__file__).parents[2] / "docs" / "processors.md"
BLOCKS = 10
SECONDS = 120
SAID = {
    "total o-1 750",
    "archived o-1",
    "made by shop/receipt from ['totals#0', 'lines#0']",
    "b'one' b'two'",
    "b'three'",
    "events 1",
}
"""Among what the examples of the page print."""


def blocks() -> list[tuple[int, str]]:
    """The examples in Python, with the line that each begins at."""
    page = PAGE.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [(page[: one.start(1)].count("\n"), one[1]) for one in found]


def reads_the_page(io: Io, folder: str) -> None:
    """Run all examples in one module."""
    os.chdir(folder)
    module = types.ModuleType("guide")
    sys.modules["guide"] = module
    warnings.simplefilter("error")
    sys.stdout = sys.stderr  # the other one is how this process talks to the test
    for line, block in blocks():
        exec(compile("\n" * line + block, str(PAGE), "exec"), vars(module))
        io.say("ran", line=line)
    vars(module)["sql"].close()


def test_every_example_of_the_page_runs(tmp_path: Path, processes: Processes) -> None:
    reader = processes.start(reads_the_page, folder=str(tmp_path))
    status = reader.wait(seconds=SECONDS)
    assert status == 0, reader.errors()
    assert len(reader.events) == len(blocks()) == BLOCKS
    said = reader.errors()
    assert [line for line in SAID if line not in said] == []
