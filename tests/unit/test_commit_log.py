"""The commit log of `file:`: what is in it counts from its sync on, once, for all, whatever its writer suffers."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.engine import Engine, Request
from detent.errors import Corrupt, Fenced, OutcomeUnknown, Unavailable
from detent.journal import JournalMachine
from detent.journal.operations import Append, Appended
from detent.kv import commitlog, environment, file
from detent.kv.commitlog import LOG_BYTES_MAX, CommitLog, DirectFile, Tip
from detent.kv.commitrecord import PAGE, LogName, checksum_of, decode_record, encode_head, encode_record
from detent.kv.file import FileReader, FileWriter, abandon_log
from detent.kv.logfollower import LogFollower, take_over
from detent.kv.overlay import Layer, Overlay, merged
from detent.kv.stored import to_stored
from filestore import bytes_of, everything, put

CHANGES = st.dictionaries(st.binary(min_size=1, max_size=4), st.none() | st.binary(max_size=4), max_size=5)


@pytest.fixture
def writer(tmp_path: Path) -> Any:
    writer = FileWriter(tmp_path / "store")
    yield writer
    writer.close()


def as_another_process_sees_it(path: Path) -> dict[str, bytes]:
    """What the files hold for a process that shares no memory with the writer."""
    found: dict[str, bytes] = {}
    output = subprocess.run([sys.executable, "-c", READ, str(path)], check=True, capture_output=True).stdout
    for line in output.splitlines():
        key, value = line.split(b" ")
        found[bytes.fromhex(key.decode()).decode()] = bytes.fromhex(value.decode())
    return found


def write(log: CommitLog, record: list[bytes]) -> None:
    log.write(record, sum(map(len, record)))


READ = """
import sys
from detent.kv import open_reader
with open_reader("file:" + sys.argv[1]).view() as view:
    for key, value in view.scan(b""):
        print(key.hex(), value.hex())
"""


# -- records ------------------------------------------------------------------------------------------------------


NUMBERS = st.integers(0, 2**64 - 1)
NAME = LogName(0x0123456789ABCDEF, 1)


@given(NUMBERS, NUMBERS, NUMBERS, CHANGES, st.binary(max_size=20))
def test_records_come_back(
    number: int, store: int, epoch: int, changes: dict[bytes, bytes | None], behind: bytes
) -> None:
    name = LogName(store, epoch)
    record = b"".join(encode_record(name, number, changes))
    assert decode_record(name, record + behind) == (number, changes, len(record))
    assert decode_record(LogName(store ^ 1, epoch), record) is None
    assert decode_record(LogName(store, epoch ^ 1), record) is None


@given(CHANGES, st.data())
def test_a_record_that_lost_anything_is_none(changes: dict[bytes, bytes | None], data: st.DataObject) -> None:
    record = b"".join(encode_record(NAME, 7, changes))
    assert decode_record(NAME, record[: data.draw(st.integers(0, len(record) - 1))]) is None
    at = data.draw(st.integers(0, len(record) - 1))
    flipped = bytearray(record)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    assert decode_record(NAME, bytes(flipped)) is None


def test_nonsense_with_a_right_checksum_is_corrupt() -> None:
    for body in (b"\x01", b"\x00\x00\x00\x00\x00\x00", b"\x05\x00\x00\x00\x00\x00ab", b"\x01\x00\xfe\xff\xff\xffk"):
        checksum = checksum_of(NAME.seed(1), [body])
        with pytest.raises(Corrupt):
            decode_record(NAME, encode_head(NAME, 1, len(body), checksum) + body)


def test_the_bytes_of_a_record() -> None:
    record = encode_record(NAME, 2, {b"k": b"value", b"gone": None})
    assert b"".join(record).hex() == GOLDEN
    large = {b"k": bytes(PAGE + 1), b"l": b"", b"m": bytes(2 * PAGE)}
    data = b"".join(encode_record(NAME, 3, large))
    assert decode_record(NAME, data) == (3, large, len(data))
    assert NAME.path(Path("store"), "log") == Path("store/commits-0123456789abcdef-1.log")


GOLDEN = (
    "44544c32" "16000000" "0200000000000000" "0100000000000000" "b11ac2c0d879a46f" "6ea396bbb72458ed"
    "0100" "05000000" "6b" "76616c7565"
    "0400" "ffffffff" "676f6e65"
)  # fmt: skip


# -- the overlay --------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.binary(min_size=1, max_size=2), st.binary(max_size=2)), st.lists(CHANGES), st.data())
def test_an_overlay_is_a_dictionary_of_its_time(
    stored: dict[bytes, bytes], commits: list[dict[bytes, bytes | None]], data: st.DataObject
) -> None:
    """LMDB holds the commits through `floor`; a view of time `top` sees those and the overlay's, both ways."""
    base = data.draw(st.integers(0, len(commits)))
    floor = data.draw(st.integers(base, len(commits)))
    top = data.draw(st.integers(floor, len(commits)))
    overlay = Overlay(base)
    at_floor, expected = dict(stored), dict(stored)
    for number, changes in enumerate(commits, 1):
        if number > base:
            overlay.add(number, changes)
        for model, end in ((at_floor, floor), (expected, top)):
            if number <= end:
                for key, value in changes.items():
                    model.pop(key, None) if value is None else model.update({key: value})
    layer = Layer(overlay, floor, top)
    start, end = sorted([data.draw(st.binary(max_size=2)), data.draw(st.binary(max_size=2))])
    for reverse in (False, True):
        pairs = sorted(((k, v) for k, v in at_floor.items() if start <= k < end), reverse=reverse)
        found = merged(iter(pairs), layer.between(start, end, reverse=reverse), reverse=reverse)
        assert list(found) == sorted(((k, v) for k, v in expected.items() if start <= k < end), reverse=reverse)
    for key in at_floor.keys() | expected.keys():
        version = layer.find(key)
        assert (at_floor.get(key) if version is None else version[1]) == expected.get(key)


