"""The lease of a store on an object store: taken, renewed, judged, lost and given back, with clocks of the test's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from detent.errors import Corrupt, Fenced, Unavailable
from detent.kv import leaseobject
from detent.kv.leaseobject import Found, LeaseNote, Overtaken
from detent.remote import leading, storelease
from detent.remote.address import Address
from detent.remote.answers import Disconnected, Elsewhere
from detent.remote.leading import LeaderSearch
from detent.remote.storelease import HeldLease, StoreClaim, leader_of

URL = "s3://bucket/store"
LEASE_S = 10.0


class Clock:
    """A steady clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Bucket:
    """The lease's object, with conditional puts, in memory, as every object store has them. `faults` are what becomes
    of the next puts: refused without a reason, lost on the way there, or with the answer lost on the way back."""

    def __init__(self) -> None:
        self.stored: Found | None = None
        self.puts = 0
        self.faults: list[str] = []
        self.before_put: Callable[[], None] | None = None

    def read(self) -> Found | None:
        return self.stored

    def write(self, note: LeaseNote, replaced: Found | None) -> Found:
        before, self.before_put = self.before_put, None
        if before is not None:
            before()
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "lost":
            raise Unavailable("planted")
        if fault == "refused":
            raise Overtaken("planted")
        if (None if self.stored is None else self.stored.version) != (None if replaced is None else replaced.version):
            raise Overtaken("not the version that was found")
        self.puts += 1
        self.stored = Found(note, {"e_tag": str(self.puts)})
        if fault == "unheard":
            raise Unavailable("planted")
        if fault == "repeated":
            raise Overtaken("planted: the library put it again")
        return self.stored

    @property
    def note(self) -> LeaseNote:
        assert self.stored is not None
        return self.stored.note


@pytest.fixture(autouse=True)
def no_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals are the test's."""

    class Still:
        def __init__(self, task: Any) -> None: ...

        def start(self) -> Still:
            return self

        def stop(self) -> None: ...

    monkeypatch.setattr(storelease, "Supervised", Still)


def claim_of(bucket: Bucket, clock: Clock, lease_s: float = LEASE_S) -> StoreClaim:
    return StoreClaim(URL, lease_s, clock=clock, lease_object=bucket)  # type: ignore[arg-type]


def taken(bucket: Bucket, clock: Clock) -> HeldLease:
    claim = claim_of(bucket, clock)
    assert claim.look().is_free
    lease = claim.take()
    assert lease is not None
    return lease


def renew(lease: HeldLease) -> None:
    lease._extend(lease._leases.due())


def strange(bucket: Bucket, **changes: Any) -> None:
    """Let the holder be a process of another machine, of which nothing is known."""
    assert bucket.stored is not None
    note = msgspec.structs.replace(bucket.note, boot="another", **changes)
    bucket.stored = Found(note, bucket.stored.version)


