"""Hazards of handlers, each by its name: what other buses lose, repeat or leak, this one does not."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

import detent
from busworld import AT_ONCE, Books, Broken, Invoiced, OrderPlaced, app, enter, failed_reasons
from detent.bus import (
    IDEMPOTENCY_CHECK_KEY,
    Bus,
    Context,
    IdempotencyConfig,
    InMemoryTracker,
    Middleware,
    Outcome,
    QueueTransport,
    Retries,
    SqlAlchemyUnitOfWork,
    SqlOutbox,
    SqlTracker,
)
from detent.bus.forwarder import Forwarder
from detent.bus.housekeeping import Sweep
from detent.bus.messages import Envelope
from detent.errors import Invalid, Unavailable
from processes import eventually


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as opened:
        yield opened


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(f"sqlite:///{tmp_path / 'books.db'}")
    yield made
    made.close()


def twice(bus: Bus, message: object) -> Callable[[], list[Outcome]]:
    """Send the same message twice, as two that the queue cannot know to be one."""
    bus.drain()
    queue = bus.transport.store.queue(bus.name)  # type: ignore[attr-defined]
    bus.send_local(message, id="m-1")
    (first,) = queue.claim(1)
    first.fail("again", delay="0s")
    queue.publish(first.body, headers={name: text for name, text in first.headers.items() if name != "queue"})
    return bus.drain


def test_M1_a_first_delivery_is_not_taken_for_a_repeated_one(books: Books) -> None:
    seen: list[tuple[bool, str | None]] = []
    config = IdempotencyConfig(SqlTracker(), should_stop_invocation=False)
    with app(**books.options(idempotency=config)) as bus:

        @bus.handler
        def bill(order: OrderPlaced, context: Context, session: Session) -> None:
            seen.append((context.repeated, context.headers.get(IDEMPOTENCY_CHECK_KEY)))
            if not context.headers.get(IDEMPOTENCY_CHECK_KEY):
                enter(session, "bill", order.number)

        assert twice(bus, OrderPlaced(1))() == [Outcome.HANDLED] * 2
        bus.send_local(OrderPlaced(2), headers={IDEMPOTENCY_CHECK_KEY: "true"})  # which is not the sender's to say
        bus.drain()
    assert seen == [(False, None), (True, "true"), (False, None)]
    assert books.entries() == [("bill", 1), ("bill", 2)]


@pytest.mark.parametrize("tracker", ["memory", "sql"])
def test_M2_a_handler_that_fails_first_is_run_again(books: Books, tracker: str, store: detent.Store) -> None:
    options = books.options() if tracker == "sql" else {"idempotency": IdempotencyConfig(InMemoryTracker())}
    calls = []
    with app(store, **options) as bus:

        @bus.handler
        def bill(order: OrderPlaced, context: Context) -> None:
            calls.append(context.attempts)
            if len(calls) < 3:
                raise Broken

        bus.drain()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.RETRIED, Outcome.RETRIED, Outcome.HANDLED]
    assert calls == [1, 2, 3]


def test_M3_a_tracker_that_fails_says_nothing_about_duplicates(store: detent.Store, books: Books) -> None:
    class Down(SqlTracker):
        def track(self, *values: Any) -> Any:
            raise sqlalchemy.exc.OperationalError("INSERT", {}, Exception("deadlock detected"))

    called: list[object] = []
    with app(store, **books.options(idempotency=IdempotencyConfig(Down()))) as bus:
        bus.handler(OrderPlaced)(called.append)
        bus.drain()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.RETRIED] * 4 + [Outcome.GIVEN_UP]
        assert "deadlock detected" in failed_reasons(store, bus.name)[0]
    assert called == []


def test_M3_a_table_that_is_gone_is_a_failure_too(store: detent.Store, books: Books) -> None:
    with app(store, **books.options()) as bus:
        bus.handler(OrderPlaced)(lambda order: None)
        bus.drain()
        with books.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE detent_handled")
        bus.send_local(OrderPlaced(1))
        assert bus.drain()[-1] is Outcome.GIVEN_UP
        assert "detent_handled" in failed_reasons(store, bus.name)[0]


def test_M4_what_was_forwarded_is_not_forwarded_again(store: detent.Store, books: Books) -> None:
    sent: list[str] = []

    class Counting(QueueTransport):
        def send(self, envelopes: Any) -> Any:
            sent.extend(envelope.id for envelope in envelopes)
            return super().send(envelopes)

    seen = []
    bus = Bus("m4", Counting(store), retries=AT_ONCE, **books.options())
    bus.handler(OrderPlaced)(lambda order: [bus.send_local(Invoiced(order.number, at)) for at in range(300)])
    bus.handler(Invoiced)(lambda invoice: seen.append(invoice.cents))
    bus.drain()
    bus.send_local(OrderPlaced(1))
    sent.clear()
    bus.drain()
    bus.drain()
    bus.stop()
    assert seen == list(range(300))
    assert len(sent) == len(set(sent)) == 300
    assert books.count("detent_outbox") == 0


def test_M5_a_send_that_fails_outside_of_a_handler_is_raised(store: detent.Store) -> None:
    class Down(QueueTransport):
        def send(self, envelopes: Any) -> Any:
            raise Unavailable("nobody answers")

    bus = Bus("m5", Down(store), send_only=True)
    with pytest.raises(Unavailable):
        bus.send(OrderPlaced(1), to="m5")
    bus.stop()


def test_M6_a_commit_that_fails_is_a_failed_attempt(store: detent.Store, books: Books) -> None:
    calls, rolled_back = [], []

    class Unit:
        def __init__(self, inner: Any) -> None:
            self._inner = inner
            self.provides, self.sql = inner.provides, inner.sql

        def commit(self) -> None:
            if calls:
                raise Broken("disk full")
            self._inner.commit()

        def rollback(self) -> None:
            rolled_back.append(1)
            self._inner.rollback()

        def close(self) -> None:
            self._inner.close()

    class Failing(SqlAlchemyUnitOfWork):
        def begin(self) -> Any:
            return Unit(super().begin())

    with app(store, retries=Retries(2, ()), **books.options(unit_of_work=Failing(books.sessions), outbox=None)) as bus:

        @bus.handler
        def bill(order: OrderPlaced, session: Session) -> None:
            calls.append(order.number)
            enter(session, "bill", order.number)

        bus.drain()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.RETRIED, Outcome.RETRIED, Outcome.GIVEN_UP]
        assert failed_reasons(store, bus.name) == ["Broken: disk full"]
    assert calls == [1, 1, 1]
    assert len(rolled_back) == 3
    assert books.entries() == []


@pytest.mark.parametrize("policy", ["refuse", "transport", lambda headers, body: f"hash-{hash(body)}"])
def test_M7_messages_without_an_id_are_not_one_message(store: detent.Store, books: Books, policy: Any) -> None:
    seen: list[int] = []
    config = IdempotencyConfig(SqlTracker(), missing_ids=policy)
    with app(store, **books.options(idempotency=config)) as bus:
        bus.handler(OrderPlaced)(lambda order: seen.append(order.number))
        bus.drain()
        for number in range(3):
            body = b'{"number": %d}' % number
            store.queue(bus.name).publish(body, headers={"detent-type": "OrderPlaced"})
        outcomes = bus.drain()
        if policy == "refuse":
            assert outcomes == [Outcome.GIVEN_UP] * 3
            assert all("it has no id" in reason for reason in failed_reasons(store, bus.name))
        else:
            assert outcomes == [Outcome.HANDLED] * 3
            assert seen == [0, 1, 2]


def test_M8_nothing_but_a_name_and_a_store_is_needed_and_headers_are_not_in_the_body(store: detent.Store) -> None:
    with app(store) as bus:
        bus.handler(OrderPlaced)(lambda order: None)
        bus.drain()
        bus.send_local(OrderPlaced(1), headers={"tenant": "acme"})
        (raw,) = store.queue(bus.name).claim(1)
    assert raw.json() == {"number": 1, "items": []}
    assert raw.headers["tenant"] == "acme"
    assert raw.headers["content-type"] == "application/json"


def test_M9_a_restart_forgets_nothing(store: detent.Store, books: Books) -> None:
    def started_anew(send: bool) -> list[Outcome]:
        bus = Bus("m9", QueueTransport(store), retries=AT_ONCE, **books.options())
        bus.handler(OrderPlaced)(lambda order, session: enter(session, "bill", order.number))
        try:
            deliver = twice(bus, OrderPlaced(1)) if send else bus.drain
            return deliver()
        finally:
            bus.stop()

    assert started_anew(send=True) == [Outcome.HANDLED, Outcome.REPEATED]
    headers = {"detent-type": "OrderPlaced", "detent-id": "m-1"}
    store.queue("m9").publish(b'{"number": 1}', headers=headers)
    assert started_anew(send=False) == [Outcome.REPEATED]
    assert books.entries() == [("bill", 1)]


def test_M10_stopping_skips_everything_after_the_check(store: detent.Store, books: Books) -> None:
    seen: list[str] = []

    class Watch(Middleware):
        def before_handle(self, context: Context) -> None:
            seen.append("before")

        def after_handle(self, context: Context) -> None:
            seen.append("after")

        def after_commit(self, context: Context) -> None:
            seen.append("commit")

        def on_repeated(self, context: Context) -> None:
            seen.append("repeated")

    class Watched(SqlOutbox):
        def save(self, *values: Any) -> Any:
            seen.append("save")
            return super().save(*values)

    commits = []
    with app(store, middlewares=[Watch()], **books.options(outbox=Watched())) as bus:
        bus.handler(OrderPlaced)(lambda order: bus.send(Invoiced(1), to=bus.name))
        bus.handler(Invoiced)(lambda invoice: seen.append("invoice"))
        deliver = twice(bus, OrderPlaced(1))
        sqlalchemy.event.listen(books.engine, "commit", lambda _: commits.append(1))
        assert deliver() == [Outcome.HANDLED, Outcome.REPEATED, Outcome.HANDLED]
    assert seen == ["before", "after", "save", "commit", "repeated", "before", "invoice", "after", "commit"]
    assert books.count("detent_handled") == 2


def test_M11_two_consumers_share_a_tracker_and_both_get_the_event(store: detent.Store, books: Books) -> None:
    seen = []
    with app(store, **books.options()) as one, app(store, **books.options()) as two:
        for bus in (one, two):
            bus.handler(OrderPlaced)(lambda order, context: seen.append(context.bus.name))
            bus.drain()
        one.publish(OrderPlaced(1))
        assert one.drain() + two.drain() == [Outcome.HANDLED] * 2
        assert sorted(seen) == sorted([one.name, two.name])


def test_M12_failures_of_the_past_do_not_count_later(store: detent.Store, books: Books) -> None:
    failing = True
    with app(store, retries=Retries(1, ()), **books.options()) as bus:

        @bus.handler
        def bill(order: OrderPlaced, context: Context) -> None:
            if failing:
                raise Broken
            assert context.attempts == 1

        bus.drain()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.RETRIED, Outcome.GIVEN_UP]
        failing = False
        assert store.queue(bus.name).redrive() == 1
        assert bus.drain() == [Outcome.HANDLED]
        assert store.queue(bus.name).info().failed == 0


def test_M13_handlers_that_a_plug_in_declares_are_subscribed(store: detent.Store) -> None:
    seen = []

    def plug_in(bus: Bus) -> None:
        bus.handler(OrderPlaced)(seen.append)

    with app(store) as bus, app(store, send_only=True) as shop:
        plug_in(bus)
        bus.drain()
        shop.publish(OrderPlaced(1))
        bus.drain()
    assert seen == [OrderPlaced(1)]


def test_M14_forwarding_is_tried_again_and_every_unit_is_closed(store: detent.Store, books: Books) -> None:
    tries, open_units = itertools.count(1), [0]

    class Flaky(QueueTransport):
        def send(self, envelopes: Any) -> Any:
            if envelopes[0].headers["detent-type"] == "Invoiced" and next(tries) <= 3:
                raise Unavailable("nobody answers")
            return super().send(envelopes)

    class Counted(SqlAlchemyUnitOfWork):
        def begin(self) -> Any:
            unit = super().begin()
            open_units[0] += 1
            close = unit.close

            def closing() -> Any:
                open_units[0] -= 1
                return close()

            unit.close = closing  # type: ignore[method-assign]
            return unit

    seen = threading.Event()
    bus = Bus("m14", Flaky(store), **books.options(unit_of_work=Counted(books.sessions)))
    bus.handler(OrderPlaced)(lambda order: bus.send_local(Invoiced(order.number)))
    bus.handler(Invoiced)(lambda invoice: seen.set())
    with bus:
        bus.send_local(OrderPlaced(1))
        assert seen.wait(30)
    assert next(tries) > 4
    assert open_units == [0]
    assert books.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_M15_sends_outside_of_handlers_go_with_the_callers_transaction(store: detent.Store, books: Books) -> None:
    seen: list[int] = []
    with app(store, **books.options()) as bus:
        bus.handler(OrderPlaced)(lambda order: seen.append(order.number))
        bus.drain()
        with pytest.raises(Broken), books.sessions() as session, bus.transaction(session):
            enter(session, "view", 1)
            bus.send_local(OrderPlaced(1))
            raise Broken
        assert bus.drain() == []
        with books.sessions() as session, bus.transaction(session) as sending:
            enter(session, "view", 2)
            sending.send(OrderPlaced(2), to=bus.name)
            assert store.queue(bus.name).info().available == 0
        with books.sessions.begin() as session, bus.transaction(session, commit=False):
            bus.publish(OrderPlaced(3))
        assert bus.drain() == [Outcome.HANDLED] * 2
    assert seen == [2, 3]
    assert books.entries() == [("view", 2)]


@pytest.mark.parametrize("first_commits", [True, False])
def test_M16_of_two_at_once_the_second_one_waits_for_the_first(first_commits: bool) -> None:
    """With the tracker in memory; those in SQL have the same test in their suite."""
    tracker = InMemoryTracker()
    assert tracker.track("billing", "../../m", None) is True
    answers: list[bool] = []
    second = threading.Thread(target=lambda: answers.append(tracker.track("billing", "../../m", None)))
    second.start()
    second.join(0.05)
    assert answers == []
    (tracker.committed if first_commits else tracker.rolled_back)("billing", "../../m")
    second.join(10)
    assert answers == [not first_commits]


def test_M17_a_message_in_flight_is_still_in_the_queue(store: detent.Store, books: Books) -> None:
    with app(store, **books.options()) as bus:

        @bus.handler
        def bill(order: OrderPlaced) -> None:
            assert store.queue(bus.name).info().in_flight == 1

        bus.drain()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.HANDLED]
        assert store.queue(bus.name).info().in_flight == 0


def test_S1_two_forwarders_send_each_message_once_and_in_order(store: detent.Store, books: Books) -> None:
    sent: list[str] = []

    class Counting(QueueTransport):
        def send(self, envelopes: Any) -> Any:
            sent.extend(f"{envelope.to} {envelope.body.decode()}" for envelope in envelopes)
            return {}

    transport = Counting(store)
    bus = Bus("s1", transport, send_only=True, **books.options())
    bus.drain()
    lanes = [f"queue:lane-{lane}" for lane in range(3)]
    for part in range(20):
        with books.sessions() as session, bus.transaction(session) as sending:
            for lane in lanes:
                for at in range(50):
                    body = b"%05d" % (part * 50 + at)
                    sending.collect(Envelope(f"{lane}-{part}-{at}", lane, {}, body))
    assert bus.outbox is not None
    forwarders = [
        Forwarder("s1", bus.outbox, books.unit_of_work, transport, bus.calling, lease_s=30, poll_s=0.02)
        for _ in range(3)
    ]
    for forwarder in forwarders:
        forwarder.start()
    try:
        eventually(lambda: books.count("detent_outbox") == 0)
    finally:
        for forwarder in forwarders:
            forwarder.stop(5)
        bus.stop()
    assert len(sent) == len(set(sent)) == 3000
    for lane in lanes:
        of_lane = [text for text in sent if text.startswith(lane + " ")]
        assert of_lane == sorted(of_lane)


class Exiting:
    """A unit of work of the user's own that wants to exit, once."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.is_told = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def begin(self) -> Any:
        if not self.is_told:
            self.is_told = True
            raise SystemExit(1)
        return self._real.begin()


