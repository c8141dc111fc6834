"""One byte of the data file changes, in each record of a store in turn: no reader is served what it says.

The store is the one of an earlier release, upgraded: it has records of every subsystem, and of almost every type.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import lmdb
import pytest

import detent
import oldstore
from detent.engine.verify import Counts, Finding
from detent.errors import Corrupt, DetentError
from detent.kv import open_reader, open_writer
from detent.kv.stored import SUBSYSTEMS
from detent.kv.upgrade import upgrade
from detent.verify import verify
from oldstores.make import said


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flipped") / "store"
    upgrade(oldstore.unpack_file(path))
    with detent.open(f"file:{path}") as opened:  # which that release did not have
        opened.schedule("s", every="1h", journal="j", paused=True)
    return path


@pytest.fixture(scope="module")
def records(template: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(template), readonly=True, lock=False) as environment, environment.begin() as transaction:
        return dict(transaction.cursor())


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "store")
    return tmp_path / "store"


def damaged(path: Path, changes: dict[bytes, bytes]) -> str:
    with (
        lmdb.open(str(path), map_size=1 << 30, sync=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for key, stored in changes.items():
            transaction.put(key, stored)
    return f"file:{path}"


def flipped(stored: bytes, at: int) -> bytes:
    return stored[:at] + bytes([stored[at] ^ 0x10]) + stored[at + 1 :]


def run(url: str) -> tuple[list[Finding], Counts]:
    reader = open_reader(url)
    findings, check = [], verify(reader)
    try:
        while True:
            findings.append(next(check))
    except StopIteration as end:
        return findings, end.value
    finally:
        reader.close()


def test_the_store_has_records_of_every_subsystem(records: dict[bytes, bytes]) -> None:
    assert {key[0] for key in records} == {0, *SUBSYSTEMS}
    assert len({key[:3] if key[0] not in {0, 6} else key[:8] for key in records}) > 25


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
def test_a_flipped_byte_of_any_record_is_corrupt_wherever_it_is_read(
    store: Path, records: dict[bytes, bytes], part: float
) -> None:
    """The first byte, one in the middle, or the last one of the checksum."""
    changes = {
        key: flipped(stored, int(part * (len(stored) - 1))) for key, stored in records.items() if key != b"\x00epoch"
    }
    reader = open_reader(damaged(store, changes))
    told: set[bytes] = set()
    with reader.view(on_damage=lambda key, _: told.add(key)):
        assert told == {b"\x00heirs"}
    for large in (False, True):
        with reader.view(large=large) as view:
            for key in changes.keys() - told:
                with pytest.raises(Corrupt, match=key.hex()):
                    view.get(key)
                with pytest.raises(Corrupt, match=key.hex()):
                    next(iter(view.scan(key)))
                with pytest.raises(Corrupt, match=key.hex()):
                    next(iter(view.scan(b"", key + b"\0", reverse=True)))
    reader.close()


@pytest.mark.parametrize("at", [0, 1, 20, 33, 34, 41])
def test_a_store_with_a_damaged_epoch_record_is_not_opened(store: Path, records: dict[bytes, bytes], at: int) -> None:
    url = damaged(store, {b"\x00epoch": flipped(records[b"\x00epoch"], at)})
    for opens in (open_reader, open_writer):
        with pytest.raises(Corrupt):
            opens(url)


def test_verify_goes_on_and_lists_every_damaged_record(store: Path, records: dict[bytes, bytes]) -> None:
    changes = {key: flipped(stored, len(stored) // 2) for key, stored in records.items() if key != b"\x00epoch"}
    findings, counts = run(damaged(store, changes))
    told = [finding.where for finding in findings if finding.problem.startswith("the record")]
    assert sorted(told) == sorted(f"record {key.hex()}" for key in changes)
    assert counts.damaged == len(changes)


@pytest.mark.parametrize("subsystem", SUBSYSTEMS)
def test_the_public_api_serves_nothing_that_was_changed(
    store: Path, records: dict[bytes, bytes], subsystem: int
) -> None:
    """Every value of a subsystem is changed in its last byte before the checksum, or in the checksum."""
    changes = {key: flipped(stored, max(0, len(stored) - 9)) for key, stored in records.items() if key[0] == subsystem}
    url = damaged(store, changes)
    with pytest.raises(Corrupt), detent.open(url) as opened:
        json.dumps(said(opened))


def test_verify_survives_each_damaged_record_alone(store: Path, records: dict[bytes, bytes]) -> None:
    """One record of each subsystem; all of them in the long form."""
    chosen = records if "DETENT_SOAK" in os.environ else {key[0]: key for key in records if key[0]}.values()
    for key in chosen:
        if key != b"\x00epoch":
            findings, counts = run(damaged(store, {key: flipped(records[key], max(0, len(records[key]) - 9))}))
            assert findings[0].where == f"record {key.hex()}"
            assert counts.damaged == 1
            damaged(store, {key: records[key]})
    assert run(f"file:{store}")[0] == []


def test_a_damaged_body_is_an_error_for_its_consumer(store: Path, records: dict[bytes, bytes]) -> None:
    bodies = {key: flipped(stored, len(stored) - 9) for key, stored in records.items() if key[:3] == b"\x05\x01\x01"}
    with detent.open(damaged(store, bodies)) as opened, pytest.raises(DetentError, match="checksum"):
        list(opened.queue("orders").claim(1))