class TestTaking:
    def test_new_store_is_free_and_then_held(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        lease.announce(["http://a:7410"])
        assert (bucket.note.term, bucket.note.state, bucket.note.lease_ms) == (1, "serving", 10_000)
        sight = claim_of(bucket, clock).look()
        assert not sight.is_free
        assert leader_of(sight) == "http://a:7410"

    def test_released_store_is_free_at_once(self) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock).release()
        lease = taken(bucket, clock)
        assert lease.term == 2

    def test_holder_on_this_machine_that_is_gone_is_replaced_at_once(self) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock)
        assert not claim_of(bucket, clock).look().is_free
        assert bucket.stored is not None
        bucket.stored = Found(msgspec.structs.replace(bucket.note, born="1"), bucket.stored.version)
        assert claim_of(bucket, clock).look().is_free, "its number is another process's now"

    def test_process_of_another_user_that_is_hidden_counts_as_alive(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock)

        def refuse(*_: int) -> None:
            raise PermissionError

        monkeypatch.setattr(leaseobject, "is_same_process", lambda *_: False)
        assert claim_of(bucket, clock).look().is_free
        monkeypatch.setattr(leaseobject.os, "kill", refuse)
        assert not claim_of(bucket, clock).look().is_free

    def test_process_number_of_another_machine_says_nothing(self) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock)
        strange(bucket, born="1")
        assert not claim_of(bucket, clock).look().is_free

    def test_silent_holder_is_replaced_after_its_lease_by_the_watchers_clock(self) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock)
        strange(bucket)
        watcher = claim_of(bucket, clock, lease_s=1.0)
        assert not watcher.look().is_free
        clock.now_s += LEASE_S - 0.1
        assert not watcher.look().is_free, "the lease of the holder counts, not that of the watcher"
        clock.now_s += 0.2
        assert watcher.look().is_free

    def test_every_change_is_a_sign_of_life(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        strange(bucket)
        watcher = claim_of(bucket, clock)
        for _ in range(5):
            clock.now_s += LEASE_S - 0.1
            lease._mine = bucket.stored
            renew(lease)
            sight = watcher.look()
            assert not sight.is_free
        assert sight.is_alive

    @pytest.mark.parametrize("jump_s", [-1e9, 1e9])
    def test_clock_of_the_holder_does_not_matter(self, jump_s: float) -> None:
        """It has jumped by years, and all that the watcher sees is that the object changes."""
        bucket, clock, its_clock = Bucket(), Clock(), Clock()
        lease = taken(bucket, its_clock)
        watcher = claim_of(bucket, clock)
        watcher.look()
        its_clock.now_s += jump_s
        clock.now_s += LEASE_S - 0.1
        renew(lease)
        assert not watcher.look().is_free
        clock.now_s += LEASE_S - 0.1
        assert not watcher.look().is_free

    def test_of_two_that_take_at_the_same_moment_one_does(self) -> None:
        bucket, clock = Bucket(), Clock()
        one, other = claim_of(bucket, clock), claim_of(bucket, clock)
        assert one.look().is_free
        assert other.look().is_free
        bucket.before_put = lambda: other.take()  # type: ignore[assignment, return-value]
        assert one.take() is None
        assert bucket.puts == 1

    @pytest.mark.parametrize("fault", ["unheard", "repeated"])
    def test_answer_that_was_lost_is_looked_for(self, fault: str) -> None:
        bucket, clock = Bucket(), Clock()
        bucket.faults = [fault]
        lease = taken(bucket, clock)
        renew(lease)
        assert (bucket.note.holder, bucket.note.counter, lease.loss) == (lease._note.holder, 1, None)

    def test_put_that_never_arrived_is_an_error(self) -> None:
        bucket, clock = Bucket(), Clock()
        claim = claim_of(bucket, clock)
        claim.look()
        bucket.faults = ["lost"]
        with pytest.raises(Unavailable):
            claim.take()
        assert bucket.stored is None

    def test_holder_that_was_given_up_need_not_run_out(self) -> None:
        bucket, clock = Bucket(), Clock()
        first = taken(bucket, clock)
        strange(bucket)
        watcher = claim_of(bucket, clock)
        watcher.give_up_on(first._note.holder)
        assert watcher.look().is_free
        bucket.stored = None
        taken(bucket, clock)
        assert not watcher.look().is_free, "another holder has come meanwhile"


class TestHolding:
    @pytest.mark.parametrize("fault", ["unheard", "repeated"])
    def test_renewal_whose_answer_was_lost_is_a_renewal(self, fault: str) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        bucket.faults = [fault]
        for _ in range(2):
            clock.now_s += LEASE_S / 2
            try:
                renew(lease)
            except Unavailable:
                renew(lease)
        assert lease.loss is None
        assert lease.refusal() is None

    def test_refusal_without_another_holder_is_tried_again(self) -> None:
        """S3 answers 409 or 412 to one of two requests of the same moment."""
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        bucket.faults = ["refused"]
        renew(lease)
        bucket.faults = ["refused", "refused"]
        with pytest.raises(Unavailable, match="still ours"):
            renew(lease)
        renew(lease)
        assert lease.loss is None

    def test_holder_that_cannot_renew_stops_answering_before_another_may_take_it(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        strange(bucket)
        watcher = claim_of(bucket, clock)
        watcher.look()
        clock.now_s += LEASE_S * 2 / 3 + 0.1
        refused = lease.refusal()
        assert refused is not None
        assert "could not be renewed" in str(refused)
        assert not watcher.look().is_free
        with pytest.raises(Unavailable):
            lease.require_held()

    def test_late_holder_that_nothing_has_replaced_goes_on(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        clock.now_s += 5 * LEASE_S
        assert lease.refusal() is not None
        renew(lease)
        assert lease.refusal() is None

    def test_lease_is_counted_from_before_it_was_asked_for(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)

        def slow() -> None:
            clock.now_s += LEASE_S

        bucket.before_put = slow
        renew(lease)
        assert lease.is_late, "the watcher may have seen the change when the put was begun"

    def test_holder_that_was_replaced_ends_and_says_by_which(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        told: list[Fenced] = []
        lease.on_lost = told.append
        strange(bucket)
        watcher = claim_of(bucket, clock)
        watcher.look()
        clock.now_s += LEASE_S + 1
        assert watcher.look().is_free
        other = watcher.take()
        assert other is not None
        other.announce(["http://b:7410"])
        renew(lease)
        assert len(told) == 1
        refused = lease.refusal()
        assert refused is not None
        assert refused.leader == "http://b:7410"
        assert "http://b:7410" in str(lease.loss)
        with pytest.raises(Fenced):
            lease.require_held()
        lease.release()
        assert bucket.note.holder == other._note.holder, "what another process holds is not released"

    def test_holder_whose_store_was_taken_without_the_lease_gives_it_back(self) -> None:
        """By an earlier release, which knows no lease: SlateDB's epoch says so."""
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        lease.lose(Fenced("another writer"))
        assert lease.refusal() is not None
        lease.release()
        assert bucket.note.state == "released"

    def test_put_that_arrives_late_changes_nothing(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        early = lease._mine
        late = msgspec.structs.replace(lease._note, counter=1)
        renew(lease)
        renew(lease)
        with pytest.raises(Overtaken):
            bucket.write(late, early)
        renew(lease)
        assert lease.loss is None

    def test_every_renewal_has_other_bytes(self) -> None:
        """The same bytes have the same tag, and no condition would notice."""
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        seen = {bucket.note.encode()}
        for fault in ("", "refused", "lost"):
            bucket.faults = [fault] if fault else []
            try:
                renew(lease)
            except Unavailable:
                continue
            seen.add(bucket.note.encode())
        assert len(seen) == 3

    def test_next_renewal_says_where_the_owner_answers_if_that_could_not_be_said(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        bucket.faults = ["lost"]
        lease.announce(["http://a:7410"])
        assert bucket.note.state == "opening"
        renew(lease)
        assert (bucket.note.state, bucket.note.addresses) == ("serving", ["http://a:7410"])

    def test_lease_that_was_removed_is_written_again(self) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        bucket.stored = None
        renew(lease)
        assert bucket.note.holder == lease._note.holder


class TestNote:
    @pytest.mark.parametrize(
        "data", [b"", b"{}", b"[]", b"\xff", b'{"holder": 1}', b'{"holder":"a","term":-1}', b"[" * 10_000]
    )
    def test_foreign_bytes_are_refused(self, data: bytes) -> None:
        with pytest.raises(Corrupt, match="who owns the store"):
            LeaseNote.decode(data)

    def test_note_of_a_later_release_is_refused(self) -> None:
        note = msgspec.structs.replace(LeaseNote.of_this_process(1, 1000), version=2)
        with pytest.raises(Corrupt, match="version 2"):
            LeaseNote.decode(note.encode())

    def test_note_is_read_as_it_was_written(self) -> None:
        note = LeaseNote.of_this_process(3, 2500)
        assert LeaseNote.decode(note.encode()) == note
        assert note.is_of_this_machine
        assert not note.has_died


class TestFinding:
    """What a process that opens the store makes of its lease."""

    @pytest.fixture(autouse=True)
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Address]:
        asked: list[Address] = []

        class Answering:
            def __init__(self, address: Address) -> None:
                asked.append(address)

            def status(self, _: float) -> None: ...

            def close(self) -> None: ...

        monkeypatch.setattr(leading, "RemoteOwner", Answering)
        return asked

    def search(self, bucket: Bucket, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> LeaderSearch:
        def sleep(seconds: float) -> None:
            clock.now_s += seconds

        monkeypatch.setattr(leading.time, "sleep", sleep)
        monkeypatch.setattr(leading.time, "monotonic", clock)
        return LeaderSearch(URL, [], claim_of(bucket, clock))

    def test_live_owner_is_gone_to(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock).announce(["http://a:7410"])
        found = self.search(bucket, clock, monkeypatch).find(clock() + 30, may_own=True, force=False)
        assert isinstance(found, Address)
        assert found.url == "http://a:7410"

    def test_force_takes_it_from_a_live_owner(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock).announce(["http://a:7410"])
        found = self.search(bucket, clock, monkeypatch).find(clock() + 30, may_own=True, force=True)
        assert isinstance(found, HeldLease)
        assert found.term == 2

    def test_silent_owner_is_waited_for_one_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock)
        strange(bucket)
        began = clock()
        found = self.search(bucket, clock, monkeypatch).find(clock() + 30, may_own=True, force=False)
        assert isinstance(found, HeldLease)
        assert LEASE_S <= clock() - began <= LEASE_S * 1.5

    def test_silent_server_is_left_to_its_standbys_for_another_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket, clock = Bucket(), Clock()
        taken(bucket, clock).announce(["http://a:7410"])
        strange(bucket)
        monkeypatch.setattr(LeaderSearch, "_answering", lambda *_: None)
        began = clock()
        found = self.search(bucket, clock, monkeypatch).find(clock() + 30, may_own=True, force=False)
        assert isinstance(found, HeldLease)
        assert 2 * LEASE_S <= clock() - began <= 2.5 * LEASE_S

    def test_live_owner_that_listens_on_another_machine_only_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket, clock = Bucket(), Clock()
        lease = taken(bucket, clock)
        lease.announce(["unix:/tmp/detent-socket-x/owner.sock"])
        strange(bucket, host="faraway", pid=17)
        search = self.search(bucket, clock, monkeypatch)

        def sleep(seconds: float) -> None:
            clock.now_s += seconds
            lease._mine = bucket.stored
            lease._note = bucket.note
            renew(lease)

        monkeypatch.setattr(leading.time, "sleep", sleep)
        began = clock()
        with pytest.raises(Unavailable, match=r"process 17 on faraway.*answers no process of another machine"):
            search.find(clock() + 30, may_own=True, force=False)
        assert clock() - began <= LEASE_S

    def test_client_never_owns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bucket, clock = Bucket(), Clock()
        with pytest.raises(Unavailable, match="no process owns"):
            self.search(bucket, clock, monkeypatch).find(clock() + 30, may_own=False, force=False)
        assert bucket.stored is None


class TestSeveralServers:
    def test_token_does_not_follow_to_an_unencrypted_server(self) -> None:
        search = LeaderSearch("https://a,https://b", [Address(url="https://a"), Address(url="https://b")])
        search.hear("http://c:1")
        assert search._told is None
        search.hear("https://c:1")
        assert search._told == Address(url="https://c:1")
        search.hear("")
        assert search._told is None

    @pytest.fixture
    def world(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
        """What each server says: "leader", the URL of the one that is, or nothing (None)."""
        says: dict[str, str | None] = {}

        class Server:
            def __init__(self, address: Address) -> None:
                self.url = address.url

            def status(self, _: float) -> None:
                says.setdefault("asked", "")
                says["asked"] = f"{says['asked']}{self.url[-1]}"
                said = says.get(self.url)
                if said is None:
                    raise Disconnected("planted")
                if said != "leader":
                    raise Elsewhere("planted", said)

            def close(self) -> None: ...

        monkeypatch.setattr(leading, "RemoteOwner", Server)
        return says

    def search(self, names: str) -> LeaderSearch:
        return LeaderSearch("http://...", [Address(url=f"http://{name}") for name in names])

    def find(self, search: LeaderSearch) -> str:
        found = search.find(time.monotonic() + 0.05, may_own=False, force=False)
        assert isinstance(found, Address)
        return found.url

    def test_leader_is_found_where_a_standby_says(self, world: dict[str, str | None]) -> None:
        world.update({"http://a": "http://c", "http://c": "leader"})
        assert self.find(self.search("ab")) == "http://c"
        assert world["asked"] == "ac", "the others need not be asked"

    def test_one_that_was_lost_is_asked_last_whatever_standbys_say(self, world: dict[str, str | None]) -> None:
        world.update({"http://b": "http://a", "http://c": "leader"})
        search = self.search("abc")
        search.lost(Address(url="http://a"))
        assert self.find(search) == "http://c"
        assert world["asked"] == "bc"

    def test_one_that_was_lost_may_come_back(self, world: dict[str, str | None]) -> None:
        world.update({"http://a": "http://x", "http://x": "leader"})
        search = self.search("a")
        search.lost(Address(url="http://x"))
        assert self.find(search) == "http://x"

    def test_servers_that_name_each_other_are_asked_once_a_round(self, world: dict[str, str | None]) -> None:
        world.update({"http://a": "http://b", "http://b": "http://a"})
        search = self.search("ab")
        assert search._ask_all(1.0)[0] is None
        assert sorted(str(world["asked"])) == ["a", "b"]
        with pytest.raises(Unavailable, match="none of the servers"):
            self.find(search)
