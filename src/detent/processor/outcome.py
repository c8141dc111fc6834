"""What comes of a step: messages for journals, and how many input sets gave outputs, errors or nothing."""

from __future__ import annotations

import base64
import os
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from detent import spans
from detent.codec.block import MESSAGE_BYTES_MAX, content_batch, header_column
from detent.engine import Operation
from detent.errors import Invalid, LimitExceeded
from detent.finite import encode_json
from detent.journal import Message
from detent.journal import operations as journal_ops
from detent.processor.declaration import JournalPlace
from detent.processor.provenance import HEADER, born_ms, named_inputs
from detent.processor.records import Owed
from detent.processor.step import Out

TYPE: Final = "type"
TOPICS: Final = "topics"
"""Headers that processors filter by; topics are separated by commas."""

ERROR_TYPE: Final = "error"
TRACE_CHARACTERS_MAX: Final = 8_192
MESSAGE_CHARACTERS_MAX: Final = 2_048
BODIES_SHOWN_MAX: Final = 262_144
INPUTS_SHOWN_MAX: Final = 1_000
"""Bodies that an error message repeats, in all, and inputs that it names: the others are where they are."""

SET_BYTES_MAX: Final = 48 << 20
OWED_BYTES_MAX: Final = 8 << 20
"""What one input set may give: an append has its limit, and so has the record that holds what other stores are owed."""

STEP_BYTES_MAX: Final = 4 << 20
"""A step ends early once it has given so much: the rest of its batch is the next one."""

BATCH_FROM: Final = 8
"""From so many messages on they are written as columns, whose limits are checked all at once."""

OneWritten = tuple[JournalPlace, bytes, bytes | None, dict[str, str]]
Written = list[OneWritten]
"""Messages, each with where it goes: place, body, key and headers."""

_HERE: Final = str(Path(__file__).parent) + os.sep

_json: Final = msgspec.json.Encoder(order="deterministic").encode


class JournalOutput:
    """Messages for one journal, in columns."""

    __slots__ = ("bodies", "keys", "tags")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.tags: list[dict[str, str] | str] = []
        """The headers of each. A text is what the one says that all outputs carry, where it has no other: most have
        not, and need no dictionary then."""

    @property
    def headers(self) -> list[dict[str, str] | None]:
        """The headers of each."""
        return [{HEADER: tag} if isinstance(tag, str) else tag for tag in self.tags]

    def operation(self, journal: str) -> Operation:
        """Their append."""
        keys = self.keys if any(key is not None for key in self.keys) else None
        if len(self.bodies) < BATCH_FROM:
            return journal_ops.Append(journal, self.bodies, keys, self.headers)
        tags: list[Any] = self.tags
        headers = header_column(HEADER, tags) if set(map(type, tags)) == {str} else self.headers
        return journal_ops.AppendBatch(journal, content_batch(self.bodies, keys, headers))

    def owed(self, place: JournalPlace) -> Owed:
        """The same, for another store."""
        return Owed(place.store, place.journal, self.bodies, self.keys, self.headers)


class StepOutcome:
    """What a step has come to so far. Input sets are added in order, each whole."""

    def __init__(self) -> None:
        self.outgoing: dict[JournalPlace, JournalOutput] = {}
        self.bytes = 0
        self.outputs = 0
        self.errors = 0
        self.nils = 0

    @property
    def sets(self) -> int:
        """How many input sets are in it."""
        return self.outputs + self.errors + self.nils

    def nothing(self, sets: int = 1) -> None:
        """Input sets that gave nothing."""
        self.nils += sets

    def to(self, place: JournalPlace) -> JournalOutput:
        """The messages for a journal."""
        outgoing = self.outgoing.get(place)
        if outgoing is None:
            outgoing = self.outgoing[place] = JournalOutput()
        return outgoing

    def gave(self, written: Iterable[OneWritten], *, is_error: bool = False) -> None:
        """An input set that gave these messages."""
        empty = True
        for place, body, key, headers in written:
            empty = False
            outgoing = self.to(place)
            self.bytes += _size(body, key, headers)
            outgoing.bodies.append(body)
            outgoing.keys.append(key)
            outgoing.tags.append(headers)
        if is_error:
            self.errors += 1
        elif empty:
            self.nils += 1
        else:
            self.outputs += 1

    def operations(self, store: str = "") -> list[Operation]:
        """The appends to one store."""
        written = ((place, out) for place, out in self.outgoing.items() if out.bodies)
        return [out.operation(place.journal) for place, out in written if place.store == store]

    def owed(self) -> list[Owed]:
        """What is for other stores than the graph's own."""
        return [out.owed(place) for place, out in self.outgoing.items() if place.store and out.bodies]


