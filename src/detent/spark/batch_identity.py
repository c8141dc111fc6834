"""What a batch is: who writes it (the query, its run, the name in the ledger), and what it is made from.

Spark tells a sink neither its query nor its run; both stand among the local properties of each task.

A batch's number says which batch it is only as long as Spark's log is whole. When its newest entry is lost (a power
cut, an older copy), Spark gives the same number to another batch, which reaches further. So every record of a batch
keeps a digest of its input beside the number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from detent.codec.ledger import DIGEST_BYTES
from detent.errors import Corrupt, Invalid
from detent.spark.options import FormatOptions

QUERY_PROPERTY: Final = "sql.streaming.queryId"
RUN_PROPERTY: Final = "spark.jobGroup.id"
"""A streaming query puts its jobs into a group that is named by the run, so that stopping it can cancel them."""


CHECKPOINTS_PROPERTY: Final = "spark.sql.streaming.checkpointLocation"
"""Where the session has the checkpoints of streams that have none of their own, each under the query's name."""


class BatchIdentity(NamedTuple):
    """The query that a task works for, and which run of it: each start of a query is a new run. `checkpoints` is where
    its session has checkpoints."""

    query: str
    run: str
    checkpoints: str = ""

    @classmethod
    def common(cls, identities: Iterable[BatchIdentity]) -> BatchIdentity:
        """The identity that all tasks of a batch share."""
        found = set(identities)
        if len(found) != 1 or not next(iter(found)).query:
            raise Invalid(f"the tasks of a batch say that they work for {sorted(found)}, not for one streaming query")
        return found.pop()


def task_identity(context: Any) -> BatchIdentity:
    """Who a task works for; empty outside a streaming query."""
    properties = (QUERY_PROPERTY, RUN_PROPERTY, CHECKPOINTS_PROPERTY)
    return BatchIdentity(*(context.getLocalProperty(name) or "" for name in properties))


def ledger_name(options: FormatOptions) -> str | None:
    """The name of a stream in the ledger: its own, the query's, or that of its checkpoint. With none of them, a deleted
    checkpoint cannot be told from a new query."""
    named = options.text("ledgerName") or options.text("queryName")
    if named is not None:
        return named
    checkpoint = options.text("checkpointLocation")
    return None if checkpoint is None else f"checkpoint:{checkpoint}"


@dataclass(frozen=True)
class CheckpointPlace:
    """Where a stream has its checkpoint, as far as the options of its sink say."""

    location: str | None = None
    query_name: str | None = None

    @classmethod
    def of(cls, options: FormatOptions) -> CheckpointPlace:
        return cls(options.text("checkpointLocation"), options.text("queryName"))

    def input_of(self, identity: BatchIdentity, batch: int) -> bytes:
        """What a batch is made from, if the checkpoint is in a folder that this process can open."""
        location = self.location
        if location is None and identity.checkpoints and self.query_name:
            location = f"{identity.checkpoints}/{self.query_name}"
        checkpoint = None if location is None else local_checkpoint(location)
        return UNKNOWN if checkpoint is None else input_of(checkpoint, batch)


NOT_SAID: Final = CheckpointPlace()
"""The place of a checkpoint of which the sink knows nothing."""


# -- what a batch is made from: the offsets that Spark has planned for it, of every source that the query has -------
#
# Spark writes the entry of a batch into the checkpoint before it runs it. The digest is over the offsets in that entry
# and in the one before, whatever the sources are; not over the entry's first lines, which have the time of planning. An
# offset of Spark's file source is a number in a log of its own, and the start of a first batch is in none: what the
# checkpoint says of both is part of the digest.

UNKNOWN: Final = b""
"""The input of a batch whose checkpoint cannot be read from here. The number alone decides about it."""

_HEAD_LINES: Final = 2
"""An entry begins with its version, and with when and how it was planned."""

_FILE_OFFSET: Final = "logOffset"


class CheckpointFiles(Protocol):
    """The files of a query's checkpoint."""

    def read(self, name: str) -> str | None:
        """A file's text; None if it is not there."""
        ...


