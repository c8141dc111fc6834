"""Messages as producers and consumers hold them: what was published, what was claimed, the receipt of a delivery."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import msgspec

from detent import spans
from detent.codec.published import FOREVER, URI, Metadata
from detent.durations import Duration, milliseconds
from detent.engine import Operation
from detent.engine.twins import Awaited, Plain, Twin, both
from detent.errors import Invalid, StaleReceipt
from detent.queue import operations as ops
from detent.queue.info import DeadLetter, time_of
from detent.runtime.ground import drive


class Receipt(NamedTuple):
    """The right to say what became of one delivery: queue (the number that this queue and no other has), message,
    delivery. As text it is ``queue-message-delivery``."""

    queue: int
    message: int
    delivery: int

    def __str__(self) -> str:
        return "-".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Read a receipt's text back."""
        parts = text.split("-")
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
            raise Invalid(
                f"{text!r} is no receipt: it is three numbers, as in 3-17-42, and comes with a claimed message"
            )
        return cls(*map(int, parts))


class Published(NamedTuple):
    """What became of one published message. `message` is its number; a duplicate has the number of the first message
    with its dedup key, and says so in `duplicate_of`."""

    message: int
    duplicate_of: int | None = None


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to publish, with all that can be said of it. `body` is bytes; or give a `uri` to where they are.

    `delay` or `visible_at` say when it can be claimed, `retention` how long it may stay at all, `dedup_key` what makes
    it the same message as another.
    """

    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    uri: str | None = None
    created: datetime | None = None
    visible_at: datetime | None = None
    delay: Duration | None = None
    retention: Duration | None = None
    dedup_key: str | None = None


class Readable:
    """What a message says, for the consumer that was given it."""

    __slots__ = ()

    _kind: int
    _data: bytes
    _about: Metadata

    @property
    def body(self) -> bytes:
        """What was published; empty if that was a URI."""
        return b"" if self._kind == URI else self._data

    @property
    def uri(self) -> str | None:
        """Where the body is, if a URI was published."""
        return self._data.decode() if self._kind == URI else None

    @property
    def headers(self) -> dict[str, str]:
        """The headers that it was published with. Each call answers a new dictionary."""
        return dict(self._about.headers)

    @property
    def created(self) -> datetime:
        """When the producer says it was made."""
        return time_of(self._about.created_ms)

    @property
    def received(self) -> datetime:
        """When it was published."""
        return time_of(self._about.received_ms)

    @property
    def visible(self) -> datetime:
        """When it could first be claimed."""
        return time_of(self._about.visible_ms)

    @property
    def retention_s(self) -> int:
        """How long it may stay at all, in seconds; 0 is for ever."""
        return self._about.retention_s

    @property
    def expires(self) -> datetime | None:
        """When its retention ends; None for one that is kept for ever."""
        deadline_ms = self._about.deadline_ms
        return None if deadline_ms == FOREVER else time_of(deadline_ms)

    def json(self) -> Any:
        """The body as JSON."""
        return msgspec.json.decode(self.body)


class _Delivered(Readable, Twin, msgspec.Struct, eq=False, weakref=True):
    """One delivery of a message: the message, and the right to say what became of it until the lease ends. (A struct,
    because claims make thousands of them.)"""

    _store: Any
    queue: str
    _number: int
    id: int
    """The message's number: the same at each delivery, in each queue."""
    fencing_token: int
    """The delivery number. Of two deliveries in a store the later has the higher one, so a write that carries it can be
    refused once a later holder has written."""
    _kind: int
    _data: bytes
    _about: Metadata
    attempts: int
    priority: int
    lease_ms: int
    """When the lease ends, by the owner's time."""
    lease_length_ms: int = 0
    """How long the lease lasts from when it was given. It says more than `lease_ms` where clocks differ."""
    settled: bool = False
    """Whether it was said what became of it."""
    lost: bool = False
    """Whether a worker found the lease gone while the handler runs."""
    earlier_attempts: int = 0
    """How often it was claimed in the queues that gave it up before."""
    dead_letters: list[DeadLetter] = []
    """The queues that gave it up before, the first one first; empty unless it came here as a dead letter."""
    _span: AbstractContextManager[Any] | None = None
    """What its handling is traced by; None before that."""
    _block: AbstractContextManager[Any] = spans.NOTHING
    """The same for its ``with``, which has it unless a worker has."""

    def _processing(self) -> AbstractContextManager[Any]:
        """The span of handling it. There is one, also where the handler of a worker has a ``with`` of its own."""
        if self._span is None:
            self._span = spans.processing(self.queue, [self._about.headers], message=str(self.id))
            return self._span
        return spans.NOTHING

    def _unblock(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        block, self._block = self._block, spans.NOTHING
        block.__exit__(kind, error, trace)

    def _extended(self, result: ops.LeaseExtended) -> None:
        self.lease_ms, self.lease_length_ms = result.lease_ms, result.length_ms

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.receipt}, {len(self.body)} bytes, attempt {self.attempts})"

    @property
    def receipt(self) -> Receipt:
        """The right to say what became of it."""
        return Receipt(self._number, self.id, self.fencing_token)

    @property
    def total_attempts(self) -> int:
        """How often it was claimed, this time and in the queues that gave it up before (SQS:
        ApproximateReceiveCount)."""
        return self.earlier_attempts + self.attempts

    @property
    def lease_until(self) -> datetime:
        """When the lease ends by the owner's time, as far as this object knows."""
        return time_of(self.lease_ms)

    @both
    async def ack(self) -> None:
        """It is done. `StaleReceipt` if the lease has ended: then another consumer has the message, or will."""
        await self._settle(ops.Ack(self._number, [self.id], [self.fencing_token]))

    @both
    async def fail(self, reason: str = "", *, delay: Duration | None = None, final: bool = False) -> None:
        """It did not work: try again after the queue's back-off, or after `delay`; or, with `final`, never."""
        await self._settle(fail_operation(self.receipt, reason, delay, final))

    @both
    async def extend(self, lease: Duration | None = None) -> None:
        """Hold it for longer: from now on for `lease`, or the queue's default."""
        self._extended(await self._do(extend_operation(self.receipt, lease)))

    async def _settle(self, operation: Operation) -> None:
        await self._do(operation)
        self.settled = True

    async def _leave(self, error: BaseException | None) -> None:
        """The block of its ``with`` has ended."""
        if self.settled:
            return
        if error is None:
            await self._settle(ops.Ack(self._number, [self.id], [self.fencing_token]))
        elif isinstance(error, Exception):
            with contextlib.suppress(StaleReceipt):  # the block's own error is the one to see
                await self._settle(fail_operation(self.receipt, reason_of(error), None, False))