class AnswerWriter:
    """Turns what a function answered into messages for the processor's outputs."""

    def __init__(self, name: str, outputs: Mapping[str, JournalPlace]) -> None:
        self._outputs = outputs
        self.only = next(iter(outputs.values())) if len(outputs) == 1 else None
        """The output, where there is one."""
        self._prefix = f"1 {name} "

    def stamp(self, key: str, messages: Sequence[Message]) -> str:
        """What each output says of where it comes from."""
        return f"{self._prefix}{key} {born_ms(messages)} {named_inputs(messages)}"

    def begun_stamp(self, series: str) -> str:
        """How all the stamps of a series begin: the number of the input set comes next, and what `origin_of` says."""
        return f"{self._prefix}{series}-"

    def written(
        self, answer: Any, key: str, messages: Sequence[Message], seen: Sequence[Message] | None = None
    ) -> Written:
        """The messages that an answer means. `Invalid` if it means none that could be written. `seen` are those of the
        messages that the function saw, if it did not see all."""
        if answer is None:
            return []
        stamp = self.stamp(key, messages)
        inherited = next((one.key for one in (messages if seen is None else seen) if one.key is not None), None)
        return checked([self._message(out, stamp, inherited) for one in several(answer) for out in self._outs(one)])

    def many(
        self, answers: Iterable[Any], key: str, messages: Sequence[Message], seen: Sequence[Message] | None = None
    ) -> Written:
        """The same for a function that yields."""
        return checked([one for answer in list(answers) for one in self.written(answer, key, messages, seen)])

    def _outs(self, answer: Any) -> list[Out]:
        """One answer as values with their outputs."""
        if isinstance(answer, Out):
            return [answer]
        if self.only is not None:
            return [Out(answer)]
        if not self._outputs:
            raise Invalid(f"a sink answers nothing, not {type(answer).__name__}: make it a stream to write that")
        if not isinstance(answer, dict):
            raise Invalid(
                f"this processor has the outputs {', '.join(self._outputs)}: answer a dictionary of them, or Out(..., "
                f"to='{next(iter(self._outputs))}'), not {type(answer).__name__}"
            )
        found = []
        for to, value in answer.items():
            self._place(to)
            if value is not None:
                found += [_aimed(one, to) if isinstance(one, Out) else Out(one, to=to) for one in several(value)]
        return found

    def _place(self, to: Any) -> JournalPlace:
        if to is None and self.only is not None:
            return self.only
        found = self._outputs.get(to)
        if found is None:
            raise Invalid(f"there is no output {to!r}: this processor has {', '.join(self._outputs) or 'none'}")
        return found

    def _message(self, out: Out, stamp: str, inherited: bytes | None) -> OneWritten:
        key = inherited if out.key is None else key_of(out.key)
        return self._place(out.to), encoded(out.value), key, headers_of(out, stamp)


def key_of(key: Any) -> bytes:
    """A key as bytes."""
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise Invalid(f"a key is bytes or text, not {type(key).__name__}")


def _size(body: bytes, key: bytes | None, headers: Mapping[str, str]) -> int:
    """How many bytes a message has, as its journal counts them."""
    return len(body) + len(key or b"") + journal_ops.headers_bytes(headers)


def several(answer: Any) -> Sequence[Any]:
    """The messages that a list of `Out` means; anything else is one. A list of both is `Invalid`: it would be written
    as one message, with the Outs as JSON."""
    if not isinstance(answer, list | tuple) or not any(type(one) is Out for one in answer):
        return (answer,)
    if not all(type(one) is Out for one in answer):
        raise Invalid("a list of messages has an Out for each of them, and nothing else")
    return answer


