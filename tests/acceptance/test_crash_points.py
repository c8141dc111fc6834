"""Every named crash point is visited by a real process that is killed there; what it leaves must be whole.

Nothing acknowledged is missing, nothing is there by half, and the protocol that was interrupted is finished or dropped
by whoever opens the store next.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import detent
import oldstore
from detent import crash, kv
from detent.codec import journal as records
from detent.codec import queue as queue_records
from detent.codec.keys import u32
from detent.errors import Corrupt, Exists, Fenced, Invalid, NotFound, StaleReceipt
from detent.journal import FragmentRef
from detent.journal.fragments import object_name
from detent.journal.publisher import decode_intents, encode_intents
from detent.kv import upgrade
from detent.kv.localobjects import TEMPORARY_SUFFIX
from detent.remote.owner import Housekeeper
from detent.verify import verify
from processes import Io, Processes, arm, eventually

pytestmark = pytest.mark.xdist_group("crash-points")

OPENING = (
    "owner.after_lock", "kv.open.before_epoch", "kv.open.after_epoch", "kv.fold.before_sync", "kv.fold.after_sync",
    "kv.open.after_fold", "owner.after_load", "owner.after_socket",
)  # fmt: skip
COMMITTING = (
    "engine.group.before_commit", "kv.commit.before_sync", "kv.commit.after_sync", "engine.group.after_commit",
    "engine.group.before_answer", "kv.log.after_write", "kv.log.after_sync",
)  # fmt: skip
FOLDING = ("kv.fold.before_sync", "kv.fold.after_sync")
CLOSING = (*FOLDING, "kv.close.after_fold")
LOGGING = ("kv.log.after_create",)
ABANDONING = ("kv.abandon.after_rename",)
WRITING = ("kv.object.before_write", "kv.object.before_rename", "kv.object.after_rename", "kv.object.after_sync")
SWEEPING = ("journal.sweep.after_horizon", "kv.object.after_delete", "journal.sweep.after_delete")
UPGRADING = (
    "kv.upgrade.before_begin", "kv.upgrade.after_begin", "kv.upgrade.before_chunk:3", "kv.upgrade.after_chunk:3",
    "kv.upgrade.before_end", "kv.upgrade.after_end",
)  # fmt: skip
CHECKPOINTING = ("queue.checkpoint.before_write", "queue.checkpoint.after_write")

DURABLE = {
    "kv.commit.after_sync", "engine.group.after_commit", "engine.group.before_answer", "kv.log.after_write",
    "kv.log.after_sync",
}  # fmt: skip
"""After these the transaction has been committed, though nobody was told. (A record that was written and not synced
outlives the process, but not the machine.)"""


def test_every_point_is_visited_by_a_test_of_this_module() -> None:
    visited = {*OPENING, *COMMITTING, *WRITING, *SWEEPING, *FOLDING, *CLOSING, *LOGGING, *ABANDONING, *CHECKPOINTING}
    visited |= {point.partition(":")[0] for point in UPGRADING}
    # The others have modules of their own.
    elsewhere = ("bus.", "spark.", "ingest.", "consumer.", "processor.", "state.", "kafka.", "tables.", "backup.",
                 "restore.", "lease.", "kv.restore.", "kv.compact.", "schedule.")  # fmt: skip
    here = {point for point in crash.POINTS if not point.startswith(elsewhere)}
    assert visited == here, "a crash point without a test, or a test without its point"


@pytest.fixture
def url(store_dir: Path) -> str:
    """A store with something in it: ten messages, a fragment of three, a register."""
    url = f"file:{store_dir}"
    with detent.open(url) as store:
        journal = store.journal("j")
        journal.append_many([f"m{number}".encode() for number in range(10)])
        journal.adopt([journal.write_fragment(table("f0", "f1", "f2"))])
        journal.set_registers({"r": "0"})
    return url


FIRST = [*(f"m{number}" for number in range(10)), "f0", "f1", "f2"]


def table(*bodies: str) -> Any:
    return pa.table({"body": pa.array([body.encode() for body in bodies], pa.binary())})


def texts(store: detent.Store, journal: str = "j", isolation: Any = "committed") -> list[str]:
    try:
        return [message.body.decode() for message in store.journal(journal).read(isolation=isolation)]
    except NotFound:
        return []


def check_usable(store: detent.Store, expected: list[str]) -> None:
    """Everything is there, offsets are dense, and the store takes more."""
    assert store.is_owner
    assert texts(store) == expected
    assert store.journal("j").append(b"more").offset == len(expected)
    assert texts(store) == [*expected, "more"]


def open_quietly(url: str) -> detent.Store:
    """An owner that keeps house only when asked, so that the armed point is reached by what the test does."""
    with mock.patch.object(Housekeeper, "_keep_house"):  # what is due is due at once, before it can be stopped
        store = detent.open(url)
        owner: Any = store._connection.current
        owner._housekeeper.stop()
    return store


def tick(store: detent.Store, times: int = 1) -> None:
    """Keep house now, also what is due only every few seconds."""
    owner: Any = store._connection.current
    for _ in range(times):
        owner.journals.housekeeper.reset()
        owner.engine.tick()


# -- opening ----------------------------------------------------------------------------------------------------


def opens(io: Io, url: str) -> None:
    with detent.open(url):
        io.say("opened")


@pytest.mark.parametrize("point", OPENING)
def test_killed_while_it_opened(url: str, processes: Processes, point: str) -> None:
    child = processes.start(opens, url=url, environment={"DETENT_CRASH_AT": point})
    assert child.was_killed(), f"{point} was never reached"
    with detent.open(url) as store:
        assert store.epoch >= 2
        check_usable(store, FIRST)


@pytest.mark.parametrize("point", OPENING)
def test_killed_while_it_created_the_store(tmp_path: Path, processes: Processes, point: str) -> None:
    url = f"file:{tmp_path / 'deep' / 'new'}"
    child = processes.start(opens, url=url, environment={"DETENT_CRASH_AT": point})
    assert child.was_killed(), f"{point} was never reached"
    with detent.open(url) as store:
        check_usable(store, [])


@pytest.mark.parametrize("point", OPENING)
def test_killed_while_it_took_over(url: str, processes: Processes, point: str) -> None:
    owner = processes.store(url)
    epoch = owner.call("status")["epoch"]
    first, second = processes.stores(url, 2)
    first.call("append", journal="j", body="first before")
    second.call("append", journal="j", body="second before")
    first.call("arm", point=point)
    owner.kill()
    first.send("append", journal="j", body="first pending")
    assert first.was_killed(), f"{point} was never reached"
    assert second.call("append", journal="j", body="second after")["offset"] == len(FIRST) + 2
    status = second.call("status")
    assert status["owner"] is True
    assert status["epoch"] > epoch
    assert second.call("read", journal="j") == [*FIRST, "first before", "second before", "second after"]


# -- committing -------------------------------------------------------------------------------------------------


def commits(io: Io, url: str, point: str) -> None:
    with open_quietly(url) as store:
        io.say("appended", offset=store.journal("j").append(b"acknowledged").offset)
        arm(point)
        with store.transaction() as transaction:
            transaction.append("j", b"in j")
            transaction.append("new", b"in new")
            transaction.check_registers("j", {"r": "0"})
            transaction.set_registers("j", {"r": "1"})
        io.say("acknowledged")


@pytest.mark.parametrize("point", COMMITTING)
def test_killed_while_it_committed_a_transaction(url: str, processes: Processes, point: str) -> None:
    child = processes.start(commits, url=url, point=point)
    assert child.expect("appended")["offset"] == len(FIRST)
    assert child.was_killed(), f"{point} was never reached"
    assert child.next_event() is None, "it was acknowledged, and then killed before its commit"
    with detent.open(url) as store:
        applied = point in DURABLE
        assert texts(store, "new") == (["in new"] if applied else [])
        assert store.journal("j").registers() == {"r": "1" if applied else "0"}
        check_usable(store, [*FIRST, "acknowledged", *(["in j"] if applied else [])])


def acknowledges(io: Io, url: str, point: str, intents: str) -> None:
    """The protocol between stores: pending messages, intents kept durably, acknowledgements."""
    with open_quietly(url) as store:
        publisher = store.publisher()
        publisher.publish_uncommitted("j", [b"p0", b"p1"])
        publisher.publish_uncommitted("k", [b"q0"])
        promised = publisher.build_ack_intents()
        with Path(intents).open("wb") as file:
            file.write(encode_intents(promised))
            file.flush()
            os.fsync(file.fileno())
        arm(point)
        publisher.acknowledge(promised)
        io.say("acknowledged")


@pytest.mark.parametrize("point", COMMITTING)
def test_killed_while_it_acknowledged(url: str, tmp_path: Path, processes: Processes, point: str) -> None:
    path = tmp_path / "intents"
    child = processes.start(acknowledges, url=url, point=point, intents=str(path))
    assert child.was_killed(), f"{point} was never reached"
    with detent.open(url) as store:
        before = ["p0", "p1"] if point in DURABLE else []
        assert texts(store) == [*FIRST, *before]
        for _ in range(2):  # sending the acknowledgements again does no harm
            store.publisher().acknowledge(decode_intents(path.read_bytes()))
            assert texts(store, "k") == ["q0"]
            assert store.journal("j").info().open_spans == 0
        check_usable(store, [*FIRST, "p0", "p1"])


def adopts(io: Io, url: str, point: str) -> None:
    with open_quietly(url) as store:
        journal = store.journal("j")
        ref = journal.write_fragment(table("g0", "g1"))
        io.say("written", ref=[ref.id.hex(), ref.rows, ref.size, ref.checksum])
        arm(point)
        journal.adopt([ref])
        io.say("acknowledged")


@pytest.mark.parametrize("point", COMMITTING)
def test_killed_while_it_adopted_a_fragment(url: str, processes: Processes, point: str) -> None:
    child = processes.start(adopts, url=url, point=point)
    ref = _ref(child.expect("written")["ref"])
    assert child.was_killed(), f"{point} was never reached"
    with detent.open(url) as store:
        if point in DURABLE:
            with pytest.raises(Exists):
                store.journal("j").adopt([ref])
        else:
            assert texts(store) == FIRST
            store.journal("j").adopt([ref])
        time.sleep(0.01)
        assert store.sweep(grace="0s") == 0
        check_usable(store, [*FIRST, "g0", "g1"])


def _ref(fields: list[Any]) -> FragmentRef:
    return FragmentRef(bytes.fromhex(fields[0]), *fields[1:])


# -- upgrading --------------------------------------------------------------------------------------------------


def upgrades(io: Io, url: str) -> None:
    upgrade.CHUNK_RECORDS = 10
    upgrade.upgrade(url)
    io.say("upgraded")


@pytest.mark.parametrize("point", UPGRADING)
def test_killed_while_it_upgraded_an_old_store(tmp_path: Path, processes: Processes, point: str) -> None:
    url = oldstore.unpack_file(tmp_path / "old")
    child = processes.start(upgrades, url=url, environment={"DETENT_CRASH_AT": point})
    assert child.was_killed(), f"{point} was never reached"
    if point != "kv.upgrade.after_end":
        with pytest.raises(Invalid, match="detent store upgrade"):
            detent.open(url)
    upgrade.upgrade(url)
    reader = kv.open_reader(url)
    assert list(verify(reader)) == []
    reader.close()
    oldstore.check_served(url)


# -- the commit log ---------------------------------------------------------------------------------------------


def logs(io: Io, url: str, point: str, then: str) -> None:
    """Commits that are in the log only, and then what moves them to LMDB."""
    with open_quietly(url) as store:
        if then == "first commit":
            arm(point)
        for number in range(5):
            io.say("appended", offset=store.journal("j").append(b"logged %d" % number).offset)
        if then == "housekeeping":
            arm(point)
            tick(store)
        elif then == "large commit":
            arm(point)
            store.journal("j").append(b"large " + bytes(1 << 20))
        elif then == "full log":
            arm(point)
            for _ in range(200):
                store.journal("full").append(bytes(100_000))
        elif then == "close":
            arm(point)
    io.say("closed")


CASES = [
    *((point, then) for then in ("housekeeping", "large commit", "full log") for point in FOLDING),
    *((point, "close") for point in CLOSING),
    ("kv.log.after_create", "first commit"),
]


@pytest.mark.parametrize(("point", "then"), CASES)
def test_killed_while_the_log_moved_to_lmdb(url: str, processes: Processes, point: str, then: str) -> None:
    child = processes.start(logs, url=url, point=point, then=then)
    reader = processes.store(url, role="reader")
    assert child.was_killed(), f"{point} was never reached"
    logged = [] if then == "first commit" else [f"logged {number}" for number in range(5)]
    large = ["large"] if (point, then) == ("kv.fold.after_sync", "large commit") else []

    def short(bodies: list[str]) -> list[str]:
        return [body.partition(" \0")[0] for body in bodies]

    # A reader asks no owner: it finds everything in the files as they were left.
    assert short(reader.call("read", journal="j")) == [*FIRST, *logged, *large]
    with detent.open(url) as store:
        assert short(texts(store)) == [*FIRST, *logged, *large]
        assert store.journal("j").append(b"more").offset == len(FIRST) + len(logged) + len(large)
    assert short(reader.call("read", journal="j")) == [*FIRST, *logged, *large, "more"]


@pytest.mark.parametrize("point", ABANDONING)
def test_killed_while_a_log_was_given_up(url: str, store_dir: Path, processes: Processes, point: str) -> None:
    owner = processes.store(url)
    owner.call("append", journal="j", body="only in the log")
    owner.kill()
    command = [sys.executable, "-m", "detent.cli", "store", "abandon-log", url, "--yes"]
    killed = subprocess.run(command, env={**os.environ, "DETENT_CRASH_AT": point}, check=False)
    assert killed.returncode == -signal.SIGKILL, f"{point} was never reached"
    with pytest.raises(Corrupt, match="missing"):
        detent.open(url)
    subprocess.run(command, check=True)
    assert len(list(store_dir.glob("*.abandoned"))) == 1
    with detent.open(url) as store:
        check_usable(store, [*FIRST, "only in the log"])


# -- fragments --------------------------------------------------------------------------------------------------


def writes_a_fragment(io: Io, url: str, point: str) -> None:
    with open_quietly(url) as store:
        arm(point)
        store.journal("j").write_fragment(table("lost"))
        io.say("written")


@pytest.mark.parametrize("point", WRITING)
def test_killed_while_it_wrote_a_fragment(url: str, store_dir: Path, processes: Processes, point: str) -> None:
    def files() -> set[Path]:
        return {path for path in (store_dir / "objects").rglob("*") if path.is_file()}

    before = files()
    child = processes.start(writes_a_fragment, url=url, point=point)
    assert child.was_killed(), f"{point} was never reached"
    left = files() - before
    halves = {path for path in left if path.name.endswith(TEMPORARY_SUFFIX)}
    assert len(halves) == (point == "kv.object.before_rename")
    assert len(left - halves) == (point in {"kv.object.after_rename", "kv.object.after_sync"})
    with detent.open(url) as store:
        assert texts(store) == FIRST
        time.sleep(0.01)
        assert store.sweep(grace="0s") == len(left - halves), "an object without adoption is swept"
        assert files() - before == halves, "a half-written file may have a living writer"
        for path in halves:
            os.utime(path, (0, 0))
        store.sweep(grace="0s")
        assert files() == before
        check_usable(store, FIRST)


def sweeps(io: Io, url: str, point: str) -> None:
    with open_quietly(url) as store:
        journal = store.journal("j")
        kept = store.journal("k")
        kept.adopt([kept.write_fragment(table(f"kept {number}")) for number in range(3)])
        orphans = [journal.write_fragment(table("orphan")) for _ in range(3)]
        io.say("written", refs=[[ref.id.hex(), ref.rows, ref.size, ref.checksum] for ref in orphans])
        time.sleep(0.02)
        arm(point)
        store.sweep(grace="0s")
        io.say("swept")


@pytest.mark.parametrize(
    ("point", "count"), [(point, 1) for point in SWEEPING] + [("kv.object.after_delete", 2), (SWEEPING[-1], 3)]
)
def test_killed_while_it_swept(url: str, store_dir: Path, processes: Processes, point: str, count: int) -> None:
    child = processes.start(sweeps, url=url, point=f"{point}:{count}")
    refs = [_ref(fields) for fields in child.expect("written")["refs"]]
    assert child.was_killed(), f"{point} was never reached"
    with detent.open(url) as store:
        left = [ref for ref in refs if (store_dir / "objects" / object_name(ref.id)).exists()]
        if point == "journal.sweep.after_horizon":
            assert left == refs
        for ref in refs:  # the horizon was durable before anything was deleted
            with pytest.raises((Fenced, NotFound) if ref not in left else Fenced):
                store.journal("late").adopt([ref])
        assert store.sweep(grace="0s") == len(left)
        assert store.sweep(grace="0s") == 0, "a second run finds nothing"
        assert texts(store, "k") == ["kept 0", "kept 1", "kept 2"]
        assert len(list(store.objects.list())) == 4, "only what was adopted is left"
        check_usable(store, FIRST)


# -- forgetting -------------------------------------------------------------------------------------------------

BLOCKS = 40


def retains(io: Io, url: str, point: str, how: str) -> None:
    with open_quietly(url) as store:
        journal = store.journal("many")
        if how == "retention":
            journal.create(retention_bytes=200_000)
        for number in range(BLOCKS):
            journal.append(b"%06d" % number + os.urandom(20_000))
        journal.adopt([journal.write_fragment(table("fragment"))])
        journal.append(b"%06d" % (BLOCKS + 1))
        io.say("appended")
        arm(point)
        if how == "retention":
            tick(store, 5)
        elif how == "trim":
            journal.trim(BLOCKS - 10)
        else:
            journal.delete()
            tick(store, 5)
        io.say("done")


@pytest.mark.parametrize(
    ("point", "how"),
    [(point, how) for how in ("retention", "trim", "delete") for point in COMMITTING[:4]]
    + [("kv.commit.before_sync:2", "delete")],
)
def test_killed_while_it_forgot(url: str, processes: Processes, point: str, how: str) -> None:
    child = processes.start(retains, url=url, point=point, how=how)
    child.expect("appended")
    assert child.was_killed(), f"{point} was never reached"
    deleted = how == "delete" and (point in DURABLE or point.endswith(":2"))
    with detent.open(url) as store:
        number = None if deleted else store.journal("many").info().id
        if deleted:
            assert store.journals() == ["j"]
        else:
            check_many(store)
        if how == "trim":
            store.journal("many").trim(BLOCKS - 10)
        elif how == "delete" and not deleted:
            store.journal("many").delete()
        tick(store, 5)
        if how == "delete":
            assert leftovers(store, 2 if number is None else number) == []
            time.sleep(0.01)
            assert store.sweep(grace="0s") == 1
        else:
            info = check_many(store)
            assert info.first_offset >= BLOCKS - 15
            assert info.blocks <= 20, "what nothing refers to is removed"
        check_usable(store, FIRST)


def check_many(store: detent.Store) -> Any:
    """Whatever was forgotten, the rest is whole: every offset from the first on, each with its own message."""
    info = store.journal("many").info()
    assert info.next_offset == BLOCKS + 2
    found = {message.offset: message.body[:6] for message in store.journal("many").read()}
    numbers = range(info.first_offset, info.next_offset)
    assert found == {n: b"fragme" if n == BLOCKS else b"%06d" % n for n in numbers}
    return info


def leftovers(store: detent.Store, journal: int) -> list[bytes]:
    """The records that a deleted journal has left."""
    reader = kv.open_reader(store.url)
    try:
        with reader.view() as view:
            return [key for key, _ in view.scan(records.PART.key(u32(journal)), records.PART.key(u32(journal + 1)))]
    finally:
        reader.close()


def fill(store: detent.Store, journal: str, what: str) -> None:
    """Ten messages of 100 kB each in a journal that may keep 300 kB."""
    handle = store.journal(journal)
    handle.create(retention_bytes=300_000)
    if what == "open span":
        store.publisher().publish_uncommitted(journal, [b"pending for a long time"])
    for number in range(10):
        body = b"%d" % number + os.urandom(100_000)
        if what == "fragments":
            handle.adopt([handle.write_fragment(pa.table({"body": pa.array([body], pa.binary())}))])
        else:
            handle.append(body)


@pytest.mark.parametrize("what", ["blocks", "fragments", "open span"])
def test_retention_by_bytes_forgets_no_more_than_it_must(url: str, what: str) -> None:
    with detent.open(url) as store:
        fill(store, "kept", what)
        tick(store, 6)
        info = store.journal("kept").info()
        assert info.first_offset in (7, 8), f"{info.messages} of 10 messages are left where two or three fit"


def test_the_objects_of_trimmed_fragments_are_swept(url: str) -> None:
    with detent.open(url) as store:
        fill(store, "kept", "fragments")
        store.journal("kept").trim(10)
        tick(store, 6)
        time.sleep(0.01)
        assert store.sweep(grace="0s") == 10


# -- queues -----------------------------------------------------------------------------------------------------

LEASE_S = 3600
STEPS = ("publish", "claim", "extend", "ack", "fail", "give up", "redrive", "purge", "effect")
"""What a consumer does, in this order; each is one transaction."""


def queue_step(store: detent.Store, step: str, receipts: dict[str, str]) -> None:
    """One step of the life of a few messages. `receipts` are what this process, or the one before it, holds."""
    queue = store.queue("q")
    if step == "publish":
        outgoing = [detent.Outgoing(b"%d" % n, {"n": str(n)}, dedup_key=str(n)) for n in range(7)]
        queue.publish_many(outgoing)
    elif step == "claim":
        for message in queue.claim(5, lease=f"{LEASE_S}s", consumer="child"):
            receipts[message.body.decode()] = str(message.receipt)
    elif step == "purge":
        queue.purge(available=False)
    elif step == "redrive":
        queue.redrive(filter='headers.n == "3"')
    else:
        with store.transaction() as transaction:
            if step == "extend":
                transaction.extend(receipts["0"], f"{2 * LEASE_S}s")
            elif step == "ack":
                transaction.ack(receipts["0"])
            elif step == "fail":
                transaction.fail(receipts["1"], "later", delay="1h")
            elif step == "give up":
                transaction.fail(receipts["2"], "never", final=True)
                transaction.fail(receipts["3"], "never", final=True)
            else:
                transaction.publish(b"follow-up", queue="q", dedup_key="follow-up")
                transaction.append("effects", b"4")
                transaction.ack(receipts["4"])


def consumes(io: Io, url: str, point: str, armed: str, checkpoints: bool) -> None:
    with open_quietly(url) as store:
        store.queue("q").create()
        receipts: dict[str, str] = {}
        for step in STEPS:
            io.say("begins", step=step, receipts=receipts)
            if step == armed:
                arm(point)
            if checkpoints:
                owner: Any = store._connection.current
                owner.queues.checkpoint_wanted = True
            queue_step(store, step, receipts)
        io.say("begins", step="close", receipts=receipts)
        if armed == "close":
            arm(point)
    io.say("closed")


QUEUE_PLACES: dict[str, dict[str, tuple[str, int]]] = {
    "publish": {str(n): ("available", 0) for n in range(7)},
    "claim": {str(n): ("in flight", 1) for n in range(5)},
    "extend": {},
    "ack": {"0": ("done", 1)},
    "fail": {"1": ("delayed", 1)},
    "give up": {"2": ("failed", 1), "3": ("failed", 1)},
    "redrive": {"3": ("available", 0)},
    "purge": {"2": ("gone", 0)},
    "effect": {"4": ("done", 1), "follow-up": ("available", 0)},
    "close": {},
}
"""Where each message is, and after how many attempts, as far as a step changes that."""


def places_after(steps: list[str]) -> dict[str, tuple[str, int]]:
    found: dict[str, tuple[str, int]] = {}
    for step in steps:
        found |= QUEUE_PLACES[step]
    return {name: place for name, place in found.items() if place[0] != "gone"}


def message_numbers(store: detent.Store) -> dict[str, int]:
    """The numbers of the messages that were published, by their dedup keys."""
    found: dict[str, int] = {}
    with store._kv.view() as view:
        for key, value in view.scan(*queue_records.DEDUP.range()):
            name = key.removeprefix(queue_records.DEDUP.raw).decode().rpartition("\0")[2]  # behind the queue's number
            found[name], _ = queue_records.decode_dedup(value)
    return found


def places(store: detent.Store) -> dict[str, tuple[str, int]]:
    """The same, as the store has it."""
    found: dict[str, tuple[str, int]] = {}
    for name, number in message_numbers(store).items():
        try:
            (place,) = store.message(number).places
        except NotFound:
            continue
        found[name] = place.state, place.attempts
    return found


def check_queue(store: detent.Store, steps: list[str]) -> None:
    """The queue is where it would be if these steps, and no others, had been done once each."""
    expected = places_after(steps)
    assert places(store) == expected
    info = store.queue("q").info()
    states = [state for state, _ in expected.values()]
    contents = (info.available, info.delayed, info.in_flight, info.failed)
    assert contents == tuple(states.count(state) for state in ("available", "delayed", "in flight", "failed"))
    assert info.total_acked == states.count("done")
    # Published once each; driven again, a message comes in once more.
    assert info.total_routed == 7 * ("publish" in steps) + ("redrive" in steps) + ("effect" in steps)
    assert texts(store, "effects") == (["4"] if "effect" in steps else [])
    for failed in store.queue("q").failed():
        assert [attempt.reason for attempt in failed.history] == ["never"]


def queue_cases() -> list[Any]:
    """Each step at the points of its commit, with and without a checkpoint in it, and what comes with a close."""
    cases = [(point, step, False) for step in STEPS for point in ("engine.group.before_commit", "kv.commit.after_sync")]
    cases += [(point, "effect", False) for point in COMMITTING]
    cases += [(point, "effect", True) for point in (*CHECKPOINTING, *COMMITTING[:4])]
    cases += [(CHECKPOINTING[1], step, True) for step in STEPS]
    cases += [(point, "close", False) for point in (*CHECKPOINTING, *COMMITTING[:3:2], *CLOSING)]
    return list(dict.fromkeys(cases))


@pytest.mark.xdist_group("queue-crash-points")
@pytest.mark.parametrize(("point", "armed", "checkpoints"), queue_cases())
def test_killed_while_it_consumed(url: str, processes: Processes, point: str, armed: str, checkpoints: bool) -> None:
    """What was answered is there, what was not is there whole or not at all; a receipt is good after the crash; and
    whoever goes on where it ended comes to the same end."""
    child = processes.start(consumes, url=url, point=point, armed=armed, checkpoints=checkpoints)
    assert child.was_killed(), f"{point} was never reached"
    child.end()
    last = child.events[-1]
    assert (last["event"], last["step"]) == ("begins", armed)
    before = [event["step"] for event in child.events][:-1]
    # A redrive and a purge end with a checkpoint of their own.
    applied = point in DURABLE
    with detent.open(url) as store:
        check_queue(store, [*before, armed] if applied else before)
    with detent.open(url) as store:  # now there is a checkpoint, and nothing to replay
        check_queue(store, [*before, armed] if applied else before)
        receipts: dict[str, str] = last["receipts"]
        left = [step for step in STEPS if step not in before]
        for step in left:
            if applied and step == armed:
                again(store, step, receipts)
            else:
                queue_step(store, step, receipts)
        check_queue(store, list(STEPS))
        check_usable(store, FIRST)


def again(store: detent.Store, step: str, receipts: dict[str, str]) -> None:
    """Do a step again that was done, and of which nobody was told: it must change nothing."""
    if step == "claim":  # what the dead one got is in flight, and whoever knows the deliveries may go on with it
        numbers = message_numbers(store)
        for name in map(str, range(5)):
            (place,) = store.message(numbers[name]).places
            assert (place.state, place.consumer) == ("in flight", "child")
            receipts[name] = f"{store.queue('q').info().number}-{numbers[name]}-{place.delivery}"
    elif step in ("publish", "extend", "redrive", "purge"):
        queue_step(store, step, receipts)
    else:
        with pytest.raises(StaleReceipt):
            queue_step(store, step, receipts)


def ages(io: Io, url: str, point: str, nth: int) -> None:
    """Leases that end, messages that become visible: nobody asks for it, the owner does it."""
    with open_quietly(url) as store:
        queue = store.queue("q")
        queue.create(backoff="0s", max_attempts=2)
        queue.publish_many([b"%d" % number for number in range(4)])
        queue.publish(b"delayed", delay="10ms")
        held = [message.id for message in queue.claim(2, lease=f"{LEASE_S}s")]
        queue.claim(2, lease="1ms")
        io.say("claimed", held=held)
        time.sleep(0.02)
        arm(f"{point}:{nth}")
        for _ in range(nth):
            tick(store)
            queue.claim(2, lease="1ms")
            time.sleep(0.01)
    io.say("closed")


@pytest.mark.xdist_group("queue-crash-points")
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("point", [COMMITTING[0], *COMMITTING[2:5:2]])
def test_killed_while_time_passed(url: str, processes: Processes, point: str, nth: int) -> None:
    """Whatever the clock had done by then, the next owner does the rest, once: two leases that end are two attempts,
    and those that have not ended are kept."""
    child = processes.start(ages, url=url, point=point, nth=nth)
    numbers = child.expect("claimed")["held"]
    assert child.was_killed(), f"{point} was never reached for the time {nth}"
    with detent.open(url) as store:
        queue = store.queue("q")
        eventually(lambda: queue.info().delayed == 0, what="the end of all delays")
        info = queue.info()
        assert (info.total_routed, info.in_flight + info.failed + info.available) == (5, 5)
        held = [store.message(number).places[0] for number in numbers]
        assert [(place.state, place.attempts) for place in held] == [("in flight", 1)] * 2
        while messages := queue.claim(10, lease="1ms"):
            assert {message.attempts for message in messages} <= {1, 2}
            eventually(lambda: queue.info().in_flight == 2, what="the end of these leases")
        info = queue.info()
        assert (info.failed, info.in_flight, info.available) == (3, 2, 0)
        histories = [[attempt.reason for attempt in failed.history] for failed in queue.failed()]
        assert histories == [["the lease expired"] * 2] * 3


def test_a_refused_transaction_leaves_nothing_to_replay(url: str, processes: Processes) -> None:
    """It had published before it met a stale receipt, whose lease had just ended: what the clock did is remembered,
    what the transaction did is not, and the next owner reads a log that makes sense."""
    child = processes.start(is_refused, url=url)
    child.expect("refused")
    child.kill()
    with detent.open(url) as store:
        queue = store.queue("q")
        info = queue.info()
        assert (info.total_routed, info.available, info.in_flight) == (2, 1, 1)
        assert (store.message(0).places[0].attempts, texts(store, "log")) == (2, [])
        check_usable(store, FIRST)


def is_refused(io: Io, url: str) -> None:
    with open_quietly(url) as store:
        queue = store.queue("q")
        queue.create(backoff="0s")
        queue.publish(b"x")
        (message,) = queue.claim(lease="1ms")
        time.sleep(0.01)
        try:
            with store.transaction() as transaction:
                transaction.publish(b"no", queue="q")
                transaction.append("log", b"no")
                transaction.ack(message)
        except StaleReceipt:
            queue.claim()
            queue.publish(b"y")
            io.say("refused")
        io.hear()


def test_a_point_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no crash point"):
        crash.arm("no.such.point")
    assert crash._armed is None
