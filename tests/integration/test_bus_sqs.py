"""What is SQS's alone: FIFO queues, topics that are listed, its limits, and answers of which a part failed."""

from __future__ import annotations

import contextlib
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError
from sqlalchemy.orm import Session

import s3server
import sqsserver
from busworld import AT_ONCE, Books, Broken, Invoiced, OrderPlaced, enter
from detent.bus import Bus, Context, DbApiUnitOfWork, Outcome, SqlOutbox, SqlTracker
from detent.bus.calling import Calling
from detent.bus.forwarder import Forwarder
from detent.bus.messages import Envelope, Incoming
from detent.bus.transport import ERROR, ORIGINAL_ID, HeldDelivery
from detent.bus.transport_external import SqsTransport
from detent.errors import Denied, DetentError, Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.transports import Delivery, queue_sqs
from detent.transports.queue_sqs import RETENTION_S
from detent.transports.sqs_client import VISIBILITY_S_MAX
from detent.transports.sqs_message import MESSAGE_BYTES_MAX, read, write
from processes import eventually
from servers import free_port

SEEN_S = 10.0
KINDS = [
    pytest.param("moto", marks=[pytest.mark.s3, pytest.mark.xdist_group("s3")]),
    pytest.param("endpoint", marks=pytest.mark.xdist_group("bus_sqs_own")),
]

Open = Callable[..., SqsTransport]


@pytest.fixture(scope="module", params=KINDS)
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "moto":
        yield s3server.shared_server().endpoint
        return
    folder: Path = tmp_path_factory.mktemp("bus") / "store"
    with sqsserver.running(folder) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield server.url


@pytest.fixture
def name() -> str:
    return f"q{uuid.uuid4().hex[:12]}"


@pytest.fixture
def app(endpoint: str) -> Iterator[Open]:
    """Opens transports, which are closed at the end."""
    with contextlib.ExitStack() as closing:

        def opened(name: str, *, receives: bool = True, **options: Any) -> SqsTransport:
            made = SqsTransport(**{"endpoint": endpoint, "region": "us-east-1", "create": True, **options})
            closing.callback(made.close)
            made.open(name)
            if receives:
                made.open_input()
            return made

        yield opened


def envelope(to: str, body: bytes = b"body", **options: Any) -> Envelope:
    number = options.pop("id", None) or uuid.uuid4().hex
    return Envelope(number, to, {"detent-id": number, **options.pop("headers", {})}, body, **options)


def one(transport: SqsTransport) -> Incoming:
    (found,) = transport.receive(10, SEEN_S)
    return found


# -- on servers ----------------------------------------------------------------------------------------------------


def test_a_fifo_queue_keeps_order_and_takes_a_message_once(app: Open, name: str) -> None:
    queue = f"{name}.fifo"
    billing = app("billing", queue=queue)
    assert billing.failed_name == f"{name}-failed"
    sent = [envelope(f"queue:{queue}", b"%d" % number) for number in range(12)]
    assert billing.send(sent) == {}
    assert billing.send(sent[:3]) == {}
    found: list[bytes] = []
    while len(found) < 12:
        came = billing.receive(5, SEEN_S)
        found += [held.body for held in came]
        for held in came:
            billing.acknowledge(held)
    assert found == [b"%d" % number for number in range(12)]
    assert billing.receive(10, 0) == []
    errors = billing.send([envelope(f"queue:{queue}", visible_ms=int(time.time() * 1000) + 60_000)])
    assert isinstance(errors[0], Unavailable)
    assert "FIFO queue, which delays no single message" in str(errors[0])


def test_groups_do_not_wait_for_each_other(app: Open, name: str) -> None:
    billing = app(name, queue=f"{name}.fifo", failed=f"{name}-dead.fifo")
    strange = "grüße " * 100
    for group in ("a", "a", strange):
        assert billing.send([envelope(f"queue:{name}.fifo", group.encode(), headers={"detent-group": group})]) == {}
    held = eventually(lambda found=[]: len(found.extend(billing.receive(1, 1)) or found) == 2 and found)
    assert {one.body for one in held} == {b"a", strange.encode()}
    billing.give_up(held[0], "broken")
    dead = app(name, queue=f"{name}-dead.fifo")
    assert one(dead).headers[ERROR] == "broken"