def checked(written: Written) -> Written:
    """Messages that can be written; `Invalid` if not, which is the function's error, and no reason to stand still."""
    owed = whole = 0
    for place, body, key, headers in written:
        try:
            journal_ops.check_headers(headers)
        except LimitExceeded as error:
            raise Invalid(f"{error}, with those of the processor") from error
        size = _size(body, key, headers)
        if size > MESSAGE_BYTES_MAX:
            raise Invalid(
                f"a message of {size} bytes for {place}, with headers, is over the limit of {MESSAGE_BYTES_MAX}"
            )
        whole += size
        owed += size if place.store else 0
    if whole > SET_BYTES_MAX or owed > OWED_BYTES_MAX:
        raise Invalid(
            f"{whole} bytes came of one input set, {owed} of them for other stores: the limits are {SET_BYTES_MAX} and "
            f"{OWED_BYTES_MAX}"
        )
    return written


def _aimed(out: Out, to: str) -> Out:
    return Out(out.value, out.key, out.headers, out.type, out.topics, to)


def encoded(value: Any) -> bytes:
    """A value as the body of a message."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    try:
        return encode_json(value, _json)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"{type(value).__name__} does not become JSON, and is not bytes: {error}") from error


def headers_of(out: Out, stamp: str | None = None) -> dict[str, str]:
    """The headers of a message: the user's, its type and topics, and where it comes from."""
    headers = dict(spans.with_trace(out.headers) or {})
    texts = [*headers, *headers.values(), *out.topics, *([] if out.type is None else [out.type])]
    for text in texts:
        if not isinstance(text, str):
            raise Invalid(f"headers, types and topics are text, not {type(text).__name__}")
    if HEADER in headers:
        raise Invalid(f"the header {HEADER!r} is written by processors themselves")
    if out.type is not None:
        headers[TYPE] = out.type
    if out.topics:
        if isinstance(out.topics, str) or any("," in topic for topic in out.topics):
            raise Invalid(f"topics are a list of texts without commas, not {out.topics!r}")
        headers[TOPICS] = ",".join(out.topics)
    if stamp is not None:
        headers[HEADER] = stamp
    return headers


def error_body(processor: str, key: str, error: BaseException, messages: Sequence[Message], attempts: int) -> bytes:
    """What is written to an error journal in the place of an output."""
    trace = "".join(traceback.format_exception(type(error), error, _users_part(error.__traceback__)))
    return _json(
        {
            "processor": processor,
            "key": key,
            "attempts": attempts,
            "error": type(error).__name__,
            "message": text_of(error)[:MESSAGE_CHARACTERS_MAX],
            "trace": _whole_characters(trace[-TRACE_CHARACTERS_MAX:]),
            "inputs": list(_inputs_shown(messages)),
        }
    )


def text_of(error: BaseException, *, notes: bool = False) -> str:
    """What an error says, and with `notes` what was noted on it; some say nothing, and fail instead."""
    try:
        noted = map(str, getattr(error, "__notes__", ())) if notes else ()
        return _whole_characters("; ".join([str(error), *noted]))
    except Exception as other:  # noqa: BLE001 - what went wrong must be told all the same
        return f"str() of this error failed with {type(other).__name__}"


def _whole_characters(text: str) -> str:
    """Text that becomes JSON: file names that are not UTF-8 are in some errors' texts as halves of characters."""
    return text.encode(errors="backslashreplace").decode()


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """A trace from where it leaves this package: the frames before are the same for every error."""
    whole = trace
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    return whole if trace is None else trace


def _inputs_shown(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    room = BODIES_SHOWN_MAX
    for message in messages[:INPUTS_SHOWN_MAX]:
        room -= len(message.body)
        yield _shown(message, whole=room >= 0)


def _shown(message: Message, *, whole: bool) -> dict[str, Any]:
    shown: dict[str, Any] = {"journal": message.journal, "offset": message.offset}
    if message.key is not None:
        shown["key"] = message.key[:256].decode(errors="backslashreplace")
    if not whole:
        return {**shown, "bytes": len(message.body)}
    try:
        return {**shown, "body": message.body.decode()}
    except UnicodeDecodeError:
        return {**shown, "base64": base64.b64encode(message.body).decode()}
