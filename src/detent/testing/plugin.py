"""Fixtures for pytest, which finds them by itself in every project that has Detent installed.

>>> def test_an_order_is_invoiced(bus, recorded):
...     bus.handler(invoice)
...     bus.send_local(OrderPlaced(1))
...     bus.drain()
...     assert recorded.of(InvoiceSent) == [InvoiceSent(1)]

A fixture of the same name in your own conftest.py or test comes first, and the others here use it: with a `store` of
your own on ``file:``, `bus` is on that one. Nothing of Detent is imported before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from detent.bus.app import Bus
    from detent.store import Store
    from detent.testing.clock import Clock
    from detent.testing.recorded import Recorded
    from detent.testing.sqs import SqsEndpoint


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until ``clock.advance("10m")``: `store` and `bus` go by it, so that delays, retries,
    leases and retention are tested without waiting. ``clock.now`` is the time."""
    from detent.testing.clock import Clock

    return Clock()


@pytest.fixture
def store(clock: Clock) -> Iterator[Store]:
    """An empty Detent store in memory, which goes by `clock`. It is closed at the end."""
    from detent.store import Store

    with Store("memory:", now_ms=clock.ms) as opened, clock.drives(opened):
        yield opened


@pytest.fixture
def recorded() -> Recorded:
    """What `bus`, and the apps of `new_bus` and `borrow_bus`, have sent, and what became of each delivery: see
    ``recorded.sent``, ``.published``, ``.of(InvoiceSent)`` and ``.outcomes``."""
    from detent.testing.recorded import Recorded

    return Recorded()


@pytest.fixture
def borrow_bus(store: Store, clock: Clock, recorded: Recorded) -> Iterator[Callable[[Bus], Bus]]:
    """Takes an app of yours to `store`, `clock` and `recorded` for the length of the test, whatever its transport is:
    ``borrow_bus(billing)``. Its handlers, its unit of work and its outbox stay what they are. It is stopped at the
    end."""
    from detent.store import Store
    from detent.testing.recorded import under_test

    if not isinstance(store, Store):
        pytest.fail(
            f"the fixture `store` of this project is a {type(store).__name__} and no Detent store: override it for "
            "these tests with one that answers detent.open('memory:')",
            pytrace=False,
        )
    with ExitStack() as stack:
        yield lambda bus: stack.enter_context(under_test(bus, store, clock, recorded))


@pytest.fixture
def new_bus(store: Store, borrow_bus: Callable[[Bus], Bus]) -> Callable[..., Bus]:
    """Makes apps on `store`, with what `Bus` takes: ``new_bus("mail", retries=Retries(immediate=0))``."""
    from detent.bus import Bus, QueueTransport

    def new(name: str = "app", **options: Any) -> Bus:
        return borrow_bus(Bus(name, QueueTransport(store), **options))

    return new


@pytest.fixture
def bus(new_bus: Callable[..., Bus]) -> Bus:
    """An app called `app` on `store`. Add handlers, send to it, and have all of it handled with ``bus.drain()``."""
    return new_bus("app")


@pytest.fixture
def sqs_endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[SqsEndpoint]:
    """A server of SQS with no queues, which ends with the test. Whatever makes a client of SQS during the test talks to
    it, because the environment says where it is; ``sqs_endpoint.client()`` is a client of boto3,
    ``sqs_endpoint.url`` the address."""
    from detent.testing.sqs import serving_sqs

    with serving_sqs() as endpoint:
        for name, value in endpoint.environment.items():
            monkeypatch.setenv(name, value)
        yield endpoint
