"""A `file:` store as tests of the kv layer fill and read it: text for keys."""

from __future__ import annotations

from detent.kv import Batch, Reader, Writer


def put(writer: Writer, **pairs: bytes | None) -> None:
    """One commit; None deletes."""
    batch = Batch()
    batch.extend({key.encode(): value for key, value in pairs.items()})
    writer.commit(batch)


def everything(reader: Reader) -> dict[str, bytes]:
    """All that one view shows."""
    with reader.view() as view:
        return {key.decode(): value for key, value in view.scan(b"")}
