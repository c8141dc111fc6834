"""Classes of queues that Detent did not write: found by name, made with options, and checked at every answer."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from detent.errors import Denied, Invalid, NotFound, Unavailable
from detent.ingest.config import IngestConfig
from detent.testing import TransportSuite
from detent.transports import CheckedQueue, Delivery, MessageQueue, NewMessage, SendingQueue, open_queue
from detent.transports.checked import METHODS
from detent.transports.named import GROUP

FILE = """
from collections import deque

class FileQueue:
    visibility_max_s = 60.0

    def __init__(self, name, *, host="localhost", port="1", password=""):
        self.name = f"{name}@{host}:{port}"

    def receive(self, limit, wait_s, visibility_s): return []
    def extend(self, deliveries, visibility_s): return []
    def give_back(self, deliveries): pass
    def acknowledge(self, deliveries): return []
    def retention_s(self): return None
    def close(self): pass

class Half:
    def receive(self, limit, wait_s, visibility_s): return []

made = FileQueue("x")
"""


class Fake:
    """A queue whose answers a test chooses."""

    name: Any = "orders"
    visibility_max_s: Any = 60.0

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer

    def _said(self, *_: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    receive = extend = give_back = acknowledge = retention_s = close = send = create = _said


def delivery(**changes: Any) -> Delivery:
    return Delivery(**{"message_id": "m", "receipt": "r", "body": b"b", **changes})


# -- what a queue answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, r"Fake.receive answered None: it is a list of deliveries, \[\] for none"),
        ("text", "answered 'text': it is a list"),
        ({}, "answered {}: it is a list"),
        ([("m", "r", b"b")], "where a detent.transports.Delivery belongs"),
        ([delivery(message_id=7)], "the message_id 7: it is text"),
        ([delivery(message_id="")], "the message_id ''"),
        ([delivery(message_id="a\nb")], "can be printed"),
        ([delivery(receipt=b"r")], "the receipt b'r': it is text"),
        ([delivery(receipt="")], "the receipt ''"),
        ([delivery(body="b")], "the body 'b' of 'm': it is bytes"),
        ([delivery(body=bytearray(b"b"))], "it is bytes"),
        ([delivery(attempts=-1)], "-1 attempts"),
        ([delivery(attempts=True)], "True attempts"),
        ([delivery(attempts="2")], "'2' attempts"),
        ([delivery(headers=None)], "the headers None"),
        ([delivery(headers={"a": 1})], "the header 'a': 1"),
        ([delivery(headers={b"a": "1"})], "the header b'a': '1'"),
        ([delivery(), delivery(message_id="n")], "two deliveries with the same receipt"),
        ([delivery(receipt=str(at)) for at in range(4)], "4 deliveries where 3 were asked for"),
    ],
)
def test_a_wrong_answer_to_receive_is_refused(found: Any, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        CheckedQueue(Fake(found)).receive(3, 0, 30)


@pytest.mark.parametrize(
    ("large", "why"),
    [
        ({"message_id": "x" * 201}, "a message_id of 201 bytes (200 are the most; hash it)"),
        ({"message_id": "é" * 101}, "a message_id of 202 bytes"),
        ({"receipt": "r" * 65_537}, "a receipt of 65,537 bytes"),
        ({"body": b"12345678901"}, "a body of 11 bytes (10 are the most)"),
    ],
)
def test_delivery_over_a_limit_is_logged_once_and_holds_up_no_other(
    large: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("detent.transports.checked.BODY_BYTES_MAX", 10)
    small = delivery(message_id="n", receipt="s")
    queue = CheckedQueue(Fake([delivery(**large), small]))
    for _ in range(3):
        assert queue.receive(3, 0, 30) == [small]
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"Fake.receive answered {why}")
    assert len(said) < 500


def test_few_messages_over_a_limit_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.transports.checked.LOGGED_MAX", 2)
    queue = CheckedQueue(Fake([delivery(message_id=f"{at}" * 201, receipt=f"{at}") for at in range(5)]))
    assert queue.receive(5, 0, 30) == []
    assert len(queue._logged) == 2


def test_a_large_wrong_value_is_shown_in_part() -> None:
    with pytest.raises(Invalid) as caught:
        CheckedQueue(Fake([delivery(body="x" * 10_000)])).receive(1, 0, 30)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("method", ["extend", "acknowledge"])
@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "answered None: it is a list of those that failed"),
        (True, "answered True"),
        (["r"], "'r' where a detent.transports.Delivery belongs"),
        ([delivery(receipt="other", message_id="n")], "a delivery of 'n', which it was not given"),
    ],
)
def test_a_wrong_answer_to_settling_is_refused(method: str, found: Any, why: str) -> None:
    queue = CheckedQueue(Fake(found))
    with pytest.raises(Invalid, match=f"Fake.{method} {why}" if why.startswith("answered") else why):
        queue.extend([delivery()], 1) if method == "extend" else queue.acknowledge([delivery()])


@pytest.mark.parametrize("found", [0, -1.0, math.nan, math.inf, True, "7d"])
def test_a_wrong_retention_is_refused(found: Any) -> None:
    with pytest.raises(Invalid, match="seconds, or None"):
        CheckedQueue(Fake(found)).retention_s()


@pytest.mark.parametrize("found", [None, [], {1: Invalid("x")}, {True: Invalid("x")}, {0: "no"}, {0: ValueError("x")}])
def test_a_wrong_answer_to_send_is_refused(found: Any) -> None:
    with pytest.raises(Invalid, match=r"Fake.send answered"):
        CheckedQueue(Fake(found)).send([NewMessage("1", b"x")])


@pytest.mark.parametrize(
    ("member", "value"),
    [("name", None), ("name", ""), ("name", "a\nb"), ("name", "x" * 2_000), ("visibility_max_s", "60"),
     ("visibility_max_s", 0), ("visibility_max_s", math.inf)],
)  # fmt: skip
def test_a_wrong_property_is_refused_when_the_queue_is_made(member: str, value: Any) -> None:
    fake = Fake()
    setattr(fake, member, value)
    with pytest.raises(Invalid, match=rf"Fake.{member} is"):
        CheckedQueue(fake)


def test_exceptions_of_other_libraries_may_pass_and_name_the_class() -> None:
    with pytest.raises(Unavailable, match=r"Fake.receive failed with KeyError: 'host'; raise one of detent.errors"):
        CheckedQueue(Fake(KeyError("host"))).receive(1, 0, 30)
    with pytest.raises(Denied, match="no rights"):
        CheckedQueue(Fake(Denied("no rights"))).acknowledge([delivery()])


def test_the_protocols_and_the_list_of_methods_agree() -> None:
    members = {name for name in vars(MessageQueue) if not name.startswith("_")}
    assert members == {*METHODS, "name", "visibility_max_s"}
    assert isinstance(Fake(), SendingQueue)


# -- classes by name ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_queues.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("place", ["their_queues", "./their_queues.py"])
def test_a_class_is_found_by_its_place(folder: Path, place: str) -> None:
    assert open_queue(f"{place}:FileQueue:orders").name == "orders@localhost:1"
    assert open_queue(f"{place}:FileQueue:my%20orders?host=h&port=2").name == "my orders@h:2"


@pytest.mark.parametrize(
    ("url", "error", "why"),
    [
        ("their_queues:Nope:x", NotFound, "has no 'Nope'; there is .*their_queues:FileQueue"),
        ("their_queues:made:x", Invalid, "is no type but a FileQueue"),
        ("their_queues:Half:x", Invalid, "has no extend, give_back, acknowledge, retention_s, close: a queue has"),
        ("their_queues:FileQueue:", Invalid, "names no queue: write"),
        ("their_queues:FileQueue:x?hots=h", Invalid, "options host, port, password; did you mean host"),
        ("their_queues:FileQueue:x?name=y", Invalid, "cannot be made like that"),
        ("their_queues:FileQueue:x?host", Invalid, "NAME=VALUE"),
        ("no_such_module:FileQueue:x", NotFound, "there is no module 'no_such_module'"),
        ("./none.py:FileQueue:x", NotFound, "there is no file none.py"),
        ("rabbit:x", Invalid, "'rabbit' is not a kind of queue: write sqs:.*MODULE:CLASS:NAME"),
        ("rabbit", Invalid, "not the URL of a queue"),
    ],
)
def test_a_wrong_url_says_what_to_write(folder: Path, url: str, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        open_queue(url)


def test_an_error_repeats_no_password(folder: Path) -> None:
    with pytest.raises(Invalid) as caught:
        open_queue("their_queues:FileQueue:x?hots=h&password=hush")
    assert "hush" not in str(caught.value)


def _offer(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    found = [importlib.metadata.EntryPoint("rabbit", value, GROUP) for value in values]

    def points(*, group: str, name: str | None = None) -> Sequence[importlib.metadata.EntryPoint]:
        return [one for one in found if group == GROUP and name in (None, one.name)]

    monkeypatch.setattr("detent.transports.named.entry_points", points)


def test_a_package_offers_a_class_by_an_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _offer(monkeypatch, "their_queues:FileQueue")
    assert open_queue("rabbit:orders?host=h").name == "orders@h:1"
    with pytest.raises(Invalid, match="installed packages offer rabbit"):
        open_queue("rabbits:orders")
    with pytest.raises(Invalid, match="rabbit: names no queue"):
        open_queue("rabbit:?host=h")


def test_two_packages_that_offer_the_same_name_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _offer(monkeypatch, "their_queues:FileQueue", "their_queues:Half")
    with pytest.raises(Invalid, match=r"several packages offer queues as 'rabbit' \(their_queues:FileQueue, their_q"):
        open_queue("rabbit:orders")


def test_a_package_that_cannot_be_loaded_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _offer(monkeypatch, "not_there:FileQueue")
    with pytest.raises(Invalid, match=r"'rabbit' are not_there:FileQueue, which cannot be loaded: ModuleNotFoundError"):
        open_queue("rabbit:orders")


def test_the_file_of_a_class_is_beside_the_configuration(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "own.py").write_text(FILE)
    config = IngestConfig(name="o", queue="own.py:FileQueue:orders?host=h", table="t", folder=str(folder / "sub"))
    assert open_queue(config.queue_url).name == "orders@h:1"


# -- the suite ---------------------------------------------------------------------------------------------------------


class _Lossy:
    """A queue that gives a message to everyone, and forgets what it was told."""

    visibility_max_s = 60.0

    def __init__(self, name: str, messages: list[Delivery]) -> None:
        self.name = name
        self._messages = messages

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> list[Delivery]:
        return self._messages[:limit]

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float = 0) -> list[Delivery]:
        return []

    acknowledge = extend

    def give_back(self, deliveries: Sequence[Delivery]) -> None: ...

    def retention_s(self) -> None: ...

    def close(self) -> None: ...


def test_the_suite_fails_a_queue_that_has_no_leases() -> None:
    class Wrong(TransportSuite):
        def queue(self) -> Any:
            return _Lossy("orders", self.messages)

        def put(self, sent: Sequence[str], headers: Any) -> None:
            self.messages += [Delivery(str(at), str(at), body.encode(), 1) for at, body in enumerate(sent)]

    suite = Wrong()
    suite.messages = []
    with _handles(suite), pytest.raises(AssertionError, match="while it was under a lease"):
        suite.restart()
        suite.test_a_message_stays_away_and_comes_again()
    suite.messages.clear()
    with _handles(suite), pytest.raises(AssertionError, match="though it was acknowledged"):
        suite.restart()
        suite.test_an_acknowledged_message_never_comes_again()


def _handles(suite: Any) -> Any:
    from contextlib import ExitStack

    suite._closing = ExitStack()
    return suite._closing
