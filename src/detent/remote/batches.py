"""Record batches on their way from an owner to a reader: an Arrow IPC stream that says where it is, and how it ended.

Each batch carries the number of its first row. The last one is empty, and says how many rows there were, or what went
wrong: a stream that ends without it was cut off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from detent.codec import block, foreign
from detent.codec.parts import Parts
from detent.errors import Corrupt, DetentError, Invalid, LimitExceeded
from detent.remote import wire

STREAM_TYPE: Final = "application/vnd.apache.arrow.stream"

FIRST: Final = b"detent.first"
ROWS: Final = b"detent.rows"
PROBLEM: Final = b"detent.problem"

BATCH_BYTES_MAX: Final = 2 << 30
"""One record batch: a fragment's is sent as it was written."""

_EMPTY: Final = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in block.SCHEMA], schema=block.SCHEMA)


def encode(batches: Iterable[tuple[int, Any]]) -> Iterator[bytes]:
    """A stream of numbered batches, in parts of one batch each."""
    parts = Parts()
    rows = 0
    with pa.ipc.new_stream(parts, block.SCHEMA) as writer:
        last: dict[bytes, bytes]
        try:
            for first, batch in batches:
                writer.write_batch(batch, custom_metadata={FIRST: b"%d" % first})
                rows += batch.num_rows
                yield b"".join(parts.take())
            last = {ROWS: b"%d" % rows}
        except DetentError as error:
            last = {PROBLEM: wire.encode_problem(error)[1]}
        writer.write_batch(_EMPTY, custom_metadata=last)
    yield b"".join(parts.take())


def decode(parts: Iterator[bytes]) -> Iterator[tuple[int, Any]]:
    """The numbered batches of a stream. `Corrupt` if it is none or ends early; the owner's error if it says one."""
    rows = 0
    reader = foreign.PartsReader(parts, BATCH_BYTES_MAX)
    while True:
        try:
            found = reader.next_batch()
        except (Invalid, LimitExceeded) as error:
            raise Corrupt(f"the owner's stream cannot be read after {rows} rows: {error}") from error
        if found is None:
            raise Corrupt(f"the owner's stream ends after {rows} rows without saying so")
        batch, about = found
        if PROBLEM in about:
            raise wire.decode_problem(about[PROBLEM])
        if ROWS in about:
            if _number(about[ROWS]) != rows:
                raise Corrupt(f"{rows} rows came where the owner says {about[ROWS].decode()}")
            return
        yield _number(about.get(FIRST, b"")), batch
        rows += batch.num_rows


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise Corrupt(f"the owner's stream has no number where one belongs: {text[:50]!r}")
    return int(text)
