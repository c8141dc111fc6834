"""What every queue promises that carries messages: SQS on two servers, Detent, Redis, Pub/Sub."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis

import detent
import pubsubserver
import redisserver
import s3server
import sqsserver
from detent import Outgoing
from detent.bus import Bus, ExternalTransport, Outcome, Retries
from detent.errors import Invalid, NotFound, Unavailable
from detent.extras import install_command
from detent.queue import operations as ops
from detent.testing import TransportSuite
from detent.testing.transports import LONG_S, bodies
from detent.transports import NewMessage, PubSubQueue, queue_pubsub, queue_redis, queue_sqs, sqs_client
from detent.transports.contract import MessageQueue
from detent.transports.queue_detent import DetentQueue
from detent.transports.queue_redis import RedisQueue
from detent.transports.queue_sqs import SqsQueue
from detent.transports.urls import FORMS, open_queue
from remoteserver import serving
from servers import free_port


class World:
    """A kind of queue, of which each test has a new one."""

    short_s = 0.25
    """A visibility that is over soon."""

    is_strict = True
    """Whether a delivery stops to count once the message is delivered again, and a message is with one reader only."""

    extend_tells = counts_attempts = True

    acknowledge_tells = True
    """Whether acknowledging says of each old receipt that it did nothing."""

    retention_s: float | None = None

    body_bytes_max: int | None = None
    """The largest body that can be sent, without headers."""

    any_headers = True
    """Whether a header can have any letters in its name."""

    def create(self) -> str:
        """A new queue; its name."""
        return f"q{uuid.uuid4().hex}"

    def open(self, name: str) -> MessageQueue:
        """A handle on a queue, as another process would have its own."""
        raise NotImplementedError

    def send(self, name: str, bodies: Sequence[str], headers: dict[str, str] | None = None) -> None:
        raise NotImplementedError

    def unreachable(self, name: str) -> MessageQueue:
        """A handle on a queue whose server is not there."""
        raise NotImplementedError

    def missing(self) -> MessageQueue | None:
        """A handle on a queue that is not there."""
        return None

    def make_anew(self, name: str) -> bool:
        """Delete a queue and make it again; whether that can be."""
        return False


class SqsWorld(World):
    short_s = 1.0  # SQS counts in whole seconds
    acknowledge_tells = False  # deleting twice is fine in SQS
    retention_s = 7200.0
    body_bytes_max = (1 << 20) - len("detent-headersString{}")
    any_headers = False

    def __init__(self, endpoint: str, *, strict: bool) -> None:
        self.endpoint = endpoint
        self.is_strict = strict
        self.client = boto3.client("sqs", endpoint_url=endpoint, **sqsserver.KEYS)

    def create(self) -> str:
        name = super().create()
        self.client.create_queue(QueueName=name, Attributes={"MessageRetentionPeriod": "7200"})
        return name

    def open(self, name: str) -> MessageQueue:
        return SqsQueue(name, endpoint=self.endpoint, region="us-east-1")

    def send(self, name: str, bodies: Sequence[str], headers: dict[str, str] | None = None) -> None:
        attributes = {key: {"DataType": "String", "StringValue": value} for key, value in (headers or {}).items()}
        url = self.client.get_queue_url(QueueName=name)["QueueUrl"]
        for at in range(0, len(bodies), 10):
            entries = [
                {"Id": str(number), "MessageBody": body, "MessageAttributes": attributes}
                for number, body in enumerate(bodies[at : at + 10])
            ]
            assert len(self.client.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == len(entries)

    def missing(self) -> MessageQueue:
        return self.open("never")

    def make_anew(self, name: str) -> bool:
        self.client.delete_queue(QueueUrl=self.client.get_queue_url(QueueName=name)["QueueUrl"])
        self.client.create_queue(QueueName=name)
        return True

    def unreachable(self, name: str) -> MessageQueue:
        return SqsQueue(name, endpoint=f"http://127.0.0.1:{free_port()}", region="us-east-1")


class DetentWorld(World):
    retention_s = 4 * 86_400.0 + 43_200  # what a publisher gives a message that says nothing, and the longest lease

    def __init__(self, store: detent.Store, reading: detent.Store) -> None:
        """`reading` is the store as the readers of queues have it, in the same process or another one."""
        self.store, self.reading = store, reading

    def create(self) -> str:
        name = super().create()
        self.store.queue(name).create(backoff="0s", max_attempts=0)
        return name

    def open(self, name: str) -> MessageQueue:
        return DetentQueue(self.reading, name)

    def send(self, name: str, bodies: Sequence[str], headers: dict[str, str] | None = None) -> None:
        self.store.queue(name).publish_many([body.encode() for body in bodies], headers=headers)

    def make_anew(self, name: str) -> bool:
        self.store.queue(name).delete()
        self.store.queue(name).create(backoff="0s", max_attempts=0)
        return True

    def unreachable(self, name: str) -> MessageQueue:
        found = DetentQueue(self.reading, name)
        found._store = found._queue._store = _Silent()  # type: ignore[assignment]
        return found


class _Silent:
    """A store whose owner is gone."""

    def commit(self, operations: Any) -> Any:
        raise Unavailable("nobody owns the store")


class RedisWorld(World):
    body_bytes_max = 16 << 20

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis.Redis.from_url(url)

    def open(self, name: str) -> RedisQueue:
        return RedisQueue(self.url, name, consumer=uuid.uuid4().hex)

    def send(self, name: str, bodies: Sequence[str], headers: dict[str, str] | None = None) -> None:
        for body in bodies:
            self.client.xadd(name, {**(headers or {}), "body": body})

    def make_anew(self, name: str) -> bool:
        return self.client.delete(name) == 1

    def unreachable(self, name: str) -> MessageQueue:
        return RedisQueue(f"redis://:hush@127.0.0.1:{free_port()}/0", name)


class PubSubWorld(World):
    is_strict = False  # the fake gives a message the same ack id at each delivery
    extend_tells = acknowledge_tells = counts_attempts = False
    short_s = 1.0
    retention_s = 604_800.0
    body_bytes_max = 9 << 20

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def create(self) -> str:
        name = super().create()
        with contextlib.closing(self.open(name)) as queue:
            queue.create()
        return name

    def open(self, name: str) -> PubSubQueue:
        return PubSubQueue(name, project="shop", endpoint=self.endpoint)

    def send(self, name: str, bodies: Sequence[str], headers: dict[str, str] | None = None) -> None:
        with contextlib.closing(self.open(name)) as queue:
            assert queue.send([NewMessage("", body.encode(), headers or {}) for body in bodies]) == {}

    def missing(self) -> PubSubQueue:
        return self.open("never")

    def make_anew(self, name: str) -> bool:
        with contextlib.closing(self.open(name)) as queue:
            queue._reader().delete_subscription(subscription=queue._subscription)
            queue._writer().delete_topic(topic=queue._topic)
            queue.create()
        return True

    def unreachable(self, name: str) -> PubSubQueue:
        return PubSubQueue(name, project="shop", endpoint=f"127.0.0.1:{free_port()}")


KINDS = [
    pytest.param("moto", marks=[pytest.mark.s3, pytest.mark.xdist_group("s3")]),
    pytest.param("endpoint", marks=pytest.mark.xdist_group("ingest_sqs")),
    pytest.param("detent", marks=pytest.mark.xdist_group("ingest_detent")),
    pytest.param("socket", marks=pytest.mark.xdist_group("ingest_detent")),
    pytest.param("http", marks=pytest.mark.xdist_group("ingest_detent")),
    pytest.param("redis", marks=pytest.mark.xdist_group("redis")),
    pytest.param("pubsub", marks=pytest.mark.xdist_group("pubsub")),
]


@pytest.fixture(scope="module", params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("ingest") / "store"
    if request.param == "moto":
        # moto lets an old receipt speak for a later delivery, and its threads may give out a message twice.
        yield SqsWorld(s3server.shared_server().endpoint, strict=False)  # which leaves its keys in the environment
    elif request.param == "endpoint":
        with sqsserver.running(folder) as server, pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            yield SqsWorld(server.url, strict=True)
    elif request.param == "detent":
        with detent.open(f"file:{folder}") as store:
            yield DetentWorld(store, store)
    elif request.param == "socket":
        with detent.open(f"file:{folder}") as store, detent.open(f"file:{folder}") as reading:
            assert not reading.is_owner  # it asks the other one by its socket
            yield DetentWorld(store, reading)
    elif request.param == "http":
        with serving(f"file:{folder}") as server, detent.open(server.url) as store:
            yield DetentWorld(store, store)
    elif request.param == "pubsub":
        endpoint = pubsubserver.shared_server().endpoint
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(queue_pubsub, "WAIT_S_MIN", 0.2)  # the fake answers at once with what there is
            yield PubSubWorld(endpoint)
    else:
        yield RedisWorld(redisserver.shared_server().url)


class TestQueue(TransportSuite):
    """The suite that authors of queues are given, on every kind of ours."""

    @pytest.fixture(autouse=True)
    def _world(self, world: World) -> None:
        self.world = world
        self.name = world.create()
        for flag in ("short_s", "is_strict", "extend_tells", "acknowledge_tells", "counts_attempts", "body_bytes_max"):
            setattr(self, flag, getattr(world, flag))
        if isinstance(world, RedisWorld):
            with contextlib.closing(world.open(self.name)) as queue:
                queue.create()

    def queue(self) -> MessageQueue:
        return self.world.open(self.name)

    def put(self, sent: Sequence[str], headers: Mapping[str, str]) -> None:
        self.world.send(self.name, sent, dict(headers))

    def missing_queue(self) -> MessageQueue | None:
        return self.world.missing()

    def unreachable_queue(self) -> MessageQueue:
        return self.world.unreachable(self.name)

    def make_anew(self) -> bool:
        return self.world.make_anew(self.name)

    def test_headers_of_any_text(self) -> None:
        if not self.world.any_headers:
            pytest.skip("SQS takes letters, digits and _.- in names")
        self.fill("one", headers={"größe": "ü"})
        assert self.one(self.mine).headers["größe"] == "ü"

    def test_what_was_not_begun_is_given_back_without_an_attempt_where_that_can_be(self) -> None:
        self.fill("one")
        self.mine.give_back([self.one(self.mine)])
        self.attempts(self.one(self.another()), 1 if isinstance(self.world, DetentWorld) else 2)

    def test_the_longest_lease_and_the_retention(self) -> None:
        is_pubsub = isinstance(self.world, PubSubWorld)
        assert self.mine.visibility_max_s == (600 if is_pubsub else 43_200)
        assert self.mine.retention_s() == self.world.retention_s
        assert self.mine.name == (f"shop/{self.name}" if is_pubsub else self.name)

    def test_a_stream_comes_into_being_when_it_is_first_used(self) -> None:
        if not isinstance(self.world, RedisWorld):
            pytest.skip("this is about Redis")
        name = self.world.create()  # the name alone
        queue = self.opened(self.world.open(name))
        with pytest.raises(NotFound, match=f"no stream {name!r}"):
            queue.retention_s()
        assert queue.receive_creates
        assert queue.receive(1, 0, LONG_S) == []
        assert queue.retention_s() is None
        assert self.world.make_anew(name)  # it is deleted
        queue.create()
        assert queue.retention_s() is None

    def test_only_streams_say_that_reading_makes_them(self) -> None:
        assert self.mine.receive_creates == isinstance(self.world, RedisWorld)


# -- SQS -----------------------------------------------------------------------------------------------------------


class _Calls:
    """A client of SQS that notes what it is asked for."""

    def __init__(self, answers: Sequence[int | Exception]) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def receive_message(self, **request: Any) -> dict[str, Any]:
        with self._lock:
            self.asked.append(request)
            answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"Messages": [{"MessageId": "m", "ReceiptHandle": "r", "Body": "b"}] * answer}


def _sqs(*answers: int | Exception) -> tuple[SqsQueue, _Calls]:
    calls = _Calls(answers)
    return SqsQueue("http://localhost/1/orders", client=calls), calls


def test_sqs_waits_once_and_stops_at_the_first_short_answer() -> None:
    queue, calls = _sqs(3)
    assert len(queue.receive(50, 7.2, 30.5)) == 3
    (asked,) = calls.asked
    assert (asked["WaitTimeSeconds"], asked["VisibilityTimeout"], asked["MaxNumberOfMessages"]) == (8, 31, 10)

    queue, calls = _sqs(10, 10, 5)
    assert len(queue.receive(30, 100, 10**9)) == 25
    assert [asked["WaitTimeSeconds"] for asked in calls.asked] == [20, 0, 0]
    assert {asked["VisibilityTimeout"] for asked in calls.asked} == {43_200}

    queue, calls = _sqs(10, 10, 5)
    assert len(queue.receive(25, 0, 30)) == 25
    assert sorted(asked["MaxNumberOfMessages"] for asked in calls.asked) == [5, 10, 10]

    queue, calls = _sqs(*[10] * 100)
    assert len(queue.receive(1000, 0, 30)) == 1000


def test_sqs_keeps_what_came_before_an_error() -> None:
    from botocore.exceptions import ReadTimeoutError

    queue, _ = _sqs(10, ReadTimeoutError(endpoint_url="http://localhost"), 10)
    assert len(queue.receive(30, 0, 30)) == 20
    queue, _ = _sqs(ReadTimeoutError(endpoint_url="http://localhost"))
    with pytest.raises(Unavailable, match="orders"):
        queue.receive(30, 0, 30)


def test_sqs_finds_its_place_in_the_url() -> None:
    place = queue_sqs._place_of
    assert place("https://sqs.eu-west-1.amazonaws.com/1/orders", None, None) == ("eu-west-1", None)
    assert place("https://sqs.eu-west-1.amazonaws.com/1/orders", "x", None) == ("x", None)
    assert place("https://sqs-fips.us-east-1.amazonaws.com/1/orders", None, None) == (
        "us-east-1",
        "https://sqs-fips.us-east-1.amazonaws.com",
    )
    assert place("http://localhost:4566/000000000000/orders", "x", None) == ("x", "http://localhost:4566")
    assert place("http://localhost:4566/000000000000/orders", None, "http://proxy") == (None, "http://proxy")
    assert place("orders", None, None) == (None, None)
    for wrong in ("", "a/b", "http://localhost:4566/"):
        with pytest.raises(Invalid, match="name a queue"):
            SqsQueue(wrong, client=object())


# -- Detent --------------------------------------------------------------------------------------------------------


def test_a_detent_queue_opens_its_store_and_closes_it(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.queue("q").create(max_lease="90s", max_attempts=2)
        store.queue("q").publish(Outgoing(uri="s3://bucket/key", headers={"a": "b"}))
    queue = DetentQueue(url, "q")
    assert queue.visibility_max_s == 90
    (held,) = queue.receive(1, 0, 30)
    assert (held.body, held.headers) == (b"s3://bucket/key", {"a": "b", "queue": "q"})
    queue.close()
    with pytest.raises(NotFound, match="other"):
        DetentQueue(url, "other")
    with detent.open(url) as store:  # nobody owns it any more
        assert store.is_owner
        mine = DetentQueue(store, "q")
        assert mine.acknowledge([held, held]) == []
        mine.close()
        assert store.queue("q").info().done == 1


def test_all_that_a_detent_queue_delivered_can_be_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation names so many messages at most, and none of them twice; a delivery from elsewhere has its receipt
    alone."""
    monkeypatch.setattr(ops, "CLAIM_MAX", 2)
    with detent.open("memory:") as store:
        store.queue("q").create()
        store.queue("q").publish_many([b"x"] * 5)
        queue = DetentQueue(store, "q")
        held = [delivery for _ in range(3) for delivery in queue.receive(5, 0, 30)]
        queue.acknowledge(held[:1])
        queue.give_back([replace(one, own=None) for one in held] + held[1:2])
        assert [delivery.attempts for _ in range(2) for delivery in queue.receive(5, 0, 30)] == [1] * 4


