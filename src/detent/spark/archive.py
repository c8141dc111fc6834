"""Java's archive of loaded classes, which lets Spark start in two thirds of the time.

The first session of a Java and a Spark has its Java write one when it ends, after the program that used it; later
sessions use it. It is written under a name of its own and gets the final one when it is whole (`java.stand_in`). So a
killed process leaves a file that nobody uses, and of several first sessions the last one wins, with the same content.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
import uuid
from pathlib import Path
from typing import Final

from detent.spark import cache, java
from detent.spark.java import JavaRuntime

BASE_S: Final = 60.0
"""Writing the archive of Java's own classes takes a second or two, on a busy machine ten."""

STALE_S: Final = 3600.0
"""A file that is not whole after an hour was left by a process that was killed."""

UNUSED_S: Final = 90 * 86_400.0
"""Archives of Javas and Sparks that are gone are of no use to anybody, and large."""

_QUIET: Final = "-Xlog:disable"
"""Whatever an archive lacks, Java reads from the jars, and need not tell."""


def options(runtime: JavaRuntime, spark_home: Path, spark_version: str, others: str) -> list[str]:
    """The Java options that use the archive, or have it written; none where that cannot be.

    An archive serves one build of Java, one set of jars, and Java options like those it was written with: `others`.
    """
    folder = cache.folder() / "archives"
    folder.mkdir(mode=cache.PRIVATE, exist_ok=True)
    _tidy(folder, time.time())
    base = _base(runtime, folder)
    if base is None:
        return []
    jars = spark_home / "jars"
    name = "\n".join([java.build(runtime), str(jars), spark_version, str(jars.stat().st_mtime_ns), others])
    whole = folder / f"{cache.fingerprint(name)}.jsa"
    if whole.exists():
        os.utime(whole)
        return [_QUIET, f"-XX:SharedArchiveFile={':'.join([*base, str(whole)])}"]
    on_base = [f"-XX:SharedArchiveFile={base[0]}"] if base else []
    return [_QUIET, *on_base, f"-XX:ArchiveClassesAtExit={whole}.{uuid.uuid4().hex}.part"]


def _base(runtime: JavaRuntime, folder: Path) -> list[str] | None:
    """The archive of Java's own classes that ours stands on: none to be named where Java brings one along, else one
    that is written here, once. None if it cannot be."""
    if (runtime.home / "lib" / "server" / "classes.jsa").exists():
        return []
    whole = folder / f"{cache.fingerprint(java.build(runtime))}.base.jsa"
    if whole.exists():
        os.utime(whole)
        return [str(whole)]
    part = whole.with_name(f"{whole.name}.{uuid.uuid4().hex}.part")
    command = [str(runtime.home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={part}"]
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=BASE_S)
        part.replace(whole)
    except (OSError, subprocess.SubprocessError):
        return None  # Spark starts without, only later
    return [str(whole)]


def _tidy(folder: Path, now: float) -> None:
    """Remove what killed processes left, and what nobody has used for long."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another session tidies, too
            if now - path.stat().st_mtime > (UNUSED_S if path.suffix == ".jsa" else STALE_S):
                path.unlink()
