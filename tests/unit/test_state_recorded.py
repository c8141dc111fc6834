"""The recorded state: its log, snapshots, hand-offs, file and standby."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import detent
from detent.errors import Corrupt, Fenced
from detent.state import Checkpoint, RecordedState, ShardName
from detent.state.recovery_log import (
    AUTHOR,
    SNAPSHOT,
    Playback,
    SnapshotPart,
    decode_record,
    encode_record,
    log_name,
    play_log,
)
from detent.state.recovery_log import (
    RecordedCommit as Recorded,
)
from detent.state.state_file import StateFile
from processes import eventually

SHARD = ShardName("c", 0)
LOG = log_name(SHARD)


@pytest.fixture
def store() -> Iterator[detent.Store]:
    with detent.open("memory:") as store:
        yield store


def commit(shard: Any, number: int, **values: Any) -> None:
    handle = shard.begin(lambda: None)
    for key, value in values.items():
        if value is None:
            del handle[key]
        else:
            handle[key] = value
    shard.commit(shard.seal(handle), Checkpoint({"in": number}, transaction=number), [])


def restored(state: RecordedState, store: detent.Store) -> Any:
    shard = state.open(store, SHARD)
    shard.restore()
    return shard


def values(shard: Any) -> dict[str, Any]:
    handle = shard.begin(lambda: None)
    try:
        return dict(handle)
    finally:
        shard.discard(handle)


# -- the log ----------------------------------------------------------------------------------------------------


def test_every_commit_is_a_record_and_another_machine_plays_them(store: detent.Store, tmp_path: Path) -> None:
    first = restored(RecordedState(tmp_path / "a"), store)
    commit(first, 1, x=1, y=[1, 2])
    commit(first, 2, x=2, z={"deep": [None]})
    commit(first, 3, y=None)
    assert store.journal(LOG).info().messages == 4, "a hand-off and three commits"
    second = RecordedState(tmp_path / "b").open(store, SHARD)
    assert second.restore() == Checkpoint({"in": 3}, transaction=3)
    assert values(second) == {"x": 2, "z": {"deep": [None]}}


def test_values_changed_in_place_are_recorded(store: detent.Store, tmp_path: Path) -> None:
    first = restored(RecordedState(tmp_path / "a"), store)
    commit(first, 1, orders=[1], names={"a": {"n": 1}})
    handle = first.begin(lambda: None)
    handle["orders"].append(2)
    for _, value in handle.items_with("names"):
        value["a"]["n"] += 1
    first.commit(first.seal(handle), Checkpoint({"in": 2}), [])
    assert values(restored(RecordedState(tmp_path / "b"), store)) == {"orders": [1, 2], "names": {"a": {"n": 2}}}


def test_reading_is_not_recorded(store: detent.Store, tmp_path: Path) -> None:
    shard = restored(RecordedState(tmp_path / "a"), store)
    commit(shard, 1, orders=[1])
    handle = shard.begin(lambda: None)
    assert handle["orders"] == [1]
    handle["orders"] = [1]
    assert shard.seal(handle) == {}


def test_an_author_checks_its_register_with_each_append(store: detent.Store, tmp_path: Path) -> None:
    shard = restored(RecordedState(tmp_path / "a"), store)
    commit(shard, 1, x=1)
    store.journal(LOG).set_registers({AUTHOR: "somebody"})
    before = store.journal(LOG).info().messages
    with pytest.raises(Fenced, match="taken over"):
        commit(shard, 2, x=2)
    assert store.journal(LOG).info().messages == before


def test_a_hand_off_waits_for_what_the_last_author_still_wrote(store: detent.Store, tmp_path: Path) -> None:
    """A commit that lands between the playback and the hand-off is played before there is another author."""
    old = restored(RecordedState(tmp_path / "a"), store)
    commit(old, 1, x=1)
    new = RecordedState(tmp_path / "b").open(store, SHARD)
    commits = iter([2, 3])
    real = store.commit

    def racing(operations: list[Any]) -> list[Any]:
        if any(type(one).__name__ == "CheckHead" for one in operations):
            number = next(commits, None)
            if number is not None:
                store.commit = real  # type: ignore[method-assign]
                commit(old, number, x=number)
                store.commit = racing  # type: ignore[method-assign]
        return real(operations)

    store.commit = racing  # type: ignore[method-assign]
    assert new.restore() == Checkpoint({"in": 3}, transaction=3)
    store.commit = real  # type: ignore[method-assign]
    assert values(new) == {"x": 3}
    with pytest.raises(Fenced):
        commit(old, 4, x=4)


def test_snapshots_prune_the_log(store: detent.Store, tmp_path: Path) -> None:
    shard = restored(RecordedState(tmp_path / "a", snapshot_bytes=500), store)
    for number in range(1, 200):
        commit(shard, number, **{f"k{number % 5}": number, "gone": 1})
        commit(shard, number, gone=None)
    info = store.journal(LOG).info()
    assert info.messages < 30, "what came before the last snapshot is gone"
    assert int(info.registers[SNAPSHOT]) == info.first_offset
    again = restored(RecordedState(tmp_path / "b"), store)
    assert values(again) == {f"k{number % 5}": number for number in range(195, 200)}


def test_a_large_snapshot_has_parts(store: detent.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detent.state.recovery_log.PART_BYTES", 300)
    monkeypatch.setattr("detent.state.recorded.APPEND_BYTES", 1000)
    shard = restored(RecordedState(tmp_path / "a", snapshot_bytes=2000), store)
    expected = {}
    for number in range(100):
        expected[f"key-{number}"] = "v" * 30
        commit(shard, number, **{f"key-{number}": "v" * 30})
    parts = [one for one in map(record_of, store.journal(LOG).read()) if isinstance(one, SnapshotPart)]
    assert len(parts) > 5
    assert values(restored(RecordedState(tmp_path / "b"), store)) == expected


def record_of(message: detent.Message) -> Any:
    return decode_record(message.body)


def test_a_snapshot_that_was_not_finished_is_played_over(
    store: detent.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its author died before the register named it: the records before it are all there."""
    monkeypatch.setattr("detent.state.recovery_log.PART_BYTES", 50)
    monkeypatch.setattr("detent.state.recorded.APPEND_BYTES", 60)
    shard = restored(RecordedState(tmp_path / "a", snapshot_bytes=400), store)
    appends = []
    real = shard._append

    def dying(bodies: list[bytes], more: Any) -> Any:
        if isinstance(decode_record(bodies[0]), SnapshotPart):
            appends.append(bodies)
            if len(appends) == 3:
                raise detent.Unavailable("died")
        return real(bodies, more)

    shard._append = dying
    with pytest.raises(detent.Unavailable):
        for number in range(1, 100):
            commit(shard, number, **{f"k{number}": "v" * 60})
    assert SNAPSHOT not in store.journal(LOG).registers()
    again = restored(RecordedState(tmp_path / "b", snapshot_bytes=400), store)
    assert values(again) == {f"k{count}": "v" * 60 for count in range(1, number + 1)}
    commit(again, number + 1, more=1)
    assert SNAPSHOT in store.journal(LOG).registers()
    assert len(values(restored(RecordedState(tmp_path / "c"), store))) == number + 1


