"""kill -9 of a backup, of a restore, of a removal and of a compaction at each of their steps, and of owners under load.

What is acknowledged before a backup's commit is in what is restored from it, and nothing is there by halves; what was
killed is finished by running it again.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import detent
from detent import crash
from detent.backup import BackupPlace, remove, restore, take_backup
from detent.errors import DetentError, Exists, Invalid, Unavailable
from detent.kv.compact import compact
from processes import Io, Processes, arm, eventually

pytestmark = pytest.mark.xdist_group("backup-killed")

COPYING = (
    "backup.after_job", "backup.after_part", "backup.after_state", "backup.after_object", "backup.before_manifest",
    "backup.after_manifest",
)  # fmt: skip
REMOVING = ("backup.removal.after_note", "backup.removal.after_lists", "backup.removal.after_files")
RESTORING = (
    "kv.restore.after_mark", "restore.after_object", "restore.after_records", "restore.before_life",
    "restore.after_life", "kv.restore.before_end", "kv.restore.after_end",
)  # fmt: skip
RESTORING_TO_BUCKET = ("kv.restore.before_mark", *RESTORING)
COMPACTING = ("kv.compact.after_copy", "kv.compact.after_rename")

ROUNDS = 20 if os.environ.get("DETENT_SOAK") == "1" else 4


def test_every_point_is_visited_by_a_test_of_this_module() -> None:
    here = {point for point in crash.POINTS if point.startswith(("backup.", "restore.", "kv.restore.", "kv.compact."))}
    assert {*COPYING, *REMOVING, *RESTORING_TO_BUCKET, *COMPACTING} == here


# -- in the child ---------------------------------------------------------------------------------------------------


def copies(io: Io, url: str, to: str, point: str) -> None:
    """Take a backup, and be killed at a point."""
    arm(point)
    take_backup(url, to)
    io.say("done")


def removes(io: Io, to: str, point: str) -> None:
    """Remove old backups, and be killed at a point."""
    arm(point)
    remove(BackupPlace(to), 1)
    io.say("done")


def restores(io: Io, to: str, url: str, point: str) -> None:
    """Restore, and be killed at a point."""
    arm(point)
    restore(to, url)
    io.say("done")


def compacts(io: Io, url: str, point: str) -> None:
    """Compact, and be killed at a point."""
    arm(point)
    compact(url)
    io.say("done")


def works(io: Io, url: str, first: int) -> None:
    """Append and publish numbers in one transaction each, as the owner, and say what was acknowledged."""
    with detent.open(url) as store:
        store.queue("work").create(exist_ok=True)
        number = first
        io.say("open")
        while True:
            with store.transaction() as transaction:
                transaction.append("log", b"%d" % number)
                transaction.publish(b"%d" % number, queue="work")
            io.say("done", number=number)
            if number % 20 == 0:
                journal = store.journal("log")
                rows = pa.table({"body": pa.array([b"f%d" % number], pa.binary())})
                journal.adopt([journal.write_fragment(rows)])
            number += 1


# -- a store, and what it has -----------------------------------------------------------------------------------------


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A closed store with messages, a fragment and a queue."""
    found = f"file:{tmp_path / 'store'}"
    with detent.open(found) as store:
        journal = store.journal("log")
        journal.append_many([b"%d" % number for number in range(10)])
        journal.adopt([journal.write_fragment(pa.table({"body": pa.array([b"f"], pa.binary())}))])
        store.queue("work").create()
        store.queue("work").publish(b"m")
    return found


@pytest.fixture
def kept(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'backups'}"


EXPECTED = [*(b"%d" % number for number in range(10)), b"f"]


def check(url: str) -> None:
    with detent.open(url) as store:
        assert [message.body for message in store.journal("log").read()] == EXPECTED
        assert [one.body for one in store.queue("work").claim(10)] == [b"m"]


@pytest.mark.parametrize("point", COPYING)
def test_killed_backup_leaves_none_by_halves_and_the_next_one_goes_on(
    url: str, kept: str, tmp_path: Path, processes: Processes, point: str
) -> None:
    child = processes.start(copies, url=url, to=kept, point=point)
    assert child.was_killed(), f"{point} was never reached"
    ended = point == "backup.after_manifest"
    assert len(BackupPlace(kept).kept()) == ended
    again = take_backup(url, kept)
    if point in {"backup.after_object", "backup.before_manifest"}:
        assert not again.copied, "all of it was there"
    made = f"file:{tmp_path / 'made'}"
    restore(kept, made)
    check(made)
    assert remove(BackupPlace(kept), 1).waits is None, "the killed one holds nothing up"
    assert [one.missing for one in BackupPlace(kept).kept()] == [0]


@pytest.mark.parametrize("point", REMOVING)
def test_killed_removal_is_finished_by_the_next_one(
    url: str, kept: str, tmp_path: Path, processes: Processes, point: str
) -> None:
    take_backup(url, kept)
    with detent.open(url) as store:
        store.queue("other").create()
    take_backup(url, kept)
    child = processes.start(removes, to=kept, point=point)
    assert child.was_killed(), f"{point} was never reached"
    assert BackupPlace(kept).kept()[-1].missing == 0
    take_backup(url, kept)
    remove(BackupPlace(kept), 1)
    (last,) = BackupPlace(kept).kept()
    assert not last.missing
    made = f"file:{tmp_path / 'made'}"
    restore(kept, made)
    check(made)


