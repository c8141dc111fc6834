"""A world whose owner publishes what schedules have due, with two clocks that the test moves; to the journal `j`, which
takes whatever is published twice.

>>> world = ScheduleWorld(now="2026-03-29T00:00")
>>> world.put(cron="0 6 * * *")
>>> world.at("2026-03-29T06:00")      # time passes until then; the ticks that were published
['2026-03-29T06:00']
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from detent.engine import Engine, OwnerTime
from detent.journal.message import messages_of
from detent.schedule import ID_HEADER, Firing, ScheduleInfo, ScheduleMachine
from detent.schedule import operations as ops
from detent.schedule.handle import put_of
from detent.schedule.info import schedule_info
from queueworld import Queues


def ms(text: str) -> int:
    """A time in UTC, such as ``2026-03-29T01:00``, in milliseconds."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


class ScheduleWorld(Queues):
    """One store with schedules."""

    def __init__(self, *, now: str = "2026-01-01T00:00", **given: Any) -> None:
        self.wall_ms = ms(now)
        self.steady_ms = 7_000_000
        self.seen = 0
        super().__init__(**given)

    def time(self) -> OwnerTime:
        return OwnerTime(lambda: self.wall_ms, lambda: self.steady_ms)

    def _open(self) -> None:
        super()._open()
        self.schedules = ScheduleMachine(self.queues)
        machines = [self.machine, self.queues, self.schedules]
        self.engine = Engine(self.writer, machines, now_ms=self.time(), random=self.random.randbytes)
        self.session = self.engine.new_session()
        self.firing = Firing(self.engine)

    def put(self, name: str = "s", **settings: Any) -> ops.SchedulePut:
        """Make or change a schedule, of the journal `j` unless the test says another place."""
        if "queue" not in settings:
            settings = {"journal": "j", **settings}
        return self.commit(put_of(name, settings))[0]  # type: ignore[arg-type]

    def info(self, name: str = "s") -> ScheduleInfo:
        return schedule_info(self.commit(ops.DescribeSchedules(name=name))[0].schedules[0])

    def fire(self) -> list[str]:
        """Have the owner publish what is due; the ticks that the journal has got by that."""
        while self.schedules.is_due(self.engine.now_ms()):
            self.firing.run()
        self.session = self.engine.new_session()
        return self.new_ticks()

    def new_ticks(self) -> list[str]:
        found = self.ids(self.seen)
        self.seen += len(found)
        return [short(one) for one in found]

    def ids(self, start: int = 0) -> list[str]:
        """The ids of what was published to the journal, from an offset on."""
        end = self.reader.next_offset("j")
        if end == start:
            return []
        return [
            message.headers[ID_HEADER]
            for offset, batch in self.reader.committed("j", start, end)
            for message in messages_of(batch, offset=offset)
        ]

    def stand(self, ms: int) -> None:
        """Time passes, and there is no owner to see it."""
        self.steady_ms += ms
        self.wall_ms += ms

    def at(self, text: str) -> list[str]:
        """Let time pass until then, and publish what is due."""
        self.stand(ms(text) - self.wall_ms)
        return self.fire()

    def each(self, every_ms: int, until: str) -> list[str]:
        """Let time pass in steps, with an owner that publishes what is due at each."""
        found: list[str] = []
        while self.wall_ms < ms(until):
            self.stand(min(every_ms, ms(until) - self.wall_ms))
            self.engine.tick()
            found += self.fire()
        return found

    def jump(self, text: str) -> None:
        """The wall clock is set, and no time has passed."""
        self.wall_ms = ms(text)


def short(id: str) -> str:
    """The tick in an id, without seconds that are none."""
    return id.partition("@")[2].replace("Z", "").replace(".000", "").removesuffix(":00")
