"""Malformed and hostile input to queues, through the API and through the wire: a clear refusal, and nothing changed."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import detent
from detent import Outgoing, Receipt, Store
from detent.engine.operation import OPERATIONS_MAX
from detent.errors import Conflict, DetentError, Exists, Invalid, LimitExceeded, NotFound, StaleReceipt
from detent.journal import operations as journal_ops
from detent.kv.base import FIRST_KEY
from detent.kv.ownership import read_owner
from detent.queue import checkpoint
from detent.queue import operations as ops
from detent.remote import owner as owner_module
from detent.remote import wire
from world import World

encode = msgspec.msgpack.encode
DAY_MS = 86_400_000
SURROGATE = "\ud800"


# -- a store with something in each state -----------------------------------------------------------------------


class Victim:
    """A store, and what it looked like before."""

    def __init__(self, owner: Store, store: Store) -> None:
        self.owner = owner
        self.store = store
        self.queue = store.queue("q")
        self.queue.create(max_attempts=3)
        store.queue("other").create(filter='headers.tier == "gold"')
        self.queue.publish_many([b"failed", b"held", b"free"])
        self.queue.publish(b"late", delay="1h", dedup_key="taken")
        store.publish(b"nobody's")
        failed, self.held = self.queue.claim(2, lease="12h")
        failed.fail("broken", final=True)
        self.failed = failed.id
        self.number = self.queue.info().number
        self.line = Wire(owner)
        self.before = self.snapshot()
        self.touched = False

    def snapshot(self) -> tuple[Any, ...]:
        """All that the store tells, and all that is in it."""
        with self.owner._kv.view() as view:
            records = dict(view.scan(FIRST_KEY))
        failed = list(self.queue.failed())
        return self.store.queues(), self.store.unmatched(), self.store.journals(), failed, records

    def check(self) -> None:
        after = self.snapshot()
        assert after[:-1] == self.before[:-1]
        assert after[-1] == self.before[-1], "some record was changed"
        self.touched = False


class Victims:
    """One store for all refusals, since they change nothing. If one of them did, the next test gets another store."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind = kind
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._victim: Victim | None = None
        self._count = itertools.count()

    def one(self) -> Victim:
        if self._victim is None or self._victim.touched:
            self.close()
            url = f"file:{self._directory / str(next(self._count))}"
            owner = self._stack.enter_context(detent.open(url))
            client = owner if self._kind == "owner" else self._stack.enter_context(detent.open(url, role="client"))
            self._victim = Victim(owner, client)
            self._stack.callback(self._victim.line.http.close)
        self._victim.touched = True
        return self._victim

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module", params=["owner", "client"])
def victims(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victims]:
    patched = pytest.MonkeyPatch()
    patched.setattr(owner_module, "TICK_S", 3600.0)  # the owner keeps house only when asked
    patched.setattr(checkpoint, "AGE_MS_MAX", 3_600_000)  # and writes no checkpoint then, however slow the machine is
    made = Victims(request.param, tmp_path_factory.mktemp("hostile"))
    yield made
    made.close()
    patched.undo()


@pytest.fixture
def victim(victims: Victims) -> Victim:
    return victims.one()


# -- through the API --------------------------------------------------------------------------------------------

Call = Callable[[Victim], Any]


def publish(*arguments: Any, **options: Any) -> Call:
    return lambda victim: victim.queue.publish(*arguments, **options)


def create(**settings: Any) -> Call:
    return lambda victim: victim.store.queue("new").create(**settings)


def configure(**settings: Any) -> Call:
    return lambda victim: victim.queue.configure(**settings)


def claim(*arguments: Any, **options: Any) -> Call:
    return lambda victim: victim.queue.claim(*arguments, **options)


def ack(*held: Any) -> Call:
    return lambda victim: victim.queue.ack(list(held))


def more_bytes_than_a_publish_holds(victim: Victim) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ops, "PUBLISH_BYTES_MAX", 1000)
        victim.queue.publish_many([bytes(600), bytes(600)])


