"""Pub/Sub without a server: what its errors mean, what it cannot take, and how much goes into a call."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from google.api_core import exceptions as google
from google.rpc.error_details_pb2 import ErrorInfo

from detent.errors import Denied, Invalid, LimitExceeded, NotFound, Unavailable
from detent.transports import Delivery, NewMessage, PubSubQueue, queue_pubsub


class FakeClient:
    """A subscriber and a publisher that raise, or note what they are asked for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[Any] = []

    def _ask(self, *_: Any, **request: Any) -> None:
        self.asked.append(request)
        if self.error is not None:
            raise self.error

    acknowledge = modify_ack_deadline = publish = pull = get_subscription = create_topic = create_subscription = _ask


def queue(error: Exception | None = None) -> tuple[PubSubQueue, FakeClient]:
    made, client = PubSubQueue("orders", project="shop", endpoint="127.0.0.1:1"), FakeClient(error)
    made._subscriber = made._publisher = client  # type: ignore[assignment]
    return made, client


def deliveries(*ids: str) -> list[Delivery]:
    return [Delivery(one, one, b"x") for one in ids]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (google.NotFound("x"), NotFound),
        (google.PermissionDenied("x"), Denied),
        (google.Unauthenticated("x"), Denied),
        (google.InvalidArgument("x"), Invalid),
        (google.ServiceUnavailable("x"), Unavailable),
        (google.ResourceExhausted("x"), Unavailable),
        (google.RetryError("x", None), Unavailable),
    ],
)
def test_errors_of_google_say_what_may_pass(error: Exception, kind: type[Exception]) -> None:
    found, _ = queue(error)
    for ask in (found.retention_s, lambda: found.receive(1, 0, 30), lambda: found.send([NewMessage("1", b"x")])):
        with pytest.raises(kind, match=r"orders"):
            ask()
    given = deliveries("a", "b")
    assert found.acknowledge(given) == given
    assert found.extend(given, 30) == given


def test_a_subscription_with_exactly_once_delivery_names_the_old_ack_ids() -> None:
    info = ErrorInfo(reason="x", metadata={"a": "PERMANENT_FAILURE_INVALID_ACK_ID", "c": "TRANSIENT_FAILURE_OTHER"})
    found, _ = queue(google.FailedPrecondition("x", error_info=info))
    given = deliveries("a", "b", "c")
    assert found.acknowledge(given) == [given[0], given[2]]
    assert found.extend(given, 30) == [given[0], given[2]]


def test_a_pull_that_gets_no_answer_in_time_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pubsub, "WAIT_S_MIN", 0.0)
    for error in (google.DeadlineExceeded("x"), google.Cancelled("x")):
        assert queue(error)[0].receive(1, 0, 30) == []


def test_deadlines_are_whole_seconds_and_cut() -> None:
    found, client = queue()
    for seconds in (0, 0.2, 30.5, 10_000):
        found.extend(deliveries("a"), seconds)
    assert [asked["ack_deadline_seconds"] for asked in client.asked] == [0, 1, 31, 600]


def test_large_calls_are_divided() -> None:
    found, client = queue()
    found.acknowledge(deliveries(*map(str, range(2_500))))
    assert [len(asked["ack_ids"]) for asked in client.asked] == [1_000, 1_000, 500]
    client.asked.clear()
    assert found.send([NewMessage(str(at), b"x" * (5 << 20)) for at in range(3)]) == {}
    assert [len(asked["messages"]) for asked in client.asked] == [1, 1, 1]
    client.asked.clear()
    assert found.send([NewMessage(str(at), b"x") for at in range(1_500)]) == {}
    assert [len(asked["messages"]) for asked in client.asked] == [1_000, 500]


@pytest.mark.parametrize(
    ("message", "kind", "why"),
    [
        (NewMessage("1", b""), Invalid, "without a body"),
        (NewMessage("1", b"x", {"": "x"}), Invalid, "not empty"),
        (NewMessage("1", b"x", {"google-id": "x"}), Invalid, "does not begin with 'goog'"),
        (NewMessage("1", b"x", {"a": "\ud800"}), Invalid, "cannot be encoded"),
        (NewMessage("1", b"x", {"a": "ü" * 600}), LimitExceeded, "'a' has 1200 bytes"),
        (NewMessage("1", b"x", {"a" * 300: "x"}), LimitExceeded, "256 of a name"),
        (NewMessage("1", b"x", {str(at): "x" for at in range(101)}), LimitExceeded, "100 headers, not 101"),
        (NewMessage("1", b"x" * (10 << 20)), LimitExceeded, "over the limit"),
    ],
)
def test_a_message_that_pubsub_cannot_take_holds_up_no_other(
    message: NewMessage, kind: type[Exception], why: str
) -> None:
    found, client = queue()
    errors = found.send([NewMessage("0", b"0"), message, NewMessage("2", b"2")])
    assert list(errors) == [1]
    assert isinstance(errors[1], kind)
    assert why in str(errors[1])
    assert [sent["data"] for sent in client.asked[0]["messages"]] == [b"0", b"2"]


@pytest.mark.parametrize("name", ["ab", "1abc", "a/b", "goog-orders", "x" * 256, "a b c"])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid, match="not a name in Pub/Sub"):
        PubSubQueue(name, project="shop")


def test_the_project_is_said_or_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("GOOGLE_CLOUD_PROJECT", "PUBSUB_PROJECT_ID"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(Invalid, match=r"pubsub:orders\?project=PROJECT"):
        PubSubQueue("orders")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "shop")
    assert PubSubQueue("orders").name == "shop/orders"


def test_a_missing_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.pubsub_v1", None)
    monkeypatch.setattr(queue_pubsub, "find_spec", lambda _: None)
    with pytest.raises(Invalid, match=r"pip install 'detent\[pubsub\]'"):
        PubSubQueue("orders", project="shop")
