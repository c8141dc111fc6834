"""What a session sets in Spark, and why. The user's own settings always win."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from detent.errors import Invalid
from detent.spark import cache

TASK_ATTEMPTS: Final = 4
"""What Spark gives a task on a cluster. A plain ``local[N]`` fails the query with the first failed task."""

POLLING_DELAY_MS: Final = 50
"""How often an idle stream looks for data. Spark's 10 ms cost a tenth of a core for each stream that waits."""

LOOPBACK: Final = "127.0.0.1"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
SOCKETS: Final = "spark.python.unix.domain.socket.enabled"
SOCKET_FOLDER: Final = "spark.python.unix.domain.socket.dir"
CHECKPOINTS: Final = "spark.sql.streaming.checkpointFileManagerClass"

AT_LAUNCH: Final = frozenset({"spark.driver.memory", JAVA_OPTIONS, SOCKETS, SOCKET_FOLDER})
"""What only a Java that is about to start can be told."""

_RENAMING_CHECKPOINTS: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_QUICK_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_MEMORY: Final = re.compile(r"\d+[kmgt]b?", re.IGNORECASE)
_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)(?:,\d+)?\])?")

_REPEATED: Final = "(?s)(Aborting task|Abort(ing|ed) commit|Data source write support|Exception in statusUpdate).*"
_LOGGING: Final = """\
# Spark's errors, and not its warnings: most of those are about Spark itself.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
# Without a level of its own, Spark would announce that it sets one.
logger.spark.name = org.apache.spark
logger.spark.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
# These repeat an error that the query raises anyway, and come without one when a query is stopped.
appender.stderr.filter.repeated.type = RegexFilter
appender.stderr.filter.repeated.regex = {repeated}
appender.stderr.filter.repeated.onMatch = DENY
appender.stderr.filter.repeated.onMismatch = NEUTRAL
""".replace("{repeated}", _REPEATED)


@dataclass(frozen=True, slots=True)
class Wishes:
    """The arguments of a session, checked."""

    app: str = "detent"
    cores: int | None = None
    memory: str | None = None
    master: str | None = None
    conf: Mapping[str, str] | None = None
    checkpoint_root: str | None = None
    quick: bool = False
    verbose: bool = False
    given: Mapping[str, str] | None = None
    """What the user told Spark by other ways. The arguments go over it; what we set by ourselves does not."""

    @property
    def is_local(self) -> bool:
        """Whether Spark runs in this machine's one Java."""
        return self.local_cores is not None

    @property
    def local_cores(self) -> int | None:
        """How many tasks run at once in this machine's one Java; None on a cluster."""
        master = _LOCAL.fullmatch(self.explicit().get("spark.master", "local[*]"))
        if master is None:
            return None
        return _processors() if master[1] == "*" else int(master[1] or 1)

    def explicit(self) -> dict[str, str]:
        """What the user asked for by name, as Spark's settings."""
        found = {
            "spark.master": self.master or (self.cores and f"local[{self.cores},{TASK_ATTEMPTS}]"),
            "spark.driver.memory": self.memory,
            "spark.sql.streaming.checkpointLocation": self.checkpoint_root,
        }
        arguments = {key: str(value) for key, value in found.items() if value}
        return {**(self.given or {}), **arguments, **(self.conf or {})}


def wishes(
    app: str,
    cores: int | None,
    memory: str | None,
    master: str | None,
    conf: Mapping[str, object] | None,
    checkpoint_root: str | os.PathLike[str] | None,
    quick: bool,
    verbose: bool,
) -> Wishes:
    """Check the arguments of a session, before anything is started."""
    if not isinstance(app, str) or not app:
        raise Invalid(f"app is the name that Spark shows for this program, and not {app!r}")
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int) or cores < 1):
        raise Invalid(f"cores is how many tasks run at once, 1 or more, and not {cores!r}")
    if memory is not None and not (isinstance(memory, str) and _MEMORY.fullmatch(memory)):
        raise Invalid(f"memory is written like '2g' or '512m', and not {memory!r}")
    if master is not None and cores is not None:
        raise Invalid(f"give cores or master, not both: a master says its cores itself, as in 'local[{cores},4]'")
    conf = {} if conf is None else conf
    if not isinstance(conf, Mapping) or any(not isinstance(key, str) or not key for key in conf):
        raise Invalid("conf is a mapping of Spark's settings by name, such as {'spark.ui.enabled': 'true'}")
    root = None if checkpoint_root is None else _root(os.fspath(checkpoint_root))
    own = {key: _text(value) for key, value in conf.items()}
    return Wishes(app, cores, memory, master, own, root, quick, verbose)


def helpful(wanted: Wishes) -> dict[str, str]:
    """What a session sets by itself; the caller's explicit settings go over it."""
    found = {
        "spark.app.name": wanted.app,
        "spark.api.mode": "classic",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.pollingDelay": f"{POLLING_DELAY_MS}ms",
        # Workers are reached through sockets in a private folder: half the time of a round trip, and no open port. The
        # machines of a cluster do not have that folder.
        SOCKETS: "true" if wanted.is_local else "false",
        PUSHDOWN: "true",
    }
    cores = wanted.local_cores
    if cores is not None:
        found["spark.master"] = f"local[{cores},{TASK_ATTEMPTS}]"
        found["spark.sql.shuffle.partitions"] = str(cores)
        found["spark.driver.bindAddress"] = found["spark.driver.host"] = LOOPBACK
        # Spark's own ports are open to every user of this machine otherwise, and take objects from any that connects.
        found["spark.authenticate"] = "true"
    if _checkpoints_are_files(wanted):
        # Each log entry in a third of the time. It relies on a file system's renaming, so it is for file systems only.
        found[CHECKPOINTS] = _RENAMING_CHECKPOINTS
    return found


def java_options(wanted: Wishes) -> list[str]:
    """The helper's own Java options. The user's are put after them, and so win."""
    own = wanted.explicit().get(JAVA_OPTIONS, "")
    found = []
    if not wanted.verbose and "log4j" not in own:
        path = cache.put(cache.folder() / f"log4j2-{cache.fingerprint(_LOGGING)}.properties", _LOGGING)
        found.append(f"-Dlog4j2.configurationFile={path.as_uri()}")
    if wanted.quick:
        # Two collectors at once are refused by Java.
        found += [option for option in _QUICK_JAVA if not (_COLLECTOR.match(option) and _COLLECTOR.search(own))]
    return found


def _processors() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _checkpoints_are_files(wanted: Wishes) -> bool:
    """Whether checkpoints lie on this machine's disk, as far as it can be told before there are any."""
    explicit = wanted.explicit()
    root = urlsplit(explicit.get("spark.sql.streaming.checkpointLocation", "")).scheme
    if root:
        return root == "file"
    elsewhere = urlsplit(explicit.get("spark.hadoop.fs.defaultFS", "file:/")).scheme != "file"
    return wanted.is_local and not elsewhere and not os.environ.get("HADOOP_CONF_DIR")


def _root(path: str) -> str:
    """A checkpoint folder as Spark takes it; a local path made absolute, so that it stays where it is."""
    if not path:
        raise Invalid("checkpoint_root is a folder for the checkpoints of streams, and not empty")
    return path if urlsplit(path).scheme else Path(path).absolute().as_uri()


def _text(value: object) -> str:
    """A setting as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
