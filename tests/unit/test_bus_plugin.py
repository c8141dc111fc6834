"""The fixtures that projects get: a store and an app by a clock that the test moves, and what they have sent."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

import detent
from busworld import Books, enter
from detent.bus import Bus, Context, EngineUnitOfWork, Outcome, QueueTransport, Retries
from detent.errors import Invalid, NotFound
from detent.testing.clock import Clock
from detent.testing.recorded import Recorded, under_test
from processes import PATIENCE_S

NewBus = Callable[..., Bus]


@dataclass(frozen=True)
class Placed:
    number: int


@dataclass(frozen=True)
class Billed:
    number: int


def outcomes(recorded: Recorded) -> list[Outcome]:
    return [one.outcome for one in recorded.outcomes]


# -- the clock ----------------------------------------------------------------------------------------------------


def test_the_clock_stands_still_until_it_is_moved() -> None:
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    clock = Clock(start)
    assert (clock.now, clock(), clock.ms()) == (start, start.timestamp(), start.timestamp() * 1000)
    assert clock.advance("10m") == clock.now == start + timedelta(minutes=10)
    clock.advance(timedelta(milliseconds=1))
    assert clock() == start.timestamp() + 600.001
    for wrong in (-10, None, "soon", timedelta(seconds=-1)):
        with pytest.raises(Invalid):
            clock.advance(wrong)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        Clock(datetime(2026, 1, 31))


def test_the_store_goes_by_the_clock(store: detent.Store, clock: Clock) -> None:
    queue = store.queue("jobs")
    queue.create(lease="30s", backoff="0s")
    queue.publish(b"later", delay="10m")
    clock.advance("599s")
    assert queue.claim() == []
    clock.advance("1s")
    (first,) = queue.claim()
    clock.advance("29s")
    assert queue.claim() == []
    clock.advance("1s")
    (second,) = queue.claim()
    assert (second.body, second.attempts) == (b"later", 2)
    with pytest.raises(detent.StaleReceipt):
        first.ack()
    second.ack()
    queue.publish(b"old", retention="1d")
    clock.advance("30d")  # beyond what the store remembers its clients for, too
    assert (queue.info().available, queue.info().total_expired) == (0, 1)


def test_a_waiting_claim_is_woken_by_the_clock(store: detent.Store, new_bus: NewBus, clock: Clock) -> None:
    bus = new_bus("waiting")
    came = threading.Event()
    bus.handler(Placed)(lambda message: came.set())
    with bus:
        bus.send_local(Placed(1), delay="1h")
        clock.advance("59m")
        assert not came.is_set()
        clock.advance("1m")
        assert came.wait(PATIENCE_S)


# -- apps ---------------------------------------------------------------------------------------------------------


def test_message_to_missing_queue_is_refused_as_in_production(
    bus: Bus, store: detent.Store, recorded: Recorded, new_bus: NewBus
) -> None:
    with pytest.raises(NotFound, match="there is no queue 'mial'"):
        bus.send(Billed(1), to="mial")

    @bus.handler
    def bill(order: Placed, context: Context) -> None:
        context.send(Billed(order.number), to="mial")

    bus.retries = Retries(0, ())
    bus.send_local(Placed(7))
    assert bus.drain() == [Outcome.GIVEN_UP]
    assert "there is no queue 'mial'" in str(recorded.outcomes[0].error)
    assert recorded.of(Billed) == []
    assert [queue.name for queue in store.queues()] == ["app"]
    new_bus("mial")  # an app of the test has its queue
    bus.send(Billed(2), to="mial")
    assert recorded.of(Billed) == [Billed(2)]


def test_an_app_and_what_it_sent(bus: Bus, store: detent.Store, recorded: Recorded, clock: Clock) -> None:
    store.queue("elsewhere").create()

    @bus.handler
    def bill(order: Placed, context: Context) -> None:
        context.publish(Billed(order.number), headers={"by": "test"})
        context.send(Billed(-order.number), to="elsewhere", delay="5m")

    assert bus.name == "app"
    sent = bus.send_local(Placed(7))
    assert bus.drain() == [Outcome.HANDLED]
    assert recorded.of(Billed) == [Billed(7), Billed(-7)]
    assert recorded.of(Placed) == [Placed(7)]
    (published,) = recorded.published
    assert (published.message, published.to, published.app) == (Billed(7), "|Billed|", "app")
    assert (published.headers["by"], published.headers["detent-causation-id"]) == ("test", sent)
    placed, billed = recorded.sent
    assert (placed.id, placed.to, placed.at) == (sent, "app", None)
    assert (billed.to, billed.at) == ("elsewhere", clock.now + timedelta(minutes=5))
    (done,) = recorded.outcomes
    assert (done.id, done.message, done.attempts, done.error) == (sent, Placed(7), 1, None)
    recorded.clear()
    assert (recorded.messages, recorded.outcomes) == ([], [])


def test_delayed_retries_without_waiting(new_bus: NewBus, recorded: Recorded, clock: Clock) -> None:
    bus = new_bus("retrying", retries=Retries(immediate=0, delayed=("10s", "10m")))

    @bus.handler
    def bill(order: Placed, context: Context) -> None:
        context.publish(Billed(order.number))
        raise KeyError(context.attempts)

    bus.send_local(Placed(1))
    assert bus.drain() == [Outcome.RETRIED]
    assert bus.drain() == []
    clock.advance("10s")
    assert bus.drain() == [Outcome.RETRIED]
    clock.advance("599s")
    assert bus.drain() == []
    clock.advance("1s")
    assert bus.drain() == [Outcome.GIVEN_UP]
    assert [(one.attempts, str(one.error)) for one in recorded.outcomes] == [(1, "1"), (2, "2"), (3, "3")]
    assert recorded.of(Billed) == []  # nothing of an attempt that failed is sent


def test_a_lease_that_ends_while_a_handler_runs(new_bus: NewBus, recorded: Recorded, clock: Clock) -> None:
    bus = new_bus("slow", unit_of_work=EngineUnitOfWork())

    @bus.handler
    def bill(order: Placed, context: Context) -> None:
        context.publish(Billed(context.attempts))
        if context.attempts == 1:
            clock.advance("30s")

    bus.send_local(Placed(1))
    assert bus.drain() == [Outcome.LEFT]
    assert recorded.of(Billed) == []
    clock.advance("1m")  # a queue waits a little with what nobody spoke of
    assert bus.drain() == [Outcome.HANDLED]
    assert outcomes(recorded) == [Outcome.LEFT, Outcome.HANDLED]
    assert recorded.of(Billed) == [Billed(2)]  # the first one's commit was refused, with all that it sent


def test_a_message_that_is_no_message_is_recorded(bus: Bus, store: detent.Store, recorded: Recorded) -> None:
    bus.handler(Placed)(lambda message: None)
    bus.send_local(Placed(1))
    bus.drain()
    recorded.clear()
    store.queue("app").publish(b"{", headers={"detent-type": "Placed"})
    assert bus.drain() == [Outcome.GIVEN_UP]
    (found,) = recorded.outcomes
    assert (found.message, found.outcome) == (None, Outcome.GIVEN_UP)
    assert found.error is not None


def test_what_an_outbox_holds_is_sent_when_it_is_forwarded(
    new_bus: NewBus, store: detent.Store, recorded: Recorded, tmp_path: Path
) -> None:
    books = Books(f"sqlite:///{tmp_path / 'books.db'}")
    bus = new_bus("books", **books.options())

    @bus.handler
    def bill(order: Placed, session: Session, context: Context) -> None:
        enter(session, "books", order.number)
        context.publish(Billed(order.number))

    bus.send_local(Placed(1), id="one")
    bus.drain()
    headers = {"detent-id": "one", "detent-type": "Placed"}
    store.queue("books").publish(b'{"number": 1}', headers=headers)  # a broker that delivers it once more
    bus.drain()
    assert outcomes(recorded) == [Outcome.HANDLED, Outcome.REPEATED]
    assert (recorded.of(Billed), books.entries()) == ([Billed(1)], [("books", 1)])
    bus.stop()
    books.close()


def test_an_app_of_ones_own_is_borrowed_and_given_back(
    store: detent.Store, clock: Clock, recorded: Recorded, tmp_path: Path
) -> None:
    transport = QueueTransport(f"file:{tmp_path / 'data'}", "orders")
    own = Bus("shop", transport, unit_of_work=(unit_of_work := EngineUnitOfWork()))

    @own.handler
    def bill(order: Placed) -> None:
        own.publish(Billed(order.number))

    for number in (1, 2):  # it can be had again, by the next test
        with under_test(own, store, clock, recorded) as borrowed:
            assert borrowed is own
            own.send_local(Placed(number))
            assert own.drain() == [Outcome.HANDLED]
            assert own.transport.input_name == "orders"
        assert (own.transport, own.unit_of_work, own.middlewares) == (transport, unit_of_work, [])
        assert "handle" not in vars(own)
    assert recorded.of(Billed) == [Billed(1), Billed(2)]
    assert not (tmp_path / "data").exists()


def test_the_fixture_that_borrows(borrow_bus: Callable[[Bus], Bus], store: detent.Store) -> None:
    own = borrow_bus(Bus("shop", "file:nowhere"))
    own.handler(Placed)(lambda message: None)
    own.send_local(Placed(1))
    assert own.drain() == [Outcome.HANDLED]
    assert [info.name for info in store.queues()] == ["shop"]


# -- in a project -------------------------------------------------------------------------------------------------

PROJECT = """
import asyncio
from dataclasses import dataclass