def input_of(checkpoint: CheckpointFiles, batch: int) -> bytes:
    """The digest of a batch's input; `UNKNOWN` if there is no such checkpoint here."""
    entry = checkpoint.read(f"offsets/{batch}")
    if entry is None:
        return UNKNOWN
    before = checkpoint.read(f"offsets/{batch - 1}") if batch else None
    ends, starts = _offsets(entry, batch), [] if before is None else _offsets(before, batch - 1)
    aside = [
        _aside(checkpoint, source, starts[source] if source < len(starts) else "", end, is_first=not batch)
        for source, end in enumerate(ends)
    ]
    text = json.dumps([starts, ends, aside])
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def _offsets(entry: str, batch: int) -> list[str]:
    """The offsets of an entry, one a source."""
    lines = entry.rstrip("\n").split("\n")
    if len(lines) <= _HEAD_LINES:
        raise Corrupt(f"the entry offsets/{batch} of the checkpoint is empty or cut short: {entry[:100]!r}")
    return lines[_HEAD_LINES:]


def _aside(checkpoint: CheckpointFiles, source: int, start: str, end: str, *, is_first: bool) -> list[str]:
    """What a source's own log says of a batch."""
    last = _file_number(end)
    if last is not None:
        first = _file_number(start)
        numbers = range(0 if first is None else first + 1, last + 1)
        return [line for number in numbers for line in _files(checkpoint, source, number)]
    begin = checkpoint.read(f"sources/{source}/0") if is_first else None
    return [] if begin is None else [begin]


def _file_number(offset: str) -> int | None:
    """The number in an offset of the file source; None if it is another's."""
    found = _object(offset)
    number = found.get(_FILE_OFFSET) if set(found) == {_FILE_OFFSET} else None
    return number if isinstance(number, int) else None


def _files(checkpoint: CheckpointFiles, source: int, number: int) -> list[str]:
    """The files of one entry of the file source's log. Every tenth entry holds those of all before it, too."""
    folder = f"sources/{source}/{number}"
    text = checkpoint.read(folder) or checkpoint.read(f"{folder}.compact") or ""
    rows = [_object(line) for line in text.split("\n")[1:]]
    return sorted(json.dumps([row.get("path"), row.get("timestamp")]) for row in rows if row.get("batchId") == number)


def _object(text: str) -> dict[str, Any]:
    """A JSON object; empty for everything else."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# -- where checkpoints are ------------------------------------------------------------------------------------------


class LocalCheckpoint:
    """A checkpoint in a folder that this process can open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> str | None:
        try:
            return (self._folder / name).read_text()
        except (FileNotFoundError, NotADirectoryError):
            return None


class JavaCheckpoint:
    """A checkpoint on any file system that Spark's Java knows."""

    def __init__(self, jvm: Any, configuration: Any, root: str) -> None:
        self._jvm = jvm
        self._configuration = configuration
        self._root = root

    def read(self, name: str) -> str | None:
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self._root}/{name}")
        files = path.getFileSystem(self._configuration)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()


def local_checkpoint(location: str) -> LocalCheckpoint | None:
    """The checkpoint at a location, as a user gives it to Spark; None if it is not in a folder of this machine."""
    parts = urlsplit(location)
    if parts.scheme == "":
        return LocalCheckpoint(Path(location))
    if parts.scheme != "file":
        return None
    plain = location.removeprefix("file:")
    plain = "/" + plain.lstrip("/")
    folder = Path(plain)
    return LocalCheckpoint(folder if folder.exists() else Path(unquote(plain)))


def running_query(session: Any, query: str) -> Any:
    """Spark's own object of a running query; None where there is none, or no Java that could be asked."""
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        return None
    identity = session.sparkContext._jvm.java.util.UUID.fromString(query)
    return java.sharedState().activeStreamingQueries().get(identity)


def checkpoint_of(session: Any, query: str) -> CheckpointFiles | None:
    """The checkpoint of a running query; None where Spark cannot tell it."""
    execution = running_query(session, query)
    if execution is None:
        return None
    root = str(execution.resolvedCheckpointRoot())
    local = local_checkpoint(root)
    if local is not None:
        return local
    return JavaCheckpoint(session.sparkContext._jvm, session._jsparkSession.sessionState().newHadoopConf(), root)
