"""A store of an earlier release: it is refused until it is upgraded, and then has all that it had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lmdb
import pytest

import detent
import oldstore
from detent.cli import run
from detent.errors import Corrupt, Invalid, NotFound, Unavailable
from detent.kv import open_reader, open_writer
from detent.kv import upgrade as upgrading
from detent.kv.file import FileWriter
from detent.kv.ownership import OwnerLock
from detent.kv.stored import FORMAT_VERSION, from_stored
from detent.kv.upgrade import Upgraded, upgrade
from detent.verify import verify

COMMAND = "detent store upgrade"


@pytest.fixture
def old(tmp_path: Path) -> str:
    return oldstore.unpack_file(tmp_path / "old")


def folder(url: str) -> Path:
    return Path(url.removeprefix("file:"))


def raw(url: str) -> dict[bytes, bytes]:
    with lmdb.open(str(folder(url)), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return dict(transaction.cursor())


def findings(url: str) -> list[Any]:
    reader = open_reader(url)
    try:
        return list(verify(reader))
    finally:
        reader.close()


def test_an_old_store_is_refused_in_every_role_and_the_error_names_the_command(old: str) -> None:
    before = raw(old)
    for opens in (
        lambda: detent.open(old),
        lambda: detent.open(old, role="reader"),
        lambda: open_reader(old),
        lambda: open_writer(old),
    ):
        with pytest.raises(Invalid, match=COMMAND):
            opens()
    assert raw(old) == before


def test_an_upgraded_store_has_everything_and_every_record_has_its_checksum(old: str) -> None:
    seen: list[tuple[int, int]] = []
    done = upgrade(old, lambda done, total: seen.append((done, total)))
    assert done.before == 2
    assert done.records > 40
    assert seen == sorted(seen)
    assert seen[-1][0] <= seen[-1][1]
    assert not list(folder(old).glob("commits-*"))
    for key, stored in raw(old).items():
        from_stored(key, stored)
    assert findings(old) == []
    oldstore.check_served(old)
    assert findings(old) == []


def test_a_second_upgrade_changes_nothing(old: str) -> None:
    upgrade(old)
    before = raw(old)
    assert upgrade(old) == Upgraded(FORMAT_VERSION, 0)
    assert raw(old) == before


def test_a_half_upgraded_store_is_refused_and_finished(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrading, "CHUNK_RECORDS", 10)
    put, chunks = upgrading._FileUpgrade._put, []

    def interrupted(self: Any, stored: dict[bytes, bytes]) -> None:
        if len(chunks) == 2:
            raise KeyboardInterrupt
        chunks.append(stored)
        put(self, stored)

    with monkeypatch.context() as patch:
        patch.setattr(upgrading._FileUpgrade, "_put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            upgrade(old)
    for opens in (open_reader, open_writer, detent.open):
        with pytest.raises(Invalid, match=f"interrupted.*{COMMAND}"):
            opens(old)
    done = upgrade(old)
    assert done.before == 2
    assert done.records == len(raw(old)) - 2 - 20, "the two records of the engine, and what was done before"
    assert findings(old) == []
    oldstore.check_served(old)


def test_an_owned_store_is_not_upgraded(old: str) -> None:
    lock = OwnerLock(folder(old))
    assert lock.try_acquire()
    before = raw(old)
    with pytest.raises(Unavailable, match="another process"):
        upgrade(old)
    assert raw(old) == before
    lock.release()
    upgrade(old)


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        upgrade(f"file:{tmp_path / 'none'}")
    assert not (tmp_path / "none").exists()
    with pytest.raises(Invalid, match="memory"):
        upgrade("memory:x")


def test_an_old_store_without_its_log_says_so_and_goes_on_when_told(old: str) -> None:
    for path in folder(old).glob("commits-*"):
        path.unlink()
    with pytest.raises(Corrupt, match="abandon-log"):
        upgrade(old)
    with pytest.raises(Invalid, match=COMMAND):
        open_reader(old)
    assert run(["store", "abandon-log", old, "--yes"]) == 0
    upgrade(old)
    assert findings(old) == []
    with detent.open(old) as store:
        assert store.journals() == ["frag", "plain", "txn"]


def test_a_large_record_and_the_longest_key_are_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store as the release before would have written it: the same records without their checksums."""
    path = tmp_path / "store"
    writer = FileWriter(path)
    values = {b"\x05" + b"\xff" * 510: b"long key", b"\x05a": b"", b"\x06b": bytes(3 << 20), b"\x06c": b"last"}
    with writer._live().lmdb.begin(write=True) as transaction:
        for key, value in values.items():
            transaction.put(key, value)
        state = writer._live().state()
        transaction.put(b"\x00epoch", state._replace(version=2).encode())
        transaction.put(b"\x00heirs", transaction.get(b"\x00heirs")[:-8])
    monkeypatch.setattr(writer, "_empty_log", lambda _: None)
    writer.close()
    monkeypatch.setattr(upgrading, "CHUNK_RECORDS", 1)
    assert upgrade(f"file:{path}") == Upgraded(2, 4)
    reader = open_reader(f"file:{path}")
    with reader.view() as view:
        assert dict(view.scan(b"")) == values
    reader.close()


def test_the_command_and_what_else_shows_the_version(old: str, capsys: pytest.CaptureFixture[str]) -> None:
    def says(*arguments: str, code: int = 0) -> str:
        assert run(list(arguments)) == code
        captured = capsys.readouterr()
        return captured.out if not code or "--json" in arguments else captured.err

    assert COMMAND in says("store", "info", old, code=1)
    assert any(COMMAND in found["what"] for found in json.loads(says("doctor", old, "--json", code=1)))
    shown = json.loads(says("store", "upgrade", old, "--json"))
    assert (shown["from"], shown["to"], shown["changed"]) == (2, FORMAT_VERSION, True)
    assert "already" in says("store", "upgrade", old)
    assert json.loads(says("store", "info", old, "--json"))["format"] == FORMAT_VERSION
    assert ["format:", str(FORMAT_VERSION)] in [line.split() for line in says("store", "info", old).splitlines()]
    assert any(f"format {FORMAT_VERSION}" in found["what"] for found in json.loads(says("doctor", old, "--json")))


@pytest.mark.s3
def test_a_store_on_an_object_store_is_upgraded_by_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("slatedb")
    pytest.importorskip("obstore")
    from detent.kv._slate_upgrade import _SlateUpgrade

    url = oldstore.unpack_s3()
    for opens in (open_reader, open_writer, detent.open):
        with pytest.raises(Invalid, match=COMMAND):
            opens(url)
    monkeypatch.setattr(upgrading, "CHUNK_RECORDS", 20)
    put, chunks = _SlateUpgrade._put, []

    def interrupted(self: Any, chunk: Any, cursor: Any) -> None:
        if len(chunks) == 1:
            raise KeyboardInterrupt
        chunks.append(chunk)
        put(self, chunk, cursor)

    with monkeypatch.context() as patch:
        patch.setattr(_SlateUpgrade, "_put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            upgrade(url)
    for opens in (open_reader, open_writer):
        with pytest.raises(Invalid, match=f"interrupted.*{COMMAND}"):
            opens(url)
    done = upgrade(url)
    assert done.before == 1
    assert done.records > 20
    assert upgrade(url) == Upgraded(FORMAT_VERSION, 0)
    assert findings(url) == []
    oldstore.check_served(url)
