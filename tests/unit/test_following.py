"""A place in a journal: forward, back, moved, and loud when what it stands before is gone."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from itertools import product

import pyarrow as pa
import pytest

import detent
from detent import NotFound, Store
from detent.journal import reader as journal_reader
from detent.stream import following
from detent.stream.following import Following
from remoteserver import serving


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as store:
        yield store


def fill(store: Store, count: int, *, blocks: int = 1, journal: str = "j") -> None:
    """Messages b"0", b"1", ..., in so many blocks."""
    start = store.journal(journal).next_offset()
    for block in range(blocks):
        numbers = range(start + block * count // blocks, start + (block + 1) * count // blocks)
        store.journal(journal).append_many([str(number).encode() for number in numbers])


def follow(store: Store, at: int = 0, number: int | None = None) -> Following:
    return Following(store.reader, "j", at, number)


def bodies(messages: list[detent.Message]) -> list[int]:
    assert [int(message.body) for message in messages] == [message.offset for message in messages]
    return [message.offset for message in messages]


def test_forward(store: Store) -> None:
    fill(store, 10)
    place = follow(store, 2)
    assert (place.ready, place.number) == (0, None)
    assert bodies(place.take(3)) == [2, 3, 4]
    assert (place.at, place.ready, place.number) == (5, 5, store.journal("j").info().id)
    assert place.look() == 5
    peeked = place.peek()
    assert peeked is not None
    assert (peeked.offset, place.at) == (5, 5)
    assert bodies(place.take(100)) == [5, 6, 7, 8, 9]
    assert (place.take(1), place.take_all(1), place.look(), place.peek(), place.at) == ([], [], 0, None, 10)
    fill(store, 1)
    assert bodies(place.take_all(5)) == [10]


def test_take_all_goes_on_over_what_was_read_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PLAN_ROWS", 3)
    fill(store, 10, blocks=5)
    place = follow(store)
    assert bodies(place.take(100)) == [0, 1, 2]
    assert bodies(place.take_all(6)) == [3, 4, 5, 6, 7, 8]
    assert bodies(place.take_all(6)) == [9]


def test_backward(store: Store) -> None:
    fill(store, 40)
    place = follow(store, 40)
    assert bodies(place.take_back(3)) == [39, 38, 37]
    peeked = place.peek_back()
    assert peeked is not None
    assert (peeked.offset, place.at, place.look_back()) == (36, 37, following.BACK_ROWS_FIRST - 3)
    assert bodies(place.take_all(2)) == [37, 38]
    assert bodies(place.take_back(100)) == [*range(38, -1, -1)]
    assert (place.take_back(1), place.look_back(), place.peek_back(), place.at) == ([], 0, None, 0)
    assert bodies(place.take_all(100)) == [*range(40)]


def test_turned_round_before_a_read_was_finished(store: Store) -> None:
    """Blocks that are too large to be read as one: the second is still to come when the place goes back."""
    fill(store, 900, blocks=3)
    place = follow(store, 300)
    assert bodies(place.take(1)) == [300]
    assert place.ready == 299
    assert bodies(place.take_back(2)) == [300, 299]
    assert bodies(place.take_all(1_000)) == [*range(299, 900)]


def test_backward_reads_few_large_messages_at_once(store: Store) -> None:
    body = bytes(following.BACK_BYTES // 4)
    store.journal("j").append_many([body] * 6)
    store.journal("j").append_many([body] * 6)
    place = follow(store, 12)
    found = []
    seen = 0
    while taken := place.take_back(1):
        found += [message.offset for message in taken]
        seen = max(seen, place._back_rows)
    assert found == [*range(11, -1, -1)]
    assert seen < following.BACK_ROWS_FIRST


def test_back_and_forth_as_over_a_list(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any walk over a journal that grows, with small reads so that their edges are met."""
    monkeypatch.setattr(following, "PLAN_ROWS", 7)
    monkeypatch.setattr(following, "BACK_ROWS", 5)
    for seed in range(20):
        choose, name = random.Random(seed), f"j{seed}"
        place, at, end = Following(store.reader, name, 0), 0, 0
        place._back_rows = choose.randint(1, 5)
        for _ in range(120):
            step, count = choose.choice(["take", "back", "move", "fill"]), choose.randint(1, 9)
            if step == "fill":
                fill(store, count, blocks=min(count, choose.randint(1, 3)), journal=name)
                end += count
            elif step == "move":
                at = choose.randint(0, end)
                place.move(at)
            elif step == "take":
                assert bodies(place.take_all(count)) == [*range(at, min(end, at + count))]
                at = min(end, at + count)
            else:
                assert bodies(place.take_back(count)) == [*range(at - 1, max(0, at - count) - 1, -1)]
                at = max(0, at - count)
            assert place.at == at


def test_a_journal_that_does_not_exist_yet(store: Store) -> None:
    place = follow(store)
    assert (place.take(1), place.look(), place.take_back(1), place.number, place.find()) == ([], 0, [], None, None)
    store.journal("j").create()
    assert (place.take(1), place.look_back()) == ([], 0)
    fill(store, 1)
    assert bodies(place.take(1)) == [0]


def test_a_place_in_a_journal_that_does_not_exist(store: Store) -> None:
    with pytest.raises(NotFound, match="which is not there"):
        follow(store, 1).take(1)