API: dict[str, tuple[Call, type[DetentError] | tuple[type[DetentError], ...]]] = {
    "a body that is text": (publish("text"), Invalid),
    "a body that is nothing": (publish(None), Invalid),
    "a body over the limit": (publish(bytes(ops.BODY_BYTES_MAX + 1)), LimitExceeded),
    "many with one that is text": (lambda v: v.queue.publish_many([b"x", "y"]), Invalid),
    "a queue that does not exist": (lambda v: v.store.queue("nowhere").publish(b"x"), NotFound),
    "another queue in the headers": (publish(b"x", headers={"queue": "other"}), Invalid),
    "an option that publish has not": (publish(b"x", priority=5), Invalid),
    "one hundred thousand messages": (lambda v: v.queue.publish_many([b""] * 100_000), LimitExceeded),
    "more bytes than a publish holds": (more_bytes_than_a_publish_holds, LimitExceeded),
    "text for messages": (lambda v: v.queue.publish_many("text"), Invalid),
    "headers that are text": (publish(b"x", headers="text"), Invalid),
    "a header that is a number": (publish(b"x", headers={"a": 7}), Invalid),
    "a header's name that is a number": (publish(b"x", headers={7: "a"}), Invalid),
    "a header that is nothing": (publish(b"x", headers={"a": None}), Invalid),
    "a header that is half a character": (publish(b"x", headers={"a": SURROGATE}), Invalid),
    "a header's name that is half a character": (publish(b"x", headers={SURROGATE: "a"}), Invalid),
    "too many headers": (publish(b"x", headers={str(n): "" for n in range(256)}), LimitExceeded),
    "headers that are too long": (publish(b"x", headers={"a": "ü" * 4096}), LimitExceeded),
    "a URI that is a number": (publish(b"", uri=7), Invalid),
    "a URI with half a character": (publish(b"", uri=f"s3://{SURROGATE}"), Invalid),
    "a URI without a scheme": (publish(b"", uri="key"), Invalid),
    "a URI with a line end": (publish(b"", uri="s3://a\nb"), Invalid),
    "a URI with a NUL": (publish(b"", uri="s3://a\0b"), Invalid),
    "a URI that is too long": (publish(b"", uri="s3:" + "x" * 9000), LimitExceeded),
    "a body and a URI": (publish(b"x", uri="s3://b/k"), Invalid),
    "a dedup key of no bytes": (publish(b"x", dedup_key=""), Invalid),
    "a dedup key that is too long": (publish(b"x", dedup_key="x" * 256), LimitExceeded),
    "a dedup key that is a number": (publish(b"x", dedup_key=7), Invalid),
    "a dedup key that is half a character": (publish(b"x", dedup_key=SURROGATE), Invalid),
    "a delay below nothing": (publish(b"x", delay="-1s"), Invalid),
    "a delay of more than a year": (publish(b"x", delay="366d"), LimitExceeded),
    "a delay that is a boolean": (publish(b"x", delay=True), Invalid),
    "a delay and a time": (publish(b"x", delay="1s", visible_at=datetime.now(UTC)), Invalid),
    "a time without a zone": (publish(b"x", visible_at=datetime(2030, 1, 1)), Invalid),
    "a time that is text": (publish(b"x", created="now"), Invalid),
    "a time before 1970": (publish(b"x", created=datetime(1960, 1, 1, tzinfo=UTC)), Invalid),
    "to be visible before 1970": (publish(b"x", visible_at=datetime(1960, 1, 1, tzinfo=UTC)), Invalid),
    "a retention beyond the record": (publish(b"x", retention="60000d"), LimitExceeded),
    "more said of what says everything": (publish(Outgoing(b"x"), headers={"a": "b"}), Invalid),
    "a filter that is none": (create(filter="((("), Invalid),
    "a filter that is too long": (create(filter="true" + " " * 5000), (Invalid, LimitExceeded)),
    "a filter that is too deep": (create(filter="(" * 500 + "true" + ")" * 500), Invalid),
    "a filter with a loop": (create(filter='["a"].exists(x, x == "a")'), Invalid),
    "a filter that is a number": (create(filter=7), Invalid),
    "a filter with half a character": (create(filter=f'headers.a == "{SURROGATE}"'), Invalid),
    "a filter with a NUL": (create(filter='headers.a == "\0"'), Invalid),
    "a filter that is no yes or no": (create(filter="1"), Invalid),
    "a setting that does not exist": (create(nonsense=1), Invalid),
    "attempts below nothing": (create(max_attempts=-1), Invalid),
    "attempts that are text": (create(max_attempts="5"), Invalid),
    "attempts that are a yes": (create(max_attempts=True), Invalid),
    "too many attempts": (create(max_attempts=65_536), LimitExceeded),
    "paused that is text": (create(paused="yes"), Invalid),
    "paused that is a number": (configure(paused=1), Invalid),
    "a description that is bytes": (create(description=b"x"), Invalid),
    "a description with half a character": (configure(description=SURROGATE), Invalid),
    "a description that is too long": (configure(description="x" * 4097), LimitExceeded),
    "labels that are a list": (create(labels=["x"]), Invalid),
    "a queue label that is a number": (configure(labels={"x": 1}), Invalid),
    "a label with half a character": (configure(labels={"x": SURROGATE}), Invalid),
    "a label with half a character for a name": (configure(labels={SURROGATE: ""}), Invalid),
    "a label without a name": (create(labels={"": "x"}), Invalid),
    "a label's name that is too long": (configure(labels={"x" * 256: ""}), LimitExceeded),
    "a queue label that is too long": (configure(labels={"x": "x" * 4097}), LimitExceeded),
    "too many labels": (configure(labels={str(n): "" for n in range(129)}), LimitExceeded),
    "labels that are too much together": (configure(labels={str(n): "x" * 4096 for n in range(16)}), LimitExceeded),
    "a priority header that is too long": (configure(priority_header="x" * 256), LimitExceeded),
    "a lease of no time": (configure(lease="0s"), Invalid),
    "a lease that is too long": (configure(max_lease="8d"), Invalid),
    "a lease above its maximum": (configure(lease="2h", max_lease="1h"), Invalid),
    "a back-off that is too long": (configure(backoff="366d"), LimitExceeded),
    "a policy that is none": (configure(failed="explode"), Invalid),
    "a queue that exists": (lambda v: v.queue.create(), Exists),
    "a window that is too long": (lambda v: v.store.set_dedup_window("366d"), LimitExceeded),
    "a claim for none": (claim(0), Invalid),
    "a claim for less than none": (claim(-1), Invalid),
    "a claim for too many": (claim(ops.CLAIM_MAX + 1), Invalid),
    "a claim for more than there are numbers": (claim(1 << 70), Invalid),
    "a claim for a yes": (claim(True), Invalid),
    "a claim for half a message": (claim(0.5), Invalid),
    "a lease of nothing": (claim(lease="0ms"), Invalid),
    "a lease that is text": (claim(lease="long"), Invalid),
    "a lease beyond all time": (claim(lease="1000000000000w"), Invalid),
    "a label that is too long": (claim(consumer="x" * 256), LimitExceeded),
    "a label that is a number": (claim(consumer=7), Invalid),
    "a label that is half a character": (claim(consumer=SURROGATE), Invalid),
    "a claim from nowhere": (lambda v: v.store.queue("nowhere").claim(), NotFound),
    "a receipt that is none": (ack("receipt"), Invalid),
    "a receipt that is a number": (ack(7), Invalid),
    "a receipt below nothing": (ack("1--2-3"), Invalid),
    "a receipt of a queue that is none": (ack("77-1-1"), StaleReceipt),
    "a receipt of the store's own": (ack("0-1-1"), StaleReceipt),
    "a receipt of a negative queue": (ack(Receipt(-1, 1, 1)), (StaleReceipt, Invalid)),
    "a receipt beyond all numbers": (ack(Receipt(1, 1 << 70, 1)), (StaleReceipt, Invalid)),
    "a receipt of texts": (ack(Receipt("a", "b", "c")), (StaleReceipt, Invalid)),
    "a receipt of lists": (lambda v: v.queue.ack([Receipt(v.number, [1], 1)]), (StaleReceipt, Invalid)),
    "a receipt of another delivery": (
        lambda v: v.queue.ack([v.held.receipt._replace(delivery=v.held.receipt.delivery + 1)]), StaleReceipt),
    "a receipt of another message": (
        lambda v: v.queue.ack([v.held.receipt._replace(message=v.held.id + 1)]), StaleReceipt),
    "a receipt of a failed message": (
        lambda v: v.queue.ack([v.held.receipt._replace(message=v.failed, delivery=1)]), StaleReceipt),
    "a receipt twice": (lambda v: v.queue.ack([v.held, v.held]), Invalid),
    "a good receipt with a bad one": (lambda v: v.queue.ack([v.held, Receipt(v.number, 10**6, 1)]), StaleReceipt),
    "too many receipts": (lambda v: v.queue.ack([Receipt(v.number, n, n) for n in range(10_001)]), Invalid),
    "a reason that is too long": (lambda v: v.held.fail("ü" * 2049), LimitExceeded),
    "a reason that is a number": (lambda v: v.held.fail(7), Invalid),
    "a reason that is half a character": (lambda v: v.held.fail(SURROGATE), Invalid),
    "a delay of a failure that is too long": (lambda v: v.held.fail(delay="366d"), LimitExceeded),
    "a delay of a failure below nothing": (lambda v: v.held.fail(delay="-1s"), Invalid),
    "an end that is text": (lambda v: v.held.fail(final="maybe"), Invalid),
    "an extension of nothing": (lambda v: v.held.extend("0s"), Invalid),
    "a redrive of what has not failed": (lambda v: v.queue.redrive([v.held.id]), NotFound),
    "a redrive of one that has and one that has not": (lambda v: v.queue.redrive([v.failed, 10**6]), NotFound),
    "a redrive of less than nothing": (lambda v: v.queue.redrive([-1]), (NotFound, Invalid)),
    "a redrive of text": (lambda v: v.queue.redrive(["x"]), (NotFound, Invalid)),
    "a redrive of lists": (lambda v: v.queue.redrive([[1]]), (NotFound, Invalid)),
    "a redrive with a filter that is none": (lambda v: v.queue.redrive(filter="=="), Invalid),
    "a redrive to nowhere": (lambda v: v.queue.redrive(to="nowhere"), NotFound),
    "a redrive to a number": (lambda v: v.queue.redrive(to=7), (NotFound, Invalid)),
    "a purge of what has not failed": (lambda v: v.queue.purge(messages=[v.held.id]), NotFound),
    "a purge of lists": (lambda v: v.queue.purge(messages=[[1]]), (NotFound, Invalid)),
    "a purge of perhaps": (lambda v: v.queue.purge(available="no", failed="no"), Invalid),
    "a message below nothing": (lambda v: v.store.message(-1), (NotFound, Invalid)),
    "a message beyond all numbers": (lambda v: v.store.message(1 << 64), (NotFound, Invalid)),
    "a message that is text": (lambda v: v.store.message("x"), (NotFound, Invalid)),
    "queues that begin with a number": (lambda v: v.store.queues(7), Invalid),
    "a name that is half a character": (lambda v: v.store.queue(SURROGATE), Invalid),
    "a name with a NUL": (lambda v: v.store.queue("a\0b"), Invalid),
    "a name with a space": (lambda v: v.store.queue("a b"), Invalid),
    "a name that is too long": (lambda v: v.store.queue("x" * 201), Invalid),
    "a name that goes up": (lambda v: v.store.queue("../x"), Invalid),
}  # fmt: skip


