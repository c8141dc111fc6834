"""Journals and their messages in the JSON of the HTTP API."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from detent.journal import JournalInfo, Message
from detent.journal import operations as ops
from detent.server.models import (
    AnswerModel,
    Base64Text,
    DurationText,
    Encoded,
    Number,
    RequestModel,
    TimeText,
    duration_text,
    time_text,
    to_bytes,
    to_text,
)
from detent.settings.journal import JOURNAL
from detent.settings.setting import Milliseconds, Setting

_LENGTHS: Final[dict[type[Setting], Any]] = {Milliseconds: DurationText}
_EXTENT: Final = (
    "first_offset", "next_offset", "first_position", "next_position", "blocks", "block_bytes", "fragments",
    "fragment_bytes", "open_spans", "aborted_spans",
)  # fmt: skip

JournalDescription: Any = msgspec.defstruct(
    "JournalDescription",
    [
        ("name", str),
        ("id", int),
        ("messages", int),
        ("created", TimeText),
        ("updated", TimeText),
        *((setting.name, _LENGTHS.get(type(setting), setting.stored_as)) for setting in JOURNAL),
        *((name, int) for name in _EXTENT),
        ("registers", dict[str, str] | None),
    ],
    bases=(AnswerModel,),
    namespace={
        "__doc__": "A journal: its extent, its settings and its registers, which are null for a caller that may not "
        "`read`. `messages` are those that can be read: the offsets from `first_offset` up to, not including, "
        "`next_offset`."
    },
    kw_only=True,
    module=__name__,
)


def describe_journal(info: JournalInfo, *, with_registers: bool) -> Any:
    """A journal as an answer has it."""
    settings = {one.name: getattr(info, one.key) for one in JOURNAL}
    lengths = {one.name: duration_text(settings[one.name]) for one in JOURNAL if isinstance(one, Milliseconds)}
    return JournalDescription(
        name=info.name,
        id=info.id,
        messages=info.messages,
        created=time_text(info.created_ms),
        updated=time_text(info.updated_ms),
        registers=info.registers if with_registers else None,
        **{**settings, **lengths},
        **{name: getattr(info, name) for name in _EXTENT},
    )


class JournalList(AnswerModel, kw_only=True):
    """Journals by name; `next` is the name to go on `after`, if there are more."""

    journals: list[JournalDescription]
    next: str | None


class JournalEntry(RequestModel, kw_only=True):
    """A message to append."""

    body: str | Encoded
    key: str | Encoded | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict)

    def parts(self) -> tuple[bytes, bytes | None, dict[str, str] | None]:
        """As the library takes it."""
        key = None if self.key is None else to_bytes(self.key, "a key")
        return to_bytes(self.body, "a body"), key, self.headers or None


class AppendedEntries(AnswerModel, kw_only=True):
    """Where an append went: `offset` is the first of `committed` offsets, `position` the first of `count` stored
    rows."""

    position: int
    count: int
    offset: int
    committed: int


def appended(done: ops.Appended) -> AppendedEntries:
    """Where an append went, as an answer has it."""
    return AppendedEntries(position=done.position, count=done.count, offset=done.offset, committed=done.committed)


class JournalMessage(AnswerModel, kw_only=True):
    """A message of a journal. A committed read numbers them by `offset`; an uncommitted one by `position`, with
    `flags`."""

    offset: int | UnsetType = UNSET
    position: int | UnsetType = UNSET
    flags: int | UnsetType = UNSET
    key: str | Base64Text | None
    headers: dict[str, str]
    body: str | Base64Text
    id: str
    published_at: TimeText


def journal_message(message: Message) -> JournalMessage:
    """A message as an answer has it."""
    committed = message.offset >= 0
    return JournalMessage(
        offset=message.offset if committed else UNSET,
        position=UNSET if committed else message.position,
        flags=UNSET if committed else message.flags,
        key=None if message.key is None else to_text(message.key),
        headers=message.headers,
        body=to_text(message.body),
        id=str(message.uuid),
        published_at=time_text(message.published_ms),
    )


class JournalMessages(AnswerModel, kw_only=True):
    """Some messages. The next read begins at `next`, whether or not there is anything yet."""

    messages: list[JournalMessage]
    next: int


class Registers(AnswerModel, kw_only=True):
    """A journal's registers."""

    registers: dict[str, str]


class RegistersRequest(RequestModel, kw_only=True):
    """Registers to set (null removes one), if those named in `expect` are as expected (null: absent)."""

    set: dict[str, str | None]
    expect: dict[str, str | None] | None = None


class TrimRequest(RequestModel, kw_only=True):
    """The first offset to keep."""

    before: Number


class Trimmed(AnswerModel, kw_only=True):
    """The journal now begins at `first_offset`."""

    journal: str
    first_offset: int
