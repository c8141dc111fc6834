"""Message ids: the golden vectors, both ways, and what is refused."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.errors import Invalid
from detent.message import Clock, ProducerId, as_unix_ns, build_uuid, is_sequenced, new_producer_id, parse_uuid

VECTORS = {
    "V1": ("010000000001", 0x0, 0, "00000000-0000-1000-8000-010000000001"),
    "V2": ("010000000001", 0xA0, 1, "0000000a-0000-1000-8001-010000000001"),
    "V3": ("010000000001", 0x140, 2, "00000014-0000-1000-8002-010000000001"),
    "V4": ("a1b2c3d4e5f6", 0x1B21DD2138140000, 0, "13814000-1dd2-11b2-8000-a1b2c3d4e5f6"),
    "V5": ("a1b2c3d4e5f6", 0x1B21DD21AA84E030, 1, "1aa84e03-1dd2-11b2-8001-a1b2c3d4e5f6"),
    "V6": ("a1b2c3d4e5f6", 0x1B21DD21AA84E0D0, 2, "1aa84e0d-1dd2-11b2-8002-a1b2c3d4e5f6"),
    "V7": ("090607050309", 0x1E9CC5F83FC2F950, 0x2AA, "83fc2f95-cc5f-11e9-82aa-090607050309"),
    "V8": ("090607050309", 0x1EE833B04C29687D, 1, "04c29687-833b-11ee-b401-090607050309"),
    "V9": ("ffffffffffff", 0xFFFFFFFFFFFFFFFF, 0x3FF, "ffffffff-ffff-1fff-bfff-ffffffffffff"),
    "V10": ("090607050309", 0x1F090FDC1BD00000, 2, "c1bd0000-90fd-11f0-8002-090607050309"),
    "V11": ("6fb7f64cdd31", 0x1E9F9B70D2B91193, 1, "0d2b9119-f9b7-11e9-8c01-6fb7f64cdd31"),
    "V12": ("6fb7f64cdd31", 0x1E9F9B70D2B91194, 2, "0d2b9119-f9b7-11e9-9002-6fb7f64cdd31"),
}


@pytest.mark.parametrize(("producer", "clock", "flags", "text"), VECTORS.values(), ids=VECTORS)
def test_golden_vectors(producer: str, clock: int, flags: int, text: str) -> None:
    identity = build_uuid(bytes.fromhex(producer), clock, flags)
    assert str(identity) == text
    assert parse_uuid(identity) == (bytes.fromhex(producer), clock, flags)
    assert parse_uuid(identity.bytes) == parse_uuid(text) == parse_uuid(identity)
    assert (identity.version, identity.variant) == (1, uuid.RFC_4122)
    assert identity.time == clock >> 4
    assert identity.node == int.from_bytes(bytes.fromhex(producer), "big")
    assert is_sequenced(identity) == (clock != 0)


def test_v7_is_two_ticks_after_a_wall_time() -> None:
    clock = Clock()
    clock.update(1567304621_981273734)
    clock.tick()
    assert clock.tick() == VECTORS["V7"][1]
    assert as_unix_ns(clock.value) == 1567304621_981275700


@given(st.binary(min_size=6, max_size=6), st.integers(0, 2**64 - 1), st.integers(0, 0x3FF))
def test_build_and_parse_are_inverse(producer: bytes, clock: int, flags: int) -> None:
    assert parse_uuid(build_uuid(producer, clock, flags)) == (producer, clock, flags)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_ids_of_one_producer_order_by_clock(a: int, b: int) -> None:
    first, second = (parse_uuid(build_uuid(b"\x01abcde", clock, 0))[1] for clock in (a, b))
    assert (first < second) == (a < b)


@pytest.mark.parametrize(
    ("producer", "clock", "flags"),
    [
        (b"12345", 1, 0),
        (b"1234567", 1, 0),
        (b"123456", -1, 0),
        (b"123456", 2**64, 0),
        (b"123456", 1, 0x400),
        (b"123456", 1, -1),
    ],
)
def test_what_does_not_fit_is_invalid(producer: bytes, clock: int, flags: int) -> None:
    with pytest.raises(Invalid):
        build_uuid(producer, clock, flags)


@pytest.mark.parametrize(
    "text", ["", "no uuid", "13814000-1dd2-41b2-8000-a1b2c3d4e5f6", "13814000-1dd2-11b2-c000-a1b2c3d4e5f6"]
)
def test_other_uuids_and_no_uuids_are_invalid(text: str) -> None:
    with pytest.raises(Invalid):
        parse_uuid(text)


def test_bytes_of_the_wrong_length_are_invalid() -> None:
    with pytest.raises(Invalid):
        parse_uuid(b"short")


def test_what_is_not_sequenced() -> None:
    assert parse_uuid(uuid.UUID(int=0)) == (bytes(6), 0, 0)
    assert not is_sequenced(uuid.UUID(int=0))
    assert not is_sequenced(uuid.UUID("13814000-1dd2-41b2-8000-a1b2c3d4e5f6"))
    with pytest.raises(Invalid):
        is_sequenced("no uuid")


def test_a_new_producer_id_has_the_multicast_bit_and_keeps_the_rest() -> None:
    assert new_producer_id(bytes(6)) == bytes.fromhex("010000000000")
    assert new_producer_id(bytes.fromhex("fe0000000001")) == bytes.fromhex("ff0000000001")
    rng = random.Random(7)
    drawn = {new_producer_id(rng.randbytes(6)) for _ in range(1000)}
    assert len(drawn) == 1000
    assert all(producer[0] & 1 for producer in drawn)


def test_a_producer_id_is_also_a_number() -> None:
    producer = ProducerId(bytes.fromhex("0a0b0c0d0e0f"))
    assert int(producer) == 0x0A0B0C0D0E0F
    assert ProducerId.of(int(producer)) == producer
    assert (str(producer), repr(producer)) == ("0a0b0c0d0e0f", "ProducerId(0a0b0c0d0e0f)")
    assert {producer: 1}[bytes.fromhex("0a0b0c0d0e0f")] == 1
    for number in (-1, 1 << 48):
        with pytest.raises(Invalid):
            ProducerId.of(number)
    with pytest.raises(Invalid):
        new_producer_id(b"")