@pytest.mark.parametrize("name", API)
def test_refused_by_the_api(victim: Victim, name: str) -> None:
    """Nothing is changed, the owner is well, and the error says what is wrong in Detent's own words."""
    call, error = API[name]
    with pytest.raises(DetentError) as caught:
        call(victim)
    assert isinstance(caught.value, error), repr(caught.value)
    assert len(str(caught.value)) > 10
    assert victim.held.settled is False
    victim.check()


def test_in_a_transaction_with_others(victim: Victim) -> None:
    """A transaction of good and bad parts is refused whole; one that was given nothing to do says so."""
    for call in (lambda t: t.publish_many([], queue="q"), lambda t: t.ack("x"), lambda t: t.publish("text", queue="q")):
        with pytest.raises(DetentError), victim.store.transaction() as transaction:
            transaction.append("new", b"x")
            call(transaction)
        victim.check()
    with pytest.raises(StaleReceipt), victim.store.transaction() as transaction:
        transaction.publish(b"x", queue="q", dedup_key="fresh")
        transaction.publish(b"x", headers={"tier": "gold"})
        transaction.append("new", b"x")
        transaction.ack(victim.held)
        transaction.ack(Receipt(victim.number, 10**6, 1))
    victim.check()


# -- through the wire -------------------------------------------------------------------------------------------