# -- a writer and its log -----------------------------------------------------------------------------------------


def test_small_commits_are_in_the_log_and_everybody_sees_them(writer: FileWriter, tmp_path: Path) -> None:
    put(writer, a=b"1", b=b"2")
    put(writer, a=None, c=b"3")
    with writer._live().read() as transaction:
        assert transaction.get(b"b") is None, "it is not in LMDB yet"
    assert everything(writer) == as_another_process_sees_it(tmp_path / "store") == {"b": b"2", "c": b"3"}
    writer.maintain()
    with writer._live().read() as transaction:
        assert transaction.get(b"b") == to_stored(b"b", b"2")
    put(writer, d=b"4")
    assert everything(writer) == as_another_process_sees_it(tmp_path / "store") == {"b": b"2", "c": b"3", "d": b"4"}


def test_a_closed_store_has_no_log(tmp_path: Path) -> None:
    for _ in range(3):
        writer = FileWriter(tmp_path)
        put(writer, a=b"1")
        assert list(tmp_path.glob("commits-*"))
        writer.close()
        assert not list(tmp_path.glob("commits-*"))


def test_the_log_is_bounded(writer: FileWriter, tmp_path: Path) -> None:
    for number in range(3 * LOG_BYTES_MAX // 100_000):
        put(writer, **{f"k{number}": bytes(100_000)})
    (log,) = (tmp_path / "store").glob("commits-*.log")
    assert log.stat().st_size <= LOG_BYTES_MAX
    assert len(everything(writer)) == 3 * LOG_BYTES_MAX // 100_000
    assert everything(writer) == as_another_process_sees_it(tmp_path / "store")


def test_a_view_stays_as_it_was_while_the_log_moves(writer: FileWriter) -> None:
    put(writer, a=b"1", gone=b"x")
    with writer.view() as view:
        put(writer, a=b"2", gone=None)
        writer.maintain()
        put(writer, a=b"3", b=b"3")
        assert (view.get(b"a"), view.get(b"gone"), view.get(b"b")) == (b"1", b"x", None)
        assert list(view.scan(b"")) == [(b"a", b"1"), (b"gone", b"x")]
    assert everything(writer) == {"a": b"3", "b": b"3"}


def test_what_a_replaced_writer_left_in_its_log_is_kept_and_its_next_commit_is_not(tmp_path: Path) -> None:
    first = FileWriter(tmp_path)
    put(first, a=b"1")
    second = FileWriter(tmp_path)
    with pytest.raises(Fenced):
        put(first, a=b"zombie")
    put(second, b=b"2")
    assert everything(second) == as_another_process_sees_it(tmp_path) == {"a": b"1", "b": b"2"}
    first.close()
    second.close()
    third = FileWriter(tmp_path)
    assert everything(third) == {"a": b"1", "b": b"2"}
    third.close()


@pytest.mark.parametrize("in_time", [True, False])
def test_replaced_in_the_middle_of_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_time: bool) -> None:
    """Written before the successor read the log: kept, and said so. Written after: refused, and nobody's."""
    first = FileWriter(tmp_path)
    put(first, a=b"1")
    write, second = CommitLog.write, []

    def replaced(log: CommitLog, record: list[bytes], size: int) -> None:
        monkeypatch.setattr(CommitLog, "write", write)
        if in_time:
            write(log, record, size)
        second.append(FileWriter(tmp_path))
        if not in_time:
            write(log, record, size)

    monkeypatch.setattr(CommitLog, "write", replaced)
    if in_time:
        put(first, b=b"2")
    else:
        with pytest.raises(Fenced):
            put(first, b=b"2")
    with pytest.raises(Fenced):
        put(first, c=b"3")
    assert everything(second[0]) == ({"a": b"1", "b": b"2"} if in_time else {"a": b"1"})
    first.close()
    second[0].close()


