"""Messages a second through a handler with tracker and outbox, against the same handler bare, Dramatiq and Celery.

All sides find their messages enqueued. The clock runs until every message was handled and acknowledged and all that the
handlers sent is in its queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import detent
from bench.bus import apps, job, peers
from bench.bus.suite import SUITE
from bench.consumer.copies import copy_of
from bench.harness import INFORMATIVE, Plan, Row, Side, Size, ratio_at_least
from bench.place import Place
from bench.server.peers import postgres

OURS = {"bare": apps.bare, "unit": apps.unit, "once": apps.once}

HALF = ratio_at_least(0.5, "at least half of the bare handler's rate")
NOTE = (
    "each message: a row of the business, committed, and one message sent on; 8 threads in one process, file: store, "
    "sync SQLAlchemy sessions, SQLite with WAL and synchronous=FULL"
)
BARE = f"{NOTE}; other: same bus, transport and session factory, the handler commits itself, no tracker, no outbox"


def handled(place: Place, make: apps.Made, database: str, server: str, orders: int) -> float:
    """Messages a second through one of our apps."""
    filled = place.shared(f"orders-{orders}", lambda path: apps.fill(path, orders))
    with ExitStack() as stack:
        folder = stack.enter_context(copy_of(filled, place))
        sessions = stack.enter_context(job.books(job.url_of(database, folder, server)))
        store = stack.enter_context(detent.open(f"file:{folder}"))
        bus = stack.enter_context(apps.ready(make(store, sessions)))
        started = time.perf_counter()
        bus.start()
        taken = job.until(lambda: apps.is_done(store, orders), started)
        bus.stop()
        job.check(sessions, orders)
    return orders / taken


@contextmanager
def database_url(place: Place) -> Iterator[str]:
    """A PostgreSQL of our own."""
    with place.fresh() as folder, postgres(folder) as server:
        yield f"postgresql+psycopg://bench@127.0.0.1:{server.port}/postgres"


def plan(place: Place, size: Size, database: str) -> AbstractContextManager[Plan]:
    """All sides on one database."""

    @contextmanager
    def prepared() -> Iterator[Plan]:
        orders = size.of(1_000, 200)
        with ExitStack() as stack:
            server = stack.enter_context(database_url(place)) if database == "postgres" else ""
            redis = {sync: stack.enter_context(peers.redis(place, sync)) for sync in peers.SYNCS}
            sides: dict[str, Side] = {
                name: lambda make=make: handled(place, make, database, server, orders) for name, make in OURS.items()
            }
            for peer in peers.PEERS:
                for sync, port in redis.items():
                    sides[f"{peer}-{sync}"] = lambda peer=peer, port=port: peers.rate(
                        place, peer, port, database, server, orders
                    )
            yield Plan(sides, _rows(database), warm_up=False)

    return prepared()


def _rows(database: str) -> list[Row]:
    name = job.DATABASES[database]
    rows = [
        Row(f"handlers on {name}: tracker + outbox, against the same bare", "msg/s", "once", HALF, "bare", BARE),
        Row(
            f"handlers on {name}: a unit of work alone, against the same bare",
            "msg/s",
            "unit",
            INFORMATIVE,
            "bare",
            BARE,
        ),
    ]
    for peer, about in peers.PEERS.items():
        for sync, said in peers.SYNCS.items():
            what = f"handlers on {name}: tracker + outbox, against {about.name}, Redis {said}"
            rows.append(Row(what, "msg/s", "once", INFORMATIVE, f"{peer}-{sync}", about.note))
        what = f"handlers on {name}: bare, against {about.name}, Redis {peers.SYNCS['always']}"
        rows.append(Row(what, "msg/s", "bare", INFORMATIVE, f"{peer}-always", about.note))
    return rows


@SUITE.measurement("sqlite")
def sqlite(place: Place, size: Size) -> AbstractContextManager[Plan]:
    """Eight handlers who want the one lock of SQLite."""
    return plan(place, size, "sqlite")


@SUITE.measurement("postgres")
def on_postgres(place: Place, size: Size) -> AbstractContextManager[Plan]:
    """Eight handlers, each with a connection."""
    return plan(place, size, "postgres")
