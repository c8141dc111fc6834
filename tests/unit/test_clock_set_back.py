"""The wall clock set back across a restart: a late retry must still never be applied twice."""

from __future__ import annotations

import contextlib

from detent.engine import Request
from detent.engine.sessions import SESSION_IDLE_MS
from detent.errors import SessionExpired
from detent.journal import operations as ops
from world import World

DAY = 24 * 3600 * 1000


def request(session: bytes, sequence: int, body: bytes) -> Request:
    return Request(session, sequence, 0, [ops.Append("j", [body])])


def test_a_session_that_a_load_forgot_stays_refused() -> None:
    """The load drops the answers of a session younger than an expiry "in the future"; it must keep the stamp too."""
    world = World()
    world.append("j", b"old")
    world.pass_time(SESSION_IDLE_MS + 1)
    world.now_ms -= DAY
    world.reopen()
    once = request(world.engine.new_session(), 0, b"once")
    world.engine.commit(once)
    world.reopen()
    world.engine.tick()
    world.reopen()
    with contextlib.suppress(SessionExpired):
        world.engine.commit(once)
    assert world.bodies("j") == [b"old", b"once"]


def test_the_time_of_expiry_never_goes_back() -> None:
    world = World()
    idle, busy = world.engine.new_session(), world.engine.new_session()
    world.group(request(idle, 0, b"idle 0"), request(busy, 0, b"busy 0"))
    once = request(idle, 1, b"once")
    world.engine.commit(once)
    world.now_ms += SESSION_IDLE_MS // 2
    world.engine.commit(request(busy, 1, b"busy 1"))
    world.now_ms += SESSION_IDLE_MS // 2 + 1
    world.engine.tick()
    world.now_ms -= DAY
    world.reopen()
    world.engine.commit(request(world.engine.new_session(), 0, b"other"))
    world.now_ms += SESSION_IDLE_MS + 1
    world.engine.tick()
    world.reopen()
    with contextlib.suppress(SessionExpired):
        world.engine.commit(once)
    assert world.bodies("j").count(b"once") == 1
