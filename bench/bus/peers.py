"""Dramatiq and Celery over Redis, each in a process of its own that is started for one round."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench.bus import job
from bench.place import ROOT, Place
from bench.server.peers import redis as redis_server

SYNCS = {"always": "appendfsync always", "everysec": "appendfsync everysec"}
"""How Redis keeps what it was told: before it answers, as our store does, or within a second."""


class Peer(NamedTuple):
    """Which program it is, and how it runs."""

    name: str
    note: str


_THREADS = f"one process, {job.CONCURRENCY} threads, acknowledges when the handler has returned"
PEERS = {
    "dramatiq": Peer("Dramatiq", f"Redis broker; {_THREADS}, prefetch as it comes; neither tracker nor outbox"),
    "celery": Peer("Celery", f"Redis broker; {_THREADS} (acks_late), prefetch 1 a thread; neither tracker nor outbox"),
}


@contextmanager
def redis(place: Place, sync: str) -> Iterator[int]:
    """A Redis of our own with an append-only file; its port."""
    with place.fresh() as folder, redis_server(folder, sync) as server:
        yield server.port


def rate(place: Place, peer: str, port: int, database: str, server: str, orders: int) -> float:
    """Messages a second through a peer."""
    with place.fresh() as folder:
        url = job.url_of(database, folder, server)
        command = [sys.executable, "-m", f"bench.bus.{peer}_peer", str(port), url, str(orders)]
        done = subprocess.run(
            command, cwd=ROOT.parent, capture_output=True, text=True, timeout=job.PATIENCE_S + 30, check=False
        )
    assert done.returncode == 0, f"{peer} failed: {done.stderr[-2000:]}"
    return orders / float(done.stdout.split()[-1])
