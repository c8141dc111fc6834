"""How a processor goes on: a function of its record and of the marks, tried on all that a crash can leave behind."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from detent import Conflict, Corrupt, DetentError, LimitExceeded
from detent.processor.records import OutputMark, Owed, Shape, Snapshot, Totals, advanced, confirmed, settled
from detent.processor.records import ProcessorRecord as Record
from detent.processor.records import StepAttempt as Attempt
from detent.processor.recovery import Fresh, Recovery, recover
from detent.shard.operations import CHECKPOINT_BYTES_MAX

IDENTITY, SERIES, OTHER = "1" * 32, "2" * 32, "f" * 32
FRESH = Fresh("a" * 32, "b" * 32)
SHAPE = Shape("stream", "zip", ["left", "right"], ["out@b", "out@c"], "failed@b", "exactly-once", False)
ANY = Shape("stream", "any", ["left", "right"], ["out"], "", "exactly-once", False)
WHOLE = Shape("stream", "one", ["left"], ["out"], "", "exactly-once", True)

JOURNAL = (7, 1_700_000_000_000)
"""Which journal an input is: its number, and when it was made."""

replace = msgspec.structs.replace


def owed(store: str, *bodies: bytes) -> Owed:
    return Owed(store, "out", list(bodies), [None] * len(bodies), [None] * len(bodies))


def record(number: int = 5, attempt: Attempt | None = None, shape: Shape = SHAPE, **more: Any) -> Record:
    """One that has done so many input sets."""
    snapshot = Snapshot(SERIES, number, dict.fromkeys(shape.inputs, number), dict.fromkeys(shape.inputs, JOURNAL))
    return Record(IDENTITY, 1, 0, shape, snapshot, attempt, **more)


def recovered(found: Record | None, marks: Mapping[str, int | None] | None = None, **more: Any) -> Recovery:
    made = {store: None if number is None else OutputMark(IDENTITY, number) for store, number in (marks or {}).items()}
    given: dict[str, Any] = {"shape": SHAPE, "fresh": FRESH, "starts": {"left": 0, "right": 0, "top": 3}, **more}
    return recover("g/p", found, made, given.pop("shape"), **given)


def test_one_that_never_ran_begins_where_its_inputs_do() -> None:
    found = recovered(None, {"b": None}, starts={"left": 4, "right": 0})
    assert found.is_new
    assert found.owed == ()
    assert found.record.snapshot == Snapshot(FRESH.series, 0, {"left": 4, "right": 0})
    assert (found.record.identity, found.record.epoch, found.record.given) == (FRESH.identity, 1, {})


def test_one_with_nothing_open_goes_on_as_it_is() -> None:
    """Nothing is computed anew: positions and key are those of the record."""
    for attempt in (None, Attempt(4, 1, 1, 0, 0), Attempt(4, 1, 0, 0, 1), Attempt(4, 1, 0, 1, 0)):
        for chosen in ([], [("left", 1)]):
            one = record(attempt=attempt, shape=ANY)
            one = replace(one, snapshot=replace(one.snapshot, chosen=chosen))
            assert recovered(one, shape=ANY) == Recovery(one, (), is_new=False)


BOTH = Attempt(4, 1, 1, 0, 0, [owed("b", b"x"), owed("c", b"y")])


@pytest.mark.parametrize(
    ("marks", "left"),
    [
        ({"b": None, "c": None}, ["b", "c"]),
        ({"b": 4, "c": 2}, ["b", "c"]),
        ({"b": 5, "c": 4}, ["c"]),
        ({"b": 0, "c": 5}, ["b"]),
        ({"b": 5, "c": 5}, []),
    ],
)
def test_what_is_owed_is_what_the_marks_do_not_have(marks: dict[str, int | None], left: list[str]) -> None:
    one = record(attempt=BOTH)
    found = recovered(one, marks)
    assert [owed.store for owed in found.owed] == left
    assert found.record == one
    assert not found.is_new


@pytest.mark.parametrize(
    ("one", "marks", "error", "said"),
    [
        (None, {"b": 3}, Conflict, "its graph's store is another"),
        (record(given={"b": 4}), {"b": 3}, Corrupt, "confirmed the outputs of g/p up to 4, and has them up to 3 now"),
        (record(given={"b": 1}), {"b": None}, Corrupt, "has them up to 0 now"),
        (record(5), {"b": 6}, Corrupt, "has outputs of g/p up to 6, and the graph's own store knows of 5"),
        (record(attempt=BOTH), {"b": 5}, Conflict, "owes messages to 'out' in the store 'c'"),
        (replace(record(), identity=OTHER), {"b": 3}, Conflict, "not this one"),
    ],
)
def test_what_does_not_fit_is_loud(
    one: Record | None, marks: dict[str, int | None], error: type[DetentError], said: str
) -> None:
    """And a reset or another shape, asked for at the same time, does not make it quiet."""
    for more in ({}, {"generation": 1, "resets": {"left": 0}}, {"shape": ANY, "migrate": True}):
        with pytest.raises(error, match=said):
            recovered(one, marks, **more)


def test_a_reset_begins_other_deliveries() -> None:
    """From other offsets, under other keys; what was owed is owed, and numbers never go back."""
    one = record(attempt=BOTH)
    one = replace(one, snapshot=replace(one.snapshot, chosen=[("", 2)]), shape=replace(SHAPE, whole=True))
    found = recovered(one, {"b": 5, "c": 0}, shape=one.shape, generation=2, resets={"left": 1, "gone": 9})
    assert found.is_new
    assert found.record.generation == 2
    assert found.record.snapshot == Snapshot(FRESH.series, 5, {"left": 1, "right": 5}, {"right": JOURNAL})
    assert [owed.store for owed in found.owed] == ["c"]
    again = recovered(found.record, {"b": 5, "c": 5}, shape=one.shape, generation=2)
    assert not again.is_new, "a reset counts once"


def test_other_inputs_are_refused_unless_asked_for() -> None:
    one = record(attempt=BOTH)
    shape = replace(SHAPE, inputs=["left", "top"])
    with pytest.raises(Conflict, match=r"migrate=\['p'\]"):
        recovered(one, {"b": 5, "c": 5}, shape=shape)
    found = recovered(one, {"b": 5, "c": 4}, shape=shape, migrate=True)
    assert found.record.snapshot == Snapshot(FRESH.series, 5, {"left": 5, "top": 3}, {"left": JOURNAL})
    assert (found.record.epoch, found.record.shape, found.is_new) == (2, shape, True)
    assert [owed.store for owed in found.owed] == ["c"]
    again = recovered(found.record, {"b": 5, "c": 5}, shape=shape, migrate=True)
    assert not again.is_new, "it is asked for once, and goes on under the same keys then"


@pytest.mark.parametrize("chosen", [[], [("right", 2), ("left", 1)]])
def test_inputs_of_an_any_of_may_change_their_order(chosen: list[tuple[str, int]]) -> None:
    one = record(shape=ANY)
    one = replace(one, snapshot=replace(one.snapshot, chosen=chosen))
    shape = replace(ANY, inputs=ANY.inputs[::-1])
    assert shape != ANY
    found = recovered(one, shape=shape)
    assert found.record == replace(one, epoch=2, shape=shape), "positions, keys and what was chosen stay"
    assert not recovered(found.record, shape=shape).is_new


def test_inputs_of_a_join_keep_their_order() -> None:
    joined = replace(ANY, mode="zip")
    with pytest.raises(Conflict, match=r"migrate=\['p'\]"):
        recovered(record(shape=joined), shape=replace(joined, inputs=joined.inputs[::-1]))


@pytest.mark.parametrize(
    "change", [{"outputs": ["else"]}, {"outputs": []}, {"delivery": "at-most-once"}, {"errors": "failed@c"}]
)
def test_what_is_written_may_change(change: dict[str, Any]) -> None:
    """That is no reason to ask: positions, keys and what was chosen stay."""
    one = record(shape=ANY)
    one = replace(one, snapshot=replace(one.snapshot, chosen=[("right", 2)]))
    found = recovered(one, shape=replace(ANY, **change))
    assert found.record == replace(one, epoch=2, shape=replace(ANY, **change))


@pytest.mark.parametrize(
    ("old", "chosen", "shape", "is_refused"),
    [
        (ANY, [("left", 1)], replace(ANY, inputs=["left", "top"]), False),
        (ANY, [("left", 1)], replace(ANY, inputs=["top", "right", "left"]), False),
        (ANY, [("right", 1)], replace(ANY, inputs=["left", "top"]), True),
        (ANY, [("left", 1), ("right", 1)], replace(ANY, inputs=["left", "top"]), True),
        (ANY, [], replace(ANY, inputs=["left", "top"]), False),
        (ANY, [("left", 1)], replace(ANY, mode="one", inputs=["left"]), True),
        (ANY, [("left", 2)], replace(ANY, whole=True), True),
        (ANY, [], replace(ANY, whole=True), False),
        (WHOLE, [("", 3)], replace(WHOLE, whole=False), True),
        (WHOLE, [("", 3)], replace(WHOLE, outputs=["else"]), False),
        (WHOLE, [], replace(WHOLE, whole=False), False),
        (WHOLE, [("", 3)], replace(WHOLE, mode="any", inputs=["left", "top"]), True),
    ],
)
def test_what_was_chosen_keeps_its_keys(
    old: Shape, chosen: list[tuple[str, int]], shape: Shape, is_refused: bool
) -> None:
    one = record(shape=old)
    one = replace(one, snapshot=replace(one.snapshot, chosen=chosen))
    if is_refused:
        with pytest.raises(Conflict, match="has begun a step"):
            recovered(one, shape=shape, migrate=True)
        return
    found = recovered(one, shape=shape, migrate=True).record.snapshot
    assert found.chosen == chosen
    assert found.number == 5


def test_batches_that_are_taken_whole_from_now_on_have_other_keys() -> None:
    one = record(shape=replace(WHOLE, whole=False))
    with pytest.raises(Conflict, match="in whole batches now"):
        recovered(one, shape=WHOLE)
    assert recovered(one, shape=WHOLE, migrate=True).record.snapshot.series == FRESH.series
    late = replace(one, snapshot=replace(one.snapshot, series="e" * 32))
    found = recovered(late, shape=WHOLE, migrate=True)
    assert found.record.snapshot.series > "e" * 32, "sinks refuse what is older"
    back = recovered(record(shape=WHOLE), shape=replace(WHOLE, whole=False))
    assert back.record.snapshot.series == SERIES, "a batch is chosen durably, so none was begun"


def test_confirmed_and_settled() -> None:
    assert confirmed(record(given={"b": 2})) == {"b": 2}
    assert confirmed(record(attempt=BOTH, given={"b": 2, "d": 1})) == {"b": 5, "c": 5, "d": 1}
    calm = settled(record(attempt=BOTH))
    assert calm.given == {"b": 5, "c": 5}
    assert calm.attempt == replace(BOTH, owed=[])
    assert recovered(calm, {}).owed == (), "nobody has to be asked"
    assert settled(record()) == record()


class Stores:
    """What is durable in the graph's own store and in two others, and what a processor does to it, commit by commit."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.marks: dict[str, OutputMark | None] = {"b": None, "c": None}
        self.logs: dict[str, list[bytes]] = {"b": [], "c": []}

    def recovering(self, shape: Shape = SHAPE, **more: Any) -> Iterator[None]:
        """Each `next` is one commit; whoever stops asking has died."""
        given: dict[str, Any] = {"fresh": FRESH, "starts": {"left": 0, "right": 0}, **more}
        found = recover("g/p", self.record, self.marks, shape, **given)
        yield from self.giving(found.owed, found.record)
        if found.is_new:
            self.record = found.record
            yield

    def giving(self, some: Sequence[Owed], record: Record) -> Iterator[None]:
        for store, parts in groupby(sorted(some, key=lambda one: one.store), key=lambda one: one.store):
            assert record.attempt is not None
            for one in parts:
                self.logs[store] += one.bodies
            self.marks[store] = OutputMark(record.identity, record.attempt.end)
            yield

    def stepping(self, sets: int, stores: Sequence[str]) -> Iterator[None]:
        """A step that gives a message for each set to each of these stores."""
        assert self.record is not None
        before = self.record.snapshot
        numbers = range(before.number, before.number + sets)
        attempt = Attempt(before.number, sets, sets, 0, 0, [owed(to, *[b"%d" % n for n in numbers]) for to in stores])
        positions = {one: at + sets for one, at in before.positions.items()}
        after = replace(before, number=before.number + sets, positions=positions)
        self.record = advanced(self.record, after, attempt)
        yield
        yield from self.giving(attempt.owed, self.record)

    def ending(self) -> Iterator[None]:
        assert self.record is not None
        self.record = settled(self.record)
        yield


