"""What a backup promises, for stores in a folder and on an object store, kept in a folder and in a bucket."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import detent
from contract.backends import S3_MARKS
from detent import kv
from detent.backup import BackupPlace, remove, restore, take_backup
from detent.backup import place as places
from detent.backup.records import PART_BYTES, Packer, unpacked
from detent.errors import Corrupt, Exists, Fenced, Invalid, NotFound, Restored, StaleReceipt, Unavailable
from detent.journal.fragments import object_name
from detent.verify import verify

HERE, S3 = "file", pytest.param("s3", marks=S3_MARKS)


class Places:
    """URLs that were never used, of one kind."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self._directory = directory
        self._count = 0

    def fresh(self) -> str:
        self._count += 1
        if self.kind == "file":
            return f"file:{self._directory / f'{self._count}'}"
        import s3server

        return s3server.s3_store_url()


@pytest.fixture(params=[HERE, S3])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    """Where the stores are."""
    return Places(request.param, tmp_path / "stores")


@pytest.fixture(params=[HERE, S3])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the backups are."""
    return Places(request.param, tmp_path / "backups").fresh()


@pytest.fixture
def url(engine: Places) -> str:
    return engine.fresh()


@pytest.fixture
def store(url: str) -> Iterator[detent.Store]:
    """A store with some of everything."""
    with detent.open(url) as opened:
        journal = opened.journal("orders")
        journal.append_many([b"a%d" % number for number in range(10)])
        journal.adopt([journal.write_fragment(pa.table({"body": pa.array([b"f0", b"f1"], pa.binary())}))])
        journal.set_registers({"owner": "me"})
        opened.queue("work").create()
        opened.queue("work").publish_many([b"m%d" % number for number in range(5)])
        yield opened


def texts(store: detent.Store, journal: str = "orders") -> list[bytes]:
    return [message.body for message in store.journal(journal).read()]


BEFORE = [*(b"a%d" % number for number in range(10)), b"f0", b"f1"]


# -- what comes back ------------------------------------------------------------------------------------------------


def test_backup_of_a_running_store_has_its_state_at_one_commit(engine: Places, store: detent.Store, kept: str) -> None:
    taken = take_backup(store.url, kept)
    store.journal("orders").append(b"after")
    made = engine.fresh()
    found = restore(kept, made)
    assert found.manifest == taken.manifest
    assert (found.counts.journals, found.counts.messages, found.counts.fragments, found.counts.queued) == (1, 12, 1, 5)
    with detent.open(made) as restored:
        assert texts(restored) == BEFORE
        assert restored.journal("orders").registers() == {"owner": "me"}
        assert sorted(one.body for one in restored.queue("work").claim(10)) == [b"m%d" % number for number in range(5)]
        assert restored.journal("orders").append(b"more").offset == len(BEFORE)
        with pytest.raises(StopIteration):
            next(verify(restored._kv))


def test_second_backup_copies_no_fragment_and_no_unchanged_part_again(store: detent.Store, kept: str) -> None:
    first = take_backup(store.url, kept).manifest
    store.journal("orders").append(b"more")
    second = take_backup(store.url, kept).manifest
    assert [one.job for one in second.objects] == [first.job]
    assert second.copied_bytes < first.copied_bytes
    idle = take_backup(store.url, kept).manifest
    assert idle.copied_bytes <= second.copied_bytes
    assert [one.manifest.job for one in BackupPlace(kept).kept()] == [first.job, second.job, idle.job]


def test_restored_store_may_be_on_another_engine(store: detent.Store, kept: str, tmp_path: Path) -> None:
    take_backup(store.url, kept)
    made = f"file:{tmp_path / 'elsewhere'}"
    restore(kept, made)
    with detent.open(made) as restored:
        assert texts(restored) == BEFORE


def test_older_backup_can_be_chosen(engine: Places, store: detent.Store, kept: str) -> None:
    first = take_backup(store.url, kept).manifest
    store.journal("orders").append(b"more")
    take_backup(store.url, kept)
    made = engine.fresh()
    restore(kept, made, backup=first.job)
    with detent.open(made) as restored:
        assert texts(restored) == BEFORE


# -- what is refused ------------------------------------------------------------------------------------------------


def test_restore_refuses_a_place_where_a_store_is(store: detent.Store, kept: str) -> None:
    take_backup(store.url, kept)
    with pytest.raises(Exists):
        restore(kept, store.url)
    assert store.journal("orders").append(b"goes on").offset == len(BEFORE), "its owner was not fenced"


def test_damaged_part_is_not_restored(engine: Places, store: detent.Store, tmp_path: Path) -> None:
    kept = f"file:{tmp_path / 'kept'}"
    take_backup(store.url, kept)
    (part,) = (tmp_path / "kept" / "parts").glob("*/*")
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    made = engine.fresh()
    with pytest.raises(Corrupt, match="does not match its checksum"):
        restore(kept, made)
    with pytest.raises((Invalid, Unavailable), match="restor"):
        detent.open(made, timeout="1s")


def test_missing_part_is_listed(store: detent.Store, tmp_path: Path) -> None:
    kept = f"file:{tmp_path / 'kept'}"
    take_backup(store.url, kept)
    (part,) = (tmp_path / "kept" / "parts").glob("*/*")
    part.unlink()
    assert [one.missing for one in BackupPlace(kept).kept()] == [1]


def test_strange_files_beside_backups_are_said_to_be_so(store: detent.Store, tmp_path: Path) -> None:
    kept = f"file:{tmp_path / 'kept'}"
    take_backup(store.url, kept)
    (tmp_path / "kept" / "removals").mkdir()
    strange = tmp_path / "kept" / "removals" / f"{9:020}"
    strange.write_bytes(b"not json")
    with pytest.raises(Corrupt, match="not what a backup has written"):
        take_backup(store.url, kept)
    strange.rename(strange.with_name("notes.txt"))
    with pytest.raises(Invalid, match="does not belong to backups"):
        take_backup(store.url, kept)


def test_backups_in_a_folder_are_private(store: detent.Store, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o755)
    take_backup(store.url, f"file:{folder}")
    modes = {path.stat().st_mode & 0o077 for path in folder.rglob("*")}
    assert modes == {0}


def test_damaged_list_is_refused(store: detent.Store, tmp_path: Path) -> None:
    kept = f"file:{tmp_path / 'kept'}"
    take_backup(store.url, kept)
    (listed,) = (tmp_path / "kept" / "backups").iterdir()
    listed.write_bytes(listed.read_bytes().replace(b'"records"', b'"recordz"'))
    with pytest.raises(Corrupt):
        BackupPlace(kept).manifests()


def test_damaged_fragment_is_not_copied(store: detent.Store, url: str, kept: str) -> None:
    if not url.startswith("file:"):
        pytest.skip("damages a file")
    (fragment,) = (Path(url.removeprefix("file:")) / "objects").rglob("*.arrow")
    data = bytearray(fragment.read_bytes())
    data[len(data) // 2] ^= 1
    fragment.chmod(0o600)
    fragment.write_bytes(data)
    with pytest.raises(Corrupt, match="not copied"):
        take_backup(url, kept)
    assert BackupPlace(kept).manifests() == []


def test_backup_of_what_is_no_store_says_so(kept: str, engine: Places) -> None:
    with pytest.raises(NotFound):
        take_backup(engine.fresh(), kept)
    with pytest.raises(Invalid):
        take_backup("memory:", kept)


def test_store_is_no_place_for_backups(store: detent.Store, url: str, tmp_path: Path) -> None:
    if not url.startswith("file:"):
        pytest.skip("folders")
    for inside in (url, f"{url}/backups"):
        with pytest.raises(Invalid):
            take_backup(url, inside)


# -- clients of the old store ---------------------------------------------------------------------------------------


def test_receipt_that_the_old_store_gave_out_later_is_stale_in_the_restored_one(
    engine: Places, store: detent.Store, kept: str
) -> None:
    take_backup(store.url, kept)
    old = store.queue("work").claim(5)
    made = engine.fresh()
    restore(kept, made)
    with detent.open(made) as restored:
        new = restored.queue("work").claim(5)
        assert {one.receipt.message for one in new} == {one.receipt.message for one in old}
        for delivery in old:
            with pytest.raises(StaleReceipt):
                restored.queue("work").ack([delivery.receipt])
        assert all(after.receipt.delivery > before.receipt.delivery for after, before in zip(new, old, strict=True))
        restored.queue("work").ack([one.receipt for one in new])


def test_numbers_of_the_old_store_are_not_given_again(engine: Places, store: detent.Store, kept: str) -> None:
    take_backup(store.url, kept)
    old_message = store.queue("work").publish(b"later").message
    store.queue("later").create()
    old_queue = store.queue("later").info().number
    store.journal("later").append(b"later")
    old_journal = store.journal("later").info().id
    made = engine.fresh()
    restore(kept, made)
    with detent.open(made) as restored:
        assert restored.queue("work").publish(b"other").message > old_message
        restored.queue("other").create()
        assert restored.queue("other").info().number > old_queue
        restored.journal("other").append(b"other")
        assert restored.journal("other").info().id > old_journal
        assert [one.body for one in restored.queue("work").claim(10)][-1] == b"other"


def test_session_of_the_old_store_is_refused_as_restored(engine: Places, store: detent.Store, kept: str) -> None:
    owner: Any = store._connection.current
    before = owner.engine.new_session("holder")
    take_backup(store.url, kept)
    after = owner.engine.new_session("holder")
    made = engine.fresh()
    restore(kept, made)
    with detent.open(made) as restored:
        found: Any = restored._connection.current
        for session in (before, after):
            with pytest.raises(Restored):
                found.engine.require_given(session, "holder")
        with pytest.raises(detent.SessionExpired):
            found.engine.require_given(before, "another holder")
        found.engine.require_given(found.engine.new_session("holder"), "holder")


# -- several at once, and old ones ----------------------------------------------------------------------------------


def test_only_the_newest_backups_are_kept_and_what_they_need(engine: Places, store: detent.Store, kept: str) -> None:
    for number in range(3):
        store.journal("orders").append(b"x%d" % number)
        take_backup(store.url, kept)
    place = BackupPlace(kept)
    removed = remove(place, 1)
    assert len(removed.backups) == 2
    assert removed.files
    (last,) = place.kept()
    assert not last.missing
    there = {one.name for folder in (places.PARTS, places.OBJECTS) for one in place.objects.list(folder)}
    assert there == {*places.names_of(last.manifest)}
    made = engine.fresh()
    restore(kept, made)
    with detent.open(made) as restored:
        assert texts(restored) == [*BEFORE, b"x0", b"x1", b"x2"]


def test_backup_that_was_given_up_never_becomes_one(store: detent.Store, kept: str) -> None:
    manifest = take_backup(store.url, kept).manifest
    place = BackupPlace(kept)
    slow = place.begin(places.BACKUP)
    place.give_up(slow)
    import msgspec

    with pytest.raises(Fenced, match="given up"):
        place.end(msgspec.structs.replace(manifest, job=slow))
    assert [one.job for one in place.manifests()] == [manifest.job]


def test_removal_waits_for_a_backup_that_may_be_copying(store: detent.Store, kept: str) -> None:
    take_backup(store.url, kept)
    take_backup(store.url, kept)
    place = BackupPlace(kept)
    slow = place.begin(places.BACKUP)
    removed = remove(place, 1)
    assert removed.waits == slow
    assert not removed.backups
    assert len(place.kept()) == 2
    place.give_up(slow)
    assert len(remove(place, 1).backups) == 1


def test_backup_that_begins_beside_a_removal_takes_nothing_that_goes(
    store: detent.Store, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal has written down what goes, and a backup begins at this very moment: one of them gives way."""
    take_backup(store.url, kept)
    store.journal("orders").append(b"more")
    take_backup(store.url, kept)
    place = BackupPlace(kept)
    begun: list[int] = []

    def at(point: str) -> None:
        if point == "backup.removal.after_note" and not begun:
            begun.append(place.begin(places.BACKUP))

    monkeypatch.setattr("detent.crash.point", at)
    removed = remove(place, 1)
    assert removed.waits == begun[0]
    assert not removed.files
    assert all(not one.missing for one in place.kept())