class Wire:
    """A client that sends whatever it is told to."""

    def __init__(self, owner: Store) -> None:
        known = read_owner(Path(owner.url.removeprefix("file:")))
        assert known is not None
        transport = httpx.HTTPTransport(uds=known.socket, verify=False)
        self.http = httpx.Client(transport=transport, base_url="http://owner", timeout=60)
        self.session = bytes.fromhex(self.http.post("/v1/sessions").json()["session"])
        self._sequence = itertools.count()

    def send(self, *operations: Any) -> list[Any] | DetentError:
        body = [[self.session, next(self._sequence), 0, list(operations)]]
        answer = self.http.post("/v1/transactions", content=encode(body))
        assert answer.status_code == 200, answer.content
        return wire.decode_answers(answer.content, 1)[0]


def raw_text(value: bytes) -> msgspec.Raw:
    """A text of MessagePack that is not UTF-8."""
    return msgspec.Raw(bytes((0xA0 + len(value),)) + value)


Operation = Callable[[Victim], list[Any]]


def plain(*operation: Any) -> Operation:
    return lambda _: list(operation)


def held(kind: str, *rest: Any, change: int = 0) -> Operation:
    """An operation on the message that is held, perhaps with another delivery number."""
    return lambda v: [kind, v.number, [v.held.id], [v.held.fencing_token + change], *rest]