def some_of(commits: Iterator[None], count: int) -> None:
    """Do so many of them, and die."""
    for _ in range(count):
        next(commits, None)


def all_of(commits: Iterator[None]) -> None:
    for _ in commits:
        pass


STEPS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([(), ("b",), ("c",), ("b", "c")]), st.none() | st.integers(0, 3)),
    max_size=12,
)
DEATHS = st.lists(st.integers(0, 3), max_size=3)


@given(STEPS, st.lists(DEATHS, min_size=13, max_size=13), st.booleans())
def test_whatever_is_cut_short_each_store_has_everything_once(
    steps: list[tuple[int, tuple[str, ...], int | None]], deaths: list[list[int]], ends: bool
) -> None:
    """Steps with messages for some stores; some of them are cut short after so many commits; the recovery after that is
    cut short as well, a few times. In the end each store has each message once, in order."""
    stores, done = Stores(), 0
    expected: dict[str, list[bytes]] = {"b": [], "c": []}
    all_of(stores.recovering())
    for (sets, to, death), later in zip(steps, deaths, strict=False):
        for store in to:
            expected[store] += [b"%d" % number for number in range(done, done + sets)]
        done += sets
        step = stores.stepping(sets, to)
        next(step)
        if death is None:
            all_of(step)
            if ends:
                all_of(stores.ending())
            continue
        some_of(step, death)
        for count in later:
            some_of(stores.recovering(), count)
        all_of(stores.recovering())
    assert stores.logs == expected
    assert stores.record is not None
    assert stores.record.snapshot.number == stores.record.totals.outputs == done
    before = stores.record
    all_of(stores.recovering())
    assert (stores.record, stores.logs) == (before, expected)


