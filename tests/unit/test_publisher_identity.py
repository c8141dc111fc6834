"""A producer belongs to the publisher that it was given to, and a publisher is told when its messages do not count."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from clockworld import HOUR, MINUTE, ClockWorld
from detent.codec import journal as records
from detent.engine import Operation, Request
from detent.engine.sessions import PROVED_SINCE
from detent.errors import ClockBehind, DetentError, Fenced, Invalid, NotFound, OutcomeUnknown, ProducerTaken
from detent.journal import AckIntent, Publisher
from detent.journal import operations as ops
from detent.journal.producers import Given, Producers
from detent.kv import Batch
from detent.message import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, ProducerId, clock_of_ns, new_producer_id
from detent.queue import QueueMachine
from detent.remote import wire
from detent.remote.app import OwnerApp
from detent.server.access import UNCHECKED, Caller, Grant
from detent.verify import verify as verify_journals
from world import START_MS, World

VICTIM = Caller("victim", (Grant("publish", "journal", "*"),), "key-1")
STRANGER = Caller("stranger", (Grant("publish", "journal", "*"),), "key-2")
HOUR_NS = 3600 * 1_000_000_000

Commit = Callable[[list[Operation]], list[Any]]


class Door:
    """A client of a server: what it commits goes through the wire protocol, in a session of its own."""

    def __init__(self, world: World, caller: Caller | None) -> None:
        self._world = world
        self._caller = caller
        self.reconnect()

    def reconnect(self) -> None:
        """Use a new session, as a client does whose old one has expired."""
        self.session = self._world.engine.new_session("" if self._caller is None else self._caller.key)
        self._sequence = 0

    def commit(self, operations: list[Operation]) -> list[Any]:
        request = Request(self.session, self._sequence, self._sequence, operations)
        self._sequence += 1
        (outcome,) = self.send(request)
        if isinstance(outcome, DetentError):
            raise outcome
        return outcome

    def give(self) -> Given:
        found = msgspec.json.decode(self._ask("/v1/producers", b""), type=dict[str, str])
        producer, proof, sealing = (bytes.fromhex(found[name]) for name in Given._fields)
        return Given(ProducerId(producer), proof, sealing)

    def send(self, request: Request) -> list[Any]:
        body = wire.encode_requests([wire.encode_request(request)])
        return wire.decode_answers(self._ask("/v1/transactions", body), 1)

    def _ask(self, path: str, body: bytes) -> bytes:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def run() -> bytes:
            app = OwnerApp(
                self._world.engine, self._world.machine, QueueMachine(self._world.writer), self._world.writer
            )
            scope = {"method": "POST", "path": path, "query_string": b"", "headers": []}
            found = (await app.answer(scope, receive, self._caller)).body
            assert isinstance(found, bytes)
            return found

        return asyncio.run(run())


@pytest.fixture
def world() -> World:
    return World()


def publisher_of(world: World, door: Door | Commit, behind_ns: int = 0) -> Publisher:
    """A publisher behind a door, which gives it its producer; or in the process of the owner."""
    commit, give = (door.commit, door.give) if isinstance(door, Door) else (door, None)
    return Publisher(commit, give=give, now_ns=lambda: world.now_ms * 1_000_000 - behind_ns)


def stamped(producer: bytes, clock: int, flags: int = OUTSIDE_TXN, journal: str = "j") -> ops.AppendStamped:
    return ops.AppendStamped(journal, [b"taken"], None, None, producer, [clock], [flags])


def now_clock(world: World, plus_ms: int = 0) -> int:
    return clock_of_ns((world.now_ms + plus_ms) * 1_000_000)


# -- the identity of a publisher --------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [OUTSIDE_TXN, CONTINUE_TXN, ACK_TXN])
@pytest.mark.parametrize("thief", [STRANGER, VICTIM, UNCHECKED])
def test_a_client_cannot_publish_under_another_publishers_producer(world: World, flags: int, thief: Caller) -> None:
    publisher = publisher_of(world, Door(world, VICTIM))
    publisher.publish("j", [b"one"])
    with pytest.raises(Fenced, match="producer"):
        Door(world, thief).commit([stamped(bytes(publisher.producer), now_clock(world, 60_000), flags)])
    assert publisher.publish("j", [b"two"]).committed == 1
    assert world.bodies("j") == [b"one", b"two"]


def test_a_client_cannot_publish_under_the_owners_own_producer(world: World) -> None:
    world.append("j", b"one")
    (message,) = world.committed("j")
    with pytest.raises(Fenced, match="producer"):
        Door(world, STRANGER).commit([stamped(message.producer, now_clock(world, 60_000))])


def test_a_client_cannot_roll_back_a_transaction_of_the_owners_process(world: World) -> None:
    publisher = publisher_of(world, lambda operations: world.commit(*operations))
    publisher.publish_uncommitted("j", [b"pending"])
    (intent,) = publisher.build_ack_intents()
    for clock in (1, intent.clock + 160):
        with pytest.raises(Fenced, match="producer"):
            Door(world, STRANGER).commit([stamped(bytes(publisher.producer), clock, ACK_TXN)])
    publisher.acknowledge([intent])
    assert world.bodies("j") == [b"pending"]


def test_the_intents_of_a_dead_process_are_written_by_the_next_one(world: World) -> None:
    """With the same key, after a rotation with another one, from the owner's own process: the intent is the proof."""
    for number, successor in enumerate((VICTIM, STRANGER, None)):
        journal = f"j{number}"
        publisher = publisher_of(world, Door(world, VICTIM))
        publisher.publish_uncommitted(journal, [b"promised"])
        kept = [intent.to_bytes() for intent in publisher.build_ack_intents()]
        world.reopen()
        door = Door(world, successor)
        for _ in range(2):
            door.commit([AckIntent.from_bytes(one).operation() for one in kept])
        assert world.bodies(journal) == [b"promised"]


