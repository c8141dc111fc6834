"""What is read of a local file is what was checked: no link is followed after the check, no torn copy is kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from detent.errors import Denied, DetentError, Invalid, NotFound, Unavailable
from detent.ingest import local_files
from detent.ingest.announcements import Announced
from detent.ingest.identity import POLICIES
from detent.ingest.objects import FileObjects, Superseded
from ingestfakes import RETRY_S, World

LOCAL = [policy for policy in POLICIES if policy != "sequencer"]


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "landing" / "orders"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text("what was announced")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "a.json").write_text("what was announce!")
    return folder


def announced(objects: FileObjects, path: Path) -> Announced:
    """A file as a pipeline has it after its message was received."""
    file = Announced(f"file://{path}")
    objects.check_allowed(file)
    return objects.look_up(file)


@pytest.mark.parametrize("policy", LOCAL)
def test_staged_file_stays_as_it_was_when_its_source_is_written_over(
    landing: Path, tmp_path: Path, policy: str
) -> None:
    objects = FileObjects(policy)
    objects.fetch(announced(objects, landing / "a.json"), tmp_path / "staged")
    (landing / "a.json").write_text("what came later")
    assert (tmp_path / "staged").read_text() == "what was announced"
    assert not (tmp_path / "staged").is_symlink()


def test_staged_file_has_the_time_of_change_of_its_source(landing: Path, tmp_path: Path) -> None:
    os.utime(landing / "a.json", ns=(1_000, 2_000_000_000))
    objects = FileObjects("etag")
    objects.fetch(announced(objects, landing / "a.json"), tmp_path / "staged")
    assert (tmp_path / "staged").stat().st_mtime_ns == 2_000_000_000


def to_link(landing: Path, secret: Path) -> None:
    (landing / "a.json").unlink()
    (landing / "a.json").symlink_to(secret / "a.json")


def to_link_of_folder(landing: Path, secret: Path) -> None:
    landing.rename(landing.with_name("before"))
    landing.symlink_to(secret)


SWAPS = pytest.mark.parametrize("swap", [to_link, to_link_of_folder])


@SWAPS
@pytest.mark.parametrize("policy", LOCAL)
def test_link_that_replaces_an_allowed_file_is_refused(
    landing: Path, tmp_path: Path, policy: str, swap: Callable[[Path, Path], None]
) -> None:
    objects = FileObjects(policy, allow=[f"file://{landing}/"])
    file = announced(objects, landing / "a.json")
    os.utime(tmp_path / "secret" / "a.json", ns=(0, (landing / "a.json").stat().st_mtime_ns))  # the same etag
    swap(landing, tmp_path.resolve() / "secret")
    with pytest.raises(Invalid, match="allow"):
        objects.fetch(file, tmp_path / "staged")
    assert not (tmp_path / "staged").exists()


@SWAPS
def test_link_that_comes_between_check_and_opening_is_not_followed(
    landing: Path, tmp_path: Path, swap: Callable[[Path, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FileObjects("uri", allow=[f"file://{landing}/"])
    file = announced(objects, landing / "a.json")
    place, secret = os.path.realpath(landing / "a.json"), tmp_path.resolve() / "secret"

    def resolved_and_swapped(_path: Path) -> str:
        swap(landing, secret)
        return place

    monkeypatch.setattr("detent.ingest.objects.os.path.realpath", resolved_and_swapped)
    with pytest.raises((Unavailable, NotFound)):
        objects.fetch(file, tmp_path / "staged")
    assert not (tmp_path / "staged").exists()


def test_link_within_the_allowed_folder_is_read(landing: Path, tmp_path: Path) -> None:
    (landing / "link").symlink_to(landing)
    objects = FileObjects("etag", allow=[f"file://{landing}/"])
    objects.fetch(announced(objects, landing / "link" / "a.json"), tmp_path / "staged")
    assert (tmp_path / "staged").read_text() == "what was announced"


def written_meanwhile(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object], *, before: int) -> None:
    """Write to the file before its part of that number is read."""
    real, count = os.preadv, iter(range(100))

    def read(file: int, buffers: list[memoryview], at: int) -> int:
        if next(count) == before:
            write()
        return real(file, buffers, at)

    monkeypatch.setattr("detent.ingest.local_files.os.preadv", read)
    monkeypatch.setattr(local_files, "COPY_BYTES", 4)


@pytest.mark.parametrize("policy", LOCAL)
@pytest.mark.parametrize("content", ["WHAT WAS ANNOUNCED", "shorter", "something that is longer"])
def test_file_that_is_written_to_while_it_is_copied_is_tried_again(
    landing: Path, tmp_path: Path, policy: str, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FileObjects(policy)
    path = landing / "a.json"
    file = announced(objects, path)
    with monkeypatch.context() as patching:
        written_meanwhile(patching, lambda: path.write_text(content), before=2)
        with pytest.raises(Unavailable, match="written to while it was read"):
            objects.fetch(file, tmp_path / "torn")
    if policy != "uri":
        with pytest.raises(Superseded):
            objects.fetch(file, tmp_path / "again")
        file = objects.look_up(file)
    objects.fetch(file, tmp_path / "staged")
    assert (tmp_path / "staged").read_text() == content


def test_writing_that_leaves_no_trace_in_the_status_is_found(
    landing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = FileObjects("uri")
    file = announced(objects, landing / "a.json")
    monkeypatch.setattr(local_files, "_traces", lambda _status: ())
    written_meanwhile(monkeypatch, lambda: (landing / "a.json").write_text("WHAT WAS ANNOUNCED"), before=2)
    with pytest.raises(Unavailable, match="written to while it was read"):
        objects.fetch(file, tmp_path / "staged")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, identity="uri")
    yield world
    world.engine.dispose()


def test_torn_file_is_neither_committed_nor_counted_as_an_attempt(
    world: World, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = landing / "a.json"
    pipeline = world.pipeline()
    world.queue.send(str(path).encode())
    with monkeypatch.context() as patching:
        written_meanwhile(patching, lambda: path.write_text("WHAT WAS ANNOUNCED"), before=2)
        pipeline.work()
    assert (world.landed(), world.states(), len(world.queue.entries)) == ([], {"a.json": ("open", 0)}, 1)
    world.sleep(RETRY_S + 1)
    pipeline.work()
    assert (world.landed(), world.queue.entries) == (["a.json"], {})


@pytest.mark.parametrize(
    ("name", "expected"), [("folder", Invalid), ("pipe", Invalid), ("gone", NotFound), ("a.json/a", NotFound)]
)
def test_what_is_not_a_regular_file_is_not_read(
    landing: Path, tmp_path: Path, name: str, expected: type[DetentError]
) -> None:
    (landing / "folder").mkdir()
    os.mkfifo(landing / "pipe")
    objects = FileObjects("uri")
    with pytest.raises(expected):
        objects.look_up(Announced(f"file://{landing}/{name}"))
    with pytest.raises(expected):
        objects.fetch(Announced(f"file://{landing}/{name}", 1), tmp_path / "staged")


def test_file_that_may_not_be_read_is_denied(landing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = FileObjects("etag")
    file = announced(objects, landing / "a.json")
    real = os.open

    def refusing(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "a.json":  # as the system does it, but to root
            raise PermissionError(13, "Permission denied", path)
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr("detent.ingest.local_files.os.open", refusing)
    with pytest.raises(Denied):
        objects.fetch(file, tmp_path / "staged")
