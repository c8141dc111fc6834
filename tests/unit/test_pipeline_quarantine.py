"""Quarantine: what waits in it, and that each message is put back once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import detent
from detent.errors import Conflict, Invalid, NotFound
from detent.spark import quarantine
from detent.spark.quarantine import Quarantined, QuarantineInfo, info, quarantines, redrive, waiting
from detent.store import Store

NAME = "shop/paid.quarantine"


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as opened:
        opened.journal("orders").create()
        yield opened


def put(store: Store, count: int, source: dict[str, str] | None = None, start: int = 0) -> None:
    for number in range(start, start + count):
        headers = {"h": "own", quarantine.REASON: "no JSON", quarantine.OFFSET: str(number)}
        headers |= source or {quarantine.JOURNAL: "orders"}
        store.journal(NAME).append(b"%d" % number, key=b"k", headers=headers)


def bodies(store: Store, journal: str = "orders") -> list[bytes]:
    return [message.body for message in store.journal(journal).read()]


def test_what_waits_is_shown_with_its_origin(store: Store) -> None:
    put(store, 1, start=7)
    assert list(waiting(store, NAME)) == [
        Quarantined(0, "no JSON", "orders", 7, b"k", {"h": "own"}, b"7", is_queue=False, uri=None)
    ]
    assert quarantines(store) == [QuarantineInfo(NAME, waiting=1, redriven=0)]


def test_messages_go_back_as_they_were_and_once(store: Store) -> None:
    put(store, 3)
    assert redrive(store, NAME) == 3
    assert redrive(store, NAME) == 0
    assert info(store, NAME) == QuarantineInfo(NAME, waiting=0, redriven=3)
    assert [(m.body, m.key, m.headers) for m in store.journal("orders").read()] == [
        (b"%d" % number, b"k", {"h": "own"}) for number in range(3)
    ]
    put(store, 1, start=3)
    assert redrive(store, NAME) == 1
    assert bodies(store) == [b"0", b"1", b"2", b"3"]


def test_many_go_back_in_several_transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "CHUNK_MESSAGES", 3)
    monkeypatch.setattr(quarantine, "CHUNK_BYTES", 2)
    put(store, 12)
    assert redrive(store, NAME) == 12
    assert bodies(store) == [b"%d" % number for number in range(12)]


def test_two_at_once_put_each_back_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one begins when the first has read its messages and not put them back yet."""
    put(store, 4)
    monkeypatch.setattr(quarantine, "CHUNK_MESSAGES", 2)
    original: Any = quarantine._put_back
    counts: list[int] = []

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(quarantine, "_put_back", original)
        counts.append(redrive(store, NAME))
        original(*arguments)

    monkeypatch.setattr(quarantine, "_put_back", late)
    assert (redrive(store, NAME), counts) == (0, [4])
    assert bodies(store) == [b"0", b"1", b"2", b"3"]


def test_the_register_and_the_messages_are_one_transaction(store: Store) -> None:
    put(store, 2)
    messages = list(waiting(store, NAME))
    quarantine._put_back(store, NAME, None, messages)
    with pytest.raises(Conflict):
        quarantine._put_back(store, NAME, None, messages)
    assert bodies(store) == [b"0", b"1"]


def test_messages_of_a_queue_go_back_to_it(store: Store) -> None:
    store.queue("mails").create()
    origin = {quarantine.QUEUE: "mails", quarantine.MESSAGE: "5", "queue": "somewhere"}
    put(store, 1, origin)
    put(store, 1, {**origin, quarantine.URI: "s3://bucket/x"}, start=1)
    assert next(waiting(store, NAME)).is_queue
    assert redrive(store, NAME) == 2
    one, two = store.queue("mails").claim(2)
    assert (one.body, one.headers["h"], two.uri) == (b"0", "own", "s3://bucket/x")


def test_trimmed_messages_are_gone(store: Store) -> None:
    put(store, 3)
    store.journal(NAME).trim(2)
    assert info(store, NAME).waiting == 1
    assert redrive(store, NAME) == 1
    assert bodies(store) == [b"2"]


def test_what_is_wrong_is_said(store: Store) -> None:
    with pytest.raises(NotFound, match="the store has none"):
        redrive(store, NAME)
    put(store, 1)
    with pytest.raises(NotFound, match=f"there are {NAME}"):
        redrive(store, "orders")
    store.journal("orders").delete()
    with pytest.raises(NotFound, match="is gone"):
        redrive(store, NAME)
    assert info(store, NAME).redriven == 0
    store.journal("x.quarantine").append(b"by hand")
    with pytest.raises(Invalid, match="does not say where it came from"):
        redrive(store, "x.quarantine")
