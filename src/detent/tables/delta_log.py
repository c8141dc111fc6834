"""The log of a Delta table on a disk: its transaction ids, many at a time, and its files, synced.

The library looks ids up one by one and reads the log for each, which takes milliseconds; a batch has thousands of
files. So the log is read here once: the last checkpoint's column of ids, and the commits since.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from detent.engine import MALFORMED
from detent.kv.localobjects import sync_directory

if TYPE_CHECKING:
    from deltalake import DeltaTable


class _Txn(msgspec.Struct, rename="camel"):
    app_id: str


class _LogAction(msgspec.Struct):
    txn: _Txn | None = None


class _Pointer(msgspec.Struct, rename="camel"):
    version: Annotated[int, msgspec.Meta(ge=0)]
    parts: int | None = None
    v2_checkpoint: Any = None


_pointer: Final = msgspec.json.Decoder(_Pointer)
_action: Final = msgspec.json.Decoder(_LogAction)


def known_applications(table: DeltaTable, log: Path | None, wanted: Collection[str]) -> frozenset[str]:
    """Which of these applications have a transaction id in the table, in the version that `table` has open. `log` is
    the folder of the log, None where it is on an object store."""
    if log is not None:
        found = _read(log, table.version(), wanted)
        if found is not None:
            return found
    return frozenset(name for name in wanted if table.transaction_version(name) is not None)


def _read(log: Path, version: int, wanted: Collection[str]) -> frozenset[str] | None:
    """The wanted ids in the log up to a version; None if the log is not as plain as it has to be for that."""
    try:
        first, found = _in_checkpoint(log, version, wanted)
        for number in range(first, version + 1):
            found |= _in_commit(log / f"{number:020d}.json", wanted)
    except (FileNotFoundError, KeyError, pa.ArrowInvalid, *MALFORMED):
        return None  # cleaned up meanwhile, or in parts: the library knows all ways of writing a log
    return frozenset(found)


def _in_checkpoint(log: Path, version: int, wanted: Collection[str]) -> tuple[int, set[str]]:
    """The wanted ids in the last checkpoint, and the first commit after it."""
    pointer = log / "_last_checkpoint"
    if not pointer.exists():
        return 0, set()
    last = _pointer.decode(pointer.read_bytes())
    at = last.version
    if at > version or last.parts or last.v2_checkpoint:
        raise KeyError(at)
    # The column by itself, and no table: making one imports pandas.
    rows = pq.read_table(log / f"{at:020d}.checkpoint.parquet", columns=["txn"]).column("txn")
    names = pc.struct_field(rows, "appId")
    chosen = names.filter(pc.is_in(names, value_set=pa.array(sorted(wanted), names.type)))
    return at + 1, set(chosen.to_pylist())


def _in_commit(path: Path, wanted: Collection[str]) -> set[str]:
    lines = path.read_bytes().splitlines()
    actions = (_action.decode(line) for line in lines if b'"txn"' in line)
    return {action.txn.app_id for action in actions if action.txn is not None and action.txn.app_id in wanted}


# -- synced ---------------------------------------------------------------------------------------------------------


def sync_log(table: Path, since: int) -> None:
    """Make what was committed after a version survive a power failure, which the library leaves to chance: the ledger,
    which is next, must not know of a batch that the table can lose. Checkpoints, too: the library deletes old commits
    that are in one."""
    log = table / "_delta_log"
    for path in _of_log(log, since):
        with suppress(FileNotFoundError), path.open("rb") as file:  # another writer may have cleaned up
            os.fsync(file.fileno())
    for folder in (log, table, table.parent):
        sync_directory(folder)


def _of_log(log: Path, since: int) -> Iterator[Path]:
    """The files of a log since a version; all of them since 0."""
    if not since:
        yield from (path for path in log.iterdir() if path.is_file())
        return
    yield log / "_last_checkpoint"
    for version in itertools.count(max(0, since - 1)):
        commit, checkpoint = (log / f"{version:020d}{ending}" for ending in (".json", ".checkpoint.parquet"))
        if version > since and not commit.exists():
            return
        yield from (commit, checkpoint)
