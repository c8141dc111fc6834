"""How Spark starts Python: through a launcher that finds compiled modules, and the same ones as the driver."""

from __future__ import annotations

import importlib.util
import os
import shlex
import site
import sys
import sysconfig
from pathlib import Path
from typing import Final

import detent
from detent.spark import cache, hatch

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
  "-m pyspark.sql.streaming.python_streaming_source_runner") shift 2; exec {python} -I -S {hatch} "$@" ;;
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


def command(spark_home: Path) -> Path:
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
        hatch=shlex.quote(str(Path(hatch.__file__))),
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