def test_an_intent_proves_nothing_but_itself(world: World) -> None:
    publisher = publisher_of(world, Door(world, VICTIM))
    publisher.publish_uncommitted_many({"j": [b"a"], "k": [b"b"]})
    intents = publisher.build_ack_intents()
    door = Door(world, STRANGER)
    for changed in (
        msgspec.structs.replace(intents[0], journal="k"),
        msgspec.structs.replace(intents[0], clock=intents[0].clock + 160),
        msgspec.structs.replace(intents[0], clock=1),
    ):
        with pytest.raises(Fenced, match="producer"):
            door.commit([changed.operation()])
    publisher.acknowledge(intents)
    assert (world.bodies("j"), world.bodies("k")) == ([b"a"], [b"b"])


def test_an_intent_of_an_earlier_release_is_still_written(world: World) -> None:
    """It has no seal. Only a transaction that is older than seals are can be acknowledged so; and once it is, a repeat
    changes nothing."""
    producer, other = b"\x01" * 6, b"\x03" * 6
    begun = now_clock(world)
    world.commit(stamped(producer, begun, CONTINUE_TXN))
    batch = Batch()
    batch.delete(PROVED_SINCE.raw)  # as an earlier release has left the store
    world.writer.commit(batch)
    world.now_ms += 1000
    world.reopen()
    world.commit(stamped(other, now_clock(world), CONTINUE_TXN))
    door = Door(world, VICTIM)
    old = AckIntent("j", producer, begun + 160)
    for _ in range(2):
        door.commit([old.operation()])
    assert world.bodies("j") == [b"taken"]
    for later in (AckIntent("j", producer, begun + 320), AckIntent("j", other, now_clock(world) + 160)):
        with pytest.raises(ProducerTaken):
            door.commit([later.operation()])
    with pytest.raises(NotFound):
        door.commit([AckIntent("gone", producer, begun + 160).operation()])


def test_the_floor_travels_to_publishers_behind_a_server(world: World) -> None:
    prune(world)
    slow = publisher_of(world, Door(world, VICTIM), behind_ns=49 * HOUR_NS)
    assert slow.publish("j", [b"a"]).committed == 1
    ahead = publisher_of(world, Door(world, VICTIM), behind_ns=-49 * HOUR_NS)
    assert ahead.publish("j", [b"b"]).committed == 1
    assert world.bodies("j") == [b"old", b"new", b"a", b"b"]


def test_an_acknowledgement_that_was_written_can_be_sent_again_when_its_producer_is_forgotten(world: World) -> None:
    """A shard that had nothing to do for days is started anew, and recovers its last checkpoint."""
    publisher = publisher_of(world, Door(world, VICTIM))
    publisher.publish_uncommitted("j", [b"one"])
    intents = publisher.build_ack_intents()
    publisher.acknowledge(intents)
    world.pass_time(48 * 3_600_000)
    world.append("j", b"new")
    world.pass_time(61_000)
    for _ in range(2):
        Door(world, STRANGER).commit([intent.operation() for intent in intents])
        world.reopen()
    assert world.bodies("j") == [b"one", b"new"]
    with pytest.raises(Fenced, match="not pending"):
        world.commit(msgspec.structs.replace(intents[0], clock=now_clock(world)).operation())


