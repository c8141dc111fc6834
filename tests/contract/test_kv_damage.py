"""What every kv engine does about a record that has changed on the disk: it never serves it as data.

A memory store has no disk. Damage is done below the engine: with LMDB and with SlateDB themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from contract.backends import S3_MARKS
from contract.kvengine import Engine, put
from detent.errors import Corrupt
from detent.kv import Batch, parse_url
from detent.kv.stored import to_stored


@pytest.fixture(params=["file", pytest.param("s3", marks=S3_MARKS)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "s3":
        pytest.importorskip("slatedb")
        pytest.importorskip("obstore")
    made = Engine(request.param, tmp_path)
    yield made
    made.close()


def write_below(engine: Engine, changes: dict[bytes, bytes]) -> None:
    """Write what is stored, as it is, with no writer of ours at work."""
    location = parse_url(engine.url)
    if engine.name == "file":
        with lmdb.open(str(location.directory), map_size=1 << 30) as environment, environment.begin(write=True) as raw:
            for key, stored in changes.items():
                raw.put(key, stored)
        return
    asyncio.run(_write_to_slate(engine.url, changes))


async def _write_to_slate(url: str, changes: dict[bytes, bytes]) -> None:
    from detent.kv._slate_session import SlatePlace

    place = SlatePlace(url)
    database: Any = await place.binding.DbBuilder(place.path, place.object_store).build()
    for key, stored in changes.items():
        await database.put(key, stored)
    await database.flush()
    await database.shutdown()


def test_damaged_records_are_refused_and_told_of_and_the_others_are_served(engine: Engine) -> None:
    writer = engine.writer()
    large = bytes(200_000)
    whole = {b"\x05a": b"one", b"\x05b": b"two", b"\x05c": b"", b"\x06a": large, b"\x06b": b"three"}
    put(writer, *whole.items())
    writer.close()
    flipped = bytearray(to_stored(b"\x06a", large))
    flipped[100_000] ^= 1
    damage = {
        b"\x05b": b"two" + bytes(8),
        b"\x05c": b"",
        b"\x06a": bytes(flipped),
        b"\x06b": to_stored(b"\x06c", b"three"),
    }
    write_below(engine, damage)
    for opened in (engine.reader(), engine.writer()):
        for is_large in (False, True):
            with opened.view(large=is_large) as view:
                assert view.get(b"\x05a") == b"one"
                for key in damage:
                    with pytest.raises(Corrupt, match=key.hex()):
                        view.get(key)
                    with pytest.raises(Corrupt, match=key.hex()):
                        list(view.scan(key))
                    with pytest.raises(Corrupt, match=key.hex()):
                        next(iter(view.scan(b"", key + b"\0", reverse=True)))
                assert list(view.scan(b"\x05a", b"\x05b")) == [(b"\x05a", b"one")]
        told: dict[bytes, str] = {}
        with opened.view(on_damage=told.__setitem__) as view:
            found = dict(view.scan(b""))
        assert told.keys() == damage.keys()
        assert found == {b"\x05a": b"one"}


def test_a_damaged_record_can_be_written_anew_and_deleted(engine: Engine) -> None:
    writer = engine.writer()
    put(writer, (b"\x05a", b"one"), (b"\x05b", b"two"))
    writer.close()
    write_below(engine, {b"\x05a": b"x" * 20, b"\x05b": b"x"})
    writer = engine.writer()
    batch = Batch()
    batch.put(b"\x05a", b"mended")
    batch.delete(b"\x05b")
    writer.commit(batch)
    writer.close()
    with engine.reader().view() as view:
        assert dict(view.scan(b"")) == {b"\x05a": b"mended"}


def test_the_engines_own_records_are_checked(engine: Engine) -> None:
    for _ in range(2):
        engine.writer().close()
    name = b"\x00heirs" if engine.name == "file" else b"\x00heir" + (1).to_bytes(8, "big")
    write_below(engine, {name: bytes(24)})
    told: dict[bytes, str] = {}
    reader = engine.reader()
    with reader.view(on_damage=told.__setitem__):
        pass
    reader.close()
    assert list(told) == [name]
    write_below(engine, {b"\x00epoch": bytes([3]) + bytes(41 if engine.name == "file" else 24)})
    for opens in (engine.reader, engine.writer):
        with pytest.raises(Corrupt, match=b"\x00epoch".hex()):
            opens()
