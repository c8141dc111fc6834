"""Requests of many tiny values: refused before they become objects, and the others that came with them are not."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from detent.engine import Request
from detent.errors import Invalid, LimitExceeded
from detent.journal import operations as ops
from detent.remote import wire

SESSION = b"s" * 16
MEMORY_MAX = 4 << 20


def transaction(*operations: bytes, count: int | None = None) -> bytes:
    """One transaction of encoded operations; `count` is how many it says that there are."""
    many = len(operations) if count is None else count
    head = b"\x94\xc4\x10" + SESSION + b"\x01\x00\xdd" + many.to_bytes(4, "big")
    return head + b"".join(operations)


def append_of(headers: bytes, count: int) -> bytes:
    """An append without bodies and with so many headers."""
    return b"\x95\xa6Append\xa1j\x90\xc0\xdd" + count.to_bytes(4, "big") + headers * count


def small() -> bytes:
    encoded = wire.encode_requests([Request(SESSION, 2, 0, [ops.Append("j", [b"x"])])])
    return encoded[1:]  # without the list that it is in


def decoded(*transactions: bytes) -> list[object]:
    data = b"\xdc" + len(transactions).to_bytes(2, "big") + b"".join(transactions)
    tracemalloc.start()
    try:
        return list(wire.decode_requests(data))
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY_MAX, f"{peak} bytes of memory"


@pytest.mark.parametrize("value", [b"\x80", b"\x81\xa0\xa0", b"\xc0", b"\x90"])
def test_a_list_that_no_operation_takes_is_not_decoded(value: bytes) -> None:
    refused, other = decoded(transaction(append_of(value, wire.LIST_MAX + 1)), small())
    assert isinstance(refused, LimitExceeded)
    assert isinstance(other, Request)


def test_what_is_too_much_together_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "ELEMENTS_MAX", 50_000)
    found = decoded(*[transaction(append_of(b"\x80", 20_000))] * 5, small())
    assert [type(one) for one in found] == [Request, Request, *[LimitExceeded] * 3, Request]


@pytest.mark.parametrize("operation", [b"\x93\xa6Append\xa1j\x90", b"\x80", b"\xc0"])
def test_operations_beyond_the_limit_are_not_decoded(operation: bytes) -> None:
    (refused,) = decoded(transaction(*[operation] * 100_000))
    assert isinstance(refused, Invalid)


def test_an_operation_of_a_million_fields_is_not_decoded() -> None:
    operation = b"\xdd" + (1_000_000).to_bytes(4, "big") + b"\xc0" * 1_000_000
    (refused,) = decoded(transaction(operation))
    assert isinstance(refused, Invalid)


def test_the_largest_requests_are_decoded_as_they_were() -> None:
    bodies = [b"%d" % number for number in range(70_000)]
    headers: list[dict[str, str] | None] = [{"a": "b"}, None] * 35_000
    sent = [
        Request(SESSION, 1, 0, [ops.Append("j", bodies, None, headers)]),
        Request(SESSION, 2, 0, [ops.CheckRegisters("j", {str(number): None for number in range(70_000)})]),
        Request(SESSION, 3, 0, [ops.TrimJournal("j", number) for number in range(10_000)]),
    ]
    found = wire.decode_requests(wire.encode_requests(sent))
    assert [msgspec.msgpack.encode(one) for one in found] == [msgspec.msgpack.encode(one) for one in sent]
