"""Deliveries as lines of a file: whatever is torn, cut or failed, each line is there once."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import Corrupt, Fenced, Invalid, Unavailable
from detent.journal import Message
from detent.processor import sink_file
from detent.processor.sink_file import FileSink
from detent.processor.sink_notes import load
from detent.processor.step import Step


def message(body: bytes) -> Message:
    return Message(body=body, producer=b"p", clock=1)


def step_of(number: int, *, series: str = "s1", floor: int = 0, processor: str = "log") -> Step:
    return Step("shop", processor, series, number, floor, ())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.txt"


def lines(path: Path) -> list[str]:
    text = path.read_text()
    assert not text or text.endswith("\n")
    return text.split("\n")[:-1]


def deliver(path: Path, *numbers: int, floor: int = 0) -> None:
    """As a process of its own does it."""
    with FileSink(path) as sink:
        for number in numbers:
            sink(message(b"line %d" % number), step_of(number, floor=floor))


# -- one after the other ----------------------------------------------------------------------------------------


def test_a_line_for_each_delivery(path: Path) -> None:
    with FileSink(path) as sink:
        for number in (0, 1, 0, 2, 1):
            sink(message(b"line %d" % number), step_of(number))
    deliver(path, 2, 0, 3)
    assert lines(path) == ["line 0", "line 1", "line 2", "line 3"]


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (None, b'{"a": 1}'),
        (lambda value: value.json(), b'{"a":1}'),
        (lambda value, step: f"{step.key} é", "s1-0 é".encode()),
        (lambda value: b"\xff\x00", b"\xff\x00"),
        (lambda value: "ends\n", b"ends"),
        (lambda value: None, b"null"),
        (lambda value: "", b""),
    ],
)
def test_what_a_line_may_be(path: Path, line: Callable[..., Any] | None, written: bytes) -> None:
    with FileSink(path, line=line) as sink:
        for _ in range(2):
            sink(message(b'{"a": 1}'), step_of(0))
    assert path.read_bytes() == written + b"\n"


def test_a_batch_is_a_line_for_each_message(path: Path) -> None:
    with FileSink(path) as sink:
        for _ in range(2):
            sink([message(b"a"), message(b"b")], step_of(0))
            sink([], step_of(2))
    assert lines(path) == ["a", "b"]


def test_a_line_with_a_newline_in_it_is_refused(path: Path) -> None:
    with FileSink(path) as sink:
        with pytest.raises(Invalid, match=r"line=Message\.json"):
            sink(message(b'{\n"a": 1}'), step_of(0))
        sink(message(b"a"), step_of(0))
    assert lines(path) == ["a"]


def test_several_processors_share_a_file(path: Path) -> None:
    with FileSink(path) as sink:
        sink(message(b"a"), step_of(0))
        sink(message(b"b"), step_of(0, processor="other", series="s7"))
        sink(message(b"b"), step_of(0, processor="other", series="s7"))
    assert lines(path) == ["a", "b"]


def test_many_threads_in_any_order(path: Path) -> None:
    numbers = [7, 3, 9, 0, 3, 9, 8, 1, 0, 2, 5, 6, 4, 7]
    with FileSink(path) as sink, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: sink(message(b"%d" % number), step_of(number)), numbers))
    assert sorted(lines(path)) == [str(number) for number in range(10)]


def test_two_that_are_open_at_once_take_turns(path: Path) -> None:
    with FileSink(path) as one, FileSink(path) as two:
        for number in range(6):
            (one if number % 2 else two)(message(b"%d" % number), step_of(number))
            one(message(b"again"), step_of(number))
            two(message(b"again"), step_of(number))
    assert lines(path) == [str(number) for number in range(6)]


# -- zombies ----------------------------------------------------------------------------------------------------


def test_done_numbers_are_forgotten_and_stay_done(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_file, "RENEW_BYTES", 1_000)
    with FileSink(path) as zombie, FileSink(path) as sink:
        zombie(message(b"0"), step_of(0))
        for number in range(1, 200):
            sink(message(b"%d" % number), step_of(number, floor=number))
        for number in (0, 3, 198):
            with pytest.raises(Fenced, match="is done for good"):
                zombie(message(b"again"), step_of(number))
        zombie(message(b"again"), step_of(199))
    assert lines(path) == [str(number) for number in range(200)]
    assert sink._beside.stat().st_size < 2_000, "the notes grow for ever"


def test_another_series_ends_the_one_before(path: Path) -> None:
    with FileSink(path) as old, FileSink(path) as new:
        old(message(b"a"), step_of(0))
        new(message(b"a again"), step_of(0, series="s2"))
        for number in (0, 1):
            with pytest.raises(Fenced, match="it was reset"):
                old(message(b"zombie"), step_of(number))
        new(message(b"b"), step_of(1, series="s2"))
    with FileSink(path) as later, pytest.raises(Fenced, match="it was reset"):
        later(message(b"zombie"), step_of(2))
    assert lines(path) == ["a", "a again", "b"]


# -- what a crash leaves ----------------------------------------------------------------------------------------


def test_a_tail_that_is_torn_anywhere(path: Path) -> None:
    deliver(path, 0, 1)
    begin = path.read_bytes().index(b"line 1")
    whole = path.read_bytes()
    notes = path.with_name("orders.txt.detent").read_bytes()
    for cut in range(begin, len(whole)):
        for filled in (whole[:cut], whole[:cut].ljust(len(whole), b"\x00")):
            path.write_bytes(filled)
            path.with_name("orders.txt.detent").write_bytes(notes)
            deliver(path, 1, 2)
            assert lines(path) == ["line 0", "line 1", "line 2"]


def test_a_note_that_is_torn_anywhere(path: Path) -> None:
    """Its bytes were not begun then."""
    deliver(path, 0)
    beside = path.with_name("orders.txt.detent")
    before, data = beside.read_bytes(), path.read_bytes()
    deliver(path, 1)
    after = beside.read_bytes()
    for cut in range(len(before), len(after)):
        for filled in (after[:cut], after[:cut].ljust(len(after), b"\x00")):
            beside.write_bytes(filled)
            path.write_bytes(data)
            deliver(path, 1, 2)
            assert lines(path) == ["line 0", "line 1", "line 2"]


def test_a_whole_tail_without_an_answer_is_done(path: Path) -> None:
    deliver(path, 0, 1)
    before = path.stat().st_ino, path.read_bytes()
    deliver(path, 1)
    assert (path.stat().st_ino, path.read_bytes()) == before


@pytest.mark.parametrize("at", [0, 20, 40, -2])
def test_notes_that_were_changed_in_the_middle_are_loud(path: Path, at: int) -> None:
    deliver(path, 0, 1, 2)
    beside = path.with_name("orders.txt.detent")
    rows = beside.read_bytes().split(b"\n")
    for row in (0, 1, 2):  # what is behind them is whole, so that nobody was killed there
        changed = bytearray(rows[row])
        changed[at] ^= 1
        beside.write_bytes(b"\n".join([*rows[:row], bytes(changed), *rows[row + 1 :]]))
        with pytest.raises(Corrupt):
            deliver(path, 3)
    assert lines(path) == ["line 0", "line 1", "line 2"]


def test_notes_that_are_something_else_are_loud(path: Path) -> None:
    deliver(path, 0)
    for other in (b"", b"{}\n", b"\x00" * 100, b"hello\n" * 3):
        path.with_name("orders.txt.detent").write_bytes(other)
        with pytest.raises(Corrupt):
            deliver(path, 1)
    assert lines(path) == ["line 0"]


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=3), st.integers(0, 10_000))
def test_notes_with_any_bytes_changed_are_refused_or_shorter(changes: list[tuple[int, int]], cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "orders.txt")
        deliver(path, *range(4))
        beside = path.with_name("orders.txt.detent")
        changed = bytearray(beside.read_bytes())
        for at, value in changes:
            changed[at % len(changed)] = value
        beside.write_bytes(changed[: len(changed) - cut % 300])
        try:
            found = load(beside)
        except Corrupt:
            return
        assert found is not None
        notes, whole = found
        assert whole <= len(changed)
        assert notes.size in {len(b"line 0\n") * count for count in range(4)}


def test_a_file_that_somebody_else_changed_is_loud(path: Path) -> None:
    with FileSink(path) as sink:
        sink(message(b"a"), step_of(0))
        good = path.read_bytes()
        for other in (good + b"mine\n", b"", good + b"x"):
            path.write_bytes(other)
            with pytest.raises(Corrupt, match="another program has changed it"):
                sink(message(b"b"), step_of(1))
            assert path.read_bytes() == other, "it was not for us to change"
        path.write_bytes(good)
        sink(message(b"b"), step_of(1))
    assert lines(path) == ["a", "b"]


def test_a_file_that_was_moved_away_is_loud(path: Path) -> None:
    with FileSink(path) as sink:
        sink(message(b"a"), step_of(0))
        path.rename(path.with_name("rotated"))
        with pytest.raises(Corrupt):
            sink(message(b"b"), step_of(1))
        path.with_name("rotated").rename(path)
        path.with_name("orders.txt.detent").rename(path.with_name("notes"))
        with pytest.raises(Corrupt, match="is gone"):
            sink(message(b"b"), step_of(1))
        path.with_name("notes").rename(path.with_name("orders.txt.detent"))
        sink(message(b"b"), step_of(1))
    assert lines(path) == ["a", "b"]


def test_both_files_move_together(path: Path, tmp_path: Path) -> None:
    deliver(path, 0, 1)
    (tmp_path / "new").mkdir()
    for name in ("orders.txt", "orders.txt.detent"):
        shutil.move(tmp_path / name, tmp_path / "new" / name)
    deliver(tmp_path / "new" / "orders.txt", 1, 2)
    assert lines(tmp_path / "new" / "orders.txt") == ["line 0", "line 1", "line 2"]


def test_a_file_without_notes_is_taken_over(path: Path) -> None:
    path.write_text("before\n")
    deliver(path, 0, 0)
    assert lines(path) == ["before", "line 0"]
    other = path.with_name("torn")
    other.write_text("no end")
    with pytest.raises(Invalid, match="does not end"):
        deliver(other, 0)
    assert other.read_text() == "no end"


# -- what fails -------------------------------------------------------------------------------------------------

WRITES = ["note", "part of the note", "note's sync", "line", "part of the line", "line's sync"]


@pytest.mark.parametrize("what", WRITES)
def test_a_disk_that_fails_once(path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """What can be read after a sync that failed need not be on the disk: it is written again, and not believed."""
    write, fsync = sink_file._write, os.fsync
    failing = [""]
    with FileSink(path) as sink:
        sink(message(b"a"), step_of(0))

        def which(file: int) -> str:
            return "line" if file == sink._file else "note"

        def failing_write(file: int, data: bytes, at: int) -> None:
            if failing[0].endswith(which(file)):
                part, failing[0] = failing[0].startswith("part"), ""
                write(file, data[: len(data) // 2] if part else b"", at)
                raise OSError(errno.ENOSPC, "No space left on device")
            write(file, data, at)

        def failing_sync(file: int) -> None:
            if failing[0] == f"{which(file)}'s sync":
                failing[0] = ""
                raise OSError(errno.EIO, "Input/output error")
            fsync(file)

        truncated: list[int] = []
        truncate = os.ftruncate
        monkeypatch.setattr(os, "ftruncate", lambda file, size: (truncated.append(size), truncate(file, size)))
        monkeypatch.setattr(sink_file, "_write", failing_write)
        monkeypatch.setattr(os, "fsync", failing_sync)
        for number in (1, 2):
            failing[0] = what
            with pytest.raises(Unavailable, match="cannot be written"):
                sink(message(b"%d" % number), step_of(number))
            sink(message(b"%d" % number), step_of(number))
    if what == "line's sync":
        assert truncated == [2, 4], "what was not synced was believed"
    assert lines(path) == ["a", "1", "2"]
    deliver(path, 1, 2, 3)
    assert lines(path) == ["a", "1", "2", "line 3"]


def test_notes_that_cannot_be_written_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_file, "RENEW_BYTES", 200)
    replace = Path.replace
    failures = [OSError(errno.ENOSPC, "No space left on device")]

    def failing(self: Path, target: Path) -> Path:
        if failures:
            raise failures.pop()
        return replace(self, target)

    with FileSink(path) as sink:
        sink(message(b"0"), step_of(0))
        monkeypatch.setattr(Path, "replace", failing)
        for number in range(1, 20):
            try:
                sink(message(b"%d" % number), step_of(number, floor=number))
            except Unavailable:
                sink(message(b"%d" % number), step_of(number, floor=number))
    assert not failures
    assert lines(path) == [str(number) for number in range(20)]


def test_syncs_come_in_order(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note is on the disk before its bytes are written, and they before the delivery counts."""
    with FileSink(path) as sink:
        sink(message(b"a"), step_of(0))
        events: list[str] = []
        write, fsync = sink_file._write, os.fsync
        called = {sink._file: "line", sink._notes_file: "note"}
        monkeypatch.setattr(
            sink_file, "_write", lambda file, data, at: (events.append(called[file]), write(file, data, at))
        )
        monkeypatch.setattr(os, "fsync", lambda file: (events.append(f"sync {called[file]}"), fsync(file)))
        sink(message(b"b"), step_of(1))
    assert events == ["note", "sync note", "line", "sync line"]