def test_queues_have_to_be_there(app: Open, name: str) -> None:
    with pytest.raises(NotFound, match=rf"{name}'.*create=True"):
        app(name, create=False)
    app(name, queue=name, failed=f"{name}-other")
    with pytest.raises(NotFound, match=f"{name}-failed"):
        app(name, create=False)
    billing = app(name, failed=f"{name}-other", replies=f"{name}-r", create=False)
    with pytest.raises(NotFound, match=f"{name}-r"):
        billing.open_replies()


def test_queues_made_here_keep_messages_as_long_as_they_can(app: Open, name: str) -> None:
    billing = app(name)
    for queue in (name, f"{name}-failed"):
        answer = billing._queues.call("get_queue_attributes", queue, AttributeNames=["MessageRetentionPeriod"])
        assert answer["Attributes"]["MessageRetentionPeriod"] == "1209600"
    app(name)  # and they are made once


def test_a_message_that_just_fits(app: Open, name: str) -> None:
    billing = app(name)
    fits = b"x" * (MESSAGE_BYTES_MAX - write({"detent-id": "i"}, b"x").size + 1)
    errors = billing.send([envelope(f"queue:{name}", fits, id="i"), envelope(f"queue:{name}", fits + b"x", id="i")])
    assert {index: type(error) for index, error in errors.items()} == {1: LimitExceeded}
    held = one(billing)
    assert held.body == fits
    billing.give_up(held, "there is no room for this reason")  # as it came, rather than not at all
    dead = app(name, queue=f"{name}-failed", failed=name)
    assert one(dead).body == fits


def test_a_foreign_message_is_given_up_with_all_it_had(app: Open, name: str) -> None:
    billing = app(name)
    binary = {"DataType": "Binary", "BinaryValue": b"\x00\xff"}
    texts = {f"a{number}": {"DataType": "String", "StringValue": "v"} for number in range(9)}
    for attributes in ({"bytes": binary}, {"bytes": binary, **texts}):
        billing._queues.call("send_message", name, MessageBody="b", MessageAttributes=attributes)
        held = one(billing)
        assert held.headers == {key: "v" for key in attributes if key != "bytes"}
        billing.give_up(held, "why")
        dead = one(app(name, queue=f"{name}-failed", failed=name))
        assert dead.receipt.delivery.own["bytes"]["BinaryValue"] == b"\x00\xff"
        assert dead.headers.get(ORIGINAL_ID) == (held.transport_id if len(attributes) == 1 else None)


def test_what_is_published_goes_to_those_that_are_listed(app: Open, name: str) -> None:
    billing = app(name, topics={"A": [name, name], "None": []})
    billing.subscribe(["A"])
    billing.unsubscribe(["None", "B"])
    with pytest.raises(Invalid, match=rf'"B": \[\'{name}\'\]'):
        billing.subscribe(["B"])
    with pytest.raises(Invalid, match="take it out"):
        billing.unsubscribe(["A"])
    sent = [envelope("topic:|A|Base|"), envelope("topic:|None|"), envelope("topic:|B|")]
    errors = billing.send(sent)
    assert {index: type(error) for index, error in errors.items()} == {2: Invalid}
    assert 'topics={"B": ["billing"]}' in str(errors[2])
    assert one(billing).headers["detent-topics"] == "|A|Base|"


def test_a_delay_has_a_limit(app: Open, name: str) -> None:
    billing = app(name)
    now_ms = int(time.time() * 1000)
    sent = [envelope(f"queue:{name}", visible_ms=now_ms + delay_s * 1000) for delay_s in (902, 960)]
    errors = billing.send(sent)
    assert {index: type(error) for index, error in errors.items()} == {1: Invalid}
    assert "outbox" in str(errors[1])


# -- without a server ----------------------------------------------------------------------------------------------


def test_requests_need_a_queue_for_replies() -> None:
    transport = SqsTransport("billing", client=_Client())
    transport.open("billing")
    for ask in (transport.open_replies, lambda: transport.next_replies(0), lambda: transport.reply_name):
        with pytest.raises(Invalid, match="replies='shop-replies-1'"):
            ask()


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "a b"},
        {"failed": ""},
        {"replies": "x" * 81},
        {"lease": "0s"},
        {"topics": {"A": "billing"}},
        {"topics": {"a b": []}},
        {"topics": {"A": ["a/b"]}},
    ],
)
def test_wrong_options_are_refused(options: Any) -> None:
    with pytest.raises(Invalid):
        SqsTransport(**options)