def test_S1_a_forwarder_goes_on_after_a_unit_of_work_that_wants_to_exit(store: detent.Store, books: Books) -> None:
    transport = QueueTransport(store)
    store.queue("lane").create()
    bus = Bus("s1", transport, send_only=True, **books.options())
    bus.drain()
    assert bus.outbox is not None
    unit_of_work = Exiting(books.unit_of_work)
    forwarder = Forwarder("s1", bus.outbox, unit_of_work, transport, bus.calling, lease_s=30, poll_s=0.02)
    forwarder.start()
    try:
        for number in range(2):  # one that ends sends once more what there is
            with books.sessions() as session, bus.transaction(session) as sending:
                sending.collect(Envelope(f"m{number}", "queue:lane", {}, b""))
            eventually(lambda: unit_of_work.is_told and books.count("detent_outbox") == 0)
    finally:
        forwarder.stop(5)
        bus.stop()


def test_S2_an_outbox_without_a_unit_of_work_is_refused(books: Books) -> None:
    with app(outbox=SqlOutbox()) as bus:
        bus.handler(OrderPlaced)(lambda order: None)
        with pytest.raises(Invalid, match=r"an outbox and no unit of work.*unit_of_work="):
            bus.start()


class Forever(QueueTransport):
    """A transport that does not say for how long a message can come again."""

    redelivery_s: Any = None