def test_a_detent_queue_that_is_made_anew_gives_other_names(tmp_path: Path) -> None:
    names = set()
    for number in range(2):
        with detent.open(f"file:{tmp_path / str(number)}") as store:
            store.queue("q").create()
            store.queue("q").publish(b"x")
            names.add(DetentQueue(store, "q").receive(1, 0, 30)[0].message_id)
        time.sleep(0.01)
    assert len(names) == 2


# -- Redis ---------------------------------------------------------------------------------------------------------

REDIS = pytest.mark.xdist_group("redis")


@pytest.fixture
def stream() -> Iterator[tuple[RedisWorld, Callable[..., RedisQueue]]]:
    """A server, and what makes readers of one new stream on it."""
    world = RedisWorld(redisserver.shared_server().url)
    name = world.create()
    with contextlib.ExitStack() as closing:

        def reader(**options: Any) -> RedisQueue:
            queue = RedisQueue(world.url, name, **options)
            closing.callback(queue.close)
            return queue

        yield world, reader


Stream = tuple[RedisWorld, Callable[..., RedisQueue]]


@REDIS
def test_each_entry_has_its_own_deadline(stream: Stream) -> None:
    world, reader = stream
    ours, theirs = reader(consumer="ours"), reader(consumer="theirs")
    world.send(ours.name, ["long", "short"])
    (long,) = ours.receive(1, 0, LONG_S)
    (short,) = theirs.receive(1, 0, 0.2)
    (again,) = ours.receive(10, 5, 0.1)
    assert again.message_id == short.message_id
    (more,) = theirs.receive(10, 5, LONG_S)
    assert (more.message_id, more.attempts) == (short.message_id, 3)
    assert ours.extend([again, long], 0) == [again]
    assert [held.message_id for held in theirs.receive(10, 0, LONG_S)] == [long.message_id]


