"""Any class of `detent.transports` under the bus: what it need not do itself, and how a URL names it."""

from __future__ import annotations

import json
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from detent.bus import Bus, ExternalTransport, Outcome, QueueTransport, Retries, SqsTransport
from detent.bus.messages import Envelope, Incoming
from detent.bus.transport import COUNTED_MAX, QUEUES_MAX, lease_end
from detent.bus.transport_urls import open_transport
from detent.cli import cli
from detent.errors import Denied, DetentError, Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.transports import Delivery, FailedDeliveries, NewMessage


class ListQueue:
    """A queue in lists, which counts no attempts. What a test puts into `failing` is not settled."""

    visibility_max_s = 600.0
    lists: ClassVar[dict[str, list[NewMessage]]] = {}

    def __init__(self, name: str, *, host: str = "localhost", header_max: int = 10_000) -> None:
        self.name, self.host, self.header_max = name, host, header_max
        self.failing: set[str] = set()
        self.hidden_s: list[float] = []
        self.error: Exception | None = None
        self.extend_error: Exception | None = None
        self.taken: dict[str, NewMessage] = {}
        self.deliveries = 0

    @property
    def messages(self) -> list[NewMessage]:
        if self.name not in self.lists:
            raise NotFound(f"there is no list {self.name}")
        return self.lists[self.name]

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> list[Delivery]:
        found = []
        while self.messages and len(found) < limit:
            message = self.messages.pop(0)
            self.deliveries += 1
            self.taken[str(self.deliveries)] = message
            headers = dict(message.headers)
            found.append(Delivery(message.id, str(self.deliveries), message.body, headers=headers))
        return found

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> list[Delivery]:
        if self.extend_error is not None:
            raise self.extend_error
        self.hidden_s.append(visibility_s)
        for delivery in deliveries if not visibility_s else ():
            if delivery.receipt not in self.failing:
                self.messages.append(self.taken.pop(delivery.receipt))
        return [delivery for delivery in deliveries if delivery.receipt in self.failing]

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        self.extend(deliveries, 0)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return [one for one in deliveries if one.receipt in self.failing or not self.taken.pop(one.receipt, None)]

    def send(self, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        if self.error is not None:
            raise self.error
        errors = {}
        for at, message in enumerate(messages):
            if any(len(value) > self.header_max for value in message.headers.values()):
                errors[at] = LimitExceeded("a header is too long")
            else:
                self.messages.append(message)
        return errors

    def create(self) -> None:
        self.lists.setdefault(self.name, [])

    def retention_s(self) -> float | None:
        assert self.messages is not None
        return 86_400

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _lists(monkeypatch: pytest.MonkeyPatch) -> None:
    ListQueue.lists = {}
    module = types.ModuleType("list_queues")
    module.ListQueue = ListQueue  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "list_queues", module)


class Opened:
    """A transport of the app ``billing`` that is open, and its queue."""

    def __init__(self, **options: Any) -> None:
        self.queues: dict[str, ListQueue] = {}
        self.transport = ExternalTransport(self._make, create=True, **options)
        self.transport.open("billing")
        self.transport.open_input()

    def _make(self, name: str) -> ListQueue:
        return self.queues.setdefault(name, ListQueue(name))

    def hold(self, *bodies: bytes) -> list[Incoming]:
        envelopes = [Envelope(body.decode(), "queue:billing", {}, body) for body in bodies]
        assert self.transport.send(envelopes) == {}
        return self.transport.receive(10, 0)

    @property
    def queue(self) -> ListQueue:
        return self.queues["billing"]


# -- what the queue need not do ----------------------------------------------------------------------------------------


