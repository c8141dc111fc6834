"""Processes that open one store on an object store: the second becomes a client of the first, waits for it, or takes
over from it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("slatedb")
pytest.importorskip("obstore")

import detent
from detent.errors import Corrupt, Fenced, Unavailable
from detent.kv import leaseobject, parse_url
from detent.kv.leaseobject import NOTE_BYTES_MAX, LeaseObject
from detent.kv.objectstore import open_bucket
from detent.remote import StoreClaim, held_alone
from detent.store import Store
from processes import Child, Processes, eventually, store_process
from s3proxy import Fault, FaultyS3, faulty_s3
from s3server import s3_store_url

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("s3")]

LEASE_S = 1.0


@pytest.fixture
def url() -> str:
    return s3_store_url()


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    with faulty_s3() as proxy:
        yield proxy


def owner_of(processes: Processes, url: str, lease_s: float = LEASE_S) -> Child:
    child = processes.start(store_process, url=url, patches={"detent.remote.storelease.LEASE_S": lease_s})
    assert child.expect("open")["owner"]
    return child


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process is on another machine than those that run already."""
    monkeypatch.setattr(leaseobject, "boot_id", lambda: b"another machine ")


def sockets() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("detent-socket-*"))


def test_second_process_is_a_client_of_the_first(processes: Processes, url: str) -> None:
    """It reads, waits and claims through the owner, and sees at once what it has committed."""
    owner = owner_of(processes, url)
    with detent.open(url) as store:
        assert not store.is_owner
        assert store.owner_url is not None
        assert store.owner_url.startswith("unix:/")
        store.queue("q").create()
        store.queue("q").publish(b"m")
        assert [message.body for message in store.queue("q").claim()] == [b"m"]
        assert store.journal("j").append(b"0").offset == 0
        assert owner.call("append", journal="j", body="1")["offset"] == 1
        assert [message.body for message in store.journal("j").read()] == [b"0", b"1"]
        owner.finish()
        with pytest.raises(Unavailable):
            Store(url, role="client", timeout="200ms")
    with detent.open(url) as store:
        assert store.is_owner, "the lease was given back"
        assert store.journal("j").append(b"2").offset == 2


def test_owner_that_was_killed_is_replaced_at_once_and_its_socket_goes(processes: Processes, url: str) -> None:
    before = sockets()
    owner = owner_of(processes, url, lease_s=600.0)
    (folder,) = sockets() - before
    owner.call("append", journal="j", body="0")
    owner.kill()
    with detent.open(url, timeout="20s") as store:
        assert store.is_owner
        assert store.journal("j").append(b"1").offset == 1
        assert not folder.exists()


def test_owner_that_hangs_is_waited_for_and_then_replaced(processes: Processes, url: str) -> None:
    owner = owner_of(processes, url)
    owner.call("append", journal="j", body="0")
    owner.stop()
    began = time.monotonic()
    with detent.open(url) as store:
        assert time.monotonic() - began >= LEASE_S
        assert store.is_owner
        assert store.journal("j").append(b"1").offset == 1
        owner.resume()
        owner.send("append", journal="j", body="lost")
        with pytest.raises(AssertionError, match="raised"):
            owner.expect("answer")
        assert "Fenced" in str(owner.events[-1])
        assert "has taken over" in str(owner.events[-1])
        assert [message.body for message in store.journal("j").read()] == [b"0", b"1"]