def test_backup_leaves_out_what_an_interrupted_removal_is_about_to_delete(
    store: detent.Store, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_backup(store.url, kept)
    store.journal("orders").append(b"more")
    newest = take_backup(store.url, kept).manifest
    place = BackupPlace(kept)

    class Killed(BaseException):
        pass

    def at(point: str) -> None:
        if point == "backup.removal.after_lists":
            raise Killed

    monkeypatch.setattr("detent.crash.point", at)
    with pytest.raises(Killed):
        remove(place, 1)
    monkeypatch.undo()
    doomed = place.doomed()
    assert doomed
    next_one = take_backup(store.url, kept).manifest
    assert not doomed & {*places.names_of(next_one)}
    assert not doomed & {*places.names_of(newest)}
    remove(place, 2)
    assert not place.doomed()
    assert [one.missing for one in place.kept()] == [0, 0]


def test_fragment_that_retention_deletes_meanwhile_is_left_out_with_its_messages(
    engine: Places, store: detent.Store, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.journal("orders")
    done: list[int] = []

    def at(point: str) -> None:
        if point == "backup.after_state" and not done:
            done.append(1)
            journal.trim(journal.info().next_offset)
            journal.append(b"last")
            for one in [*store.objects.list("fragments/")]:
                store.objects.delete(one.name)  # as housekeeping does it, a little later

    monkeypatch.setattr("detent.crash.point", at)
    monkeypatch.setattr("detent.backup.copying.crash.point", at)
    taken = take_backup(store.url, kept)
    made = engine.fresh()
    restore(kept, made)
    with detent.open(made) as restored:
        assert texts(restored) == [b"last"]
    assert taken.manifest.objects == []


def test_object_that_the_store_has_lost_fails_the_backup(store: detent.Store, kept: str) -> None:
    (found,) = store.objects.list("fragments/")
    store.objects.delete(found.name)
    with pytest.raises(Corrupt, match="has lost the object"):
        take_backup(store.url, kept)


# -- parts ----------------------------------------------------------------------------------------------------------


def packed(records: dict[bytes, bytes]) -> list[bytes]:
    packer = Packer()
    found = [packer.add(key, value) for key, value in sorted(records.items())]
    return [one.data for one in (*found, packer.end()) if one is not None]


def test_parts_hold_all_records_in_order() -> None:
    records = {hashlib.sha256(b"%d" % number).digest(): bytes(number % 5000) for number in range(3000)}
    parts = packed(records)
    assert len(parts) > 1
    assert [pair for part in parts for pair in unpacked(memoryview(part))] == sorted(records.items())


def test_record_that_changes_changes_one_part() -> None:
    records = {b"%08d" % number: bytes(PART_BYTES // 100) for number in range(3000)}
    before = {hashlib.sha256(part).digest() for part in packed(records)}
    assert len(before) > 10
    records[b"%08d" % 1500] = b"x" * (PART_BYTES // 100)
    changed = {hashlib.sha256(part).digest() for part in packed(records)} - before
    assert len(changed) == 1
    del records[b"%08d" % 1000]
    records[b"%08d-more" % 2000] = b"more"
    assert len({hashlib.sha256(part).digest() for part in packed(records)} - before) <= 4


def test_torn_part_is_corrupt() -> None:
    (part,) = packed({b"key": b"value"})
    for end in range(1, len(part)):
        with pytest.raises(Corrupt):
            list(unpacked(memoryview(part[:end])))


def test_large_store_is_read_ahead_in_short_views(
    store: detent.Store, engine: Places, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.backup.copying.AHEAD_BYTES", 0)
    monkeypatch.setattr("detent.backup.copying.AHEAD_VIEW_BYTES", 200)
    taken = take_backup(store.url, kept)
    made = engine.fresh()
    restore(kept, made)
    with detent.open(made) as restored:
        assert texts(restored) == BEFORE
    assert taken.manifest.records > 10


def test_object_names_of_fragments_are_kept(store: detent.Store, kept: str) -> None:
    manifest = take_backup(store.url, kept).manifest
    (part,) = manifest.objects
    assert part.name == object_name(bytes.fromhex(places.fragment_in(part.name)))


def test_view_that_lasts_too_long_ends_the_backup(
    store: detent.Store, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detent.backup.copying.VIEW_SECONDS_MAX", -1.0)
    monkeypatch.setattr("detent.backup.records.PART_BYTES_MAX", 1)
    with pytest.raises(Unavailable, match="one state can be held"):
        take_backup(store.url, kept)


def test_kv_store_that_is_being_restored_opens_for_nothing(engine: Places) -> None:
    from detent.kv.restoring import restoring

    url = engine.fresh()
    with restoring(url) as target:
        batch = kv.Batch()
        batch.put(b"\x07\x01\x7f", b"half")
        target.writer.commit(batch)
    for opened in (kv.open_reader, kv.open_writer):
        with pytest.raises((Invalid, Unavailable), match="being restored"):
            opened(url)
    with restoring(url) as target:
        with target.writer.view() as view:
            assert view.get(b"\x07\x01\x7f") == b"half"
        target.finish()
    reader = kv.open_reader(url)
    reader.close()
    with pytest.raises(Exists), restoring(url):
        pass
