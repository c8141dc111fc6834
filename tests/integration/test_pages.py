"""Every block of code in the README and in docs/ runs, as it is printed, in a fresh folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import sparkling
from pages import OUTPUT, Page, blocks_of, missing_lines, needs_spark, unused_files
from processes import Processes

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SPARK_MARKS = [*sparkling.PROCESS_MARKS, pytest.mark.timeout(900)]
NEEDED = {"docs/http.md": ("curl", "jq")}
"""Programs that a machine may not have."""
NOT_RUN = {
    "README.md": 1,
    "docs/cluster.md": 2,
    "docs/failover.md": 2,
    "docs/kafka.md": 1,
    "docs/monitoring.md": 3,
    "docs/spark.md": 1,
}
"""How many blocks of a page are `sh not-run`: each of these needs what a bare machine has not."""
PRINTED = {
    "docs/handlers.md": ["refund o-0", "invoice for o-1", "invoice for o-2", "invoice for o-4", "pack o-9"],
    "docs/own-queue.md": ["invoice for o-1"],
    "docs/processors.md": [
        "total o-1 750",
        "archived o-1",
        "made by shop/receipt from ['totals#0', 'lines#0']...",
        "b'one' b'two'",
        "b'three'",
        "...events 1...",
    ],
    "docs/http.md": [
        '{"queue":"orders","state":"done"}',
        '{"messages":[],"next":2}',
        '["AlreadyEntered",7]',
        "...[1,0]",
    ],
}
"""Lines that the blocks of a page print, in any order."""
COMMAND = re.compile(r"^(\$ |\.venv/|(detent|python|pip|curl|echo|export|make) )", re.MULTILINE)
"""How a line of a shell begins. In a block that is not marked as `sh` it would never be run."""
FILES = {"docs/http.md": ["audit.arrows"]}
"""Files that the blocks of a page make, and that are not empty."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parameters() -> list[object]:
    return [
        pytest.param(page, id=name_of(page), marks=SPARK_MARKS if needs_spark(page) else [])
        for page in PAGES
        if blocks_of(page)
    ]


@pytest.mark.parametrize("path", parameters())
def test_page_runs_as_printed(path: Path, tmp_path: Path, processes: Processes) -> None:
    missing = [program for program in NEEDED.get(name_of(path), ()) if not shutil.which(program)]
    if missing:
        pytest.skip(f"the examples need {missing}")
    with Page(path, tmp_path / "reader", processes) as page:
        page.run()
        printed = page.printed
    assert [line for line in PRINTED.get(name_of(path), []) if missing_lines(line, printed)] == [], printed
    assert [name for name in FILES.get(name_of(path), []) if not (page.folder / name).stat().st_size] == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_page_says_what_is_not_run(path: Path) -> None:
    assert sum(block.word == "not-run" for block in blocks_of(path)) == NOT_RUN.get(name_of(path), 0)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_page_uses_its_files(path: Path) -> None:
    assert list(unused_files(path)) == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_page_marks_its_commands_as_such(path: Path) -> None:
    drawn = [block for block in blocks_of(path) if block.language in OUTPUT]
    assert [block.line for block in drawn if COMMAND.search(block.text)] == []
