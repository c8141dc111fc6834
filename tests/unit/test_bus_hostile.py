"""Whatever comes in, an app goes on: a delivery ends handled, tried again or on the failed list, and nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import detent
from busworld import Books, Broken, Invoiced, Mailed, OrderPlaced, app, enter
from detent.bus import Bus, Context, IdempotencyConfig, Incoming, InMemoryTracker, Outcome, QueueTransport
from detent.bus import messages as wire
from detent.bus.topics import names_in, parse_filter
from detent.errors import DetentError, Invalid
from detent.transports.sqs_message import read, write

NAMES = (wire.ID, wire.TYPE, wire.TOPICS, wire.CORRELATION, wire.REPLY_TO, wire.IN_REPLY_TO, wire.CONTENT_TYPE)
VALUES = st.one_of(
    st.sampled_from(
        ["OrderPlaced", "Invoiced", "Mailed", "|OrderPlaced|", "application/json", "../../x", "", "x" * 999]
    ),
    st.text(max_size=30),
)
HEADERS = st.dictionaries(st.one_of(st.sampled_from(NAMES), st.text(max_size=10)), VALUES, max_size=8)
BODIES = st.one_of(
    st.binary(max_size=50),
    st.sampled_from(
        [b'{"number": 1}', b'{"order": 2, "cents": 3}', b'{"order": 2}', b"\x81\xa6number\x01", b"{}", b"["]
    ),
)


class Deaf:
    """A transport that notes what it is told."""

    ahead_s, place, input_name, reply_name, extend_every_s = 0.0, "deaf", "deaf", "deaf", 1.0

    def __init__(self) -> None:
        self.told: list[str] = []

    def receive(self, limit: int, wait_s: float) -> list[Incoming]:
        return []

    def acknowledge(self, delivery: Incoming) -> None:
        self.told.append("done")

    def retry(self, delivery: Incoming, delay_s: float, reason: str) -> None:
        self.told.append(reason)

    def give_up(self, delivery: Incoming, reason: str) -> None:
        self.told.append(reason)

    def send(self, envelopes: Any) -> dict[int, DetentError]:
        return {}


@pytest.fixture(scope="module")
def deaf() -> Bus:
    bus = Bus("deaf", Deaf(), idempotency=IdempotencyConfig(InMemoryTracker(), missing_ids="transport"))  # type: ignore[arg-type]

    @bus.handler
    def take(message: OrderPlaced | Invoiced | Mailed, context: Context) -> Invoiced:
        context.correlation_id, context.effect_key, context.headers  # noqa: B018
        return Invoiced(1)

    return bus


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(headers=HEADERS, body=BODIES, attempts=st.integers(1, 10))
def test_any_headers_and_bytes_come_to_an_end(deaf: Bus, headers: dict[str, str], body: bytes, attempts: int) -> None:
    transport: Any = deaf.transport
    transport.told.clear()
    outcome = deaf.handle(Incoming("t", headers, body, attempts, None))
    assert outcome in set(Outcome) - {Outcome.LEFT}
    assert len(transport.told) == 1
    assert isinstance(transport.told[0], str)


@given(st.text(max_size=200))
def test_any_text_as_names_and_filters(text: str) -> None:
    with contextlib.suppress(Invalid):
        assert all(names_in(text))
    rule = parse_filter("q", text)
    assert rule.own or not text


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=30), max_size=6), st.binary(max_size=80))
def test_what_sqs_is_given_it_gives_back(headers: dict[str, str], body: bytes) -> None:
    try:
        letter = write(headers, body)
    except DetentError:
        return
    content = read({"Body": letter.text, "MessageAttributes": letter.attributes})
    assert (content.headers, content.body) == (headers, body)


@given(
    st.one_of(st.text(max_size=60), st.just("[" * 5000)),
    st.dictionaries(st.text(max_size=8), st.fixed_dictionaries({"StringValue": st.text(max_size=40)}), max_size=4),
    st.text(max_size=60),
)
def test_any_message_of_sqs_is_read_or_refused(text: str, attributes: dict[str, Any], headers: str) -> None:
    message = {"Body": text, "MessageAttributes": {**attributes, "detent-headers": {"StringValue": headers}}}
    try:
        content = read(message)
    except DetentError:
        return
    assert isinstance(content.body, bytes)


class Odd(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot even say what it is")


ODD = [Odd(), SystemExit(3), StopIteration(1), Broken("\udcff" * 10_000), RecursionError(), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_handlers_that_raise_odd_things(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "detent.bus")  # halves of characters do not travel between test processes
    with detent.open("memory:") as store, app(store, retries=None) as bus:

        @bus.handler
        def bad(order: OrderPlaced) -> None:
            raise error

        bus.prepare()
        bus.send_local(OrderPlaced(1))
        (incoming,) = bus.transport.receive(1, 5)
        assert bus.handle(incoming) is Outcome.RETRIED


def test_ctrl_c_in_a_handler_of_the_main_thread_is_somebody_elses() -> None:
    with detent.open("memory:") as store, app(store, retries=None) as bus:

        @bus.handler
        def interrupted(order: OrderPlaced) -> None:
            raise KeyboardInterrupt

        bus.prepare()
        bus.send_local(OrderPlaced(1))
        with pytest.raises(KeyboardInterrupt):
            bus.drain()
        assert store.queue(bus.name).info().in_flight == 1  # left to its lease


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(f"sqlite:///{tmp_path / 'books.db'}")
    yield made
    made.close()


def test_a_thousand_messages_leave_nothing_behind(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "detent.bus")  # what is logged is kept by pytest, with all that it refers to
    with detent.open("memory:") as store:
        bus = Bus("tidy", QueueTransport(store), **books.options())

        @bus.handler
        def bill(order: OrderPlaced, context: Context, session: Any) -> None:
            if order.number % 10 == 0 and context.attempts == 1:
                raise Broken
            enter(session, "bill", order.number)
            context.send(Invoiced(order.number), to="tidy")

        bus.handler(Invoiced)(lambda invoice: None)
        bus.register(Mailed)

        def round_of(first: int) -> None:
            for number in range(first, first + 100):
                bus.send_local(OrderPlaced(number))
            bus.drain()

        bus.prepare()
        round_of(0)
        gc.collect()
        tracemalloc.start()
        before, threads = len(gc.get_objects()), threading.active_count()
        for first in range(100, 600, 100):
            round_of(first)
        gc.collect()
        grown = [stat for stat in tracemalloc.take_snapshot().statistics("filename") if "detent/bus" in str(stat)]
        tracemalloc.stop()
        assert sum(stat.size for stat in grown) < 100_000
        assert len(gc.get_objects()) - before < 25_000  # the store in memory keeps the marks of its queues
        assert threading.active_count() == threads
        assert books.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        assert len(books.entries()) == 600
        bus.stop()
    assert not [thread for thread in threading.enumerate() if "detent-bus" in thread.name]


def test_starting_and_stopping_again_and_again(books: Books) -> None:
    seen = threading.Semaphore(0)
    threads = threading.active_count()
    with detent.open("memory:") as store:
        inside = threading.active_count()
        bus = Bus("again-and-again", QueueTransport(store), **books.options())

        @bus.handler
        async def take(order: OrderPlaced) -> None:
            seen.release()

        for number in range(3):
            with bus:
                bus.send_local(OrderPlaced(number))
                assert seen.acquire(timeout=30)
        assert threading.active_count() == inside
    assert threading.active_count() <= threads