def test_a_log_that_skips_or_repeats_a_record_is_corrupt() -> None:
    first = encode_record(Recorded("a", 0, bytes(8), Checkpoint().encode(), {"x": b"1"}, []))
    second = encode_record(Recorded("a", 1, bytes(8), Checkpoint().encode(), {}, ["x"]))
    playback = Playback()
    playback.play(first)
    for wrong in (first, second):
        with pytest.raises(Corrupt, match="does not follow"):
            playback.play(wrong)
    assert playback.entries == {"x": b"1"}


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_record(data: bytes) -> None:
    try:
        record = decode_record(data)
    except Corrupt:
        return
    assert isinstance(encode_record(record), bytes)


@settings(max_examples=200)
@given(st.binary(max_size=200), st.integers(0, 60))
def test_bytes_that_are_no_checkpoint(data: bytes, at: int) -> None:
    with pytest.raises(Corrupt):
        Checkpoint.decode(data)
    whole = Checkpoint({"in": 5}, transaction=3).encode()
    torn = whole[:at] + bytes([whole[at % len(whole)] ^ 1]) + whole[at + 1 :]
    if torn != whole:
        with pytest.raises(Corrupt):
            Checkpoint.decode(torn)


# -- the file ---------------------------------------------------------------------------------------------------


def test_a_restart_on_the_same_machine_plays_only_what_is_new(
    store: detent.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = RecordedState(tmp_path)
    shard = restored(state, store)
    for number in range(1, 50):
        commit(shard, number, x=number)
    shard.close()
    assert StateFile(tmp_path, SHARD).path.exists()
    played = []
    play = Playback.play
    monkeypatch.setattr(Playback, "play", lambda self, body: (played.append(body), play(self, body)))
    again = restored(state, store)
    assert values(again) == {"x": 49}
    assert len(played) == 1, "its own hand-off"


def sealed(data: bytes) -> bytes:
    """A state file's bytes with the checksum that belongs to them."""
    content = data[: -len(b"0123456789abcdef\n")]
    return content + xxhash.xxh64_hexdigest(content).encode() + b"\n"


@pytest.mark.parametrize("harm", ["torn", "garbage", "empty", "format", "another log", "ahead", "another history"])
def test_a_file_that_does_not_fit_is_left_aside(store: detent.Store, tmp_path: Path, harm: str) -> None:
    state = RecordedState(tmp_path)
    shard = restored(state, store)
    commit(shard, 1, x=1)
    shard.close()
    path = StateFile(tmp_path, SHARD).path
    whole = path.read_bytes()
    commit(shard, 2, x=2)
    if harm == "torn":
        path.write_bytes(whole[:-5])
    elif harm == "garbage":
        path.write_bytes(b"\x00\xff" * 50)
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "format":
        path.write_bytes(sealed(whole.replace(b'"format":2', b'"format":3')))
    elif harm == "another log":
        path.write_bytes(sealed(whole.replace(b'"log":', b'"log":9')))
    elif harm == "ahead":
        path.write_bytes(sealed(whole.replace(b'"at":2', b'"at":200')))
    else:
        path.write_bytes(sealed(whole.replace(b'"at":2', b'"at":3')))
    assert path.read_bytes() != whole
    again = restored(state, store)
    assert values(again) == {"x": 2}


def test_a_file_is_refused_whichever_of_its_bytes_has_changed(store: detent.Store, tmp_path: Path) -> None:
    shard = restored(RecordedState(tmp_path), store)
    commit(shard, 1, x=1)
    shard.close()
    file = StateFile(tmp_path, SHARD)
    whole, number = file.path.read_bytes(), store.reader.number(LOG)
    found = file.load(number)
    assert found is not None
    assert found.entries == {"x": b"1"}
    for at in range(len(whole)):
        for byte in {whole[at] ^ 1, whole[at] ^ 0x20, ord("7")} - {whole[at]}:
            file.path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
            with pytest.raises(Corrupt):
                file.load(number)
    for size in range(len(whole)):
        file.path.write_bytes(whole[:size])
        with pytest.raises(Corrupt):
            file.load(number)


def test_a_file_that_cannot_be_written_is_no_failure(store: detent.Store, tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"a file where the folder should be")
    state = RecordedState(tmp_path / "taken", snapshot_bytes=100)
    shard = restored(state, store)
    for number in range(1, 20):
        commit(shard, number, x=number)
    shard.close()
    assert values(restored(state, store)) == {"x": 19}


def test_an_old_file_whose_place_in_the_log_was_pruned(store: detent.Store, tmp_path: Path) -> None:
    here, there = RecordedState(tmp_path / "a"), RecordedState(tmp_path / "b", snapshot_bytes=300)
    shard = restored(here, store)
    commit(shard, 1, x=1, old=1)
    shard.close()
    other = restored(there, store)
    commit(other, 2, old=None)
    for number in range(3, 30):
        commit(other, number, x=number)
    assert store.journal(LOG).info().first_offset > 3
    assert values(restored(here, store)) == {"x": 29}


# -- the standby ------------------------------------------------------------------------------------------------


def test_a_standby_follows_and_takes_over(store: detent.Store, tmp_path: Path) -> None:
    primary = restored(RecordedState(tmp_path / "a", snapshot_bytes=300), store)
    standby = RecordedState(tmp_path / "b").standby(store, SHARD)
    stop = threading.Event()
    thread = threading.Thread(target=standby.follow, args=(stop.is_set,))
    thread.start()
    for number in range(1, 60):
        commit(primary, number, x=number, **{f"k{number % 3}": number})
    eventually(lambda: standby.playback.entries.get("x") == b"59", what="the standby keeping up")
    stop.set()
    thread.join()
    commit(primary, 60, x=60)
    heir = standby.take_over()
    assert heir.restore() == Checkpoint({"in": 60}, transaction=60), "what came after it looked last, too"
    with pytest.raises(Fenced):
        commit(primary, 61, x=61)
    commit(heir, 61, x=161)
    assert values(heir)["x"] == 161
    assert values(restored(RecordedState(tmp_path / "c"), store))["x"] == 161


def test_a_standby_that_fell_behind_the_pruned_log_begins_with_the_snapshot(
    store: detent.Store, tmp_path: Path
) -> None:
    primary = restored(RecordedState(tmp_path / "a", snapshot_bytes=200), store)
    commit(primary, 1, x=1, gone=1)
    playback = Playback()
    play_log(store, LOG, playback)
    commit(primary, 2, gone=None)
    for number in range(3, 40):
        commit(primary, number, x=number)
    assert store.journal(LOG).info().first_offset > playback.at
    play_log(store, LOG, playback)
    assert playback.entries == {"x": b"39"}
