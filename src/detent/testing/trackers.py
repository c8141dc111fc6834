"""What a tracker has to do, as tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from detent.bus.idempotency import MessageTracker
from detent.bus.messages import ID_BYTES_MAX
from detent.bus.unit_of_work import UnitOfWork
from detent.testing.running import PATIENCE_S
from detent.testing.suite import Suite

ODD_IDS = (
    "x" * ID_BYTES_MAX,
    "é中🎉",
    'it\'s "quoted"; DROP TABLE x --',
    "../x",
    "a/b\\c",
    "%s :name {0} $1 ?",
    " ",
    "é",  # é of one letter and of two are two ids
    "e\u0301",
    "X" * 10,
    "x" * 10,
)


class TrackerSuite(Suite):
    """Tests of a `MessageTracker`.

    >>> class TestMyTracker(TrackerSuite):
    ...     def tracker(self):
    ...         return MyTracker(retention="7d")
    ...     def unit_of_work(self):
    ...         return SqlAlchemyUnitOfWork(sessionmaker(engine))

    `tracker` and `unit_of_work` are called several times in a test, and answer new objects on the same storage, which
    is empty when the test begins; a fixture with ``autouse=True`` can make it. Both may be plain or async.
    """

    waits: ClassVar[bool] = True
    """Whether the second of two waits until the first is through. A tracker that marks after the commit cannot."""

    is_lasting: ClassVar[bool] = True
    """Whether a new tracker on the same storage knows what the old one knew."""

    # -- what you say -------------------------------------------------------------------------------------------

    def tracker(self) -> MessageTracker:
        """A tracker that forgets nothing during a test."""
        raise NotImplementedError

    def unit_of_work(self) -> UnitOfWork | None:
        """Where its transactions come from; None for a tracker that needs none."""
        return None

    def forgetful_tracker(self) -> MessageTracker | None:
        """One on the same storage, with a retention of no time; None if yours has no retention."""
        return None

    def broken_tracker(self) -> MessageTracker | None:
        """One whose storage is gone; None if that cannot be."""
        return None

    # -- how it is run ------------------------------------------------------------------------------------------

    def restart(self) -> None:
        self._units = self.unit_of_work()
        self._tracker = self.tracker()
        self._in_unit(lambda unit: self._tracker.prepare("billing", "queue billing", unit))

    def _in_unit(self, work: Callable[[Any], Any]) -> Any:
        return self.run.in_unit(self._units, work)

    def handle(
        self,
        message_id: str,
        consumer: str = "billing",
        *,
        succeeds: bool = True,
        tracker: MessageTracker | None = None,
        meanwhile: Callable[[], Any] | None = None,
    ) -> bool:
        """Handle a message as the bus does: whether it was taken for a new one. Its handler does `meanwhile`."""
        found = tracker or self._tracker
        with self._unit() as unit:
            is_new: bool = self.run.call(found.track, consumer, message_id, unit)
            if is_new and meanwhile is not None:
                meanwhile()
            if unit is not None:
                self.run.call(unit.commit if succeeds else unit.rollback)
        if is_new:
            self.run.call(found.committed if succeeds else found.rolled_back, consumer, message_id)
        return is_new

    @contextmanager
    def _unit(self) -> Iterator[Any]:
        if self._units is None:
            yield None
            return
        unit = self.run.call(self._units.begin)
        try:
            yield unit
        except BaseException:
            self.run.call(unit.rollback)
            raise
        finally:
            self.run.call(unit.close)

    def _overlap(self, *, succeeds: bool) -> tuple[bool, bool]:
        """Handle a message while the same one is under way: what each was taken for."""
        others = []

        def meanwhile() -> None:
            others.append(self.run.start(lambda: self.handle("1", tracker=self._same)))
            self.run.head_start(*others)

        first = self.handle("1", succeeds=succeeds, meanwhile=meanwhile)
        return first, others[0].result(PATIENCE_S)

    @property
    def _same(self) -> MessageTracker:
        """The tracker of another process: a new one, unless its storage is itself."""
        return self.tracker() if self.is_lasting else self._tracker

    # -- marks --------------------------------------------------------------------------------------------------

    def test_a_message_is_new_once(self) -> None:
        assert self.handle("1"), "a message that was never seen was taken for a duplicate, and is lost"
        assert not self.handle("1"), "a message was handled twice"
        assert not self.handle("1"), "a message was handled twice"

    def test_a_message_that_failed_is_new_again(self) -> None:
        assert self.handle("1", succeeds=False)
        assert self.handle("1", succeeds=False), "a mark survived the rollback: the message is lost"
        assert self.handle("1"), "a mark survived the rollback: the message is lost"
        assert not self.handle("1")

    def test_two_consumers_do_not_share_marks(self) -> None:
        assert self.handle("1", "billing")
        assert self.handle("1", "shipping"), "a consumer's mark was taken for another one's: the message is lost"
        assert not self.handle("1", "billing")
        assert not self.handle("1", "shipping")

    def test_the_parts_of_a_key_are_not_mixed_up(self) -> None:
        assert self.handle("bc", "a")
        assert self.handle("c", "ab")

    def test_ids_are_any_text(self) -> None:
        for message_id in ODD_IDS:
            assert self.handle(message_id), f"{message_id!r} was taken for another id: a message is lost"
        for message_id in ODD_IDS:
            assert not self.handle(message_id), f"{message_id!r} was handled twice"

    def test_a_new_tracker_knows_the_marks(self) -> None:
        if not self.is_lasting:
            pytest.skip("this tracker does not last")
        assert self.handle("1")
        assert not self.handle("1", tracker=self.tracker()), "a message was handled twice after a restart"

    # -- two at once --------------------------------------------------------------------------------------------

    def test_of_two_at_once_the_second_is_a_duplicate_if_the_first_commits(self) -> None:
        if not self.waits:
            pytest.skip("this tracker does not wait")
        assert self._overlap(succeeds=True) == (True, False)

    def test_of_two_at_once_the_second_is_new_if_the_first_fails(self) -> None:
        if not self.waits:
            pytest.skip("this tracker does not wait")
        assert self._overlap(succeeds=False) == (True, True), "the message is lost"
        assert not self.handle("1")

    def test_many_at_once_are_handled_once_each(self) -> None:
        if not self.waits:
            pytest.skip("this tracker does not wait")

        def consume() -> list[str]:
            tracker = self._same
            return [name for name in map(str, range(10)) if self.handle(name, tracker=tracker)]

        everyone = [self.run.start(consume) for _ in range(4)]
        handled = sorted(name for one in everyone for name in one.result(PATIENCE_S))
        assert handled == [str(number) for number in range(10)]

    # -- what goes wrong, and what is forgotten -----------------------------------------------------------------

    def test_a_tracker_that_cannot_tell_raises(self) -> None:
        broken = self.broken_tracker()
        if broken is None:
            pytest.skip("this tracker cannot break")
        with self._unit() as unit:
            with pytest.raises(Exception, match=r"."):  # any error will do, but no answer
                self.run.call(broken.track, "billing", "1", unit)
            if unit is not None:
                self.run.call(unit.rollback)

    def test_tables_can_be_made_many_times_and_at_once(self) -> None:
        def prepare() -> None:
            tracker = self._same
            self._in_unit(lambda unit: tracker.prepare("billing", "queue billing", unit))

        assert self.handle("1")
        for one in [self.run.start(prepare) for _ in range(4)]:
            one.result(PATIENCE_S)
        assert not self.handle("1")

    def test_it_says_for_how_long_it_remembers(self) -> None:
        """An app compares this with how long its transport can deliver a message again."""
        forgetful = self.forgetful_tracker()
        kept_s = getattr(self._tracker, "retention_s", None)
        if forgetful is None or kept_s is None:
            pytest.skip("this tracker does not say how long it remembers")
        assert forgetful.retention_s == 0
        assert kept_s > 0

    def test_old_marks_are_forgotten_step_by_step_and_by_consumer(self) -> None:
        forgetful = self.forgetful_tracker()
        if forgetful is None:
            pytest.skip("this tracker has no retention")
        for name in ("1", "2", "3"):
            assert self.handle(name)
        assert self.handle("1", "shipping")
        assert self._in_unit(lambda unit: self._tracker.forget("billing", unit, 10)) == 0, "a mark went too soon"
        assert self._in_unit(lambda unit: forgetful.forget("billing", unit, 2)) == 2
        assert self._in_unit(lambda unit: forgetful.forget("billing", unit, 2)) == 1
        assert not self.handle("1", "shipping"), "another consumer's mark was forgotten"
        assert self.handle("1")
