"""What a pipeline knows of its messages: each is acknowledged when all its files are completed, and never before."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from detent.ingest import local_state
from detent.ingest.announcements import Announced
from detent.ingest.local_state import HeldMessage, QueueLocalState
from detent.ingest.shared_state import FileShard
from detent.transports.contract import Delivery

A, B, C = b"a", b"b", b"c"


def message(name: str, *keys: bytes, receipt: str = "") -> HeldMessage:
    return HeldMessage(Delivery(name, receipt or f"{name}/1", b""), 0.0, set(keys))


def grant(state: QueueLocalState, key: bytes, *messages: HeldMessage, now: float = 0.0) -> None:
    uri = f"s3://landing/{key.decode()}"
    state.grant(FileShard(key, uri, "", 1), Announced(uri), messages, now)


def commit(state: QueueLocalState, *keys: bytes) -> None:
    state.start(keys)
    state.written(keys)
    state.complete(keys)


def ready(state: QueueLocalState) -> list[bytes]:
    return [file.shard.key for file in state.ready()]


def test_a_file_goes_through_its_stages_and_its_message_is_acknowledged_at_the_end() -> None:
    state, one = QueueLocalState(), message("m", A)
    assert state.receive(one) == {A}
    grant(state, A, one)
    stages = [state.file(A).stage]
    state.start([A])
    stages.append(state.file(A).stage)
    state.written([A])
    stages.append(state.file(A).stage)
    assert (stages, state.acknowledgeable()) == (["ready", "reading", "committing"], [])
    state.complete([A])
    assert (A in state, state.is_completed(A), state.messages()) == (False, True, [])
    assert state.acknowledgeable() == [one]
    assert state.acknowledgeable() == [], "once"


def test_a_message_of_several_files_waits_for_the_last_of_them_whoever_completes_it() -> None:
    state, one = QueueLocalState(), message("m", A, B, C)
    assert state.receive(one) == {A, B, C}
    grant(state, A, one)
    grant(state, B, one)
    assert state.messages() == [one], "one message, though two files hold it"
    state.complete([C], [one])  # another pipeline had finished it
    commit(state, B)
    assert state.acknowledgeable() == []
    commit(state, A)
    assert state.acknowledgeable() == [one]


def test_a_message_that_announces_nothing_or_only_completed_files_is_acknowledged_at_once() -> None:
    state = QueueLocalState()
    nothing, done = message("nothing"), message("done", A)
    assert state.receive(nothing) == set()
    state.complete([A])
    assert state.receive(done) == set()
    assert state.acknowledgeable() == [nothing, done]


def test_a_duplicate_waits_for_the_file_that_is_there_and_is_not_asked_for() -> None:
    state, first, second = QueueLocalState(), message("m1", A), message("m2", A, B)
    state.receive(first)
    grant(state, A, first)
    state.start([A])
    assert state.receive(second) == {B}
    grant(state, B, second)
    state.written([A])
    state.complete([A])
    assert state.acknowledgeable() == [first]
    commit(state, B)
    assert state.acknowledgeable() == [second]


def test_a_message_that_is_delivered_again_is_acknowledged_by_its_new_receipt_alone() -> None:
    state, old, new = QueueLocalState(), message("m", A), message("m", A, receipt="m/2")
    state.receive(old)
    grant(state, A, old)
    old.is_lost = True
    assert state.file(A).is_abandoned
    assert state.receive(new) == set()
    assert not state.file(A).is_abandoned, "there is one again that can be acknowledged"
    commit(state, A)
    assert state.acknowledgeable() == [new]


def test_a_file_is_abandoned_when_the_last_of_its_messages_is_lost() -> None:
    state, first, second = QueueLocalState(), message("m1", A), message("m2", A)
    grant(state, A, first, second)
    grant(state, B)
    first.is_lost = True
    assert not state.file(A).is_abandoned
    second.is_lost = True
    assert state.file(A).is_abandoned
    assert not state.file(B).is_abandoned, "no message ever announced it, as in a backfill"


def test_no_file_gathers_messages_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_state, "MESSAGES_A_FILE_MAX", 3)
    state = QueueLocalState()
    messages = [message(f"m{number}", A) for number in range(5)]
    grant(state, A, *messages)
    commit(state, A)
    assert state.acknowledgeable() == messages[:3]


def test_a_dropped_file_can_be_asked_for_again_and_its_message_is_not_acknowledged() -> None:
    state, one = QueueLocalState(), message("m", A, B)
    state.receive(one)
    grant(state, A, one)
    grant(state, B, one)
    assert state.drop([A, C]) == [one], "what is not there can be dropped, too"
    assert ready(state) == [B]
    commit(state, B)
    assert (state.acknowledgeable(), state.is_completed(A)) == ([], False)
    again = message("m", A, B, receipt="m/2")
    assert state.receive(again) == {A}
    grant(state, A, again)
    commit(state, A)
    assert state.acknowledgeable() == [again]


def test_files_are_ready_in_the_order_in_which_they_came() -> None:
    state = QueueLocalState()
    for now, key in enumerate((B, A, C)):
        grant(state, key, now=now)
    grant(state, B, now=9.0)  # again: it keeps its place
    assert (ready(state), state.file(B).since, len(state)) == ([B, A, C], 0, 3)
    state.start([A])
    grant(state, A, message("late", A))  # again, while it is read: it stays what it is
    assert (ready(state), state.file(A).stage) == ([B, C], "reading")
    assert len(state.file(A).messages) == 1


def test_only_the_latest_completed_files_are_remembered() -> None:
    state = QueueLocalState(completed_max=2)
    state.complete([A, B])
    state.complete([A])  # seen again, and later than B
    state.complete([C])
    assert [state.is_completed(key) for key in (A, B, C)] == [True, False, True]


def test_no_stage_can_be_left_out() -> None:
    state = QueueLocalState()
    grant(state, A)
    with pytest.raises(AssertionError, match="is ready, not reading"):
        state.written([A])
    with pytest.raises(AssertionError, match="is ready, not committing"):
        state.reread([A])
    state.start([A])
    with pytest.raises(KeyError):
        state.start([A])
    with pytest.raises(AssertionError, match="is reading, not committing"):
        state.reread([A])
    state.written([A])
    with pytest.raises(AssertionError, match="is committing, not reading"):
        state.written([A])
    with pytest.raises(KeyError):
        state.written([B])
    state.reread([A])
    assert (state.file(A).stage, ready(state)) == ("reading", [])


# -- any history -----------------------------------------------------------------------------------------------------

KEYS = tuple(bytes([number]) for number in range(97, 103))
MESSAGES = {"m0": (0,), "m1": (0,), "m2": (1, 2), "m3": (2, 3, 4), "m4": (0, 1, 2, 3, 4, 5), "m5": (5,), "m6": ()}
indices = st.integers(0, 5)


class History(RuleBasedStateMachine):
    """Deliveries, answers of the database and batches in any order, against sets that are simple to believe."""

    def __init__(self) -> None:
        super().__init__()
        self.state = QueueLocalState(completed_max=3)
        self.count = 0
        self.completed: set[bytes] = set()
        self.stages: dict[bytes, str] = {}
        self.holders: dict[bytes, dict[str, HeldMessage]] = {}
        """By file, the newest delivery of each message that waits for it."""
        self.missing: dict[str, set[bytes]] = {}
        """By receipt, what a delivery still waits for."""
        self.expected: set[str] = set()
        self.seen: set[str] = set()

    @rule(name=st.sampled_from(sorted(MESSAGES)), answers=st.lists(st.sampled_from("ghf"), min_size=6, max_size=6))
    def deliver(self, name: str, answers: list[str]) -> None:
        """The queue delivers a message, again perhaps, and the database says granted, held or finished."""
        self.count += 1
        files = [KEYS[number] for number in MESSAGES[name]]
        one = message(name, *files, receipt=f"{name}/{self.count}")
        known = {key for key in files if self.state.is_completed(key)}
        self.missing[one.delivery.receipt] = set(files) - known
        wanted = self.state.receive(one)
        assert wanted == set(files) - known - self.stages.keys()
        if known == set(files):
            self.expected.add(one.delivery.receipt)
        for key in set(files) - known - wanted:
            self.holders[key][name] = one
        for key, answer in zip(sorted(wanted), answers, strict=False):
            if answer == "f" or key in self.completed:
                self.holders[key] = {name: one}
                self.state.complete([key], [one])
                self.note_completed(key)
            elif answer == "g":
                grant(self.state, key, one)
                self.stages[key], self.holders[key] = "ready", {name: one}

    @rule(key=st.sampled_from(KEYS))
    def find(self, key: bytes) -> None:
        """A file without a message: of a listing, or left behind."""
        if key not in self.stages and key not in self.completed:
            grant(self.state, key)
            self.stages[key], self.holders[key] = "ready", {}

    @precondition(lambda self: "ready" in self.stages.values())
    @rule(count=st.integers(1, 3))
    def start(self, count: int) -> None:
        keys = ready(self.state)[:count]
        self.state.start(keys)
        self.stages.update(dict.fromkeys(keys, "reading"))

    @rule()
    def write(self) -> None:
        keys = [key for key, stage in self.stages.items() if stage == "reading"]
        self.state.written(keys)
        self.stages.update(dict.fromkeys(keys, "committing"))

    @rule(is_refused=st.booleans())
    def end_commit(self, is_refused: bool) -> None:
        keys = [key for key, stage in self.stages.items() if stage == "committing"]
        if is_refused:
            self.state.reread(keys)
            self.stages.update(dict.fromkeys(keys, "reading"))
        else:
            self.state.complete(keys)
            for key in keys:
                self.note_completed(key)

    @rule(key=st.sampled_from(KEYS))
    def drop(self, key: bytes) -> None:
        """It failed, or was lost to another pipeline."""
        dropped = self.state.drop([key])
        self.stages.pop(key, None)
        assert {one.delivery.receipt for one in dropped} == {
            one.delivery.receipt for one in self.holders.pop(key, {}).values()
        }

    def note_completed(self, key: bytes) -> None:
        self.completed.add(key)
        self.stages.pop(key, None)
        for one in self.holders.pop(key, {}).values():
            missing = self.missing[one.delivery.receipt]
            missing.discard(key)
            if not missing:
                self.expected.add(one.delivery.receipt)

    @invariant()
    def acknowledges_exactly_what_is_done(self) -> None:
        found = self.state.acknowledgeable()
        receipts = {one.delivery.receipt for one in found}
        assert len(receipts) == len(found)
        assert not receipts & self.seen, "acknowledged twice"
        for one in found:
            assert {KEYS[number] for number in MESSAGES[one.delivery.message_id]} <= self.completed
        self.seen |= receipts
        assert self.seen == self.expected

    @invariant()
    def is_as_large_as_what_it_holds(self) -> None:
        assert {file.shard.key: file.stage for file in self.state.files()} == self.stages
        assert set(ready(self.state)) == {key for key, stage in self.stages.items() if stage == "ready"}
        remembered = {key for key in KEYS if self.state.is_completed(key)}
        assert remembered <= self.completed
        assert len(remembered) == min(3, len(self.completed))
        held = {one.delivery.receipt for holders in self.holders.values() for one in holders.values()}
        assert {one.delivery.receipt for one in self.state.messages()} == held


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=3_000 if os.environ.get("DETENT_SOAK") else 100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
