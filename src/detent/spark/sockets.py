"""The folder of the sockets between Spark's Java and its Python workers.

Whoever can reach one of these sockets may run code in a worker, so nobody else can enter the folder. It lies in the
temporary directory because the kernel allows short paths only, and goes with its process; what killed processes left
goes when the next session starts.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from detent.kv.ownership import SOCKET_PATH_MAX

_PREFIX: Final = "detent-spark-sockets-"
_LOCK: Final = "lock"
_BELOW: Final = len(f"/{_PREFIX}12345678/.01234567-0123-0123-0123-0123456789ab.sock")
"""What a socket's path has beyond the temporary directory's."""


def folder() -> str:
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
        with contextlib.suppress(OSError):  # somebody else's, or just removed
            lock = os.open(left / _LOCK, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)