TO_Q = [{"queue": "q"}]
WIRE: dict[str, tuple[Operation, type[DetentError]]] = {
    "create without a name": (plain("CreateQueue"), Invalid),
    "create a number": (plain("CreateQueue", 7), Invalid),
    "create a path": (plain("CreateQueue", "/"), Invalid),
    "create what is there": (plain("CreateQueue", "q"), Exists),
    "create with a field too many": (plain("CreateQueue", "new", [], False, False, 1), Invalid),
    "create with a filter that is a number": (plain("CreateQueue", "new", [7]), Invalid),
    "create with a filter that is none": (plain("CreateQueue", "new", ["headers.a =="]), Invalid),
    "create with attempts below nothing": (plain("CreateQueue", "new", [None, -1]), Invalid),
    "create with too many attempts": (plain("CreateQueue", "new", [None, 70_000]), LimitExceeded),
    "create with a lease of nothing": (plain("CreateQueue", "new", [None, None, 0]), Invalid),
    "create with a huge lease": (plain("CreateQueue", "new", [None, None, None, 1 << 62]), Invalid),
    "create with a lease beyond numbers": (plain("CreateQueue", "new", [None, None, None, 1 << 63]), Invalid),
    "create with a huge back-off": (plain("CreateQueue", "new", [None, None, None, None, 1 << 62]), LimitExceeded),
    "create with a huge done retention": (plain("CreateQueue", "new", [None] * 6 + [1 << 40]), LimitExceeded),
    "create with a policy that is none": (plain("CreateQueue", "new", [None] * 7 + ["burn"]), Invalid),
    "create with paused that is text": (plain("CreateQueue", "new", [None] * 9 + ["yes"]), Invalid),
    "create with settings that are a map": (plain("CreateQueue", "new", {"paused": True}), Invalid),
    "create with settings too many": (plain("CreateQueue", "new", [None] * 11 + [1]), Invalid),
    "configure nothing": (plain("ConfigureQueue", "nothing", []), NotFound),
    "configure without settings": (plain("ConfigureQueue", "q"), Invalid),
    "delete nothing": (plain("DeleteQueue", "nothing"), NotFound),
    "a window below nothing": (plain("SetDedupWindow", -1), Invalid),
    "a window that is too long": (plain("SetDedupWindow", 366 * DAY_MS), LimitExceeded),
    "publish without bodies": (plain("Publish"), Invalid),
    "publish nothing": (plain("Publish", []), Invalid),
    "publish a number": (plain("Publish", [7]), Invalid),
    "publish text": (plain("Publish", ["text"]), Invalid),
    "publish a body without its list": (plain("Publish", b"x"), Invalid),
    "publish with headers for others": (plain("Publish", [b"x"], [{}, {}]), Invalid),
    "publish with headers for none": (plain("Publish", [b"x"], []), Invalid),
    "publish with a header that is a number": (plain("Publish", [b"x"], [{"a": 7}]), Invalid),
    "publish with a name that is a number": (plain("Publish", [b"x"], [{7: "a"}]), Invalid),
    "publish with a header that is nothing": (plain("Publish", [b"x"], [{"a": None}]), Invalid),
    "publish with a header that is not UTF-8": (plain("Publish", [b"x"], [{"a": raw_text(b"\xff")}]), Invalid),
    "publish with too many headers": (plain("Publish", [b"x"], [{str(n): "" for n in range(256)}]), LimitExceeded),
    "publish with headers too long": (plain("Publish", [b"x"], [{"a": "x" * 8192}]), LimitExceeded),
    "publish a URI that is none": (plain("Publish", [b"key"], TO_Q, True), Invalid),
    "publish a URI that is not UTF-8": (plain("Publish", [b"s3:\xff"], TO_Q, True), Invalid),
    "publish a URI that is too long": (plain("Publish", [b"s3:" + bytes(9000)], TO_Q, True), LimitExceeded),
    "publish before 1970": (plain("Publish", [b"x"], TO_Q, False, -1), Invalid),
    "publish long after us": (plain("Publish", [b"x"], TO_Q, False, (1 << 53) + 1), Invalid),
    "publish to be seen never": (plain("Publish", [b"x"], TO_Q, False, None, 1 << 62), Invalid),
    "publish with a delay below nothing": (plain("Publish", [b"x"], TO_Q, False, None, None, -1), Invalid),
    "publish with a huge delay": (plain("Publish", [b"x"], TO_Q, False, None, None, 366 * DAY_MS), LimitExceeded),
    "publish with a huge retention": (plain("Publish", [b"x"], TO_Q, False, None, None, 0, 1 << 32), LimitExceeded),
    "publish with keys for others": (plain("Publish", [b"x"], TO_Q, False, None, None, 0, 60, ["a", "b"]), Invalid),
    "publish with a key of no bytes": (plain("Publish", [b"x"], TO_Q, False, None, None, 0, 60, [""]), Invalid),
    "publish with a key that is bytes": (plain("Publish", [b"x"], TO_Q, False, None, None, 0, 60, [b"k"]), Invalid),
    "publish with a long key": (plain("Publish", [b"x"], TO_Q, False, None, None, 0, 60, ["k" * 256]), LimitExceeded),
    "publish with a field too many": (plain("Publish", [b"x"], TO_Q, False, None, None, 0, 60, None, 1), Invalid),
    "publish one hundred thousand": (plain("Publish", [b""] * 100_000, TO_Q), LimitExceeded),
    "publish what is too large": (plain("Publish", [bytes(ops.BODY_BYTES_MAX + 1)], TO_Q), LimitExceeded),
    "claim from nowhere": (plain("Claim", "nowhere"), NotFound),
    "claim from a number": (plain("Claim", 7), Invalid),
    "claim none": (plain("Claim", "q", 0), Invalid),
    "claim less than none": (plain("Claim", "q", -1), Invalid),
    "claim too many": (plain("Claim", "q", 10_001), Invalid),
    "claim as many as there are numbers": (plain("Claim", "q", (1 << 64) - 1), Invalid),
    "claim a text": (plain("Claim", "q", "1"), Invalid),
    "claim a yes": (plain("Claim", "q", True), Invalid),
    "claim half a message": (plain("Claim", "q", 0.5), Invalid),
    "claim for no time": (plain("Claim", "q", 1, 0), Invalid),
    "claim for less than no time": (plain("Claim", "q", 1, -1), Invalid),
    "claim as a number": (plain("Claim", "q", 1, None, 7), Invalid),
    "claim as one with a long name": (plain("Claim", "q", 1, None, "x" * 256), LimitExceeded),
    "claim as one whose name is not UTF-8": (plain("Claim", "q", 1, None, raw_text(b"\xc3\x28")), Invalid),
    "acknowledge by name": (plain("Ack", "q", [1], [1]), Invalid),
    "acknowledge nothing": (plain("Ack", 1, [], []), Invalid),
    "acknowledge without deliveries": (plain("Ack", 1, [1], []), Invalid),
    "acknowledge in no queue": (plain("Ack", 77, [1], [1]), StaleReceipt),
    "acknowledge in the store's own queue": (plain("Ack", 0, [0], [0]), StaleReceipt),
    "acknowledge in a queue below nothing": (plain("Ack", -5, [0], [0]), StaleReceipt),
    "acknowledge a message below nothing": (plain("Ack", 1, [-1], [1]), Invalid),
    "acknowledge a message beyond numbers": (plain("Ack", 1, [1 << 63], [1]), Invalid),
    "acknowledge too many": (plain("Ack", 1, list(range(10_001)), list(range(10_001))), Invalid),
    "acknowledge a later delivery": (held("Ack", change=1), StaleReceipt),
    "acknowledge an earlier delivery": (held("Ack", change=-1), StaleReceipt),
    "acknowledge what is free": (lambda v: ["Ack", v.number, [v.held.id + 1], [v.held.fencing_token]], StaleReceipt),
    "acknowledge twice": (lambda v: ["Ack", v.number, [v.held.id] * 2, [v.held.fencing_token] * 2], Invalid),
    "acknowledge with a field too many": (held("Ack", 1), Invalid),
    "fail a later delivery": (held("Fail", change=1), StaleReceipt),
    "fail with a long reason": (held("Fail", "x" * 4097), LimitExceeded),
    "fail with a reason in bytes": (held("Fail", b"x"), Invalid),
    "fail with a delay below nothing": (held("Fail", "", -1), Invalid),
    "fail with a huge delay": (held("Fail", "", 366 * DAY_MS), LimitExceeded),
    "fail perhaps for good": (held("Fail", "", None, "maybe"), Invalid),
    "extend a later delivery": (held("Extend", change=1), StaleReceipt),
    "extend for no time": (held("Extend", 0), Invalid),
    "extend for less than no time": (held("Extend", -1), Invalid),
    "redrive nowhere": (plain("Redrive", "nowhere"), NotFound),
    "redrive to nowhere": (plain("Redrive", "q", None, None, "nowhere"), NotFound),
    "redrive what has not failed": (plain("Redrive", "q", [10**6]), NotFound),
    "redrive below nothing": (plain("Redrive", "q", [-1]), Invalid),
    "redrive with a filter that is none": (plain("Redrive", "q", None, "a b c"), Invalid),
    "redrive from a text on": (plain("Redrive", "q", None, None, None, "x"), Invalid),
    "purge nowhere": (plain("Purge", "nowhere"), NotFound),
    "purge perhaps": (plain("Purge", "q", "no"), Invalid),
    "purge what has not failed": (plain("Purge", "q", True, True, [10**6]), NotFound),
    "describe nothing": (plain("DescribeQueues", "nothing"), NotFound),
    "describe a number": (plain("DescribeQueues", 7), Invalid),
    "list nothing": (plain("ListFailed", "nothing"), NotFound),
    "list none": (plain("ListFailed", "q", -1, 0), Invalid),
    "list too many": (plain("ListFailed", "q", -1, 1_001), Invalid),
    "find below nothing": (plain("FindMessage", -1), Invalid),
    "find beyond numbers": (plain("FindMessage", 1 << 63), Invalid),
    "housekeeping: timers": (plain("Advance"), Invalid),
    "housekeeping: catching up": (plain("CatchUp", 1), Invalid),
    "housekeeping: collecting": (plain("Collect"), Invalid),
    "housekeeping: a checkpoint": (plain("Checkpoint"), Invalid),
    "housekeeping": (plain("Housekeeping", True), Invalid),
    "an operation that is none": (plain("Explode", "q"), Invalid),
    "an operation without a name": (plain(), Invalid),
}  # fmt: skip