import pytest
from detent.bus import Context, Outcome


@dataclass
class Placed:
    number: int


@dataclass
class Billed:
    number: int


def test_async_handlers(bus, recorded, clock):
    @bus.handler
    async def bill(order: Placed, context: Context):
        await asyncio.sleep(0)
        context.publish(Billed(order.number))

    bus.send_local(Placed(1), delay="1h")
    assert bus.drain() == []
    clock.advance("1h")
    assert bus.drain() == [Outcome.HANDLED]
    assert recorded.of(Billed) == [Billed(1)]


class TestOwnFixtures:
    @pytest.fixture
    def store(self):
        return "nothing of Detent's"

    def test_they_win(self, store):
        assert store == "nothing of Detent's"

    def test_what_is_no_store_is_refused(self, bus):
        pass
"""

CHEAP = """
import sys

LOADED = set(sys.modules)

def test_nothing_heavy_is_imported():
    heavy = {"sqlalchemy", "pyarrow", "numpy", "lmdb", "detent.store", "detent.bus.app", "pyspark"}
    assert "detent.testing.plugin" in LOADED
    assert not heavy & LOADED
"""


def test_pytest_finds_the_fixtures_by_itself(tmp_path: Path) -> None:
    (tmp_path / "test_cheap.py").write_text(CHEAP)
    (tmp_path / "test_project.py").write_text(PROJECT)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_cheap.py", "test_project.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=PATIENCE_S, check=False)
    said = done.stdout.decode()
    assert "3 passed, 1 error" in said, said + done.stderr.decode()
    assert "the fixture `store` of this project is a str and no Detent store" in said
