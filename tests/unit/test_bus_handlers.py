"""Handlers: which messages they take, what their parameters are given, and what is refused before the first message."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

import detent
from busworld import Broken, Invoiced, Mailed, OrderPlaced, RushOrder, app
from detent.bus import Bus, Context, DjangoUnitOfWork, JsonSerializer, Middleware, MsgpackSerializer, Outcome, message
from detent.bus.messages import name_of
from detent.errors import Invalid, OutcomeUnknown


class Mailer:
    def __init__(self) -> None:
        self.sent: list[int] = []


def drained(bus: Bus, *messages: object) -> list[Outcome]:
    bus.drain()  # makes the queue
    for one in messages:
        bus.send_local(one)
    return bus.drain()


@pytest.mark.parametrize("given", [OrderPlaced(7, ["tea"]), Invoiced(7, 250), Mailed(order=7)])
@pytest.mark.parametrize("serializer", [JsonSerializer(), MsgpackSerializer()])
def test_messages_of_each_kind_arrive_as_they_were(given: object, serializer: object) -> None:
    seen = []
    with app(serializer=serializer) as bus:
        bus.handler(type(given))(seen.append)
        assert drained(bus, given) == [Outcome.HANDLED]
    assert seen == [given]


def test_all_handlers_of_a_class_run_and_those_of_its_bases() -> None:
    seen: list[str] = []
    with app() as bus:

        @bus.handler
        def first(order: OrderPlaced) -> None:
            seen.append(f"first {order.number}")

        @bus.handler
        def second(order: OrderPlaced | Invoiced) -> None:
            seen.append(f"second {type(order).__name__}")

        @bus.handler
        def rush(order: RushOrder) -> None:
            seen.append("rush")

        drained(bus, OrderPlaced(1), RushOrder(2), Invoiced(3))
    assert seen == ["first 1", "second OrderPlaced", "first 2", "second RushOrder", "rush", "second Invoiced"]


def test_parameters_are_found_by_type_and_by_name_and_made_once_a_message() -> None:
    mailer, made, seen = Mailer(), [], []
    with app(dependencies={Mailer: mailer, "rate": 0.2}) as bus:

        def tenant(context: Context) -> str:
            made.append(context.message_id)
            return context.headers["tenant"]

        bus.provide_with("tenant", tenant)

        @bus.handler
        class Bill:
            def __init__(self, post: Mailer, tenant: str) -> None:
                self.post, self.tenant = post, tenant

            def __call__(self, order: OrderPlaced, rate: float, note: str = "none") -> None:
                seen.append((self.post, self.tenant, rate, note))

        @bus.handler
        def also(order: OrderPlaced, tenant: str) -> None:
            seen.append(tenant)

        bus.drain()
        bus.send_local(OrderPlaced(1), headers={"tenant": "acme"})
        bus.drain()
    assert seen == [(mailer, "acme", 0.2, "none"), "acme"]
    assert len(made) == 1


def test_coroutines_run_on_a_loop_and_plain_handlers_beside_them() -> None:
    seen = []
    with app() as bus:

        @bus.handler
        async def slow(order: OrderPlaced, context: Context) -> None:
            await asyncio.sleep(0)
            seen.append(context.message_id)
            bus.send_local(Invoiced(order.number))

        @bus.handler
        def plain(order: OrderPlaced) -> None:
            seen.append("plain")

        @bus.handler
        class Later:
            async def __call__(self, invoice: Invoiced) -> None:
                seen.append(invoice)

        assert drained(bus, OrderPlaced(4)) == [Outcome.HANDLED] * 2
    assert seen[1:] == ["plain", Invoiced(4)]


def test_a_handler_that_forgets_to_await_has_failed() -> None:
    with app() as bus:

        async def work() -> None:
            raise AssertionError("nobody awaits this")

        pending = []

        def forgets(order: OrderPlaced) -> object:
            pending.append(work())
            return pending[-1]

        bus.handler(OrderPlaced)(forgets)
        outcomes = drained(bus, OrderPlaced(1))
    for one in pending:
        one.close()
    assert outcomes[-1] is Outcome.GIVEN_UP


def test_what_nobody_provides_is_refused_at_the_start() -> None:
    with app() as bus:

        @bus.handler
        def bill(order: OrderPlaced, session: object, rate: float) -> None: ...

        with pytest.raises(Invalid, match=r"bill asks for 'session'.*is not provided.*bus.provide"):
            bus.start()


def test_a_handler_that_does_not_say_what_it_takes_is_refused() -> None:
    with app() as bus:
        with pytest.raises(Invalid, match="does not say which messages"):
            bus.handler(lambda order: None)
        with pytest.raises(Invalid, match="takes no message"):
            bus.handler(lambda: None)
        with pytest.raises(Invalid, match="not a class of messages"):
            bus.handler(int)(lambda order: None)
        with pytest.raises(Invalid, match="has no handlers"):
            bus.start()


def test_dependencies_in_a_circle_are_refused() -> None:
    with app() as bus:
        bus.provide_with("one", lambda two: two)
        bus.provide_with("two", lambda one: one)
        bus.handler(OrderPlaced)(lambda order, one: None)
        with pytest.raises(Invalid, match="circle"):
            bus.start()


def test_names_on_the_wire() -> None:
    @message("shop.order-placed.v2")
    @dataclass
    class Order:
        number: int

    @dataclass
    class Derived(Order):
        pass

    assert name_of(Order) == "shop.order-placed.v2"
    assert name_of(Derived) == "Derived"
    other = dataclass(type("OrderPlaced", (), {"__annotations__": {"x": int}}))
    with app() as bus:
        bus.register(OrderPlaced)
        with pytest.raises(Invalid, match=r"two classes of messages are called 'OrderPlaced'.*@message"):
            bus.register(other)
        assert bus.types.topics(Derived) == ["Derived", "shop.order-placed.v2"]
    with pytest.raises(Invalid):
        message("no spaces")


def test_correlation_and_causation_follow_the_chain() -> None:
    seen: list[Context] = []
    with app() as bus:

        @bus.handler
        def bill(order: OrderPlaced, context: Context) -> None:
            seen.append(context)
            context.send(Invoiced(order.number), to=bus.name)

        @bus.handler
        def mail(invoice: Invoiced, context: Context) -> None:
            seen.append(context)

        drained(bus, OrderPlaced(1))
    first, second = seen
    assert second.correlation_id == first.correlation_id == first.message_id
    assert second.headers["detent-causation-id"] == first.message_id
    assert second.message_id != first.message_id


def test_published_messages_reach_every_subscriber_once() -> None:
    seen: list[tuple[str, object]] = []
    with detent.open("memory:") as store, app(store) as one, app(store) as two, app(store, send_only=True) as shop:
        for bus in (one, two):
            bus.handler(OrderPlaced)(lambda order, context: seen.append((context.bus.name, order)))
            bus.drain()
        shop.publish(RushOrder(1))  # known here as RushOrder alone
        shop.register(OrderPlaced)
        shop.publish(RushOrder(2))  # and now as an order, too
        shop.publish(Invoiced(3))
        for bus in (one, two):
            bus.drain()
        assert sorted(seen) == sorted([(one.name, OrderPlaced(2)), (two.name, OrderPlaced(2))])
        one.unsubscribe(OrderPlaced)
        shop.publish(OrderPlaced(4))
        assert one.drain() == []
        assert two.drain() == [Outcome.HANDLED]


def test_publishing_what_no_app_has_subscribed_to_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with detent.open("memory:") as store, app(store) as bus, app(store, send_only=True) as shop:
        bus.handler(Invoiced)(lambda _: None)
        bus.prepare()
        for number in range(3):
            shop.publish(OrderPlaced(number))
            shop.publish(Invoiced(number))
        warned = [text for text in caplog.messages if "no queue takes it" in text]
        assert len(warned) == 1
        assert f"{shop.name!r} publishes OrderPlaced" in warned[0]


def test_a_request_is_answered_with_what_the_handler_returns() -> None:
    with detent.open("memory:") as store, app(store) as prices, app(store, send_only=True) as shop:

        @prices.handler
        def price(order: OrderPlaced) -> Invoiced | None:
            return Invoiced(order.number, 100) if order.number else None

        shop.register(Invoiced)
        with prices:
            assert shop.request(OrderPlaced(3), to=prices.name, timeout="20s") == Invoiced(3, 100)
            with pytest.raises(OutcomeUnknown, match="no reply"):
                shop.request(OrderPlaced(0), to=prices.name, timeout="50ms")


def test_a_request_within_a_handler_is_refused() -> None:
    with app() as bus:

        @bus.handler
        def asks(order: OrderPlaced, context: Context) -> None:
            bus.request(Invoiced(1), to="elsewhere")

        assert drained(bus, OrderPlaced(1))[-1] is Outcome.GIVEN_UP


def test_a_reply_that_nobody_waits_for_is_an_error() -> None:
    with app() as bus:
        bus.handler(OrderPlaced)(lambda order, context: context.reply(Invoiced(1)))
        assert drained(bus, OrderPlaced(1))[-1] is Outcome.GIVEN_UP


def test_hooks_see_what_becomes_of_messages() -> None:
    seen = []

    class Watch(Middleware):
        def on_start(self, bus: Bus) -> None:
            seen.append("start")

        def before_handle(self, context: Context) -> None:
            seen.append("before")

        def after_handle(self, context: Context) -> None:
            seen.append("after")

        def after_commit(self, context: Context) -> None:
            seen.append("commit")
            raise Broken("too late to matter")

        def on_failure(self, context: Context, error: BaseException) -> None:
            seen.append(str(error))

        def on_stop(self, bus: Bus) -> None:
            seen.append("stop")

        def before_send(self, envelope):  # type: ignore[no-untyped-def]
            return type(envelope)(envelope.id, envelope.to, {**envelope.headers, "by": "me"}, envelope.body)

    with app(middlewares=[Watch()]) as bus:

        @bus.handler
        def bill(order: OrderPlaced, context: Context) -> None:
            assert context.headers["by"] == "me"
            if context.attempts == 1:
                raise Broken("first")

        assert drained(bus, OrderPlaced(1)) == [Outcome.RETRIED, Outcome.HANDLED]
    assert seen == ["start", "before", "first", "before", "after", "commit", "stop"]


def test_async_hooks_put_everything_on_the_loop() -> None:
    seen = []

    class Watch(Middleware):
        async def before_handle(self, context: Context) -> None:
            await asyncio.sleep(0)
            seen.append("before")

    with app(middlewares=[Watch()]) as bus:
        bus.handler(OrderPlaced)(seen.append)
        drained(bus, OrderPlaced(1))
    assert seen == ["before", OrderPlaced(1)]


def test_a_send_that_goes_nowhere_says_so() -> None:
    with app(send_only=True) as bus:
        with pytest.raises(Invalid, match=r"it is not said where a OrderPlaced is sent.*routes"):
            bus.send(OrderPlaced(1))
        with pytest.raises(detent.NotFound):
            bus.send(OrderPlaced(1), to="nowhere")
        with pytest.raises(Invalid, match="delay or at a time"):
            bus.send(OrderPlaced(1), to="x", delay="1s", at=detent.durations.at_1970_ms(0))
        with pytest.raises(Invalid, match="not a class of messages"):
            bus.send({"a": 1}, to="x")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="an id has"):
            bus.send(OrderPlaced(1), to="x", id="a\nb")
        with pytest.raises(Invalid, match="headers are"):
            bus.send(OrderPlaced(1), to="x", headers={"a": 1})  # type: ignore[dict-item]


def test_routes_and_ids_of_ones_own() -> None:
    seen = []
    with detent.open("memory:") as store, app(store) as billing, app(store, send_only=True) as shop:
        billing.handler(OrderPlaced)(lambda order: seen.append(order.number))
        billing.drain()
        shop.route(OrderPlaced, billing.name)
        for _ in range(3):
            assert shop.send(OrderPlaced(1), id="order-1") == "order-1"
        assert billing.drain() == [Outcome.HANDLED]
    assert seen == [1]


def test_coroutines_are_refused_where_transactions_belong_to_a_thread() -> None:
    with app(unit_of_work=DjangoUnitOfWork()) as bus:
        bus.unit_of_work.check = lambda transport: None  # type: ignore[method-assign, union-attr]

        @bus.handler
        async def bill(order: OrderPlaced) -> None: ...

        with pytest.raises(Invalid, match="belong to a thread"):
            bus.start()


def test_plain_functions_of_one_message_run_in_one_thread() -> None:
    """Though a coroutine is among them: connections of some databases are used in one thread only."""
    threads: list[int] = []

    class Unit:
        provides: dict[str, object] = {}  # noqa: RUF012
        sql = None

        def commit(self) -> None:
            threads.append(threading.get_ident())

        rollback = close = commit

    class Units:
        is_async, provided, place = False, frozenset[str](), None

        def check(self, transport: object) -> None: ...

        def begin(self) -> Unit:
            threads.append(threading.get_ident())
            return Unit()

    with app(unit_of_work=Units()) as bus:
        bus.handler(OrderPlaced)(lambda order: threads.append(threading.get_ident()))

        @bus.handler
        async def also(order: OrderPlaced) -> None:
            await asyncio.sleep(0)

        assert drained(bus, OrderPlaced(1)) == [Outcome.HANDLED]
    assert set(threads) == {threading.get_ident()}
    assert len(threads) == 4


def test_header_of_the_bus_with_another_value_is_refused() -> None:
    with app() as bus:
        bus.handler(OrderPlaced)(lambda order: None)
        bus.prepare()
        for name in ("detent-id", "detent-type", "detent-correlation-id", "detent-sent-at", "content-type"):
            with pytest.raises(Invalid, match=f"the header '{name}' is written by the bus"):
                bus.send_local(OrderPlaced(1), headers={name: "mine"})
        bus.send_local(OrderPlaced(1), id="m-1", headers={"detent-id": "m-1", "detent-type": "OrderPlaced", "own": "x"})
        assert bus.drain() == [Outcome.HANDLED]


def test_headers_can_be_passed_on_as_they_came() -> None:
    seen: list[str] = []
    with app() as bus:

        @bus.handler
        def place(order: OrderPlaced, context: Context) -> None:
            context.send(Invoiced(order.number), to=bus.name, headers=context.headers)

        @bus.handler
        def bill(invoice: Invoiced, context: Context) -> None:
            seen.append(context.headers["own"])

        bus.prepare()
        bus.send_local(OrderPlaced(1), headers={"own": "x"})
        assert bus.drain() == [Outcome.HANDLED] * 2
    assert seen == ["x"]