@pytest.mark.parametrize("name", WIRE)
def test_refused_by_the_owner(victim: Victim, name: str) -> None:
    """Alone, and as the last of a transaction that had done much before it: all of that is taken back."""
    make, error = WIRE[name]
    good = [
        ["Publish", [b"1", b"2"], TO_Q, False, None, None, 0, 60, ["new", "taken"]],
        ["Publish", [b"3"], [{"tier": "gold"}]],
        ["CreateQueue", "made on the way"],
        ["Claim", "q", 10, 1000],
        ["Append", "journal", [b"x"]],
        ["Publish", [b"4"]],
    ]
    for operations in ([make(victim)], [*good[:2], *good[3:], make(victim)], [*good, make(victim), *good]):
        outcome = victim.line.send(*operations)
        assert isinstance(outcome, DetentError), outcome
        expected = error if len(operations) == 1 else (error, Invalid)  # what stands alone may not stand with others
        assert isinstance(outcome, expected), repr(outcome)
    victim.check()


def test_after_all_of_it_the_store_opens_as_it_was(victim: Victim, tmp_path: Path) -> None:
    """What was refused has left nothing in the log that the next owner replays: a copy of the files, as a killed owner
    would leave them, opens and is the same."""
    source = Path(victim.owner.url.removeprefix("file:"))
    shutil.copytree(source, tmp_path / "copy", ignore=shutil.ignore_patterns("owner.*"))
    with detent.open(f"file:{tmp_path / 'copy'}") as store:
        assert store.queues() == victim.before[0]
        assert list(store.queue("q").failed()) == victim.before[3]
        store.queue("q").ack([victim.held.receipt])
        assert [message.body for message in store.queue("q").claim(10)] == [b"free"]


