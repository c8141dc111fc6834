"""The folder for what a Spark session prepares once and uses again: launchers, shared archives, compiled modules.

It is the user's own: what lies in it is run as programs, so no other user may write there. Everything in it can be
deleted at any time, and is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
import uuid
from pathlib import Path
from typing import Final

from detent.errors import Unavailable

PRIVATE: Final = 0o700
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


def folder() -> Path:
    """The cache folder: ``$XDG_CACHE_HOME/detent/spark`` or ``~/.cache/detent/spark``. Where there is no home to
    write to, as in many containers, one in the temporary directory."""
    tried = []
    for candidate in _candidates():
        try:
            candidate.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        except OSError as error:
            tried.append(f"{candidate}: {error.strerror}")
            continue
        refusal = _refusal(candidate)
        if refusal is None:
            return candidate
        tried.append(f"{candidate}: {refusal}")
    raise Unavailable(
        f"there is no folder for Spark's launchers ({'; '.join(tried)}): set XDG_CACHE_HOME to a folder of your own"
    )


def _candidates() -> list[Path]:
    base = os.environ.get("XDG_CACHE_HOME", "")
    found = [Path(base) / "detent" / "spark"] if os.path.isabs(base) else []
    with contextlib.suppress(RuntimeError):  # a user without a home
        found.append(Path.home() / ".cache" / "detent" / "spark")
    return [*found, Path(tempfile.gettempdir()) / f"detent-spark-{os.getuid()}"]


def _refusal(candidate: Path) -> str | None:
    """Why a folder cannot be trusted or used, if so."""
    seen = candidate.stat(follow_symlinks=False)
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
        return "it belongs to another user"
    if seen.st_mode & _OTHERS_MAY_WRITE:
        return "others may write to it"
    if not os.access(candidate, os.W_OK | os.X_OK):
        return "it cannot be written to"
    return None


def put(path: Path, text: str, mode: int = 0o600) -> Path:
    """Write a small file whole: a reader sees the old or the new one, however many processes write at once."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text and stat.S_IMODE(path.stat().st_mode) == mode:
            return path
    path.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def fingerprint(text: str) -> str:
    """A short name for something that is made from this text alone."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
