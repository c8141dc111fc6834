"""Starting Spark: the environment and the settings that must be there before its Java runs."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from detent.spark import archive, java, python, sockets
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
"""Notebooks set this to a program that is no Python. Spark would look for formats with it."""


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
        options += archive.options(runtime, home, version, " ".join([*options, own]))
    settings[JAVA_OPTIONS] = " ".join([*map(_quoted, options), own]).strip()
    if settings[SOCKETS] == "true" and SOCKET_FOLDER not in settings:
        settings[SOCKET_FOLDER] = sockets.folder()
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
    # Our launcher is a file of this machine; a cluster's are taken to have Python where this one has it.
    launcher = str(python.command(_spark_home())) if wanted.is_local else sys.executable
    changes["PYSPARK_PYTHON"] = os.environ.get("PYSPARK_PYTHON") or launcher
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
