"""The queues' records: what is written reads back as it was, and the bytes are the ones that the format states."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.codec import journal, published, queue, reader, statelog
from detent.codec.keys import Prefix
from detent.codec.published import BYTES_INLINE, RECORD_MESSAGES_MAX, URI
from detent.codec.queue import AVAILABLE, DONE_MESSAGE, AttemptRecord, Config, Failed, InFlight, QueueCursor, Watermark
from detent.codec.statelog import ClaimStep, Ended, Expired, MoveStep, PublishStep, Routed, Run, Unclaimed
from detent.errors import Corrupt, Invalid, LimitExceeded
from detent.queue.message import Receipt
from unit import golden_queue as golden

U8, U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32, 64))
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
POSITIVE = st.integers(0, (1 << 63) - 1)
TEXT = st.text(max_size=12)
PAYLOADS = st.lists(st.binary(max_size=20), min_size=1, max_size=9)
HEADERS = st.dictionaries(TEXT, TEXT, max_size=4)
GROUP = st.one_of(st.none(), st.binary(max_size=128))
NUMBERS = st.lists(U64, min_size=1, max_size=9)


@st.composite
def runs(draw: Any) -> Run:
    count = draw(st.integers(1, 256))
    offset = draw(st.integers(0, count - 1))
    length = draw(st.integers(1, count - offset))
    return Run(draw(U64), length, offset, count, draw(I64), draw(I64))


RUNS: st.SearchStrategy[Run] = runs()


class TestPayloads:
    @given(st.sampled_from([BYTES_INLINE, URI]), PAYLOADS)
    def test_round_trip(self, kind: int, payloads: list[bytes]) -> None:
        decoded = published.decode_payloads(published.encode_payloads(kind, payloads))
        assert decoded == {index: (kind, payload) for index, payload in enumerate(payloads)}

    @given(PAYLOADS, st.sets(st.integers(0, 11), min_size=1), st.sets(st.integers(0, 11)))
    def test_kept_ones_stay_where_they_were(self, payloads: list[bytes], alive: set[int], later: set[int]) -> None:
        value = published.encode_payloads(BYTES_INLINE, payloads)
        expected = {index: payloads[index] for index in alive if index < len(payloads)}
        for keep in (alive, later & alive):
            expected = {index: data for index, data in expected.items() if index in keep}
            if not expected:
                with pytest.raises(Invalid):
                    published.keep_payloads(value, keep)
                return
            value = published.keep_payloads(value, keep)
            assert {index: data for index, (_, data) in published.decode_payloads(value).items()} == expected

    @given(PAYLOADS, st.sets(st.integers(0, 11), min_size=1), st.lists(st.integers(0, 12), max_size=4))
    def test_looked_up(self, payloads: list[bytes], alive: set[int], wanted: list[int]) -> None:
        value = published.encode_payloads(URI, payloads)
        if len(payloads) in alive:
            value = published.keep_payloads(value, {0, *alive})
        found = published.decode_payloads(value)
        record = published.PayloadRecord(value)
        assert [record.payload(index) for index in wanted] == [found.get(index) for index in wanted]
        assert record.payload(-1) is None
        assert record.is_whole == (list(found) == list(range(len(found))))

    def test_the_largest_record(self) -> None:
        payloads = [b"%d" % index for index in range(RECORD_MESSAGES_MAX)]
        value = published.encode_payloads(BYTES_INLINE, payloads)
        assert len(published.decode_payloads(value)) == len(payloads)
        with pytest.raises(Corrupt):
            published.decode_payloads(b"\x03" + (257).to_bytes(2, "little") + bytes(257 * 7))


class TestMetadata:
    @given(st.integers(0, (1 << 63)), I64, I64, I64, U32, st.lists(HEADERS, min_size=1, max_size=5))
    def test_round_trip(
        self, first: int, created: int, received: int, visible: int, retention: int, headers: list[dict[str, str]]
    ) -> None:
        encoded = [published.encode_headers(one) for one in headers]
        decoded = published.decode_metadata(
            published.encode_metadata(first, created, received, visible, retention, encoded)
        )
        assert [message.headers for message in decoded] == headers
        assert [message.message for message in decoded] == list(range(first, first + len(headers)))
        assert {message[1:5] for message in decoded} == {(created, received, visible, retention)}

    @given(st.integers(0, (1 << 63)), st.integers(1, 300), I64, U32, HEADERS)
    def test_what_all_say_is_stored_once(
        self, first: int, count: int, time: int, retention: int, headers: dict[str, str]
    ) -> None:
        one, times = published.encode_headers(headers), (time, time, time, retention)
        plain = published.encode_plain_metadata(first, count, *times, one)
        assert len(plain) == 2 + 36 + len(one)
        if count > published.RECORD_MESSAGES_MAX:
            with pytest.raises(Corrupt):
                published.decode_metadata(plain)
            return
        listed = published.encode_metadata(first, *times, [one] * count)
        assert published.decode_metadata(plain) == published.decode_metadata(listed)
        entry = published.decode_entry(plain)
        assert (entry.count, entry.first) == (count, published.decode_metadata(listed)[0])
        assert [entry.at(index) is not None for index in (-1, 0, count - 1, count)] == [False, True, True, False]

    @given(st.integers(0, (1 << 64) - 4), st.booleans(), st.lists(HEADERS, min_size=1, max_size=4))
    def test_looked_up(self, first: int, same: bool, headers: list[dict[str, str]]) -> None:
        chosen = headers[:1] * len(headers) if same else headers
        value = published.encode_metadata(first, 1, 2, 3, 4, [published.encode_headers(one) for one in chosen])
        entry, messages = published.decode_entry(value), published.decode_metadata(value)
        assert entry.count == len(messages)
        for index, message in enumerate(messages):
            found = entry.at(index)
            assert found is not None
            assert found[1:] == message[1:]
        assert entry.at(-1) is entry.at(len(messages)) is None

    def test_deadline(self) -> None:
        kept, for_ever = (
            published.decode_metadata(published.encode_plain_metadata(0, 1, 0, 5_000, 0, retention, b"\x00"))[0]
            for retention in (7, 0)
        )
        assert (kept.deadline_ms, for_ever.deadline_ms) == (12_000, published.FOREVER)


IN_FLIGHT = st.builds(InFlight, U64, U8, I64, I64, U16, I64, U64, st.just(0), U16, U16, TEXT)
ROW = st.tuples(U64, U8, I64, I64, U16, st.just(0), U16, U16)


class TestBuckets:
    @given(st.lists(ROW, max_size=6), st.lists(IN_FLIGHT, max_size=6), st.permutations(range(12)))
    def test_active(self, rows: list[tuple[int, ...]], flights: list[InFlight], places: list[int]) -> None:
        available = np.array(rows, AVAILABLE)
        available["place"] = places[: len(rows)]
        in_flight = [flight._replace(place=places[6 + index]) for index, flight in enumerate(flights)]
        decoded, flying, none = queue.decode_active(queue.encode_active(available, in_flight))
        assert (decoded.tolist(), flying, none) == (available.tolist(), in_flight, None)
        names = [None if place % 3 == 0 else b"%d" % (place % 4) for place in places[: len(rows) + len(flights)]]
        decoded, flying, groups = queue.decode_active(queue.encode_active(available, in_flight, names))
        assert (decoded.tolist(), flying) == (available.tolist(), in_flight)
        assert groups == (names if any(names) else None)

    @pytest.mark.parametrize(
        "tail", ["0000", "0100 ff 0000", "0200 01 61 01 61 0000", "0100 01 61 0200", "0100 81" + "61" * 129 + "0100"]
    )
    def test_groups_that_are_none(self, tail: str) -> None:
        value = queue.encode_active(np.zeros(1, AVAILABLE), []) + bytes.fromhex(tail)
        with pytest.raises(Corrupt):
            queue.decode_active(value)

    @given(st.lists(st.tuples(U64, I64, U16), max_size=9))
    def test_done(self, rows: list[tuple[int, int, int]]) -> None:
        messages = np.array(rows, DONE_MESSAGE)
        assert queue.decode_done(queue.encode_done(messages)).tolist() == messages.tolist()

    @given(st.lists(st.builds(Failed, U64, I64, U16, U8, I64, U64, U16, U16, TEXT), max_size=6))
    def test_failed(self, messages: list[Failed]) -> None:
        assert queue.decode_failed(queue.encode_failed(messages)) == messages

    @given(st.lists(st.builds(AttemptRecord, I64, TEXT, I64, TEXT), max_size=6))
    def test_attempts(self, attempts: list[AttemptRecord]) -> None:
        assert queue.decode_attempts(queue.encode_attempts(attempts)) == attempts

    @pytest.mark.parametrize("more", [0, 1, 5])
    def test_the_first_and_the_newest_attempts_are_kept(self, more: int) -> None:
        attempts = [AttemptRecord(number, "", 0, "") for number in range(queue.ATTEMPTS_KEPT + more)]
        kept = queue.decode_attempts(queue.encode_attempts(attempts))
        assert kept == [attempts[0], *attempts[more + 1 :]]
        assert len(kept) == queue.ATTEMPTS_KEPT

    def test_too_many(self) -> None:
        with pytest.raises(LimitExceeded):
            queue.encode_active(np.zeros(1 << 16, AVAILABLE), [])
        with pytest.raises(LimitExceeded):
            queue.encode_done(np.zeros(1 << 16, DONE_MESSAGE))

    @pytest.mark.parametrize("places", [(3, 3), (0, 10_000)])
    def test_impossible_places(self, places: tuple[int, int]) -> None:
        available = np.zeros(2, AVAILABLE)
        available["place"] = places
        with pytest.raises(Corrupt):
            queue.decode_active(queue.encode_active(available, []))


class TestSmallRecords:
    @given(
        st.builds(
            Config,
            TEXT,
            U16,
            U32,
            U32,
            POSITIVE,
            st.integers(0, queue.BUCKET_EXPONENT_MAX),
            POSITIVE,
            POSITIVE,
            POSITIVE,
            POSITIVE,
            TEXT,
            TEXT,
            st.booleans(),
            U32,
            TEXT,
            st.dictionaries(TEXT, TEXT, max_size=4).map(lambda labels: tuple(sorted(labels.items()))),
            TEXT,
            TEXT,
            U32,
        )
    )
    def test_config(self, config: Config) -> None:
        assert Config.decode(config.encode()) == config

    @pytest.mark.parametrize(
        "changes",
        [{"bucket_exponent": 5}, {"number": 1 << 32}, {"generation": 1 << 32}, {"lease_ms": -1}],
        ids=lambda changes: next(iter(changes)),
    )
    def test_settings_out_of_range(self, changes: dict[str, int]) -> None:
        with pytest.raises(Corrupt):
            Config.decode(Config("", 0, 0, 1, 2)._replace(**changes).encode())

    def test_an_unknown_setting(self) -> None:
        value = Config("", 0, 0, 1, 2).encode()
        with pytest.raises(Corrupt):
            Config.decode(value.replace(b"lease_ms", b"leash_ms"))
        with pytest.raises(Corrupt):
            Config.decode(value.replace(b"number", b"nimber"))

    @given(st.builds(QueueCursor, U64, U64, U32, *[U64] * 8))
    def test_cursor(self, cursor: QueueCursor) -> None:
        assert QueueCursor.decode(cursor.encode()) == cursor

    @given(st.builds(Watermark, U64, U64, U64))
    def test_watermark(self, watermark: Watermark) -> None:
        assert Watermark.decode(watermark.encode()) == watermark

    @given(U64, I64)
    def test_dedup(self, message: int, expires_ms: int) -> None:
        assert queue.decode_dedup(queue.encode_dedup(message, expires_ms)) == (message, expires_ms)

    @given(U64)
    def test_number(self, number: int) -> None:
        assert queue.decode_number(queue.number_record(number), "number") == number

    @given(st.builds(Receipt, *[st.integers(0, 10**19 - 1)] * 3))
    def test_receipt(self, receipt: Receipt) -> None:
        assert Receipt.parse(str(receipt)) == receipt


class TestKeys:
    @given(U32, U64, U32, U64)
    def test_queue_keys(self, left: int, number: int, right: int, other: int) -> None:
        key, greater = queue.queue_key(queue.ACTIVE, left, number), queue.queue_key(queue.ACTIVE, right, other)
        assert queue.decode_queue_key(queue.ACTIVE, key) == (left, number)
        assert (key < greater) == ((left, number) < (right, other))
        start, end = queue.queue_range(queue.ACTIVE, left)
        assert start <= key < end
        assert (start <= greater < end) == (left == right)

    @given(U32, U64, U64, U64)
    def test_done_keys(self, number: int, done_ms: int, record: int, later: int) -> None:
        key = queue.done_key(number, done_ms, record)
        assert queue.decode_done_key(key) == (number, done_ms, record)
        assert queue.empty_done_key(number) < key
        assert (key < queue.done_key(number, later, 0)) == ((done_ms, record) < (later, 0))
        start, end = queue.queue_range(queue.DONE, number)
        assert start <= key
        assert done_ms >= 1 << 63 or key < end

    @given(U64, U64)
    def test_dedup_expiry_keys(self, expires_ms: int, message: int) -> None:
        assert queue.decode_dedup_expiry_key(queue.dedup_expiry_key(expires_ms, message)) == (expires_ms, message)

    @pytest.mark.parametrize(
        "decode",
        [lambda key: queue.decode_queue_key(queue.DONE, key), queue.decode_done_key, queue.decode_dedup_expiry_key],
    )
    def test_other_lengths_and_types(self, decode: Callable[[bytes], object]) -> None:
        for key in (
            b"",
            queue.DONE.raw,
            queue.DONE.raw + bytes(40),
            b"\x05\x01\x7f" + bytes(12),
            b"\x05\x02\x03" + bytes(12),
        ):
            with pytest.raises(Corrupt):
                decode(key)


class TestStateLog:
    @given(RUNS, st.lists(st.tuples(U32, U8, GROUP), max_size=5))
    def test_published(self, run: Run, targets: list[tuple[int, int, bytes | None]]) -> None:
        assert list(statelog.decode_steps(statelog.encode_published(run, targets))) == [
            PublishStep(run, tuple(targets))
        ]

    @given(U32, U64, st.lists(st.tuples(RUNS, U8, GROUP), max_size=5))
    def test_routed(self, number: int, next_message: int, found: list[tuple[Run, int, bytes | None]]) -> None:
        value = statelog.encode_routed(number, next_message, found)
        assert list(statelog.decode_steps(value)) == [Routed(number, next_message, tuple(found))]

    @given(U32, I64, I64, U64, TEXT, NUMBERS)
    def test_claimed(
        self, number: int, claimed_ms: int, lease_ms: int, delivery: int, consumer: str, places: list[int]
    ) -> None:
        step = ClaimStep(number, claimed_ms, lease_ms, delivery, consumer, places)
        assert list(statelog.decode_steps(statelog.encode_claimed(*step))) == [step]

    @given(
        st.sampled_from([statelog.ACK, statelog.RETURN, statelog.FAIL, statelog.EXTEND]), U32, I64, I64, TEXT, NUMBERS
    )
    def test_ended(self, kind: int, number: int, at_ms: int, until_ms: int, reason: str, messages: list[int]) -> None:
        step = Ended(kind, number, at_ms, until_ms, reason, messages)
        assert list(statelog.decode_steps(statelog.encode_ended(*step))) == [step]

    @given(U32, I64, NUMBERS)
    def test_unclaimed(self, number: int, at_ms: int, messages: list[int]) -> None:
        step = Unclaimed(number, at_ms, messages)
        assert list(statelog.decode_steps(statelog.encode_unclaimed(*step))) == [step]

    @given(st.sampled_from([statelog.EXPIRE, statelog.EXPIRE_FAILED]), U32, NUMBERS)
    def test_expired(self, kind: int, number: int, found: list[int]) -> None:
        step = Expired(kind, number, found)
        assert list(statelog.decode_steps(statelog.encode_expired(*step))) == [step]

    @given(U32, I64, U32, st.lists(st.tuples(U64, U8, GROUP), min_size=1, max_size=5))
    def test_moved(self, number: int, at_ms: int, target: int, messages: list[tuple[int, int, bytes | None]]) -> None:
        step = MoveStep(number, at_ms, target, tuple(messages))
        assert list(statelog.decode_steps(statelog.encode_moved(*step))) == [step]

    @given(st.lists(st.sampled_from(golden.STEPS), min_size=1, max_size=6))
    def test_steps_stand_one_after_another(self, chosen: list[tuple[str, Any, str]]) -> None:
        value = bytes.fromhex("".join(encoded for _, _, encoded in chosen).replace(" ", ""))
        assert list(statelog.decode_steps(value)) == [step for _, step, _ in chosen]

    @pytest.mark.parametrize(
        "encoded", ["", "00", "7f", "01" + "00" * 30, "04" + "00" * 22 + "00000000", "0a" + "00" * 20]
    )
    def test_refused(self, encoded: str) -> None:
        with pytest.raises(Corrupt):
            list(statelog.decode_steps(bytes.fromhex(encoded)))


class TestGolden:
    """Byte by byte as `docs/format.md` has them, written down without asking the code."""

    @pytest.mark.parametrize(("name", "key", "encoded"), golden.KEYS, ids=[name for name, _, _ in golden.KEYS])
    def test_keys(self, name: str, key: bytes, encoded: str) -> None:
        assert key == bytes.fromhex(encoded), name

    @pytest.mark.parametrize(("name", "value", "encoded"), golden.VALUES, ids=[name for name, _, _ in golden.VALUES])
    def test_values(self, name: str, value: bytes, encoded: str) -> None:
        assert value == bytes.fromhex(encoded), name

    @pytest.mark.parametrize(("name", "step", "encoded"), golden.STEPS, ids=[name for name, _, _ in golden.STEPS])
    def test_steps(self, name: str, step: Any, encoded: str) -> None:
        assert list(statelog.decode_steps(bytes.fromhex(encoded))) == [step], name
        assert golden.encode(step) == bytes.fromhex(encoded)

    @pytest.mark.parametrize(
        ("name", "decode", "encoded", "expected"), golden.DECODED, ids=[name for name, _, _, _ in golden.DECODED]
    )
    def test_decoded(self, name: str, decode: Callable[[bytes], Any], encoded: str, expected: Any) -> None:
        found = decode(bytes.fromhex(encoded))
        assert found == expected, name

    def test_every_type_has_a_vector(self) -> None:
        kinds = {bytes.fromhex(encoded)[2] for _, _, encoded in golden.KEYS if encoded.startswith("05 01")}
        assert kinds == {*range(1, 7), *range(8, 18)}
        assert {bytes.fromhex(encoded)[0] for _, _, encoded in golden.STEPS} == set(range(1, 17))
        assert all(left != right for left, right in pairwise(sorted(encoded for _, _, encoded in golden.KEYS)))

    def test_the_format_names_every_type(self) -> None:
        text = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
        prefixes = [found for codec in (journal, queue, published, reader) for found in vars(codec).values()]
        for prefix in (found for found in prefixes if isinstance(found, Prefix)):
            assert f"| `{prefix.raw.hex(' ')}`" in text, prefix
        for _, _, encoded in golden.STEPS:
            assert f"| `{encoded[:2]}` " in text
        for setting in Config._fields[3:]:
            assert f"`{setting}`" in text
