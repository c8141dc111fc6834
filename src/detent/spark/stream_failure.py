"""Why a stream failed: in one line, and whether trying again can help; and what to do about it."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from detent.errors import BY_NAME, Busy, DetentError, NotFound, SessionExpired, Unavailable
from detent.spark.advice import completed, release_command, reset_command
from detent.spark.pipeline_stream import QueueEnd, Stream
from detent.spark.store_place import is_local
from detent.store import Store

REASON_MAX: Final = 1_000
"""Spark's messages bring plans and traces along; the first lines are what people read."""

_OURS: Final = re.compile(r"^detent\.errors\.(\w+): (.+)$", re.MULTILINE)
_PYTHON: Final = re.compile(r"^(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (.+)$", re.MULTILINE)
_JAVA: Final = re.compile(r"^: (?:[a-z_]\w*\.)*([A-Z]\w*): (.+)$", re.MULTILINE)
_END: Final = "\n=== Streaming Query ==="
_STATE: Final = re.compile(r"\s+SQLSTATE: \w+")

PASSING: Final[tuple[type[DetentError], ...]] = (Unavailable, Busy, SessionExpired)
"""What goes away by itself. A session that expired is replaced at the next start; the ledger knows what was done."""

_SETTLED: Final = ("AnalysisException", "ParseException", "IllegalArgumentException")
"""What Spark says of a query that is wrong in itself."""


class StreamFailure(NamedTuple):
    """Why a stream failed. `is_ours` are Detent's own errors, which say what to do."""

    reason: str
    is_final: bool
    is_ours: bool = False


def failure_of(error: BaseException, *, starting: bool) -> StreamFailure:
    """What an error means. One that came while the query was being made will come again; one that came while it ran
    may be a machine's, unless it is one of Detent's own that says otherwise."""
    if isinstance(error, DetentError):
        return StreamFailure(f"{type(error).__name__}: {error}", not isinstance(error, PASSING), True)
    text = str(error).split(_END, 1)[0]
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        kind = BY_NAME.get(name, DetentError)
        return StreamFailure(_line(f"{name}: {message}"), not issubclass(kind, PASSING), True)
    is_final = type(error).__name__ in _SETTLED or (starting and not type(error).__name__.startswith("Py4J"))
    python = _PYTHON.findall(text)
    if python:
        name, message = python[-1]
        return StreamFailure(_line(f"{name}: {message}"), is_final)
    java = _JAVA.search(text)
    if java is not None:
        return StreamFailure(_line(f"{java[1]}: {java[2]}"), is_final)
    return StreamFailure(
        _line(f"{type(error).__name__}: {text.strip().splitlines()[0] if text.strip() else ''}"), is_final
    )


def is_connection(error: BaseException) -> bool:
    """Whether the connection to Java broke, which is all that is seen of its end."""
    return isinstance(error, ConnectionError | EOFError) or type(error).__name__ in {"Py4JNetworkError", "Py4JError"}


def _line(text: str) -> str:
    """One line of bounded length."""
    text = _STATE.sub("", " ".join(text.split())).rstrip(" ;")
    return text if len(text) <= REASON_MAX else text[: REASON_MAX - 1] + "…"


# -- what to do about it, with commands that work as they are printed -------------------------------------------------

_TWO_DRIVERS: Final = re.compile(
    r"CONCURRENT_STREAM_LOG_UPDATE|CONCURRENT_QUERY|Multiple streaming queries are concurrently using"
    r"|FileAlreadyExistsException|[Aa]nother (?:run of this |)query with (?:the )?same id"
)
_ADVICE: Final = re.compile(r"`detent (?:queue release|ledger reset) ")


class Advisor:
    """Explains the failures of a pipeline's streams."""

    def __init__(self, store: Store, url: str, checkpoints: str) -> None:
        self._store = store
        self._url = url
        self._checkpoints = checkpoints

    def explained(self, stream: Stream, error: BaseException, failure: StreamFailure) -> StreamFailure:
        """A failure in words that say what to do, where there is something."""
        checkpoint = f"{self._checkpoints}/{stream.full_name}"
        said = str(error)
        if not failure.is_ours and _TWO_DRIVERS.search(said):
            return StreamFailure(
                f"another driver runs this stream, with the checkpoint {checkpoint}: leave one of the two running. "
                "What both have read has taken effect once",
                True,
            )
        broken = "" if failure.is_ours else damage(checkpoint, said)
        if broken:
            return StreamFailure(
                f"the checkpoint of this stream is damaged: {broken}. Put back a copy of {checkpoint} that was made "
                f"while the pipeline was stopped; or start over. {self.start_over(stream)}",
                True,
            )
        reason = completed(failure.reason, self._url)
        if _ADVICE.search(reason):
            reason = f"{reason}. {self.start_over(stream)}"
        return failure._replace(reason=reason)

    def start_over(self, stream: Stream) -> str:
        """How a stream begins anew. It reads again what is there, and writes it again."""
        checkpoint = f"{self._checkpoints}/{stream.full_name}"
        commands = []
        for source in stream.sources:
            if isinstance(source, QueueEnd) and self._has_reader(source.name, stream.full_name):
                commands.append(release_command(self._url, source.name, stream.full_name))
        if self._has_ledger(stream.full_name):
            commands.append(reset_command(self._url, stream.full_name))
        words = f"move the folder {checkpoint} away"
        if is_local(self._checkpoints):
            path = checkpoint.removeprefix("file:")
            commands.append(shlex.join(("mv", path, path + ".old")))
            words = ""
        listed = ", ".join([*(f"`{command}`" for command in commands), *([words] if words else [])])
        return f"To start over, which writes again what is read again: {listed}"

    def _has_reader(self, queue: str, reader: str) -> bool:
        return any(one.name == reader for one in self._store.queue(queue).readers())

    def _has_ledger(self, name: str) -> bool:
        try:
            self._store.ledger(name)
        except NotFound:
            return False
        return True


