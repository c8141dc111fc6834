"""Deliveries as objects of a bucket, and of a process that is killed while it puts one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import S3_MARKS
from detent import kv
from detent.errors import Conflict, Unavailable
from detent.journal import Message
from detent.kv.localobjects import TEMPORARY_SUFFIX
from detent.processor.sink_objects import ObjectSink
from detent.processor.step import Step
from processes import Io, Processes


def message(body: bytes) -> Message:
    return Message(body=body, producer=b"p", clock=1)


def step_of(number: int) -> Step:
    return Step("shop", "archive", "s1", number, 0, ())


@pytest.fixture(params=["file", pytest.param("s3", marks=S3_MARKS)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file:{tmp_path}/out"
    pytest.importorskip("obstore")
    import s3server

    return s3server.s3_store_url()


def stored(url: str) -> dict[str, bytes]:
    objects = kv.open_objects(url)
    return {info.name: bytes(objects.get(info.name)) for info in objects.list()}


def test_of_many_who_put_the_same_the_first_stays(url: str) -> None:
    sinks = [ObjectSink(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda index: sinks[index % 4](message(b"%d" % index), step_of(index // 4)), range(20)))
    found = stored(url)
    assert sorted(found) == [f"s1-{number}" for number in range(5)]
    assert all(int(body) // 4 == int(name.removeprefix("s1-")) for name, body in found.items())


def test_two_deliveries_of_one_name(url: str) -> None:
    sink = ObjectSink(url, name=lambda value: "a/b.json")
    for _ in range(2):
        sink(message(b"first"), step_of(0))
    with pytest.raises(Conflict):
        sink(message(b"other"), step_of(1))
    assert stored(url) == {"a/b.json": b"first"}


@pytest.mark.s3
@pytest.mark.xdist_group("s3")
def test_a_bucket_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setattr("detent.kv.objectstore.RETRIES_MAX", 0)
    with pytest.raises(Unavailable):
        ObjectSink("s3://nowhere/at-all")(message(b"a"), step_of(0))


def puts(io: Io, url: str) -> None:
    ObjectSink(url)(message(b"a"), step_of(0))


@pytest.mark.parametrize("point", ["before_write", "before_rename", "after_rename", "after_sync"])
def test_a_process_that_is_killed(tmp_path: Path, processes: Processes, point: str) -> None:
    url = f"file:{tmp_path}/out"
    child = processes.start(puts, url=url, environment={"DETENT_CRASH_AT": f"kv.object.{point}"})
    assert child.was_killed()
    ObjectSink(url)(message(b"a"), step_of(0))
    assert stored(url) == {"s1-0": b"a"}
    others = [path.name for path in (tmp_path / "out").iterdir() if path.name != "s1-0"]
    assert all(name.endswith(TEMPORARY_SUFFIX) for name in others)
