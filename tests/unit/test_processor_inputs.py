"""Input sets of one journal, of several together, of any of several: what is taken, in which turn, from where on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from functools import partialmethod

import pytest

import detent
from detent import NotFound, Store
from detent.processor import stream
from detent.processor.declaration import Mode, place
from detent.processor.inputs import ProcessorInputs as Inputs
from detent.processor.inputs import Taken
from detent.processor.records import JournalId, Snapshot
from detent.processor.runner import Runner, journal_ids
from detent.stream import following
from processes import eventually

SERIES = "0" * 32
LONG_S = 60.0
MODES: tuple[tuple[Mode, list[str]], ...] = (("one", ["a"]), ("zip", ["a", "b"]), ("any", ["a", "b"]))


@pytest.fixture
def store() -> Iterator[Store]:
    with detent.open("memory:") as store:
        yield store


def fill(store: Store, **journals: int) -> None:
    """So many messages for each journal, each saying where it is."""
    for journal, count in journals.items():
        start = store.journal(journal).next_offset() if store.reader.number(journal) is not None else 0
        store.journal(journal).append_many([f"{journal}{number}".encode() for number in range(start, start + count)])


def inputs_of(
    store: Store,
    mode: Mode,
    *names: str,
    at: dict[str, int] | None = None,
    journals: dict[str, JournalId] | None = None,
    stores: dict[str, Store] | None = None,
    bell: threading.Event | None = None,
) -> Inputs:
    snapshot = Snapshot(SERIES, positions=dict.fromkeys(names, 0) | (at or {}), journals=journals or {})
    places = [place(name) for name in names]
    return Inputs(mode, places, {"": store, **(stores or {})}, snapshot, bell or threading.Event())


def bodies(taken: Taken | None) -> list[str]:
    assert taken is not None
    return [" ".join(message.body.decode() for message in one) for one in taken.sets]


# -- one journal ------------------------------------------------------------------------------------------------------


def test_one(store: Store) -> None:
    fill(store, a=5)
    inputs = inputs_of(store, "one", "a")
    taken = inputs.take(2)
    assert bodies(taken) == ["a0", "a1"]
    assert taken is not None
    assert [taken.after(count) for count in range(3)] == [{"a": 0}, {"a": 1}, {"a": 2}]
    assert inputs.positions() == {"a": 2}
    assert inputs.journals() == journal_ids({"": store}, [place("a")])
    assert bodies(inputs.take(100)) == ["a2", "a3", "a4"]
    assert inputs.take(100) is None
    assert taken.after(1) == {"a": 1}, "it knows where it was taken, whatever was taken since"
    inputs.move({"a": 1})
    assert bodies(inputs.take(1)) == ["a1"]


def test_one_from_a_snapshot(store: Store) -> None:
    fill(store, a=5)
    assert bodies(inputs_of(store, "one", "a", at={"a": 3}).take(9)) == ["a3", "a4"]
    assert inputs_of(store, "one", "a", at={"a": 5}).take(9) is None


def test_a_journal_that_nobody_has_written_yet(store: Store) -> None:
    for mode in ("one", "zip", "any"):
        inputs = inputs_of(store, mode, "a")
        assert (inputs.take(1) if mode != "any" else inputs.choose(1) or None) is None
        assert (inputs.positions(), inputs.journals()) == ({"a": 0}, {})


def test_messages_say_which_store_they_are_from(store: Store) -> None:
    with detent.open("memory:") as far:
        fill(far, a=1)
        fill(store, a=2)
        inputs = inputs_of(store, "zip", "a", "a@far", stores={"far": far})
        taken = inputs.take(5)
        assert taken is not None
        assert [[message.journal for message in one] for one in taken.sets] == [["a", "a@far"]]
        assert taken.after(1) == {"a": 1, "a@far": 1}
        assert inputs.journals() == journal_ids({"": store, "far": far}, [place("a"), place("a@far")])


# -- joins ------------------------------------------------------------------------------------------------------------


def test_a_join_takes_one_of_each(store: Store) -> None:
    fill(store, a=5, b=2, c=9)
    inputs = inputs_of(store, "zip", "c", "a", "b")
    taken = inputs.take(100)
    assert bodies(taken) == ["c0 a0 b0", "c1 a1 b1"]
    assert taken is not None
    assert taken.after(1) == {"a": 1, "b": 1, "c": 1}
    assert inputs.take(100) is None
    assert inputs.positions() == {"a": 2, "b": 2, "c": 2}, "of those that have more, nothing was taken"
    fill(store, b=1)
    assert bodies(inputs.take(100)) == ["c2 a2 b2"]
    fill(store, b=2)
    assert bodies(inputs.take(1)) == ["c3 a3 b3"]


def test_a_join_from_places_that_differ(store: Store) -> None:
    fill(store, a=5, b=5)
    inputs = inputs_of(store, "zip", "a", "b", at={"a": 3, "b": 1})
    taken = inputs.take(100)
    assert bodies(taken) == ["a3 b1", "a4 b2"]
    assert taken is not None
    assert [taken.after(count) for count in (0, 2)] == [{"a": 3, "b": 1}, {"a": 5, "b": 3}]


def test_a_join_where_reads_end_at_different_places(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PLAN_ROWS", 3)
    for _ in range(4):
        fill(store, a=5, b=2)
    fill(store, b=12)
    inputs = inputs_of(store, "zip", "a", "b")
    found: list[str] = []
    while (taken := inputs.take(100)) is not None:
        found += bodies(taken)
    assert found == [f"a{number} b{number}" for number in range(20)]


# -- any of -----------------------------------------------------------------------------------------------------------


def test_any_of_takes_equal_parts(store: Store) -> None:
    fill(store, a=100, b=100, c=100)
    assert inputs_of(store, "any", "a", "b", "c").choose(9) == [("a", 3), ("b", 3), ("c", 3)]
    assert inputs_of(store, "any", "a", "b", "c").choose(10) == [("a", 4), ("b", 3), ("c", 3)]


def test_any_of_takes_more_of_one_where_others_have_less(store: Store) -> None:
    fill(store, a=1, b=100, c=2)
    assert inputs_of(store, "any", "a", "b", "c").choose(30) == [("a", 1), ("b", 15), ("c", 2)]
    assert inputs_of(store, "any", "b", "z").choose(30) == [("b", 30)]
    assert inputs_of(store, "any", "y", "z").choose(30) == []


def test_any_of_begins_with_another_one_each_time(store: Store) -> None:
    fill(store, a=1000, b=30, c=1000)
    inputs = inputs_of(store, "any", "a", "b", "c")
    found: list[str] = []
    for _ in range(90):
        found += bodies(inputs.take_chosen(inputs.choose(1)))
    assert Counter(body[0] for body in found) == {"a": 30, "b": 30, "c": 30}
    assert [body for body in found if body[0] == "b"] == [f"b{number}" for number in range(30)]


def test_any_of_starves_nobody(store: Store) -> None:
    """An input with a little is read although others always have much, whatever the batch."""
    for batch in (1, 2, 3, 7):
        journals = {f"{name}{batch}": 200 for name in ("x", "y")}
        fill(store, **journals, **{f"z{batch}": 1})
        inputs = inputs_of(store, "any", *journals, f"z{batch}")
        for _ in range(3):
            chosen = inputs.choose(batch)
            assert 0 < sum(count for _, count in chosen) <= batch
            inputs.take_chosen(chosen)
        assert inputs.positions()[f"z{batch}"] == 1


def test_what_was_chosen_is_taken_whatever_has_come_since(store: Store) -> None:
    fill(store, a=2, b=1)
    inputs = inputs_of(store, "any", "a", "b")
    chosen = inputs.choose(10)
    assert chosen == [("a", 2), ("b", 1)]
    assert inputs.positions() == {"a": 0, "b": 0}, "choosing takes nothing"
    fill(store, a=10, b=10)
    taken = inputs.take_chosen(chosen)
    assert bodies(taken) == ["a0", "a1", "b0"]
    assert [taken.after(count) for count in range(4)] == [
        {"a": 0, "b": 0},
        {"a": 1, "b": 0},
        {"a": 2, "b": 0},
        {"a": 2, "b": 1},
    ]
    again = inputs_of(store, "any", "a", "b").take_chosen(chosen)  # as somebody does who comes after a crash
    assert bodies(again) == bodies(taken)


def test_a_choice_is_taken_in_its_order(store: Store) -> None:
    fill(store, a=5, b=5)
    inputs = inputs_of(store, "any", "a", "b", at={"a": 1})
    taken = inputs.take_chosen([("b", 2), ("a", 3)])
    assert bodies(taken) == ["b0", "b1", "a1", "a2", "a3"]
    assert taken.after(3) == {"a": 2, "b": 2}


def test_choices_of_a_batch_that_is_taken_whole(store: Store) -> None:
    fill(store, a=5, b=3)
    assert inputs_of(store, "one", "a").choose(4) == [("", 4)]
    assert inputs_of(store, "zip", "a", "b").choose(4) == [("", 3)]
    assert inputs_of(store, "zip", "a", "z").choose(4) == []
    taken = inputs_of(store, "zip", "a", "b").take_chosen([("", 2)])
    assert bodies(taken) == ["a0 b0", "a1 b1"]
    assert taken.after(2) == {"a": 2, "b": 2}


def test_a_choice_over_several_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        fill(store, a=4)
    monkeypatch.setattr(following, "PLAN_ROWS", 3)
    assert bodies(inputs_of(store, "one", "a").take_chosen([("", 17)])) == [f"a{number}" for number in range(17)]


# -- what is gone -----------------------------------------------------------------------------------------------------


def test_a_choice_that_is_not_there_any_more(store: Store) -> None:
    fill(store, a=3, b=3)
    with pytest.raises(NotFound, match=r"5 messages of 'a' were chosen.*3 of them are there.*reset the processor"):
        inputs_of(store, "any", "a", "b").take_chosen([("b", 1), ("a", 5)])
    with pytest.raises(NotFound, match="5 messages of 'a' were chosen"):
        inputs_of(store, "one", "a").take_chosen([("", 5)])


def test_inputs_that_were_trimmed(store: Store) -> None:
    fill(store, a=5, b=5)
    store.journal("a").trim(3)
    for mode in ("one", "zip"):
        with pytest.raises(NotFound, match="begins at 3 now, and was read to 1"):
            inputs_of(store, mode, "a", at={"a": 1}).take(5)
    for mode in ("one", "any"):
        with pytest.raises(NotFound, match="begins at 3 now"):
            inputs_of(store, mode, "a").choose(5)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="begins at 3 now"):
        inputs_of(store, "any", "b", "a").take_chosen([("b", 1), ("a", 2)])
    assert bodies(inputs_of(store, "one", "a", at={"a": 3}).take(5)) == ["a3", "a4"]


def test_inputs_that_are_others_of_the_same_name(store: Store) -> None:
    fill(store, a=5)
    inputs = inputs_of(store, "one", "a")
    inputs.take(2)
    known = inputs.journals()
    store.journal("a").delete()
    for at in (0, 2):
        with pytest.raises(NotFound, match="deleted, or is another one of that name"):
            inputs_of(store, "one", "a", at={"a": at}, journals=known).take(1)
    fill(store, a=9)
    with pytest.raises(NotFound, match="deleted, or is another one of that name"):
        inputs_of(store, "one", "a", at={"a": 2}, journals=known).take(1)
    assert bodies(inputs_of(store, "one", "a").take(1)) == ["a0"]


# -- waiting ----------------------------------------------------------------------------------------------------------


def watched(store: Store) -> int:
    """How many wait for a journal of this store."""
    return len(store._connection.at_hand.journals.watch)  # type: ignore[union-attr]


class Waiting:
    """Somebody who waits in a thread, for as long as it takes."""

    def __init__(self, inputs: Inputs, bell: threading.Event) -> None:
        self._stopping = False
        self._bell = bell
        self._thread = threading.Thread(target=inputs.wait, args=(lambda: self._stopping, LONG_S))
        self._thread.start()

    def ends(self) -> bool:
        self._thread.join(LONG_S / 2)
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stopping = True
        self._bell.set()

    def is_waiting(self) -> bool:
        return self._thread.is_alive()


def test_a_wait_ends_when_there_is_something(store: Store) -> None:
    fill(store, a=1)
    for mode, names in (("one", ["a"]), ("any", ["b", "a"]), ("zip", ["a", "b"])):
        bell = threading.Event()
        at = {"a": store.journal("a").next_offset()}
        inputs = inputs_of(store, mode, *names, at=at, bell=bell)  # type: ignore[arg-type]
        waiting = Waiting(inputs, bell)
        fill(store, a=1)
        if mode == "zip":
            fill(store, b=1)
        assert waiting.ends(), mode
        inputs.close()
        assert watched(store) == 0


def test_a_wait_ends_when_it_is_told_to(store: Store) -> None:
    bell = threading.Event()
    inputs = inputs_of(store, "any", "a", "b", bell=bell)
    waiting = Waiting(inputs, bell)
    while watched(store) < 2:
        assert waiting.is_waiting()
    waiting.stop()
    assert waiting.ends()
    assert watched(store) == 0
    inputs.wait(lambda: True, LONG_S)  # who is stopped does not begin to wait
    inputs.close()


def test_nobody_waits_for_what_is_there(store: Store) -> None:
    fill(store, a=2, b=1)
    bell = threading.Event()
    for mode in ("one", "any", "zip"):
        names = ["a"] if mode == "one" else ["a", "b"]
        inputs = inputs_of(store, mode, *names, bell=bell)
        inputs.wait(lambda: False, LONG_S)
        inputs.close()
    assert watched(store) == 0


def test_a_join_waits_only_for_what_is_missing(store: Store) -> None:
    fill(store, a=1)
    bell = threading.Event()
    inputs = inputs_of(store, "zip", "a", "b", bell=bell)
    waiting = Waiting(inputs, bell)
    while watched(store) < 1:
        assert waiting.is_waiting()
    fill(store, a=5)  # nobody cares
    assert watched(store) == 1
    fill(store, b=1)
    assert waiting.ends()
    assert bodies(inputs.take(5)) == ["a0 b0"]
    inputs.close()


def test_what_is_known_to_be_still(store: Store) -> None:
    one, join, any_of = (inputs_of(store, mode, *names) for mode, names in MODES)
    all_three = (one, join, any_of)
    assert [inputs.is_still() for inputs in all_three] == [False] * 3  # nobody knows
    fill(store, a=2, b=1)
    assert [inputs.is_still() for inputs in all_three] == [False] * 3
    assert bodies(one.take(1)) == ["a0"]
    assert not one.is_still()  # the next one is at hand
    assert bodies(one.take(1)) == ["a1"]
    assert one.is_still()
    assert bodies(join.take(5)) == ["a0 b0"]
    assert join.is_still()  # a1 is at hand, and has no other half
    any_of.take_chosen([("a", 2)])
    assert not any_of.is_still()
    any_of.take_chosen([("b", 1)])
    assert any_of.is_still()
    fill(store, a=1, b=1)
    assert [inputs.is_still() for inputs in all_three] == [False] * 3
    for inputs in all_three:
        inputs.close()


def test_a_join_does_not_look_at_what_is_known_to_be_missing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, a=2, b=1)
    bell = threading.Event()
    inputs = inputs_of(store, "zip", "a", "b", bell=bell)
    assert bodies(inputs.take(5)) == ["a0 b0"]
    with monkeypatch.context() as patch:
        patch.setattr(store.reader._reader, "view", None)
        inputs.wait(lambda: False, 0)
    assert watched(store) == 0
    fill(store, b=1)
    inputs.wait(lambda: False, LONG_S)
    assert bodies(inputs.take(5)) == ["a1 b1"]
    inputs.close()


def test_one_who_waits_looks_now_and_then(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is known that nothing has come: a journal that was deleted says nothing more."""
    monkeypatch.setattr(Inputs, "wait", partialmethod(Inputs.wait, seconds=0.01))
    fill(store, a=1)
    failures: list[Exception] = []

    def run() -> None:
        try:
            runner.run()
        except NotFound as error:
            failures.append(error)

    runner = Runner("g", stream("f", unchanged, input="a", output="x"), {"": store}, errors=None, delivery="")
    runner.open()
    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: runner.is_waiting and store.journal("x").next_offset() == 1)
    store.journal("a").delete()
    thread.join(LONG_S)
    runner.close()
    assert [str(error) for error in failures if "was deleted" in str(error)]


def unchanged(value: bytes) -> bytes:
    return value
