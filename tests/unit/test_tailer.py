"""Tailers and appenders on a store in memory: where they stand, what they keep, and what they refuse."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import detent
from detent import Conflict, Corrupt, Fenced, Invalid, NotFound, OutcomeUnknown, Store, Unavailable
from detent.remote import LocalOwner
from detent.shard import operations as shards
from detent.stream import tailer as tailers
from detent.stream.appender import Appender, delete_appender
from detent.stream.kept_place import AT_MAX, PLACE_BYTES_MAX, SavedPlace, consumer_name
from detent.stream.tailer import Tailer, any_of, delete_tailer
from processes import PATIENCE_S, eventually


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as store:
        yield store
        assert waiters(store) == 0


def waiters(store: Store) -> int:
    owner = store._connection.current
    assert isinstance(owner, LocalOwner)
    return len(owner.journals.watch)


def fill(store: Store, *bodies: str, journal: str = "j") -> None:
    store.journal(journal).append_many([body.encode() for body in bodies])


def bodies(messages: Any) -> str:
    """Those of one letter each, as one word."""
    return "".join(message.body.decode() for message in messages)


def body(message: detent.Message | None) -> str | None:
    return None if message is None else message.body.decode()


def saved(store: Store, name: str = "n", kind: Any = "tailer") -> int:
    found = store.commit([shards.FindShard(consumer_name(kind, "j", name), 0)])[0]
    return SavedPlace.decode(found.checkpoint).at


# -- positions ----------------------------------------------------------------------------------------------------


def test_position_before_there_is_a_journal(store: Store) -> None:
    with Tailer(store, "j") as tailer:
        assert (tailer.position, tailer.last_read, tailer.read(), tailer.peek(), list(tailer)) == (
            0,
            None,
            None,
            None,
            [],
        )
        for moved in (tailer.to_start(), tailer.to_end(), tailer.to(0), tailer.to_time(datetime.now(UTC))):
            assert moved is tailer
            assert (tailer.position, tailer.backward().read(), tailer.forward().read()) == (0, None, None)
        with pytest.raises(NotFound, match="has no offset 1: the first that is kept is 0"):
            tailer.to(1)
        store.journal("j").create()
        assert (tailer.position, tailer.read(), tailer.backward().read()) == (0, None, None)
        fill(store, "a")
        assert (body(tailer.read()), body(tailer.forward().peek()), tailer.position) == (None, "a", 0)
        assert (body(tailer.read()), tailer.position, tailer.last_read) == ("a", 1, 0)


def test_turning_round_gives_the_same_message_again(store: Store) -> None:
    fill(store, *"abcd")
    with Tailer(store, "j") as tailer:
        assert bodies(tailer.read_many(3)) == "abc"
        assert (body(tailer.backward().peek()), tailer.position) == ("c", 3)
        assert (body(tailer.read()), tailer.position, tailer.last_read) == ("c", 2, 2)
        assert (body(tailer.forward().peek()), body(tailer.read()), tailer.position) == ("c", "c", 3)
        assert bodies(tailer.backward()) == "cba"
        assert (tailer.read(), tailer.position, tailer.last_read) == (None, 0, 0)
        assert bodies(tailer.read_many(9)) == ""
        assert bodies(tailer.forward().read_many(9)) == "abcd"
        assert bodies(tailer.to_end().backward().read_many(2)) == "dc"
        assert (tailer.position, tailer.last_read) == (2, 2)


def test_backward_never_waits(store: Store) -> None:
    with Tailer(store, "j") as tailer:
        assert tailer.backward().read(timeout=None) is None
        assert any_of([tailer], timeout=None) is None
        fill(store, "a")
        assert (body(tailer.to_end().read(timeout=None)), tailer.read(timeout=None)) == ("a", None)


def test_iterating_ends_where_no_message_is(store: Store) -> None:
    fill(store, *"ab")
    with Tailer(store, "j") as tailer:
        assert bodies(tailer) == "ab"
        assert bodies(tailer) == ""
        fill(store, "c")
        assert bodies(tailer) == "c"


def test_where_a_tailer_starts(store: Store) -> None:
    fill(store, *"abc")
    store.journal("j").trim(1)
    between = datetime.now(UTC) + timedelta(hours=1)
    for start, position in (("start", 1), ("end", 3), (1, 1), (2, 2), (3, 3), (between, 3)):
        with Tailer(store, "j", start=start) as tailer:  # type: ignore[arg-type]
            assert tailer.position == position
    with Tailer(store, "j", start=between - timedelta(days=1)) as tailer:
        assert (tailer.position, body(tailer.read())) == (1, "b")


@pytest.mark.parametrize("offset", [0, 4, 10**30])
def test_an_offset_that_does_not_exist(store: Store, offset: int) -> None:
    fill(store, *"abc")
    store.journal("j").trim(1)
    with Tailer(store, "j", start=2) as tailer:
        with pytest.raises(NotFound, match=f"has no offset {offset}: the first that is kept is 1.*gets 3"):
            tailer.to(offset)
        assert (tailer.position, body(tailer.read())) == (2, "c")
    with pytest.raises(NotFound, match="has no offset"):
        Tailer(store, "j", start=offset)


def test_to_a_time(store: Store) -> None:
    fill(store, "a")
    first = store.journal("j").offset_at
    message = next(iter(store.journal("j").read()))
    with Tailer(store, "j") as tailer:
        assert tailer.to_time(message.published_at).position == first(message.published_at) == 0
        assert tailer.to_time(message.published_at + timedelta(milliseconds=1)).position == 1
        with pytest.raises(Invalid, match="with its zone"):
            tailer.to_time(datetime(2026, 1, 1))


def test_what_is_no_argument(store: Store) -> None:
    for start in (-1, True, "latest", 1.5, None):
        with pytest.raises(Invalid, match="a tailer starts at"):
            Tailer(store, "j", start=start)  # type: ignore[arg-type]
    for name in ("a/b", "", "a b", "n" * 201):
        for made in (Tailer, Appender):
            with pytest.raises(Invalid, match="name"):
                made(store, "j", name)  # type: ignore[operator]
    for made in (Tailer, Appender):
        with pytest.raises(Invalid, match="is no journal name"):
            made(store, "no journal")  # type: ignore[operator]
    with Tailer(store, "j") as tailer:
        for offset in (-1, True, "1"):
            with pytest.raises(Invalid, match="an offset is a number"):
                tailer.to(offset)  # type: ignore[arg-type]
        for limit in (0, -1, True, "1"):
            with pytest.raises(Invalid, match="read 1 message or more"):
                tailer.read_many(limit)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="is no duration"):
            tailer.read("soon")
        with pytest.raises(Invalid, match="each of them named once"):
            any_of([tailer, tailer])
    with pytest.raises(Invalid, match="each of them named once"):
        any_of([])
    assert store.consumers() == []


# -- waiting ------------------------------------------------------------------------------------------------------


def in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Begin it; what it answers, or raises, is to be asked for."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(PATIENCE_S)
        assert found, "no answer"
        return found[0]

    return result


def waits(store: Store, count: int = 1) -> None:
    eventually(lambda: waiters(store) == count, what="somebody waiting")


def test_waits_for_a_message(store: Store) -> None:
    with Tailer(store, "j") as tailer:
        for number in range(3):
            read = in_thread(lambda: tailer.read(timeout=None))
            waits(store)
            fill(store, str(number))
            assert body(read()) == str(number)
            assert waiters(store) == 0
        many = in_thread(lambda: tailer.read_many(10, timeout="1h"))
        waits(store)
        fill(store, *"ab")
        assert bodies(many()) == "ab"


def test_after_the_time(store: Store) -> None:
    with Tailer(store, "j") as tailer:
        assert tailer.read(timeout="5ms") is None
        assert tailer.read_many(5, timeout=timedelta(milliseconds=5)) == []
        assert any_of([tailer], timeout="5ms") is None
        assert waiters(store) == 0


def test_unblocked(store: Store) -> None:
    with Tailer(store, "j") as tailer, Tailer(store, "k") as other:
        read = in_thread(lambda: tailer.read(timeout=None))
        waits(store)
        tailer.unblock()
        assert read() is None
        assert waiters(store) == 0
        assert tailer.read(timeout=None) is None  # it stays so
        assert any_of([other, tailer], timeout=None) is None
        fill(store, "a")
        assert body(tailer.read(timeout=None)) == "a"  # what is there is read
        assert tailer.blockable() is tailer
        read = in_thread(lambda: any_of([other, tailer], timeout=None))
        waits(store, 2)
        tailer.unblock()
        assert read() is None
        assert waiters(store) == 0
        tailer.blockable()
        read = in_thread(lambda: tailer.read(timeout=None))
        waits(store)
        fill(store, "b")
        assert body(read()) == "b"


def test_a_journal_that_is_deleted_while_somebody_waits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailers, "LOOK_S", 0.01)
    fill(store, *"abc")
    with Tailer(store, "j", start="end") as tailer:
        read = in_thread(lambda: tailer.read(timeout=None))
        waits(store)
        store.journal("j").delete()
        fill(store, "x")
        error = read()
        assert isinstance(error, NotFound)
        assert "deleted, or is another one" in str(error)
        assert waiters(store) == 0
        assert body(tailer.to_start().read()) == "x"


def test_one_thread_at_a_time(store: Store) -> None:
    with Tailer(store, "j", "n") as tailer, Tailer(store, "k") as other:
        read = in_thread(lambda: tailer.read(timeout=None))
        waits(store)
        for call in (
            tailer.read,
            tailer.peek,
            tailer.to_start,
            tailer.backward,
            tailer.save,
            lambda: any_of([other, tailer]),
        ):
            with pytest.raises(Invalid, match="another thread uses the tailer of 'j'"):
                call()
        assert other.read() is None  # it was let go
        assert (tailer.position, tailer.last_read) == (0, None)
        tailer.unblock()
        assert read() is None


def test_closing_lets_a_read_return_first(store: Store) -> None:
    tailer = Tailer(store, "j", "n")
    read = in_thread(lambda: tailer.read(timeout=None))
    waits(store)
    tailer.close()
    tailer.close()
    assert read() is None
    for call in (tailer.read, tailer.peek, tailer.to_end, tailer.save, lambda: any_of([tailer])):
        with pytest.raises(Invalid, match="is closed"):
            call()


# -- any of several -----------------------------------------------------------------------------------------------


def test_any_of_takes_turns(store: Store) -> None:
    fill(store, *"abcdef")
    fill(store, *"xyz", journal="k")
    with Tailer(store, "j") as one, Tailer(store, "k") as two:
        found = [any_of([one, two], timeout="0s") for _ in range(10)]
        assert bodies(item[1] for item in found[:9] if item) == "axbyczdef"
        assert [item[0] for item in found[:4] if item] == [one, two, one, two]
        assert found[9] is None


def test_any_of_in_strict_order(store: Store) -> None:
    fill(store, *"abc")
    fill(store, *"xyz", journal="k")
    with Tailer(store, "j") as one, Tailer(store, "k") as two:
        found = [any_of([two, one], timeout="0s", fair=False) for _ in range(6)]
        assert bodies(item[1] for item in found if item) == "xyzabc"


def test_a_busy_journal_starves_nobody(store: Store) -> None:
    """One that never runs dry, another that has a message now and then."""
    fill(store, *"a" * 100)
    with Tailer(store, "j") as busy, Tailer(store, "k") as quiet:
        for number in range(10):
            for _ in range(number):
                found = any_of([busy, quiet], timeout="0s")
                assert found is not None
                assert found[0] is busy
            fill(store, "q", journal="k")
            found = [any_of([busy, quiet], timeout="0s") for _ in range(2)]
            assert quiet in [item[0] for item in found if item]


def test_any_of_does_one_read(store: Store) -> None:
    fill(store, "a")
    fill(store, "x", journal="k")
    with Tailer(store, "j") as one, Tailer(store, "j") as same, Tailer(store, "k") as other:
        found = any_of([one, same, other])
        assert found is not None
        assert [one.position, same.position, other.position] == [1, 0, 0]
        assert found[0] is one
        assert {
            (item[0].journal, body(item[1])) for item in [any_of([one, same, other]) for _ in range(2)] if item
        } == {
            ("j", "a"),
            ("k", "x"),
        }
        assert any_of([one, same, other], timeout="0s") is None


def test_any_of_waits_for_several_stores(store: Store) -> None:
    with detent.open("memory:") as far, Tailer(store, "j") as one, Tailer(far, "j") as two, Tailer(far, "j") as same:
        for target, woken in ((far, {two, same}), (store, {one}), (far, {two, same})):
            read = in_thread(lambda: any_of([one, two, same]))
            waits(store)
            waits(far, 2)
            fill(target, "a")
            found = read()
            assert found[0] in woken
            assert (waiters(store), waiters(far)) == (0, 0)
            for left in woken - {found[0]}:
                assert body(left.read()) == "a"


def test_any_of_with_one_that_is_read_backward(store: Store) -> None:
    fill(store, "a")
    with Tailer(store, "j", start="end") as back, Tailer(store, "k") as forward:
        back.backward()
        found = any_of([forward, back])
        assert found is not None
        assert (found[0], body(found[1])) == (back, "a")
        read = in_thread(lambda: any_of([back, forward]))
        waits(store)
        fill(store, "x", journal="k")
        assert read()[0] is forward


def test_nothing_is_left_when_one_of_them_fails(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tailers, "LOOK_S", 0.01)
    fill(store, *"ab", journal="k")
    with Tailer(store, "j") as one, Tailer(store, "k", start="end") as two:
        read = in_thread(lambda: any_of([one, two]))
        waits(store, 2)
        store.journal("k").delete()
        assert isinstance(read(), NotFound)
        assert waiters(store) == 0
        fill(store, "a")
        assert body(one.read()) == "a"


# -- what is kept -------------------------------------------------------------------------------------------------


def test_a_name_keeps_the_place(store: Store) -> None:
    fill(store, *"abcd")
    with Tailer(store, "j", "n") as tailer:
        assert body(tailer.read()) == "a"
        assert saved(store) == 0  # in hand
        assert body(tailer.read()) == "b"
        assert saved(store) == 1
        assert tailer.peek() is not None
        assert saved(store) == 1
    assert saved(store) == 2  # done
    with Tailer(store, "j", "n", start="end") as tailer:  # where it begins is for new ones
        assert (tailer.position, tailer.last_read) == (2, None)
        assert bodies(tailer) == "cd"
        assert saved(store) == 4  # the read that found nothing has saved the last
    with Tailer(store, "j", "other") as tailer, Tailer(store, "j") as nameless:
        assert (tailer.position, nameless.position) == (0, 0)
    assert store.consumer("tailer/j/n").lag() == {0: {"j": 0}}
    assert store.consumer("tailer/j/other").lag() == {0: {"j": 4}}


def test_an_exception_does_not_save_what_was_in_hand(store: Store) -> None:
    fill(store, *"abcdef")
    with pytest.raises(ZeroDivisionError), Tailer(store, "j", "n") as tailer:
        tailer.read()
        tailer.read()
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), Tailer(store, "j", "n") as tailer:
        assert body(tailer.read()) == "b"
        tailer.read_many(3)
        raise ZeroDivisionError
    with Tailer(store, "j", "n") as tailer:
        assert body(tailer.read()) == "c"


def test_any_of_saves_what_was_in_hand(store: Store) -> None:
    fill(store, *"ab")
    fill(store, *"xy", journal="k")
    one, two = Tailer(store, "j", "n"), Tailer(store, "k", "n")
    for _ in range(3):
        any_of([one, two])
    assert (one.position, two.position) == (2, 1)
    with Tailer(store, "j", "n") as first, Tailer(store, "k", "n") as second:
        assert (first.position, second.position) == (1, 1)
    for tailer in (one, two):  # they were opened again
        if tailer.position > 1:
            with pytest.raises(Fenced):
                tailer.close()
        tailer.close()


def test_only_save_saves(store: Store) -> None:
    fill(store, *"abcd")
    with Tailer(store, "j", "n", autosave=False) as tailer:
        tailer.read_many(2)
        tailer.read()
        assert saved(store) == 0
        tailer.to(2).save()
        assert saved(store) == 2
        tailer.read()
    with Tailer(store, "j", "n", autosave=False) as tailer:
        assert tailer.position == 2
    with Tailer(store, "j") as tailer, pytest.raises(Invalid, match="open it with a name"):
        tailer.save()


def test_where_the_end_was_is_kept(store: Store) -> None:
    """A process that dies before it has read anything goes on from there, and not from where the end is then."""
    fill(store, "a")
    for autosave in (True, False):
        name = f"n{autosave}"
        Tailer(store, "j", name, start="end", autosave=autosave)
        fill(store, "b")
        with Tailer(store, "j", name, start="end") as tailer:
            assert (body(tailer.read()), tailer.read()) == ("b", None)


def test_the_newest_has_it(store: Store) -> None:
    fill(store, *"abc")
    older = Tailer(store, "j", "n")
    assert body(older.read()) == "a"
    newer = Tailer(store, "j", "n")
    with pytest.raises(Fenced, match="was opened again"):
        older.read()
    assert older.position == 1  # it has read nothing more
    with pytest.raises(Fenced):
        older.close()
    older.close()
    assert bodies(newer) == "abc"
    newer.close()
    assert saved(store) == 3


def test_a_reset_counts_once(store: Store) -> None:
    fill(store, *"abcd")
    with Tailer(store, "j", "n") as tailer:
        assert bodies(tailer) == "abcd"
        store.consumer("tailer/j/n").reset({"j": 1})
        assert tailer.read() is None  # it is honoured when the tailer is opened
    for _ in range(2):
        Tailer(store, "j", "n", autosave=False)  # saves nothing
        with Tailer(store, "j", "n", autosave=False) as tailer:
            assert (tailer.position, body(tailer.peek())) == (1, "b")
    with Tailer(store, "j", "n") as tailer:
        assert body(tailer.read()) == "b"
    with Tailer(store, "j", "n") as tailer:
        assert body(tailer.read()) == "c"
    store.consumer("tailer/j/n").reset({"j": 0})
    store.consumer("tailer/j/n").reset({"j": 3})
    with Tailer(store, "j", "n") as tailer:
        assert bodies(tailer) == "d"


def test_a_saved_place_that_was_trimmed_away(store: Store) -> None:
    fill(store, *"abcd")
    with Tailer(store, "j", "n") as tailer:
        tailer.read()
    store.journal("j").trim(3)
    with Tailer(store, "j", "n") as tailer:
        assert tailer.position == 1
        for _ in range(2):
            with pytest.raises(NotFound, match="begins at 3 now, and was read to 1"):
                tailer.read()
        assert body(tailer.to_start().read()) == "d"
    assert saved(store) == 4


def test_another_journal_of_that_name(store: Store) -> None:
    fill(store, *"ab")
    with Tailer(store, "j", "n") as tailer:
        tailer.read()
    store.journal("j").delete()
    fill(store, *"xyz")
    with Tailer(store, "j", "n") as tailer:
        with pytest.raises(NotFound, match="deleted, or is another one"):
            tailer.read()
        assert body(tailer.to(1).read()) == "y"
    with Tailer(store, "j", "n") as tailer:
        assert body(tailer.read()) == "z"


def test_deleted(store: Store) -> None:
    fill(store, *"ab")
    with Tailer(store, "j", "n") as tailer:
        tailer.read()
    delete_tailer(store, "j", "n")
    assert store.consumers() == []
    with pytest.raises(NotFound, match="tailer/j/n"):
        delete_tailer(store, "j", "n")
    open_one = Tailer(store, "j", "n")
    assert body(open_one.read()) == "a"
    delete_tailer(store, "j", "n")
    with pytest.raises(NotFound):
        open_one.save()
    with Tailer(store, "j", "n") as tailer:  # made anew: the fence is not the same
        assert tailer.position == 0
        with pytest.raises(Fenced):
            open_one.save()


def test_the_same_place_is_not_saved_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, "a")
    with Tailer(store, "j", "n") as tailer:
        tailer.read()
        tailer.read()
        monkeypatch.setattr(store, "commit", lambda _: pytest.fail("saved again"))
        assert tailer.read() is None
        tailer.save()
        assert any_of([tailer], timeout="0s") is None


# -- with a transaction ---------------------------------------------------------------------------------------------


def test_position_and_effect_commit_together(store: Store) -> None:
    fill(store, *"abc")
    with Tailer(store, "j", "n", autosave=False) as tailer:
        with store.transaction() as transaction:
            for message in tailer.read_many(2):
                transaction.append("out", message.body)
            tailer.save_in(transaction)
            assert saved(store) == 0
        assert saved(store) == 2
        with pytest.raises(ZeroDivisionError), store.transaction() as transaction:
            tailer.read()
            transaction.append("out", b"never")
            tailer.save_in(transaction)
            raise ZeroDivisionError
        assert saved(store) == 2
        with store.transaction() as transaction:  # the one before has come to nothing, and can not any more
            transaction.append("out", b"c")
            tailer.save_in(transaction)
    assert saved(store) == 3
    assert bodies(store.journal("out").read()) == "abc"


def test_several_times_in_one_transaction(store: Store) -> None:
    fill(store, *"abc")
    with Tailer(store, "j", "n", autosave=False) as tailer:
        with store.transaction() as transaction:
            for message in tailer:
                transaction.append("out", message.body)
                tailer.save_in(transaction)
        assert (saved(store), bodies(store.journal("out").read())) == (3, "abc")
        tailer.save()


def test_a_transaction_of_one_that_was_opened_again(store: Store) -> None:
    fill(store, *"ab")
    older = Tailer(store, "j", "n", autosave=False)
    older.read()
    transaction = store.transaction()
    transaction.append("out", b"a")
    older.save_in(transaction)
    with Tailer(store, "j", "n") as tailer:
        with pytest.raises(Fenced):
            transaction.commit()
        assert store.journals("out") == []
        with pytest.raises(Fenced, match="the tailer 'n' of 'j' was opened again"):
            older.save_in(store.transaction())
        assert body(tailer.read()) == "a"
    older.close()


def test_a_transaction_whose_outcome_nobody_knew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tries it again is told that it took effect."""
    fill(store, *"ab")
    commit = store.commit

    def silent(operations: list[Any]) -> list[Any]:
        commit(operations)
        raise OutcomeUnknown("no answer")

    with Tailer(store, "j", "n", autosave=False) as tailer:
        tailer.read()
        monkeypatch.setattr(store, "commit", silent)
        with pytest.raises(OutcomeUnknown), store.transaction() as transaction:
            transaction.append("out", b"a")
            tailer.save_in(transaction)
        monkeypatch.undo()
        with pytest.raises(Conflict, match="took effect after all"), store.transaction() as transaction:
            transaction.append("out", b"a")
            tailer.save_in(transaction)
        assert bodies(store.journal("out").read()) == "a"
        tailer.read()
        with store.transaction() as transaction:
            transaction.append("out", b"b")
            tailer.save_in(transaction)
    assert (saved(store), bodies(store.journal("out").read())) == (2, "ab")


