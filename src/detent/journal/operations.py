"""The operations on journals that a transaction can hold, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Optional

import msgspec
import numpy as np

from detent import names
from detent.codec import block
from detent.codec.block import HEADER_BYTES_MAX, HEADERS_MAX, MESSAGE_BYTES_MAX
from detent.codec.journal import Listing
from detent.engine import Operation, Result
from detent.engine.operation import OPERATION_WEIGHT
from detent.errors import Invalid, LimitExceeded
from detent.settings.journal import JOURNAL
from detent.settings.setting import NumberFrom0

JOURNALS_MAX: Final = 100_000
"""Their names and settings are kept in memory: about 40 MB."""

APPEND_BYTES_MAX: Final = 64 << 20
"""One append is applied in one piece. What is larger is written as a fragment and adopted."""

APPEND_ROWS_MAX: Final = 1 << 20
MESSAGE_WEIGHT: Final = 64

REGISTERS_MAX: Final = 64
REGISTER_BYTES_MAX: Final = 256
FRAGMENTS_PER_OPERATION_MAX: Final = 10_000

SPAN_DEADLINE_MS_MAX: Final = 90 * 24 * 3600 * 1000
"""The longest deadline that a publisher may ask for its own transactions: an open one holds back its journal's
retention."""


Positive = NumberFrom0


def check_name(name: str) -> None:
    """`Invalid` unless this can be the name of a journal."""
    names.check_name(name, "journal")


class FragmentRef(msgspec.Struct, frozen=True, array_like=True):
    """A written fragment: its id, how many messages and bytes it holds, and the checksum of all its bytes."""

    id: bytes
    rows: Positive
    size: Positive
    checksum: Annotated[int, msgspec.Meta(ge=0)]


class _JournalOperation(Operation, frozen=True, tag=False, array_like=True):
    journal: str


def _with_settings(name: str, doc: str, fields: list[tuple[str, Any, Any]]) -> Any:
    """An operation with the settings of journals; those that came later follow what was there before them."""
    bases, namespace = (_JournalOperation,), {"__doc__": doc}
    return msgspec.defstruct(
        name, fields, bases=bases, namespace=namespace, frozen=True, tag=True, array_like=True, module=__name__
    )


_FIRST: Final = [(one.key, one.stored_as, Listing._field_defaults[one.key]) for one in JOURNAL if not one.later]
_LATER: Final = [(one.key, one.stored_as, Listing._field_defaults[one.key]) for one in JOURNAL if one.later]

CreateJournal: Any = _with_settings(
    "CreateJournal", "Create a journal. Zero means: no limit.", [*_FIRST, ("exist_ok", bool, False), *_LATER]
)
ConfigureJournal: Any = _with_settings(
    "ConfigureJournal",
    "Change settings; None leaves one as it is.",
    [(key, Optional[kind], None) for key, kind, _ in (*_FIRST, *_LATER)],  # noqa: UP045
)


class DeleteJournal(_JournalOperation, frozen=True, tag=True, array_like=True):
    """Delete a journal with all that is in it."""


class Append(_JournalOperation, frozen=True, tag=True, array_like=True):
    """Append messages, committed at once. The owner stamps them inside the order of appends."""

    grows = True
    bodies: list[bytes]
    keys: list[bytes | None] | None = None
    headers: list[dict[str, str] | None] | None = None

    def weight(self) -> int:
        bodies = self.bodies
        size = len(bodies[0]) if len(bodies) == 1 else sum(map(len, bodies))
        return OPERATION_WEIGHT + MESSAGE_WEIGHT * len(bodies) + size + sum(self.extra_bytes())

    def extra_bytes(self) -> list[int]:
        """What keys and headers add to each message; empty when there are none."""
        if self.keys is None and self.headers is None:
            return []
        extra = [0] * len(self.bodies) if self.keys is None else [len(key or b"") for key in self.keys]
        for index, headers in enumerate(self.headers or ()):
            if headers and index < len(extra):
                extra[index] += headers_bytes(headers)
        return extra


class AppendStamped(Append, frozen=True, tag=True, array_like=True):
    """Append messages that carry their own UUIDs: they are sequenced, and duplicates and pending ones held back.

    `producers` are 6 bytes a message, one after another. `begun` is the clock of the first message that the transaction
    of these already has in the journal: unless it is pending there, nothing is appended. With `fresh` nothing is
    appended if any of these messages would be taken for a duplicate. `proof` says that the sender may use the producer:
    see :mod:`detent.journal.producers`. `deadline_ms` is how long the transaction that these begin may stay open, where
    that is longer than the journal says.
    """

    producers: bytes = b""
    clocks: list[Annotated[int, msgspec.Meta(ge=0)]] = msgspec.field(default_factory=list)
    flags: list[Annotated[int, msgspec.Meta(ge=0, le=0x3FF)]] = msgspec.field(default_factory=list)
    begun: Annotated[int, msgspec.Meta(ge=0)] = 0
    fresh: bool = False
    proof: bytes = b""
    deadline_ms: Annotated[int, msgspec.Meta(ge=0, le=SPAN_DEADLINE_MS_MAX)] = 0


class HoldSpan(_JournalOperation, frozen=True, tag=True, array_like=True):
    """Keep what one producer has pending until it is acknowledged: a checkpoint that this transaction appends to the
    journal `holder` promises the acknowledgement with this `clock`. It stands as long as that journal. `proof` is the
    seal of the promise."""

    producer: bytes
    clock: Annotated[int, msgspec.Meta(ge=0)]
    begun: Annotated[int, msgspec.Meta(ge=0)]
    holder: str
    proof: bytes = b""


class AppendPacked(_JournalOperation, frozen=True, tag=True, array_like=True):
    """Append many bodies without keys and headers: all their bytes in a row, and the length of each (int32 LE)."""

    grows = True
    blob: bytes
    sizes: bytes

    def weight(self) -> int:
        return OPERATION_WEIGHT + len(self.blob) + MESSAGE_WEIGHT * len(self.sizes) // 4


class AppendBatch(_JournalOperation, frozen=True, tag=True, array_like=True):
    """Append an Arrow record batch: its IPC form without schema or, within one process, the batch itself.

    `stamped` says whether it carries UUID columns.
    """

    grows = True
    data: bytes
    stamped: bool = False

    def weight(self) -> int:
        return OPERATION_WEIGHT + self.size()

    def size(self) -> int:
        """About how many bytes it has."""
        data: Any = self.data
        return len(data) if isinstance(data, bytes) else int(data.get_total_buffer_size())


class AdoptFragments(_JournalOperation, frozen=True, tag=True, array_like=True):
    """Make the messages of written fragments part of the journal, committed, in this order."""

    grows = True
    fragments: list[FragmentRef]

    def weight(self) -> int:
        return OPERATION_WEIGHT + 64 * len(self.fragments)


class CheckHead(_JournalOperation, frozen=True, tag=True, array_like=True):
    """`Conflict` unless the journal's next committed offset is this."""

    next_offset: Positive


