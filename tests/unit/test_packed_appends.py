"""Packed appends: all bodies in a row, and the length of each. What does not add up is refused and changes nothing."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detent.codec.block import BLOCK_BYTES_TARGET, MESSAGE_BYTES_MAX
from detent.engine import Operation
from detent.errors import Conflict, Invalid, LimitExceeded
from detent.journal import calls
from detent.journal import operations as ops
from detent.journal.appending import BULK_ROWS
from detent.remote import wire
from world import World

EXAMPLES = 2000 if os.environ.get("DETENT_SOAK") else 100

LENGTH_MAX = (1 << 31) - 1


def lengths(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def packed(bodies: list[bytes], journal: str = "j") -> ops.AppendPacked:
    return ops.AppendPacked(journal, b"".join(bodies), lengths(*map(len, bodies)))


def send(world: World, *operations: Operation) -> list[Any]:
    """Commit what came over the wire: the library packs rightly, so whatever is wrong was sent by somebody else."""
    (request,) = wire.decode_requests(wire.encode_requests([world.request(*operations)]))
    return world.engine.commit(request)


def everything(world: World) -> dict[bytes, bytes]:
    """Every record of the store."""
    with world.writer.view() as view:
        return dict(view.scan(b""))


@pytest.fixture
def world() -> World:
    """A store with one message in it."""
    world = World()
    world.append("j", b"kept")
    return world


MALFORMED = {
    "lengths beyond the bytes": (b"abcde", lengths(3, 3)),
    "lengths short of the bytes": (b"abcde", lengths(2, 2)),
    "a length without bytes": (b"", lengths(1)),
    "bytes without a length": (b"abcde", b""),
    "nothing at all": (b"", b""),
    "bytes for a length of zero": (b"a", lengths(0)),
    # The sums are right, so that only a look at each length finds them.
    "a negative length that another makes up for": (b"abcde", lengths(7, -2)),
    "a negative length first": (b"abcde", lengths(-2, 7)),
    "lengths that cancel out": (b"", lengths(5, -5)),
    # In 32 bits these would wrap round to five.
    "lengths that add up in 32 bits": (b"abcde", lengths(LENGTH_MAX, LENGTH_MAX, 7)),
    "the largest length": (b"abcde", lengths(LENGTH_MAX)),
    "the lowest length": (b"abcde", lengths(-LENGTH_MAX - 1)),
    "a length and a byte": (b"abcde", lengths(5) + b"\0"),
    "a length and a half": (b"abcde", lengths(5) + b"\0\0"),
    "less than a length": (b"abcde", lengths(5)[:3]),
    "a single byte of lengths": (b"abcde", b"\5"),
    "the last length cut off": (b"abcde", lengths(2, 3)[:-1]),
    "lengths in the other byte order": (b"abcde", struct.pack(">ii", 2, 3)),
}

TOO_LARGE = {
    "a message over the limit": (bytes(MESSAGE_BYTES_MAX + 1), lengths(MESSAGE_BYTES_MAX + 1)),
    "all of them over the limit": (bytes(ops.APPEND_BYTES_MAX + 1), lengths(*[ops.APPEND_BYTES_MAX // 4] * 4, 1)),
}


UNEVEN = {
    "keys short of the bodies": lambda rows: ops.Append("j", [b"b"] * rows, [b"k"] * (rows - 1)),
    "keys beyond the bodies": lambda rows: ops.Append("j", [b"b"] * rows, [None] * (rows + 1)),
    "headers short of the bodies": lambda rows: ops.Append("j", [b"b"] * rows, None, [{"h": "v"}] * (rows - 1)),
    "headers beyond the bodies": lambda rows: ops.Append("j", [b"b"] * rows, [b"k"] * rows, [{"h": "v"}] * (rows + 1)),
    "a producer too few": lambda rows: stamped(rows, producers=-1),
    "a producer too many": lambda rows: stamped(rows, producers=1),
    "a clock too few": lambda rows: stamped(rows, clocks=-1),
    "a clock too many": lambda rows: stamped(rows, clocks=1),
    "flags too few": lambda rows: stamped(rows, flags=-1),
    "flags too many": lambda rows: stamped(rows, flags=1),
    "part of a producer": lambda rows: stamped(rows, part=1),
}
"""What has columns beside its bodies, with one of them of another count."""


def stamped(rows: int, producers: int = 0, clocks: int = 0, flags: int = 0, part: int = 0) -> ops.AppendStamped:
    names = b"6bytes" * (rows + producers) + bytes(part)
    ticks = [160 * (index + 1) for index in range(rows + clocks)]
    return ops.AppendStamped("j", [b"b"] * rows, None, None, names, ticks, [0] * (rows + flags))


class TestRefusals:
    def check(self, world: World, bad: Operation, error: Any) -> None:
        before = everything(world)
        with pytest.raises(error):
            send(world, bad)
        assert everything(world) == before
        # Memory has not moved either: the next append stands where it would have stood.
        assert send(world, packed([b"good", b""])) == [ops.Appended(1, 2, 1, 2)]
        assert world.append("j", b"last") == ops.Appended(3, 1, 3, 1)
        world.reopen()
        assert world.bodies("j") == [b"kept", b"good", b"", b"last"]

    @pytest.mark.parametrize("case", MALFORMED)
    def test_lengths_that_do_not_add_up(self, world: World, case: str) -> None:
        self.check(world, ops.AppendPacked("j", *MALFORMED[case]), Invalid)

    @pytest.mark.parametrize("case", TOO_LARGE)
    def test_what_is_too_large(self, world: World, case: str) -> None:
        self.check(world, ops.AppendPacked("j", *TOO_LARGE[case]), LimitExceeded)

    # One message, a few, and as many as are put into columns at once: each takes a way of its own.
    @pytest.mark.parametrize("rows", [1, 3, BULK_ROWS])
    @pytest.mark.parametrize("case", UNEVEN)
    def test_columns_of_another_count_than_the_bodies(self, world: World, case: str, rows: int) -> None:
        self.check(world, UNEVEN[case](rows), Invalid)

    def test_more_rows_than_one_append_holds(self, world: World) -> None:
        too_many = ops.AppendPacked("j", b"", bytes(4 * (ops.APPEND_ROWS_MAX + 1)))
        self.check(world, too_many, (Invalid, LimitExceeded))

    def test_the_limits_themselves_are_allowed(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """Low limits, so that the last allowed and the first refused are a byte or a row apart."""
        monkeypatch.setattr(ops, "APPEND_ROWS_MAX", 4)
        monkeypatch.setattr(ops, "MESSAGE_BYTES_MAX", 6)
        monkeypatch.setattr(ops, "APPEND_BYTES_MAX", 10)
        for refused in ([b"1"] * 5, [b"1234567"], [b"123456", b"12345"]):
            with pytest.raises((Invalid, LimitExceeded)):
                send(world, packed(refused))
        for allowed in ([b"1"] * 4, [b"123456"], [b"123456", b"1234"]):
            send(world, packed(allowed))
        assert world.bodies("j")[1:] == [*[b"1"] * 4, b"123456", b"123456", b"1234"]

    @pytest.mark.parametrize("name", ["", "bad name", "a//b", "x" * 201])
    def test_a_name_that_no_journal_can_have(self, world: World, name: str) -> None:
        before = everything(world)
        with pytest.raises(Invalid, match="journal name"):
            send(world, packed([b"a"], name))
        assert everything(world) == before

    def test_no_journal_is_created_for_it(self, world: World) -> None:
        """The first append to a name creates the journal, and a refused one is no append."""
        with pytest.raises(Invalid):
            send(world, ops.AppendPacked("new", *MALFORMED["lengths beyond the bytes"]))
        assert world.reader.names() == ["j"]
        assert send(world, packed([b"a"], "new")) == [ops.Appended(0, 1, 0, 1)]

    def test_the_rest_of_its_transaction_goes_too(self, world: World) -> None:
        before = everything(world)
        with pytest.raises(Invalid):
            send(
                world,
                packed([b"before"]),
                ops.UpdateRegisters("j", {"a": "1"}),
                packed([b"elsewhere"], "new"),
                ops.AppendPacked("j", *MALFORMED["lengths short of the bytes"]),
                packed([b"after"]),
            )
        assert everything(world) == before
        assert send(world, packed([b"next"])) == [ops.Appended(1, 1, 1, 1)]

    def test_a_good_one_is_taken_back_with_its_transaction(self, world: World) -> None:
        before = everything(world)
        with pytest.raises(Conflict):
            send(world, packed([b"a", b"b"]), packed([b"c"], "new"), ops.CheckHead("j", 99))
        assert everything(world) == before
        assert send(world, packed([b"next"])) == [ops.Appended(1, 1, 1, 1)]
        world.reopen()
        assert world.bodies("j") == [b"kept", b"next"]

    def test_others_in_the_same_group_are_served(self, world: World) -> None:
        tickets = world.group(
            world.request(packed([b"a", b"b"]), answered=0),
            world.request(ops.AppendPacked("j", *MALFORMED["lengths that cancel out"]), answered=0),
            world.request(ops.Append("j", [b"c"]), answered=0),
            world.request(packed([b"d"]), answered=0),
        )
        assert [type(ticket.error) for ticket in tickets] == [type(None), Invalid, type(None), type(None)]
        assert world.bodies("j") == [b"kept", b"a", b"b", b"c", b"d"]


class TestTheSameAsOneByOne:
    def check(self, bodies: list[bytes], operation: Operation) -> None:
        """Two stores of one seed hand out the same producers and clocks, so that whole messages can be compared."""
        together, alone = World(seed=7), World(seed=7)
        for world in (together, alone):
            world.append("j", b"before")
        rows = len(bodies)
        assert send(together, operation) == [ops.Appended(1, rows, 1, rows)]
        for body in bodies:
            alone.append("j", body)
        for world in (together, alone):
            world.append("j", b"after")
            world.reopen()
            world.append("j", b"another owner's")
        assert together.bodies("j") == [b"before", *bodies, b"after", b"another owner's"]
        assert together.committed("j") == alone.committed("j")
        assert together.raw("j") == alone.raw("j")
        found, expected = together.reader.info("j"), alone.reader.info("j")
        assert (found.next_offset, found.next_position) == (expected.next_offset, expected.next_position)

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(st.lists(st.binary(max_size=9), min_size=1, max_size=12))
    def test_any_bodies(self, bodies: list[bytes]) -> None:
        self.check(bodies, packed(bodies))

    def test_nothing_but_empty_bodies(self) -> None:
        self.check([b""] * 5, packed([b""] * 5))

    def test_bodies_of_uneven_size_over_several_blocks(self) -> None:
        """Blocks are cut by bytes, so a few long bodies among short ones are where a cut can go wrong."""
        big = BLOCK_BYTES_TARGET
        sizes = [3, 0, big, 1, 2 * big, 0, 0, 5, big // 2, big // 2, big // 2, 1]
        bodies = [bytes([index]) * size for index, size in enumerate(sizes)]
        self.check(bodies, packed(bodies))

    @pytest.mark.parametrize("count", [calls.PACKED_FROM - 1, calls.PACKED_FROM, calls.PACKED_FROM + 1])
    def test_append_many_around_the_count_from_which_it_packs(self, count: int) -> None:
        bodies = [b"x" * (index % 5) for index in range(count)]
        operation = calls.append_many("j", bodies)
        assert isinstance(operation, ops.AppendPacked) == (count >= calls.PACKED_FROM)
        self.check(bodies, operation)

    def test_append_many_packs_no_keys_away(self) -> None:
        """One key or header among them, and they cannot travel as bare bodies."""
        world = World()
        many: list[Any] = [*[b"x"] * calls.PACKED_FROM, (b"y", b"key"), (b"z", None, {"h": "v"})]
        send(world, calls.append_many("j", many))
        found = [(message.body, message.key, message.headers) for message in world.committed("j")]
        assert found == [*[(b"x", None, {})] * calls.PACKED_FROM, (b"y", b"key", {}), (b"z", None, {"h": "v"})]


def cut(blob: bytes, sizes: bytes) -> list[bytes] | None:
    """The bodies, by the plainest means; None when there are none to be had."""
    if not sizes or len(sizes) % 4:
        return None
    bodies, at = [], 0
    for (size,) in struct.iter_unpack("<i", sizes):
        if size < 0 or at + size > len(blob):
            return None
        bodies.append(blob[at : at + size])
        at += size
    return bodies if at == len(blob) else None


@st.composite
def nearly_packed(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Bodies packed rightly, and then, most of the time, a little wrong."""
    bodies = draw(st.lists(st.binary(max_size=4), max_size=5))
    numbers = [len(body) for body in bodies]
    odd = st.sampled_from([-LENGTH_MAX - 1, -4, -1, 0, 1, 2, 4, LENGTH_MAX])
    for at, other in draw(st.dictionaries(st.integers(0, 4), odd, max_size=2)).items():
        numbers[at : at + 1] = [other]
    blob = b"".join(bodies) + draw(st.sampled_from([b"", b"", b"x"]))
    sizes = lengths(*numbers)
    return blob, sizes[: len(sizes) - draw(st.sampled_from([0, 0, 0, 1, 2, 4]))]


@settings(max_examples=EXAMPLES * 3, deadline=None)
@given(nearly_packed())
def test_any_bytes_are_stored_as_their_lengths_say_or_refused(pair: tuple[bytes, bytes]) -> None:
    world = World()
    world.append("j", b"kept")
    bodies = cut(*pair)
    if bodies is None:
        with pytest.raises(Invalid):
            send(world, ops.AppendPacked("j", *pair))
    else:
        assert send(world, ops.AppendPacked("j", *pair)) == [ops.Appended(1, len(bodies), 1, len(bodies))]
    assert world.append("j", b"next").offset == 1 + len(bodies or [])
    assert world.bodies("j") == [b"kept", *(bodies or []), b"next"]