@REDIS
def test_a_reader_that_left_nothing_leaves_the_group(stream: Stream) -> None:
    world, reader = stream
    first, second = reader(consumer="first"), reader(consumer="second")
    world.send(first.name, ["one"])
    (held,) = first.receive(1, 0, 0.1)
    assert second.receive(1, 0, LONG_S) == []
    first.close()
    second.close()
    assert [found["name"] for found in world.client.xinfo_consumers(first.name, "detent")] == [b"first"]
    (again,) = reader(consumer="third").receive(1, 5, LONG_S)
    assert again.message_id == held.message_id


@REDIS
def test_entries_that_others_removed_do_not_come(stream: Stream) -> None:
    world, reader = stream
    queue = reader()
    world.send(queue.name, ["one", "two"])
    held = queue.receive(2, 0, 0.05)
    world.client.xdel(queue.name, held[0].message_id)
    time.sleep(0.1)
    assert bodies(queue.receive(10, 0, LONG_S)) == [b"two"]
    assert world.client.xpending(queue.name, "detent")["pending"] == 1


@REDIS
def test_a_stream_that_was_deleted_is_made_again(stream: Stream) -> None:
    world, reader = stream
    queue = reader()
    world.send(queue.name, ["one"])
    (held,) = queue.receive(1, 0, LONG_S)
    world.client.delete(queue.name)
    assert queue.extend([held], LONG_S) == [held]
    assert queue.receive(1, 0.1, LONG_S) == []
    world.send(queue.name, ["two"])
    assert bodies(queue.receive(1, 0, LONG_S)) == [b"two"]