def test_an_acknowledgement_that_is_sent_again_rolls_back_nothing(world: World) -> None:
    """An intent is a proof that others may hold: a worker that woke up late, or who has read an old checkpoint."""
    publisher = publisher_of(world, Door(world, VICTIM))
    publisher.publish_uncommitted("j", [b"one"])
    old = publisher.build_ack_intents()
    publisher.acknowledge(old)
    publisher.publish_uncommitted("j", [b"two"])
    Door(world, STRANGER).commit([intent.operation() for intent in old])
    publisher.acknowledge(publisher.build_ack_intents())
    assert world.bodies("j") == [b"one", b"two"]


def test_a_publisher_goes_on_after_its_session_has_expired(world: World) -> None:
    door = Door(world, VICTIM)
    publisher = publisher_of(world, door)
    publisher.publish_uncommitted("j", [b"one"])
    door.reconnect()
    publisher.publish_uncommitted("j", [b"two"])
    publisher.acknowledge(publisher.build_ack_intents())
    assert world.bodies("j") == [b"one", b"two"]


def test_a_retried_request_is_answered_and_not_repeated(world: World) -> None:
    sent: list[list[Operation]] = []

    class Noting(Door):
        def commit(self, operations: list[Operation]) -> list[Any]:
            sent.append(operations)
            return super().commit(operations)

    door = Noting(world, VICTIM)
    publisher = publisher_of(world, door)
    answer = publisher.publish("j", [b"once"])
    assert door.send(Request(door.session, 0, 0, sent[-1])) == [[answer]]
    assert world.bodies("j") == [b"once"]


def test_ids_are_given_by_the_owner_and_never_twice(world: World) -> None:
    publishers = [publisher_of(world, Door(world, VICTIM)) for _ in range(20)]
    for publisher in publishers:
        publisher.publish("j", [b"x"])
    assert len({bytes(publisher.producer) for publisher in publishers}) == 20


def test_a_publisher_has_one_producer_also_for_several_threads(world: World) -> None:
    """One thread looks at the producer while another one publishes for the first time."""
    given: list[Given] = []
    inside, may_go_on = threading.Event(), threading.Event()

    def give() -> Given:
        given.append(Given(new_producer_id(world.random.randbytes(6)), b"", b""))
        inside.set()
        may_go_on.wait(30)
        return given[-1]

    publisher = Publisher(
        lambda operations: world.commit(*operations), give=give, now_ns=lambda: world.now_ms * 1_000_000
    )
    seen: list[bytes] = []
    looking = threading.Thread(target=lambda: seen.append(bytes(publisher.producer)))
    looking.start()
    inside.wait(30)
    publishing = threading.Thread(target=lambda: publisher.publish("j", [b"x"]))
    publishing.start()
    may_go_on.set()
    looking.join()
    publishing.join()
    assert [message.producer for message in world.raw("j")] == seen == [bytes(one.producer) for one in given]


# -- clocks in the future ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [OUTSIDE_TXN, CONTINUE_TXN, ACK_TXN])
def test_a_clock_far_ahead_of_the_owners_is_refused(world: World, flags: int) -> None:
    world.commit(ops.CreateJournal("j"))
    for ahead_ms in (16 * 60_000, 365 * 24 * 3_600_000):
        with pytest.raises(Invalid, match="ahead"):
            world.commit(stamped(b"\x01" * 6, now_clock(world, ahead_ms), flags))
    with pytest.raises(Invalid, match="ahead"):
        world.commit(stamped(b"\x01" * 6, (1 << 64) - 1, flags))
    world.commit(stamped(b"\x01" * 6, now_clock(world, 14 * 60_000)))


def test_proofs_are_as_old_as_a_store_whose_time_was_set_back() -> None:
    """Else transactions that begin now would look like those of an earlier release, which need none."""
    world = ClockWorld(look_ms=MINUTE)
    world.commit(ops.Append("j", [b"before"]))
    world.jump(-3 * HOUR)
    world.run(20 * 60)
    world.commit(ops.Append("j", [b"after"]))
    assert world.engine.now_ms() < START_MS
    assert world.engine.proved_since_ms <= world.engine.now_ms()
    world.reopen()
    assert world.engine.proved_since_ms < START_MS


