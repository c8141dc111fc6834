"""Apps that start, stop, are cancelled and interrupted; handlers with threads and tasks of their own."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import detent
from busworld import AT_ONCE, Books, Broken, Invoiced, OrderPlaced, app, enter, failed_reasons
from detent.bus import (
    Bus,
    Context,
    IdempotencyConfig,
    Middleware,
    Outcome,
    QueueTransport,
    Retries,
    SqlOutbox,
    SqlTracker,
    exactly_once,
)
from detent.errors import Invalid, OutcomeUnknown, Unavailable
from processes import eventually


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    made = Books(f"sqlite:///{tmp_path / 'books.db'}")
    yield made
    made.close()


class SlowUnits:
    """Units of work that are async, and take their time."""

    is_async, provided, place = True, frozenset[str](), None

    def __init__(self) -> None:
        self.begun = self.closed = 0
        self.commits = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    def check(self, transport: object = None) -> None: ...

    async def begin(self) -> Any:
        await asyncio.sleep(0.02)
        self.begun += 1
        return self

    provides: dict[str, Any] = {}  # noqa: RUF012
    sql = None

    async def commit(self) -> None:
        self.commits.set()
        await self.go_on.wait()

    async def rollback(self) -> None: ...

    async def close(self) -> None:
        self.closed += 1


def threads_of(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if name in thread.name]


# -- what a handler starts ------------------------------------------------------------------------------------------


def test_a_send_during_the_commit_is_refused_and_not_lost() -> None:
    refused: list[BaseException] = []

    async def main() -> list[Outcome]:
        units = SlowUnits()
        units.go_on.clear()
        with detent.open("memory:") as store:
            bus = Bus("late", QueueTransport(store), unit_of_work=units, retries=AT_ONCE)

            @bus.handler
            async def start_something(order: OrderPlaced, context: Context) -> None:
                async def later() -> None:
                    await units.commits.wait()
                    for send in (bus.send, context.send):
                        try:
                            send(Invoiced(1), to="late")
                        except Invalid as error:
                            refused.append(error)
                    units.go_on.set()

                tasks.append(asyncio.create_task(later()))

            tasks: list[Any] = []
            bus.handler(Invoiced)(lambda invoice: None)
            async with bus:
                await bus.send_async(OrderPlaced(1), to="late")
                await asyncio.wait_for(units.go_on.wait(), 30)
                await asyncio.gather(*tasks)
            return [one.available + one.in_flight for one in [store.queue("late").info()]]  # type: ignore[misc]

    assert asyncio.run(main()) == [0]
    assert len(refused) == 2


def test_what_threads_of_a_handler_send_goes_with_its_commit() -> None:
    with detent.open("memory:") as store, app(store, retries=Retries(1, ())) as bus:

        @bus.handler
        def fan_out(order: OrderPlaced, context: Context) -> None:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda number: context.send(Invoiced(number), to="other"), range(20)))
            if order.number == 1 or context.attempts == 1:
                raise Broken

        bus.prepare()
        store.queue("other").create()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.RETRIED, Outcome.GIVEN_UP]
        assert store.queue("other").info().available == 0
        bus.send_local(OrderPlaced(2))
        assert bus.drain() == [Outcome.RETRIED, Outcome.HANDLED]
        assert store.queue("other").info().available == 20


def test_a_message_keeps_its_id_when_another_one_is_left_out() -> None:
    """Without an outbox, a repeated message sends again; it need not send the same ones."""
    ids: list[dict[str, str]] = []

    class Noting(Middleware):
        def before_send(self, envelope: Any) -> Any:
            ids[-1][envelope.headers["detent-type"] + envelope.body.decode()] = envelope.id
            return envelope

    with detent.open("memory:") as store, app(store, middlewares=[Noting()]) as bus:

        @bus.handler
        def answer(order: OrderPlaced, context: Context) -> None:
            ids.append({})
            if context.attempts == 1:
                context.send(OrderPlaced(0), to="audit")
            context.send(Invoiced(2), to="audit")
            if context.attempts == 1:
                raise Broken

        store.queue("audit").create()
        bus.prepare()
        ids.append({})
        bus.send_local(OrderPlaced(1))
        bus.drain()
    _, first, second = ids
    assert set(second) < set(first)
    assert second.items() < first.items()


def test_context_variables_do_not_pass_from_message_to_message() -> None:
    tenant: contextvars.ContextVar[int | None] = contextvars.ContextVar("tenant", default=None)
    seen = []
    with app() as bus:

        @bus.handler
        def remember(order: OrderPlaced) -> None:
            seen.append(tenant.get())
            tenant.set(order.number)

        bus.prepare()
        for number in range(3):
            bus.send_local(OrderPlaced(number))
        bus.drain()
    assert seen == [None, None, None]
    assert tenant.get() is None


# -- handlers that would end more than themselves ---------------------------------------------------------------------


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()])
def test_a_handler_cannot_end_the_event_loop(error: BaseException) -> None:
    handled: list[int] = []
    with detent.open("memory:") as store:
        bus = Bus("exits", QueueTransport(store), retries=Retries(0, ()))

        @bus.handler
        async def take(order: OrderPlaced) -> None:
            if order.number == 0:
                raise error
            handled.append(order.number)

        with bus:
            for number in range(4):
                bus.send_local(OrderPlaced(number))
            eventually(lambda: len(handled) == 3 and store.queue("exits").info().failed == 1)
        assert "HandlerExit" in failed_reasons(store, "exits")[0]


class Aborted(BaseException):
    """What a library raises so that nothing on the way catches it."""


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_failed_message_says_what_base_exception_its_handler_raised(is_async: bool) -> None:
    with detent.open("memory:") as store, app(store, retries=Retries(3, (), fail_fast=Aborted)) as bus:

        def take(order: OrderPlaced) -> None:
            raise Aborted(f"order {order.number}")

        async def take_async(order: OrderPlaced) -> None:
            take(order)

        bus.handler(take_async if is_async else take)
        bus.prepare()
        bus.send_local(OrderPlaced(7))
        assert bus.drain() == [Outcome.GIVEN_UP]  # by fail_fast, at the first attempt
        (failed,) = store.queue(bus.name).failed()
        assert "Aborted: order 7" in failed.reason
        assert [attempt.reason for attempt in failed.history] == [failed.reason]


def test_a_bare_next_in_a_plain_handler_beside_a_coroutine_fails_the_message() -> None:
    with app(retries=Retries(0, ())) as bus:
        bus.handler(OrderPlaced)(lambda order: next(iter(())))

        @bus.handler
        async def also(order: OrderPlaced) -> None: ...

        bus.prepare()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.GIVEN_UP]


def test_functions_with_a_yield_are_refused(books: Books) -> None:
    def yields(order: OrderPlaced) -> Any:
        yield order

    async def yields_async(order: OrderPlaced) -> Any:
        yield order

    with app() as bus:
        for function in (yields, yields_async, functools.partial(yields)):
            with pytest.raises(Invalid, match="yield"):
                bus.handler(OrderPlaced)(function)
    with pytest.raises(Invalid, match="yield"):
        exactly_once(books.sessions, consumer="yields")(yields)

    async def work() -> None: ...

    forgets = exactly_once(books.sessions, consumer="forgets")(lambda order: work())
    for _ in range(2):
        with pytest.raises(Invalid, match="something to await"):
            forgets({"id": "1"})
    with pytest.raises(Invalid, match="on_repeat is a function"):
        exactly_once(books.sessions, consumer="repeats", on_repeat="known")  # type: ignore[arg-type]
    assert books.count("detent_handled") == 0


# -- starting and stopping --------------------------------------------------------------------------------------------


def test_hooks_that_send_do_not_hold_up_the_start_and_the_stop() -> None:
    class Sending(Middleware):
        async def on_start(self, bus: Bus) -> None:
            await bus.send_async(OrderPlaced(1), to="elsewhere")

        async def on_stop(self, bus: Bus) -> None:
            await bus.send_async(OrderPlaced(2), to="elsewhere")
            raise Broken("which is logged, and stops nothing")

    class Last(Middleware):
        def on_stop(self, bus: Bus) -> None:
            bus.send(OrderPlaced(3), to="elsewhere")

    with detent.open("memory:") as store:
        store.queue("elsewhere").create()
        bus = Bus("hooks", QueueTransport(store), middlewares=[Sending(), Last()])
        bus.handler(OrderPlaced)(lambda order: None)
        with bus:
            pass
        assert store.queue("elsewhere").info().available == 3


def test_app_that_stops_before_a_handler_begins_gives_back() -> None:
    taken, go_on = threading.Event(), threading.Event()

    class Late(QueueTransport):
        def receive(self, limit: int, wait_s: float) -> Any:
            found = super().receive(limit, wait_s)
            if found:
                taken.set()
                assert go_on.wait(30)
            return found

    seen: list[OrderPlaced] = []
    with detent.open("memory:") as store:
        bus = Bus("late", Late(store))
        bus.handler(OrderPlaced)(seen.append)
        bus.start()
        bus.send_local(OrderPlaced(1))
        assert taken.wait(30)
        threading.Timer(0.1, go_on.set).start()
        bus.stop()
        assert seen == []
        (message,) = store.queue("late").claim()
        assert message.attempts == 1


def test_a_handler_that_outlives_the_grace_holds_up_neither_the_stop_nor_the_program() -> None:
    begun, go_on = threading.Event(), threading.Event()
    with detent.open("memory:") as store:
        bus = Bus("hangs", QueueTransport(store))

        @bus.handler
        def hang(order: OrderPlaced) -> None:
            begun.set()
            go_on.wait(60)

        bus.start()
        bus.send_local(OrderPlaced(1))
        assert begun.wait(30)
        bus.stop(grace="10ms")
        assert not go_on.is_set()
        late = [thread for thread in threading.enumerate() if thread.name.startswith("detent-bus-hangs")]
        assert late
        assert all(thread.daemon for thread in late)  # so that the program ends without them
        go_on.set()
        eventually(lambda: not threads_of("detent-bus-hangs"))


def test_a_backlog_in_the_outbox_does_not_hold_up_the_stop(books: Books) -> None:
    sent = threading.Semaphore(0)

    class Endless(QueueTransport):
        def send(self, envelopes: Any) -> Any:
            with books.sessions() as session, bus.transaction(session):  # there is always more
                bus.send(Invoiced(1), to="endless")
            sent.release()
            return {}

    with detent.open("memory:") as store:
        bus = Bus("endless", Endless(store), send_only=True, **books.options())
        bus.start()
        with books.sessions() as session, bus.transaction(session):
            bus.send(Invoiced(0), to="endless")
        assert sent.acquire(timeout=30)
        bus._forwarder.stop(0.05)  # type: ignore[union-attr]
        bus.stop(grace="10ms")
        assert not threads_of("detent-outbox-endless")
        with books.engine.connect() as connection:
            held = connection.exec_driver_sql("SELECT count(*) FROM detent_outbox_lanes WHERE leased_until > 1e15")
            assert held.scalar_one() == 0


def test_stopping_from_within_is_refused() -> None:
    refused: list[BaseException] = []
    with detent.open("memory:") as store:
        bus = Bus("within", QueueTransport(store))

        @bus.handler
        def stop_it(order: OrderPlaced) -> None:
            try:
                bus.stop()
            except Invalid as error:
                refused.append(error)

        @bus.handler
        async def stop_it_too(order: OrderPlaced) -> None:
            stop_it(order)

        with bus:
            bus.send_local(OrderPlaced(1))
            eventually(lambda: len(refused) == 2)
    assert all("stop_taking()" in str(error) for error in refused)


def test_stopping_in_a_thread_that_has_a_loop_of_its_own() -> None:
    async def main() -> None:
        with detent.open("memory:") as store:
            bus = Bus("notebook", QueueTransport(store))

            @bus.handler
            async def take(order: OrderPlaced) -> None: ...

            bus.start()
            bus.stop()

    asyncio.run(main())
    assert not threads_of("detent-loop")


def test_a_start_that_fails_leaves_nothing_behind(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="at once"):
        Bus("many", "memory:", concurrency=0)
    with detent.open("memory:") as store:
        bus = Bus("half", QueueTransport(store), **books.options())
        bus.handler(OrderPlaced)(lambda order: None)
        monkeypatch.setattr("detent.bus.app.Intake.start", lambda self: (_ for _ in ()).throw(Broken()))
        for _ in range(2):
            with pytest.raises(Broken):
                bus.start()
        assert not [name for kind in ("outbox", "sweep", "bus") for name in threads_of(f"detent-{kind}-half")]
        monkeypatch.undo()
        with bus:
            assert threads_of("detent-outbox-half")


def test_a_started_app_keeps_its_loop() -> None:
    async def main() -> None:
        done = asyncio.Event()
        with detent.open("memory:") as store:
            bus = Bus("loops", QueueTransport(store))

            @bus.handler
            async def take(order: OrderPlaced) -> None:
                done.set()

            async with bus:
                with pytest.raises(Invalid, match="has started"):
                    async with bus:
                        raise AssertionError("unreachable")
                await bus.send_async(OrderPlaced(1), to="loops")
                await asyncio.wait_for(done.wait(), 30)

    asyncio.run(main())


def test_handlers_declared_after_the_first_messages_are_checked_and_subscribed() -> None:
    seen = []
    with detent.open("memory:") as store, app(store) as bus, app(store, send_only=True) as shop:
        bus.handler(OrderPlaced)(lambda order: None)
        bus.drain()
        bus.handler(Invoiced)(seen.append)
        bus.drain()
        shop.publish(Invoiced(1))
        bus.drain()
        assert seen == [Invoiced(1)]
        bus.handler(OrderPlaced)(lambda order, unknown: None)
        with pytest.raises(Invalid, match="asks for 'unknown'"):
            bus.drain()


def test_a_request_that_waits_is_told_of_the_stop() -> None:
    with detent.open("memory:") as store:
        store.queue("silent").create()
        bus = Bus("asks", QueueTransport(store), send_only=True)
        bus.register(Invoiced)
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                bus.request(OrderPlaced(1), to="silent", timeout="60s")
            except OutcomeUnknown as error:
                raised.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        eventually(lambda: store.queue("silent").info().available == 1)
        bus.stop()
        thread.join(30)
        assert "stopped before a reply" in str(raised[0])


def test_draining_holds_no_leases_of_messages_that_wait() -> None:
    """Each handler takes half a lease, and nobody extends those of the others."""
    with detent.open("memory:") as store:
        bus = Bus("drains", QueueTransport(store, lease="60ms"), retries=Retries(0, ()))
        seen: list[int] = []

        @bus.handler
        def slow(order: OrderPlaced) -> None:
            time.sleep(0.02)
            seen.append(order.number)

        bus.prepare()
        for number in range(8):
            bus.send_local(OrderPlaced(number))
        assert bus.drain() == [Outcome.HANDLED] * 8
        assert seen == list(range(8))
        bus.stop()


# -- cancelling -------------------------------------------------------------------------------------------------------


def test_a_unit_that_begins_while_it_is_cancelled_is_closed() -> None:
    async def main() -> SlowUnits:
        units = SlowUnits()

        class Marks(SqlTracker):
            def prepare(self, *values: Any) -> Any: ...
            def track(self, *values: Any) -> Any:
                return True

        take = exactly_once(units, consumer="cancelled", tracker=Marks())(_do_nothing)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(take({"id": "1"}), 0.005)
        await asyncio.sleep(0.1)
        return units

    units = asyncio.run(main())
    assert units.begun == units.closed == 3


async def _do_nothing(message: Any) -> None: ...


def test_many_async_calls_over_plain_sessions_do_not_wait_for_each_other(books: Books) -> None:
    @exactly_once(books.sessions, consumer="many-at-once")
    async def take(message: dict[str, Any], session: Any) -> int:
        return await asyncio.to_thread(lambda: int(message["id"]))

    async def main() -> list[Any]:
        gate = asyncio.Semaphore(8)  # SQLite has one writer

        async def one(number: int) -> Any:
            async with gate:
                return await take({"id": str(number)})

        return await asyncio.gather(*[one(number) for number in range(60)])

    assert asyncio.run(main()) == list(range(60))


# -- what was configured wrongly, or sent by strangers ----------------------------------------------------------------


def test_a_failed_send_of_a_handled_message_is_shown_to_people(books: Books) -> None:
    class Down(QueueTransport):
        def send(self, envelopes: Any) -> Any:
            if envelopes[0].to == "queue:elsewhere":
                raise Unavailable("nobody answers")
            return super().send(envelopes)

    with detent.open("memory:") as store:
        bus = Bus("skips", Down(store), retries=AT_ONCE, **books.options(outbox=None))
        bus.handler(OrderPlaced)(lambda order: bus.send(Invoiced(1), to="elsewhere"))
        bus.prepare()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.GIVEN_UP]
        assert "an outbox keeps such messages" in failed_reasons(store, "skips")[0]
        bus.stop()


def test_an_async_tracker_and_a_plain_unit_of_work_are_refused(books: Books) -> None:
    class Marks(SqlTracker):
        async def track(self, *values: Any) -> Any:  # type: ignore[override]
            return True

    with app(**books.options(idempotency=IdempotencyConfig(Marks()), outbox=None)) as bus:
        bus.handler(OrderPlaced)(lambda order: None)
        with pytest.raises(Invalid, match="is async, and a unit of work that is not"):
            bus.start()


def test_a_block_left_in_another_context_still_ends(books: Books) -> None:
    with detent.open("memory:") as store, app(store, **books.options(), send_only=True) as bus:
        store.queue("other").create()
        bus.prepare()
        with books.sessions() as session:
            block = bus.transaction(session)
            contextvars.copy_context().run(block.__enter__)
            block.send(Invoiced(1), to="other")
            enter(session, "view", 1)
            contextvars.copy_context().run(block.__exit__, None, None, None)
            with pytest.raises(Invalid, match="used once"):
                block.__enter__()
        bus.drain()
        assert store.queue("other").info().available == 1
    assert books.entries() == [("view", 1)]


def test_a_session_that_is_used_for_long_gathers_no_listeners(books: Books) -> None:
    with app(**books.options(), send_only=True) as bus, books.sessions() as session:
        bus.prepare()
        woken: list[int] = []
        bus.wake = lambda: woken.append(1)  # type: ignore[method-assign]
        for _ in range(5):
            with bus.transaction(session, commit=False):
                bus.publish(Invoiced(1))
            session.commit()
    assert len(woken) == 5


def test_blocks_on_connections_that_commit_by_themselves_are_refused(books: Books) -> None:
    import sqlite3

    with app(unit_of_work=books.unit_of_work, outbox=SqlOutbox(), send_only=True) as bus:
        connection = sqlite3.connect(books.engine.url.database or "", isolation_level=None)
        with pytest.raises(Invalid, match="autocommit"), bus.transaction(connection):
            raise AssertionError("unreachable")
        connection.close()
        automatic = books.sessions(bind=books.engine.execution_options(isolation_level="AUTOCOMMIT"))
        with pytest.raises(Invalid, match="autocommit"), automatic, bus.transaction(automatic):
            raise AssertionError("unreachable")


def test_headers_of_strangers() -> None:
    contexts: list[Context] = []
    with detent.open("memory:") as store, app(store, retries=Retries(0, ())) as bus:

        @bus.handler
        def take(order: OrderPlaced, context: Context) -> Invoiced:
            contexts.append(context)
            context.send(Invoiced(1), to=bus.name)
            return Invoiced(2)

        bus.handler(Invoiced)(lambda invoice: None)
        bus.prepare()
        odd = [
            {"detent-correlation-id": "x" * 7_000},
            {"detent-reply-to": ""},
            {"detent-reply-to": "x" * 5_000},
            {"detent-reply-to": "a\0b"},
            {"content-type": "Application/JSON; charset=utf-8"},
        ]
        for number, headers in enumerate(odd):
            given = {"detent-type": "OrderPlaced", "detent-id": f"m{number}", **headers}
            store.queue(bus.name).publish(b'{"number": 1}', headers=given)
        assert bus.drain() == [Outcome.HANDLED] * 10
        assert contexts[0].correlation_id == "m0"
        with pytest.raises(Invalid, match="'queue'"):
            bus.send_local(OrderPlaced(1), headers={"queue": "other"})


def test_retries_take_a_class_or_a_tuple_of_classes() -> None:
    assert Retries(fail_fast=ValueError).delay_s(1, ValueError()) is None
    assert Retries(fail_fast=(KeyError, OSError)).delay_s(1, ValueError()) == 0
    with pytest.raises(Invalid, match="fail_fast"):
        Retries(fail_fast="ValueError")  # type: ignore[arg-type]


def test_inboxes_of_methods_partials_and_lambdas(books: Books) -> None:
    seen = []

    class Billing:
        id = "always the same"

        @exactly_once(books.sessions, consumer="method")
        def take(self, message: dict[str, Any]) -> None:
            seen.append(message["id"])

    billing = Billing()
    for number in ("1", "2", "1"):
        billing.take({"id": number})
    billing.take(message={"id": "3"})
    assert seen == ["1", "2", "3"]

    def taking(tenant: str, message: dict[str, Any]) -> None: ...

    decorate = exactly_once(books.sessions, consumer="partials")
    kept = [decorate(functools.partial(taking, "a"))]
    with pytest.raises(Invalid, match="two functions are the consumer"):
        kept.append(decorate(functools.partial(taking, "b")))
    decorate = exactly_once(books.sessions, consumer="lambdas")
    kept.append(decorate(lambda message: None))
    with pytest.raises(Invalid, match="two functions are the consumer"):
        kept.append(decorate(lambda message: seen.append(message)))


def test_an_acknowledgement_that_fails_does_not_undo_what_is_done(books: Books) -> None:
    """The message comes again, and is known: it is neither tried again as failed nor given up."""

    class Down(QueueTransport):
        is_down = True

        def acknowledge(self, delivery: Any) -> None:
            if self.is_down:
                raise Unavailable("nobody answers")
            super().acknowledge(delivery)

    with detent.open("memory:") as store:
        transport = Down(store, lease="50ms")
        bus = Bus("acks", transport, retries=Retries(0, ()), **books.options())
        bus.handler(OrderPlaced)(lambda order, session: enter(session, "bill", order.number))
        bus.prepare()
        bus.send_local(OrderPlaced(1))
        assert bus.drain() == [Outcome.LEFT]
        transport.is_down = False
        store.queue("acks").wait("5s")
        outcomes: list[Outcome] = []
        eventually(lambda: outcomes.extend(bus.drain()) or outcomes)
        bus.stop()
    assert outcomes == [Outcome.REPEATED]
    assert books.entries() == [("bill", 1)]


@pytest.mark.parametrize("commit", [True, False])
def test_nobody_ends_the_transaction_within_a_block(books: Books, commit: bool) -> None:
    with detent.open("memory:") as store, app(store, **books.options(), send_only=True) as bus:
        store.queue("other").create()
        bus.prepare()
        for ending in ("commit", "rollback", "close"):
            refused = pytest.raises(Invalid, match="ended within a block")
            with refused, books.sessions() as session, bus.transaction(session, commit=commit):
                enter(session, "view", 1)
                bus.send(Invoiced(1), to="other")
                getattr(session, ending)()
        with books.sessions() as session:
            with bus.transaction(session, commit=commit), session.begin_nested():
                enter(session, "view", 2)
                bus.send(Invoiced(2), to="other")
            session.commit()
            session.commit()  # afterwards it is a session as any other
        bus.drain()
        assert store.queue("other").info().available == 1
    assert books.entries() == [("view", 2)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"idempotency": SqlTracker()},
        {"unit_of_work": lambda: None},
        {"outbox": True},
        {"idempotency": IdempotencyConfig(SqlTracker)},  # type: ignore[arg-type]
        {"transport": 7},
    ],
)
def test_parts_of_another_kind_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="and not"):
        Bus("wrong", **{"transport": "memory:", **wrong})