def test_what_somebody_else_left_is_synced_before_it_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may have been killed between writing and that; a power cut would then take it back."""
    deliver(path, 0, 1)
    events: list[str] = []
    fsync = os.fsync
    with FileSink(path) as sink:
        monkeypatch.setattr(os, "fsync", lambda file: (events.append("line"), fsync(file)))
        monkeypatch.setattr(sink_file, "sync_directory", lambda folder: events.append("folder"))
        sink(message(b"line 1"), step_of(1))
        assert events == ["folder", "folder", "line", "line", "folder"], "and the notes, anew: it is done"
        events.clear()
        sink(message(b"line 1"), step_of(1))
        assert events == []
    assert lines(path) == ["line 0", "line 1"]


def test_folders_are_made_and_links_followed(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "orders.txt"
    deliver(path, 0)
    link = tmp_path / "link.txt"
    link.symlink_to(path)
    deliver(link, 0, 1)
    assert lines(path) == ["line 0", "line 1"]
    assert not (tmp_path / "link.txt.detent").exists()


def test_a_forked_child_has_nothing_of_its_parent_s(path: Path) -> None:
    with FileSink(path) as sink:
        sink(message(b"a"), step_of(0))
        assert sink._file is not None
        child = os.fork()
        if not child:
            status = 1
            try:
                status = 0 if sink._file is None and sink._notes_file is None else 2
                sink(message(b"b"), step_of(1))
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        sink(message(b"b"), step_of(1))
        sink(message(b"c"), step_of(2))
    assert lines(path) == ["a", "b", "c"]


def test_a_child_does_not_doubt_what_its_parent_is_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is forked while another thread delivers, and delivers itself when that has ended."""
    inside, goes_on, fsync = threading.Event(), threading.Event(), os.fsync
    with FileSink(path) as sink:
        sink(message(b"a"), step_of(0))

        def slowly(file: int) -> None:
            if file == sink._file:
                inside.set()
                assert goes_on.wait(60)
            fsync(file)

        monkeypatch.setattr(os, "fsync", slowly)
        thread = threading.Thread(target=lambda: sink(message(b"b"), step_of(1)))
        thread.start()
        assert inside.wait(60)
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.read(ours, 1)
                goes_on.set()
                sink(message(b"c"), step_of(0, processor="other"))
                status = 0
            finally:
                os._exit(status)
        goes_on.set()
        thread.join(60)
        os.write(theirs, b"x")
        assert os.waitpid(child, 0)[1] == 0
        os.close(ours)
        os.close(theirs)
    assert lines(path) == ["a", "b", "c"]


