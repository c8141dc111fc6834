"""Whatever the wall clock does, what an owner measures lasts as long as it is to last."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clockworld import DAY, HOUR, MINUTE, SECOND, ClockWorld
from detent.engine.ownertime import STEP_AFTER_MS
from detent.engine.sessions import SESSION_IDLE_MS
from detent.engine.verify import Tally, check_engine
from detent.errors import Conflict, SessionExpired, StaleReceipt, Unavailable
from detent.journal import operations as journal_ops
from detent.journal.verify import check_journals
from detent.message import CONTINUE_TXN
from detent.queue import operations as ops
from detent.queue import reader_operations as reader_ops
from detent.queue.verify import check_queues
from queueworld import used

Clock = Callable[[ClockWorld], None]
"""What happens to the wall clock, once something lasts."""

EARLY, LATE = 10 / 12, 14 / 12
"""By how much a wait may be shorter or longer while the owner follows its wall clock, and some more."""


def nothing(_: ClockWorld) -> None:
    """The clocks agree."""


def blip(ms: int, times: int = 1) -> Clock:
    """The wall clock jumps for a second, and back."""

    def happen(world: ClockWorld) -> None:
        for _ in range(times):
            world.jump(ms)
            world.run(1)
            world.jump(-ms)
            world.run(1)

    return happen


def stays(ms: int) -> Clock:
    """The wall clock jumps and stays there."""

    def happen(world: ClockWorld) -> None:
        world.jump(ms)
        world.run(1)

    return happen


def restart(ms: int) -> Clock:
    """The owner dies and the next one has a wall clock that is that much ahead of the last one's."""

    def happen(world: ClockWorld) -> None:
        world.reopen(world.wall_ms + ms)

    return happen


CLOCKS = {
    "right": nothing,
    "ahead for a second": blip(HOUR),
    "back for a second": blip(-HOUR),
    "ahead and back five times": blip(HOUR, 5),
    "ahead for good": stays(HOUR),
    "back for good": stays(-HOUR),
    "far back for good": stays(-3 * DAY),
    "restarted under one that is back": restart(-HOUR),
    "restarted under one that is far back": restart(-3 * DAY),
}
"""Not among them: a wall clock that is far ahead for good, and an owner that is started under one that is ahead. What
waits ends early then: see `test_far_ahead_for_good_ends_leases_after_ten_minutes` and
`test_time_without_an_owner_counts`."""


@pytest.fixture(params=CLOCKS.values(), ids=CLOCKS.keys())
def happen(request: pytest.FixtureRequest) -> Clock:
    clock: Clock = request.param
    return clock


class Wait:
    """Something begins to last now."""

    def __init__(self, world: ClockWorld) -> None:
        self.world = world
        self.began_ms = world.steady_ms

    def until(self, seconds: float) -> None:
        """So much time has passed since."""
        self.world.run(seconds - (self.world.steady_ms - self.began_ms) / SECOND)


def test_lease_lasts_its_length(happen: Clock) -> None:
    world = ClockWorld()
    world.create(backoff_ms=0)
    world.publish()
    claimed, wait = world.claim(lease_ms=30_000), Wait(world)
    happen(world)
    wait.until(30 * EARLY)
    assert not world.claim().messages
    wait.until(30 * LATE)
    assert world.claim().messages == claimed.messages
    with pytest.raises(StaleReceipt):
        world.commit(used(ops.Ack, claimed))


def test_delay_lasts_its_length(happen: Clock) -> None:
    world = ClockWorld()
    world.create()
    world.publish(delay_ms=30_000)
    wait = Wait(world)
    happen(world)
    wait.until(30 * EARLY)
    assert not world.claim().messages
    wait.until(30 * LATE)
    assert world.claim().messages


def test_back_off_lasts_its_length(happen: Clock) -> None:
    world = ClockWorld()
    world.create(backoff_ms=30_000)
    world.publish()
    world.commit(used(ops.Fail, world.claim()))
    wait = Wait(world)
    happen(world)
    wait.until(30 * EARLY)
    assert not world.claim().messages
    wait.until(30 * LATE)
    assert world.claim().messages