def test_a_journal_goes_on_when_the_owners_wall_clock_was_set_back(world: World) -> None:
    publisher = publisher_of(world, lambda operations: world.commit(*operations))
    publisher.publish("j", [b"one"])
    world.now_ms -= 24 * 3_600_000
    world.reopen()
    publisher.publish("j", [b"two"])
    assert world.bodies("j") == [b"one", b"two"]


def test_a_publisher_whose_clock_is_far_ahead_stamps_by_the_owners_time(world: World) -> None:
    """Also one whose wall clock was wrong for a moment, between its messages and their acknowledgement."""
    publisher = publisher_of(world, lambda operations: world.commit(*operations), behind_ns=-48 * HOUR_NS)
    publisher.publish("j", [b"a"])
    publisher.publish_uncommitted("j", [b"b"])
    publisher.acknowledge(publisher.build_ack_intents())
    publisher.publish("j", [b"c"])
    assert world.bodies("j") == [b"a", b"b", b"c"]
    assert max(message.clock for message in world.raw("j")) < now_clock(world, 1000)


# -- messages that do not count ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pending", [False, True])
def test_a_publish_that_would_commit_fewer_messages_is_refused_whole(world: World, pending: bool) -> None:
    """The process of the owner can still use the producer of another: the publisher is told."""
    publisher = publisher_of(world, lambda operations: world.commit(*operations))
    publisher.publish("j", [b"one"])
    world.commit(stamped(bytes(publisher.producer), now_clock(world) + 3 * 160))
    send = publisher.publish_uncommitted if pending else publisher.publish
    with pytest.raises(Fenced, match="2 of 5"):
        send("j", [b"a", b"b", b"c", b"d", b"e"])
    assert world.bodies("j") == [b"one", b"taken"]
    assert world.reader.info("j").open_spans == 0


def test_messages_that_are_sent_again_may_be_known_already(world: World) -> None:
    fail = [True]

    def commit(operations: list[Operation]) -> list[Any]:
        results = world.commit(*operations)
        if isinstance(operations[0], ops.AppendStamped) and fail and fail.pop():
            raise OutcomeUnknown("the line broke")
        return results

    publisher = publisher_of(world, commit)
    with pytest.raises(OutcomeUnknown):
        publisher.publish("j", [b"once"])
    publisher.settle()
    publisher.publish("j", [b"next"])
    assert world.bodies("j") == [b"once", b"next"]


# -- a publisher whose wall clock is slow -----------------------------------------------------------------------------


def prune(world: World, journal: str = "j") -> None:
    """Let the journal forget a producer of two days ago."""
    publisher_of(world, lambda operations: world.commit(*operations)).publish(journal, [b"old"])
    world.pass_time(48 * 3_600_000)
    world.append(journal, b"new")
    world.pass_time(61_000)


@pytest.mark.parametrize("pending", [False, True])
def test_a_publisher_whose_clock_is_two_days_slow_starts_above_the_floor(world: World, pending: bool) -> None:
    prune(world)
    slow = publisher_of(world, lambda operations: world.commit(*operations), behind_ns=49 * HOUR_NS)
    for body in (b"a", b"b"):
        if pending:
            slow.publish_uncommitted("j", [body])
            slow.acknowledge(slow.build_ack_intents())
        else:
            slow.publish("j", [body])
    assert world.bodies("j") == [b"old", b"new", b"a", b"b"]


def test_who_stamps_below_the_floor_is_told_to_set_the_clock(world: World) -> None:
    prune(world)
    with pytest.raises(Fenced, match="set the clock") as refused:
        world.commit(stamped(b"\x01" * 6, now_clock(world, -49 * 3_600_000)))
    floor = refused.value.floor  # type: ignore[attr-defined]
    world.commit(stamped(b"\x01" * 6, floor + 160))


def test_messages_of_unknown_outcome_are_not_stamped_anew(world: World) -> None:
    """They may be in the journal already, and their producer forgotten: the floor is what keeps them out."""
    fail = [False, True]

    def commit(operations: list[Operation]) -> list[Any]:
        results = world.commit(*operations)
        if isinstance(operations[0], ops.AppendStamped) and fail and fail.pop():
            raise OutcomeUnknown("the line broke")
        return results

    publisher = publisher_of(world, commit)
    with pytest.raises(OutcomeUnknown):
        publisher.publish("j", [b"once"])
    world.pass_time(48 * 3_600_000)
    world.append("j", b"new")
    world.pass_time(61_000)
    with pytest.raises(Fenced, match="floor"):
        publisher.settle()
    assert world.bodies("j") == [b"once", b"new"]


