"""What a commit log that is not whole means: a commit that was never acknowledged, or damage. See docs/format.md."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest

from detent.errors import Corrupt
from detent.kv import loghead
from detent.kv.commitlog import LOGGED_BYTES_MAX, CommitLog, Tip, durable_through
from detent.kv.commitrecord import PAGE, SECTOR, LogName, checksum_of, encode_record
from detent.kv.file import FileReader, FileWriter, abandon_log
from detent.kv.logfollower import take_over
from detent.kv.loghead import HEAD_BYTES, LogHead, decode_log_head
from detent.kv.oldlog import read_old_log
from filestore import bytes_of, everything, lose_power, put

NAME = LogName(0x0123456789ABCDEF, 1)
LATER = 3 * SECTOR


def log_with(directory: Path, *sizes: int, acknowledged: int | None = None, base: int = 0) -> Path:
    """A dead writer's log, of records with values of these sizes, of which so many were acknowledged."""
    (directory / "data.mdb").touch()
    log = CommitLog(directory, NAME, base)
    for number, size in enumerate(sizes, base + 1):
        changes = {b"k%d" % number: os.urandom(size)}
        record = encode_record(NAME, number, changes)
        log.write(record, sum(map(len, record)))
        if acknowledged is None or number <= base + acknowledged:
            log.accept(number, changes)
    log.close()
    return NAME.path(directory, "log")


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, at: int) -> None:
    change(path, at, bytes([path.read_bytes()[at] ^ 1]))


# -- the machine went on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 100, 39])
def test_last_acknowledged_record_with_a_flipped_bit_is_damage(tmp_path: Path, at: int) -> None:
    flip(log_with(tmp_path, 100, 100), 2 * PAGE + at)
    with pytest.raises(Corrupt, match="commit 2 cannot be read, and 2 were durable"):
        take_over(tmp_path, NAME, 0)


def test_zeroed_tail_is_damage(tmp_path: Path) -> None:
    change(log_with(tmp_path, 100, 100, 100), 2 * PAGE, bytes(2 * PAGE))
    with pytest.raises(Corrupt, match="commit 2 cannot be read, and 3 were durable"):
        take_over(tmp_path, NAME, 0)


def test_record_that_was_not_acknowledged_may_be_torn(tmp_path: Path) -> None:
    flip(log_with(tmp_path, 100, 100, acknowledged=1), 2 * PAGE + 60)
    assert take_over(tmp_path, NAME, 0).last == 1


def test_whole_record_that_was_not_acknowledged_counts(tmp_path: Path) -> None:
    log_with(tmp_path, 100, 100, acknowledged=1)
    assert take_over(tmp_path, NAME, 0).last == 2


@pytest.mark.parametrize("size", [0, 10, PAGE, 400_000, (1 << 20) - 1])
def test_log_that_was_cut_is_damage(tmp_path: Path, size: int) -> None:
    """Also behind its last record: nothing cuts a log but damage."""
    os.truncate(log_with(tmp_path, 100), size)
    with pytest.raises(Corrupt, match=r"cut|had 1048576"):
        take_over(tmp_path, NAME, 0)


def test_log_that_grew_and_was_cut_to_its_first_size_is_damage(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").touch()
    log = CommitLog(tmp_path, NAME, 0)
    assert log.has_room((1 << 20) + 1)
    log.close()
    assert take_over(tmp_path, NAME, 0).last == 0
    os.truncate(NAME.path(tmp_path, "log"), 1 << 20)
    with pytest.raises(Corrupt, match="had 2097152"):
        take_over(tmp_path, NAME, 0)


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32, 40, 56, 63])
def test_damaged_head_is_damage(tmp_path: Path, at: int) -> None:
    flip(log_with(tmp_path, 100), at)
    with pytest.raises(Corrupt, match="first page"):
        take_over(tmp_path, NAME, 0)