@pytest.mark.parametrize(
    ("transport", "retention", "said"),
    [
        ({}, "1s", "remembers for 1s .* again for 14d 30s.*retention='15d'"),
        ({}, "14d", "remembers for 14d .* again for 14d 30s"),
        ({"retention": "1h", "lease": "1m"}, "1h", r"again for 1h 1m.*retention='3660s'"),
    ],
)
def test_tracker_that_forgets_before_transport_does_is_refused(
    store: detent.Store, books: Books, transport: dict[str, str], retention: str, said: str
) -> None:
    options = books.options(idempotency=IdempotencyConfig(SqlTracker(retention=retention)))
    bus = Bus("billing", QueueTransport(store, **transport), **options)
    bus.handler(OrderPlaced)(lambda order: None)
    with pytest.raises(Invalid, match=said):
        bus.start()
    bus.idempotency = IdempotencyConfig(SqlTracker(retention="15d"))
    with bus:
        pass


def test_memory_is_compared_with_what_dead_letters_add(store: detent.Store, books: Books) -> None:
    store.queue("dead").create(dead_letter_retention="30d")
    store.queue("billing").create(dead_letter="dead")
    bus = Bus("billing", QueueTransport(store), **books.options(idempotency=IdempotencyConfig(SqlTracker())))
    bus.handler(OrderPlaced)(lambda order: None)
    with pytest.raises(Invalid, match=r"remembers for 29d .* again for 44d 30s.*retention='45d'"):
        bus.start()
    store.queue("dead").delete()
    with bus:
        pass


