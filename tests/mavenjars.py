"""Jars for tests, from Maven Central: fetched once, into a folder of the user's cache.

S3A = Jars("hadoop-aws-3.5.0", (Jar("org.apache.hadoop", "hadoop-aws", "3.5.0", alone=True), ...))
S3A.missing()      # why they cannot be had here; None if they can
S3A.folder()       # the folder that has them: `S3A.folder() / "*"` is a class path
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

FETCH_SECONDS = 280.0
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


@dataclass(frozen=True)
class Jar:
    """One jar, with those that it needs unless it is wanted `alone`."""

    group: str
    name: str
    version: str
    classifier: str = ""
    alone: bool = False

    @property
    def dependency(self) -> str:
        """How Maven is told of it."""
        classifier = f"<classifier>{self.classifier}</classifier>" if self.classifier else ""
        return (
            f"<dependency><groupId>{self.group}</groupId><artifactId>{self.name}</artifactId>"
            f"<version>{self.version}</version>{classifier}{_ALONE if self.alone else ''}</dependency>"
        )


@dataclass(frozen=True)
class Jars:
    """Jars that are kept in one folder, whose name says what they are."""

    name: str
    jars: tuple[Jar, ...]

    @property
    def _place(self) -> Path:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(cache) / "detent-tests" / self.name

    @property
    def _is_complete(self) -> bool:
        return (self._place / "complete").exists()

    def missing(self) -> str | None:
        """Why they cannot be used here; None if they can."""
        if shutil.which("java") is None:
            return f"{self.name} needs Java, which is not on the path"
        if not self._is_complete and shutil.which("mvn") is None:
            return (
                f"the jars of {self.name} are not in {self._place}, and Maven, which fetches them, is not on the path"
            )
        return None

    def folder(self) -> Path:
        """The folder with the jars; a test that asks for jars that Maven does not get is skipped."""
        return _fetched(self)

    def paths(self) -> list[str]:
        """The jars themselves."""
        return sorted(str(path) for path in self.folder().glob("*.jar"))

    def fetch(self) -> None:
        """Fetch them into a folder beside theirs, which takes its name when it is full."""
        if self._is_complete:
            return
        self._place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._place.parent) as scratch:
            made = Path(scratch) / "jars"
            (Path(scratch) / "pom.xml").write_text(self._project())
            command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={made}"]
            fetched = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
            )
            if fetched.returncode:
                pytest.skip(f"the jars of {self.name} could not be fetched: {fetched.stdout[-300:]}")
            (made / "complete").touch()
            with contextlib.suppress(OSError):  # another test process was quicker
                made.rename(self._place)

    def _project(self) -> str:
        wanted = "".join(jar.dependency for jar in self.jars)
        return (
            "<project><modelVersion>4.0.0</modelVersion><groupId>detent</groupId><artifactId>jars</artifactId>"
            f"<version>1</version><dependencies>{wanted}</dependencies></project>"
        )


@functools.cache
def _fetched(jars: Jars) -> Path:
    jars.fetch()
    return jars._place
