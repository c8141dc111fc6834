"""Commits to Delta and Iceberg tables: files and marks together, once, over rivals and lost answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import postgresserver
import tableworld
from detent.errors import Conflict, Invalid, OutcomeUnknown, Unavailable
from detent.tables.files import write_files
from detent.tables.iceberg_table import IcebergTable, Stamp
from s3proxy import Fault, faulty_s3

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("s3")]


def once(version: int, application: str = "app") -> Any:
    """Looks a mark up, and stamps the commit with it."""

    def look(view: Any) -> Stamp | None:
        last = view.transaction_version(application)
        return None if last is not None and last >= version else Stamp(((application, version),), {"who": "test"})

    return look


def append(place: IcebergTable, version: int, *ids: int, view: Any = None) -> Any:
    view = view or place.open()
    return place.commit(
        once(version), place.adding(view, tableworld.written(place, view, [tableworld.batch(*ids)])), 3, view
    )


@pytest.mark.parametrize("s3", [False, True])
def test_iceberg_table_has_each_version_once_wherever_it_is(tmp_path: Path, s3: bool) -> None:
    place = tableworld.iceberg(tmp_path, s3=s3)
    assert append(place, 1, 1, 2) is not None
    assert append(place, 1, 1, 2) is None
    assert append(place, 2, 3) is not None
    assert tableworld.ids(place) == [1, 2, 3]
    assert place.open().transaction_version("app") == 2
    assert place.open().transaction_version("other") is None


def test_two_committers_of_one_version_do_not_both_append(tmp_path: Path) -> None:
    """With PyIceberg's own retries both would."""
    place = tableworld.iceberg(tmp_path)
    first, second = place.open(), place.open()
    assert append(place, 1, 1, view=first) is not None
    assert append(place, 1, 1, view=second) is None
    assert tableworld.ids(place) == [1]


def test_other_writers_of_an_iceberg_table_are_no_hindrance(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path)
    view = place.open()
    place.open().table.append(pa.table({"id": [7], "day": ["theirs"]}))
    assert append(place, 1, 1, view=view) is not None
    assert tableworld.ids(place) == [1, 7]


def test_mark_survives_expiry_of_its_snapshot(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path)
    append(place, 1, 1)
    for number in range(3):
        place.open().table.append(pa.table({"id": [10 + number], "day": ["x"]}))
    table = place.open().table
    keep = table.metadata.current_snapshot_id
    table.maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in table.snapshots() if s.snapshot_id != keep]
    ).commit()
    assert len(place.open().table.snapshots()) == 1
    assert append(place, 1, 1) is None
    assert tableworld.ids(place) == [1, 10, 11, 12]


def test_newest_version_of_an_application_counts_also_when_it_is_smaller(tmp_path: Path) -> None:
    """That of a batch's input is a digest."""
    place = tableworld.iceberg(tmp_path)
    for version in (5, 3):
        view = place.open()
        place.commit(lambda _, version=version: Stamp((("input", version),)), place.adding(view, []), 1, view)
    assert place.open().transaction_version("input") == 3
    with place.open().table.transaction() as transaction:
        transaction.remove_properties("detent.mark.input")
    assert place.open().transaction_version("input") == 3


def test_mark_is_found_in_snapshots_when_a_property_was_taken_away(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path)
    append(place, 1, 1)
    with place.open().table.transaction() as transaction:
        transaction.remove_properties("detent.mark.app")
    assert append(place, 1, 1) is None


def test_append_without_files_moves_the_branch_so_that_an_older_view_is_refused(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path)
    zombie = place.open()
    files = tableworld.written(place, zombie, [tableworld.batch(1)])
    here = place.open()
    refusal = Stamp((("batch-1", 2),))
    assert place.commit(lambda view: refusal, place.adding(here, []), 1, here) is not None
    seen = []

    def look(view: Any) -> Stamp | None:
        seen.append(view.transaction_version("batch-1"))
        return Stamp((("batch-1", 1),)) if seen[-1] is None else None

    assert place.commit(look, place.adding(zombie, files), 3, zombie) is None
    assert seen == [None, 2]
    assert tableworld.ids(place) == []


def test_commit_whose_answer_is_lost_is_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tableworld.iceberg(tmp_path)
    catalog = place.catalog
    commit_table = catalog.commit_table
    broken: list[str] = ["after", "before"]

    def breaking(*arguments: Any) -> Any:
        when = broken.pop() if broken else ""
        if when == "before":
            raise ConnectionError_("refused")
        answer = commit_table(*arguments)
        if when == "after":
            raise ConnectionError_("the connection broke")
        return answer

    from requests.exceptions import ConnectionError as ConnectionError_

    monkeypatch.setattr(catalog, "commit_table", breaking)
    assert append(place, 1, 1) is None  # tried twice; the second was in, and nobody heard of it
    assert tableworld.ids(place) == [1]
    broken += ["before"] * 9
    with pytest.raises(OutcomeUnknown, match="cannot be told"):
        append(place, 2, 2)