# -- whether a checkpoint can be read: what Spark says of one that cannot is about its parser, not the file -----------

_NAMED: Final = re.compile(r"(?:Failed to read log file|Checksum error:) (\S+?)\.?(?:\s|$)")
_NO_METADATA: Final = "STREAMING_CHECKPOINT_MISSING_METADATA_FILE"
_NO_BATCH: Final = re.compile(r"batch (\d+) doesn't exist")
_VERSION: Final = re.compile(r"v\d+")
_LOGS: Final = ("offsets", "commits")


def damage(folder: str, said: str) -> str:
    """What is wrong with a checkpoint, as far as Spark's words name it or a look finds it; empty if nothing is."""
    named = _NAMED.search(said)
    if named is not None:
        return f"{named[1].removeprefix('file:')} cannot be read"
    if _NO_METADATA in said:
        return f"{folder}/metadata is missing"
    missing = _NO_BATCH.search(said)
    if missing is not None:
        return f"{folder}/offsets/{missing[1]} is missing"
    parts = urlsplit(folder)
    if parts.scheme not in {"", "file"}:
        return ""
    return _look(Path(unquote(parts.path) if parts.scheme else folder))


def _look(folder: Path) -> str:
    if not folder.is_dir():
        return ""
    if _metadata_is_broken(folder / "metadata"):
        return f"{folder}/metadata is not what Spark writes"
    newest: dict[str, int] = {}
    for log in _LOGS:
        if (folder / log).exists() and not (folder / log).is_dir():
            return f"{folder}/{log} is not a folder"
        numbers = sorted(int(path.name) for path in (folder / log).glob("*") if path.name.isdigit())
        if numbers:
            newest[log] = numbers[-1]
            if not _is_entry(folder / log / str(numbers[-1])):
                return f"{folder}/{log}/{numbers[-1]} is not what Spark writes"
    committed = newest.get("commits", -1)
    return f"{folder}/offsets/{committed} is missing" if committed > newest.get("offsets", -1) else ""


def _metadata_is_broken(path: Path) -> bool:
    if not path.exists():
        return False
    found = _json(path.read_bytes())
    return not isinstance(found, dict) or "id" not in found


def _is_entry(path: Path) -> bool:
    """Whether a file is an entry of a log: a version, then a line of JSON, or none of a source, for each part."""
    version, *lines = path.read_text(errors="replace").splitlines() or [""]
    return bool(_VERSION.fullmatch(version)) and bool(lines) and all(_is_part(line) for line in lines)


def _is_part(line: str) -> bool:
    return line == "-" or _json(line.encode()) is not None


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


# -- whether Spark's Java still runs, and how it ended ----------------------------------------------------------------

END_S: Final = 5.0
"""How long a Java that hung up may take to be gone."""


class JavaWatch:
    """Watches the Java of this process, if the process has started it."""

    def __init__(self, process: Any = None) -> None:
        self._process: subprocess.Popen[bytes] | None = process

    @classmethod
    def of_spark(cls) -> JavaWatch:
        """The Java of the session that runs."""
        from pyspark import SparkContext

        return cls(getattr(SparkContext._gateway, "proc", None))

    def ended(self, wait_s: float = 0.0) -> str:
        """How it ended; empty while it runs."""
        if self._process is None:
            return ""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return ""
        return f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"

    def check(self) -> None:
        """`Unavailable`, with what to do, if it has ended. Called after an error of the connection to it."""
        how = self.ended(END_S)
        if how and self._process is not None:
            raise Unavailable(
                f"Spark's Java (process {self._process.pid}) {how}, and all streams with it. Start the pipeline again: "
                "each goes on where it was, and nothing takes effect twice. If memory ran out (`dmesg` names processes "
                "that were killed for it), give Java more with --memory 4g, or run fewer tasks at once with --cores 1; "
                "--verbose shows Java's own log"
            )


def _signal(number: int) -> str:
    try:
        return f"the signal {signal.Signals(number).name}"
    except ValueError:
        return f"the signal {number}"
