"""What every transport promises: queues of a store in memory, in a file and behind a server, SQS on two servers, and
classes of `detent.transports`, by the examples of Redis and Pub/Sub."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest

import detent
import pubsubserver
import redisserver
import s3server
import sqsserver
from detent import Outgoing
from detent.bus.messages import Envelope, Incoming
from detent.bus.topics import parse_filter
from detent.bus.transport import ATTEMPTS, ERROR, Transport
from detent.bus.transport_external import ExternalTransport, SqsTransport
from detent.bus.transport_queue import QueueTransport
from detent.errors import Invalid, LimitExceeded, NotFound, StaleReceipt, Unavailable
from detent.transports import NewMessage, PubSubQueue, RedisQueue, SendingQueue, queue_pubsub
from processes import eventually
from remoteserver import serving
from servers import free_port

SEEN_S = 10.0
"""How long a receive waits for what must come."""

HOSTILE = "\x00\x01\ufffe\r\n|\"'\\ grüße 日本 🚀"


class World:
    """A kind of transport. Each test has apps of new names."""

    keeps_order = True
    delays = True
    """Whether messages can be kept back."""
    tells_stale = True
    """Whether the transport says of a lease that is over that it is."""
    counts_given_back = True
    """Whether an attempt is counted of what no handler saw, because the queue counts its deliveries."""
    redelivery_s: float | None = 14 * 86_400 + 30
    header_max = 4_000
    body_max = 16 << 20

    def __init__(self) -> None:
        self.made: list[Transport] = []

    def make(self, queue: str, topics: Mapping[str, list[str]], **options: Any) -> Transport:
        """A transport that is not open."""
        raise NotImplementedError

    def app(self, name: str, *, topics: Mapping[str, list[str]] | None = None, **options: Any) -> Transport:
        """An app that can receive."""
        transport = self.make(name, topics or {}, **options)
        self.made.append(transport)
        transport.open(name)
        transport.open_input()
        return transport

    def close(self) -> None:
        """Close the transports of a test."""
        while self.made:
            self.made.pop().close()

    def foreign(self, queue: str, body: str, headers: dict[str, str]) -> None:
        """A message from somebody who does not know the bus."""
        raise NotImplementedError

    def failed(self, queue: str) -> list[tuple[bytes, str, str]]:
        """What was given up: bodies, reasons, attempts."""
        raise NotImplementedError


class QueueWorld(World):
    counts_given_back = False

    def __init__(self, store: Any, watching: detent.Store) -> None:
        super().__init__()
        self.store, self.watching = store, watching

    def make(self, queue: str, topics: Mapping[str, list[str]], **options: Any) -> QueueTransport:
        return QueueTransport(self.store, **options)

    def foreign(self, queue: str, body: str, headers: dict[str, str]) -> None:
        self.watching.queue(queue).publish(body.encode(), headers=headers)

    def failed(self, queue: str) -> list[tuple[bytes, str, str]]:
        found = self.watching.queue(queue).failed()
        return [(one.body, one.reason, str(one.attempts)) for one in found]


class SqsWorld(World):
    keeps_order = False
    redelivery_s = 28 * 86_400  # in the queue, and then in the failed one
    body_max = 1 << 20

    def __init__(self, endpoint: str) -> None:
        super().__init__()
        self.endpoint = endpoint
        self.client = boto3.client("sqs", endpoint_url=endpoint, **sqsserver.KEYS)

    def make(self, queue: str, topics: Mapping[str, list[str]], **options: Any) -> SqsTransport:
        options = {"create": True, "replies": f"{queue}-replies", **options}
        return SqsTransport(endpoint=self.endpoint, region="us-east-1", topics=topics, **options)

    def url(self, queue: str) -> str:
        return str(self.client.get_queue_url(QueueName=queue)["QueueUrl"])

    def foreign(self, queue: str, body: str, headers: dict[str, str]) -> None:
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in headers.items()}
        self.client.send_message(QueueUrl=self.url(queue), MessageBody=body, MessageAttributes=attributes)

    def failed(self, queue: str) -> list[tuple[bytes, str, str]]:
        with contextlib.closing(self.make(f"{queue}-failed", {})) as reader:
            reader.open(f"{queue}-failed")
            found = reader.receive(10, 1)
        return [(one.body, one.headers[ERROR], one.headers[ATTEMPTS]) for one in found]


class ExternalWorld(World):
    """A class of `detent.transports` under the bus."""

    delays = False
    redelivery_s = None  # Redis keeps messages for ever

    def __init__(self, queue: Callable[[str], SendingQueue]) -> None:
        super().__init__()
        self.queue = queue

    def make(self, queue: str, topics: Mapping[str, list[str]], **options: Any) -> ExternalTransport:
        options = {"create": True, "replies": f"{queue}-replies", **options}
        return ExternalTransport(self.queue, topics=topics, **options)

    def foreign(self, queue: str, body: str, headers: dict[str, str]) -> None:
        with contextlib.closing(self.queue(queue)) as found:
            assert found.send([NewMessage("", body.encode(), headers)]) == {}

    def failed(self, queue: str) -> list[tuple[bytes, str, str]]:
        with contextlib.closing(self.queue(f"{queue}-failed")) as reader:
            found = reader.receive(10, SEEN_S, 60)
        return [(one.body, one.headers[ERROR], one.headers[ATTEMPTS]) for one in found]


class PubSubWorld(ExternalWorld):
    counts_given_back = False  # the transport counts
    redelivery_s = 14 * 86_400
    keeps_order = False
    tells_stale = False
    body_max = 9 << 20
    header_max = 1_024


KINDS = [
    pytest.param("memory", marks=pytest.mark.xdist_group("bus_stores")),
    pytest.param("file", marks=pytest.mark.xdist_group("bus_stores")),
    pytest.param("http", marks=pytest.mark.xdist_group("bus_stores")),
    pytest.param("moto", marks=[pytest.mark.s3, pytest.mark.xdist_group("s3")]),
    pytest.param("endpoint", marks=pytest.mark.xdist_group("bus_sqs")),
    pytest.param("redis", marks=pytest.mark.xdist_group("redis")),
    pytest.param("pubsub", marks=pytest.mark.xdist_group("pubsub")),
]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bus") / "store"
    with contextlib.ExitStack() as stack:
        if request.param == "moto":
            yield SqsWorld(s3server.shared_server().endpoint)
        elif request.param == "endpoint":
            server = stack.enter_context(sqsserver.running(folder))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            yield SqsWorld(server.url)
        elif request.param == "redis":
            yield ExternalWorld(partial(RedisQueue, redisserver.shared_server().url))
        elif request.param == "pubsub":
            endpoint = pubsubserver.shared_server().endpoint
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(queue_pubsub, "WAIT_S_MIN", 0.2)
            yield PubSubWorld(partial(PubSubQueue, project="shop", endpoint=endpoint))
        elif request.param == "http":
            url = stack.enter_context(serving(f"file:{folder}")).url
            yield QueueWorld(url, stack.enter_context(detent.open(url)))
        else:
            store = stack.enter_context(detent.open("memory:" if request.param == "memory" else f"file:{folder}"))
            yield QueueWorld(store if request.param == "memory" else f"file:{folder}", store)


@pytest.fixture
def world(kind: World) -> Iterator[World]:
    yield kind
    kind.close()


@pytest.fixture
def name() -> str:
    return f"q{uuid.uuid4().hex[:12]}"


def envelope(to: str, body: bytes = b"body", **options: Any) -> Envelope:
    number = options.pop("id", None) or uuid.uuid4().hex
    return Envelope(number, to, {"detent-id": number, **options.pop("headers", {})}, body, **options)


def one(transport: Transport) -> Incoming:
    """The one message that comes."""
    (found,) = transport.receive(10, SEEN_S)
    return found


def bodies(transport: Transport, count: int) -> list[bytes]:
    """Messages as they come, acknowledged."""
    found: list[bytes] = []
    while len(found) < count:
        came = transport.receive(100, SEEN_S)
        assert came, found
        for delivery in came:
            transport.acknowledge(delivery)
        found += [delivery.body for delivery in came]
    return found


# -- the contract --------------------------------------------------------------------------------------------------


def test_sent_received_and_acknowledged(world: World, name: str) -> None:
    app = world.app(name, lease="1s")
    assert app.input_name == name
    assert app.place.endswith(f"#{name}")
    assert app.extend_every_s == pytest.approx(1 / 3)
    sent = envelope(f"queue:{name}", b"one", headers={"tier": "gold"})
    assert app.send([sent]) == {}
    held = one(app)
    assert (held.body, held.headers, held.attempts) == (b"one", dict(sent.headers), 1)
    app.acknowledge(held)
    assert app.receive(10, 1.2) == []  # nor when its lease would have ended


def test_order_and_many(world: World, name: str) -> None:
    app = world.app(name)
    sent = [b"%d" % number for number in range(35)]
    assert app.send([envelope(f"queue:{name}", body) for body in sent]) == {}
    found = bodies(app, len(sent))
    assert sorted(found) == sorted(sent)
    if world.keeps_order:
        assert found == sent
    assert app.send([]) == {}


def test_bodies_and_headers_come_as_they_were(world: World, name: str) -> None:
    app = world.app(name)
    headers = {"größe": "日本 🚀", "control": "a\x01\n\r\t", "empty": "", "detent-group": HOSTILE.replace("\x00", "")}
    for body in (b"", b"-", b"plain", HOSTILE.encode(), bytes(range(256)), "\ufffd\u2028".encode(), b"x" * 200_000):
        app.send([envelope(f"queue:{name}", body, headers=headers)])
        held = one(app)
        assert held.body == body
        assert {key: held.headers[key] for key in headers} == headers
        app.acknowledge(held)


def test_what_is_tried_again_is_counted(world: World, name: str) -> None:
    app = world.app(name)
    app.send([envelope(f"queue:{name}")])
    names, tokens = set(), []
    for attempts in range(1, 4):
        held = one(app)
        assert held.attempts == attempts
        names.add(held.transport_id)
        tokens.append(held.fencing_token)
        app.retry(held, 0, HOSTILE * 1000)
    assert len(names) == 1
    assert tokens == [None] * 3 or tokens == sorted(set(tokens))


def test_messages_that_no_handler_saw_are_given_back(world: World, name: str) -> None:
    app = world.app(name)
    app.send([envelope(f"queue:{name}", body) for body in (b"one", b"two")])
    found: list[Incoming] = []
    while len(found) < 2:
        found += app.receive(10, SEEN_S)
    app.give_back(found)
    app.give_back([])
    attempts = []
    while len(attempts) < 2:
        attempts += [held.attempts for held in app.receive(10, SEEN_S)]
    assert attempts == [2 if world.counts_given_back else 1] * 2


def test_a_retry_can_wait(world: World, name: str) -> None:
    app = world.app(name)
    app.send([envelope(f"queue:{name}")])
    app.retry(one(app), 1, "later")
    assert app.receive(10, 0) == []
    assert one(app).attempts == 2


def test_what_is_given_up_comes_no_more(world: World, name: str) -> None:
    app = world.app(name, lease="1s")
    app.send([envelope(f"queue:{name}", b"\xff\x00")])
    app.retry(one(app), 0, "")
    app.give_up(one(app), "it is broken")
    assert world.failed(name) == [(b"\xff\x00", "it is broken", "2")]
    assert app.receive(10, 1.2) == []


def test_hostile_reasons(world: World, name: str) -> None:
    app = world.app(name)
    app.send([envelope(f"queue:{name}")])
    app.give_up(one(app), "why\ud800\x00\x01" + "ü" * 100_000)
    ((_, reason, _),) = world.failed(name)
    assert reason.startswith("why?")


def test_extending_keeps_a_message_away(world: World, name: str) -> None:
    app = world.app(name, lease="1s")
    app.send([envelope(f"queue:{name}", b"%d" % number) for number in range(12)])
    held = eventually(lambda found=[]: len(found.extend(app.receive(12, 1)) or found) == 12 and found)
    for _ in range(3):
        time.sleep(0.5)
        app.extend(held)
    assert not any(delivery.lost for delivery in held)
    assert app.receive(20, 0) == []


def test_what_is_gone_is_marked_as_lost(world: World, name: str) -> None:
    if not world.tells_stale:
        pytest.skip("this transport takes an old receipt without a word")
    app = world.app(name)
    app.send([envelope(f"queue:{name}", b"one"), envelope(f"queue:{name}", b"two")])
    held = eventually(lambda found=[]: len(found.extend(app.receive(2, 1)) or found) == 2 and found)
    copy = Incoming(held[0].transport_id, {}, b"", 1, held[0].fencing_token, _copy(held[0].receipt))
    app.acknowledge(held[0])
    app.extend([copy, *held])  # what was acknowledged here is not looked at again
    assert (copy.lost, held[0].lost, held[1].lost) == (True, False, False)
    app.extend([])


def _copy(receipt: Any) -> Any:
    """The same delivery, as another process would have it that was believed dead."""
    import copy

    return copy.copy(receipt)


def test_a_stale_receipt_is_told(world: World, name: str) -> None:
    if not world.tells_stale:
        pytest.skip("this transport takes an old receipt without a word")
    app = world.app(name)
    app.send([envelope(f"queue:{name}")])
    held = one(app)
    stale = Incoming(held.transport_id, {}, b"", 1, held.fencing_token, _copy(held.receipt))
    app.acknowledge(held)
    with pytest.raises(StaleReceipt):
        app.retry(stale, 0, "late")


def test_published_to_several(world: World, name: str) -> None:
    queues = [f"{name}-a", f"{name}-b", f"{name}-c"]
    topics = {f"{name}.Placed": queues[:2], f"{name}.Event": [queues[1]], f"{name}.Nobody": []}
    one_, both, none = (world.app(queue, topics=topics) for queue in queues)
    one_.subscribe([f"{name}.Placed"])
    both.subscribe([f"{name}.Placed", f"{name}.Event"])
    both.subscribe([f"{name}.Event"])
    twice, once = envelope(f"topic:|{name}.Placed|{name}.Event|", b"1"), envelope(f"topic:|{name}.Event|", b"2")
    assert none.send([twice, once]) == {}
    assert none.send([envelope(f"topic:|{name}.Nobody|", b"3")]) == {}
    held = one(one_)
    assert (held.body, held.headers["detent-topics"]) == (b"1", f"|{name}.Placed|{name}.Event|")
    assert sorted(bodies(both, 2)) == [b"1", b"2"]
    assert [app.receive(10, 0) for app in (one_, both, none)] == [[], [], []]


def test_bad_names_are_refused(world: World, name: str) -> None:
    app = world.app(name)
    for topic in ("a b", '"', "", "x" * 201):
        with pytest.raises(Invalid, match="name to publish under"):
            app.subscribe([topic])
    errors = app.send([envelope("topic:|a b|"), envelope("topic:"), envelope("nowhere:x"), envelope("queue:a b")])
    assert {index: type(error) for index, error in errors.items()} == dict.fromkeys(range(4), Invalid)


def test_delayed(world: World, name: str) -> None:
    app = world.app(name)
    if not world.delays:
        errors = app.send([envelope(f"queue:{name}", visible_ms=int((time.time() + 60) * 1000))])
        assert "use an outbox" in str(errors[0])
        assert isinstance(errors[0], Invalid)
        assert app.send([envelope(f"queue:{name}", b"past", visible_ms=1)]) == {}
        assert bodies(app, 1) == [b"past"]
        return
    later_ms = int((time.time() + 1.5) * 1000)
    assert app.send([envelope(f"queue:{name}", b"later", visible_ms=later_ms)]) == {}
    assert app.send([envelope(f"queue:{name}", b"past", visible_ms=1)]) == {}
    assert bodies(app, 1) == [b"past"]
    assert bodies(app, 1) == [b"later"]
    assert time.time() * 1000 >= later_ms - 50


def test_replies(world: World, name: str) -> None:
    asking, answering = world.app(name), world.app(f"{name}-b")
    before = envelope(f"reply:{asking.reply_name}", b"before")
    asking.open_replies()
    assert asking.next_replies(0) == []
    sent = [envelope(f"reply:{asking.reply_name}", body, headers={"k": "ü"}) for body in (b"one", b"\xff", b"")]
    assert answering.send(sent) == {}
    found: list[Any] = []
    eventually(lambda: len(found.extend(asking.next_replies(1)) or found) == 3)
    assert sorted(body for _, body in found) == [b"", b"one", b"\xff"]
    assert all(headers["k"] == "ü" for headers, _ in found)
    assert asking.next_replies(0) == []
    assert answering.send([before]) == {}
    assert eventually(lambda: asking.next_replies(1)) == [(dict(before.headers), b"before")]


def test_a_reply_to_nobody_is_dropped_and_nothing_is_made_for_it(world: World, name: str) -> None:
    app = world.app(name)
    hostile = [f"{name}-nobody", "a/../b", "../x", "a b", "a\x00b", "ü" * 3_500, "x" * 500, HOSTILE]
    sent = [envelope(f"reply:{to}") for to in hostile]
    assert app.send([*sent, envelope(f"queue:{name}", b"good")]) == {}
    assert bodies(app, 1) == [b"good"]
    if isinstance(world, QueueWorld) and isinstance(app, QueueTransport):
        assert world.watching.reader.number(f"detent.replies/{name}-nobody") is None
        with app.store.transaction() as transaction:
            app.send_into(transaction, [*sent, envelope(f"queue:{name}", b"too")])
        assert bodies(app, 1) == [b"too"]
        assert world.watching.reader.number(f"detent.replies/{name}-nobody") is None


def test_foreign_messages_are_read(world: World, name: str) -> None:
    app = world.app(name)
    deep = "[" * 10_000
    for headers in (
        {},
        {"tier": "gold"},
        {"detent-headers": "{"},
        {"detent-headers": "[]"},
        {"detent-headers": '{"a": 1}'},
        {"detent-headers": deep[: world.header_max]},
    ):
        world.foreign(name, "grüße", headers)
        held = one(app)
        assert held.body == "grüße".encode()
        assert headers.items() <= held.headers.items()
        app.give_up(held, "not ours")
    assert [body for body, _, _ in world.failed(name)] == ["grüße".encode()] * 6


def test_one_bad_message_does_not_hold_up_the_others(world: World, name: str) -> None:
    app = world.app(name)
    huge = b"x" * (world.body_max + 1)
    sent = [b"1", huge, b"2", b"3", b"4"]
    missing = f"{name}-nobody"
    addresses = [f"queue:{name}", f"queue:{name}", f"queue:{missing}", f"queue:{name}", f"queue:{missing}"]
    errors = app.send([envelope(to, body) for to, body in zip(addresses, sent, strict=True)])
    assert {index: type(error) for index, error in errors.items()} == {1: LimitExceeded, 2: NotFound, 4: NotFound}
    assert missing in str(errors[2])
    assert sorted(bodies(app, 2)) == [b"1", b"3"]


def test_a_transport_says_how_long_a_message_can_come_again(world: World, name: str) -> None:
    transport = world.app(name)
    assert transport.redelivery_s() == world.redelivery_s


def test_closing_lets_go_of_everything(world: World, name: str) -> None:
    def threads() -> set[threading.Thread]:
        """Without those in which a server in this process reads: there are more of them the more it was asked."""
        return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}

    before = threads()
    app = world.app(name)
    app.open_replies()
    app.send([envelope(f"queue:{name}")])
    one(app)
    world.close()
    app.close()  # twice is fine
    eventually(lambda: threads() <= before, what="the end of the transport's threads")
    with pytest.raises(Invalid, match="not open"):
        app.receive(1, 0)


# -- queues of a store ---------------------------------------------------------------------------------------------


ON_STORES = pytest.mark.parametrize("kind", KINDS[:3], indirect=True)


@pytest.fixture
def stores(world: World) -> QueueWorld:
    assert isinstance(world, QueueWorld)
    return world


@ON_STORES
def test_sent_twice_is_there_once(stores: QueueWorld, name: str) -> None:
    app = stores.app(name)
    app.subscribe([f"{name}.A"])
    for to in (f"queue:{name}", f"topic:|{name}.A|"):
        sent = envelope(to)
        assert app.send([sent, sent]) == {}
        assert app.send([sent]) == {}
        assert bodies(app, 1) == [b"body"]
        assert app.receive(10, 0) == []


@ON_STORES
def test_a_queue_that_is_there_keeps_its_settings(stores: QueueWorld, name: str) -> None:
    queue = stores.watching.queue(name)
    own = f'headers.queue == "{name}" || headers.tier == "{name}"'
    queue.create(filter=own, max_attempts=3, max_lease="6s", description="mine")
    app = stores.app(name)
    assert app.extend_every_s == 2
    app.subscribe([f"{name}.A", f"{name}.B"])
    assert (queue.info().max_attempts, queue.info().description) == (3, "mine")
    assert parse_filter(name, queue.info().filter) == (own, {f"{name}.A", f"{name}.B"})
    stores.watching.publish(b"own", headers={"tier": name})
    assert bodies(app, 1) == [b"own"]
    app.unsubscribe([f"{name}.B", f"{name}.C"])
    assert parse_filter(name, queue.info().filter) == (own, {f"{name}.A"})
    app.unsubscribe([f"{name}.A"])
    assert queue.info().filter == own


@ON_STORES
def test_a_new_queue_gives_up_nothing_by_itself(stores: QueueWorld, name: str) -> None:
    stores.app(name)
    assert stores.watching.queue(name).info().max_attempts == 0


@ON_STORES
def test_many_subscribe_at_once(stores: QueueWorld, name: str) -> None:
    apps = [stores.app(name) for _ in range(2 if stores.store is stores.watching else 4)]
    names = [f"{name}.{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda at: apps[at % len(apps)].subscribe([names[at]]), range(16)))
    assert parse_filter(name, stores.watching.queue(name).info().filter).topics == set(names)
    with ThreadPoolExecutor(8) as pool:
        changes = [(app.unsubscribe if at % 2 else app.subscribe, at) for at, app in enumerate(apps * 4)][:16]
        list(pool.map(lambda change: change[0]([names[change[1]]]), changes))
    gone = {names[at] for call, at in changes if at % 2}
    assert parse_filter(name, stores.watching.queue(name).info().filter).topics == set(names) - gone


@ON_STORES
def test_nobody_writes_over_what_another_has_subscribed_to(
    stores: QueueWorld, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = stores.app(name), stores.app(name)
    original = detent.Queue.configure

    def overtaken(*arguments: Any, **settings: Any) -> Any:
        monkeypatch.setattr(detent.Queue, "configure", original)
        quick.subscribe([f"{name}.quick"])
        return original(*arguments, **settings)

    monkeypatch.setattr(detent.Queue, "configure", overtaken)
    slow.subscribe([f"{name}.slow"])
    assert detent.Queue.configure is original
    topics = parse_filter(name, stores.watching.queue(name).info().filter).topics
    assert topics == {f"{name}.slow", f"{name}.quick"}


@ON_STORES
def test_a_start_without_news_writes_nothing(stores: QueueWorld, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = stores.app(name)
    app.subscribe([f"{name}.A", f"{name}.B"])
    monkeypatch.setattr(detent.Transaction, "commit", lambda *_: pytest.fail("a transaction"))
    monkeypatch.setattr(detent.Queue, "configure", lambda *_, **__: pytest.fail("a change"))
    app.subscribe([f"{name}.B"])
    app.unsubscribe([])


@ON_STORES
def test_a_queue_made_anew_starts_with_nothing(stores: QueueWorld, name: str) -> None:
    app = stores.app(name)
    app.subscribe([f"{name}.A"])
    stores.watching.queue(name).delete()
    app.open_input()
    app.subscribe([f"{name}.B"])
    assert parse_filter(name, stores.watching.queue(name).info().filter).topics == {f"{name}.B"}


@ON_STORES
def test_everything_in_one_transaction(stores: QueueWorld, name: str) -> None:
    app = stores.app(name)
    assert isinstance(app, QueueTransport)
    app.open_replies()
    app.send([envelope(f"queue:{name}", b"in")])
    held = one(app)
    out = [envelope(f"queue:{name}", b"out"), envelope(f"reply:{app.reply_name}", b"reply")]
    with app.store.transaction() as transaction:
        app.send_into(transaction, out)
        app.acknowledge_into(transaction, held)
    assert held.receipt.settled
    assert bodies(app, 1) == [b"out"]
    assert [body for _, body in app.next_replies(SEEN_S)] == [b"reply"]
    transaction = app.store.transaction()
    app.send_into(transaction, [envelope(f"queue:{name}", b"never")])
    app.acknowledge_into(transaction, held)
    with pytest.raises(StaleReceipt):
        transaction.commit()
    assert app.receive(10, 0) == []


@ON_STORES
def test_where_a_message_goes_is_not_in_its_headers(stores: QueueWorld, name: str) -> None:
    app, other = stores.app(name), stores.app(f"{name}-b")
    other.subscribe([f"{name}.A"])
    errors = app.send([envelope(f"topic:|{name}.B|", headers={"queue": f"{name}-b"})])
    assert isinstance(errors[0], Invalid)
    assert app.send([envelope(f"queue:{name}", headers={"detent-topics": f"|{name}.A|"})]) == {}
    assert bodies(app, 1) == [b"body"]
    assert other.receive(10, 0) == []


@ON_STORES
def test_a_long_delay_outlasts_the_retention(stores: QueueWorld, name: str) -> None:
    app = stores.app(name, retention="1h")
    year_ms = int((time.time() + 365 * 86_400) * 1000)
    assert app.send([envelope(f"queue:{name}", visible_ms=year_ms)]) == {}
    assert stores.watching.queue(name).info().delayed == 1
    errors = app.send([envelope(f"queue:{name}", visible_ms=-1), envelope(f"queue:{name}", visible_ms=1 << 62)])
    assert [type(error) for error in errors.values()] == [Invalid, Invalid]


@ON_STORES
def test_a_time_long_past_takes_nothing_from_the_retention(stores: QueueWorld, name: str) -> None:
    app = stores.app(name, retention="1h")
    for past_ms in (0, 1, int(time.time() * 1000) - 86_400_000):
        assert app.send([envelope(f"queue:{name}", visible_ms=past_ms)]) == {}
        held = one(app)
        assert held.receipt.delivery.own.retention_s == 3_600
        assert held.receipt.delivery.own.expires > held.receipt.delivery.own.received
        app.acknowledge(held)


@ON_STORES
def test_a_queue_made_anew_calls_its_messages_otherwise(stores: QueueWorld, name: str) -> None:
    app, found = stores.app(name), set()
    for _ in range(2):
        app.send([envelope(f"queue:{name}")])
        held = one(app)
        app.retry(held, 0, "")
        again = one(app)
        assert held.transport_id == again.transport_id
        found.add(held.transport_id)
        stores.watching.queue(name).delete()
        stores.watching.queue(name).create()
    assert len(found) == 2


def test_another_store_calls_its_messages_otherwise() -> None:
    found = []
    for _ in range(2):
        with detent.open("memory:") as store:
            app = QueueTransport(store)
            app.open("billing")
            app.open_input()
            app.send([envelope("queue:billing")])
            held = one(app)
            found.append((held.receipt.delivery.receipt, held.transport_id))
            app.close()
        time.sleep(0.005)  # times in the names are in milliseconds
    assert found[0][0] == found[1][0]  # which is why numbers alone are no name
    assert found[0][1] != found[1][1]


@ON_STORES
def test_a_uri_is_a_header(stores: QueueWorld, name: str) -> None:
    app = stores.app(name)
    stores.watching.queue(name).publish(Outgoing(uri="s3://bucket/key"))
    held = one(app)
    assert (held.body, held.headers) == (b"", {"detent-uri": "s3://bucket/key"})


@ON_STORES
def test_replies_of_a_journal_that_is_made_anew(stores: QueueWorld, name: str) -> None:
    app = stores.app(name)
    app.open_replies()
    journal = stores.watching.journal(f"detent.replies/{name}")
    assert journal.info().retention_ms == 3_600_000
    app.send([envelope(f"reply:{name}", b"%d" % number) for number in range(3)])
    assert len(app.next_replies(SEEN_S)) == 3
    journal.delete()
    assert app.next_replies(0) == []
    app.send([envelope(f"reply:{name}", b"anew")])
    assert [body for _, body in app.next_replies(SEEN_S)] == [b"anew"]


def test_a_store_that_was_given_stays_open() -> None:
    with detent.open("memory:") as store:
        app = QueueTransport(store, "other")
        app.open("billing")
        app.open_input()
        assert (app.input_name, app.reply_name) == ("other", "billing")
        with pytest.raises(Invalid, match="make one for each"):
            app.open("mail")
        app.close()
        assert store.queue("other").info().name == "other"


def test_a_store_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with detent.open("memory:") as store:
        app = QueueTransport(store)
        app.open("billing")
        app.open_input()
        for error, seen in ((Unavailable("gone"), Unavailable), (detent.Busy("full"), Unavailable)):

            def refuse(_: Any, error: Exception = error) -> Any:
                raise error

            with monkeypatch.context() as patch:
                patch.setattr(store, "commit", refuse)
                sent = [envelope("queue:billing"), envelope("queue:other")]
                assert {index: type(said) for index, said in app.send(sent).items()} == dict.fromkeys((0, 1), seen)
                with pytest.raises(seen):
                    app.receive(1, 0)
        assert app.send([envelope("queue:billing")]) == {}
        app.close()


@pytest.mark.parametrize("given", [None, 7, object()])
def test_what_is_no_store_is_refused(given: Any) -> None:
    with pytest.raises(Invalid, match="URL"):
        QueueTransport(given)


@pytest.mark.parametrize("options", [{"lease": "0s"}, {"retention": "0s"}, {"queue": "a b"}, {"lease": "soon"}])
def test_wrong_options_are_refused(options: Any) -> None:
    with pytest.raises(Invalid):
        QueueTransport("memory:", **options)


def test_a_place_has_no_secrets(tmp_path: Path) -> None:
    assert "hush" not in QueueTransport("https://me:hush@localhost:1").place
    assert QueueTransport(f"file:{tmp_path}", "q").place == f"file:{tmp_path}#q"
    assert "hush" not in SqsTransport("q", endpoint=f"http://me:hush@127.0.0.1:{free_port()}").place
