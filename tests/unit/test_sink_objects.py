"""Deliveries as objects: one put takes a name, and what is there already is judged by its name."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from detent import kv
from detent.errors import Conflict, Invalid, Unavailable
from detent.journal import Message
from detent.kv import localobjects, memory
from detent.processor.sink_objects import ObjectSink
from detent.processor.step import Step


def message(body: bytes) -> Message:
    return Message(body=body, producer=b"p", clock=1)


def step_of(number: int, series: str = "s1") -> Step:
    return Step("shop", "archive", series, number, 0, ())


def found(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_object_for_each_delivery(tmp_path: Path) -> None:
    with ObjectSink(f"file:{tmp_path}/out") as sink:
        sink(message(b"a"), step_of(0))
        sink(message(b"b"), step_of(1))
        sink(message(b"a"), step_of(0))
    assert found(tmp_path / "out") == {"s1-0": b"a", "s1-1": b"b"}


def test_more_digits_are_another_key(tmp_path: Path) -> None:
    """Delivery 1 of "23" and delivery 12 of "3" would have one name."""
    with ObjectSink(f"file:{tmp_path}/out", name=lambda value, step: f"{step.key}{value.key.decode()}") as sink:
        sink(Message(body=b"first", producer=b"p", clock=1, key=b"23"), step_of(1))
        with pytest.raises(Conflict, match="already, with other bytes"):
            sink(Message(body=b"second", producer=b"p", clock=1, key=b"3"), step_of(12))
    assert found(tmp_path / "out") == {"s1-123": b"first"}


def test_the_first_of_one_key_stays(tmp_path: Path) -> None:
    calls = []

    def content(value: Message) -> dict[str, int]:
        calls.append(value)
        return {"call": len(calls)}

    sink = ObjectSink(f"file:{tmp_path}", name=lambda value, step: f"2027/{step.key}.json", content=content)
    for _ in range(2):
        sink(message(b"a"), step_of(0))
    assert found(tmp_path) == {"2027/s1-0.json": b'{"call":1}'}


def test_names_of_the_user_s_own_must_not_meet(tmp_path: Path) -> None:
    sink = ObjectSink(f"file:{tmp_path}", name=lambda value: value.json()["id"], content=lambda value: value.body)
    sink(message(b'{"id":"x","total":1}'), step_of(0))
    sink(message(b'{"id":"x","total":1}'), step_of(0))
    for other in (b'{"id":"x","total":2}', b'{"id":"x","total":10}'):
        with pytest.raises(Conflict, match=r"'x'.*step\.key"):
            sink(message(other), step_of(1))
    assert found(tmp_path) == {"x": b'{"id":"x","total":1}'}


@pytest.mark.parametrize("compare", [True, False])
def test_compare_says_it_for_all_names(tmp_path: Path, compare: bool) -> None:
    for name in (None, lambda value: "x"):
        sink = ObjectSink(f"file:{tmp_path}", name=name, compare=compare)
        sink(message(b"a"), step_of(0))
        if compare:
            with pytest.raises(Conflict):
                sink(message(b"b"), step_of(0))
        else:
            sink(message(b"b"), step_of(0))
    assert set(found(tmp_path).values()) == {b"a"}


def test_many_threads(tmp_path: Path) -> None:
    sink = ObjectSink(f"file:{tmp_path}")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: sink(message(b"%d" % (number % 20)), step_of(number % 20)), range(80)))
    assert found(tmp_path) == {f"s1-{number}": b"%d" % number for number in range(20)}


def test_what_is_there_is_durable_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever put it may have been killed between the name and its sync."""
    ObjectSink(f"file:{tmp_path}")(message(b"a"), step_of(0))
    synced: list[Path] = []
    monkeypatch.setattr(localobjects, "sync_directory", synced.append)
    later = ObjectSink(f"file:{tmp_path}")
    later._opened()._synced.add(tmp_path)  # type: ignore[attr-defined]
    later(message(b"a"), step_of(0))
    assert synced == [tmp_path]


def test_in_memory() -> None:
    try:
        sink = ObjectSink("memory:sink-objects")
        sink(message(b"a"), step_of(0))
        sink(message(b"b"), step_of(0))
        assert kv.open_objects("memory:sink-objects").get("s1-0") == b"a"
    finally:
        memory.forget("sink-objects")


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sink = ObjectSink("file:out")
    os.chdir("/")
    sink(message(b"a"), step_of(0))
    assert found(tmp_path / "out") == {"s1-0": b"a"}


BAD_NAMES: list[Any] = ["../x", "a b", "", "é", "x~", 7, None]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(Invalid):
        ObjectSink(f"file:{tmp_path}", name=lambda value: name)(message(b"a"), step_of(0))
    assert found(tmp_path) == {}


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for url in ("x", "http://x", "s3:", 7):
        with pytest.raises(Invalid):
            ObjectSink(url)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="name is a plain function"):
        ObjectSink("file:x", name="x")  # type: ignore[arg-type]
    sink = ObjectSink(f"file:{tmp_path}")
    with pytest.raises(Invalid, match="content="):
        sink([message(b"a"), message(b"b")], step_of(0))
    with pytest.raises(Invalid, match="content="):
        ObjectSink(f"file:{tmp_path}", content=lambda value: object())(message(b"a"), step_of(0))
    sink.close()
    sink.close()
    with pytest.raises(Unavailable, match="closed"):
        sink(message(b"a"), step_of(0))
    assert found(tmp_path) == {}


@pytest.mark.parametrize(
    ("answer", "stored"), [(b"x", b"x"), ("é", "é".encode()), ({"a": 1}, b'{"a":1}'), (None, b"null"), ([], b"[]")]
)
def test_what_content_may_answer(tmp_path: Path, answer: Any, stored: bytes) -> None:
    ObjectSink(f"file:{tmp_path}", content=lambda value, step: answer)(message(b"a"), step_of(0))
    assert found(tmp_path) == {"s1-0": stored}