@pytest.mark.parametrize("how", ["missing", "short", "zeros", "another log's"])
def test_missing_tip_is_damage_unless_the_machine_was_restarted(tmp_path: Path, how: str) -> None:
    log_with(tmp_path, 100, 100)
    path = NAME.path(tmp_path, "tip")
    whole = path.read_bytes()
    content = {"short": whole[:100], "zeros": bytes(PAGE), "another log's": whole[:24] + bytes(8) + whole[32:]}
    path.unlink() if how == "missing" else path.write_bytes(content[how])
    with pytest.raises(Corrupt, match="tip"):
        take_over(tmp_path, NAME, 0)
    lose_power(tmp_path)
    assert take_over(tmp_path, NAME, 0).last == 2


@pytest.mark.parametrize("word", [8, 40])
def test_each_half_of_the_tip_says_how_far_the_log_goes(tmp_path: Path, word: int) -> None:
    log_with(tmp_path, 100, 100)
    change(NAME.path(tmp_path, "tip"), word, struct.pack("<Q", 0 if word == 8 else (1 << 64) - 1))
    assert durable_through(tmp_path, NAME) == 2


def test_tip_that_says_too_much_is_refused(tmp_path: Path) -> None:
    """Which of the two is wrong nothing can tell."""
    log_with(tmp_path, 100)
    tip = Tip(tmp_path, NAME)
    tip.publish(5)
    tip.close()
    with pytest.raises(Corrupt, match="commit 2 cannot be read, and 5 were durable"):
        take_over(tmp_path, NAME, 0)
    assert take_over(tmp_path, NAME, 5).last == 5, "LMDB has them"


# -- the machine was restarted -------------------------------------------------------------------------------------


def test_tip_that_survived_a_power_cut_counts(tmp_path: Path) -> None:
    path = log_with(tmp_path, 100, LATER)
    tip = NAME.path(tmp_path, "tip").read_bytes()
    lose_power(tmp_path)
    NAME.path(tmp_path, "tip").write_bytes(tip)
    flip(path, 2 * PAGE + LATER)
    with pytest.raises(Corrupt, match="commit 2 cannot be read"):
        take_over(tmp_path, NAME, 0)


def test_large_last_record_may_be_torn_by_a_power_cut(tmp_path: Path) -> None:
    change(log_with(tmp_path, 100, LATER), 2 * PAGE + SECTOR, bytes(SECTOR))
    lose_power(tmp_path)
    assert take_over(tmp_path, NAME, 0).last == 1


def test_record_of_one_sector_cannot_be_torn(tmp_path: Path) -> None:
    flip(log_with(tmp_path, 100, 100), 2 * PAGE + 60)
    lose_power(tmp_path)
    with pytest.raises(Corrupt, match="too short"):
        take_over(tmp_path, NAME, 0)


def test_first_record_that_begins_with_anything_else_is_damage(tmp_path: Path) -> None:
    flip(log_with(tmp_path, LATER), PAGE + 20)
    lose_power(tmp_path)
    with pytest.raises(Corrupt, match="first record"):
        take_over(tmp_path, NAME, 0)


def test_head_of_a_later_record_proves_the_one_before_it(tmp_path: Path) -> None:
    """Each was begun after the one before it was durable, so its head is enough, though its rest was torn."""
    path = log_with(tmp_path, 100, LATER, LATER)
    flip(path, 2 * PAGE + LATER)
    change(path, 3 * PAGE + SECTOR, bytes(SECTOR))
    lose_power(tmp_path)
    with pytest.raises(Corrupt, match="commit 3 was begun, and commit 2 cannot be read"):
        take_over(tmp_path, NAME, 0)


def test_machine_is_known_by_its_start() -> None:
    assert len(loghead.boot_id()) == 16
    head = LogHead(NAME, 3, 1 << 20, loghead.boot_id())
    assert decode_log_head(NAME, head.encode()) == head
    assert len(head.encode()) == HEAD_BYTES
    assert not head.machine_restarted
    assert head._replace(boot=b"another start...").machine_restarted
    assert head._replace(boot=bytes(16)).machine_restarted, "a system that does not say may have been"


# -- part of it in LMDB ----------------------------------------------------------------------------------------------


def test_records_that_lmdb_has_are_passed_over(tmp_path: Path) -> None:
    log_with(tmp_path, 100, 5000, 100, base=4)
    for folded, found in ((4, 3), (5, 2), (6, 1), (7, 0), (9, 0)):
        assert len(take_over(tmp_path, NAME, folded)) == found
    with pytest.raises(Corrupt):
        take_over(tmp_path, NAME, 3)  # as when an older data file was put beside the log


