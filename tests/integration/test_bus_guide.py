"""The examples of docs/handlers.md run, one after another, as somebody would try them who reads the page."""

from __future__ import annotations

from pathlib import Path

import guide
import sqsserver
from processes import Io, Processes

PAGE = Path(__file__).parents[2] / "docs" / "handlers.md"
BLOCKS = 18
SECONDS = 120
SAID = ["refund o-0", "invoice for o-1", "invoice for o-2", "invoice for o-4", "pack o-9"]
"""Among what the handlers of the page print."""


def reads_the_page(io: Io, folder: str) -> None:
    guide.read(io, PAGE, folder)


def test_every_example_of_the_page_runs(tmp_path: Path, processes: Processes) -> None:
    with sqsserver.running(tmp_path / "sqs") as server:
        access = {"AWS_ENDPOINT_URL_SQS": server.url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        reader = processes.start(reads_the_page, folder=str(tmp_path), environment=access)
        status = reader.wait(seconds=SECONDS)
    assert status == 0, reader.errors()
    assert len(reader.events) == len(guide.blocks(PAGE)) == BLOCKS
    assert set(SAID) <= set(reader.errors().splitlines())