@pytest.mark.parametrize("failing", ["the file", "the notes"])
@pytest.mark.parametrize("same", [True, False])
def test_who_failed_does_not_cut_off_what_another_has_done(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, same: bool
) -> None:
    """The other finds the delivery there, or makes it; whoever failed comes back, for that processor or another."""
    with FileSink(path) as first, FileSink(path) as second:
        first(message(b"a"), step_of(0))
        fsync = os.fsync

        def fails(file: int) -> None:
            if file == (first._file if failing == "the file" else first._notes_file):
                raise OSError(errno.EIO, "broken")
            fsync(file)

        with monkeypatch.context() as patch, pytest.raises(Unavailable):
            patch.setattr(os, "fsync", fails)
            first(message(b"b"), step_of(1))
        second(message(b"b"), step_of(1))
        assert lines(path) == ["a", "b"]
        first(message(b"c"), step_of(2) if same else step_of(0, processor="other"))
        second(message(b"d"), step_of(3))
    assert lines(path) == ["a", "b", "c", "d"]


def test_what_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    for bad in (None, 7, "a\x00b"):
        with pytest.raises(Invalid):
            FileSink(bad)  # type: ignore[arg-type]
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("")
    for name in ("", "fifo", "file/below"):
        with FileSink(tmp_path / name) as sink, pytest.raises(Invalid):
            sink(message(b"a"), step_of(0))
    sink = FileSink(tmp_path / "x")
    sink.close()
    with pytest.raises(Unavailable, match="closed"):
        sink(message(b"a"), step_of(0))
    assert not (tmp_path / "x").exists()


def test_notes_can_be_read(path: Path) -> None:
    deliver(path, 0, 1)
    found = load(path.with_name("orders.txt.detent"))
    assert found is not None
    assert found[0].size == len(b"line 0\n")
    assert found[0].pending is not None
    assert (found[0].pending.number, found[1]) == (1, path.with_name("orders.txt.detent").stat().st_size)