class Delivery(_Delivered, Plain):
    """One delivery of a message. `settled` says whether it was said what became of it, `lost` whether a worker
    has found its lease gone while the handler runs.

    >>> for message in queue.claim(10):
    ...     with message:          # acknowledged at the end, failed if the block raises
    ...         handle(message.body)
    """

    def __enter__(self) -> Self:
        self._block = self._processing()
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            drive(self._leave(error))
        finally:
            self._unblock(kind, error, trace)


class AsyncDelivery(_Delivered, Awaited):
    """`Delivery` for asyncio, with ``async with``."""

    async def __aenter__(self) -> Self:
        self._block = self._processing()
        self._block.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._leave(error)
        finally:
            self._unblock(kind, error, trace)


Held = Receipt | _Delivered | str
"""What names a delivery: the message itself, its receipt, or the receipt's text."""


def receipt_of(held: Held) -> Receipt:
    """The receipt of whatever names a delivery."""
    if isinstance(held, _Delivered):
        return held.receipt
    if isinstance(held, Receipt):
        if set(map(type, held)) != {int}:
            raise Invalid(f"{held!r} is no receipt: that is three numbers")
        return held
    if isinstance(held, str):
        return Receipt.parse(held)
    raise Invalid(f"{held!r} is neither a claimed message nor a receipt")


def ack_operations(held: Iterable[Held]) -> list[Operation]:
    """Messages are done: one operation for each queue that they are of."""
    listed: Any = list(held)
    if len(set(map(type, listed))) == 1 and isinstance(listed[0], _Delivered):
        numbers, messages, deliveries = (list(map(field, listed)) for field in _RECEIPT)
    else:
        receipts = list(map(receipt_of, listed))
        numbers, messages, deliveries = ([receipt[part] for receipt in receipts] for part in range(3))
    queues = set(numbers)
    if len(queues) == 1:
        return [ops.Ack(numbers[0], messages, deliveries)]
    groups: dict[int, ops.Ack] = {number: ops.Ack(number, [], []) for number in numbers}
    for number, message, delivery in zip(numbers, messages, deliveries, strict=True):
        groups[number].messages.append(message)
        groups[number].deliveries.append(delivery)
    return list(groups.values())


_RECEIPT: Final = (attrgetter("_number"), attrgetter("id"), attrgetter("fencing_token"))


def fail_operation(receipt: Receipt, reason: str, delay: Duration | None, final: bool) -> ops.Fail:
    """An attempt came to nothing."""
    if final and delay is not None:
        raise Invalid("a message that is given up is not tried again: say final, or a delay")
    if not isinstance(final, bool):
        raise Invalid(f"final is True or False, not {final!r}")
    number, message, delivery = receipt
    return ops.Fail(number, [message], [delivery], reason, None if delay is None else milliseconds(delay), final)


def extend_operation(receipt: Receipt, lease: Duration | None) -> ops.Extend:
    """A lease lasts longer."""
    number, message, delivery = receipt
    return ops.Extend(number, [message], [delivery], None if lease is None else milliseconds(lease))


def reason_of(error: BaseException) -> str:
    """What an exception says, cut to what a reason may hold."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot say what it is still has a name
        text = type(error).__name__
    return text.encode(errors="replace")[: ops.REASON_BYTES_MAX].decode(errors="ignore")