def test_a_log_that_comes_too_late_is_not_begun(tmp_path: Path) -> None:
    """A writer that had no log yet when it was replaced: its successor has looked for one already."""
    first = FileWriter(tmp_path)
    second = FileWriter(tmp_path)
    with pytest.raises(Fenced):
        put(first, a=b"1")
    put(second, b=b"2")
    assert everything(second) == {"b": b"2"}
    first.close()
    second.close()


# -- when something fails -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["pwrite", "pwritev", "fdatasync"])
def test_a_commit_that_failed_in_the_log_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    if call != "pwrite":
        monkeypatch.setattr(DirectFile, "write", lambda *_: False)
    writer = FileWriter(tmp_path)
    put(writer, a=b"1")
    real = getattr(os, call)

    def fails(*arguments: Any) -> int:
        if call != "pwritev":
            real(*arguments)  # the worst case: it was written, and the error is about something else
        raise OSError(errno.EIO, "the disk has a bad day")

    monkeypatch.setattr(commitlog.os, call, fails)
    with pytest.raises(Unavailable, match="bad day"):
        put(writer, a=b"2")
    monkeypatch.setattr(commitlog.os, call, real)
    with pytest.raises(Unavailable, match="recover"):
        put(writer, a=b"3")
    assert everything(writer) == as_another_process_sees_it(tmp_path) == {"a": b"1"}
    writer.recover()
    put(writer, b=b"2")
    assert everything(writer) == as_another_process_sees_it(tmp_path) == {"a": b"1", "b": b"2"}
    successor = FileWriter(tmp_path)
    assert everything(successor) == {"a": b"1", "b": b"2"}
    writer.close()
    successor.close()