def test_alone_in_their_transactions(victim: Victim) -> None:
    """Some operations are not taken back and so must stand alone; with others they are refused, wherever they stand."""
    alone: list[list[Any]] = [
        ["DeleteQueue", "q"], ["ConfigureQueue", "q", [None, 9]], ["Redrive", "q"], ["Purge", "q"],
    ]  # fmt: skip
    for operation in alone:
        for operations in ([operation, ["Append", "j", [b"x"]]], [["Append", "j", [b"x"]], operation]):
            assert isinstance(victim.line.send(*operations), Invalid)
    victim.check()


def test_more_operations_than_a_transaction_holds(victim: Victim) -> None:
    assert isinstance(victim.line.send(*[["Claim", "q", 1]] * (OPERATIONS_MAX + 1)), LimitExceeded)
    victim.check()


WAIT = "/v1/native/wait/queue?queue="


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{WAIT}q", 400), (f"{WAIT}q&timeout_ms=x", 400), (f"{WAIT}q&timeout_ms=", 400), (f"{WAIT}&timeout_ms=1", 400),
        (f"{WAIT}a%00b&timeout_ms=1", 400), (f"{WAIT}%FF&timeout_ms=1", 400), (f"{WAIT}{'x' * 300}&timeout_ms=1", 400),
        (f"{WAIT}q&timeout_ms={'9' * 5000}", 400), (f"{WAIT}q&timeout_ms=1&timeout_ms=2", 400),
        (f"{WAIT}q&timeout_ms=-1", 200), (f"{WAIT}q&timeout_ms=1", 200), (f"{WAIT}nothing&timeout_ms=60000", 200),
        ("/v1/native/wait", 404), ("/v1/queues/q", 404), ("/v1/queues", 404),
    ],
)  # fmt: skip
def test_waiting_for_what_makes_no_sense(victim: Victim, path: str, status: int) -> None:
    """It is refused, or answered at once; nobody is left waiting."""
    assert victim.line.http.get(path).status_code == status
    victim.check()


# -- what is allowed at the edge --------------------------------------------------------------------------------


def test_at_the_limits(tmp_path: Path) -> None:
    """What is just within the limits goes through, and comes out as it went in."""
    with detent.open("memory:") as store:
        queue = store.queue("x" * 200)
        queue.create(description="ü" * 2048, priority_header="p" * 255, max_attempts=65_535, lease="7d", max_lease="7d")
        headers = {f"{n:03}": "" for n in range(253)} | {"\0": "\0\x01ü𝄞"}
        key = "𝄞" * 63
        published = queue.publish(b"\0", headers=headers, dedup_key=key)
        assert queue.publish(b"\0", dedup_key=key).duplicate_of == published.message
        (message,) = queue.claim(10_000, consumer="𝄞" * 63, lease="7d")
        assert message.headers == headers | {"queue": queue.name}
        message.fail("ü" * 2048, delay="365d")
        place = store.message(message.id).places[0]
        assert (place.history[0].reason, place.history[0].consumer) == ("ü" * 2048, "𝄞" * 63)
        assert len(queue.publish_many([b""] * ops.PUBLISH_MESSAGES_MAX)) == ops.PUBLISH_MESSAGES_MAX
        assert len(queue.claim(ops.CLAIM_MAX)) == ops.CLAIM_MAX
        assert queue.publish(bytes(ops.BODY_BYTES_MAX)).duplicate_of is None