@REDIS
def test_overdue_entries_are_found_among_many(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_redis, "SCAN_MAX", 20)
    world, reader = stream
    queue = reader()
    world.send(queue.name, [str(number) for number in range(300)])
    held = queue.receive(300, 0, LONG_S)
    assert queue.extend([held[250]], 0) == []
    rounds = 0
    while not (found := queue.receive(1, 0, LONG_S)):
        rounds += 1
    assert bodies(found) == [b"250"]
    assert rounds < 20


@REDIS
def test_entries_without_a_body_and_with_odd_fields(stream: Stream) -> None:
    world, reader = stream
    queue = reader()
    world.client.xadd(queue.name, {b"\xff": b"\xfe", "body": b"\x00\xff"})
    world.client.xadd(queue.name, {"a": "b"})
    first, second = queue.receive(2, 0, LONG_S)
    assert (first.body, first.headers) == (b"\x00\xff", {"\ufffd": "\ufffd"})
    assert (second.body, second.headers) == (b"", {"a": "b"})


@REDIS
def test_groups_are_given_and_what_is_no_stream_is_refused(stream: Stream) -> None:
    world, reader = stream
    queue = reader(group="grüppe")
    world.send(queue.name, ["one"])
    assert queue.receive(1, 0, LONG_S)
    assert queue.receive(1, 0.01, LONG_S) == []
    assert world.client.xinfo_groups(queue.name)[0]["name"] == "grüppe".encode()
    world.client.set(f"{queue.name}-text", "x")
    with pytest.raises(Invalid, match="not a stream"):
        RedisQueue(world.url, f"{queue.name}-text").receive(1, 0, LONG_S)
    with pytest.raises(Invalid, match="not a stream"):
        RedisQueue(world.url, f"{queue.name}-text").retention_s()
    with pytest.raises(Invalid, match="needs the name"):
        RedisQueue(world.url, "")