def test_group_keeps_its_order(happen: Clock) -> None:
    world = ClockWorld()
    world.create(group_header="g", backoff_ms=0)
    first, second = world.publish(2, headers=[{"queue": "q", "g": "a"}])
    assert world.claim(lease_ms=30_000).messages == [first]
    wait = Wait(world)
    happen(world)
    wait.until(30 * EARLY)
    assert not world.claim().messages, "nothing of the group while its first is held"
    wait.until(30 * LATE)
    assert world.claim(2).messages == [first, second]


def test_shard_has_one_holder_for_the_length_of_its_lease(happen: Clock) -> None:
    world = ClockWorld()
    world.register(1, "j")
    world.lease("one", ttl_ms=30_000)
    wait = Wait(world)
    happen(world)
    wait.until(30 * EARLY)
    with pytest.raises(Conflict):
        world.lease("two")
    wait.until(2 * 30 * LATE)  # an owner that takes over gives each lease its time again
    world.lease("two")


def test_assigned_messages_stay_assigned(happen: Clock) -> None:
    world = ClockWorld()
    world.create()
    world.publish(3)
    opened = world.commit(reader_ops.OpenReader("q", "r"))[0]
    assigned = reader_ops.Assign("q", "r", opened.generation, 0, 3)
    first = world.commit(assigned)[0]
    happen(world)
    world.run(60)
    assert world.commit(assigned)[0].count == first.count == 3
    assert not world.claim().messages


def test_transaction_is_rolled_back_at_its_deadline(happen: Clock) -> None:
    world = ClockWorld(MINUTE)
    world.commit(journal_ops.CreateJournal("j", span_deadline_ms=HOUR))
    world.stamped("j", [(7, 100, CONTINUE_TXN)])
    wait = Wait(world)
    happen(world)
    wait.until(3600 * EARLY)
    assert world.machine.state("j").aborted_spans == 0
    wait.until(3600 * LATE + 60)
    assert world.machine.state("j").aborted_spans == 1


def test_session_lasts_as_long_as_it_may_be_idle(happen: Clock) -> None:
    world = ClockWorld(MINUTE)
    session = world.engine.new_session()
    world.engine.commit(world.request(journal_ops.Append("j", [b"one"]), session=session, answered=0))
    wait = Wait(world)
    happen(world)
    wait.until(SESSION_IDLE_MS * EARLY / SECOND)
    world.engine.commit(world.request(journal_ops.Append("j", [b"two"]), session=session, answered=0))
    again = Wait(world)
    again.until(SESSION_IDLE_MS * LATE / SECOND + 60)
    with pytest.raises(SessionExpired):
        world.engine.commit(world.request(journal_ops.Append("j", [b"three"]), session=session, answered=0))
    assert world.bodies("j") == [b"one", b"two"]


@pytest.mark.parametrize("clock", [name for name in CLOCKS if "far" not in name])
def test_retention_lasts_its_length(clock: str) -> None:
    """What was published under a clock that was ahead may be kept for longer, but only if it was far ahead."""
    world = ClockWorld(MINUTE)
    world.create()
    world.publish(retention_s=7_200)
    wait = Wait(world)
    CLOCKS[clock](world)
    wait.until(7_200 * EARLY)
    assert world.about().available == 1
    wait.until(7_200 * LATE + 60)
    assert world.about().available == 0


def test_sleep_ends_leases() -> None:
    world = ClockWorld()
    world.create(backoff_ms=0)
    world.publish()
    claimed = world.claim(lease_ms=30_000)
    world.stand(8 * HOUR)
    world.session = world.engine.new_session()
    with pytest.raises(StaleReceipt):
        world.commit(used(ops.Ack, claimed))
    assert world.claim().messages == claimed.messages


# -- clocks that are put right --------------------------------------------------------------------------------------