STEPS = ["write", "add", "publish", "after"]


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupt_at_any_step_leaves_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    writer = FileWriter(tmp_path)
    put(writer, a=b"1")
    homes: dict[str, Any] = {"write": CommitLog, "add": Overlay, "publish": CommitLog, "after": CommitLog}
    name = "publish" if step == "after" else step
    real = getattr(homes[step], name)

    def strikes(*arguments: Any) -> None:
        if step in {"write", "after"}:
            real(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(homes[step], name, strikes)
        with pytest.raises(KeyboardInterrupt):
            put(writer, a=b"2")
    seen = everything(writer)
    writer.recover()
    assert everything(writer) == as_another_process_sees_it(tmp_path)
    if step in {"publish", "after"}:
        assert everything(writer) == seen == {"a": b"2"}, "it was seen, so it stays"
    else:
        assert everything(writer) == seen == {"a": b"1"}, "it was not seen, so it never will be"
    kept = everything(writer)
    put(writer, b=b"3")
    assert everything(writer) == as_another_process_sees_it(tmp_path) == {**kept, "b": b"3"}
    successor = FileWriter(tmp_path)
    assert everything(successor) == {**kept, "b": b"3"}
    writer.close()
    successor.close()


def test_without_room_for_a_log_commits_go_to_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commitlog.os, "pwrite", lambda *arguments: len(arguments[1]) // 2)  # as on a full disk
    writer = FileWriter(tmp_path)
    put(writer, a=b"1")
    put(writer, b=b"2")
    assert everything(writer) == as_another_process_sees_it(tmp_path) == {"a": b"1", "b": b"2"}
    assert not list(tmp_path.glob("commits-*"))
    writer.close()


def damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_a_torn_last_record_is_dropped_and_the_ones_before_stay(tmp_path: Path) -> None:
    log = log_with(tmp_path, {b"a": b"1"}, {b"b": b"2"})
    write(log, encode_record(NAME, 3, {b"c": bytes(3 * PAGE)}))
    damage(NAME.path(tmp_path, "log"), 5 * PAGE)  # in the middle of the third, which was not acknowledged
    left = take_over(tmp_path, NAME, 0)
    assert (left.last, left.latest()) == (2, {b"a": b"1", b"b": b"2"})
    log.close()


@pytest.mark.parametrize("at", [0, 38, PAGE, 3 * PAGE])
def test_a_damaged_record_with_others_behind_it_is_no_torn_one(tmp_path: Path, at: int) -> None:
    """Those behind it were acknowledged; dropping them in silence would be the one thing a log must not do."""
    log = log_with(tmp_path, {b"a": b"1"}, {b"b": bytes(3 * PAGE)}, {b"c": b"3"})
    damage(NAME.path(tmp_path, "log"), PAGE + at)
    with pytest.raises(Corrupt, match="damaged"):
        take_over(tmp_path, NAME, 0)
    log.close()


def test_records_of_an_earlier_lap_do_not_count(tmp_path: Path) -> None:
    log = log_with(tmp_path, {b"a": b"1"}, {b"b": b"2"}, {b"c": b"3"})
    log.restart(3)
    write(log, encode_record(NAME, 4, {b"d": b"4"}))
    log.accept(4, {b"d": b"4"})
    left = take_over(tmp_path, NAME, 3)
    assert left.latest() == {b"d": b"4"}
    log.close()
    for folded in (4, 5):
        left = take_over(tmp_path, NAME, folded)
        assert left.latest() == {}, "LMDB has them all"
    for folded in (0, 1, 2):
        with pytest.raises(Corrupt):
            take_over(tmp_path, NAME, folded)  # as when an older data file was put beside the log


def log_with(directory: Path, *commits: dict[bytes, bytes | None]) -> CommitLog:
    (directory / "data.mdb").touch()
    log = CommitLog(directory, NAME, 0)
    for number, changes in enumerate(commits, 1):
        write(log, encode_record(NAME, number, changes))
        log.accept(number, changes)
    return log


def test_a_reader_does_not_see_what_is_not_published(tmp_path: Path) -> None:
    """Written is not durable: the record may still be lost with the machine."""
    log = log_with(tmp_path, {b"a": b"1"})
    write(log, encode_record(NAME, 2, {b"b": b"2"}))
    follower = LogFollower(tmp_path, NAME)
    layer = follower.layer(0)
    assert layer is not None
    assert (layer.find(b"a"), layer.find(b"b")) == ((1, b"1"), None)
    log.accept(2, {b"b": b"2"})
    layer = follower.layer(0)
    assert layer is not None
    assert layer.find(b"b") == (2, b"2")
    follower.close()
    log.close()


def test_a_log_far_too_large_commit_goes_to_lmdb_and_takes_the_log_along(writer: FileWriter, tmp_path: Path) -> None:
    put(writer, a=b"1", b=b"1")
    put(writer, b=b"2", big=bytes(file.LOGGED_BYTES_MAX + 1))
    with writer._live().read() as transaction:
        assert transaction.get(b"a") == to_stored(b"a", b"1")
        assert transaction.get(b"b") == to_stored(b"b", b"2")
    put(writer, a=b"3")
    found = as_another_process_sees_it(tmp_path / "store")
    assert (found["a"], found["b"], len(found["big"])) == (b"3", b"2", file.LOGGED_BYTES_MAX + 1)


# -- what a review found --------------------------------------------------------------------------------------------


WRITE = """
import sys
from detent.kv import Batch, open_writer
writer = open_writer("file:" + sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    name, *arguments = line.split()
    if name == "put":
        batch = Batch()
        batch.put(arguments[0].encode(), arguments[1].encode())
        writer.commit(batch)
    elif name == "count":
        for number in range(int(arguments[0])):
            batch = Batch()
            batch.put(b"n", b"%d" % number)
            writer.commit(batch)
            if number % 500 == 0:
                writer.maintain()
    else:
        getattr(writer, name)()
    print("ok", flush=True)
"""


class Writing:
    """A writer in a process of its own, to be killed."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITE, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._hear("ready")

    def ask(self, line: str) -> None:
        self.send(line)
        self._hear("ok")

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def test_views_of_another_process_never_go_back(tmp_path: Path) -> None:
    """The tip's number changes in one step: a reader that saw a zero in between would take the log for empty."""
    writing = Writing(tmp_path)
    writing.ask("put n 0")
    writing.send("count 3000")
    reader = FileReader(tmp_path)
    seen, views = 0, 0
    while seen < 2999:
        with reader.view() as view:
            found = int(view.get(b"n") or b"-1")
        if seen == 0 or found:  # it starts again from 0 once
            assert found >= seen, f"from {seen} back to {found}"
        seen, views = max(seen, found), views + 1
    reader.close()
    writing.kill()
    assert views > 100


def test_a_tip_never_shows_half_a_number(tmp_path: Path) -> None:
    tip = Tip(tmp_path, NAME, create=True)
    other = Tip(tmp_path, NAME, writable=False)
    for number in (1, 0xFFFF_FFFF, 0x1_0000_0000, 2**64 - 1):
        tip.publish(number)
        assert other.published == number
    assert type(tip._words) is memoryview, "struct writes zeros before it writes the number"
    assert not other.fenced
    tip.fence()
    assert (other.fenced, other.published) == (True, 2**64 - 1)
    tip.close()
    other.close()


@pytest.mark.parametrize("how", ["close", "first small commit"])
def test_the_writer_of_a_deleted_store_leaves_the_one_in_its_place_alone(tmp_path: Path, how: str) -> None:
    path = tmp_path / "store"
    old = FileWriter(path)
    if how == "close":
        put(old, old=b"x")
    shutil.rmtree(path)
    writing = Writing(path)
    writing.ask("put a 1")
    if how == "close":
        old.close()
    else:
        put(old, old=b"x")
    writing.ask("put b 2")
    assert as_another_process_sees_it(path) == {"a": b"1", "b": b"2"}
    writing.kill()
    successor = FileWriter(path)
    assert everything(successor) == {"a": b"1", "b": b"2"}
    successor.close()
    if how != "close":
        old.close()


def test_a_restored_backup_does_not_bring_a_later_log_to_life(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = FileWriter(path)
    put(writer, kept=b"1")
    writer.close()
    shutil.copy(path / "data.mdb", tmp_path / "backup")
    writing = Writing(path)
    writing.ask("put undone 1")
    writing.kill()
    shutil.copy(tmp_path / "backup", path / "data.mdb")
    writer = FileWriter(path)
    assert everything(writer) == as_another_process_sees_it(path) == {"kept": b"1"}
    put(writer, new=b"1")
    assert everything(writer) == as_another_process_sees_it(path) == {"kept": b"1", "new": b"1"}
    writer.close()


def test_a_writer_that_dies_between_the_two_halves_of_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB's half is old by then: everything moved on into LMDB, and the log that is left does not continue the old."""
    writing = Writing(tmp_path)
    for number in range(3):
        writing.ask(f"put k{number} 1")
    follow = environment.Environment._follow
    struck: list[bool] = []

    def late(self: Any, *arguments: Any) -> Any:
        if not struck:
            struck.append(True)
            writing.ask("maintain")
            writing.ask("put late 1")
            writing.kill()
        return follow(self, *arguments)

    monkeypatch.setattr(environment.Environment, "_follow", late)
    reader = FileReader(tmp_path)
    assert sorted(everything(reader)) == ["k0", "k1", "k2", "late"]
    reader.close()


def test_a_log_that_cannot_be_removed_does_not_stop_the_store_from_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = FileWriter(tmp_path)
    put(writer, a=b"1")
    unlink = Path.unlink

    def refused(self: Path, missing_ok: bool = False) -> None:
        if self.name.startswith("commits-"):
            raise PermissionError(errno.EACCES, "not yours")
        unlink(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refused)
        writer.close()
    assert environment._identity(tmp_path) not in environment._environments
    assert as_another_process_sees_it(tmp_path) == {"a": b"1"}
    successor = FileWriter(tmp_path)
    assert everything(successor) == {"a": b"1"}
    assert not list(tmp_path.glob("commits-*"))
    successor.close()


def test_a_writer_follows_a_map_that_another_process_grew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "MAP_BYTES_FIRST", 1 << 20)
    FileWriter(tmp_path).close()
    reader = FileReader(tmp_path)
    assert everything(reader) == {}
    writing = Writing(tmp_path)
    for number in range(12):
        writing.ask(f"put k{number} {'x' * 300_000}")
    writing.kill()
    writer = FileWriter(tmp_path)
    assert len(everything(writer)) == 12
    writer.close()
    reader.close()


def test_an_unknown_outcome_is_called_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync fails, and so does what would settle it: the record may count for whoever opens the store next."""
    writer = FileWriter(tmp_path)
    engine = Engine(writer, [JournalMachine(writer)])
    session = engine.new_session()
    engine.commit(Request(session, 0, 0, [Append("j", [b"first"])]))

    def fails(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk has a bad day")

    def fails_too(*_: Any) -> None:
        raise lmdb.DiskError("and a worse one")

    with monkeypatch.context() as patch:
        patch.setattr(DirectFile, "write", fails)
        patch.setattr(FileWriter, "_write", fails_too)
        with pytest.raises(OutcomeUnknown):
            engine.commit(Request(session, 1, 1, [Append("j", [b"second"])]))
    (result,) = engine.commit(Request(session, 2, 2, [Append("j", [b"third"])]))
    assert result == Appended(1, 1, 1, 1), "once the disk is well, it was settled as never applied"
    engine.close()


# -- files that do not go together ----------------------------------------------------------------------------------


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A store whose writer was killed with commits in its log."""
    path = tmp_path / "store"
    writing = Writing(path)
    for number in range(5):
        writing.ask(f"put k{number} {number}")
    writing.kill()
    return path


def log_of(path: Path) -> Path:
    (log,) = path.glob("commits-*.log")
    return log


def check_refused(path: Path, match: str) -> None:
    """Readers and writers alike, and again: nothing was changed by the attempt."""
    before = bytes_of(path)
    for _ in range(2):
        with pytest.raises(Corrupt, match=match):
            as_reader(path)
        with pytest.raises(Corrupt, match=match):
            FileWriter(path)
    assert bytes_of(path) == before


def as_reader(path: Path) -> dict[str, bytes]:
    reader = FileReader(path)
    try:
        return everything(reader)
    finally:
        reader.close()


def test_a_missing_log_is_not_taken_for_an_empty_one(crashed: Path) -> None:
    log = log_of(crashed).rename(crashed / "elsewhere")
    check_refused(crashed, "missing")
    log.rename(crashed / next(crashed.glob("commits-*.tip")).with_suffix(".log").name)
    assert len(as_reader(crashed)) == 5


def test_a_damaged_log_is_refused_by_everybody_and_can_be_given_up(crashed: Path) -> None:
    damage(log_of(crashed), 3 * PAGE + 45)
    check_refused(crashed, "damaged")
    kept = abandon_log(crashed)
    assert kept is not None
    assert kept.exists()
    writer = FileWriter(crashed)
    assert everything(writer) == {"k0": b"0", "k1": b"1"}, "what comes before the damage is kept"
    put(writer, new=b"1")
    writer.close()
    assert as_another_process_sees_it(crashed) == {"k0": b"0", "k1": b"1", "new": b"1"}


def test_a_data_file_older_than_its_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writing = Writing(path)
    writing.ask("put a 1")
    shutil.copy(path / "data.mdb", tmp_path / "older")
    writing.ask("maintain")
    writing.ask("put b 2")
    writing.kill()
    shutil.copy(tmp_path / "older", path / "data.mdb")
    check_refused(path, "damaged")


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_log_without_its_data_file_is_left_alone(crashed: Path, how: str) -> None:
    log = log_of(crashed).read_bytes()
    (crashed / "data.mdb").unlink() if how == "missing" else (crashed / "data.mdb").write_bytes(b"")
    check_refused(crashed, "restore")
    assert log_of(crashed).read_bytes() == log


def test_a_data_file_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    writer = FileWriter(tmp_path)
    put(writer, big=bytes(1 << 20))
    writer.close()
    with (tmp_path / "data.mdb").open("r+b") as data:
        data.truncate(400_000)
    check_refused(tmp_path, "cut short")


def test_a_full_disk_is_called_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB turns a write that had no room into an input/output error."""
    writer = FileWriter(tmp_path / "store")

    def fails(*_: Any) -> None:
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(FileWriter, "_write", fails)
        with pytest.raises(Unavailable, match="could not commit"):
            put(writer, a=bytes(1 << 20))
        patch.setattr(environment, "FREE_BYTES_MIN", 1 << 60)
        with pytest.raises(Unavailable, match="full"):
            put(writer, a=bytes(1 << 20))
        with pytest.raises(Unavailable, match="no room for a store"):
            FileWriter(tmp_path / "another")
    put(writer, a=b"1")
    assert everything(writer) == {"a": b"1"}
    writer.close()