@REDIS
def test_app_needs_both_of_its_streams(stream: Stream) -> None:
    world, reader = stream
    name = reader().name

    def start(**options: Any) -> None:
        transport = ExternalTransport(partial(RedisQueue, world.url), **options)
        transport.open(name)
        try:
            transport.open_input()
        finally:
            transport.close()

    with pytest.raises(NotFound, match=f"needs the queue '{name}', .* create=True"):
        start()
    reader().create()
    with pytest.raises(NotFound, match=f"needs the queue '{name}-failed'"):
        start()
    start(create=True)
    start()


# -- URLs ----------------------------------------------------------------------------------------------------------


@REDIS
def test_redis_by_url() -> None:
    world = RedisWorld(redisserver.shared_server().url)
    name = f"{world.create()}/ä b"
    with contextlib.closing(open_queue(f"{world.url}?group=g&consumer=c#{name.replace(' ', '%20')}")) as queue:
        assert queue.name == name
        world.send(name, ["one"])
        assert bodies(queue.receive(1, 0, LONG_S)) == [b"one"]
        assert [found["name"] for found in world.client.xinfo_consumers(name, "g")] == [b"c"]


def test_sqs_by_url(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str | None, str | None]] = []
    monkeypatch.setattr(sqs_client, "new_client", lambda *place, **_: made.append(place))
    for url in (
        "sqs:orders",
        "sqs://orders?region=eu-west-1&endpoint=http://localhost:4566",
        "SQS:https://sqs.us-east-2.amazonaws.com/123456789012/orders",
    ):
        assert open_queue(url).name == "orders"
    assert made[::2] == made[1::2] == [(None, None), ("eu-west-1", "http://localhost:4566"), ("us-east-2", None)]