@pytest.mark.parametrize(("plan", "view"), [(1_024, 1 << 20), (2, 1 << 20), (2, 1), (1, 1)])
def test_one_look_finds_what_several_find(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, plan: int, view: int
) -> None:
    """Where a journal is and what comes next, over blocks and fragments, in plans and views of any size; also through a
    server."""
    monkeypatch.setattr(journal_reader, "PLAN_RUNS", plan)
    with serving(f"file:{tmp_path}/store") as server, detent.open(server.url) as far:
        store = server.store
        assert store is not None
        monkeypatch.setattr(type(store.reader._reader), "view_bytes", view)
        for reader in (store.reader, far.reader):
            found, batches = reader.ahead("j", 0, 5)
            assert (found, list(batches)) == (None, [])
        for _ in range(2):
            fill(store, 3, blocks=3)
            numbers = range(store.journal("j").next_offset(), store.journal("j").next_offset() + 3)
            store.journal("j").adopt(
                [store.journal("j").write_fragment(pa.table({"body": [b"%d" % n for n in numbers]}))]
            )
        store.journal("j").trim(2)
        info = store.journal("j").info()
        number = info.id
        for reader, start, rows in product((store.reader, far.reader), range(14), (1, 2, 4, 100)):
            found, batches = reader.ahead("j", start, rows)
            assert found == (number, 2, 12, info.created_ms) == reader.whereabouts("j")
            expected = range(start, min(12, start + rows)) if start >= 2 else range(0)
            read = [(at + n, body) for at, batch in batches for n, body in enumerate(batch["body"].to_pylist())]
            assert read == [(n, b"%d" % n) for n in expected]
            assert list(reader.ahead("j", start, rows, journal=number + 1)[1]) == []


def test_few_messages_are_one_look(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    view = store.reader._reader.view
    me = threading.current_thread()

    def counted() -> object:
        nonlocal looks
        looks += threading.current_thread() is me  # the housekeeper looks as well
        return view()

    monkeypatch.setattr(store.reader._reader, "view", counted)
    store.journal("j").append(b"0")
    place = follow(store)
    for number in range(1, 4):
        looks = 0
        assert bodies(place.take(10)) == [number - 1]
        assert looks == 1
        store.journal("j").append(b"%d" % number)


def test_trimmed_past_the_place(store: Store) -> None:
    fill(store, 10)
    place = follow(store)
    store.journal("j").trim(4)
    for read in (place.take, place.take_back):
        with pytest.raises(NotFound, match=r"begins at 4 now, and was read to 0.*Move to 4"):
            read(1)
    place.move(4)
    assert bodies(place.take(1)) == [4]
    assert bodies(place.take_back(5)) == [4]


def test_trimmed_while_it_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in memory is handed out; then it is loud."""
    monkeypatch.setattr(following, "PLAN_ROWS", 2)
    fill(store, 10, blocks=10)
    place = follow(store)
    assert bodies(place.take(1)) == [0]
    store.journal("j").trim(8)
    assert bodies(place.take(1)) == [1]
    with pytest.raises(NotFound, match="begins at 8"):
        place.take_all(9)


def test_deleted_and_made_anew(store: Store) -> None:
    fill(store, 3)
    place = follow(store)
    place.take(1)
    store.journal("j").delete()
    assert bodies(place.take(5)) == [1, 2]  # they were read before
    for _ in range(2):
        with pytest.raises(NotFound, match="deleted, or is another one"):
            place.take(1)
    fill(store, 9)
    with pytest.raises(NotFound, match="deleted, or is another one"):
        place.take(1)
    with pytest.raises(NotFound, match="deleted, or is another one"):
        follow(store, 0, place.number).take_back(1)
    place.begin(1, store.reader.number("j"))
    assert bodies(place.take(2)) == [1, 2]


def test_a_buffer_of_another_journal_is_not_taken_for_this_one(store: Store) -> None:
    store.journal("j").append_many([b"old"] * 5)
    place = follow(store)
    place.take(1)
    store.journal("j").delete()
    fill(store, 5)
    place.begin(1, store.reader.number("j"))
    assert bodies(place.take_all(10)) == [1, 2, 3, 4]


def test_beyond_the_end(store: Store) -> None:
    fill(store, 3)
    with pytest.raises(NotFound, match="read to 4, which is not there"):
        follow(store, 4).take(1)


def test_what_its_messages_say_where_they_are_from(store: Store) -> None:
    fill(store, 2)
    place = Following(store.reader, "j", 0, label="j@far")
    assert {message.journal for message in place.take(1) + place.take_back(1)} == {"j@far"}
    store.journal("j").trim(2)
    place.move(1)
    place.close()
    with pytest.raises(NotFound, match="'j@far'"):
        place.take(1)


def test_a_read_through_a_server_that_is_not_finished(tmp_path: object) -> None:
    """It holds a connection, which `close` gives back: nothing of it may outlive the store."""
    with serving(f"file:{tmp_path}/store") as server, detent.open(server.url) as far:
        assert server.store is not None
        for _ in range(30):
            server.store.journal("j").append_many([bytes(100_000)] * 5)
        place = Following(far.reader, "j", 0)
        assert [message.offset for message in place.take(1)] == [0]
        owner = far._connection.current
        assert owner._users == 1  # type: ignore[union-attr]
        place.close()
        assert owner._users == 0  # type: ignore[union-attr]
        assert [message.offset for message in place.take(1)] == [1]
        assert [message.offset for message in place.take_back(9)] == [1, 0]
        place.close()
        assert owner._users == 0  # type: ignore[union-attr]