def test_what_cannot_be_saved_with_a_transaction(store: Store) -> None:
    with Tailer(store, "j", "n") as tailer, pytest.raises(Invalid, match="autosave=False"):
        tailer.save_in(store.transaction())
    with Tailer(store, "j", autosave=False) as tailer, pytest.raises(Invalid, match="open it with a name"):
        tailer.save_in(store.transaction())


def test_a_save_that_nobody_answered(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is still under way must not put an older place over a newer one."""
    fill(store, *"abc")
    commit, late = store.commit, []

    def stuck(operations: list[Any]) -> list[Any]:
        late.append(operations)
        raise OutcomeUnknown("no answer")

    with Tailer(store, "j", "n") as tailer:
        tailer.read()
        monkeypatch.setattr(store, "commit", stuck)
        with pytest.raises(OutcomeUnknown):
            tailer.read()
        monkeypatch.undo()
        assert body(tailer.read()) == "b"
        assert saved(store) == 1
        tailer.read()
        with pytest.raises(Fenced):
            commit(late[0])
    assert saved(store) == 3


def test_a_save_that_was_refused_for_now(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, *"ab")

    def unavailable(_: list[Any]) -> list[Any]:
        raise Unavailable("not now")

    with Tailer(store, "j", "n") as tailer:
        tailer.read()
        monkeypatch.setattr(store, "commit", unavailable)
        for _ in range(2):
            with pytest.raises(Unavailable):
                tailer.read()
        monkeypatch.undo()
        assert body(tailer.read()) == "b"


# -- appenders ----------------------------------------------------------------------------------------------------


def test_an_appender_without_a_name(store: Store) -> None:
    appender = Appender(store, "j")
    assert (appender.last_offset, appender.last_number) == (None, None)
    answer = appender.append(b"a", key=b"k", headers={"h": "1"})
    assert answer is not None
    assert (answer.offset, appender.last_offset, appender.last_number) == (0, 0, None)
    appender.append_many([b"b", (b"c", b"k"), (b"d", None, {"h": "2"})])
    assert appender.last_offset == 3
    found = list(store.journal("j").read())
    assert bodies(found) == "abcd"
    assert [(message.key, message.headers) for message in found] == [
        (b"k", {"h": "1"}),
        (None, {}),
        (b"k", {}),
        (None, {"h": "2"}),
    ]
    for call in (lambda: appender.append(b"x", number=1), lambda: appender.append_many([b"x"], first_number=1)):
        with pytest.raises(Invalid, match="give it a name"):
            call()


def test_a_number_is_appended_once(store: Store) -> None:
    for _ in range(2):
        appender = Appender(store, "j", "n")
        for number in (0, 1, 5, 5, 3):
            appender.append(str(number).encode(), number=number)
        assert appender.last_number == 5
    assert bodies(store.journal("j").read()) == "015"
    assert appender.last_offset is None  # this one has appended nothing
    assert (appender.append(b"5", number=5), appender.last_offset) == (None, None)
    answer = appender.append(b"6", number=6)
    assert answer is not None
    assert (answer.offset, appender.last_offset, appender.last_number) == (3, 3, 6)
    assert store.consumer("appender/j/n").lag() == {0: {"j": 4}}  # it reads nothing, and says nothing of that


def test_some_are_there_already(store: Store) -> None:
    appender = Appender(store, "j", "n")
    for first, entries, offset in ((0, "abc", 0), (0, "abc", None), (1, "bcd", 3), (2, "cd", None), (9, "e", 4)):
        answer = appender.append_many([letter.encode() for letter in entries], first_number=first)
        assert (None if answer is None else answer.offset) == offset
    assert bodies(store.journal("j").read()) == "abcde"
    assert (appender.last_number, appender.last_offset) == (9, 4)
    with pytest.raises(Invalid, match="nothing to append"):
        appender.append_many([], first_number=10)


def test_many_small_ones(store: Store) -> None:
    """As many as travel packed."""
    appender = Appender(store, "j", "n")
    everything = [str(number).encode() for number in range(300)]
    for first in range(0, 300, 70):
        appender.append_many(everything[max(0, first - 30) : first + 70], first_number=max(0, first - 30))
    assert [message.body for message in store.journal("j").read()] == everything


def test_what_is_no_number(store: Store) -> None:
    appender = Appender(store, "j", "n")
    for number in (-1, True, "1", 1.0, AT_MAX):
        with pytest.raises(Invalid, match="numbered from 0 on"):
            appender.append(b"x", number=number)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="say which this one has"):
        appender.append(b"x")
    with pytest.raises(Invalid, match="for one message use append"):
        appender.append_many(b"abc", first_number=0)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="a body is bytes"):
        appender.append("x", number=0)  # type: ignore[arg-type]
    assert store.journals() == []
    assert appender.append(b"x", number=AT_MAX - 1) is not None
    assert Appender(store, "j", "n").last_number == AT_MAX - 1


def test_the_newest_appender_has_it(store: Store) -> None:
    older = Appender(store, "j", "n")
    older.append(b"a", number=0)
    newer = Appender(store, "j", "n")
    with pytest.raises(Fenced, match="was opened again"):
        older.append(b"b", number=1)
    newer.append(b"b", number=1)
    assert older.append(b"a", number=0) is None  # that much it knows
    assert bodies(store.journal("j").read()) == "ab"


@pytest.mark.parametrize("applied", [True, False])
def test_an_append_that_nobody_answered(store: Store, monkeypatch: pytest.MonkeyPatch, applied: bool) -> None:
    """The same number again: appended now if it was not; and what is still under way comes to nothing."""
    appender = Appender(store, "j", "n")
    appender.append(b"a", number=0)
    commit, late = store.commit, []

    def silent(operations: list[Any]) -> list[Any]:
        late.append(operations)
        if applied:
            commit(operations)
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(store, "commit", silent)
    with pytest.raises(OutcomeUnknown):
        appender.append_many([b"b", b"c"], first_number=1)
    monkeypatch.undo()
    assert (appender.append_many([b"b", b"c"], first_number=1) is None) is applied
    with pytest.raises(Fenced):
        commit(late[0])
    appender.append(b"d", number=3)
    assert bodies(store.journal("j").read()) == "abcd"


def test_one_that_was_opened_again_does_not_take_it_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = Appender(store, "j", "n")

    def silent(_: list[Any]) -> list[Any]:
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(store, "commit", silent)
    with pytest.raises(OutcomeUnknown):
        appender.append(b"a", number=0)
    monkeypatch.undo()
    newer = Appender(store, "j", "n")
    with pytest.raises(Fenced, match="the appender 'n' of 'j' was opened again"):
        appender.append(b"a", number=0)
    newer.append(b"a", number=0)
    assert bodies(store.journal("j").read()) == "a"


def test_the_journal_of_an_appender_was_deleted(store: Store) -> None:
    """What counts as there already must be there."""
    appender = Appender(store, "j", "n")
    for number in range(2):
        appender.append(b"x", number=number)
    store.journal("j").delete()
    for _ in range(2):
        with pytest.raises(NotFound, match="delete the appender too"):
            Appender(store, "j", "n")
        fill(store, "other")
    delete_appender(store, "j", "n")
    assert Appender(store, "j", "n").append(b"a", number=0) is not None
    with pytest.raises(NotFound):
        delete_appender(store, "j", "none")


def test_an_appender_is_reset(store: Store) -> None:
    appender = Appender(store, "j", "n")
    appender.append_many([b"a", b"b", b"c"], first_number=0)
    store.consumer("appender/j/n").reset({"j": 1})
    appender = Appender(store, "j", "n")
    assert (appender.last_number, appender.append(b"a", number=0)) == (0, None)
    assert appender.append(b"b", number=1) is not None
    assert Appender(store, "j", "n").last_number == 1


def test_threads_share_an_appender(store: Store) -> None:
    """Each number once, whoever comes first with it."""
    appender, lock, numbers = Appender(store, "j", "n"), threading.Lock(), iter(range(60))

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
                if number is None:
                    return
                appender.append(str(number).encode(), number=number)
            appender.append(str(number).encode(), number=number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [int(message.body) for message in store.journal("j").read()] == [*range(60)]


def test_appenders_and_tailers_by_name_do_not_meet(store: Store) -> None:
    Appender(store, "j", "n").append(b"a", number=7)
    with Tailer(store, "j", "n") as tailer:
        assert tailer.position == 0
    with Tailer(store, "j/k", "n"), Tailer(store, "j", "k"):
        assert sorted(info.name for info in store.consumers()) == [
            "appender/j/n",
            "tailer/j/k",
            "tailer/j/k/n",
            "tailer/j/n",
        ]


# -- bytes --------------------------------------------------------------------------------------------------------

PLACES = [SavedPlace(0), SavedPlace(7, 3, 2), SavedPlace(AT_MAX, (1 << 63) - 1, (1 << 63) - 1)]


@pytest.mark.parametrize("place", PLACES)
def test_a_place_as_bytes(place: SavedPlace) -> None:
    data = place.encode()
    assert len(data) <= PLACE_BYTES_MAX
    assert SavedPlace.decode(data) == place
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            SavedPlace.decode(data[:end])
    for bit in range(len(data) * 8):
        torn = bytearray(data)
        torn[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            SavedPlace.decode(bytes(torn))


def checked(content: bytes) -> bytes:
    return content + xxhash.xxh64_digest(content)


@given(st.binary(max_size=2 * PLACE_BYTES_MAX))
def test_any_bytes(data: bytes) -> None:
    for each in (data, checked(data), checked(b"\x01" + data)):
        try:
            found = SavedPlace.decode(each)
        except Corrupt:
            continue
        assert SavedPlace.decode(found.encode()) == found


@pytest.mark.parametrize(
    "content",
    [[-1, None, 0], [AT_MAX + 1, None, 0], [0, -1, 0], [0, None, -1], [0, None, 0, 0], ["0", None, 0], [], {"at": 0}],
)
def test_what_is_no_place(content: Any) -> None:
    with pytest.raises(Corrupt, match="are not a kept place"):
        SavedPlace.decode(checked(b"\x01" + msgspec.msgpack.encode(content)))


def test_a_place_of_another_release() -> None:
    with pytest.raises(Corrupt, match="of format 2, and this release knows format 1"):
        SavedPlace.decode(checked(b"\x02" + msgspec.msgpack.encode([0, None, 0])))


def test_a_damaged_place_is_no_beginning(store: Store) -> None:
    fill(store, "a")
    with Tailer(store, "j", "n"):
        pass
    opened = store.commit([shards.OpenShard("tailer/j/n", 0)])[0]
    store.commit([shards.CommitShard("tailer/j/n", 0, opened.fence, b"damaged")])
    with pytest.raises(Corrupt):
        Tailer(store, "j", "n")
