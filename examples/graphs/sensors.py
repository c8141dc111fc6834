"""Readings of sensors: fetched with a cursor, alerts of any of them, and averages of whole batches.

    python examples/graphs/sensors.py weather     # makes readings in the folder weather, runs once, says what came out
    python examples/graphs/sensors.py             # the same in a folder that is gone afterwards

and then, in that folder:

    echo 40 >> temperature.txt
    detent run sensors.py --once
    detent journal read file:./data alerts

Each sensor is a file that only grows, in place of an interface that answers what came after a mark. `Polled` says what
is new and where to go on, and both are committed together: a process that is killed in between reads the same again,
and nothing is there twice. `watch` takes a message of whichever sensor has one. `average` takes what there is, up to 20
readings at a time, as a list; which ones is written down before it is called, so that a second try gets the same.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from detent.processor import Graph, Out, Polled, Step

SENSORS = ("temperature", "pressure")
LIMITS = {"temperature": 35.0, "pressure": 1_030.0}
READINGS = 100
BYTES_AT_ONCE = 30  # so few that there is more to fetch

graph = Graph("sensors", store="file:./data")


def poll(name: str, cursor: int | None) -> Polled:
    """The lines of a file from the cursor on, which is a place in the file."""
    path, start = Path(f"{name}.txt"), cursor or 0
    if not path.exists():
        return Polled([], start)
    with path.open("rb") as file:
        file.seek(start)
        lines = [line for line in file.readlines(BYTES_AT_ONCE) if line.endswith(b"\n")]  # not a half one
    values = [Out({"sensor": name, "value": float(line)}, key=name) for line in lines]
    return Polled(values, start + sum(map(len, lines)))


for sensor in SENSORS:
    graph.source(sensor, poll=partial(poll, sensor), every="200ms")


@graph.stream(any_of=SENSORS, output="alerts")
def watch(reading: dict[str, Any]) -> dict[str, Any] | None:
    """Readings over their limit; None writes nothing."""
    return reading if reading["value"] > LIMITS[reading["sensor"]] else None


@graph.stream(input="temperature", output="averages", batch=20, whole=True)
def average(readings: list[dict[str, Any]], step: Step) -> dict[str, Any]:
    """One message for many."""
    values = [reading["value"] for reading in readings]
    return {"from": step.inputs[0].offset, "count": len(values), "average": sum(values) / len(values)}


# -- trying it --------------------------------------------------------------------------------------------------------


def measure() -> None:
    """Files of readings, unless they are there."""
    for name, middle in zip(SENSORS, (20, 1_000), strict=True):
        path = Path(f"{name}.txt")
        if not path.exists():
            path.write_text("".join(f"{middle + number % 41}\n" for number in range(READINGS)))


def main() -> int:
    """Measure, run the graph until nothing is left, and check what came out."""
    measure()
    with graph.open() as live:
        live.start()
        live.settle()
        found = {name: [message.json() for message in live.read(name)] for name in (*SENSORS, "alerts", "averages")}
    expected = {name: [float(line) for line in Path(f"{name}.txt").read_text().split()] for name in SENSORS}
    is_right = all([reading["value"] for reading in found[name]] == expected[name] for name in SENSORS)
    over = sum(value > LIMITS[name] for name in SENSORS for value in expected[name])
    averaged = [number for one in found["averages"] for number in range(one["from"], one["from"] + one["count"])]
    is_right &= averaged == list(range(len(expected["temperature"]))) and len(found["alerts"]) == over
    for name in SENSORS:
        print(f"{len(found[name])} readings of {name}")
    print(f"{len(found['alerts'])} alerts, and averages of {len(averaged)} readings of temperature")
    print("each reading once" if is_right else "this is wrong")
    return 0 if is_right else 1


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        folder = sys.argv[1] if len(sys.argv) > 1 else stack.enter_context(tempfile.TemporaryDirectory())
        os.makedirs(folder, exist_ok=True)
        stack.enter_context(contextlib.chdir(folder))  # the store and the sensors are in the current folder
        sys.exit(main())