def test_partitions_and_statistics_of_an_iceberg_table_come_from_tasks(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path, partition_by=["day"])
    view = place.open()
    batches = [tableworld.batch(1, 2, day="a/b c=ä%"), tableworld.batch(3, day=None), tableworld.batch(4, day="plain")]
    files = tableworld.written(place, view, batches, folder="data/batch-1")
    assert sorted(file.path.rpartition("/")[0] for file in files) == [
        "data/batch-1/day=__HIVE_DEFAULT_PARTITION__",
        "data/batch-1/day=a%2Fb%20c%3D%C3%A4%25",
        "data/batch-1/day=plain",
    ]
    place.commit(once(1), place.adding(view, files), 1, view)
    table = place.open().table
    assert tableworld.rows(place) == [row for one in batches for row in one.to_pylist()]
    (task,) = table.scan(row_filter="day = 'plain'").plan_files()
    assert task.file.record_count == 1
    assert list(table.scan(row_filter="id > 4").plan_files()) == []
    (task,) = table.scan(row_filter="id = 1").plan_files()
    assert task.file.partition[0] == "a/b c=ä%"


def test_overwrite_replaces_all_rows_in_one_snapshot(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path)
    append(place, 1, 1, 2)
    view = place.open()
    files = tableworld.written(place, view, [tableworld.batch(3)])
    place.commit(once(2), place.adding(view, files, "overwrite"), 1, view)
    assert tableworld.ids(place) == [3]
    assert len(place.open().table.snapshots()) == 2


def test_tables_of_other_partitions_are_refused(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path)
    with place.open().table.update_spec() as update:
        update.add_field("id", "bucket[4]", "bucket")
    with pytest.raises(Invalid, match=r"partitioned by bucket\[4\]"):
        place.plan(place.open())


def test_files_of_other_partitions_than_the_table_has_by_now_are_refused(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path)
    view = place.open()
    files = tableworld.written(place, view, [tableworld.batch(1)])
    change = place.adding(view, files)
    with place.open().table.update_spec() as update:
        update.add_identity("day")
    with pytest.raises(Conflict, match="partitions"):
        place.commit(once(1), change)


def test_catalog_in_postgresql(tmp_path: Path) -> None:
    place = tableworld.iceberg(tmp_path, s3=True, catalog=postgresserver.new_database())
    first, second = place.open(), place.open()
    assert append(place, 1, 1, view=first) is not None
    assert append(place, 1, 1, view=second) is None
    assert append(place, 2, 2) is not None
    assert tableworld.ids(place) == [1, 2]
    place.close()


def test_catalog_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    place = IcebergTable("lake.orders", "http://127.0.0.1:9", str(tmp_path / "table"))
    with pytest.raises(Unavailable, match="does not answer"):
        place.open()


# -- Delta ------------------------------------------------------------------------------------------------------------


def test_lost_answer_to_a_delta_commit_is_looked_up(tmp_path: Path) -> None:
    from detent.tables.delta import DeltaPlace, properties

    with faulty_s3() as s3:
        place = DeltaPlace(f"{s3.store_url()}/table")
        place.create(pa.schema([("id", pa.int64()), ("day", pa.string())]))

        def look(view: Any) -> Any:
            return None if view.transaction_version("app") == 1 else properties([("app", 1)])

        for fault in (
            Fault("PUT", "/_delta_log/", 0, times=1, unheard=True),
            Fault("PUT", "/_delta_log/", 500, times=30, unheard=True),
        ):
            view = place.open()
            files = write_files(place.plan(view), [tableworld.batch(1)])
            s3.plant(fault)
            place.commit(look, place.adding(view, files), 3, view)
            s3.mend()
        assert tableworld.ids(place) == [1]


def test_task_file_whose_answer_is_lost_is_there_once(tmp_path: Path) -> None:
    with faulty_s3() as s3:
        place = tableworld.delta(tmp_path)
        place = type(place)(f"{s3.store_url()}/table")
        place.create(pa.schema([("id", pa.int64()), ("day", pa.string())]))
        s3.plant(Fault("PUT", "/data/", 0, times=1, unheard=True))
        (file,) = write_files(place.plan(place.open(), folder="data/b"), [tableworld.batch(1)])
        assert place.plan(place.open()).files.size(file.path) == file.size