PLACES = st.sampled_from([None, 0, 3, 4, 5])


@given(PLACES, PLACES, st.integers(0, 3), st.booleans(), st.integers(0, 1), st.sampled_from(["left", "nowhere"]))
def test_recovery_can_be_cut_short_anywhere(
    b: int | None, c: int | None, count: int, changed: bool, generation: int, name: str
) -> None:
    """Any marks that a crash may leave, with a reset and with another shape: cut short after any commit and done again
    it comes to the same end."""

    def stores() -> Stores:
        made = Stores()
        made.record = record(attempt=BOTH)
        made.marks = {store: None if n is None else OutputMark(IDENTITY, n) for store, n in (("b", b), ("c", c))}
        return made

    shape = replace(SHAPE, outputs=["else@b"]) if changed else SHAPE
    given: dict[str, Any] = {"shape": shape, "generation": generation, "resets": {name: 1}}
    whole, cut = stores(), stores()
    all_of(whole.recovering(**given))
    some_of(cut.recovering(**given), count)
    all_of(cut.recovering(**given))
    assert vars(cut) == vars(whole)
    all_of(cut.recovering(**given))
    assert vars(cut) == vars(whole)


RICH = record(
    attempt=Attempt(3, 2, 1, 1, 0, [Owed("b", "out", [b"x", b""], [b"k", None], [{"h": "v"}, None])]),
    given={"b": 3},
    totals=Totals(5, 4, 1, 0),
)
EXAMPLES: list[Record | OutputMark] = [
    record(),
    RICH,
    record(shape=ANY),
    OutputMark(IDENTITY, 0),
    OutputMark(SERIES, 1 << 62),
]