def target_of(kind: str, tmp_path: Path) -> str:
    if kind == "file":
        return f"file:{tmp_path / 'made'}"
    pytest.importorskip("slatedb")
    import s3server

    return s3server.s3_store_url()


CASES = [
    *(("file", point) for point in RESTORING),
    *(pytest.param("s3", point, marks=pytest.mark.s3) for point in RESTORING_TO_BUCKET),
]


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_killed_restore_opens_for_nothing_and_is_finished_by_another(
    url: str, kept: str, tmp_path: Path, processes: Processes, kind: str, point: str
) -> None:
    take_backup(url, kept)
    made = target_of(kind, tmp_path)
    child = processes.start(restores, to=kept, url=made, point=point)
    assert child.was_killed(), f"{point} was never reached"
    if point == "kv.restore.after_end":
        with pytest.raises(Exists):
            restore(kept, made)
    else:
        if point != "kv.restore.before_mark":
            with pytest.raises((Invalid, Unavailable), match="being restored"):
                detent.open(made, timeout="1s")
        restore(kept, made)
    check(made)


def test_restore_of_another_backup_does_not_go_on_with_a_killed_one(
    url: str, kept: str, tmp_path: Path, processes: Processes
) -> None:
    first = take_backup(url, kept).manifest
    with detent.open(url) as store:
        store.queue("other").create()
    take_backup(url, kept)
    made = f"file:{tmp_path / 'made'}"
    assert processes.start(restores, to=kept, url=made, point="restore.after_records").was_killed()
    with pytest.raises(Exists, match="another backup"):
        restore(kept, made, backup=first.job)
    restore(kept, made)
    check(made)


@pytest.mark.parametrize("point", COMPACTING)
def test_killed_compaction_leaves_the_store_whole(url: str, tmp_path: Path, processes: Processes, point: str) -> None:
    assert processes.start(compacts, url=url, point=point).was_killed(), f"{point} was never reached"
    compact(url)
    assert not (tmp_path / "store" / "compacting").exists()
    check(url)


def test_compaction_gives_room_back_and_waits_for_readers(url: str, processes: Processes) -> None:
    with detent.open(url) as store:
        store.journal("big").append_many([bytes(500_000)] * 20)
        store.journal("big").delete()
        eventually(lambda: store.size_bytes() < 2_000_000, what="the records of the journal going")
    reader = processes.store(url, role="reader")
    with pytest.raises(Unavailable, match="reads the store"):
        compact(url)
    assert reader.call("read", journal="log")
    reader.finish()
    done = compact(url)
    assert done.after < 1_000_000 < done.before
    check(url)
    with detent.open(url), pytest.raises(Unavailable, match="end it first"):
        compact(url)


# -- under load -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def backing_up(url: str, to: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, in a process of its own."""
    command = [sys.executable, "-m", "detent.cli", "store", "backup", url, to]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["file", pytest.param("s3", marks=pytest.mark.s3)])
def test_backups_under_load_with_kills_have_all_that_was_acknowledged_before(
    tmp_path: Path, processes: Processes, kind: str
) -> None:
    url, kept = target_of(kind, tmp_path), f"file:{tmp_path / 'backups'}"
    dice = random.Random(7)
    first, checked = 0, 0
    for round_ in range(ROUNDS if kind == "file" else ROUNDS // 2):
        owner = processes.start(works, url=url, first=first)
        owner.expect("open")
        eventually(lambda: len(owner.events) > 20 * (dice.random() + 1))  # noqa: B023
        before = owner.events[-1]["number"]
        with backing_up(url, kept) as process:
            if round_ % 2:
                time.sleep(dice.random())
                process.kill()
            victim_dies = dice.random() < 0.5
            if victim_dies:
                time.sleep(dice.random() / 2)
                owner.kill()
            _, errors = process.communicate()
            assert process.returncode in {0, -signal.SIGKILL}, errors
        last = owner.events[-1].get("number", before)
        if process.returncode == 0:
            checked += 1
            check_restored(kept, f"file:{tmp_path / f'restored{round_}'}", before, last + 1)
        if owner.running:
            owner.kill()
        numbers = [event["number"] for event in owner.events if event["event"] == "done"]
        with detent.open(url) as store:
            first = max([int(m.body) for m in store.journal("log").read() if m.body[:1] != b"f"], default=-1) + 1
        assert first > max(numbers)
    assert checked


def check_restored(kept: str, made: str, acknowledged: int, most: int) -> None:
    """All through `acknowledged` is there, once, in order; nothing beyond `most`; the queue says the same."""
    restore(kept, made)
    with detent.open(made) as store:
        numbers = [int(message.body) for message in store.journal("log").read() if message.body[:1] != b"f"]
        assert numbers == list(range(len(numbers)))
        assert acknowledged < len(numbers) <= most + 1
        queued: list[Any] = []
        while found := store.queue("work").claim(1000):
            queued += [int(delivery.body) for delivery in found]
        assert sorted(queued) == numbers, "an append and its publish are one commit"


def test_failed_backup_is_given_up_by_itself(url: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("no")

    monkeypatch.setattr(BackupPlace, "end", fail)
    with pytest.raises(DetentError):
        take_backup(url, kept)
    monkeypatch.undo()
    take_backup(url, kept)
    assert remove(BackupPlace(kept), 1).waits is None
