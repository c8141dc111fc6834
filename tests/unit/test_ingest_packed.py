"""Packed files as tasks read them: each way gives the bytes that were packed, in pieces; what is torn or lies is
refused."""

from __future__ import annotations

import bz2
import gzip
import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from detent.errors import Invalid
from detent.ingest import csv_headers, packed
from detent.ingest.announcements import Announced
from detent.ingest.local_state import HeldFile
from detent.ingest.packed import is_packed, unpack
from detent.ingest.shared_state import FileShard
from detent.ingest.staging import FilesFailed, StagedFile
from ingestfakes import hadoop_packed

RANDOM = random.Random(7)
CONTENT = b"".join(b'{"id": %d, "text": "%s"}\n' % (n, RANDOM.randbytes(n % 50).hex().encode()) for n in range(3_000))


WAYS = {
    "a.json": CONTENT,
    "a.json.gz": gzip.compress(CONTENT),
    "two.gz": gzip.compress(CONTENT[:999]) + gzip.compress(CONTENT[999:]),
    "a.bz2": bz2.compress(CONTENT),
    "a.deflate": zlib.compress(CONTENT),
    "two.deflate": zlib.compress(CONTENT[:999]) + zlib.compress(CONTENT[999:]),
    "a.ZST": pa.Codec("zstd").compress(CONTENT, asbytes=True),
    "two.zst": b"".join(pa.Codec("zstd").compress(part, asbytes=True) for part in (CONTENT[:999], CONTENT[999:])),
    "a.snappy": hadoop_packed("snappy", CONTENT),
    "parts.snappy": hadoop_packed("snappy", CONTENT, part=5_000),
    "a.lz4": hadoop_packed("lz4_raw", CONTENT),
    "parts.lz4": hadoop_packed("lz4_raw", CONTENT, part=5_000),
    "frame.lz4": pa.Codec("lz4").compress(CONTENT, asbytes=True),
}


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("size", [7, 4_096, 1 << 20])
def test_each_way_of_packing_gives_what_was_packed(name: str, size: int) -> None:
    assert b"".join(unpack(name, pieces(WAYS[name], size))) == CONTENT
    assert is_packed(name) == (name != "a.json")
    if not name.endswith(".bz2"):  # which has no way to be empty
        assert b"".join(unpack(name, iter(()))) == b""


@pytest.mark.parametrize("name", sorted(WAYS.keys() - {"a.json"}))
@pytest.mark.parametrize("cut", [1, 5, 1_000])
def test_torn_file_is_refused(name: str, cut: int) -> None:
    with pytest.raises((OSError, EOFError, ValueError, Invalid, zlib.error)):
        list(unpack(name, pieces(WAYS[name][:-cut], 4_096)))


@pytest.mark.parametrize("name", ["a.snappy", "a.lz4", "a.deflate", "a.zst"])
def test_bytes_that_are_not_packed_are_refused(name: str) -> None:
    with pytest.raises((OSError, EOFError, ValueError, Invalid, zlib.error)):
        list(unpack(name, pieces(CONTENT, 4_096)))


@pytest.mark.parametrize("codec", ["snappy", "lz4_raw"])
def test_block_that_says_another_length_than_it_has_is_refused(codec: str) -> None:
    name = f"a.{codec.partition('_')[0]}"
    data = pa.Codec(codec).compress(b"x" * 100, asbytes=True)
    for length in (50, 99, 101):
        lying = length.to_bytes(4, "big") + len(data).to_bytes(4, "big") + data
        with pytest.raises((Invalid, EOFError, OSError)):
            list(unpack(name, [lying]))
    huge = (packed.BLOCK_BYTES_MAX + 1).to_bytes(4, "big")
    with pytest.raises(Invalid, match="at most"):
        list(unpack(name, [huge]))


@pytest.mark.parametrize("name", ["a.deflate", "a.zst", "a.gz"])
def test_file_that_unpacks_to_much_more_is_unpacked_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PIECE_BYTES", 10_000)
    much = bytes(1_000_000)
    data = {"a.deflate": zlib.compress, "a.gz": gzip.compress}.get(
        name, lambda found: pa.Codec("zstd").compress(found, asbytes=True)
    )(much)
    found = list(unpack(name, [data]))
    assert b"".join(found) == much
    assert max(map(len, found)) <= 10_000


def test_header_of_a_local_file_is_read_however_it_is_packed_and_refused_in_other_encodings(tmp_path: Path) -> None:
    shard = FileShard(b"a", "file:///a", "", 1)
    held = HeldFile(shard, Announced("file:///a"), 0.0)
    files = []
    for name in sorted(WAYS):
        (tmp_path / f"{name}.csv{Path(name).suffix}").write_bytes(_packed_as(Path(name).suffix, b"id,name\n1,x\n"))
        files.append(StagedFile(f"{name}.csv{Path(name).suffix}", held))
    found = csv_headers.groups(tmp_path, files, csv_headers.HeaderStyle.of({}))
    assert list(found) == [("id", "name")]
    assert len(found["id", "name"][1]) == len(WAYS)
    with pytest.raises(FilesFailed) as failed:
        csv_headers.groups(tmp_path, files[:1], csv_headers.HeaderStyle.of({"encoding": "utf-16"}))
    assert "not in utf-16" in str(failed.value.reasons[b"a"])


def _packed_as(ending: str, content: bytes) -> bytes:
    ways = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".deflate": zlib.compress,
        ".zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
        ".snappy": lambda data: hadoop_packed("snappy", data),
        ".lz4": lambda data: hadoop_packed("lz4_raw", data),
    }
    return ways.get(ending.lower(), bytes)(content)
