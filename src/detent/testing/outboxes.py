"""What an outbox storage has to do, as tests."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from detent.bus.messages import Envelope
from detent.bus.outbox import Claim, OutboxCounts, OutboxStorage
from detent.bus.unit_of_work import UnitOfWork
from detent.errors import Fenced
from detent.testing.running import PATIENCE_S
from detent.testing.suite import Suite

A = "queue:a"
B = "queue:b"

LONG_S = 600.0
"""A lease that does not end during a test."""


def _letters(claim: Claim | None) -> list[str]:
    return [] if claim is None else [pending.envelope.id for pending in claim.pending]


class OutboxSuite(Suite):
    """Tests of an `OutboxStorage`.

    >>> class TestMyOutbox(OutboxSuite):
    ...     def outbox(self):
    ...         return MyOutbox(table="messages")
    ...     def unit_of_work(self):
    ...         return SqlAlchemyUnitOfWork(sessionmaker(engine))

    `outbox` and `unit_of_work` are called several times in a test, and answer new objects on the same storage, which is
    empty when the test begins; a fixture with ``autouse=True`` can make it. Both may be plain or async.
    """

    short_s: ClassVar[float] = 0.05
    """A lease, or a delay, that tests wait for; longer if your storage counts in larger steps."""

    # -- what you say -------------------------------------------------------------------------------------------

    def outbox(self) -> OutboxStorage:
        """An outbox that removes messages when they were sent."""
        raise NotImplementedError

    def unit_of_work(self) -> UnitOfWork:
        """Where its transactions come from."""
        raise NotImplementedError

    def keeping_outbox(self) -> OutboxStorage | None:
        """One on the same storage that keeps sent messages, until they are forgotten: which it does with those that
        were sent `short_s` ago. None if yours keeps none."""
        return None

    # -- how it is run ------------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Go on with new objects, as a new process does."""
        self._units = self.unit_of_work()
        self._outbox = self.outbox()
        self.within(self._outbox.prepare)

    def within(self, method: Callable[..., Any], *values: Any, commit: bool = True) -> Any:
        """What a method of the outbox answers, in a unit of its own."""
        return self.run.in_unit(self._units, lambda unit: method(unit, *values), commit=commit)

    def save(self, letters: str, lane: str = A, *, visible_ms: int | None = None, commit: bool = True) -> None:
        """Save a message for each letter."""
        envelopes = [Envelope(letter, lane, {"letter": letter}, letter.encode(), visible_ms) for letter in letters]
        self.within(self._outbox.save, envelopes, commit=commit)

    def claim(self, limit: int = 10, lease_s: float = LONG_S, ahead_s: float = 0.0) -> Claim | None:
        found: Claim | None = self.within(self._outbox.claim, limit, lease_s, ahead_s)
        return found

    def claimed(self, limit: int = 10, lease_s: float = LONG_S, ahead_s: float = 0.0) -> Claim:
        """A claim that is there."""
        found = self.claim(limit, lease_s, ahead_s)
        assert found is not None, "messages wait, and no lane could be claimed"
        return found

    def claimed_later(self) -> Claim:
        """A claim, as soon as there is one."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.claim()) is None:
            assert time.monotonic() < deadline, "a lane was not given back"
            time.sleep(self.short_s / 5)
        return found

    def sent(self, claim: Claim) -> None:
        self.within(self._outbox.sent, claim, [pending.position for pending in claim.pending])

    def counts(self) -> OutboxCounts:
        found: OutboxCounts = self.within(self._outbox.counts)
        return found

    # -- saving -------------------------------------------------------------------------------------------------

    def test_a_message_comes_back_as_it_was(self) -> None:
        odd = {"detent-type": "x", "Ünïcode": "'quoted' \"é中🎉\" \x00 %s :a", "empty": ""}
        envelope = Envelope("it's 1", "topic:|a's|b|", odd, bytes(range(256)) * 300, None)
        self.within(self._outbox.save, [envelope])
        assert [pending.envelope for pending in self.claimed().pending] == [envelope]

    def test_what_was_rolled_back_is_not_there(self) -> None:
        self.save("abc", commit=False)
        assert self.counts().pending == 0
        assert self.claim() is None
        self.save("d")
        assert _letters(self.claim()) == ["d"]

    def test_nothing_is_saved_of_nothing(self) -> None:
        self.within(self._outbox.save, [])
        assert self.counts() == OutboxCounts(0, 0, 0.0)

    def test_many_messages_of_one_transaction_keep_their_order(self) -> None:
        many = [Envelope(str(number), A, {}, b"", None) for number in range(1_234)]
        self.within(self._outbox.save, many)
        claim = self.claimed(limit=2_000)
        assert _letters(claim) == [envelope.id for envelope in many]
        self.sent(claim)
        assert self.counts().pending == 0

    def test_everything_is_kept_when_the_process_ends(self) -> None:
        self.save("ab")
        self.save("x", B)
        claim = self.claimed()
        self.within(self._outbox.failed, claim, [(claim.pending[0].position, "too large")])
        self.restart()
        counts = self.counts()
        assert (counts.pending, counts.failed) == (2, 1)
        assert counts.oldest_s >= 0
        assert _letters(self.claim()) == ["x"]
        assert _letters(self.within(self._outbox.renew, claim, 10, LONG_S, 0.0)) == ["b"]

    # -- lanes --------------------------------------------------------------------------------------------------

    def test_messages_of_a_lane_come_in_their_order(self) -> None:
        for letter in "abcdef":
            self.save(letter)
        claim = self.claimed(limit=4)
        assert _letters(claim) == ["a", "b", "c", "d"]
        self.sent(claim)
        assert _letters(self.within(self._outbox.renew, claim, 4, LONG_S, 0.0)) == ["e", "f"]

    def test_a_claim_has_as_many_messages_as_were_asked_for(self) -> None:
        self.save("abc")
        assert _letters(self.claim(limit=1)) == ["a"]

    def test_claimed_lane_belongs_to_one_forwarder(self) -> None:
        self.save("abc")
        assert self.claim(limit=1) is not None
        assert self.claim() is None, "two would forward one lane: its messages are sent twice, and in any order"
        self.save("d")
        assert self.claim() is None

    def test_lanes_do_not_wait_for_each_other(self) -> None:
        self.save("a", A)
        self.save("b", B)
        first, second = self.claimed(), self.claimed()
        assert (first.lane, second.lane) == (A, B), "the lane whose first message has waited longest comes first"
        assert (_letters(first), _letters(second)) == (["a"], ["b"])
        assert self.claim() is None

    def test_only_some_of_a_claim_may_have_been_sent(self) -> None:
        self.save("abc")
        claim = self.claimed()
        self.within(self._outbox.sent, claim, [claim.pending[0].position, claim.pending[2].position])
        self.within(self._outbox.release, claim)
        assert _letters(self.claim()) == ["b"]

    def test_a_lane_in_which_nothing_waits_is_given_back(self) -> None:
        self.save("a")
        claim = self.claimed()
        self.sent(claim)
        assert self.within(self._outbox.renew, claim, 10, LONG_S, 0.0) is None
        self.save("b")
        following = self.claimed()
        assert _letters(following) == ["b"]
        assert following.token > claim.token

    def test_a_released_lane_is_there_at_once(self) -> None:
        self.save("a")
        claim = self.claimed()
        self.within(self._outbox.release, claim)
        assert self.claimed().token > claim.token

    def test_a_claim_that_was_rolled_back_is_none(self) -> None:
        self.save("a")
        self.within(self._outbox.claim, 10, LONG_S, 0.0, commit=False)
        assert _letters(self.claim()) == ["a"]

    # -- zombies ------------------------------------------------------------------------------------------------

    def test_a_lease_that_has_ended_hands_the_lane_over(self) -> None:
        self.save("ab")
        claim = self.claimed(lease_s=self.short_s)
        following = self.claimed_later()
        assert following.token > claim.token
        assert _letters(following) == ["a", "b"]

    def test_a_lease_can_be_held_for_longer(self) -> None:
        self.save("ab")
        claim = self.claimed(lease_s=self.short_s)
        renewed = self.within(self._outbox.renew, claim, 10, LONG_S, 0.0)
        assert renewed.token == claim.token
        time.sleep(2 * self.short_s)
        assert self.claim() is None

    @pytest.mark.parametrize("call", ["sent", "failed", "back_off", "release", "renew"])
    def test_who_was_replaced_changes_nothing(self, call: str) -> None:
        self.save("ab")
        zombie = self.claimed(limit=1, lease_s=self.short_s)
        following = self.claimed_later()
        position = zombie.pending[0].position
        values: dict[str, Sequence[Any]] = {
            "sent": ([position],),
            "failed": ([(position, "no")],),
            "back_off": (LONG_S, "no"),
            "release": (),
            "renew": (10, LONG_S, 0.0),
        }
        with pytest.raises(Fenced):
            self.within(getattr(self._outbox, call), zombie, *values[call])
        assert self.counts()[:2] == (2, 0), "a forwarder that was replaced has changed messages"
        assert self.claim() is None, "a forwarder that was replaced has given the lane away"
        renewed = self.within(self._outbox.renew, following, 10, LONG_S, 0.0)
        assert _letters(renewed) == ["a", "b"]
        assert renewed.failures == following.failures

    def test_being_replaced_leaves_the_transaction_usable(self) -> None:
        self.save("ab")
        zombie = self.claimed(lease_s=self.short_s)
        self.claimed_later()

        def go_on(unit: Any) -> None:
            with pytest.raises(Fenced):
                self.run.call(self._outbox.sent, unit, zombie, [zombie.pending[0].position])
            self.run.call(self._outbox.save, unit, [Envelope("c", "queue:c", {}, b"", None)])

        self.run.in_unit(self._units, go_on)
        assert self.counts().pending == 3

    # -- what cannot be sent ------------------------------------------------------------------------------------

    def test_backing_off_delays_one_lane(self) -> None:
        self.save("a", A)
        self.save("b", B)
        claim = self.claimed()
        assert (claim.lane, claim.failures) == (A, 0)
        self.within(self._outbox.back_off, claim, LONG_S, "no answer \x00 \ud800")
        other = self.claimed()
        assert other.lane == B
        assert self.claim() is None
        assert self.counts().pending == 2

    def test_failures_in_a_row_are_counted_until_something_was_sent(self) -> None:
        self.save("ab")
        for failures in range(3):
            claim = self.claimed_later()
            assert claim.failures == failures
            self.within(self._outbox.back_off, claim, self.short_s, "no answer")
        claim = self.claimed_later()
        self.within(self._outbox.sent, claim, [claim.pending[0].position])
        renewed = self.within(self._outbox.renew, claim, 10, LONG_S, 0.0)
        assert renewed.failures == 0
        assert _letters(renewed) == ["b"]

    def test_what_can_never_be_sent_is_set_aside_and_put_back(self) -> None:
        self.save("abc")
        claim = self.claimed()
        first, second = claim.pending[0].position, claim.pending[1].position
        self.within(self._outbox.failed, claim, [(first, "too large \x00 \ud800"), (second, "no such queue")])
        assert _letters(self.within(self._outbox.renew, claim, 10, LONG_S, 0.0)) == ["c"]
        assert self.counts()[:2] == (1, 2)
        found = self.within(self._outbox.set_aside, 10)
        assert [(one.position, one.envelope.id) for one in found] == [(first, "a"), (second, "b")]
        assert "too large" in found[0].error
        assert found[1].error == "no such queue"
        assert len(self.within(self._outbox.set_aside, 1)) == 1
        assert self.within(self._outbox.redrive, [second]) == 1
        assert _letters(self.within(self._outbox.renew, claim, 10, LONG_S, 0.0)) == ["b", "c"], "it keeps its place"
        assert self.within(self._outbox.redrive, None) == 1
        assert _letters(self.within(self._outbox.renew, claim, 10, LONG_S, 0.0)) == ["a", "b", "c"]
        assert self.within(self._outbox.redrive, None) == 0
        assert self.within(self._outbox.redrive, [first, -1]) == 0

    # -- later --------------------------------------------------------------------------------------------------

    def test_messages_for_later_hold_up_no_others(self) -> None:
        hour_ms = 3_600_000
        now_ms = round(time.time() * 1000)
        self.save("a", visible_ms=now_ms + hour_ms)
        assert self.claim() is None
        self.save("b")
        self.save("c", visible_ms=now_ms - hour_ms)
        self.save("d")
        claim = self.claimed()
        assert _letters(claim) == ["b", "c", "d"]
        self.sent(claim)
        assert self.within(self._outbox.renew, claim, 10, LONG_S, 0.0) is None
        assert self.claim(ahead_s=60.0) is None
        (ahead,) = self.claimed(ahead_s=7200.0).pending
        assert (ahead.envelope.id, ahead.envelope.visible_ms) == ("a", now_ms + hour_ms)

    def test_a_transport_that_keeps_messages_back_gets_all_of_them(self) -> None:
        self.save("a", visible_ms=round(time.time() * 1000) + 10**12)
        self.save("b")
        assert _letters(self.claim(limit=1, ahead_s=math.inf)) == ["a"]

    # -- forgetting ---------------------------------------------------------------------------------------------

    def test_what_waits_or_was_set_aside_is_not_forgotten(self) -> None:
        self.save("ab")
        claim = self.claimed()
        self.within(self._outbox.failed, claim, [(claim.pending[0].position, "no")])
        assert self.within(self._outbox.forget, 100) == 0
        assert self.counts()[:2] == (1, 1)
        self.within(self._outbox.release, claim)
        assert self.claimed().token > claim.token

    def test_sent_messages_are_kept_and_forgotten_step_by_step(self) -> None:
        keeping = self.keeping_outbox()
        if keeping is None:
            pytest.skip("this outbox keeps no sent messages")
        self.save("abc")
        claim = self.claimed()
        self.within(keeping.sent, claim, [pending.position for pending in claim.pending])
        assert self.counts()[:2] == (0, 0)
        assert self.within(self._outbox.renew, claim, 10, LONG_S, 0.0) is None
        time.sleep(2 * self.short_s)
        assert self.within(keeping.forget, 2) == 2
        assert self.within(keeping.forget, 2) == 1
        assert self.within(keeping.forget, 2) == 0

    # -- many at once -------------------------------------------------------------------------------------------

    def test_many_forwarders_send_each_message_once_and_in_order(self) -> None:
        lanes = [f"queue:{number}" for number in range(6)]
        for _ in range(3):
            for lane in lanes:
                self.save("abc", lane)
        sent: list[tuple[str, int]] = []

        def forward() -> None:
            outbox = self.outbox()
            while self.counts().pending:
                claim = self.within(outbox.claim, 2, LONG_S, 0.0)
                while claim is not None:
                    sent.extend((claim.lane, pending.position) for pending in claim.pending)
                    self.within(outbox.sent, claim, [pending.position for pending in claim.pending])
                    claim = self.within(outbox.renew, claim, 2, LONG_S, 0.0)

        for one in [self.run.start(forward) for _ in range(4)]:
            one.result(PATIENCE_S)
        assert len(sent) == len(set(sent)) == 9 * len(lanes), "messages were sent twice, or not at all"
        for lane in lanes:
            positions = [position for of, position in sent if of == lane]
            assert positions == sorted(positions), "messages of a lane were sent out of order"

    def test_messages_saved_while_others_forward_are_all_sent(self) -> None:
        letters = "abcdefghijklmnopqrst"
        sent: list[str] = []

        def save() -> None:
            for letter in letters:
                self.save(letter)

        saving = self.run.start(save)
        deadline = time.monotonic() + PATIENCE_S
        while len(sent) < len(letters):
            assert time.monotonic() < deadline, f"of {letters} only {sent} came"
            claim = self.claim(limit=3)
            if claim is not None:
                sent += _letters(claim)
                self.sent(claim)
                self.within(self._outbox.release, claim)
        saving.result(PATIENCE_S)
        assert sent == list(letters)
