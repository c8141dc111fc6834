"""The examples of docs/processors.md run, one after another, as somebody would try them who reads the page."""

from __future__ import annotations

from pathlib import Path

import guide
from processes import Io, Processes

PAGE = Path(__file__).parents[2] / "docs" / "processors.md"
BLOCKS = 11
SECONDS = 120
SAID = (
    "total o-1 750",
    "archived o-1",
    "made by shop/receipt from ['totals#0', 'lines#0']",
    "b'one' b'two'",
    "b'three'",
    "events 1",
)
"""Among what the examples of the page print."""


def reads_the_page(io: Io, folder: str) -> None:
    guide.read(io, PAGE, folder)["sql"].close()


def test_every_example_of_the_page_runs(tmp_path: Path, processes: Processes) -> None:
    reader = processes.start(reads_the_page, folder=str(tmp_path))
    status = reader.wait(seconds=SECONDS)
    assert status == 0, reader.errors()
    assert len(reader.events) == len(guide.blocks(PAGE)) == BLOCKS
    said = reader.errors()
    assert [line for line in SAID if line not in said] == []
