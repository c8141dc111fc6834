"""The object store of the suite: the S3 server of the tests, which writes down what comes.

There is one for the whole run, because Spark's Java keeps the environment that it was started with.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Skipped

TESTS = Path(__file__).parents[2] / "tests"
PUTS_AT_ONCE = 8

if TYPE_CHECKING:
    from s3server import S3Server


@cache
def bucket() -> S3Server:
    """The server, which the environment of this process names from now on."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    try:
        import s3server
    except ImportError as error:
        raise Skipped(f"the S3 server of the tests is not here: {error}") from error
    return s3server.shared_server()


class Counted:
    """How many requests came while something ran."""

    def __init__(self) -> None:
        self.requests = 0
        self.writes = 0
        """Those of them that cost twelve times as much: all but GET and HEAD, and lists."""


@contextmanager
def counted(method: str = "", part: str = "") -> Iterator[Counted]:
    """Count the requests of a block: those of a method, and with `part` in their path."""
    s3 = bucket()
    found = Counted()
    before = len(s3.requests())
    yield found
    came = [(one, path) for one, path in s3.requests(before) if method in {"", one} and part in path]
    found.requests = len(came)
    found.writes = sum(one not in {"GET", "HEAD"} or "list-type" in path for one, path in came)


def put(prefix: str, objects: Sequence[tuple[str, bytes]]) -> list[tuple[str, str, int]]:
    """Put objects below a URL; the key, etag and size of each."""
    import obstore
    from obstore.store import from_url

    root = f"s3://{prefix.split('/')[2]}"
    store, below = from_url(root), prefix.removeprefix(f"{root}/")

    def one(named: tuple[str, bytes]) -> tuple[str, str, int]:
        key = f"{below}/{named[0]}"
        etag = obstore.put(store, key, named[1], use_multipart=False)["e_tag"] or ""
        return key, etag.strip('"'), len(named[1])

    with ThreadPoolExecutor(PUTS_AT_ONCE) as threads:
        return list(threads.map(one, objects))