# -- what was aborted stays aborted -----------------------------------------------------------------------------------


def test_half_a_transaction_is_never_committed_however_late_the_rest_comes(world: World) -> None:
    world.commit(ops.CreateJournal("j", span_deadline_ms=3_600_000, producer_horizon_ms=3_600_000))
    producer = b"\x01" * 6
    world.commit(stamped(producer, now_clock(world), CONTINUE_TXN))
    for _ in range(3):
        world.pass_time(40 * 3_600_000)
        world.append("j", b"new")
        world.pass_time(61_000)
    world.pass_time(61_000)
    for _ in range(2):
        for flags in (CONTINUE_TXN, ACK_TXN, OUTSIDE_TXN):
            with pytest.raises(Fenced, match="rolled back"):
                world.commit(stamped(producer, now_clock(world), flags))
        world.reopen()
    assert set(world.bodies("j")) == {b"new"}
    assert list(verify_journals(world.writer)) == []
    with world.writer.view() as view:
        assert view.get(records.part(1, records.PRODUCER, producer)) is None, "one number is left of it"
        assert view.get(records.part(1, records.ROLLED_BACK, producer)) is not None


def forget_producers(world: World) -> None:
    """Let so much time pass that the journal forgets its idle producers."""
    world.pass_time(40 * 24 * 3_600_000)
    world.append("j", b"new")
    world.pass_time(61_000)
    world.pass_time(61_000)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_acknowledgement_is_taken_as_written_when_a_later_transaction_was_rolled_back(
    world: World, is_forgotten: bool
) -> None:
    """The first one was written; only what came after it passed its deadline."""
    publisher = publisher_of(world, lambda operations: world.commit(*operations))
    publisher.publish_uncommitted("j", [b"first"])
    intents = publisher.build_ack_intents()
    publisher.acknowledge(intents)
    publisher.publish_uncommitted("j", [b"second"])
    lost = publisher.build_ack_intents()
    world.pass_time(2 * 3_600_000)
    if is_forgotten:
        forget_producers(world)
    for _ in range(2):
        for intent in intents:
            assert world.commit(intent.operation())[0].count == 0, "it is not stored again"
        for intent in lost:
            with pytest.raises(Fenced, match="rolled back"):
                world.commit(intent.operation())
        world.reopen()
    assert [body for body in world.bodies("j") if body != b"new"] == [b"first"]
    assert list(verify_journals(world.writer)) == []


def test_acknowledgement_of_an_earlier_release_is_admitted_when_its_producer_is_forgotten(world: World) -> None:
    """It has no seal. Its producer had nothing open when it was forgotten, so nothing changes."""
    publisher = publisher_of(world, lambda operations: world.commit(*operations))
    publisher.publish_uncommitted("j", [b"first"])
    (intent,) = publisher.build_ack_intents()
    publisher.acknowledge([intent])
    forget_producers(world)
    old = msgspec.structs.replace(intent, begun=0, seal=b"").operation()
    Producers(world.engine, world.writer).admit([old], "another key")
    with pytest.raises(ClockBehind):
        world.commit(old)
    ahead = msgspec.structs.replace(old, clocks=[now_clock(world)])
    with pytest.raises(ProducerTaken):
        Producers(world.engine, world.writer).admit([ahead], "another key")
    assert world.bodies("j") == [b"first", b"new"]


def test_an_acknowledgement_whose_pending_messages_are_gone_is_refused(world: World) -> None:
    """They were in a journal of that name which was deleted, or in a store that was restored from an older copy."""
    for rest in (False, True):
        publisher = publisher_of(world, lambda operations: world.commit(*operations))
        publisher.publish_uncommitted("j", [b"first half"])
        world.commit(ops.DeleteJournal("j"))
        world.commit(ops.CreateJournal("j"))
        if rest:
            with pytest.raises(DetentError, match=r"gone|rolled back"):
                publisher.publish_uncommitted("j", [b"second half"])
        intents = publisher.build_ack_intents()
        with pytest.raises(DetentError, match=r"gone|rolled back"):
            publisher.acknowledge(intents)
        assert world.bodies("j") == []
