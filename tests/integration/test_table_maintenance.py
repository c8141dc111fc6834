"""Compaction and vacuum beside writers: rows and marks stay, and what may be in use is not touched."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tableworld
from detent.cli import cli
from detent.errors import Conflict, Invalid
from detent.tables import maintenance
from detent.tables.delta import DeltaPlace, properties
from detent.tables.iceberg_table import Stamp

DAY = 86400.0


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    make = tableworld.delta if request.param == "delta" else tableworld.iceberg
    return make(tmp_path, partition_by=["day"])


def stamp_of(place: Any, versions: Any) -> Any:
    return properties(versions) if isinstance(place, DeltaPlace) else Stamp(tuple(versions))


def fill(place: Any, *numbers: int, day: str = "a b/c") -> None:
    """A commit with a file for each number, which is its mark."""
    for number in numbers:
        view = place.open()
        files = tableworld.written(place, view, [tableworld.batch(number, day=day)], folder=f"data/{number}")
        place.commit(lambda _, number=number: stamp_of(place, [("fill", number)]), place.adding(view, files), 3, view)


def folder(place: Any) -> Path:
    return Path(place.uri if isinstance(place, DeltaPlace) else place.location)


def age(place: Any, days: float, patch: pytest.MonkeyPatch) -> float:
    """Let all that is there be older; what time it is then. Iceberg's metadata has the times of its snapshots, so the
    clock is moved; a Delta log has those of what it removed, and the library asks the real clock."""
    if not isinstance(place, DeltaPlace):
        later = time.time() + days * DAY
        patch.setattr(maintenance, "sweeping_time_s", lambda: later)
        return later
    then = time.time() - days * DAY
    for path in folder(place).rglob("*"):
        if path.is_file():
            if path.suffix == ".json" and "_delta_log" in path.parts:
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                for line in lines:
                    if "remove" in line:
                        line["remove"]["deletionTimestamp"] = int(then * 1000)
                path.write_text("\n".join(map(json.dumps, lines)))
            os.utime(path, (then, then))
    return time.time()


def data_files(place: Any) -> int:
    return sum(1 for path in folder(place).rglob("*.parquet") if "_delta_log" not in path.parts)


def test_compaction_keeps_rows_and_marks(place: Any) -> None:
    fill(place, 1, 2, 3)
    fill(place, 10, day="b")
    assert (maintenance.info(place).files, maintenance.info(place).small_files) == (4, 4)
    assert maintenance.compact(place) == 3
    found = maintenance.info(place)
    assert (found.files, found.rows, found.partition_by) == (2, 4, ("day",))
    assert tableworld.ids(place) == [1, 2, 3, 10]
    assert place.open().transaction_version("fill") == 10
    assert maintenance.compact(place) == 0


def test_appends_and_compaction_do_not_wait_for_each_other(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(place, 1, 2)
    old = place.open()
    files = tableworld.written(place, old, [tableworld.batch(3)], folder="data/3")
    if not isinstance(place, DeltaPlace):
        commit = place.commit

        def late(*arguments: Any, **how: Any) -> Any:
            monkeypatch.setattr(place, "commit", commit)
            fill(place, 4)  # between the compaction's look and its commit
            return commit(*arguments, **how)

        monkeypatch.setattr(place, "commit", late)
    maintenance.compact(place)
    place.commit(lambda _: stamp_of(place, [("fill", 3)]), place.adding(old, files), 3, old)
    assert tableworld.ids(place) == [1, 2, 3] + ([] if isinstance(place, DeltaPlace) else [4])


def test_compaction_does_not_bring_deleted_rows_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tableworld.iceberg(tmp_path)
    fill(place, 1, 2)
    commit = place.commit

    def late(*arguments: Any, **how: Any) -> Any:
        monkeypatch.setattr(place, "commit", commit)
        place.open().table.delete("id = 1")
        return commit(*arguments, **how)

    monkeypatch.setattr(place, "commit", late)
    with pytest.raises(Conflict, match="changed while it was compacted"):
        maintenance.compact(place)
    assert tableworld.ids(place) == [2]


def test_vacuum_deletes_what_is_old_and_not_needed(place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(place, 1, 2)
    maintenance.compact(place)
    tableworld.written(place, place.open(), [tableworld.batch(9)], folder="data/9")  # of a batch that died
    (folder(place) / "data" / "_detent_owner.json").write_text("{}")  # an ingest's
    now = age(place, 10, monkeypatch)
    (new,) = tableworld.written(place, place.open(), [tableworld.batch(10)], folder="data/10")  # it is being written
    os.utime(folder(place) / new.path, (now, now))
    assert data_files(place) == 5
    assert len(maintenance.vacuum(place, floor_s=now - 20 * DAY)) == 0, "a batch was prepared before"
    planned = maintenance.vacuum(place, dry_run=True)
    assert (len([name for name in planned if name.endswith(".parquet")]) >= 1, data_files(place)) == (True, 5)
    maintenance.vacuum(place)
    assert data_files(place) == 2
    assert (folder(place) / "data" / "_detent_owner.json").exists()
    assert tableworld.ids(place) == [1, 2]
    assert place.open().transaction_version("fill") == 2
    fill(place, 3)
    assert tableworld.ids(place) == [1, 2, 3]


def test_vacuum_has_a_floor(place: Any) -> None:
    with pytest.raises(Invalid, match="keep them for a day"):
        maintenance.vacuum(place, 3600)


def test_commands(place: Any) -> None:
    fill(place, 1, 2)
    name = [place.uri] if isinstance(place, DeltaPlace) else [place.name, "--catalog", place.given]

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(cli, ["table", *arguments, *name, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    found = run("info")
    assert (found["kind"].lower(), found["files"], found["rows"]) == ("delta" if name[1:] == [] else "iceberg", 2, 2)
    assert run("compact") == {"replaced": 2}
    assert run("vacuum", "--dry-run") == {"deleted": [], "dry_run": True}
    assert run("vacuum", "--yes")["dry_run"] is False
    text = CliRunner().invoke(cli, ["table", "info", *name])
    assert "small files: 1 below 32 MiB" in text.output
    refused = CliRunner().invoke(cli, ["table", "vacuum", *name])
    assert refused.exit_code == 2
    assert "say --yes" in refused.output