def test_time_without_an_owner_counts() -> None:
    """It cannot be told from a wall clock that is ahead."""
    world = ClockWorld()
    world.create(backoff_ms=0)
    world.publish()
    world.claim(lease_ms=30_000)
    world.reopen(world.wall_ms + HOUR)
    assert world.claim().messages


def test_far_ahead_for_good_ends_leases_after_ten_minutes() -> None:
    world = ClockWorld()
    world.create(backoff_ms=0)
    world.publish()
    claimed = world.claim(lease_ms=HOUR)
    world.jump(DAY)
    world.run(STEP_AFTER_MS / SECOND)
    world.commit(used(ops.Extend, claimed, lease_ms=HOUR))
    world.run(2)
    assert world.engine.now_ms() == world.wall_ms
    assert world.claim().messages == claimed.messages


def test_owner_steps_back_and_nothing_else_does() -> None:
    """Ten minutes after an owner was begun under the right clock, behind one that was ahead by days."""
    world = ClockWorld()
    right_ms = world.wall_ms
    world.create(backoff_ms=0)
    world.publish(delay_ms=40 * MINUTE)
    world.reopen(right_ms + 3 * DAY)
    world.stamped("j", [(7, 100, CONTINUE_TXN)])
    (lasting,) = world.publish(1)
    claimed = world.claim(lease_ms=30 * MINUTE)
    assert lasting in claimed.messages or world.claim(lease_ms=30 * MINUTE).messages == [lasting]
    (late,) = world.publish(delay_ms=40 * MINUTE)
    world.reopen(right_ms)
    wait = Wait(world)
    world.run(15 * 60)
    assert abs(world.engine.now_ms() - world.wall_ms) < SECOND
    assert not world.claim().messages
    found = [*check_queues(world.writer, Tally()), *check_journals(world.writer, ["j"], Tally())]
    with world.writer.view() as view:
        assert not [*found, *check_engine(view, Tally())]
    wait.until(35 * 60)
    assert lasting in world.claim(9).messages, "the lease has ended"
    assert world.state(late) is not None
    wait.until(50 * 60)
    assert late in world.claim(9).messages, "the delay has ended"


def test_step_back_survives_a_crash_and_a_failed_commit() -> None:
    world = ClockWorld()
    world.create(backoff_ms=0)
    world.publish()
    world.claim(lease_ms=30 * MINUTE)
    world.reopen(world.wall_ms - 3 * DAY)
    world.run(STEP_AFTER_MS / SECOND)
    assert world.engine.time.wants_step_back
    world.writer.fail_before = 2
    for _ in range(2):  # before the step, and when what was set back is written
        with pytest.raises(Unavailable):
            world.run(1)
    world.run(1)
    assert world.engine.now_ms() < world.wall_ms + SECOND
    world.publish(headers=[{"queue": "nowhere"}])
    world.reopen()
    assert world.engine.now_ms() == world.wall_ms
    world.run(25 * 60)
    assert world.claim().messages


def test_answers_are_kept_after_a_step_back() -> None:
    """Sessions that expired under a clock that was ahead do not take those of now along at the next load."""
    world = ClockWorld()
    right_ms = world.wall_ms
    world.reopen(right_ms + 3 * DAY)
    world.append("j", b"old")
    world.stand(SESSION_IDLE_MS + MINUTE)
    world.engine.tick()
    world.reopen(right_ms)
    world.run(STEP_AFTER_MS / SECOND + 60)
    once = world.request(journal_ops.Append("j", [b"once"]), session=world.engine.new_session(), answered=0)
    world.engine.commit(once)
    world.reopen()
    world.engine.commit(once)
    assert world.bodies("j") == [b"old", b"once"]


def test_processes_that_live_for_a_moment_let_time_pass() -> None:
    """A store whose last owner was an hour ahead, used by one command after another."""
    world = ClockWorld()
    world.create(backoff_ms=0)
    world.publish()
    world.claim(lease_ms=MINUTE)
    world.reopen(world.wall_ms - HOUR)
    for _ in range(7):
        world.stand(10 * SECOND)
        world.reopen()
    assert world.claim().messages