def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    transport = SqsTransport("q", endpoint=f"http://127.0.0.1:{free_port()}", region="us-east-1")
    transport.open("billing")
    with contextlib.closing(transport):
        with pytest.raises(Unavailable, match="does not answer"):
            transport.open_input()
        assert isinstance(transport.send([envelope("queue:q")])[0], Unavailable)


class _Client:
    """A client of SQS that answers as it is told, and notes what it is asked for."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    def get_queue_url(self, QueueName: str) -> dict[str, str]:
        return {"QueueUrl": QueueName}

    def __getattr__(self, action: str) -> Callable[..., Any]:
        if action.startswith("_") or action == "meta":
            raise AttributeError(action)

        def call(**request: Any) -> Any:
            self.asked.append(request)
            answer = self.answers.pop(0) if self.answers else {}
            if isinstance(answer, Exception):
                raise answer
            return answer(request) if callable(answer) else answer

        return call


def _all(request: dict[str, Any]) -> dict[str, Any]:
    return {"Successful": [{"Id": entry["Id"]} for entry in request["Entries"]]}


def _refused(*failures: tuple[str, str, bool]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """An answer in which some entries failed: their ids, codes and whose fault it is."""
    failed = [{"Id": id, "Code": code, "SenderFault": fault, "Message": code} for id, code, fault in failures]

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        ids = {entry["Id"] for entry in request["Entries"]} - {entry["Id"] for entry in failed}
        return {"Successful": [{"Id": id} for id in ids], "Failed": failed}

    return answer


def _error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, "Call")


def _opened(*answers: Any, **options: Any) -> tuple[SqsTransport, _Client]:
    client = _Client(*answers)
    transport = SqsTransport(client=client, **options)
    transport.open("billing")
    return transport, client


def _held(count: int, received_s: float | None = None) -> list[Incoming]:
    now = time.monotonic() if received_s is None else received_s
    held = [Delivery("m", f"r{at}", b"b", 1, ends=now + VISIBILITY_S_MAX) for at in range(count)]
    return [Incoming(str(at), {}, b"b", 1, None, HeldDelivery(delivery, now + 30)) for at, delivery in enumerate(held)]


def _kinds(errors: dict[int, DetentError]) -> dict[int, type[DetentError]]:
    return {index: type(error) for index, error in errors.items()}


def test_ten_messages_and_a_mebibyte_a_call() -> None:
    transport, client = _opened(*[_all] * 20)
    assert transport.send([envelope("queue:a") for _ in range(25)] + [envelope("queue:b")]) == {}
    assert [(asked["QueueUrl"], len(asked["Entries"])) for asked in client.asked] == [
        ("a", 10),
        ("a", 10),
        ("a", 5),
        ("b", 1),
    ]
    client.asked.clear()
    assert transport.send([envelope("queue:a", b"x" * 400_000) for _ in range(5)]) == {}
    assert [len(asked["Entries"]) for asked in client.asked] == [2, 2, 1]


def test_a_part_of_a_call_fails() -> None:
    answer = _refused(
        ("1", "InvalidMessageContents", True), ("2", "InternalError", False), ("3", "RequestThrottled", True)
    )
    transport, client = _opened(answer, _all)
    errors = transport.send([envelope("queue:a") for _ in range(11)] + [envelope("queue:b")])
    assert _kinds(errors) == {1: Invalid, 2: Unavailable, 3: Unavailable, 10: Unavailable}  # 10 would overtake 2 and 3
    assert [asked["QueueUrl"] for asked in client.asked] == ["a", "b"]


def test_what_never_passes_holds_up_nothing() -> None:
    transport, client = _opened(_refused(("0", "InvalidParameterValue", True)), _all)
    assert _kinds(transport.send([envelope("queue:a") for _ in range(11)])) == {0: Invalid}
    assert len(client.asked) == 2


def test_an_entry_that_is_not_mentioned_was_not_sent() -> None:
    transport, _ = _opened({"Successful": [{"Id": "0"}]})
    assert _kinds(transport.send([envelope("queue:a"), envelope("queue:a")])) == {1: Unavailable}


def test_a_refused_call_is_taken_apart() -> None:
    transport, client = _opened(_error("InvalidMessageContents"), _all, _error("InvalidMessageContents"), _all)
    assert _kinds(transport.send([envelope("queue:a") for _ in range(3)])) == {1: Invalid}
    assert [len(asked["Entries"]) for asked in client.asked] == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (_error("AWS.SimpleQueueService.NonExistentQueue"), NotFound),
        (_error("QueueDoesNotExist"), NotFound),
        (_error("AccessDenied"), Denied),
        (_error("RequestThrottled"), Unavailable),
        (ReadTimeoutError(endpoint_url="http://localhost"), Unavailable),
    ],
)
def test_a_queue_that_refuses_everything(answer: Exception, kind: type[DetentError]) -> None:
    transport, client = _opened(answer, _all)
    errors = transport.send([envelope("queue:a") for _ in range(11)] + [envelope("queue:b")])
    assert _kinds(errors) == dict.fromkeys(range(11), kind)
    assert [asked["QueueUrl"] for asked in client.asked] == ["a", "b"]


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_of_two_failures_the_one_that_may_pass_counts(order: tuple[str, str]) -> None:
    def answer(request: dict[str, Any]) -> Any:
        raise _error("InvalidMessageContents" if request["QueueUrl"] == "a" else "RequestThrottled")

    transport, _ = _opened(answer, answer, topics={"T": list(order)})
    assert _kinds(transport.send([envelope("topic:|T|")])) == {0: Unavailable}


def test_how_far_ahead_messages_are_sent() -> None:
    assert SqsTransport("q").ahead_s == 450
    assert SqsTransport("q.fifo").ahead_s == 0
    assert SqsTransport("q", topics={"A": ["a", "b.fifo"]}).ahead_s == 0
    transport, _ = _opened(_all, _all)
    transport.send([envelope("queue:a")])
    assert transport.ahead_s == 450
    transport.send([envelope("queue:a.fifo")])
    assert transport.ahead_s == 0


def test_what_a_fifo_queue_gets_later_holds_up_nothing() -> None:
    transport, client = _opened(*[_all] * 4, topics={"T": ["a", "a.fifo"]})
    later_ms = int(time.time() * 1000) + 60_000
    sent = [
        envelope("queue:a.fifo", visible_ms=later_ms),
        envelope("queue:a.fifo"),
        envelope("topic:|T|", visible_ms=later_ms),
    ]
    assert _kinds(transport.send(sent)) == {0: Unavailable, 2: Unavailable}
    assert [asked["QueueUrl"] for asked in client.asked] == ["a.fifo"]  # of a topic all or none


class _Outbox:
    """An outbox in SQLite, and what forwards it."""

    def __init__(self, path: Path, transport: SqsTransport) -> None:
        self.units = DbApiUnitOfWork(lambda: sqlite3.connect(path))
        self.outbox = SqlOutbox()
        self.forwarder = Forwarder(
            "billing", self.outbox, self.units, transport, Calling(unit_is_async=False), lease_s=30
        )
        self.within(self.outbox.prepare)

    def within(self, call: Callable[..., Any], *values: Any) -> Any:
        unit: Any = self.units.begin()
        try:
            found = call(unit, *values)
            unit.commit()
            return found
        finally:
            unit.close()

    def save(self, *envelopes: Envelope) -> None:
        self.within(self.outbox.save, envelopes)

    def counts(self) -> tuple[int, int]:
        found = self.within(self.outbox.counts)
        return found.pending, found.failed


def test_an_outbox_keeps_what_a_fifo_queue_is_to_get_later(tmp_path: Path) -> None:
    transport, client = _opened(*[_all] * 4)
    waiting = _Outbox(tmp_path / "o.db", transport)
    soon_ms = int(time.time() * 1000) + 1_500
    waiting.save(envelope("queue:a.fifo", b"soon", visible_ms=soon_ms))
    assert waiting.forwarder.forward_all() == 0
    assert waiting.counts() == (1, 0)
    waiting.save(envelope("queue:a.fifo", b"now"))
    eventually(lambda: waiting.forwarder.forward_all() and waiting.counts() == (0, 0))
    assert [asked["Entries"][0]["MessageBody"] for asked in client.asked] == ["now", "soon"]
    assert time.time() * 1000 >= soon_ms


def test_a_clock_that_is_behind_sets_nothing_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transport, client = _opened(*[_all] * 4)
    waiting = _Outbox(tmp_path / "o.db", transport)
    now_s = time.time()
    waiting.save(*(envelope("queue:a", visible_ms=int((now_s + delay_s) * 1000)) for delay_s in (440, 898)))
    monkeypatch.setattr(queue_sqs.time, "time", lambda: now_s - 300)
    assert waiting.forwarder.forward_all() == 1
    assert waiting.counts() == (1, 0)
    assert client.asked[0]["Entries"][0]["DelaySeconds"] == 740


@pytest.mark.parametrize("answer", [_error("QueueDoesNotExist"), _error("AccessDenied")])
def test_a_reply_to_a_queue_that_takes_none_is_dropped(answer: Exception) -> None:
    transport, client = _opened(answer, _all)
    assert transport.send([envelope("reply:gone"), envelope("queue:b")]) == {}
    assert [asked["QueueUrl"] for asked in client.asked] == ["gone", "b"]
    transport, _ = _opened(_error("RequestThrottled"))
    assert _kinds(transport.send([envelope("reply:r")])) == {0: Unavailable}


def test_leases_are_extended_ten_at_a_time() -> None:
    gone = _refused(("0", "ReceiptHandleIsInvalid", True), ("1", "MessageNotInflight", True))
    transport, client = _opened(_all, ReadTimeoutError(endpoint_url="http://localhost"), gone, lease="30.5s")
    held = _held(25)
    with pytest.raises(Unavailable, match="leases were not extended"):
        transport.extend(held)
    assert [len(asked["Entries"]) for asked in client.asked] == [10, 10, 5]
    assert {entry["VisibilityTimeout"] for asked in client.asked for entry in asked["Entries"]} == {31}
    assert [at for at, delivery in enumerate(held) if delivery.lost] == [20, 21]


def test_a_lease_that_may_still_be_there_is_not_lost() -> None:
    transport, _ = _opened(_refused(("0", "InternalError", False)))
    held = _held(2)
    with pytest.raises(Unavailable, match="InternalError"):
        transport.extend(held)
    assert not any(delivery.lost for delivery in held)


def test_lease_is_lost_at_its_end_if_sqs_does_not_answer() -> None:
    transport, _ = _opened(ReadTimeoutError(endpoint_url="http://localhost"))
    held, over = _held(1)[0], _held(1, time.monotonic() - 31)[0]
    with pytest.raises(Unavailable, match="leases were not extended"):
        transport.extend([held, over])
    assert (held.lost, over.lost) == (False, True)


def test_nothing_is_hidden_beyond_twelve_hours() -> None:
    transport, client = _opened({}, {}, {}, {})
    hours_ago = time.monotonic() - 11.5 * 3600
    nearly, over = _held(1, time.monotonic() - 43_190)[0], _held(1, time.monotonic() - 43_205)[0]
    transport.extend([over])
    assert (over.lost, client.asked) == (True, [])
    transport.extend([over, nearly])
    assert (nearly.lost, len(client.asked)) == (False, 1)
    transport.retry(_held(1, hours_ago)[0], 3600, "")
    transport.retry(_held(1)[0], 10**9, "")
    transport.retry(_held(1)[0], 0.2, "")
    assert pytest.approx([asked["VisibilityTimeout"] for asked in client.asked], abs=2) == [9, 1799, 43199, 1]


@pytest.mark.parametrize("code", ["ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"])
def test_stale_receipts(code: str) -> None:
    transport, client = _opened(_error(code), _error(code), {}, {}, _error(code))
    (held,) = _held(1)
    for settle in (
        transport.acknowledge,
        lambda one: transport.retry(one, 0, ""),
        lambda one: transport.give_up(one, ""),
    ):
        with pytest.raises(StaleReceipt):
            settle(held)
    assert not held.receipt.settled
    assert "MessageBody" in client.asked[3]


def test_stale_holder_sends_nothing_to_failed_queue() -> None:
    transport, client = _opened(_error("ReceiptHandleIsInvalid"))
    known, over, told = _held(1)[0], _held(1, time.monotonic() - 31)[0], _held(1)[0]
    known.lost = True
    for stale in (known, over, told):
        with pytest.raises(StaleReceipt):
            transport.give_up(stale, "why")
    assert [set(asked) for asked in client.asked] == [{"QueueUrl", "ReceiptHandle", "VisibilityTimeout"}]


def test_redelivery_counts_failed_queue() -> None:
    said: dict[str, Any] = {"billing": {"MessageRetentionPeriod": "345600"}, "billing-failed": {}}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return {"Attributes": said[request["QueueUrl"]]}

    transport, client = _opened(*[answer] * 4, answer, _error("AccessDenied"))
    assert transport.redelivery_s() is None
    said["billing-failed"] = {"MessageRetentionPeriod": "86400"}
    assert transport.redelivery_s() == 5 * 86_400
    assert transport.redelivery_s() is None  # not to this app
    assert len(client.asked) == 6


def test_tracker_outlasts_queues_that_are_made_here() -> None:
    assert SqlTracker().retention_s > 2 * RETENTION_S


def test_what_cannot_be_put_aside_is_not_deleted() -> None:
    transport, client = _opened({}, _error("RequestThrottled"))
    with pytest.raises(Unavailable):
        transport.give_up(_held(1)[0], "why")
    assert len(client.asked) == 2


def test_receiving_goes_on_until_an_answer_is_short() -> None:
    def answer(request: dict[str, Any]) -> dict[str, Any]:
        count = request["MaxNumberOfMessages"]
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": uuid.uuid4().hex, "Body": "b"} for _ in range(count)]}

    transport, client = _opened(answer, answer, answer)
    assert len(transport.receive(25, 100)) == 25
    assert [(asked["MaxNumberOfMessages"], asked["WaitTimeSeconds"]) for asked in client.asked] == [
        (10, 20),
        (10, 0),
        (5, 0),
    ]
    transport, _ = _opened(answer, _error("InternalError"))
    assert len(transport.receive(25, 0)) == 10
    transport, _ = _opened(_error("InternalError"))
    with pytest.raises(Unavailable):
        transport.receive(25, 0)


def test_replies_that_could_not_be_deleted_are_replies() -> None:
    messages = {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}]}
    transport, _ = _opened(messages, _error("InternalError"), replies="r")
    assert transport.next_replies(0) == [({}, b"b")]


@pytest.mark.parametrize(
    ("headers", "body", "seen"),
    [
        ('{"detent-body-encoding": "base64"}', "no base64!", b"no base64!"),
        ('{"detent-body-encoding": "rot13"}', "as it is", b"as it is"),
        ('{"detent-body-encoding": "empty"}', "anything", b""),
        ("\ud800", "half\ud800", b"half\xed\xa0\x80"),
        ('{"a": null}', "b", b"b"),
    ],
)
def test_whatever_comes_is_read_and_can_be_given_up(headers: str, body: str, seen: bytes) -> None:
    attributes = {"detent-headers": {"DataType": "String", "StringValue": headers}}
    message = {"MessageId": "m", "ReceiptHandle": "r", "Body": body, "MessageAttributes": attributes}
    assert read(message).body == seen
    transport, client = _opened({"Messages": [message]})
    (held,) = transport.receive(1, 0)
    transport.give_up(held, "")
    assert len(client.asked) == 4


def test_the_header_that_says_how_a_body_is_written_is_not_a_senders() -> None:
    transport, _ = _opened()
    errors = transport.send([envelope("queue:a", headers={"detent-body-encoding": "x"})])
    assert _kinds(errors) == {0: Invalid}


def test_an_app_on_sqs_takes_effect_once(endpoint: str, name: str, tmp_path: Path) -> None:
    """Tracker and outbox in SQLite, messages through SQS: a duplicate is skipped, what was sent arrives."""
    books, seen = Books(f"sqlite:///{tmp_path / 'books.db'}"), []
    transport = SqsTransport(endpoint=endpoint, region="us-east-1", create=True)
    bus = Bus(name, transport, retries=AT_ONCE, subscribe=False, **books.options())

    @bus.handler
    def bill(order: OrderPlaced, session: Session, context: Context) -> None:
        enter(session, "bill", order.number)
        context.send(Invoiced(order.number), to=name)
        if context.attempts == 1:
            raise Broken

    bus.handler(Invoiced)(lambda invoice: seen.append(invoice.order))
    bus.prepare()
    for _ in range(2):
        bus.send_local(OrderPlaced(7), id="same")
    outcomes: list[Outcome] = []
    eventually(
        lambda: outcomes.extend(bus.drain()) or len([one for one in outcomes if one is not Outcome.RETRIED]) == 3
    )
    bus.stop()
    assert books.entries() == [("bill", 7)]
    books.close()
    assert (outcomes.count(Outcome.HANDLED), outcomes.count(Outcome.REPEATED)) == (2, 1)
    assert seen == [7]