def test_detent_by_url(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.queue("orders/new").create()
    with contextlib.closing(open_queue(f"detent:{url}#orders/new")) as queue:
        assert queue.name == "orders/new"
        assert queue.receive(1, 0, LONG_S) == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "orders",
        "kafka://me:hush@host/topic",
        "sqs:",
        "sqs:?region=x",
        "sqs:orders?profile=hush",
        "sqs:orders?hush",
        "detent:file:./hush",
        "detent:#hush",
        "detent:file:./hush#",
        "redis://:hush@localhost:6379/0",
        "redis://:hush@localhost:6379/0#",
        "redis://:hu#sh@localhost:6379/0#stream",
        "redis://:hush[@localhost#stream",
        "redis://me:hu/sh@localhost:6379/0#stream",
        "redis:hush#stream",
        "redis://localhost:hush/0#stream",
        "redis://localhost/0?socket_timeout=hush#stream",
    ],
)
def test_wrong_urls_are_refused_and_keep_their_secrets(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_queue(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hush" not in str(error)
        assert "hu#sh" not in str(error)
        error = error.__cause__ if error.__suppress_context__ else error.__context__


def test_an_unknown_scheme_lists_what_there_is() -> None:
    with pytest.raises(Invalid) as caught:
        open_queue("kafka://host/topic")
    assert all(form in str(caught.value) for form in FORMS)


@pytest.mark.parametrize(("package", "extra"), [("boto3", "sqs"), ("redis", "redis")])
def test_what_is_missing_is_named(package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    url = {"sqs": "sqs:orders", "redis": "redis://localhost/0#stream"}[extra]
    with pytest.raises(Invalid, match=re.escape(install_command(extra))):
        open_queue(url)


def test_a_server_that_accepts_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_redis, "TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        queue = RedisQueue(f"redis://127.0.0.1:{listener.getsockname()[1]}/0", "s")
        with pytest.raises(Unavailable, match="does not answer"):
            queue.receive(1, 0, LONG_S)
        queue.close()


# -- Pub/Sub -------------------------------------------------------------------------------------------------------


@pytest.mark.xdist_group("pubsub")
def test_a_subscription_with_a_dead_letter_policy_counts_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pubsub, "WAIT_S_MIN", 0.2)
    world = PubSubWorld(pubsubserver.shared_server().endpoint)
    name, dead = world.create(), world.create()
    with contextlib.closing(
        PubSubQueue(name, project="shop", subscription="counted", endpoint=world.endpoint)
    ) as queue:
        policy = {"dead_letter_topic": f"projects/shop/topics/{dead}", "max_delivery_attempts": 5}
        wanted = {"name": queue._subscription, "topic": queue._topic, "dead_letter_policy": policy}
        queue._reader().create_subscription(request=wanted)
        world.send(name, ["one"])
        for attempts in (1, 2):
            (held,) = queue.receive(1, 5, 30)
            assert held.attempts == attempts
            queue.give_back([held])


@dataclass
class OrderPlaced:
    number: int


@pytest.mark.xdist_group("pubsub")
def test_an_app_of_the_bus_runs_on_pubsub_by_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_pubsub, "WAIT_S_MIN", 0.2)
    name = f"q{uuid.uuid4().hex}"
    place = f"project=shop&endpoint={pubsubserver.shared_server().endpoint}"
    bus = Bus(name, f"pubsub:?{place}&create=true&topic.OrderPlaced={name}", retries=Retries(1, ()))

    @bus.handler
    def invoice(placed: OrderPlaced) -> None:
        if placed.number < 0:
            raise ValueError("less than nothing")

    bus.prepare()
    bus.publish(OrderPlaced(1))
    bus.publish(OrderPlaced(-1))
    assert Counter(bus.drain()) == Counter([Outcome.HANDLED, Outcome.RETRIED, Outcome.GIVEN_UP])
    bus.stop()
    with contextlib.closing(open_queue(f"pubsub:{name}-failed?{place}")) as failed:
        (letter,) = failed.receive(1, 5, 30)
    assert (letter.body, letter.headers["detent-attempts"]) == (b'{"number":-1}', "2")
    assert "less than nothing" in letter.headers["detent-error"]
