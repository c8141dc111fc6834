"""The names of sessions: only an owner of the store makes them, each for one holder, and they outlive the owner."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import detent.engine.sessions as sessions_module
from detent.engine import Request
from detent.engine.sessions import SECRET, SESSIONS_MAX, Sessions
from detent.errors import Corrupt, Invalid, SessionExpired
from detent.journal import operations as ops
from detent.kv import Batch
from detent.queue import QueueMachine
from detent.remote import wire
from detent.remote.app import OwnerApp
from detent.server.access import Caller, Grant
from world import World

STORE = Sessions()
MINE = Caller("mine", (Grant("admin", "*", "*"),), "key-1")
OTHER = Caller("other", (Grant("admin", "*", "*"),), "key-2")


@pytest.fixture
def world() -> World:
    return World()


@given(st.binary(max_size=40), st.text(max_size=10))
def test_no_invented_name_was_given(name: bytes, holder: str) -> None:
    assert not STORE.was_given(name, holder)


@given(st.integers(0, 2**60), st.text(max_size=10), st.integers(0, 127))
def test_a_given_name_is_its_holders_as_it_is(now_ms: int, holder: str, bit: int) -> None:
    name = STORE.new_session(now_ms, holder)
    assert len(name) == 16
    assert STORE.was_given(name, holder)
    assert not STORE.was_given(name, holder + "x")
    changed = (int.from_bytes(name, "big") ^ (1 << bit)).to_bytes(16, "big")
    assert not STORE.was_given(changed, holder)


def test_the_next_owner_knows_the_sessions_of_the_last(world: World) -> None:
    session = world.engine.new_session("key-1")
    world.engine.commit(Request(session, 0, 0, [ops.Append("j", [b"x"])]))
    world.reopen()
    world.engine.require_given(session, "key-1")
    for other in (b"\xff" * 16, world.engine.new_session("key-2")):
        with pytest.raises(SessionExpired):
            world.engine.require_given(other, "key-1")


def test_the_next_owner_knows_the_sessions_of_one_that_died_before_its_first_commit(world: World) -> None:
    session = world.engine.new_session("key-1")
    world.reopen()
    world.engine.require_given(session, "key-1")
    request = Request(session, 0, 0, [ops.Append("j", [b"x"])])
    assert world.engine.commit(request) == world.engine.commit(request)


def test_two_stores_do_not_know_each_others_sessions(world: World) -> None:
    with pytest.raises(SessionExpired):
        World(seed=1).engine.require_given(world.engine.new_session(), "")


def test_a_damaged_secret_is_found(world: World) -> None:
    world.engine.commit(Request(world.engine.new_session(), 0, 0, [ops.Append("j", [b"x"])]))
    batch = Batch()
    batch.put(SECRET.raw, b"short")
    world.writer.commit(batch)
    with pytest.raises(Corrupt, match="secret of sessions"):
        world.reopen()


def test_an_answer_of_another_transaction_is_not_given(world: World) -> None:
    session = world.engine.new_session()
    world.engine.commit(Request(session, 0, 0, [ops.Append("j", [b"x"])]))
    with pytest.raises(Invalid, match="another transaction"):
        world.engine.commit(Request(session, 0, 0, [ops.Append("j", [b"x"]), ops.Append("j", [b"y"])]))
    assert world.reader.next_offset("j") == 1


def test_in_a_crowd_those_go_that_were_idle_for_a_minute(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "SESSIONS_MAX", 10)
    monkeypatch.setattr(sessions_module, "CROWDED", 9)
    idle = [world.engine.new_session() for _ in range(9)]
    for session in idle:
        world.engine.commit(Request(session, 0, 0, [ops.Append("j", [b"x"])]))
    world.now_ms += 61_000
    busy = world.engine.new_session()
    world.engine.commit(Request(busy, 0, 0, [ops.Append("j", [b"x"])]))
    world.engine.keep_house()
    world.engine.commit(Request(busy, 1, 1, [ops.Append("j", [b"x"])]))
    with pytest.raises(SessionExpired):
        world.engine.commit(Request(idle[0], 1, 1, [ops.Append("j", [b"twice?"])]))
    assert SESSIONS_MAX == 100_000


# -- through the wire protocol ----------------------------------------------------------------------------------------


def ask(world: World, caller: Caller | None, session: bytes, sequence: int = 0) -> Any:
    """What a client is answered that sends one append under a session."""
    request = Request(session, sequence, sequence, [ops.Append("j", [b"x"])])
    body = wire.encode_requests([wire.encode_request(request)])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def run() -> bytes:
        app = OwnerApp(world.engine, world.machine, QueueMachine(world.writer), world.writer)
        scope = {"method": "POST", "path": "/v1/transactions", "query_string": b"", "headers": []}
        found = (await app.answer(scope, receive, caller)).body
        assert isinstance(found, bytes)
        return found

    (outcome,) = wire.decode_answers(asyncio.run(run()), 1)
    return outcome


def given_to(world: World, caller: Caller) -> bytes:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def run() -> bytes:
        app = OwnerApp(world.engine, world.machine, QueueMachine(world.writer), world.writer)
        scope = {"method": "POST", "path": "/v1/sessions", "query_string": b"", "headers": []}
        body = (await app.answer(scope, receive, caller)).body
        assert isinstance(body, bytes)
        return bytes.fromhex(msgspec.json.decode(body)["session"])

    return asyncio.run(run())


@pytest.mark.parametrize("caller", [None, MINE])
def test_a_stranger_cannot_make_up_a_session(world: World, caller: Caller | None) -> None:
    assert isinstance(ask(world, caller, b"\xff" * 16), SessionExpired)
    assert world.engine.new_session()
    assert world.reader.next_offset("j") == 0


def test_a_session_is_no_use_to_others(world: World) -> None:
    session = given_to(world, MINE)
    assert ask(world, MINE, session)[0].offset == 0
    assert isinstance(ask(world, OTHER, session), SessionExpired)
    assert isinstance(ask(world, OTHER, session, 5), SessionExpired)
    assert isinstance(ask(world, None, session), SessionExpired)
    assert ask(world, MINE, session, 1)[0].offset == 1