def test_owner_on_another_machine_is_named_and_keeps_the_store(
    processes: Processes, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owner_of(processes, url)
    elsewhere(monkeypatch)
    with pytest.raises(Unavailable, match=rf"process {owner.pid} on \S+.* answers no process of another machine"):
        detent.open(url)
    with pytest.raises(Unavailable, match="answers no process of another machine"):
        detent.open(url, role="client")
    assert owner.call("append", journal="j", body="0")["offset"] == 0
    with detent.open(url, force=True) as store:
        assert store.is_owner
        owner.send("append", journal="j", body="lost")
        with pytest.raises(AssertionError, match="Fenced"):
            owner.expect("answer")


def test_silent_owner_on_another_machine_is_replaced_after_its_lease(
    processes: Processes, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owner_of(processes, url)
    owner.call("append", journal="j", body="0")
    elsewhere(monkeypatch)
    owner.kill()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"does not answer|answers no process"):
        detent.open(url, timeout="100ms")
    with detent.open(url) as store:
        assert time.monotonic() - began >= LEASE_S
        assert store.is_owner
        assert store.journal("j").append(b"1").offset == 1


def test_client_stays_one_and_finds_the_next_owner(processes: Processes, url: str) -> None:
    owner = owner_of(processes, url)
    with detent.open(url, timeout="30s") as store:
        assert not store.is_owner
        store.journal("j").append(b"0")
        owner.kill()
        second = owner_of(processes, url)
        assert store.journal("j").append(b"1").offset == 1
        assert not store.is_owner
        second.finish()


def test_owner_of_an_earlier_release_is_noticed_at_the_fence(url: str) -> None:
    """It knows no lease, and takes the store; and the lease is free then."""
    from detent.kv import slate

    with detent.open(url) as store:
        store.journal("j").append(b"0")
        writer = slate.open_writer(url)
        with pytest.raises(Fenced):
            store.journal("j").append(b"1")
        with pytest.raises(Fenced):
            store.queues()
        writer.close()
    with detent.open(url) as store:
        assert store.is_owner


def test_reader_needs_no_lease(s3: FaultyS3) -> None:
    url = s3.store_url()
    detent.open(url).close()
    s3.requests.clear()
    with detent.open(url, role="reader") as store:
        assert store.journals() == []
    assert s3.count(part="owner.json") == 0


def test_store_is_not_upgraded_under_its_owner(url: str) -> None:
    with detent.open(url) as store:
        with pytest.raises(Unavailable, match=r"answers at unix:.*stop it first"), held_alone(url, 5.0):
            raise AssertionError("it was held")
        store.journal("j").append(b"0")
    with held_alone(url, 5.0), pytest.raises(Unavailable):
        Store(url, timeout="200ms")


@pytest.mark.parametrize("status", [409, 412, 503, 0])
@pytest.mark.parametrize("unheard", [False, True])
def test_put_of_the_lease_that_fails_once_costs_nothing(s3: FaultyS3, status: int, unheard: bool) -> None:
    url = s3.store_url()
    s3.plant(Fault("PUT", "owner.json", status, unheard=unheard))
    try:
        store = Store(url, claim=StoreClaim(url, LEASE_S))
    except Unavailable:
        assert not unheard, "what was written is found"
        store = Store(url, claim=StoreClaim(url, LEASE_S))
    with store:
        s3.plant(Fault("PUT", "owner.json", status, unheard=unheard))
        eventually(lambda: not s3._faults[-1].times, what="a renewal that fails")
        time.sleep(LEASE_S)
        assert store.journal("j").append(b"0").offset == 0
        owner = store._connection.current
        assert owner is not None
        assert owner.refusal() is None


def test_lease_of_an_idle_owner_costs_a_put_for_each_two_fifths_of_it(s3: FaultyS3) -> None:
    url = s3.store_url()
    with Store(url, claim=StoreClaim(url, 2.5)):
        s3.requests.clear()
        time.sleep(4.5)
        assert 2 <= s3.count("PUT", "owner.json") <= 5
        assert s3.count("GET", "owner.json") == 0


def test_object_that_is_no_lease_is_named(url: str) -> None:
    import obstore

    bucket = open_bucket(parse_url(url))
    for data in (b"hello", b"{" + b" " * 2 * NOTE_BYTES_MAX + b"}"):
        obstore.put(bucket, "owner.json", data)
        with pytest.raises(Corrupt, match=r"owner\.json"):
            detent.open(url)
    obstore.delete(bucket, "owner.json")
    detent.open(url).close()
    note = LeaseObject.of(url, 5.0).read()
    assert note is not None
    assert note.note.state == "released"


def test_process_that_is_asked_to_stop_gives_the_lease_back(processes: Processes, url: str) -> None:
    owner = owner_of(processes, url, lease_s=600.0)
    owner.finish()
    found = LeaseObject.of(url, 5.0).read()
    assert found is not None
    assert (found.note.state, found.note.term) == ("released", 1)
