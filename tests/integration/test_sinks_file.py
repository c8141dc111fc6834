"""Lines of a file, written by real processes that are killed, or stand still, at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from detent import crash
from detent.errors import DetentError, Fenced, Unavailable
from detent.journal import Message
from detent.processor import sink_file
from detent.processor.sink_file import FileSink
from detent.processor.step import Step
from processes import Child, Io, Processes, eventually

POINTS = sorted(point for point in crash.POINTS if point.startswith("processor.file."))
RECOVERING = "processor.file.after_cut"
HOLDING = [point for point in POINTS if point not in {"processor.file.before_lock", RECOVERING}]

DELIVERIES = 12
PARALLEL = 4
"""Numbers that a step of the processor has in it, in an order that is not theirs."""


def step_of(number: int, floor: int = 0) -> Step:
    return Step("shop", "log", "s1", number, floor, ())


def message(number: int) -> Message:
    return Message(body=b"line %d" % number, producer=b"p", clock=1)


def writes(io: Io, path: str, first: int) -> None:
    """Deliver everything from a step on, as a processor does that has committed the steps before."""
    sink_file.RENEW_BYTES = 600
    with FileSink(path) as sink:
        for floor in range(first, DELIVERIES, PARALLEL):
            for number in reversed(range(floor, floor + PARALLEL)):
                sink(message(number), step_of(number, floor))
            io.say("committed", next=floor + PARALLEL)
    io.say("finished")


def writes_one(io: Io, path: str, number: int, floor: int) -> None:
    try:
        with FileSink(path) as sink:
            sink(message(number), step_of(number, floor))
    except DetentError as error:
        io.say("failed", kind=type(error).__name__)
    else:
        io.say("delivered")


def committed_by(child: Child, first: int) -> int:
    """Where the next life begins: after the last step that was committed."""
    while (event := child.next_event()) is not None:
        first = event.get("next", first)
    return first


def lines(path: Path) -> list[str]:
    text = path.read_text()
    assert not text or text.endswith("\n"), "a torn line"
    return text.split("\n")[:-1]


@pytest.mark.parametrize("point", [point for point in POINTS if point != RECOVERING])
def test_killed_at_every_step(tmp_path: Path, processes: Processes, point: str) -> None:
    """Again and again, each life a little later, until one comes to the end."""
    path = tmp_path / "orders.txt"
    first, lives = 0, 0
    for count in (1, 1, 2, 3, 4, 5):
        armed = {"DETENT_CRASH_AT": f"{point}:{count}"}
        child = processes.start(writes, path=str(path), first=first, environment=armed)
        first = committed_by(child, first)
        lives += 1
        if child.wait() == 0:
            break
    else:
        child = processes.start(writes, path=str(path), first=first)
        committed_by(child, first)
        assert child.wait() == 0, child.errors()
    assert lives > 1, f"{point} was never reached"
    assert sorted(lines(path)) == sorted(f"line {number}" for number in range(DELIVERIES))


def test_killed_while_it_cut_off_what_was_torn(tmp_path: Path, processes: Processes) -> None:
    path = tmp_path / "orders.txt"
    for point in ("processor.file.after_intent:2", RECOVERING, RECOVERING):
        child = processes.start(writes, path=str(path), first=0, environment={"DETENT_CRASH_AT": point})
        assert child.was_killed(), f"{point} was never reached"
    child = processes.start(writes, path=str(path), first=0)
    committed_by(child, 0)
    assert child.wait() == 0, child.errors()
    assert sorted(lines(path)) == sorted(f"line {number}" for number in range(DELIVERIES))


@pytest.mark.parametrize("point", HOLDING)
def test_who_stands_still_in_the_middle_is_waited_for(tmp_path: Path, processes: Processes, point: str) -> None:
    path = tmp_path / "orders.txt"
    with FileSink(path, wait="0s") as sink:
        sink(message(0), step_of(0))
        if point.endswith("rename"):
            sink._beside.unlink()  # so that notes are written anew
            sink.close()
        zombie = processes.start(writes_one, path=str(path), number=1, floor=0, environment={"DETENT_STOP_AT": point})
        eventually(zombie.stands_still, what="its standing still")
        before = path.read_bytes()
        with FileSink(path, wait="0s") as other:
            for number in (1, 2):
                with pytest.raises(Unavailable, match=r"let it go on or end it: `fuser .*orders\.txt`"):
                    other(message(number), step_of(number))
            assert path.read_bytes() == before
            zombie.resume()
            zombie.expect("delivered")
            zombie.wait()
            for number in (1, 2):
                other(message(number), step_of(number))
    assert lines(path) == ["line 0", "line 1", "line 2"]


@pytest.mark.parametrize("floor", [0, 3])
def test_who_stood_still_before_it_began_comes_too_late(tmp_path: Path, processes: Processes, floor: int) -> None:
    path = tmp_path / "orders.txt"
    zombie = processes.start(
        writes_one, path=str(path), number=1, floor=0, environment={"DETENT_STOP_AT": "processor.file.before_lock"}
    )
    eventually(zombie.stands_still, what="its standing still")
    with FileSink(path) as sink:
        for number in (0, 1, 2):
            sink(message(number), step_of(number))
        sink(message(3), step_of(3, floor=floor))
    zombie.resume()
    if floor:
        assert zombie.expect("failed")["kind"] == Fenced.__name__
    else:
        zombie.expect("delivered")
    assert lines(path) == [f"line {number}" for number in range(4)]


def test_processes_take_turns(tmp_path: Path, processes: Processes) -> None:
    """Two with the same work at the same time: nobody should, and nothing comes of it."""
    path = tmp_path / "orders.txt"
    children = [processes.start(writes, path=str(path), first=0) for _ in range(2)]
    statuses = []
    for child in children:
        committed_by(child, 0)
        statuses.append(child.wait())
    assert 0 in statuses
    assert sorted(lines(path)) == sorted(f"line {number}" for number in range(DELIVERIES))