def test_app_warns_once_where_transport_does_not_say_how_long_messages_come_again(
    store: detent.Store, books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus("billing", Forever(store), **books.options(idempotency=IdempotencyConfig(SqlTracker(retention="1s"))))
    bus.handler(OrderPlaced)(lambda order: None)
    with bus:
        bus.stop_taking()
    said = [record.getMessage() for record in caplog.records if "can deliver one again" in record.getMessage()]
    assert len(said) == 1
    assert "for 1s, and memory:#billing can deliver one again for a time that is not known" in said[0]


def test_S4_and_R3_marks_and_sent_messages_are_forgotten(store: detent.Store, books: Books) -> None:
    tracker, outbox = SqlTracker(), SqlOutbox(keep_sent="1ms")
    with app(store, **books.options(idempotency=IdempotencyConfig(tracker), outbox=outbox)) as bus:
        bus.handler(OrderPlaced)(lambda order: bus.send_local(Invoiced(1)))
        bus.handler(Invoiced)(lambda invoice: None)
        bus.drain()
        bus.send_local(OrderPlaced(1))
        bus.drain()
        assert books.count("detent_handled") == 2
        assert books.count("detent_outbox") == 1
        tracker = SqlTracker(retention="0s")  # an app does not start with this one
        keeping = Sweep(bus.name, tracker, outbox, books.unit_of_work, bus.calling)
        eventually(lambda: keeping.sweep() >= 0 and books.count("detent_handled") + books.count("detent_outbox") == 0)


def test_R2_a_message_that_kills_the_process_each_time_comes_to_an_end(store: detent.Store) -> None:
    called: list[object] = []
    with app(store, retries=Retries(1, ())) as bus:
        bus.handler(OrderPlaced)(called.append)
        bus.drain()
        bus.send_local(OrderPlaced(1))
        queue = store.queue(bus.name)
        for _ in range(2):
            queue.claim(1, lease="20ms")  # by processes that died
            eventually(lambda: queue.info().available == 1)
        assert bus.drain() == [Outcome.GIVEN_UP]
        assert "delivered 2 times, and no worker said what became of it" in failed_reasons(store, bus.name)[0]
    assert called == []


def test_two_apps_with_one_name_are_refused(store: detent.Store, books: Books) -> None:
    with app(store, "same", **books.options()) as one, app(store, "same") as two:
        for bus in (one, two):
            bus.handler(OrderPlaced)(lambda order: None)
        one.start()
        with pytest.raises(Invalid, match="two apps in this process are called 'same'"):
            two.start()
        one.stop()
        elsewhere = Bus("same", QueueTransport(store, queue="other"), **books.options())
        elsewhere.handler(OrderPlaced)(lambda order: None)
        with pytest.raises(Invalid, match="same"):  # the database remembers who has that name
            elsewhere.start()


def test_a_tracker_elsewhere_is_refused_unless_that_is_said(books: Books, tmp_path: Path) -> None:
    elsewhere = SqlTracker(engine=f"sqlite:///{tmp_path / 'marks.db'}")
    for tracker in (elsewhere, InMemoryTracker()):
        with app(**books.options(idempotency=IdempotencyConfig(tracker))) as bus:
            bus.handler(OrderPlaced)(lambda order: None)
            with pytest.raises(Invalid, match=r"a crash between the two commits.*separate=True"):
                bus.start()
    config = IdempotencyConfig(elsewhere, separate=True)
    with app(**books.options(idempotency=config)) as bus:
        bus.handler(OrderPlaced)(lambda order, session: enter(session, "bill", order.number))
        assert twice(bus, OrderPlaced(1))() == [Outcome.HANDLED, Outcome.REPEATED]
    assert books.entries() == [("bill", 1)]


def test_a_tracker_without_a_transaction_to_be_in_is_refused() -> None:
    with app(idempotency=IdempotencyConfig(SqlTracker())) as bus:
        bus.handler(OrderPlaced)(lambda order: None)
        with pytest.raises(Invalid, match="has no unit of work"):
            bus.start()


def test_skipping_without_an_outbox_is_warned_of(books: Books, caplog: pytest.LogCaptureFixture) -> None:
    with app(**books.options(outbox=None)) as bus, caplog.at_level(logging.WARNING, "detent.bus"):
        bus.handler(OrderPlaced)(lambda order: None)
        bus.drain()
    assert "no outbox" in caplog.text


def test_without_an_outbox_messages_are_sent_again_with_their_ids(store: detent.Store, books: Books) -> None:
    """The first attempt dies between its commit and the sending; the second one is repeated, and sends."""
    ids: list[list[str]] = []
    config = IdempotencyConfig(SqlTracker(), should_stop_invocation=False)

    class Dying(QueueTransport):
        def send(self, envelopes: Any) -> Any:
            ids.append([envelope.id for envelope in envelopes])
            if len(ids) == 2:
                raise Unavailable("died")
            return super().send(envelopes)

    seen: list[int] = []
    bus = Bus("again", Dying(store), retries=AT_ONCE, **books.options(idempotency=config, outbox=None))

    @bus.handler
    def bill(order: OrderPlaced, session: Session, context: Context) -> None:
        if not context.repeated:
            enter(session, "bill", order.number)
        context.send(Invoiced(1), to="again")
        context.send(Invoiced(2), to="again")

    bus.handler(Invoiced)(lambda invoice: seen.append(invoice.order))
    bus.drain()
    bus.send_local(OrderPlaced(1))
    assert bus.drain() == [Outcome.RETRIED] + [Outcome.HANDLED] * 3
    bus.stop()
    assert ids[1] == ids[2]
    assert books.entries() == [("bill", 1)]
    assert seen == [1, 2]


def test_a_handler_that_lost_its_lease_commits_nothing(store: detent.Store, books: Books) -> None:
    held = []

    class Seen(QueueTransport):
        def receive(self, limit: int, wait_s: float) -> Any:
            held[:] = super().receive(limit, wait_s)
            return list(held)

    bus = Bus("lost", Seen(store), retries=AT_ONCE, **books.options())

    @bus.handler
    def bill(order: OrderPlaced, session: Session, context: Context) -> None:
        enter(session, "bill", order.number)
        if context.attempts == 1:
            held[0].lost = True
            assert context.lost

    bus.drain()
    bus.send_local(OrderPlaced(1))
    outcomes = bus.drain()
    bus.stop()
    assert outcomes == [Outcome.RETRIED, Outcome.HANDLED]
    assert books.entries() == [("bill", 1)]


def test_messages_that_cannot_be_read_are_given_up_at_once(store: detent.Store) -> None:
    called: list[object] = []
    bad = [
        (b"not json", {"detent-type": "OrderPlaced"}, "the bytes are no OrderPlaced"),
        (b'{"number": "x"}', {"detent-type": "OrderPlaced"}, "the bytes are no OrderPlaced"),
        (b"[" * 100_000, {"detent-type": "OrderPlaced"}, "the bytes are no OrderPlaced"),
        (b"{}", {"detent-type": "OrderPlaced", "content-type": "text/xml"}, "this app does not read 'text/xml'"),
        (b"{}", {"detent-type": "OrderPlaced", "detent-id": "x" * 300}, "its id cannot be one"),
    ]
    with app(store) as bus:
        bus.handler(OrderPlaced)(called.append)
        bus.drain()
        for body, headers, _ in bad:
            store.queue(bus.name).publish(body, headers=headers)
        assert bus.drain() == [Outcome.GIVEN_UP] * len(bad)
        for reason, (_, _, text) in zip(failed_reasons(store, bus.name), bad, strict=True):
            assert text in reason
        store.queue(bus.name).publish(b"{}", headers={"detent-type": "Unknown"})
        assert bus.drain()[-2:] == [Outcome.RETRIED, Outcome.GIVEN_UP]  # another version may know it
        assert "knows no messages called Unknown" in failed_reasons(store, bus.name)[-1]
    assert called == []
