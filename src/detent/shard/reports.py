"""What is known of shards and members without being written down: who is alive, who holds what until when, how far
each shard says it is. An owner that takes over learns it anew, because members say it again and again. Of progress it
knows what was to be kept: nobody may be left to say it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from detent.codec.shard import Progress, Shard
from detent.engine import Context
from detent.errors import LimitExceeded
from detent.shard import operations as ops
from detent.shard.rows import set_undoably


class Presence(NamedTuple):
    """A member that is alive until a time, and what it says of itself."""

    info: str
    expires_ms: int


class Report(NamedTuple):
    """What a shard says of itself. `stale_fence` is the fence that the shard had when it was last reset: whoever has
    opened it with that one commits progress of the generation before, until it reports that it knows of the reset.
    An owner that takes over does not know that fence, and takes the present one for it."""

    status: str
    error: str
    processed: Mapping[str, int]
    published: Mapping[str, int]
    stale_fence: int
    numbers: Mapping[str, int] = MappingProxyType({})


NOTHING: Final = Report("", "", {}, {}, -1)


class Reports:
    """Members, ends of leases, and reports of shards by their number."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, Presence]] = {}
        self._lease_ends: dict[int, int] = {}
        self._reports: dict[int, Report] = {}

    def clear(self) -> None:
        """Memory was dropped. What had been reported may not have become durable."""
        self._members.clear()
        self._lease_ends.clear()
        self._reports.clear()

    def restore(self, shard: Shard, kept: Progress | None) -> None:
        """Begin with what was written down of a shard. It is further by now, or just there."""
        report = NOTHING._replace(stale_fence=shard.fence) if shard.generation else NOTHING
        if kept is not None:
            is_current = kept.generation == shard.generation
            report = report._replace(
                processed=kept.processed if is_current else {},
                published=kept.published,
                numbers=kept.numbers if is_current else {},
            )
        if report != NOTHING:
            self._reports[shard.number] = report

    def forget(self, name: str, numbers: list[int], context: Context) -> None:
        """The consumer is deleted."""
        set_undoably(self._members, name, None, context)
        for number in numbers:
            set_undoably(self._lease_ends, number, None, context)
            set_undoably(self._reports, number, None, context)

    # -- members ------------------------------------------------------------------------------------------------

    def note_member(self, name: str, member: str, presence: Presence, context: Context) -> None:
        """A member is alive."""
        members = self._members.setdefault(name, {})
        if member not in members:
            self._drop_dead(members, context.now_ms)
            if len(members) >= ops.MEMBERS_MAX:
                raise LimitExceeded(f"the consumer {name!r} has {ops.MEMBERS_MAX} members already")
        set_undoably(members, member, presence, context)

    @staticmethod
    def _drop_dead(members: dict[str, Presence], now_ms: int) -> None:
        for member in [member for member, presence in members.items() if presence.expires_ms <= now_ms]:
            del members[member]

    def drop_member(self, name: str, member: str, context: Context) -> None:
        """A member has left."""
        set_undoably(self._members.get(name, {}), member, None, context)

    def members(self, name: str, now_ms: int) -> list[tuple[str, Presence]]:
        """Those that are alive, by their ids."""
        known = self._members.get(name, {})
        return sorted((member, presence) for member, presence in known.items() if presence.expires_ms > now_ms)

    # -- leases -------------------------------------------------------------------------------------------------

    def lease_end_ms(self, number: int) -> int | None:
        """When a shard's lease ends, if that was said since the store was opened."""
        return self._lease_ends.get(number)

    def set_lease_end(self, number: int, end_ms: int | None, context: Context) -> None:
        """A lease was taken, renewed or given back."""
        set_undoably(self._lease_ends, number, end_ms, context)

    # -- progress -----------------------------------------------------------------------------------------------

    def report(self, number: int) -> Report:
        """What is known of a shard."""
        return self._reports.get(number, NOTHING)

    def note_state(self, number: int, status: str, error: str, context: Context) -> None:
        """A shard of the current generation says how it is. Text that has no UTF-8 form could not be told to others."""
        cut = error[: ops.ERROR_CHARACTERS_MAX].encode(errors="replace").decode()
        set_undoably(
            self._reports, number, self.report(number)._replace(status=status, error=cut, stale_fence=-1), context
        )

    def note_progress(
        self, number: int, processed: Mapping[str, int], published: Mapping[str, int], context: Context
    ) -> None:
        """A shard says how far it is. It may say so late: what is further counts."""
        if not processed and not published:
            return
        known = self.report(number)
        new = known._replace(
            processed=furthest(known.processed, processed) if processed else known.processed,
            published=_newest(furthest(known.published, published)) if published else known.published,
        )
        set_undoably(self._reports, number, new, context)

    def note_journals(self, number: int, numbers: Mapping[str, int], context: Context) -> None:
        """A shard says which journals it reads."""
        known = self.report(number)
        if numbers and dict(numbers) != known.numbers:
            set_undoably(self._reports, number, known._replace(numbers=dict(numbers)), context)

    def note_reset(self, number: int, fence: int, context: Context) -> None:
        """A shard was reset: how far it was says nothing any more."""
        new = self.report(number)._replace(processed={}, numbers={}, stale_fence=fence)
        set_undoably(self._reports, number, new, context)


def furthest(known: Mapping[str, int], new: Mapping[str, int]) -> dict[str, int]:
    """The higher offset of each journal. Those that are in `new` come last."""
    merged = dict(known)
    for journal, offset in new.items():
        merged[journal] = max(merged.pop(journal, 0), offset)
    return merged


def _newest(offsets: dict[str, int]) -> dict[str, int]:
    """Those that were reported last, as many as are kept."""
    surplus = len(offsets) - ops.PUBLISHED_JOURNALS_MAX
    for journal in list(offsets)[: max(0, surplus)]:
        del offsets[journal]
    return offsets
