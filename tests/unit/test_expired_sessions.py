"""An expired session stays expired, whatever keeps its old answers on the disk.

The answers of one group are one record. A record that one session still needs also holds what others of that group were
answered, and it is read back as a whole: after a failed commit, and by the next owner.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from detent.engine import Request
from detent.engine.sessions import ANSWERS, SESSION_IDLE_MS, decode_answers
from detent.errors import SessionExpired, Unavailable
from detent.journal import operations as ops
from world import World


def request(session: bytes, sequence: int, body: bytes) -> Request:
    """A transaction of a client that has received none of its answers, so that all of them have to be kept."""
    return Request(session, sequence, 0, [ops.Append("j", [body])])


def sessions_on_disk(world: World) -> set[bytes]:
    """Whose answers are stored."""
    with world.writer.view() as view:
        return {entry[0] for _, value in view.scan(*ANSWERS.range()) for entry in decode_answers(value)}


def goes_on(world: World) -> None:
    """The owner that let the session expire goes on."""


def reloads(world: World) -> None:
    """The same owner reads everything back, because a commit failed."""
    recoveries = world.writer.recoveries
    world.session = world.engine.new_session()  # the first one is as old as those that expired
    world.writer.fail_before = 1
    with pytest.raises(Unavailable):
        world.append("other", b"lost")
    assert world.writer.recoveries == recoveries + 1


def restarts(world: World) -> None:
    world.reopen()


def restarts_twice(world: World) -> None:
    """The second owner's own housekeeping lies between, which drops records and writes others."""
    world.reopen()
    world.pass_time(1000)
    world.reopen()


AT_ONCE = pytest.mark.parametrize("afterwards", [goes_on, reloads, restarts])
AFTERWARDS = pytest.mark.parametrize("afterwards", [goes_on, reloads, restarts, restarts_twice])


class Shared:
    """Two clients whose first transactions were one group: `idle` was silent ever since, `busy` was not."""

    def __init__(self) -> None:
        self.world = World()
        self.idle, self.busy = self.world.engine.new_session(), self.world.engine.new_session()
        self.shared = [request(self.idle, 0, b"idle 0"), request(self.busy, 0, b"busy 0")]
        self.answers = [ticket.outcome() for ticket in self.world.group(*self.shared)]
        # This answer has a record of its own, which goes when its session does.
        self.alone = request(self.idle, 1, b"idle 1")
        self.world.engine.commit(self.alone)
        self.bodies = [b"idle 0", b"busy 0", b"idle 1"]

    def write(self, request: Request) -> None:
        self.world.engine.commit(request)
        self.bodies.append(request.operations[0].bodies[0])

    def expire(self) -> None:
        """By the stated rule: silent for longer than `SESSION_IDLE_MS` when the owner keeps house."""
        self.world.now_ms += SESSION_IDLE_MS // 2
        self.write(request(self.busy, 1, b"busy 1"))
        self.world.now_ms += SESSION_IDLE_MS // 2 + 1
        self.world.engine.tick()

    def check_expired(self) -> None:
        """Neither new transactions nor retries of the idle one have an effect."""
        for late in (request(self.idle, 2, b"new"), self.alone, self.shared[0]):
            with pytest.raises(SessionExpired):
                self.world.engine.commit(late)
        assert self.world.bodies("j") == self.bodies


@AFTERWARDS
def test_a_record_kept_for_another_session_revives_nobody(afterwards: Callable[[World], None]) -> None:
    shared = Shared()
    shared.expire()
    assert sessions_on_disk(shared.world) == {shared.idle, shared.busy}  # or there would be nothing to be revived from
    afterwards(shared.world)
    shared.check_expired()
    # The other session lost nothing by it.
    assert shared.world.engine.commit(shared.shared[1]) == shared.answers[1]
    shared.write(request(shared.busy, 2, b"busy 2"))
    assert shared.world.bodies("j") == shared.bodies


@AFTERWARDS
def test_nor_does_it_once_the_other_session_has_written_again(afterwards: Callable[[World], None]) -> None:
    """What is written after the expiry is newer than it, and says nothing about sessions that are gone."""
    shared = Shared()
    shared.expire()
    shared.write(request(shared.busy, 2, b"busy 2"))
    afterwards(shared.world)
    shared.write(request(shared.busy, 3, b"busy 3"))
    afterwards(shared.world)
    assert sessions_on_disk(shared.world) >= {shared.idle, shared.busy}
    shared.check_expired()


@AFTERWARDS
def test_nor_once_the_shared_record_is_gone(afterwards: Callable[[World], None]) -> None:
    """The other client has its answers: with the record goes the last trace of the expired session but its stamp."""
    shared = Shared()
    shared.expire()
    shared.write(Request(shared.busy, 2, 2, [ops.Append("j", [b"busy 2"])]))
    shared.world.engine.tick()
    assert sessions_on_disk(shared.world) == {shared.busy}
    afterwards(shared.world)
    shared.check_expired()


@AT_ONCE
def test_a_session_is_not_taken_for_expired_before_its_time(afterwards: Callable[[World], None]) -> None:
    """Idle for exactly as long as it may be, while another of its group has gone."""
    world = World()
    gone, idle = world.engine.new_session(), world.engine.new_session()
    first = request(idle, 0, b"idle 0")
    tickets = world.group(request(gone, 0, b"gone 0"), first)
    world.now_ms += 1
    world.engine.commit(request(idle, 1, b"idle 1"))
    world.now_ms += SESSION_IDLE_MS
    world.engine.tick()
    afterwards(world)
    with pytest.raises(SessionExpired):
        world.engine.commit(request(gone, 1, b"no"))
    assert world.engine.commit(first) == tickets[1].outcome()
    world.engine.commit(request(idle, 2, b"idle 2"))
    assert world.bodies("j") == [b"gone 0", b"idle 0", b"idle 1", b"idle 2"]


@AT_ONCE
def test_an_expiry_that_did_not_become_durable_did_not_happen(afterwards: Callable[[World], None]) -> None:
    """Or else an owner would refuse a retry whose answer the next owner still has."""
    shared = Shared()
    shared.world.now_ms += SESSION_IDLE_MS + 1
    shared.world.writer.fail_before = 1
    with pytest.raises(Unavailable):
        shared.world.engine.tick()
    afterwards(shared.world)
    assert [shared.world.engine.commit(one) for one in shared.shared] == shared.answers
    assert shared.world.bodies("j") == shared.bodies
    shared.world.engine.tick()
    shared.check_expired()
