"""Records that a message cannot hold: which they are, and what of them a dead letter keeps."""

from __future__ import annotations

from typing import Any

import pytest

from detent.codec.block import HEADER_BYTES_MAX, HEADERS_MAX, MESSAGE_BYTES_MAX
from detent.errors import Invalid
from detent.journal.operations import Append, check_append
from detent.kafka import FromTopic, mapping, place
from detent.kafka.letters import LEFT, REFUSED, letter_of, why_not
from detent.kafka.mapping import Record
from detent.kafka.place import TopicPlace

GOOD = Record("orders", 3, 7, b"k", b"v", [("a", b"1")], 1_700_000_000_000)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "value": ({"value": b"x" * (MESSAGE_BYTES_MAX + 1)}, f"a value of {MESSAGE_BYTES_MAX + 1} bytes"),
    "key": ({"key": b"x" * (MESSAGE_BYTES_MAX + 1)}, f"a key of {MESSAGE_BYTES_MAX + 1} bytes"),
    "value and key": ({"key": b"k" * 100, "value": b"x" * (MESSAGE_BYTES_MAX - 50)}, "a value of "),
    "long header": ({"headers": [("a", b"y" * HEADER_BYTES_MAX)]}, "1 headers"),
    "many headers": ({"headers": [(f"a{number}", b"") for number in range(HEADERS_MAX)]}, ""),
    "a header without a name": ({"headers": (), "fault": "a header's name is not text"}, "headers"),
}


def test_record_that_fits_is_no_letter() -> None:
    assert why_not(GOOD, origin=True, for_queue=False) is None
    assert why_not(GOOD, origin=True, for_queue=True) is None


@pytest.mark.parametrize("what", BAD)
def test_letter_says_why_and_keeps_what_there_is_room_for(what: str) -> None:
    changes, left = BAD[what]
    record = GOOD._replace(**changes)
    why = why_not(record, origin=True, for_queue=False)
    assert why
    letter = letter_of(record, why)
    check_append(Append("dead", [letter.body], [letter.key], [letter.headers]))
    assert (letter.headers[mapping.PARTITION], letter.headers[mapping.OFFSET]) == ("3", "7")
    assert letter.headers[REFUSED] == why
    assert letter.headers.get(LEFT, "").startswith(left)
    assert letter.body in (record.value, b"")
    assert bool(letter.body) == ("value" not in letter.headers.get(LEFT, ""))


def test_headers_of_a_queue_message_have_less_room() -> None:
    record = GOOD._replace(key=b"k" * 10_000)
    assert why_not(record, origin=True, for_queue=False) is None
    assert "over the limit" in (why_not(record, origin=True, for_queue=True) or "")


def test_letter_of_a_record_without_a_value_says_so() -> None:
    letter = letter_of(GOOD._replace(value=None, headers=[("a", b"y" * HEADER_BYTES_MAX)]), "why " * 1_000)
    assert (letter.body, letter.headers[mapping.TOMBSTONE]) == (b"", "1")
    assert len(letter.headers[REFUSED]) < 2_000


def test_letters_are_counted_beside_what_was_taken() -> None:
    found = place.taken(TopicPlace("t", "id", ((0, 10),)), {0: 20}, 8, 3)
    assert (found.taken, found.letters, found.absent) == (5, 3, 2)


def test_place_of_an_earlier_release_has_no_letters() -> None:
    import msgspec

    older = msgspec.msgpack.encode({"topic": "t", "id": "i", "places": [[0, 7]], "taken": 7})
    assert msgspec.msgpack.decode(older, type=TopicPlace).letters == 0


def test_dead_letters_have_a_journal_of_their_own() -> None:
    with pytest.raises(Invalid, match="a journal of their own"):
        FromTopic("b", topic="t", journal="j", dead_letters="j")
    with pytest.raises(Invalid, match="journal"):
        FromTopic("b", topic="t", journal="j", dead_letters="")
