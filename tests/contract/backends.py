"""The stores that every contract is tested on, set up once for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import detent
from detent import Store
from remoteserver import HttpServer, serving

S3_MARKS = [pytest.mark.s3, pytest.mark.xdist_group("s3")]

OWNERS: dict[str, Store] = {}
"""The stores of this process through which the clients under test go, by the URL that these open."""

SERVERS: dict[str, HttpServer] = {}
"""The servers among them."""


@pytest.fixture(params=["memory", "file", "client", "http", pytest.param("s3", marks=S3_MARKS)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A URL to open. For "client" somebody else owns the store already; for "http" a server does."""
    if request.param == "memory":
        yield "memory:"
        return
    if request.param == "s3":
        pytest.importorskip("slatedb")
        import s3server

        yield s3server.s3_store_url()
        return
    found = f"file:{tmp_path / 'store'}"
    with contextlib.ExitStack() as stack:
        if request.param == "http":
            server = stack.enter_context(serving(found))
            assert server.store is not None
            found = server.url
            OWNERS[found], SERVERS[found] = server.store, server
        if request.param == "client":
            OWNERS[found] = stack.enter_context(detent.open(found))
        yield found
        OWNERS.pop(found, None)
        SERVERS.pop(found, None)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with detent.open(url) as opened:
        yield opened
