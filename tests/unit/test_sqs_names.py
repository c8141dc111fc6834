"""Ids, handles, URLs and ARNs of the SQS endpoint."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detent.queue.message import Receipt
from detent.server.sqs import names
from detent.server.sqs.errors import INVALID_HANDLE, Refused

NUMBERS = st.integers(0, (1 << 62) - 1)


@given(NUMBERS)
def test_a_message_id_is_a_uuid_and_says_which_message(message: int) -> None:
    found = names.message_id(message)
    assert uuid.UUID(found).version == 8
    assert str(uuid.UUID(found)) == found
    assert uuid.UUID(found).int & ((1 << 62) - 1) == message


@given(NUMBERS, NUMBERS)
def test_sequence_numbers_sort_like_messages(first: int, second: int) -> None:
    assert (names.sequence_number(first) < names.sequence_number(second)) == (first < second)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_handle_is_its_receipt(queue: int, message: int, delivery: int) -> None:
    receipt = Receipt(queue, message, delivery)
    assert names.receipt_of_handle(names.receipt_handle(receipt), queue) == receipt


@given(st.text(max_size=60))
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(Refused) as caught:
        names.receipt_of_handle(text, 1)
    assert caught.value.fault is INVALID_HANDLE


def test_a_handle_of_another_queue_is_refused() -> None:
    with pytest.raises(Refused):
        names.receipt_of_handle(names.receipt_handle(Receipt(2, 1, 1)), 1)


def test_a_handle_with_another_spelling_is_refused() -> None:
    handle = names.receipt_handle(Receipt(1, 1, 1))
    for other in (handle + "=", handle[:-1] + "\n", "B" + handle[1:], handle + "A"):
        with pytest.raises(Refused):
            names.receipt_of_handle(other, 1)


@pytest.mark.parametrize(
    "url",
    [
        "http://h/000000000000/orders",
        "https://sqs.eu-west-1.amazonaws.com/123456789012/orders",
        "/000000000000/orders/",
        "orders",
    ],
)
def test_a_queue_is_the_last_part_of_its_url(url: str) -> None:
    assert names.queue_of_url(url) == "orders"


@pytest.mark.parametrize("url", ["", "http://h/", "http://h/a b", "http://[", "http://h/" + "x" * 81])
def test_what_names_no_queue_is_refused(url: str) -> None:
    with pytest.raises(Refused):
        names.queue_of_url(url)


@pytest.mark.parametrize("host", [None, "", "a b", "evil/x", "h:99999999", "a\r\nb"])
def test_a_strange_host_is_not_repeated(host: str | None) -> None:
    assert names.base_url("http", host, names.QueuePlace()) == "http://localhost/000000000000/"


def test_arns_name_queues() -> None:
    place = names.QueuePlace("eu-central-1", "123456789012")
    assert place.arn("orders") == "arn:aws:sqs:eu-central-1:123456789012:orders"
    assert names.queue_of_arn(place.arn("orders"), "SourceArn") == "orders"
    for arn in ("orders", "arn:aws:sns:eu-central-1:123456789012:orders", "arn:aws:sqs:r:a:b:c", "arn:aws:sqs:r:a:a b"):
        with pytest.raises(Refused):
            names.queue_of_arn(arn, "SourceArn")
