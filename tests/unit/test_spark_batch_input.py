"""What identifies the input of a batch: the offsets of all sources, and what a source keeps in a log of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detent.errors import Corrupt
from detent.spark.batch_identity import UNKNOWN, BatchIdentity, CheckpointPlace, input_of, local_checkpoint

KAFKA = '{"orders":{"0":%d}}'


class Files(dict[str, str]):
    """A checkpoint in a dictionary."""

    def read(self, name: str) -> str | None:
        return self.get(name)


def entry(*offsets: str, planned_at: int = 0) -> str:
    return "\n".join(["v1", json.dumps({"batchTimestampMs": planned_at}), *offsets])


def listed(number: int, *paths: str) -> str:
    return "\n".join(["v1", *(json.dumps({"path": path, "timestamp": 1, "batchId": number}) for path in paths)])


def checkpoint(**changed: Any) -> Files:
    return Files({"offsets/0": entry(KAFKA % 5), "offsets/1": entry(KAFKA % 9)} | changed)


def test_the_same_offsets_are_the_same_input_whenever_they_were_planned() -> None:
    again = checkpoint() | {"offsets/1": entry(KAFKA % 9, planned_at=7)}
    assert input_of(checkpoint(), 1) == input_of(Files(again), 1)
    assert len(input_of(checkpoint(), 1)) == 16


@pytest.mark.parametrize(
    "changed",
    [
        {"offsets/1": entry(KAFKA % 10)},
        {"offsets/0": entry(KAFKA % 6)},
        {"offsets/1": entry(KAFKA % 9, '{"in": 3}')},
        {"offsets/1": entry('{"in": 3}', KAFKA % 9)},
    ],
)
def test_another_start_or_end_of_any_source_is_another_input(changed: dict[str, str]) -> None:
    assert input_of(checkpoint(), 1) != input_of(checkpoint(**changed), 1)


def test_the_start_of_a_first_batch_is_part_of_it() -> None:
    late = checkpoint() | {"sources/0/0": 'v1\n{"orders":{"0":3}}'}
    assert input_of(checkpoint(), 0) != input_of(Files(late), 0)
    assert input_of(checkpoint(), 1) == input_of(Files(late), 1)


def test_the_files_of_a_batch_are_part_of_it() -> None:
    """The file source's offset is a number in its own log: lost with the rest, it is given to more files."""
    offsets = {"offsets/0": entry('{"logOffset":0}'), "offsets/1": entry('{"logOffset":2}')}
    one = Files(offsets | {"sources/0/1": listed(1, "a", "b"), "sources/0/2": listed(2, "c")})
    assert input_of(one, 1) == input_of(Files(one | {"sources/0/1": listed(1, "b", "a")}), 1)
    assert input_of(one, 1) != input_of(Files(one | {"sources/0/2": listed(2, "c", "d")}), 1)
    compact = Files(one)
    compact["sources/0/2.compact"] = listed(0, "z") + listed(1, "a")[2:] + compact.pop("sources/0/2")[2:]
    assert input_of(one, 1) == input_of(compact, 1)


def test_a_checkpoint_that_is_not_here_is_not_known(tmp_path: Path) -> None:
    assert input_of(Files(), 0) == UNKNOWN
    for location in ("s3a://bucket/checkpoint", "hdfs:/x"):
        assert local_checkpoint(location) is None
        assert CheckpointPlace(location).input_of(BatchIdentity("q", "r"), 0) == UNKNOWN
    assert CheckpointPlace().input_of(BatchIdentity("q", "r"), 0) == UNKNOWN
    assert CheckpointPlace(str(tmp_path)).input_of(BatchIdentity("q", "r"), 0) == UNKNOWN


@pytest.mark.parametrize("text", ["", "v1", "v1\n{}", "v1\n{}\n"])
def test_an_entry_that_was_cut_short_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt, match="offsets/0"):
        input_of(Files({"offsets/0": text}), 0)


def test_where_a_sink_finds_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "with space" / "copy"
    (folder / "offsets").mkdir(parents=True)
    (folder / "offsets" / "0").write_text(entry(KAFKA % 5))
    expected = input_of(checkpoint(), 0)
    places = [
        (CheckpointPlace(str(folder)), BatchIdentity("q", "r")),
        (CheckpointPlace(f"file://{folder}"), BatchIdentity("q", "r")),
        (CheckpointPlace(folder.as_uri()), BatchIdentity("q", "r")),
        (CheckpointPlace(None, "copy"), BatchIdentity("q", "r", folder.parent.as_uri())),
    ]
    for place, identity in places:
        assert place.input_of(identity, 0) == expected