def decode(like: Record | OutputMark, data: bytes) -> Record | OutputMark:
    return type(like).decode(data)


@pytest.mark.parametrize("value", EXAMPLES)
def test_values_come_back(value: Record | OutputMark) -> None:
    assert decode(value, value.encode()) == value
    assert value.encode() == value.encode()


@pytest.mark.parametrize("value", EXAMPLES)
def test_anything_else_is_corrupt(value: Record | OutputMark) -> None:
    """Cut at every byte, with each bit wrong, with something behind it, or of the other kind."""
    data = value.encode()
    damaged = [data[:end] for end in range(len(data))]
    damaged += [
        data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)
    ]
    damaged += [data + b"\x00", b"\x00" + data, data + data, b""]
    for one in damaged:
        with pytest.raises(Corrupt):
            decode(value, one)
    with pytest.raises(Corrupt, match="Something else has written"):
        (OutputMark if isinstance(value, Record) else Record).decode(data)


@given(st.binary(max_size=300))
def test_random_bytes_are_corrupt(data: bytes) -> None:
    for value in (RICH, EXAMPLES[-1]):
        with pytest.raises(Corrupt):
            decode(value, data)


def test_nonsense_with_a_right_checksum_is_corrupt() -> None:
    """What a checksum cannot see: a writer that was wrong."""
    chance = random.Random(1)
    values: list[Any] = [[], {}, None, [1, 2], [IDENTITY, -1], [IDENTITY, 1 << 63]]
    contents = [msgspec.msgpack.encode(one) for one in values]
    contents += [msgspec.msgpack.encode([text, 1]) for text in ("", "1" * 31, "1" * 33, "G" * 32, "1" * 32 + "\n")]
    contents += [chance.randbytes(chance.randrange(60)) for _ in range(500)]
    for content in contents:
        for kind, value in ((1, RICH), (2, EXAMPLES[-1])):
            data = bytes([1, kind]) + content
            with pytest.raises(Corrupt):
                decode(value, data + xxhash.xxh64_digest(data))


def test_a_record_that_nobody_would_read_back_is_not_written() -> None:
    big = Attempt(4, 1, 1, 0, 0, [owed("b", bytes(CHECKPOINT_BYTES_MAX))])
    with pytest.raises(LimitExceeded, match="smaller batches"):
        record(attempt=big).encode()
