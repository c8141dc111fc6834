"""What every kind of state has to do, as tests. A subclass says which kind, and how its handles are used:

class TestMyState(StateContract):
    @pytest.fixture
    def make_state(self) -> Callable[[], State]: ...  # each call: another process, on the same data
    @pytest.fixture
    def store(self) -> Any: ...
    def put(self, handle, key, value): ...
    def get(self, handle, key): ...
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from detent.errors import Fenced
from detent.journal import AckIntent
from detent.state.base import ShardName, ShardState, State
from detent.state.checkpoint import Checkpoint, RawPosition, RawProducer

RICH = Checkpoint(
    offsets={"orders/0": 7, "orders/1": 0},
    raw={"clicks": RawPosition(1 << 40, 5, [RawProducer(0xA1B2C3, 9, -1, 9), RawProducer(3, 4, 17, 8)])},
    intents={"": [AckIntent("totals", b"\x01\x02\x03\x04\x05\x06", 77)], "elsewhere": []},
    generation=2,
    transaction=1,
)

Open = Callable[..., ShardState]


def at_once() -> None:
    """There is no transaction before, or it has committed."""


def numbered(transaction: int) -> Checkpoint:
    """The checkpoint of the nth transaction."""
    return Checkpoint(offsets={"orders": transaction * 10}, transaction=transaction)


class StateContract:
    """The contract of `detent.state.base`."""

    excludes_while_used = False
    """Whether nobody can restore between the first use of a handle and its end."""

    def put(self, handle: Any, key: str, value: int) -> None:
        """What an application does to remember a value."""
        raise NotImplementedError

    def get(self, handle: Any, key: str) -> int | None:
        """What an application does to find it."""
        raise NotImplementedError

    @pytest.fixture
    def opened(self, make_state: Callable[[], State], store: Any) -> Iterator[Open]:
        """Opens a shard as a process of its own does; not restored."""
        states: list[State] = []
        shards: list[ShardState] = []

        def one(shard: int = 0, consumer: str = "totals") -> ShardState:
            states.append(make_state())
            shards.append(states[-1].open(store, ShardName(consumer, shard)))
            return shards[-1]

        yield one
        for shard in shards:
            shard.close()
        for state in states:
            state.close()

    def commit(self, shard: ShardState, checkpoint: Checkpoint, **values: int) -> None:
        """A whole transaction."""
        handle = shard.begin(at_once)
        for key, value in values.items():
            self.put(handle, key, value)
        shard.commit(shard.seal(handle), checkpoint, [])

    def found(self, shard: ShardState, key: str) -> int | None:
        """What a transaction sees that changes nothing."""
        handle = shard.begin(at_once)
        try:
            return self.get(handle, key)
        finally:
            shard.discard(handle)

    # -- one process --------------------------------------------------------------------------------------------

    def test_a_shard_that_never_committed_has_no_checkpoint(self, opened: Open) -> None:
        assert opened().restore() is None
        again = opened()
        assert again.restore() is None, "a fence alone is no checkpoint"
        assert self.found(again, "a") is None

    def test_a_commit_brings_changes_and_checkpoint_together(self, opened: Open) -> None:
        first, second = opened(), opened()
        first.restore()
        self.commit(first, RICH, a=5, b=6)
        assert second.restore() == RICH
        assert (self.found(second, "a"), self.found(second, "b")) == (5, 6)

    def test_each_commit_replaces_the_one_before(self, opened: Open) -> None:
        first, second = opened(), opened()
        first.restore()
        for number in range(1, 6):
            self.commit(first, numbered(number), a=number)
        assert second.restore() == numbered(5)
        assert self.found(second, "a") == 5

    def test_a_transaction_without_changes_commits_its_checkpoint(self, opened: Open) -> None:
        first, second = opened(), opened()
        first.restore()
        self.commit(first, numbered(1), a=5)
        self.commit(first, numbered(2))
        assert second.restore() == numbered(2)
        assert self.found(second, "a") == 5

    def test_a_transaction_sees_its_own_changes(self, opened: Open) -> None:
        shard = opened()
        shard.restore()
        handle = shard.begin(at_once)
        self.put(handle, "a", 1)
        assert self.get(handle, "a") == 1
        self.put(handle, "a", 2)
        assert self.get(handle, "a") == 2
        shard.discard(handle)

    def test_what_is_discarded_never_was(self, opened: Open) -> None:
        first, second = opened(), opened()
        first.restore()
        self.commit(first, numbered(1), a=5)
        handle = first.begin(at_once)
        self.put(handle, "a", 6)
        self.put(handle, "b", 6)
        first.discard(handle)
        assert (self.found(first, "a"), self.found(first, "b")) == (5, None)
        self.commit(first, numbered(2), c=7)
        assert second.restore() == numbered(2)
        assert [self.found(second, key) for key in "abc"] == [5, None, 7]

    def test_what_was_not_committed_when_it_closed_never_was(self, opened: Open) -> None:
        first, second = opened(), opened()
        first.restore()
        self.commit(first, numbered(1), a=5)
        self.put(first.begin(at_once), "a", 6)
        first.close()
        assert second.restore() == numbered(1)
        assert self.found(second, "a") == 5

    # -- two transactions that overlap --------------------------------------------------------------------------

    def test_the_next_transaction_sees_what_the_one_before_has_changed(self, opened: Open) -> None:
        shard, other = opened(), opened()
        shard.restore()
        self.commit(shard, numbered(1), a=5)
        committed, asked = threading.Event(), threading.Event()

        def settled() -> None:
            asked.set()
            assert committed.wait(60)

        first = shard.begin(at_once)
        self.put(first, "a", (self.get(first, "a") or 0) + 1)
        sealed = shard.seal(first)
        second = shard.begin(settled)
        with ThreadPoolExecutor(1) as consuming:
            seen = consuming.submit(self.get, second, "a")
            while not seen.done() and not asked.is_set():  # it answers, or it waits
                time.sleep(0.001)
            shard.commit(sealed, numbered(2), [])
            committed.set()
            assert seen.result(60) == 6
            consuming.submit(self.put, second, "a", 7).result(60)
        shard.commit(shard.seal(second), numbered(3), [])
        assert other.restore() == numbered(3)
        assert self.found(other, "a") == 7

    def test_the_next_transaction_may_begin_at_any_moment_of_a_commit(self, opened: Open) -> None:
        """The consuming thread does not wait for the committing one."""
        shard = opened()
        shard.restore()
        done = threading.Event()
        failures: list[BaseException] = []

        def consuming() -> None:
            try:
                while not done.is_set():
                    shard.discard(shard.begin(at_once))
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=consuming)
        thread.start()
        for number in range(1, 30):
            self.commit(shard, numbered(number))
        done.set()
        thread.join()
        assert failures == []

    # -- two processes ------------------------------------------------------------------------------------------

    def test_who_restored_before_cannot_commit(self, opened: Open) -> None:
        zombie, second, third = opened(), opened(), opened()
        zombie.restore()
        self.commit(zombie, numbered(1), a=5)
        assert second.restore() == numbered(1)
        with pytest.raises(Fenced):
            self.commit(zombie, numbered(2), a=6, b=6)
        assert (self.found(second, "a"), self.found(second, "b")) == (5, None)
        self.commit(second, numbered(2), a=7)
        assert third.restore() == numbered(2)
        assert (self.found(third, "a"), self.found(third, "b")) == (7, None)

    def test_who_had_begun_before_the_other_restored_cannot_commit(self, opened: Open) -> None:
        zombie, second, third = opened(), opened(), opened()
        zombie.restore()
        self.commit(zombie, numbered(1), a=5)
        handle = zombie.begin(at_once)
        if not self.excludes_while_used:
            self.put(handle, "b", 6)
        assert second.restore() == numbered(1)
        with pytest.raises(Fenced):
            self.put(handle, "c", 6)
            zombie.commit(zombie.seal(handle), numbered(2), [])
        self.commit(second, numbered(2), d=7)
        assert third.restore() == numbered(2)
        assert [self.found(third, key) for key in "abcd"] == [5, None, None, 7]

    def test_who_never_committed_is_fenced_too(self, opened: Open) -> None:
        zombie, second, third = opened(), opened(), opened()
        zombie.restore()
        assert second.restore() is None
        with pytest.raises(Fenced):
            self.commit(zombie, numbered(1), a=6)
        assert third.restore() is None

    def test_the_fenced_one_may_restore_and_fences_the_other(self, opened: Open) -> None:
        first, second = opened(), opened()
        first.restore()
        self.commit(first, numbered(1), a=5)
        second.restore()
        with pytest.raises(Fenced):
            self.commit(first, numbered(2), a=6)
        assert first.restore() == numbered(1)
        self.commit(first, numbered(2), a=7)
        with pytest.raises(Fenced):
            self.commit(second, numbered(2), a=8)
        assert first.restore() == numbered(2)
        assert self.found(first, "a") == 7

    @pytest.mark.parametrize("round", range(5))
    def test_every_commit_that_succeeded_is_restored_whenever_the_other_comes(self, opened: Open, round: int) -> None:
        """One commits as fast as it can until it is fenced: the other knows of every commit that returned."""
        zombie, second = opened(), opened()
        zombie.restore()
        self.commit(zombie, numbered(1), a=1)
        under_way, is_over = threading.Event(), threading.Event()

        def until_fenced() -> int:
            done = 1
            while True:
                was_over = is_over.is_set()
                try:
                    self.commit(zombie, numbered(done + 1), a=done + 1)
                except Fenced:
                    return done
                assert not was_over, "a commit that began after the other had restored"
                done += 1
                if done > 3 + round:
                    under_way.set()
                time.sleep(0.001)

        with ThreadPoolExecutor(1) as other:
            last = other.submit(until_fenced)
            assert under_way.wait(60)
            restored = second.restore()
            is_over.set()
            done = last.result(60)
        assert restored == numbered(done)
        assert self.found(second, "a") == done

    # -- several shards -----------------------------------------------------------------------------------------

    def test_shards_have_checkpoints_and_fences_of_their_own(self, opened: Open) -> None:
        first, second, elsewhere = opened(0), opened(1), opened(0, consumer="others")
        first.restore()
        self.commit(first, numbered(1), a=1)
        assert second.restore() is None
        assert elsewhere.restore() is None
        self.commit(second, numbered(7), b=2)
        self.commit(elsewhere, numbered(8), c=3)
        self.commit(first, numbered(2), d=4)
        assert opened(0).restore() == numbered(2)
        assert opened(1).restore() == numbered(7)
        assert opened(0, consumer="others").restore() == numbered(8)
