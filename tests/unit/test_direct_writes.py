"""Records of the commit log are written past the page cache; whoever reads them sees the same bytes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from detent.errors import Unavailable
from detent.kv import Batch
from detent.kv.commitlog import DIRECT_BYTES_MAX, DirectFile
from detent.kv.commitrecord import PAGE
from detent.kv.file import FileReader, FileWriter
from filestore import everything

LARGE = 100_000


def commit(writer: FileWriter, name: str, value: bytes) -> None:
    batch = Batch()
    batch.put(name.encode(), value)
    writer.commit(batch)


@pytest.mark.parametrize("direct", [True, False])
def test_small_and_large_records_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    """Written either way, all is there: for the writer, for a reader that follows, and for a successor."""
    if not direct:
        monkeypatch.setattr(DirectFile, "write", lambda *_: False)
    expected = {}
    writer = FileWriter(tmp_path / "store")
    for number in range(120):  # the log is folded and begins at its front again in between
        value = os.urandom(LARGE if number % 3 else 100)
        commit(writer, f"k{number}", value)
        expected[f"k{number}".encode()] = value
        if number % 20 == 0:
            with writer.view() as view:
                assert dict(view.scan(b"k")) == expected
    reader = FileReader(tmp_path / "store")
    with reader.view() as view:
        assert dict(view.scan(b"k")) == expected
    reader.close()
    writer._log.close()  # type: ignore[union-attr]  # as if it had died: nothing is folded
    successor = FileWriter(tmp_path / "store")
    with successor.view() as view:
        assert dict(view.scan(b"k")) == expected
    successor.close()


def test_a_file_system_that_cannot_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EINVAL, at the first write or at the opening, means: the ordinary way, from now on."""
    tried: list[int] = []
    ordinary = os.pwrite

    def refuse(descriptor: int, data: Any, at: int) -> int:
        if isinstance(data, memoryview):
            tried.append(at)
            raise OSError(errno.EINVAL, "no direct writes here")
        return ordinary(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", refuse)
    writer = FileWriter(tmp_path / "store")
    commit(writer, "a", b"x" * LARGE)
    commit(writer, "b", b"y" * LARGE)
    assert len(tried) == 1
    assert everything(writer) == {"a": b"x" * LARGE, "b": b"y" * LARGE}
    writer.close()


def test_another_failure_is_the_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a disk says of a direct write counts as much as what it says of any other."""
    writer = FileWriter(tmp_path / "store")
    commit(writer, "a", b"small")

    def fail(*_: Any) -> int:
        raise OSError(errno.EIO, "the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(Unavailable, match="the disk is broken"):
            commit(writer, "b", b"x" * LARGE)
    writer.recover()
    assert everything(writer) == {"a": b"small"}
    commit(writer, "b", b"x" * LARGE)
    assert everything(writer) == {"a": b"small", "b": b"x" * LARGE}
    writer.close()


def test_pieces_are_filled_up_with_zeros(tmp_path: Path) -> None:
    """Whole pages are written, and nothing of the record before shows through."""
    path = tmp_path / "file"
    path.write_bytes(b"\xff" * 4 * PAGE)
    file = DirectFile(path)
    if not file.write([b"a" * PAGE, b"b" * 100], 2 * PAGE, PAGE):
        pytest.skip("this file system has no direct writes")
    assert file.write([b"c" * 10], PAGE, 3 * PAGE)
    found = path.read_bytes()
    file.close()
    assert found == b"\xff" * PAGE + (b"a" * PAGE + b"b" * 100).ljust(2 * PAGE, b"\0") + b"c" * 10 + bytes(PAGE - 10)
    assert not file.write([b"d"], DIRECT_BYTES_MAX + PAGE, 0)
