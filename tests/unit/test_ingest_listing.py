"""Listings for a backfill: which files of a folder are taken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detent.errors import Invalid, NotFound
from detent.ingest.objects import FileObjects


def names(folder: Path, match: str | None = None) -> list[str]:
    return [file.uri.removeprefix(f"file://{folder}/") for file in FileObjects("etag").list(str(folder), match)]


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    for name in ("a.json", "b.csv", "_hidden", ".dot", "sub/c.json", "_temporary/d.json", "sub/.e"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "control\x01").write_text("x")
    return tmp_path


def test_hidden_files_and_what_is_no_file_are_left_out(landing: Path) -> None:
    assert names(landing) == ["a.json", "b.csv", "control\x01", "sub/c.json"]


def test_file_whose_name_is_not_utf8_is_left_out_and_the_backfill_goes_on(
    landing: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (b"a\xff.json", b"\xffsub/f.json"):
        path = Path(os.fsdecode(os.fsencode(landing) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    assert names(landing, "*.json") == ["a.json", "sub/c.json"]
    warnings = [record.getMessage() for record in caplog.records if "not UTF-8" in record.getMessage()]
    assert ["\\udcff" in warning for warning in warnings] == [True, True]


def test_a_pattern_chooses_by_name(landing: Path) -> None:
    assert names(landing, "*.json") == ["a.json", "sub/c.json"]


def test_a_listing_needs_a_folder_and_an_identity_that_it_can_tell(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        names(tmp_path / "none")
    with pytest.raises(Invalid, match="no sequencers"):
        FileObjects("sequencer").list(str(tmp_path))
