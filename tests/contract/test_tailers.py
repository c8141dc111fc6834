"""Tailers and appenders over any store: on memory, file, a client, a server, s3."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from contract.backends import OWNERS
from detent import Fenced, NotFound, Store
from detent.remote import LocalOwner
from detent.stream.appender import Appender, delete_appender
from detent.stream.tailer import Tailer, any_of, delete_tailer
from processes import PATIENCE_S, eventually


def owner_of(store: Store) -> Store:
    """The store of whoever owns it."""
    return OWNERS.get(store.url, store)


def waiters(store: Store) -> int:
    owner = owner_of(store)._connection.current
    assert isinstance(owner, LocalOwner)
    return len(owner.journals.watch)


def fill(store: Store, bodies: str, journal: str = "j") -> None:
    store.journal(journal).append_many([letter.encode() for letter in bodies])


def bodies(messages: Any) -> str:
    return "".join(message.body.decode() for message in messages)


def test_back_and_forth(store: Store) -> None:
    with Tailer(store, "j") as tailer:
        assert (tailer.position, tailer.read(), tailer.backward().read()) == (0, None, None)
        fill(store, "abc")
        fill(store, "def")
        store.journal("j").trim(1)
        assert bodies(tailer.to_start().forward().read_many(3)) == "bcd"
        assert bodies(tailer.backward()) == "dcb"
        assert (tailer.position, tailer.last_read) == (1, 1)
        with pytest.raises(NotFound, match="has no offset 0"):
            tailer.to(0)
        assert bodies([*tailer.to(4).forward().read_many(1), *tailer.to_end().backward().read_many(2)]) == "efe"
        message = tailer.to_start().forward().read()
        assert message is not None
        assert (message.journal, message.offset) == ("j", 1)
        assert tailer.to_time(message.published_at + timedelta(hours=1)).position == 6
        assert tailer.to_time(message.published_at - timedelta(hours=1)).position == 1


def test_woken_by_an_append(store: Store) -> None:
    found: list[Any] = []
    with Tailer(store, "j") as one, Tailer(store, "k") as two:
        for journal in "jkj":
            thread = threading.Thread(target=lambda: found.append(any_of([one, two], timeout="1m")))
            thread.start()
            eventually(lambda: waiters(store) == 2, what="somebody waiting")
            fill(owner_of(store), journal, journal)
            thread.join(PATIENCE_S)
        assert bodies(item[1] for item in found) == "jkj"
        thread = threading.Thread(target=lambda: found.append(one.read(timeout=None)))
        thread.start()
        eventually(lambda: waiters(store) == 1, what="somebody waiting")
        one.unblock()
        thread.join(PATIENCE_S)
        assert found[3:] == [None]
        eventually(lambda: waiters(store) == 0, what="nobody waiting")


def test_a_place_is_kept(store: Store) -> None:
    fill(store, "abcd")
    older = Tailer(store, "j", "n")
    assert bodies(older.read_many(2)) == "ab"
    older.save()
    with Tailer(store, "j", "n") as tailer:
        assert bodies(tailer.read_many(1)) == "c"
        older.read_many(1)
        with pytest.raises(Fenced):
            older.close()
    with Tailer(store, "j", "n") as tailer:
        assert (tailer.position, bodies(tailer)) == (3, "d")
    assert store.consumer("tailer/j/n").lag() == {0: {"j": 0}}
    store.consumer("tailer/j/n").reset({"j": 1})
    with Tailer(store, "j", "n") as tailer:
        assert bodies(tailer) == "bcd"
    delete_tailer(store, "j", "n")
    with Tailer(store, "j", "n", start=2) as tailer:
        assert bodies(tailer) == "cd"


def test_position_and_effect_are_one_commit(store: Store) -> None:
    fill(store, "abc")
    older = Tailer(store, "j", "n", autosave=False)
    with store.transaction() as transaction:
        transaction.append_many("out", [message.body for message in older.read_many(2)])
        older.save_in(transaction)
    with Tailer(store, "j", "n", autosave=False) as tailer:
        for each, result in ((older, "ab"), (tailer, "abc")):
            transaction = store.transaction()
            transaction.append_many("out", [message.body for message in each.read_many(2)])
            each.save_in(transaction)
            if each is older:
                with pytest.raises(Fenced):
                    transaction.commit()
            else:
                transaction.commit()
            assert bodies(store.journal("out").read()) == result
    older.close()


def test_gone_messages_are_loud(store: Store) -> None:
    fill(store, "abcd")
    with Tailer(store, "j", "n") as tailer:
        tailer.read()
    store.journal("j").trim(2)
    with Tailer(store, "j", "n") as tailer:
        with pytest.raises(NotFound, match="begins at 2 now"):
            tailer.read()
        assert bodies(tailer.to_start()) == "cd"
    store.journal("j").delete()
    fill(store, "uvwxyz")
    with Tailer(store, "j", "n") as tailer:
        with pytest.raises(NotFound, match="deleted, or is another one"):
            tailer.read()
        assert bodies(tailer.to(5)) == "z"


def test_numbers_are_appended_once(store: Store) -> None:
    older = Appender(store, "j", "n")
    assert older.append_many([b"a", b"b"], first_number=3) is not None
    appender = Appender(store, "j", "n")
    assert appender.last_number == 4
    with pytest.raises(Fenced):
        older.append(b"x", number=5)
    answer = appender.append_many([b"b", b"c"], first_number=4)
    assert answer is not None
    assert (answer.offset, appender.last_offset, appender.append(b"c", number=5)) == (2, 2, None)
    assert bodies(store.journal("j").read()) == "abc"
    store.journal("j").delete()
    with pytest.raises(NotFound, match="delete the appender too"):
        Appender(store, "j", "n")
    delete_appender(store, "j", "n")
    assert Appender(store, "j", "n").append(b"x", number=0) is not None
