"""What queues must do, in the plainest way: dictionaries, and no cleverness. And what a machine's memory shows of it.

`Model` applies the same operations as the machine. It is told what only the machine can decide (the number of the first
message of a publish, how far a queue that is behind has read), and says everything else by itself.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from detent.codec import log, origin, published
from detent.codec import queue as records
from detent.codec.keys import u32
from detent.codec.published import FOREVER
from detent.codec.queue import NOT_KEPT
from detent.codec.reader import READER
from detent.engine import Done, Operation
from detent.errors import Conflict, Exists, Invalid, NotFound, StaleReceipt
from detent.journal import operations as journal_ops
from detent.kv import View
from detent.queue import QueueMachine, moving, publishing
from detent.queue import operations as ops
from detent.queue import places as places_module
from detent.queue.bucket import BLOCKED, HELD, HIDDEN, READY
from detent.queue.failures import EXPIRE_FAILED
from detent.queue.fair import FairState
from detent.queue.grouped import GroupedState
from detent.queue.holdings import LIVE
from detent.queue.places import EXPIRE, REVEAL
from detent.queue.state import QueueState
from readermodel import Reader, ReaderRules, check_readers, readers_of

FILTERS = {
    "true": lambda headers: True,
    'headers.tier == "gold"': lambda headers: headers.get("tier") == "gold",
    "has(headers.a)": lambda headers: "a" in headers,
}
"""The filters that the model understands; any other text is the default filter of its queue."""

AVAILABLE, IN_FLIGHT, FAILED = "available", "in flight", "failed"


@dataclass(slots=True)
class Message:
    """A message as it was published."""

    number: int
    record: int
    kind: int
    body: bytes
    headers: dict[str, str]
    received_ms: int
    visible_ms: int
    deadline_ms: int


@dataclass(slots=True)
class Entry:
    """A message in a queue."""

    message: int
    priority: int
    order: int
    visible_ms: int
    deadline_ms: int
    group: bytes | None = None
    state: str = AVAILABLE
    attempts: int = 0
    history: list[tuple[int, str, int, str]] = field(default_factory=list)
    delivery: int = 0
    claimed_ms: int = 0
    lease_ms: int = 0
    consumer: str = ""
    failed_ms: int = 0
    reason: str = ""
    earlier: int = 0
    moves: list[ops.DeadLetterMove] = field(default_factory=list)


@dataclass(slots=True)
class Queue:
    """A queue. `cursor` is the first message that it has yet to read of; None if it takes part in publishes."""

    name: str
    number: int
    cursor: int | None
    filter: str
    max_attempts: int = ops.MAX_ATTEMPTS
    lease_ms: int = 30_000
    lease_max_ms: int = 12 * 3600 * 1000
    backoff_ms: int = 1_000
    backoff_max_ms: int = 300_000
    done_retention_s: int = ops.DONE_RETENTION_S
    failed_policy: str = "keep"
    priority_header: str = "priority"
    paused: bool = False
    labels: dict[str, str] = field(default_factory=dict)
    dead_letter: str = ""
    group_header: str = ""
    dead_letter_retention_s: int = 0
    group_overlap: bool = False
    group_fair: bool = False
    entries: dict[int, Entry] = field(default_factory=dict)
    readers: dict[str, Reader] = field(default_factory=dict)
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    forgettable: set[int] = field(default_factory=set)  # done messages that need not be known any more
    next_order: int = 0
    routed: int = 0
    acked: int = 0
    failures: int = 0
    expired: int = 0
    purged: int = 0
    dead_lettered: int = 0

    def matches(self, headers: dict[str, str]) -> bool:
        known = FILTERS.get(self.filter)
        return headers.get("queue") == self.name if known is None else known(headers)

    def priority(self, headers: dict[str, str]) -> int:
        text = headers.get(self.priority_header, "")
        return int(text) if text in map(str, range(256)) else 128

    def group(self, headers: dict[str, str]) -> bytes | None:
        value = headers.get(self.group_header) if self.group_header else None
        return None if value is None else value.encode()[:128]

    def add(self, message: int, priority: int, visible_ms: int, deadline_ms: int, headers: dict[str, str]) -> None:
        assert message not in self.entries, f"message {message} is in {self.name} already"
        group = self.group(headers)
        self.entries[message] = Entry(message, priority, self.next_order, visible_ms, deadline_ms, group)
        self.next_order += 1
        self.routed += 1

    def set(self, settings: ops.Settings) -> None:
        for name in settings.__struct_fields__:
            value = getattr(settings, name)
            if value is not None and name != "description":
                setattr(self, name, value)

    def forgets(self, done_ms: int, now_ms: int) -> bool:
        retention_s = self.done_retention_s
        return retention_s == NOT_KEPT or bool(retention_s and now_ms > done_ms + retention_s * 1000)

    def among(self, *states: str) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.state in states]

    def lines(self) -> list[list[Entry]]:
        """The available messages that may be claimed, behind one another: each group that has none in flight (with
        `group_overlap`, what came before the first one in flight) is a line in the order of coming, and each message in
        no group is one by itself."""
        busy: dict[bytes | None, int] = {}
        for entry in self.among(IN_FLIGHT):
            busy[entry.group] = min(entry.order, busy.get(entry.group, entry.order))
        groups: dict[bytes, list[Entry]] = {}
        alone: list[list[Entry]] = []
        for entry in sorted(self.among(AVAILABLE), key=lambda entry: entry.order):
            if entry.group is None or self.group_fair:
                alone.append([entry])
            elif entry.group not in busy or (self.group_overlap and entry.order < busy[entry.group]):
                groups.setdefault(entry.group, []).append(entry)
        return [*alone, *groups.values()]

    def standing(self, now_ms: int) -> dict[int, int]:
        """How each available message stands."""
        found = {entry.message: BLOCKED for entry in self.among(AVAILABLE)}
        for first, *_ in self.lines():
            found[first.message] = READY if first.visible_ms <= now_ms else HIDDEN
        return found


class Model(ReaderRules):
    """A store's queues."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.messages: dict[int, Message] = {}
        self.queues: dict[str, Queue] = {}
        self.zombies: dict[int, dict[int, int]] = {}  # what deleted queues hold until they are swept away, until when
        self.deleted: list[int] = []
        self.unmatched: set[int] = set()
        self.unread: dict[int, int] = {}  # until when
        self.dedup: dict[str, tuple[int, int]] = {}
        self.window_ms = ops.DEDUP_WINDOW_MS
        self.next_queue = 1
        self.next_delivery = 1
        self.log_end = 0
        self.journal = 0
        self.turns: dict[int, int] = {}

    def copy(self) -> Model:
        copied: Model = pickle.loads(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        return copied

    # -- time and holds -----------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """All that the clock does by itself."""
        self.now_ms = now_ms
        flying = [(entry, queue) for queue in self.queues.values() for entry in queue.among(IN_FLIGHT)]
        for entry, queue in sorted(flying, key=lambda pair: (pair[0].lease_ms, pair[0].delivery)):
            if entry.lease_ms <= now_ms:
                self.end_attempt(queue, entry.message, ops.EXPIRED_REASON, None, False, entry.lease_ms)
        for queue in self.queues.values():
            for entry in queue.among(AVAILABLE, FAILED):
                if entry.deadline_ms < now_ms:
                    queue.expired += 1
                    self.leave(queue, entry.message)
            queue.forgettable.update(m for m, (at_ms, _) in queue.done.items() if queue.forgets(at_ms, now_ms))
        self.unmatched = {message for message in self.unmatched if not self.has_ended(message)}
        self.unread = {message: until_ms for message, until_ms in self.unread.items() if until_ms >= now_ms}

    def has_ended(self, message: int) -> bool:
        """Whether the retention that a message was published with has ended."""
        return self.messages[message].deadline_ms < self.now_ms

    def holders(self, message: int) -> int:
        queues = sum(message in queue.entries for queue in self.queues.values())
        zombies = sum(message in held for held in self.zombies.values())
        return queues + zombies + (message in self.unmatched) + (message in self.unread)

    def first_unread(self) -> int:
        return min((queue.cursor for queue in self.queues.values() if queue.cursor is not None), default=LIVE)

    def leave(self, queue: Queue, message: int) -> None:
        self.released(message, queue.entries.pop(message).deadline_ms)

    def released(self, message: int, deadline_ms: int) -> None:
        """One that nobody has any more stays, if a queue has yet to read of it, until its last holder's deadline."""
        if not self.holders(message) and message >= self.first_unread() and deadline_ms >= self.now_ms:
            self.unread[message] = deadline_ms

    def stored(self) -> set[int]:
        """The messages that must be stored."""
        held = {message for queue in self.queues.values() for message in queue.entries}
        return held.union(self.unmatched, self.unread, *self.zombies.values())

    def read_on(self, queue: Queue, cursor: int | None) -> None:
        """A queue that was behind has read up to there."""
        assert queue.cursor is not None
        end = LIVE if cursor is None else cursor
        for number in sorted(self.stored()):
            message = self.messages[number]
            if queue.cursor <= number < end and not self.has_ended(number) and queue.matches(message.headers):
                priority = queue.priority(message.headers)
                queue.add(number, priority, message.visible_ms, message.deadline_ms, message.headers)
                self.unmatched.discard(number)
                self.unread.pop(number, None)
        queue.cursor = cursor
        self.prune_unread()

    def prune_unread(self) -> None:
        self.unread = {message: at for message, at in self.unread.items() if message >= self.first_unread()}

    def sweep(self, zombies: dict[int, set[int]]) -> None:
        """Deleted queues hold no more than this."""
        for number, held in list(self.zombies.items()):
            left = zombies.get(number, set())
            assert left <= held.keys()
            self.zombies[number] = {message: held[message] for message in left}
            for message in held.keys() - left:
                self.released(message, held[message])
            if number not in zombies:
                del self.zombies[number]

    # -- operations ---------------------------------------------------------------------------------------------

    def apply(self, op: Operation, hint: Any) -> Any:
        """What the operation must answer, or the error it must raise."""
        if isinstance(op, journal_ops.Append):
            self.journal += len(op.bodies)
            return hint
        if isinstance(op, journal_ops.CheckHead):
            if op.next_offset != self.journal:
                raise Conflict("head")
            return hint
        return getattr(self, type(op).__name__.lower())(op, hint)

    def find(self, name: str) -> Queue:
        if name not in self.queues:
            raise NotFound(name)
        return self.queues[name]

    def publish(self, op: ops.Publish, hint: ops.PublishedMessages | None) -> ops.PublishedMessages:
        keys = op.dedup_keys or [None] * len(op.bodies)
        headers = op.headers or [{}]
        headers = headers * len(op.bodies) if len(headers) == 1 else headers
        if op.to:
            queue = self.find(op.to)
            if not all(map(queue.matches, headers)):
                raise Invalid("filter")
            keys = [None if key is None else f"{queue.number}\0{key}" for key in keys]
        self.check_groups(headers)
        self.check_priorities(headers)
        visible_ms = (self.now_ms if op.visible_ms is None else op.visible_ms) + op.delay_ms
        deadline_ms = self.now_ms + op.retention_s * 1000 if op.retention_s else FOREVER
        expires_ms = self.now_ms + max(self.window_ms, op.retention_s * 1000) if op.retention_s else FOREVER
        first = self.log_end if hint is None or not hint.count else hint.first
        assert first >= self.log_end, "a message number was given twice"
        new: list[int] = []
        duplicates: list[tuple[int, int]] = []
        for index, key in enumerate(keys):
            if key is not None and key in self.dedup and self.dedup[key][1] >= self.now_ms:
                duplicates.append((index, self.dedup[key][0]))
                continue
            if key is not None:
                self.dedup[key] = (first + len(new), expires_ms)
            new.append(index)
        if not new:
            return ops.PublishedMessages(0, 0, duplicates)
        kind = published.URI if op.uri else published.BYTES_INLINE
        for place, index in enumerate(new):
            number = first + place
            record = number - place % publishing.RECORD_MESSAGES_MAX
            self.messages[number] = Message(
                number, record, kind, op.bodies[index], headers[index], self.now_ms, visible_ms, deadline_ms
            )
            self.deliver(number)
        self.log_end = first + len(new)
        return ops.PublishedMessages(first, len(new), duplicates)

    def check_groups(self, headers: list[dict[str, str]]) -> None:
        for each in headers:
            for queue in self.queues.values():
                too_long = len(each.get(queue.group_header, "").encode()) > 128
                if too_long and queue.cursor is None and queue.group_header and queue.matches(each):
                    raise Invalid("group")

    def check_priorities(self, headers: list[dict[str, str]]) -> None:
        for each in headers:
            found = {q.priority_header for q in self.queues.values() if q.cursor is None and q.matches(each)}
            for name in found or {"priority"}:
                if each.get(name, "0") not in map(str, range(256)):
                    raise Invalid("priority")

    def deliver(self, number: int) -> None:
        message = self.messages[number]
        targets = [q for q in self.queues.values() if q.cursor is None and q.matches(message.headers)]
        for queue in targets:
            priority = queue.priority(message.headers)
            queue.add(number, priority, message.visible_ms, message.deadline_ms, message.headers)
        if not targets:
            self.unmatched.add(number)

    def choose(self, queue: Queue, count: int) -> list[Entry]:
        """Of those that are first in their lines: by priority, then the group of the one before, then age; every now
        and then the oldest of all."""
        lines = queue.lines()
        turn = self.turns.get(queue.number, 0)
        chosen: list[Entry] = []
        while len(chosen) < count:
            first = [line[0] for line in lines if line and line[0].visible_ms <= self.now_ms]
            if not first:
                break
            fair = turn % places_module.FAIR_EVERY == places_module.FAIR_EVERY - 1
            by_age = fair and (queue.group_fair or len({entry.priority for entry in first}) > 1)
            if queue.group_fair and not by_age:
                flying = Counter(each.group for each in [*queue.among(IN_FLIGHT), *chosen])
                *_, entry = min((each.priority, flying[each.group], each.order, each) for each in first)
                next(line for line in lines if line and line[0] is entry).pop(0)
                chosen.append(entry)
                turn += 1
                continue
            group = chosen[-1].group if chosen and not by_age else None
            keys = [(0 if by_age else e.priority, group is None or e.group != group, e.order, e) for e in first]
            *_, entry = min(keys)
            next(line for line in lines if line and line[0] is entry).pop(0)
            chosen.append(entry)
            turn += 1
        self.turns[queue.number] = turn
        return chosen

    def claim(self, op: ops.Claim, _hint: Any) -> ops.ClaimedMessages:
        queue = self.find(op.queue)
        if not op.count:
            raise Invalid("count")
        length_ms = min(queue.lease_ms if op.lease_ms is None else op.lease_ms, queue.lease_max_ms)
        lease_ms = self.now_ms + length_ms
        chosen = [] if queue.paused else self.choose(queue, op.count)
        first = self.next_delivery if chosen else 0
        for entry in chosen:
            entry.state, entry.attempts, entry.delivery = IN_FLIGHT, entry.attempts + 1, self.next_delivery
            entry.claimed_ms, entry.lease_ms, entry.consumer = self.now_ms, lease_ms, op.consumer
            self.next_delivery += 1
        return ops.ClaimedMessages(
            queue.number,
            lease_ms,
            first,
            [entry.message for entry in chosen],
            [self.messages[entry.message].record for entry in chosen],
            [entry.attempts for entry in chosen],
            bytes(entry.priority for entry in chosen),
            length_ms=length_ms,
            earlier=[entry.earlier for entry in chosen] if any(entry.earlier for entry in chosen) else [],
        )

    def is_current(self, number: int, message: int, delivery: int) -> bool:
        for queue in self.queues.values():
            entry = queue.entries.get(message)
            if queue.number == number and entry is not None and entry.state == IN_FLIGHT:
                return entry.delivery == delivery and self.now_ms < entry.lease_ms < FOREVER
        return False

    def receipts(self, op: ops.Ack | ops.Fail | ops.Extend) -> Queue:
        for message, delivery in zip(op.messages, op.deliveries, strict=True):
            if not self.is_current(op.queue, message, delivery):
                raise StaleReceipt("stale")
        if len(set(op.messages)) < len(op.messages):
            raise Invalid("twice")
        return next(queue for queue in self.queues.values() if queue.number == op.queue)

    def ack(self, op: ops.Ack, _hint: Any) -> Done:
        queue = self.receipts(op)
        for message in op.messages:
            self.done(queue, message)
        return Done()

    def done(self, queue: Queue, message: int) -> None:
        if queue.done_retention_s != NOT_KEPT:
            queue.done[message] = (self.now_ms, queue.entries[message].attempts)
            queue.forgettable.discard(message)
        queue.acked += 1
        self.leave(queue, message)

    def fail(self, op: ops.Fail, _hint: Any) -> Done:
        queue = self.receipts(op)
        for message in op.messages:
            self.end_attempt(queue, message, op.reason, op.delay_ms, op.final)
        return Done()

    def unclaim(self, op: ops.Unclaim, _hint: Any) -> Done:
        held = {
            m for m, delivery in zip(op.messages, op.deliveries, strict=True) if self.is_current(op.queue, m, delivery)
        }
        if not held:
            return self.idle(Done())
        queue = next(queue for queue in self.queues.values() if queue.number == op.queue)
        for message in held:
            entry = queue.entries[message]
            entry.state, entry.attempts = AVAILABLE, entry.attempts - 1
            entry.visible_ms = FOREVER if entry.deadline_ms < self.now_ms else self.now_ms
        return Done()

    def end_attempt(
        self, queue: Queue, message: int, reason: str, delay_ms: int | None, final: bool, ended_ms: int | None = None
    ) -> None:
        entry = queue.entries[message]
        entry.history.append((entry.claimed_ms, entry.consumer, self.now_ms, reason))
        if final or (queue.max_attempts and entry.attempts >= queue.max_attempts):
            queue.failures += 1
            if self.goes_to_dead_letters(queue, message, reason):
                return
            entry.state, entry.failed_ms, entry.reason = FAILED, self.now_ms, reason
            if queue.failed_policy == "discard" and not queue.dead_letter:
                self.leave(queue, message)
            return
        if delay_ms is None:
            delay_ms = min(queue.backoff_ms * 2 ** (entry.attempts - 1), queue.backoff_max_ms)
        entry.state = AVAILABLE
        visible_ms = max(self.now_ms, (self.now_ms if ended_ms is None else ended_ms) + delay_ms)
        entry.visible_ms = FOREVER if entry.deadline_ms < self.now_ms else visible_ms

    def goes_to_dead_letters(self, queue: Queue, message: int, reason: str) -> bool:
        """Moves a message to the dead letter queue, unless there is none, or it has the message, or will read of it."""
        target = self.queues.get(queue.dead_letter)
        if target is None or message in target.entries or (target.cursor is not None and message >= target.cursor):
            return False
        entry = queue.entries.pop(message)
        deadline_ms = entry.deadline_ms
        if target.dead_letter_retention_s:
            deadline_ms = max(deadline_ms, self.now_ms + target.dead_letter_retention_s * 1000)
        visible_ms = FOREVER if deadline_ms < self.now_ms else self.now_ms
        headers = self.messages[message].headers
        target.add(message, target.priority(headers), visible_ms, deadline_ms, headers)
        queue.dead_lettered += 1
        last = ops.DeadLetterMove(
            entry.moves[-1].number + 1 if entry.moves else 1,
            queue.name,
            queue.number,
            self.now_ms,
            entry.attempts,
            entry.delivery,
            reason,
            ends_of(entry.history, origin.MOVE_ATTEMPTS_KEPT),
        )
        came = target.entries[message]
        came.earlier, came.moves = entry.earlier + entry.attempts, ends_of([*entry.moves, last], origin.MOVES_KEPT)
        return True

    def extend(self, op: ops.Extend, _hint: Any) -> ops.LeaseExtended:
        queue = self.receipts(op)
        length_ms = min(queue.lease_ms if op.lease_ms is None else op.lease_ms, queue.lease_max_ms)
        lease_ms = self.now_ms + length_ms
        for message in op.messages:
            queue.entries[message].lease_ms = lease_ms
        return ops.LeaseExtended(lease_ms, length_ms)

    def createqueue(self, op: ops.CreateQueue, _hint: Any) -> ops.QueueCreated:
        if op.queue in self.queues:
            if op.exist_ok:
                return ops.QueueCreated(self.queues[op.queue].number, False)
            raise Exists(op.queue)
        self.check_settings(op.queue, op.settings)
        queue = Queue(op.queue, self.next_queue, None, f'headers.queue == "{op.queue}"')
        queue.set(op.settings)
        self.next_queue += 1
        self.turns[queue.number] = 0
        if op.earliest and self.messages:
            queue.cursor = 0
        elif queue.paused:
            queue.cursor = self.log_end
        self.queues[op.queue] = queue
        return ops.QueueCreated(queue.number, True)

    def check_settings(self, name: str, settings: ops.Settings) -> None:
        if settings.dead_letter == name:
            raise Invalid("itself")
        if settings.dead_letter and settings.dead_letter not in self.queues:
            raise NotFound(settings.dead_letter)
        queue = self.queues.get(name)
        if queue is not None and queue.entries:
            pairs = ((settings.group_header, queue.group_header), (settings.group_fair, queue.group_fair))
            if any(new is not None and new != old for new, old in pairs):
                raise Invalid("groups")

    def configurequeue(self, op: ops.ConfigureQueue, _hint: Any) -> Done:
        queue = self.find(op.queue)
        self.check_settings(op.queue, op.settings)
        queue.set(op.settings)
        if queue.paused and queue.cursor is None:
            queue.cursor = self.log_end
        return Done()

    def deletequeue(self, op: ops.DeleteQueue, _hint: Any) -> Done:
        queue = self.queues.pop(self.find(op.queue).name)
        self.zombies[queue.number] = {message: entry.deadline_ms for message, entry in queue.entries.items()}
        self.deleted.append(queue.number)
        self.forget_keys(queue)
        self.prune_unread()
        return Done()

    def forget_keys(self, queue: Queue) -> None:
        self.dedup = {key: held for key, held in self.dedup.items() if not key.startswith(f"{queue.number}\0")}

    def setdedupwindow(self, op: ops.SetDedupWindow, _hint: Any) -> Done:
        self.window_ms = op.window_ms
        return Done()

    def redrive(self, op: ops.Redrive, _hint: Any) -> ops.Moved:
        source = self.find(op.queue)
        target = source if op.to is None else self.find(op.to)
        failed = sorted(entry.message for entry in source.among(FAILED))
        if op.messages is None:
            step = [message for message in failed if message > op.after]
        else:
            if not set(op.messages) <= set(failed):
                raise NotFound("message")
            step = sorted(set(op.messages))
        more = len(step) > ops.STEP_MESSAGES
        step = step[: ops.STEP_MESSAGES]
        after = step[-1] if step else op.after
        if op.filter is not None:
            step = [message for message in step if FILTERS[op.filter](self.messages[message].headers)]
        if target is not source:
            there = {m for m in step if m in target.entries or (target.cursor is not None and m >= target.cursor)}
            if there and op.messages is not None:
                raise Exists("message")
            step = [message for message in step if message not in there]
        for message in step:
            entry = source.entries.pop(message)
            headers = self.messages[message].headers
            priority = entry.priority if target is source else target.priority(headers)
            target.add(message, priority, self.now_ms, entry.deadline_ms, headers)
            if target is source:
                target.entries[message].earlier, target.entries[message].moves = entry.earlier, entry.moves
        return ops.Moved(len(step), after, more)

    def purge_all(self, name: str, *states: str, keys: bool = False) -> int:
        """All steps of a purge, which leaves what is assigned to readers."""
        queue = self.find(name)
        if keys:
            self.forget_keys(queue)
        going = [each.message for each in queue.among(*states) if each.state != IN_FLIGHT or each.lease_ms < FOREVER]
        for message in going:
            queue.purged += 1
            self.leave(queue, message)
        return len(going)

    # -- what must be seen --------------------------------------------------------------------------------------

    def describe(self, name: str) -> dict[str, Any]:
        queue = self.queues[name]
        standing = queue.standing(self.now_ms)
        ready = [entry for entry in queue.among(AVAILABLE) if standing[entry.message] == READY]
        oldest = min(ready, key=lambda entry: entry.order, default=None)
        priorities: dict[int, int] = {}
        for entry in sorted(ready, key=lambda entry: entry.priority):
            priorities[entry.priority] = priorities.get(entry.priority, 0) + 1
        return {
            "number": queue.number,
            "behind": queue.cursor is not None,
            "available": len(ready),
            "delayed": sum(how == HIDDEN for how in standing.values()),
            "blocked": sum(how == BLOCKED for how in standing.values()),
            "blocked_delayed": sum(
                how == BLOCKED and queue.entries[message].visible_ms > self.now_ms for message, how in standing.items()
            ),
            "in_flight": len(queue.among(IN_FLIGHT)),
            "failed": len(queue.among(FAILED)),
            "routed": queue.routed,
            "acked": queue.acked,
            "failures": queue.failures,
            "expired": queue.expired,
            "purged": queue.purged,
            "dead_lettered": queue.dead_lettered,
            "oldest_ms": 0 if oldest is None else self.messages[oldest.message].received_ms,
            "priorities": priorities,
            "labels": queue.labels,
            "dead_letter": queue.dead_letter,
            "group_header": queue.group_header,
            "dead_letter_retention_s": queue.dead_letter_retention_s,
            "group_overlap": queue.group_overlap,
            "group_fair": queue.group_fair,
        }

    def done_within(self, queue: Queue) -> set[int]:
        """The done messages that the queue must still know of."""
        return queue.done.keys() - queue.forgettable

    def states(self, number: int) -> dict[str, ops.MessageState]:
        """Where a message is, but for queues in which it is done."""
        found = {}
        for queue in self.queues.values():
            entry = queue.entries.get(number)
            if entry is None:
                continue
            about = (entry.attempts, entry.priority)
            state = ops.MessageState(queue.name, entry.state, *about, history=entry.history, moves=entry.moves)
            if entry.state == FAILED:
                changes = {"at_ms": entry.failed_ms, "reason": entry.reason, "delivery": entry.delivery}
            elif entry.state == IN_FLIGHT:
                changes = {"at_ms": entry.lease_ms, "consumer": entry.consumer, "delivery": entry.delivery}
                if entry.lease_ms == FOREVER:
                    changes |= {"state": "assigned", "at_ms": entry.claimed_ms}
            else:
                how = queue.standing(self.now_ms)[number]
                named = {READY: AVAILABLE, HIDDEN: "delayed", BLOCKED: "blocked"}
                changes = {"at_ms": entry.visible_ms, "state": named[how]}
            found[queue.name] = msgspec.structs.replace(state, **changes)
        return found

    def contents(self) -> dict[str, Any]:
        """All that the queues hold, as `contents` finds it in a machine."""
        return {queue.name: self._content(queue) for queue in self.queues.values()}

    def _content(self, queue: Queue) -> dict[str, Any]:
        rows: dict[int, Any] = {}
        failed: dict[int, Any] = {}
        standing = queue.standing(self.now_ms)
        for entry in sorted(queue.entries.values(), key=lambda entry: entry.order):
            message = self.messages[entry.message]
            place = (message.number - message.record, entry.deadline_ms, entry.priority, entry.attempts)
            if entry.state == FAILED:
                failed[entry.message] = (*place, entry.failed_ms, entry.delivery, entry.reason, entry.history)
            elif entry.state == IN_FLIGHT:
                lease = (entry.delivery, entry.claimed_ms, entry.lease_ms, entry.consumer)
                rows[entry.message] = (*place, HELD, entry.group, *lease, entry.history)
            else:
                how = standing[entry.message]
                rows[entry.message] = (*place, how, entry.group, entry.visible_ms, entry.history)
        return {"rows": list(rows.items()), "failed": failed, "behind": queue.cursor is not None}


# -- what a machine's memory shows -----------------------------------------------------------------------------------


def ends_of(items: list[Any], count: int) -> list[Any]:
    """The first one and the newest ones, `count` in all."""
    return items if len(items) <= count else [items[0], *items[1 - count :]]


def held_by(state: QueueState) -> set[int]:
    """The messages that a queue has."""
    return {*state.flights, *state.failed, *(message for message, _ in rows_of(state))}


def rows_of(state: QueueState) -> list[tuple[int, tuple[Any, ...]]]:
    """The messages at all places that are not empty, in order: (message, columns)."""
    found = []
    for number in sorted(state.buckets):
        bucket = state.buckets[number]
        for row, kind in enumerate(bucket.states):
            if kind:
                columns = (
                    number * state.size + row,
                    kind,
                    bucket.priorities[row],
                    0 if kind == HELD else bucket.visible[row],
                    bucket.deadlines[row],
                    bucket.attempts[row],
                    bucket.offsets[row],
                    bucket.counts[row],
                    None if bucket.groups is None else bucket.groups[row],
                )
                found.append((bucket.messages[row], columns))
    return found


def contents(machine: QueueMachine, view: View) -> dict[str, Any]:
    """All that the queues of a machine hold, in the model's terms."""
    found = {}
    for state in machine.queues.values():
        rows = []
        for message, (place, kind, priority, visible_ms, deadline_ms, attempts, offset, _, group) in rows_of(state):
            common = (offset, deadline_ms, priority, attempts)
            history = moving.history(state, message, view)
            if kind == HELD:
                held_at, delivery, grant = state.flights[message]
                assert held_at == place
                lease = (delivery, grant.claimed_ms, grant.lease_ms, grant.consumer)
                rows.append((message, (*common, kind, group, *lease, history)))
            else:
                rows.append((message, (*common, kind, group, visible_ms, history)))
        failed = {
            m: (f.offset, f.deadline_ms, f.priority, f.attempts, f.failed_ms, f.delivery, f.reason, history)
            for m, f in state.failed.items()
            for history in [moving.history(state, m, view)]
        }
        found[state.name] = {"rows": rows, "failed": failed, "behind": state.next_message != LIVE}
    return found


def dump(machine: QueueMachine, view: View) -> dict[str, Any]:
    """All that a machine remembers and must remember after a restart; what is worked out from it again is left out."""
    queues: dict[int, dict[str, Any]] = {}
    for number, state in machine.by_number.items():
        if state.deleted:  # its messages are nobody's any more, in whatever state they are
            queues[number] = {
                "rows": sorted((message, row[0]) for message, row in rows_of(state)),
                "failed": state.failed,
            }
            continue
        rows = rows_of(state)
        done = list(zip(state.done_messages, state.done_times, state.done_attempts, strict=True))
        for _, value in view.scan(*records.queue_range(records.DONE, number)):
            done += [tuple(row) for row in records.decode_done(value).tolist()]
        queues[number] = {
            "name": state.name,
            "config": state.config,
            "cursor": state.cursor,
            "rows": rows,
            "flights": {
                message: (place, delivery, grant.claimed_ms, grant.lease_ms, grant.consumer)
                for message, (place, delivery, grant) in sorted(state.flights.items())
            },
            "failed": dict(sorted(state.failed.items())),
            "ready": dict(sorted(state.ready.items())),
            "hidden": state.hidden,
            "blocked": state.blocked,
            "done": sorted(done),
            "readers": readers_of(machine, number),
            "history": {m: moving.history(state, m, view) for m in sorted({*state.failed, *(m for m, _ in rows)})},
            "origins": {m: moving.origin_of(machine, state, m, view) for m in sorted(state.origins)},
            "earlier": dict(sorted(state.origins.items())),
        }
    messages = sorted({message for queue in queues.values() for message in (*dict(queue["rows"]), *queue["failed"])})
    return {
        "queues": dict(sorted(queues.items())),
        "holds": {message: machine.holdings.count(message) for message in messages},
        "behind": sorted(machine.behind),
        "unread from": machine.holdings.unread_from,
        "segments": list(machine.holdings.segments),
        "live": list(machine.holdings.live),
        "log end": machine.log_end,
        "next": (machine.next_queue, machine.next_delivery),
        "window": machine.dedup_window_ms,
        "names": sorted(machine.queues),
        "deleted": sorted(machine.deleted),
    }


def check_memory(machine: QueueMachine) -> None:
    """What a machine works out from its memory agrees with it: counters, holds, heaps, timers."""
    holds: dict[int, int] = {}
    timers = _timers(machine)
    for number, state in machine.by_number.items():
        held = list(held_by(state))
        rows = rows_of(state)
        assert len(held) == len(rows) + len(state.failed), f"a message is twice in queue {number}"
        assert state.origins.keys() <= set(held), f"queue {number} knows where a message came from that it has not"
        assert not state.origins.keys() & state.old_origins
        assert sorted(state.flights) == sorted(message for message, row in rows if row[1] == HELD)
        for message in held:
            holds[message] = holds.get(message, 0) + 1
        _check_counts(state, rows)
        if not state.deleted:
            _check_timers(state, timers)
        for bucket in state.buckets.values():
            _check_bucket(state, bucket)
        if isinstance(state, GroupedState):
            _check_groups(state, rows)
    check_readers(machine)
    _check_holds(machine, holds)


def _timers(machine: QueueMachine) -> dict[Any, int]:
    found: dict[Any, int] = {}
    wheel = machine.wheel
    entries = [(due, name) for names in wheel._slots.values() for due, name in names]
    for due_ms, name in [*entries, *((due, name) for due, _, name in wheel._near)]:
        found[name] = min(due_ms, found.get(name, due_ms))
    return found


def _check_counts(state: QueueState, rows: list[tuple[int, tuple[int, ...]]]) -> None:
    ready: dict[int, int] = {}
    for _, row in rows:
        if row[1] == READY:
            ready[row[2]] = ready.get(row[2], 0) + 1
    assert state.ready == ready
    assert state.hidden == sum(row[1] == HIDDEN for _, row in rows)
    assert state.blocked == sum(row[1] == BLOCKED for _, row in rows)


def _check_timers(state: QueueState, timers: dict[Any, int]) -> None:
    for message, (place, kind, _, visible_ms, deadline_ms, *_) in rows_of(state):
        bucket = place // state.size
        if kind == HELD:
            grant = state.flights[message][2]
            assert timers.get(grant, FOREVER) <= grant.lease_ms, f"nobody looks after the lease on {message}"
            assert message in grant.held
        if kind == HIDDEN and visible_ms < FOREVER:
            assert timers[REVEAL, state.number, bucket] <= visible_ms, f"nobody reveals {message}"
        if kind in {HIDDEN, READY, BLOCKED} and deadline_ms < FOREVER:
            assert timers[EXPIRE, state.number, bucket] <= deadline_ms + 1, f"nobody lets {message} expire"
    for message, failed in state.failed.items():
        if failed.deadline_ms < FOREVER:
            name = (EXPIRE_FAILED, state.number, state.failed_bucket(message))
            assert timers[name] <= failed.deadline_ms + 1, f"nobody lets {message} expire, which has failed"


def _check_bucket(state: QueueState, bucket: Any) -> None:
    assert bucket.live == sum(kind != 0 for kind in bucket.states)
    claimable = [row for row, kind in enumerate(bucket.states) if kind == READY]
    if bucket.ready is not None:
        places = [place for ready in bucket.ready.values() for place in (*ready.fresh, *ready.returned)]
        offered = [place for place in places if bucket.states[place] == READY]
        assert sorted(offered) == claimable, "what is claimable is not offered once"
    if bucket.groups is not None:
        assert isinstance(state, GroupedState)
        assert bucket.ready is None
        assert len(bucket.groups) == len(bucket)
        return
    for priority in {bucket.priorities[row] for row in claimable}:
        assert bucket.number in state.heads.get(priority, []), "a bucket with claimable messages is not listed"


def _check_groups(state: GroupedState, rows: list[tuple[int, tuple[Any, ...]]]) -> None:
    """Lines and offers are what the places say."""
    if isinstance(state, FairState):
        assert state.flying == Counter(group for _, (_, kind, *_, group) in rows if kind == HELD)
        assert not state._taking
        assert not state.blocked
        assert not state.lines
        for _, (place, kind, priority, *_, group) in rows:
            if kind == READY:
                fair = state.fair[priority]
                assert list(fair._ages).count(place) == list(fair._groups[group]).count(place) == 1
                assert any(turn[2] == group and turn[0] <= state.flying.get(group, 0) for turn in fair._turns)
        return
    waiting: dict[bytes, list[int]] = {}
    held: dict[bytes, list[int]] = {}
    for _, (place, kind, priority, *_, group) in rows:
        if kind == READY:
            offers = state.offers[priority]
            assert offers._heap.count(place) == 1, f"place {place} is claimable and not offered once"
        if group is not None and kind == HELD:
            held.setdefault(group, []).append(place)
        elif group is not None:
            waiting.setdefault(group, []).append(place)
        else:
            assert kind != BLOCKED, f"place {place} is blocked and in no group"
    for offers in state.offers.values():
        assert sorted(offers._listed) == sorted(offers._heap)
    assert state.lines.keys() == waiting.keys() | held.keys(), "a group is remembered that has nothing, or forgotten"
    kinds = {row[0]: row[1] for _, row in rows}
    for group, line in state.lines.items():
        places = waiting.get(group, [])
        assert (line.waiting, line.held) == (len(places), sorted(held.get(group, [])))
        assert list(line.places(state._is_available)) == places
        is_free = bool(places) and not line.is_held_back(places[0], state.config.group_overlap)
        assert line.front == (places[0] if is_free else None)
        assert all((kinds[place] == BLOCKED) == (place != line.front) for place in places)


def _check_holds(machine: QueueMachine, holds: dict[int, int]) -> None:
    live = [0] * len(machine.holdings.segments)
    for message, count in holds.items():
        assert machine.holdings.count(message) == count, f"message {message} is held {count} times"
        live[machine.holdings._segment(message)] += 1
    assert machine.holdings.live == live
    counted = sum(int(np.count_nonzero(chunk)) for chunk in machine.holdings._chunks.values())
    assert counted == len(holds), "a message is held by nobody"


def bodies(view: View) -> dict[int, tuple[int, bytes]]:
    """The bodies in the store by message."""
    found = {}
    for key, value in view.scan(*published.PAYLOAD.range()):
        first = int.from_bytes(key[3:], "big")
        for index, body in published.decode_payloads(value).items():
            found[first + index] = tuple(body)
    return found


def entries(view: View) -> dict[int, list[published.Metadata]]:
    """The entries of the metadata log, by segment."""
    found: dict[int, list[published.Metadata]] = {}
    for number in segments(view):
        values = [value for _, value in view.scan(*log.entry_range(number, published.LOG_KEY))]
        found[number] = [message for value in values for message in published.decode_metadata(value)]
    return found


def segments(view: View) -> list[int]:
    """The segments of the metadata log."""
    return [log.decode_segment_key(key) for key, _ in view.scan(*log.segment_range())]


def records_of(view: View, queue: int) -> list[bytes]:
    """The keys of all records of one queue."""
    kinds = (records.ACTIVE, records.DONE, records.FAILED, records.ATTEMPTS, READER)
    keys = [key for kind in kinds for key, _ in view.scan(*kind.range(u32(queue)))]
    single: Iterable[bytes] = (records.cursor_key(queue), records.deleted_key(queue))
    return [*keys, *(key for key in single if view.get(key) is not None)]