def test_a_redrive_of_more_than_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are named, all of them are driven again."""
    monkeypatch.setattr(ops, "STEP_MESSAGES", 5)
    with detent.open("memory:") as store:
        queue = store.queue("q")
        queue.create()
        queue.publish_many([b"%d" % number for number in range(12)])
        for message in queue.claim(12):
            message.fail(final=True)
        assert queue.redrive([failed.message for failed in queue.failed()]) == 12
        assert queue.info().available == 12


def test_no_message_carries_a_time_that_its_consumer_cannot_read(tmp_path: Path) -> None:
    """A producer of another kind may send any number that is allowed; all that is claimed can be looked at."""
    with detent.open("memory:") as store:
        queue = store.queue("q")
        queue.create()
        store.commit([ops.Publish([b"x"], TO_Q, created_ms=1 << 53)])
        (message,) = queue.claim()
        assert message.created.year == 9999
        assert store.message(message.id).created == message.created


# -- what is refused leaves nothing, now and after a restart ----------------------------------------------------

REFUSALS: dict[str, list[Any]] = {
    "publish": [ops.Publish([b"no"], TO_Q)],
    "publish with a key": [ops.Publish([b"no"], TO_Q, dedup_keys=["k"])],
    "publish to nobody": [ops.Publish([b"no"])],
    "claim": [ops.Claim("q", 2, 10)],
    "publish and claim": [ops.Publish([b"no"], TO_Q), ops.Claim("q", 10, 10)],
    "create and publish": [ops.CreateQueue("new"), ops.Publish([b"no"], [{"queue": "new"}])],
    "a window": [ops.SetDedupWindow(5)],
    "ack": ["ack"],
    "fail": ["fail"],
    "fail for good": ["final"],
    "extend": ["extend"],
    "publish and ack": [ops.Publish([b"no"], TO_Q), "ack"],
    "publish and fail": [ops.Publish([b"no"], TO_Q), "fail", ops.Claim("q", 10)],
}


@pytest.mark.parametrize("passes_ms", [0, 2_000, 40_000])
@pytest.mark.parametrize("last", ["check", "stale receipt"])
@pytest.mark.parametrize("name", REFUSALS)
def test_a_refused_transaction_is_as_if_it_had_never_been(name: str, last: str, passes_ms: int) -> None:
    """Two stores, one of which gets a transaction that is refused, while leases end and delays pass: they stay the
    same, tell the same, give out the same, and are the same after a restart in the middle."""
    worlds = [World(), World()]
    found = []
    for number, world in enumerate(worlds):
        world.commit(ops.CreateQueue("q", ops.Settings(lease_ms=1_000, backoff_ms=0, max_attempts=3)))
        world.commit(ops.Publish([b"%d" % n for n in range(6)], TO_Q))
        world.commit(ops.Publish([b"later"], TO_Q, delay_ms=1_500))
        short = world.commit(ops.Claim("q", 1, 1_000))[0]
        long = world.commit(ops.Claim("q", 1, 3_600_000))[0]
        receipt = (long.queue, long.messages, [long.first_delivery])
        stale = (short.queue, short.messages, [short.first_delivery])
        world.now_ms += passes_ms
        by_name = {
            "ack": ops.Ack(*receipt),
            "fail": ops.Fail(*receipt, "no", 0),
            "final": ops.Fail(*receipt, "no", None, True),
            "extend": ops.Extend(*receipt, 1),
        }
        if number:
            refusal: Any = ops.Ack(*stale) if last == "stale receipt" and passes_ms else journal_ops.CheckHead("j", 7)
            operations = [by_name[one] if isinstance(one, str) else one for one in REFUSALS[name]]
            for _ in range(2):
                with pytest.raises((Conflict, StaleReceipt)):
                    world.commit(*operations, refusal)
        told = [tell(world)]
        claimed = world.commit(ops.Claim("q", 3, 5_000, "one"))[0]
        told.append(claimed)
        world.commit(ops.Fail(*receipt, "later", 0))
        told.append(tell(world))
        world.reopen()
        told.append(tell(world))
        told.append(world.commit(ops.Claim("q", 10, 5_000, "two"))[0])
        world.now_ms += 10_000
        told.append(tell(world))
        world.reopen()
        told.append(tell(world))
        found.append(told)
    assert found[0] == found[1]


def tell(world: World) -> list[Any]:
    """What a store tells of its queues and messages. (Numbers of messages may differ: some are skipped.)"""
    described = world.commit(ops.DescribeQueues())[0]
    states = [world.commit(ops.FindMessage(number))[0].states for number in range(7)]
    return [described, states, world.commit(ops.ListFailed("q"))[0]]
