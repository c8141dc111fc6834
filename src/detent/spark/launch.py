"""Starting Spark: what must be there before its Java runs: environment, settings, sockets, a launcher for Python."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib.util
import os
import re
import shlex
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import detent
from detent.kv.ownership import SOCKET_PATH_MAX
from detent.spark import cache, java, source_request
from detent.spark.settings import (
    AT_LAUNCH,
    JAVA_OPTIONS,
    LOOPBACK,
    SOCKET_FOLDER,
    SOCKETS,
    Wishes,
    helpful,
    java_options,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRIVER_PYTHON: Final = "PYSPARK_DRIVER_PYTHON"
"""Notebooks set this to a program that is not Python. Spark would look for formats with it."""


def start(wanted: Wishes) -> tuple[SparkSession, list[str]]:
    """A new session, and what was asked for that the Java of this process, which runs already, could not be told."""
    from pyspark import SparkContext

    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        home = _spark_home()
        return _launch(replace(wanted, given=_defaults(home)), home), []
    SparkContext._ensure_initialized()
    full = replace(wanted, given=_submitted())
    settings = {key: value for key, value in (helpful(full) | full.explicit()).items() if key not in AT_LAUNCH}
    with _environment(full, {}):
        spark = _create(settings)
    return spark, [key for key in wanted.explicit() if key in AT_LAUNCH]


def _launch(wanted: Wishes, home: Path) -> SparkSession:
    from pyspark.version import __version__ as version

    runtime = java.find()
    explicit = wanted.explicit()
    settings = helpful(wanted) | explicit
    own = explicit.get(JAVA_OPTIONS, "")
    options = java_options(wanted)
    if not _speaks_of_archives(own):
        options += java.archive_options(runtime, home, version, " ".join([*options, own]))
    settings[JAVA_OPTIONS] = " ".join([*map(_quoted, options), own]).strip()
    if settings[SOCKETS] == "true" and SOCKET_FOLDER not in settings:
        settings[SOCKET_FOLDER] = socket_folder()
    java_home = java.stand_in(runtime, verbose=wanted.verbose)
    with _environment(wanted, {"JAVA_HOME": str(java_home), "SPARK_HOME": str(home)}):
        return _create(settings)


def _create(settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.Builder()
    for key, value in settings.items():
        builder.config(key, value)
    return builder.getOrCreate()


def _submitted() -> dict[str, str]:
    """What spark-submit was told: the user's own settings, too."""
    from pyspark import SparkConf

    return dict(SparkConf().getAll()) if "PYSPARK_GATEWAY_PORT" in os.environ else {}


def _defaults(home: Path) -> dict[str, str]:
    """What the user's ``spark-defaults.conf`` says. Spark reads it as well, but takes ours instead, if we set any."""
    path = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    if not path.is_file():
        return {}
    return dict(re.findall(r"^[ \t]*(spark\.[^\s=:]+)[ \t]*[\s=:][ \t]*(.*?)[ \t]*$", path.read_text(), re.MULTILINE))


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


