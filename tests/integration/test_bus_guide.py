"""The examples of docs/handlers.md run, one after another, as somebody would try them who reads the page."""

from __future__ import annotations

import os
import re
import sys
import types
import warnings
from pathlib import Path

import pytest

import sqsserver
from processes import Io, Processes

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"
BLOCKS = 18
SECONDS = 120
SAID = ["refund o-0", "invoice for o-1", "invoice for o-2", "invoice for o-4", "pack o-9"]
"""Among what the handlers of the page print."""


def blocks() -> list[tuple[int, str]]:
    """The examples in Python, with the line that each begins at."""
    page = PAGE.read_text()
    found = re.finditer(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [(page[: one.start(1)].count("\n"), one[1]) for one in found]


def reads_the_page(io: Io, folder: str) -> None:
    """Run all examples in one module; those that are a file of tests, by pytest."""
    os.chdir(folder)
    module = types.ModuleType("guide")
    sys.modules["guide"] = module
    warnings.simplefilter("error")
    sys.stdout = sys.stderr  # the other one is how this process talks to the test
    for line, block in blocks():
        named = re.match(r"# (\w+\.py)\n", block)
        if named is not None:
            Path(named[1]).write_text(block)
        if named is not None and named[1].startswith("test_"):
            assert pytest.main(["-q", "-s", "-p", "no:cacheprovider", "-c", os.devnull, named[1]]) == 0
        else:
            exec(compile("\n" * line + block, str(PAGE), "exec"), vars(module))
        io.say("ran", line=line)


def test_every_example_of_the_page_runs(tmp_path: Path, processes: Processes) -> None:
    with sqsserver.running(tmp_path / "sqs") as server:
        access = {"AWS_ENDPOINT_URL_SQS": server.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        reader = processes.start(reads_the_page, folder=str(tmp_path), environment=access)
        status = reader.wait(seconds=SECONDS)
    assert status == 0, reader.errors()
    assert len(reader.events) == len(blocks()) == BLOCKS
    assert set(SAID) <= set(reader.errors().splitlines())
