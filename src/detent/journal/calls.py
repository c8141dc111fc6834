"""From a user's arguments to operations: the part of the API that is the same for sync, async and transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from detent import spans
from detent.codec import block
from detent.durations import Duration, milliseconds
from detent.engine import Operation
from detent.errors import Invalid
from detent.journal import operations as ops
from detent.settings.journal import JOURNAL, JournalSettings

NUMBER_MAX = 1 << 62
PACKED_FROM = 64
"""From this many bodies on, they travel as one piece."""

Entry = bytes | tuple[bytes, bytes | None] | tuple[bytes, bytes | None, Mapping[str, str] | None]
"""What `append_many` takes: a body, or (body, key), or (body, key, headers)."""


def append(journal: str, body: bytes, key: bytes | None, headers: Mapping[str, str] | None) -> ops.Append:
    """One message."""
    headers = spans.with_trace(headers)
    return ops.Append(
        journal,
        [_bytes(body, "a body")],
        None if key is None else [_bytes(key, "a key")],
        None if not headers else [_headers(headers)],
    )


def append_many(journal: str, entries: Iterable[Entry]) -> Operation:
    """Several messages."""
    if isinstance(entries, bytes | bytearray | str):
        raise Invalid("append_many takes a list of bodies; for one message use append")
    entries = list(entries)
    if len(entries) >= PACKED_FROM and type(entries[0]) is bytes and not spans.carried():
        try:
            blob = b"".join(entries)  # type: ignore[arg-type]  # the quickest way to find something else among them
            return ops.AppendPacked(journal, blob, np.fromiter(map(len, entries), "<i4", len(entries)).tobytes())
        except (TypeError, OverflowError):
            pass  # some have keys, or are no bytes: looked at one by one
    return plain_append(journal, entries)


def plain_append(journal: str, entries: Iterable[Entry]) -> ops.Append:
    """Several messages, row by row."""
    bodies: list[bytes] = []
    keys: list[bytes | None] = []
    headers: list[dict[str, str] | None] = []
    for entry in entries:
        if isinstance(entry, tuple):
            if not 1 <= len(entry) <= 3:
                raise Invalid(f"a message is a body, or a tuple of body, key and headers, not of {len(entry)} things")
            body, key, extra = (*entry, None, None)[:3]
            keys += [None] * (len(bodies) - len(keys))
            headers += [None] * (len(bodies) - len(headers))
            keys.append(None if key is None else _bytes(key, "a key"))
            headers.append(_headers(extra) if extra else None)
        else:
            body = entry
        bodies.append(_bytes(body, "a body"))
    rows = len(bodies)
    if spans.carried():
        headers = [spans.with_trace(one) for one in headers + [None] * (rows - len(headers))]  # type: ignore[misc]
    some_keys, some_headers = any(key is not None for key in keys), any(headers)
    return ops.Append(
        journal,
        bodies,
        keys + [None] * (rows - len(keys)) if some_keys else None,
        headers + [None] * (rows - len(headers)) if some_headers else None,
    )


def append_table(journal: str, table: Any) -> Operation:
    """The rows of an Arrow table or record batch with the column body and, if wanted, key and headers."""
    return ops.AppendBatch(journal, block.content_from_arrow(table))


def publisher_deadline(value: Duration) -> int:
    """How long a publisher's pending messages may wait, in milliseconds."""
    deadline_ms = milliseconds(value)
    if deadline_ms > ops.SPAN_DEADLINE_MS_MAX:
        days = ops.SPAN_DEADLINE_MS_MAX // 86_400_000
        raise Invalid(f"pending messages wait at most {days} days for their acknowledgement, not {value}")
    return deadline_ms


def create(journal: str, exist_ok: bool, settings: JournalSettings) -> Operation:
    """A new journal."""
    operation: Operation = ops.CreateJournal(journal, exist_ok=exist_ok, **JOURNAL.stored(journal, settings))
    return operation


def configure(journal: str, settings: JournalSettings) -> Operation:
    """New settings; what is not named stays."""
    operation: Operation = ops.ConfigureJournal(journal, **JOURNAL.stored(journal, settings))
    return operation


def trim(journal: str, before: int) -> Operation:
    """Forget what is below an offset."""
    return ops.TrimJournal(journal, _number(before, "an offset"))


def check_next_offset(journal: str, offset: int) -> Operation:
    """A check of where a journal ends."""
    return ops.CheckHead(journal, _number(offset, "an offset"))


def _number(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
        raise Invalid(f"{what} is a number from 0 to {NUMBER_MAX}, not {value!r}")
    return value


def check_registers(journal: str, expected: Mapping[str, str | None]) -> Operation:
    return ops.CheckRegisters(journal, _registers(expected))


def set_registers(journal: str, values: Mapping[str, str | None]) -> Operation:
    return ops.UpdateRegisters(journal, _registers(values))


def adopt(journal: str, fragments: Sequence[ops.FragmentRef]) -> Operation:
    references: list[Any] = list(fragments)
    if not all(isinstance(one, ops.FragmentRef) for one in references):
        raise Invalid("adopt takes a list of what write_fragment returned")
    return ops.AdoptFragments(journal, references)


def _registers(values: Mapping[str, str | None]) -> dict[str, str | None]:
    untyped: Mapping[Any, Any] = values  # the annotation promises text; a user's dictionary may not
    for name, value in untyped.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise Invalid(f"registers are text, or None for absent: {name!r}={value!r}")
    return dict(values)


def _bytes(value: bytes, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise Invalid(f"{what} is bytes, not {type(value).__name__}; encode text with .encode()")


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    result = dict(headers)
    try:
        ops.check_headers(result)
    except Invalid:
        for name, value in result.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise Invalid(f"headers are text: {name!r} is {type(value).__name__}") from None
        raise
    return result
