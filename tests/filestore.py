"""A `file:` store as tests of the kv layer fill and read it: text for keys."""

from __future__ import annotations

from pathlib import Path

from detent.kv import Batch, Reader, Writer
from detent.kv.commitrecord import PAGE, LogName
from detent.kv.loghead import HEAD_BYTES, decode_log_head


def put(writer: Writer, **pairs: bytes | None) -> None:
    """One commit; None deletes."""
    batch = Batch()
    batch.extend({key.encode(): value for key, value in pairs.items()})
    writer.commit(batch)


def everything(reader: Reader) -> dict[str, bytes]:
    """All that one view shows."""
    with reader.view() as view:
        return {key.decode(): value for key, value in view.scan(b"")}


def bytes_of(directory: Path) -> dict[str, bytes]:
    """Every file of a store, but the one in which LMDB keeps its locks and who reads."""
    files = (path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != "lock.mdb")
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def log_name(path: Path) -> LogName:
    """Whose log a file is."""
    _, store, epoch = path.stem.split("-")
    return LogName(int(store, 16), int(epoch))


def lose_power(directory: Path) -> None:
    """Make the files of a killed writer look as after a power cut: another start of the machine, and no tip."""
    for path in directory.glob("commits-*.log"):
        with path.open("r+b") as file:
            head = decode_log_head(log_name(path), file.read(HEAD_BYTES))
            file.seek(0)
            file.write(head._replace(boot=b"another start...").encode())
        path.with_suffix(".tip").write_bytes(bytes(PAGE))
