"""Stores that a Python process of Spark's has open, kept from one task to the next.

Spark reuses its Python processes; opening a store anew for each task would cost more than a small task itself.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from detent import forks
from detent.errors import Invalid, Unavailable
from detent.kv import parse_url
from detent.remote import Role, server_address
from detent.store import Store

OWNER_TIMEOUT: Final = "30s"
"""How long a task or a commit waits for an owner: long enough for one that was killed to be replaced."""

OPEN_MAX: Final = 16
"""Stores kept open by one process; beyond this all are closed, and opened again when they are used."""

_open: dict[tuple[str, Role], tuple[object, Store]] = {}
_lock = threading.Lock()


def opened(url: str, role: Role) -> Store:
    """A store, as a reader (which needs no owner) or as a client (which changes something)."""
    with _lock:
        identity = (forks.generation, os.getpid(), _place(url))
        found = _open.get((url, role))
        if found is not None:
            if found[0] == identity:
                return found[1]
            del _open[url, role]
            found[1].close()  # another store stands at this place now
        if len(_open) >= OPEN_MAX:
            close_all()
        store = _open_as(url, role)
        _open[url, role] = (identity, store)
        return store


def close_all() -> None:
    """Close what is kept open."""
    while _open:
        _open.popitem()[1][1].close()


def _place(url: str) -> object:
    """What tells a folder from one that was removed and made again."""
    if server_address(url) is not None:
        return None
    parsed = parse_url(url)
    if parsed.scheme == "memory":
        raise Invalid("a memory: store lives in one process, and Spark's work is done by many: use file:, s3: or http:")
    if parsed.scheme != "file":
        return None
    try:
        status = (parsed.directory / "data.mdb").stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _open_as(url: str, role: Role) -> Store:
    if role == "client" and server_address(url) is None and parse_url(url).scheme != "file":
        raise Invalid(
            f"{url} is changed through the process that owns it: run `detent serve {url}`, and give its address in the "
            "option server; Spark's tasks then still read and write the object store directly"
        )
    try:
        return Store(url, role=role, timeout=OWNER_TIMEOUT)
    except Unavailable as error:
        raise Unavailable(
            f"{error}. Spark's processes never own a store: open it in the driver with detent.spark.session({url!r}), "
            f"or run `detent serve {url}`"
        ) from error
