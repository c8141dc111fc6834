"""What every reader of a queue promises, whatever is below it: on memory, file, a client of the owner, a server, s3."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import detent
from detent import AssignmentReader, Conflict, Corrupt, Fenced, Invalid, NotFound, Outgoing, Queue, Store
from detent.queue import reader_operations as reader_ops
from detent.queue.reader import QueueReader
from detent.remote import contents


@pytest.fixture
def queue(store: Store) -> Queue:
    made = store.queue("q")
    made.create()
    return made


@pytest.fixture
def reader(queue: Queue) -> AssignmentReader:
    made = queue.reader("nightly")
    assert made.open().acked == 0
    return made


def bodies(messages: Any) -> list[bytes]:
    return [message.body for message in messages]


def publish(queue: Queue, count: int) -> list[bytes]:
    sent = [b"message %d" % number for number in range(count)]
    queue.publish_many(sent)
    return sent


def test_planned_read_and_done(queue: Queue, reader: AssignmentReader) -> None:
    sent = publish(queue, 5)
    first = reader.assign(0, 3)
    assert (first.number, first.count, first.new) == (1, 3, True)
    assert bodies(reader.read(1)) == bodies(reader.read(1)) == sent[:3]
    again = reader.assign(0, 99)
    assert (again.number, again.count, again.new) == (1, 3, False)
    assert reader.assign(1, 3).number == 2
    assert bodies(reader.read(2)) == sent[3:]
    info = queue.info()
    assert (info.total_acked, info.in_flight, info.available, info.done) == (3, 2, 0, 3)
    nothing = reader.assign(2, 3)
    assert (nothing.number, nothing.count) == (2, 0)
    assert queue.info().total_acked == 5
    assert reader.open().acked == 2


def test_all_that_a_message_says(queue: Queue, reader: AssignmentReader) -> None:
    queue.publish(Outgoing(b'{"a": 1}', {"queue": "q", "priority": "7"}, retention="1h"))
    queue.publish(Outgoing(uri="s3://bucket/key", headers={"queue": "q"}))
    (failed,) = queue.claim()
    failed.fail("no", delay="0s")
    reader.assign(0, 10)
    first, second = reader.read(1)
    assert (first.queue, first.id, first.body, first.uri, first.json()) == (
        "q",
        failed.id,
        b'{"a": 1}',
        None,
        {"a": 1},
    )
    assert (first.priority, first.attempts, first.headers) == (7, 2, {"queue": "q", "priority": "7"})
    assert first.fencing_token > failed.fencing_token
    assert first.created == first.received == first.visible == failed.received
    assert (first.retention_s, first.expires) == (3600, first.received + timedelta(hours=1))
    assert (second.body, second.uri, second.fencing_token) == (b"", "s3://bucket/key", first.fencing_token + 1)
    assert [message.fencing_token for message in reader.read(1)] == [first.fencing_token, second.fencing_token]


def test_parts_of_an_assignment_are_read_anywhere(store: Store, queue: Queue, reader: AssignmentReader) -> None:
    sent = publish(queue, 7)
    reader.assign(0, 7)
    elsewhere = store.queue("q").reader("nightly", generation=reader.generation)
    assert bodies(elsewhere.read(1, 0, 3)) == sent[:3]
    assert bodies(elsewhere.read(1, 3, 7)) == sent[3:]
    assert bodies(elsewhere.read(1, 5)) == sent[5:]
    assert bodies(elsewhere.read(1, 4, 4)) == bodies(elsewhere.read(1, 7)) == []


def test_a_long_assignment_comes_page_by_page(
    queue: Queue, reader: AssignmentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_ops, "PAGE_MAX", 4)
    monkeypatch.setattr(contents, "ANSWER_CONTENT_BYTES_MAX", 300)  # of a server's answer: less than a page
    sent = publish(queue, 10)
    for number in range(3):
        queue.publish(b"x" * 200 + b"%d" % number)
    reader.assign(0, 99)
    found = list(reader.read(1))
    assert bodies(found) == [*sent, *(b"x" * 200 + b"%d" % number for number in range(3))]
    tokens = [message.fencing_token for message in found]
    assert tokens == list(range(tokens[0], tokens[0] + 13))
    assert bodies(reader.read(1, 3, 12)) == bodies(found[3:12])


def test_what_is_asked_for_and_not_there(queue: Queue, reader: AssignmentReader) -> None:
    publish(queue, 3)
    for call in (lambda: list(reader.read(1)), lambda: list(queue.reader("nobody", generation=1).read(1))):
        with pytest.raises(NotFound):
            call()
    reader.assign(0, 2)
    with pytest.raises(Invalid, match="has 2 messages, not 3"):
        list(reader.read(1, 0, 3))
    for start, end in ((-1, None), (2, 1), (0, True), (0, 1.5)):
        with pytest.raises(Invalid):
            reader.read(1, start, end)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        list(reader.read(1, 3))
    with pytest.raises(Conflict, match="the last one is 1"):
        reader.assign(2, 1)
    with pytest.raises(Conflict):
        reader.ack(2)
    reader.ack(1)
    reader.ack(1)
    with pytest.raises(NotFound, match="acknowledged"):
        list(reader.read(1))
    with pytest.raises(Conflict, match="detent queue release q nightly"):
        reader.assign(0, 1)
    for count in (0, -1, 1.5, reader_ops.ASSIGNED_MAX + 1):
        with pytest.raises(Invalid):
            reader.assign(1, count)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="open the reader"):
        queue.reader("nightly").assign(1, 1)
    with pytest.raises(Invalid):
        queue.reader("")


def test_a_released_reader_is_fenced_and_its_messages_come_back(queue: Queue, reader: AssignmentReader) -> None:
    sent = publish(queue, 4)
    reader.assign(0, 3)
    zombie = queue.reader("nightly", generation=reader.generation)
    half = zombie.read(1)
    assert next(half).body == sent[0]
    assert queue.reader("nightly").release() == 3
    for call in (
        lambda: zombie.assign(1, 1),
        lambda: zombie.assign(0, 1),
        lambda: zombie.ack(1),
        lambda: list(zombie.read(1)),
    ):
        with pytest.raises(Fenced, match="was released"):
            call()
    claimed = queue.claim(10)
    assert bodies(claimed) == sent
    assert {message.attempts for message in claimed} == {1}
    assert reader.open().acked == 0
    assert reader.assign(0, 1).count == 0


def test_readers_are_listed_and_deleted(queue: Queue, reader: AssignmentReader) -> None:
    publish(queue, 3)
    reader.assign(0, 2)
    queue.reader("another").open()
    another, nightly = queue.readers()
    assert (another.name, another.acked, another.assigned, another.assigned_since) == ("another", 0, 0, None)
    assert (nightly.name, nightly.generation, nightly.assigned) == ("nightly", reader.generation, 2)
    assert nightly.assigned_since is not None
    assert nightly.opened <= nightly.assigned_since
    with pytest.raises(Conflict, match="release it first"):
        reader.delete()
    reader.ack(1)
    reader.delete()
    assert [found.name for found in queue.readers()] == ["another"]
    queue.delete()
    with pytest.raises(NotFound):
        queue.readers()


def test_an_assignment_limited_in_bytes(queue: Queue, reader: AssignmentReader) -> None:
    sent = publish(queue, 9)
    assert reader.assign(0, 9, max_bytes=2 * len(sent[0])).count == 2
    assert bodies(reader.read(1)) == sent[:2]
    assert reader.assign(1, 9, max_bytes=1).count == 1
    assert reader.assign(2, 9).count == 6


def test_a_plan_and_an_effect_in_one_transaction(store: Store, queue: Queue, reader: AssignmentReader) -> None:
    publish(queue, 2)
    reader.assign(0, 2)
    assert reader.generation is not None
    with store.transaction() as transaction:
        transaction.append("effects", b"done")
        transaction.add(reader_ops.AckAssigned("q", "nightly", reader.generation, 1))
    assert queue.info().total_acked == 2
    with pytest.raises(Conflict), store.transaction() as transaction:
        transaction.append("effects", b"done")
        transaction.add(reader_ops.AckAssigned("q", "nightly", reader.generation, 9))
    assert store.journal("effects").info().next_offset == 1


class Gone:
    """Finds no content, after something has happened."""

    def __init__(self, reader: QueueReader, happens: Any) -> None:
        self._reader = reader
        self._happens = happens

    def columns(self, messages: Any, records: Any) -> Any:
        self._happens()
        found = self._reader.columns(messages, records)
        return found._replace(gone=1)


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_content_that_goes_while_it_is_read(store: Store, queue: Queue, reader: AssignmentReader) -> None:
    publish(queue, 2)
    reader.assign(0, 2)
    whole = store.messages
    zombie = queue.reader("nightly", generation=reader.generation)
    store.messages = Gone(whole, lambda: None)  # type: ignore[assignment]
    with pytest.raises(Corrupt, match="detent store verify"):
        list(zombie.read(1))
    store.messages = Gone(whole, lambda: reader.ack(1))  # type: ignore[assignment]
    with pytest.raises(NotFound, match="acknowledged"):
        list(zombie.read(1))
    publish(queue, 2)
    reader.assign(1, 2)
    store.messages = Gone(whole, lambda: queue.reader("nightly").release())  # type: ignore[assignment]
    with pytest.raises(Fenced):
        list(zombie.read(2))


def test_the_same_for_asyncio(url: str) -> None:
    async def whole() -> None:
        async with detent.open_async(url) as store:
            queue = store.queue("q")
            await queue.create()
            await queue.publish_many([b"one", b"two", b"three"])
            reader = queue.reader("nightly")
            opened = await reader.open()
            assert (await reader.assign(opened.acked, 2, max_bytes=100)).number == 1
            assert [message.body async for message in reader.read(1)] == [b"one", b"two"]
            assert [message.body async for message in reader.read(1, 1, 2)] == [b"two"]
            await reader.ack(1)
            with pytest.raises(NotFound):
                await anext(reader.read(1))
            assert (await reader.assign(1, 2)).count == 1
            (found,) = await queue.readers()
            assert (found.name, found.acked, found.assigned) == ("nightly", 1, 1)
            stale = queue.reader("nightly", generation=reader.generation)
            assert await reader.release() == 1
            with pytest.raises(Fenced):
                await stale.assign(1, 1)
            await reader.open()
            await reader.delete()
            assert await queue.readers() == []

    asyncio.run(whole())