@contextlib.contextmanager
def _environment(wanted: Wishes, for_java: Mapping[str, str]) -> Iterator[None]:
    """The variables that Java, and the processes below it, are started with. They are put back once Java runs, because
    other programs that this process starts might misunderstand them."""
    changes: dict[str, str | None] = {**for_java, _DRIVER_PYTHON: None}
    # Our launcher is a file of this machine; a cluster's are taken to have Python where this one has it. What Spark
    # starts beside the driver takes the launcher there, too.
    here = str(launcher())
    if not wanted.is_local:
        changes[_DRIVER_PYTHON] = here
    changes["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or (here if wanted.is_local else sys.executable)
    if wanted.is_local:
        changes["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or LOOPBACK
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _speaks_of_archives(options: str) -> bool:
    return any(word in options for word in ("-Xshare", "SharedArchive", "ArchiveClassesAtExit", "AOT"))


def _quoted(option: str) -> str:
    """Spark splits the options as a shell would."""
    return f'"{option}"' if any(character.isspace() for character in option) else option


# -- the folder of the sockets between Spark's Java and its Python workers ------------------------------------------
#
# A process that can reach one of these sockets may run code in a worker, so only this user can enter the folder. It
# lies in the temporary directory because the kernel allows short paths only, and goes with its process; what killed
# processes left goes when the next session starts.

_PREFIX: Final = "detent-spark-sockets-"
_LOCK: Final = "lock"
_BELOW: Final = len(f"/{_PREFIX}12345678/.01234567-0123-0123-0123-0123456789ab.sock")
"""What a socket's path has beyond the temporary directory's."""


def socket_folder() -> str:
    """A new folder, held by this process for as long as it lives."""
    _remove_remains()
    made = tempfile.mkdtemp(prefix=_PREFIX, dir=_base())
    lock = os.open(Path(made) / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # never closed: the kernel lets go of it when the process ends, in whatever way
    atexit.register(_remove, made, os.getpid())
    return made


def _base() -> str:
    """The temporary directory, or one with a shorter name."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) + _BELOW <= SOCKET_PATH_MAX else "/tmp"


def _remove(made: str, process: int) -> None:
    if os.getpid() == process:  # a forked child ends before the folder's owner does
        shutil.rmtree(made, ignore_errors=True)


def _remove_remains() -> None:
    for left in Path(_base()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or just removed
            lock = os.open(left / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


# -- how Spark starts Python: through a launcher that finds compiled modules, the same ones as the driver -------------

_LAUNCHER: Final = """\
#!/bin/sh
# Spark puts its own archives first on the path, and a module from an archive is compiled again in every process.
# The same version is installed; so those go, and the user's own entries stay, in their order.
kept=
rest=$PYTHONPATH:
while [ -n "$rest" ]; do
  entry=${{rest%%:*}}
  rest=${{rest#*:}}
  case $entry in
    {home}/python/lib/*.zip | {home}/jars/*.jar | '') ;;
    *) kept=${{kept:+$kept:}}$entry ;;
  esac
done
{ours}if [ -n "$kept" ]; then export PYTHONPATH="$kept"; else unset PYTHONPATH; fi
{compiled}export PYTHONWARNINGS="{quiet}${{PYTHONWARNINGS:+,$PYTHONWARNINGS}}"
# The same programs, but there or ready for their next task sooner, and quiet when a query is stopped.
case "$1 $2" in
  "-m pyspark.daemon") shift 2; exec {python} -m detent.spark.daemon "$@" ;;
  "-m pyspark.sql.streaming.python_streaming_source_runner") shift 2; exec {python} -I -S {source} "$@" ;;
  *) exec {python} "$@" ;;
esac
"""

_OURS: Final = """\
# Where the driver has Detent from.
kept=${{kept:+$kept:}}{folder}
"""

_COMPILED: Final = """\
# Nothing compiled lies beside the modules and none may be written there, so it is kept in a folder of our own.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX={folder}
"""

_ROOT: Final = Path(detent.__file__).parent.parent

_QUIET: Final = "ignore:PySpark does not yet fully support pandas:FutureWarning"
"""Each of Spark's many processes would say so. The user's own entries come later, and win."""


def launcher() -> Path:
    """The program for PYSPARK_PYTHON (on a cluster: PYSPARK_DRIVER_PYTHON) of a Spark that is started without
    :func:`detent.spark.session`."""
    return python_command(_spark_home())


def python_command(spark_home: Path) -> Path:
    """The program for PYSPARK_PYTHON: a launcher; or this interpreter itself, where pyspark is not installed for it."""
    if not _is_found(spark_home.parent):
        return Path(sys.executable)
    folder = cache.folder()
    text = _LAUNCHER.format(
        home=shlex.quote(str(spark_home)),
        ours="" if _is_found(_ROOT) else _OURS.format(folder=shlex.quote(str(_ROOT))),
        compiled="" if _is_compiled(spark_home) else _COMPILED.format(folder=shlex.quote(str(folder / "compiled"))),
        quiet=_QUIET,
        python=shlex.quote(sys.executable),
        source=shlex.quote(str(Path(source_request.__file__))),
    )
    return cache.put(folder / "python" / f"python-{cache.fingerprint(text)}", text, mode=cache.PRIVATE)


def _is_found(root: Path) -> bool:
    """Whether every process of this interpreter finds what lies in a folder, without being told where it is."""
    packages = {*site.getsitepackages(), sysconfig.get_path("purelib"), site.getusersitepackages()}
    return str(root) in packages


def _is_compiled(spark_home: Path) -> bool:
    """Whether Python finds pyspark's modules compiled, now or after it has imported them once."""
    module = spark_home / "daemon.py"
    if Path(importlib.util.cache_from_source(str(module))).exists():
        return True
    return not sys.dont_write_bytecode and os.access(spark_home, os.W_OK)
