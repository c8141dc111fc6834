"""The object store of the suite: the S3 server of the tests, behind their proxy, which counts what comes.

There is one for the whole run, because Spark's Java keeps the environment that it was started with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Skipped

TESTS = Path(__file__).parents[2] / "tests"

if TYPE_CHECKING:
    from s3proxy import FaultyS3


@cache
def bucket() -> FaultyS3:
    """The proxy, which the environment of this process names from now on."""
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    try:
        import s3proxy
        import s3server
    except ImportError as error:
        raise Skipped(f"the S3 server of the tests is not here: {error}") from error
    proxy = s3proxy.FaultyS3(s3server.shared_server().endpoint)
    os.environ["AWS_ENDPOINT_URL"] = proxy.url
    return proxy


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
    before = len(s3.requests)
    yield found
    came = [(one, path) for one, path in s3.requests[before:] if method in {"", one} and part in path]
    found.requests = len(came)
    found.writes = sum(one not in {"GET", "HEAD"} or "list-type" in path for one, path in came)