def test_giving_up_says_why_a_lease_was_not_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that does not answer has not given the message to another, as a log would say of a stale receipt."""
    opened = Opened()
    (held,) = opened.hold(b"one")
    why = {held.receipt.delivery.receipt: Unavailable("away")}
    monkeypatch.setattr(opened.queue, "extend", lambda given, visibility_s: FailedDeliveries(given, why))
    with pytest.raises(Unavailable, match="away"):
        opened.transport.give_up(held, "broken")
    assert ListQueue.lists == {"billing": [], "billing-failed": []}


def test_attempts_are_counted_where_the_queue_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Opened()
    (held,) = opened.hold(b"one")
    for attempts in (1, 2, 3):
        assert held.attempts == attempts
        opened.transport.retry(held, 0, "")
        (held,) = opened.transport.receive(10, 0)
    opened.transport.acknowledge(held)
    assert opened.hold(b"one")[0].attempts == 1  # what is done is forgotten
    monkeypatch.setattr("detent.bus.transport.COUNTED_MAX", 2)
    opened.hold(b"a", b"b", b"c")
    assert len(opened.transport._counts) == 2 < COUNTED_MAX


def test_delivery_that_is_given_back_counts_as_no_attempt() -> None:
    opened = Opened()
    found = opened.hold(b"one", b"two")
    for _ in range(3):
        opened.transport.give_back(found)
        found = opened.transport.receive(10, 0)
        assert [held.attempts for held in found] == [1, 1]
    for held in found:
        opened.transport.retry(held, 0, "")
    found = opened.transport.receive(10, 0)
    opened.transport.give_back(found)
    assert [held.attempts for held in opened.transport.receive(10, 0)] == [2, 2]


def test_error_of_what_makes_queues_holds_up_no_other_queue() -> None:
    def make(name: str) -> ListQueue:
        if name == "denied":
            raise Denied("no rights")
        if name == "other":
            raise ConnectionError("hush")
        return ListQueue(name)

    transport = ExternalTransport(make, create=True)
    transport.open("billing")
    transport.open_input()
    errors = transport.send([Envelope(to, f"queue:{to}", {}, b"x") for to in ("other", "denied", "billing")])
    assert {at: type(error) for at, error in errors.items()} == {0: Unavailable, 1: Denied}
    assert "what makes the queue 'other' failed with ConnectionError" in str(errors[0])
    assert "hush" not in str(errors[0])
    assert len(ListQueue.lists["billing"]) == 1


def test_a_lease_is_lost_if_the_queue_answers_for_others() -> None:
    opened = Opened()
    one, two = opened.hold(b"one", b"two")
    opened.queue.failing = {one.receipt.delivery.receipt}
    opened.transport.extend([one, two])
    assert (one.lost, two.lost) == (True, False)


def test_a_lease_is_kept_until_its_end_if_the_queue_does_not_answer() -> None:
    opened = Opened()
    (held,) = opened.hold(b"one")
    opened.queue.failing = {held.receipt.delivery.receipt}
    with pytest.raises(Unavailable, match="1 leases were not extended"):
        opened.transport.extend([held])
    assert not held.lost
    held.receipt.until = 0.0
    opened.transport.extend([held])
    assert held.lost


@pytest.mark.parametrize("error", [ConnectionError("away"), Unavailable("away"), Denied("no rights")])
def test_lease_is_lost_at_its_end_if_queue_raises(error: Exception) -> None:
    opened = Opened()
    held, over = opened.hold(b"one", b"two")
    opened.queue.extend_error = error
    over.receipt.until = 0.0
    with pytest.raises(Unavailable, match=f"2 leases were not extended: .*{error}"):
        opened.transport.extend([held, over])
    assert (held.lost, over.lost) == (False, True)


def test_what_was_not_settled_is_a_stale_receipt() -> None:
    opened = Opened()
    (held,) = opened.hold(b"one")
    opened.queue.failing = {held.receipt.delivery.receipt}
    for settle in (lambda: opened.transport.acknowledge(held), lambda: opened.transport.retry(held, 0, "")):
        with pytest.raises(StaleReceipt, match="did not settle the message one"):
            settle()
    assert not held.receipt.settled


def test_a_delay_between_attempts_is_cut_to_the_longest_lease() -> None:
    opened = Opened()
    (held,) = opened.hold(b"one")
    opened.transport.retry(held, 7_200, "")
    assert opened.queue.hidden_s == [600.0]


def test_a_lease_is_cut_to_the_longest_one() -> None:
    assert Opened(lease="1h").transport.extend_every_s == 200.0


def test_a_message_is_given_up_without_a_reason_that_does_not_fit() -> None:
    opened = Opened()
    opened.queues["billing-failed"].header_max = 20
    for number, reason in enumerate(("short", "x" * 30)):
        (held,) = opened.hold(b"%d" % number)
        opened.transport.give_up(held, reason)
    first, second = ListQueue.lists["billing-failed"]
    assert (first.headers["detent-error"], first.headers["detent-attempts"]) == ("short", "1")
    assert (second.body, "detent-error" in second.headers) == (b"1", False)
    assert ListQueue.lists["billing"] == []


def test_stale_holder_sends_nothing_to_failed_queue() -> None:
    opened = Opened()
    known, over, told = opened.hold(b"known", b"over", b"told")
    known.lost, over.receipt.until = True, 0.0
    opened.queue.failing = {told.receipt.delivery.receipt}
    for stale in (known, over, told):
        with pytest.raises(StaleReceipt):
            opened.transport.give_up(stale, "broken")
    assert ListQueue.lists["billing-failed"] == []
    assert len(opened.queue.taken) == 3  # nor is a message deleted that another one has


def test_lease_is_counted_from_answer_and_no_longer_than_queue_was_given() -> None:
    asked_at = time.monotonic() - 10
    assert lease_end(asked_at, 1, 5) == asked_at + 6  # the process was paused before it read the answer
    assert lease_end(asked_at, 60, 5) <= time.monotonic() + 5


def test_a_message_that_the_failed_queue_does_not_take_is_not_acknowledged() -> None:
    opened = Opened()
    (held,) = opened.hold(b"one")
    opened.queues["billing-failed"].error = Unavailable("gone")
    with pytest.raises(Unavailable):
        opened.transport.give_up(held, "broken")
    assert opened.queue.taken


def test_behind_what_may_pass_later_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.bus.transport.SEND_MAX", 2)
    opened = Opened()
    opened.queue.error = Unavailable("gone")
    envelopes = [Envelope(str(at), "queue:billing", {}, b"x") for at in range(5)]
    errors = opened.transport.send([*envelopes, Envelope("5", "queue:billing-failed", {}, b"x")])
    assert {at: type(error) for at, error in errors.items()} == dict.fromkeys(range(5), Unavailable)
    assert len(ListQueue.lists["billing-failed"]) == 1


def test_few_queues_stay_open() -> None:
    opened = Opened()
    for number in range(QUEUES_MAX + 10):
        opened.transport.send([Envelope("1", f"queue:other-{number}", {}, b"x")])
    assert len(opened.transport._open) == QUEUES_MAX


def test_a_queue_that_cannot_send_is_refused() -> None:
    class Silent(ListQueue):
        send = None  # type: ignore[assignment]

    transport = ExternalTransport(Silent)
    transport.open("billing")
    with pytest.raises(Invalid, match="Silent has no send: the bus needs"):
        transport.open_input()


def test_a_missing_queue_says_what_to_do() -> None:
    transport = ExternalTransport(ListQueue)
    transport.open("billing")
    with pytest.raises(NotFound, match=r"needs the queue 'billing', and ListQueue finds none .* create=True"):
        transport.open_input()


@pytest.mark.parametrize("given", [None, 7, ListQueue("billing")])
def test_what_makes_no_queues_is_refused(given: Any) -> None:
    with pytest.raises(Invalid, match="a class or a function"):
        ExternalTransport(given)


# -- by URL ----------------------------------------------------------------------------------------------------------


@dataclass
class OrderPlaced:
    number: int


def test_a_url_names_a_class_and_the_options_of_both() -> None:
    url = (
        "list_queues:ListQueue:bills?host=h&create=true&failed=lost&replies=r&lease=5s"
        "&topic.OrderPlaced=bills,mail&topic.Other="
    )
    transport = open_transport(url)
    assert isinstance(transport, ExternalTransport)
    transport.open("billing")
    transport.open_input()
    assert (transport.input_name, transport.failed_name, transport.reply_name) == ("bills", "lost", "r")
    assert transport.place == "list_queues#bills"
    assert transport.extend_every_s == pytest.approx(5 / 3)
    transport.subscribe(["OrderPlaced"])
    assert transport.redelivery_s() == 2 * 86_400
    with pytest.raises(Invalid, match=r"topic.Other=bills in a URL"):
        transport.subscribe(["Other"])


@pytest.mark.parametrize(
    ("url", "kind", "place"),
    [
        ("file:./data", QueueTransport, "file:./data#"),
        ("https://host:7410", QueueTransport, "https://host:7410#"),
        ("detent:file:./data#q", QueueTransport, "file:./data#q"),
        ("sqs:bills?region=eu-west-1&create=true", SqsTransport, "#bills"),
        ("redis://:hush@host/0?lease=5s#bills", ExternalTransport, "redis#bills"),
        ("redis://host/0", ExternalTransport, "redis#"),
    ],
)
def test_each_url_has_its_transport(url: str, kind: type, place: str) -> None:
    transport = Bus("billing", url).transport
    assert isinstance(transport, kind)
    assert transport.place.endswith(place)
    assert "hush" not in transport.place


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("rabbit:x", "'rabbit' is not a kind of transport: write .*MODULE:CLASS:QUEUE"),
        ("list_queues:ListQueue:?hots=h", "did you mean host"),
        ("list_queues:ListQueue:?create=yes", "create is true or false"),
        ("list_queues:ListQueue:?topic.a b=x", "not a name to publish under"),
        ("list_queues:ListQueue:?failed=a/b", "not the name of a queue"),
        ("sqs:https://sqs.eu-west-1.amazonaws.com/1/q", "a name and no URL"),
        ("sqs:q?secret=hush", "options region, endpoint"),
    ],
)
def test_a_wrong_url_says_what_to_write(url: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        Bus("billing", url)
    assert "hush" not in str(caught.value)


def test_the_transport_is_chosen_before_the_first_message() -> None:
    bus = Bus("billing", "memory:", send_only=True)
    bus.use("list_queues:ListQueue:")
    bus.open()
    with pytest.raises(Invalid, match="is open: say what carries its messages before that"):
        bus.use("memory:")
    bus.stop()


def test_an_app_handles_retries_and_gives_up_on_a_class_of_lists() -> None:
    bus = Bus("billing", "list_queues:ListQueue:?create=true&topic.OrderPlaced=billing", retries=Retries(1, ()))
    seen = []

    @bus.handler
    def invoice(placed: OrderPlaced) -> None:
        seen.append(placed.number)
        if placed.number < 0:
            raise ValueError("less than nothing")

    bus.prepare()
    bus.publish(OrderPlaced(1))
    bus.publish(OrderPlaced(-1))
    assert bus.drain() == [Outcome.HANDLED, Outcome.RETRIED, Outcome.GIVEN_UP]
    assert seen == [1, -1, -1]
    (failed,) = ListQueue.lists["billing-failed"]
    assert (json.loads(failed.body), "less than nothing" in failed.headers["detent-error"]) == ({"number": -1}, True)
    bus.stop()


def test_a_word_that_is_not_an_option_is_refused() -> None:
    with pytest.raises(TypeError, match="ExternalTransport has no options leese"):
        ExternalTransport(ListQueue, leese="30s")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="queue"):
        Bus("shop", "memory:").send(OrderPlaced(1), to="billing", queue="billing")  # type: ignore[call-arg]


APP = """
from dataclasses import dataclass
from detent.bus import Bus

@dataclass
class OrderPlaced:
    number: int

billing = Bus("billing", "memory:")

@billing.handler
def invoice(placed: OrderPlaced):
    print("invoice for", placed.number)
"""


def test_the_command_takes_a_transport_by_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list_shop.py").write_text(APP)
    url = "list_queues:ListQueue:?create=true&topic.OrderPlaced=billing"
    headers = {"detent-type": "OrderPlaced", "detent-id": "1"}
    ListQueue.lists["billing"] = [NewMessage("1", b'{"number": 7}', headers)]
    found = CliRunner().invoke(cli, ["bus", "run", "list_shop.py", "--once", "--json", "--transport", url])
    assert found.exit_code == 0, found.output
    assert "invoice for 7" in found.output
    shown = CliRunner().invoke(cli, ["bus", "show", "list_shop.py", "--json", "--transport", url])
    assert json.loads(shown.output)["transport"] == "list_queues#billing"
    wrong = CliRunner().invoke(cli, ["bus", "run", "list_shop.py", "--transport", "rabbit:x"])
    assert wrong.exit_code != 0
    assert "not a kind of transport" in wrong.output + str(wrong.exception)