def test_data_file_that_went_back_behind_a_large_commit_is_refused(tmp_path: Path) -> None:
    """The large commit was never in the log, and the log is empty since; its tip knows of both."""
    writer = FileWriter(tmp_path / "store")
    put(writer, a=b"1")
    writer.maintain()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    put(writer, large=bytes(LOGGED_BYTES_MAX + 1))
    for path in (tmp_path / "store").glob("commits-*"):
        shutil.copy(path, tmp_path / "copy")
    writer.close()
    with pytest.raises(Corrupt, match="commit 2 cannot be read, and 2 were durable"):
        as_reader(tmp_path / "copy")


# -- a store, and its log of version 1 -------------------------------------------------------------------------------


def killed_writer(path: Path) -> FileWriter:
    writer = FileWriter(path)
    put(writer, a=b"1")
    put(writer, b=b"2")
    log = writer._log
    assert log is not None
    log.close()  # as if it had died: nothing moves to LMDB
    return writer


def test_refusal_changes_nothing_and_giving_up_keeps_what_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    killed_writer(path)
    flip(next(path.glob("*.log")), 2 * PAGE + 45)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    before = bytes_of(copy)
    for opener in (FileWriter, as_reader):
        with pytest.raises(Corrupt, match="damaged"):
            opener(copy)
    assert bytes_of(copy) == before
    assert abandon_log(copy) == next(copy.glob("*.abandoned"))
    assert as_reader(copy) == {"a": b"1"}


def as_reader(path: Path) -> dict[str, bytes]:
    reader = FileReader(path)
    try:
        return everything(reader)
    finally:
        reader.close()


OLD = struct.Struct("<IIQQQ")


def old_log(directory: Path, name: LogName, *values: bytes, published: int | None = None) -> None:
    """As releases with version 1 wrote it."""
    data = b""
    for number, value in enumerate(values, 1):
        body = struct.pack("<HI", 1, len(value)) + b"k" + value
        head = OLD.pack(0x474C5444, len(body), number, name.epoch, checksum_of(name.seed(number), [body]))
        data += (head + body).ljust(PAGE, b"\0")
    name.path(directory, "log").write_bytes(data.ljust(1 << 20, b"\0"))
    said = len(values) if published is None else published
    name.path(directory, "tip").write_bytes(struct.pack("<8sQQ", b"dtnt-tip", said, 0).ljust(PAGE, b"\0"))


@pytest.mark.parametrize("values", [(), (b"1", b"2")])
def test_log_of_version_1_is_named_and_can_be_read(tmp_path: Path, values: tuple[bytes, ...]) -> None:
    old_log(tmp_path, NAME, *values)
    before = bytes_of(tmp_path)
    with pytest.raises(Corrupt, match=r"version 1.*store upgrade"):
        take_over(tmp_path, NAME, 0)
    assert bytes_of(tmp_path) == before
    found = read_old_log(tmp_path, NAME, 0)
    assert found.last == len(values)
    assert found.latest() == ({b"k": b"2"} if values else {})


def test_damaged_log_of_version_1_is_refused_too(tmp_path: Path) -> None:
    old_log(tmp_path, NAME, b"1", b"2", b"3")
    flip(NAME.path(tmp_path, "log"), PAGE + 39)
    with pytest.raises(Corrupt, match="commit 2 cannot be read, and 3 were durable"):
        read_old_log(tmp_path, NAME, 0)
    old_log(tmp_path, NAME, b"1", b"2", published=3)
    with pytest.raises(Corrupt, match="commit 3 cannot be read"):
        read_old_log(tmp_path, NAME, 0)


def test_store_with_a_log_of_version_1_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = killed_writer(path)
    old_log(path, writer._name, b"1")
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    with pytest.raises(Corrupt, match="version 1"):
        FileWriter(copy)
    with pytest.raises(Corrupt, match="version 1"):
        as_reader(copy)
    abandon_log(copy)
    assert as_reader(copy) == {"k": b"1"}, "giving it up keeps what can be read"