class CheckRegisters(_JournalOperation, frozen=True, tag=True, array_like=True):
    """`Conflict` unless each named register has this value (None: is not set)."""

    expected: dict[str, str | None]


class UpdateRegisters(_JournalOperation, frozen=True, tag=True, array_like=True):
    """Set registers (None: remove one)."""

    values: dict[str, str | None]


class TrimJournal(_JournalOperation, frozen=True, tag=True, array_like=True):
    """Forget the committed messages below an offset."""

    before: Positive


class Retain(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: apply a journal's retention, in one bounded step."""

    journal: int


class AbortSpan(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: roll back a transaction that is past its deadline, and refuse its producer from now on."""

    journal: int
    producer: int


class PruneProducers(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: forget idle producers and raise the journal's clock floor over them."""

    journal: int


class Reap(Operation, frozen=True, tag=True, array_like=True):
    """Housekeeping: remove some records of a deleted journal."""

    journal: int


class RaiseHorizon(Operation, frozen=True, tag=True, array_like=True):
    """Refuse from now on to adopt fragments that were begun before this time."""

    horizon_ms: Positive


class Created(Result, frozen=True, tag=True, array_like=True):
    """A journal's number, and whether it is new."""

    journal: int
    new: bool


class Appended(Result, frozen=True, tag=True, array_like=True):
    """Where an append went.

    `position` is the first of `count` stored rows. `offset` is the first of `committed` committed offsets; pending
    messages and duplicates take none.
    """

    position: int
    count: int
    offset: int
    committed: int


def check_append(operation: Append) -> tuple[int, int, Any]:
    """Refuse what cannot be stored. Answers how many messages there are, about how many bytes they have, and, for
    several, the length of each body."""
    rows = len(operation.bodies)
    if not rows:
        raise Invalid("there is nothing to append")
    if rows > APPEND_ROWS_MAX:
        raise LimitExceeded(f"one append holds at most {APPEND_ROWS_MAX} messages, not {rows}")
    if operation.keys is not None and len(operation.keys) != rows:
        raise Invalid(f"{rows} bodies but {len(operation.keys)} keys")
    if operation.headers is not None:
        if len(operation.headers) != rows:
            raise Invalid(f"{rows} bodies but {len(operation.headers)} headers")
        for headers in operation.headers:
            if headers:
                check_headers(headers)
    if rows == 1:
        total = len(operation.bodies[0]) + sum(operation.extra_bytes())
        _check_sizes(total, total)
        return 1, total, None
    sizes = np.fromiter(map(len, operation.bodies), np.int64, rows)
    total = int(sizes.sum())
    extra = operation.extra_bytes()
    if extra or total > MESSAGE_BYTES_MAX:
        whole = sizes + (np.array(extra, np.int64) if extra else 0)
        total = int(whole.sum())
        _check_sizes(int(whole.max()), total)
    return rows, total, sizes


def unpack(op: AppendPacked) -> list[Any]:
    """The content columns of packed bodies; refused when the lengths do not add up."""
    if len(op.sizes) % 4 or not op.sizes:
        raise Invalid("packed bodies have lengths of 4 bytes each, and at least one")
    if len(op.sizes) > 4 * APPEND_ROWS_MAX:
        raise LimitExceeded(f"one append holds at most {APPEND_ROWS_MAX} messages, not {len(op.sizes) // 4}")
    sizes = np.frombuffer(op.sizes, "<i4").astype(np.int64)
    if int(sizes.min()) < 0 or int(sizes.sum()) != len(op.blob):
        raise Invalid("the lengths of packed bodies do not add up to their bytes")
    _check_sizes(int(sizes.max()), len(op.blob))
    return block.content_of_packed(op.blob, sizes)


def _check_sizes(largest: int, total: int) -> None:
    if largest > MESSAGE_BYTES_MAX:
        raise LimitExceeded(f"a message of {largest} bytes is over the limit of {MESSAGE_BYTES_MAX}")
    if total > APPEND_BYTES_MAX:
        raise LimitExceeded(f"an append of {total} bytes is over the limit of {APPEND_BYTES_MAX}: write a fragment")


def text_bytes(text: str) -> int:
    """How many bytes a text has in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def headers_bytes(headers: Mapping[str, str]) -> int:
    """How many bytes the names and values have in UTF-8. `TypeError` for what is no text."""
    return text_bytes("".join([*headers, *headers.values()]))


def check_headers(headers: dict[str, str]) -> None:
    """Refuse headers that are too many, too long, or no text."""
    if len(headers) > HEADERS_MAX:
        raise LimitExceeded(f"a message has at most {HEADERS_MAX} headers, not {len(headers)}")
    try:
        size = headers_bytes(headers)
    except (TypeError, UnicodeEncodeError) as error:
        raise Invalid(f"header names and values are text: {error}") from error
    if size > HEADER_BYTES_MAX:
        raise LimitExceeded(f"headers of {size} bytes are over the limit of {HEADER_BYTES_MAX}")


def check_register(name: str, value: str | None) -> None:
    """Refuse register names and values that are too long or empty."""
    try:
        fine = 0 < len(name.encode()) <= REGISTER_BYTES_MAX and len((value or "").encode()) <= REGISTER_BYTES_MAX
    except UnicodeEncodeError as error:
        raise Invalid(f"registers are text: {error}") from error
    if not fine:
        raise Invalid(f"a register's name and value have at most {REGISTER_BYTES_MAX} bytes, and the name at least one")
