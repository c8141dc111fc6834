"""Messages a second out of an outbox that many wait in, against sending the same without one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import detent
from bench.bus import job
from bench.bus.suite import SUITE
from bench.bus.throughput import database_url
from bench.harness import INFORMATIVE, Plan, Row, Size
from bench.place import Place
from detent.bus import Envelope, QueueTransport, SqlAlchemyUnitOfWork, SqlOutbox
from detent.bus.calling import Calling
from detent.bus.forwarder import BATCH, Forwarder

SAVED = 500
"""Messages of one transaction when the outbox is filled."""

LEASE_S = 30.0


def envelopes(count: int) -> list[Envelope]:
    headers = {"detent-type": "OrderPlaced", "content-type": "application/json"}
    body = b'{"number":1,"customer":"customer-1"}'
    return [
        Envelope(f"id-{n}", f"queue:{job.BILLING}", {**headers, "detent-id": f"id-{n}"}, body) for n in range(count)
    ]


@contextmanager
def _transport(place: Place) -> Iterator[QueueTransport]:
    with place.fresh() as folder, detent.open(f"file:{folder}") as store:
        store.queue(job.BILLING).create(max_attempts=0)
        transport = QueueTransport(store)
        transport.open(job.ORDERS)
        yield transport
        transport.close()


def forwarded(place: Place, kind: str, server: str, count: int) -> float:
    """An outbox is emptied."""
    with ExitStack() as stack:
        transport = stack.enter_context(_transport(place))
        url = job.url_of(kind, stack.enter_context(place.fresh()), server)
        units, outbox = SqlAlchemyUnitOfWork(stack.enter_context(job.books(url))), SqlOutbox()
        units.check(transport)
        waiting = envelopes(count)
        for start in range(0, count, SAVED):
            unit = units.begin()
            if not start:
                outbox.prepare(unit)
            outbox.save(unit, waiting[start : start + SAVED])
            unit.commit()
            unit.close()
        forwarder = Forwarder(job.ORDERS, outbox, units, transport, Calling(unit_is_async=False), lease_s=LEASE_S)
        started = time.perf_counter()
        sent = forwarder.forward_all()
        taken = time.perf_counter() - started
        assert sent == transport.store.queue(job.BILLING).info().available == count
    return count / taken


def directly(place: Place, count: int) -> float:
    """The same messages are sent, as many at a time."""
    with _transport(place) as transport:
        waiting = envelopes(count)
        started = time.perf_counter()
        for start in range(0, count, BATCH):
            assert not transport.send(waiting[start : start + BATCH])
        return count / (time.perf_counter() - started)


@SUITE.measurement("forwarder")
@contextmanager
def forwarding(place: Place, size: Size) -> Iterator[Plan]:
    count = size.of(10_000, 2_000)
    with database_url(place) as server:
        sides = {kind: lambda kind=kind: forwarded(place, kind, server, count) for kind in job.DATABASES}
        sides["directly"] = lambda: directly(place, count)
        note = f"{count:,} messages to one queue of a file: store; other: sent by {BATCH} without an outbox"
        rows = [
            Row(f"forwarder alone, outbox in {name}", "msg/s", kind, INFORMATIVE, "directly", note)
            for kind, name in job.DATABASES.items()
        ]
        yield Plan(sides, rows)
