"""The examples of graphs, run as their texts say: by Python, by `detent graph`, again, and after a `kill -9`."""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import detent
import zygote
from acceptance.test_cli import PATIENCE_S, environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "graphs"


class Folder:
    """Where a person tries the examples: the stores are in it, and everything else lies beside them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *command: str, code: int = 0, **env: str) -> str:
        """What a command prints that ends with this code."""
        done = zygote.run(
            [sys.executable, *command], timeout=PATIENCE_S, cwd=str(self.path), env=environment(**env), text=True
        )
        assert done.returncode == code, (done.returncode, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        return str(done.stdout)

    def example(self, name: str, *options: str, code: int = 0, **env: str) -> list[str]:
        return self.run(str(EXAMPLES / name), ".", *options, code=code, **env).splitlines()

    def graph(self, command: str, name: str, *options: str) -> str:
        return self.run("-m", "detent.cli", "graph", command, str(EXAMPLES / name), *options)

    def once(self, name: str) -> dict[str, Any]:
        """Run it with `detent graph run --once`; its processors."""
        said = json.loads(self.graph("run", name, "--once", "--json"))
        return {one["processor"]: one for one in said["processors"]}

    def append(self, journal: str, body: bytes, store: str = "data") -> None:
        with detent.open(f"file:{self.path / store}") as opened:
            opened.journal(journal).append(body)

    def records(self, journal: str, store: str = "data") -> list[Any]:
        with detent.open(f"file:{self.path / store}") as opened:
            return [message.json() for message in opened.journal(journal).read()]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# -- orders.py --------------------------------------------------------------------------------------------------------


def invoices(folder: Folder) -> list[int]:
    with closing(sqlite3.connect(folder.path / "shop.db")) as database:
        return sorted(row[0] for row in database.execute("SELECT number FROM invoices"))


def test_orders_are_billed_once(folder: Folder) -> None:
    said = folder.example("orders.py")
    assert said[0] == "40 orders, 32 checked, 32 parcels, 23 letters, 9 freight, 3 failed"
    assert said[-1] == "32 invoices: each parcel has one"
    assert folder.example("orders.py") == said
    assert {one["outputs"] + one["nils"] for one in folder.once("orders.py").values()} == {0}
    folder.graph("send", "orders.py", '{"number": 100, "cents": 250, "count": 3}', "--type", "order")
    folder.graph("send", "orders.py", '{"number": 101, "cents": 250, "count": 3}')
    found = folder.once("orders.py")
    assert (found["check"]["outputs"], found["check"]["nils"], found["bill"]["nils"]) == (1, 1, 1)
    assert invoices(folder)[-1] == 100
    assert "parcels → letters, freight, ✗ failed" in folder.graph("show", "orders.py")
    assert "orders/pack" in folder.graph("trace", "orders.py", "parcels", "0")


@pytest.mark.parametrize("point", ["processor.after_commit:20", "processor.after_function:50"])
def test_the_shop_is_killed_and_each_parcel_has_one_invoice(folder: Folder, point: str) -> None:
    folder.example("orders.py", code=-signal.SIGKILL, DETENT_CRASH_AT=point)
    assert folder.example("orders.py")[-1] == "32 invoices: each parcel has one"


def test_what_is_wrong_with_the_shop_is_found(folder: Folder) -> None:
    """A proof that cannot fail is none."""
    folder.example("orders.py")
    with closing(sqlite3.connect(folder.path / "shop.db")) as database, database:
        database.execute("INSERT INTO invoices VALUES (1, 1)")
    assert folder.example("orders.py", code=1)[-1] == "33 invoices: this is wrong"


# -- sensors.py -------------------------------------------------------------------------------------------------------


def test_readings_are_fetched_once(folder: Folder) -> None:
    said = folder.example("sensors.py")
    assert said == [
        "100 readings of temperature",
        "100 readings of pressure",
        "72 alerts, and averages of 100 readings of temperature",
        "each reading once",
    ]
    with (folder.path / "temperature.txt").open("a") as file:
        file.write("40\n")
    found = folder.once("sensors.py")
    assert (found["temperature"]["outputs"], found["watch"]["outputs"], found["average"]["outputs"]) == (1, 1, 1)
    assert folder.records("averages")[-1] == {"from": 100, "count": 1, "average": 40.0}
    assert folder.example("sensors.py")[-1] == "each reading once"


@pytest.mark.parametrize("point", ["processor.after_choice", "processor.before_commit:20"])
def test_the_sensors_are_killed_and_each_reading_is_there_once(folder: Folder, point: str) -> None:
    folder.example("sensors.py", code=-signal.SIGKILL, DETENT_CRASH_AT=point)
    assert folder.example("sensors.py")[-1] == "each reading once"
    folder.append("temperature", b'{"sensor": "temperature", "value": 1}')
    assert folder.example("sensors.py", code=1)[-1] == "this is wrong"


# -- archive.py -------------------------------------------------------------------------------------------------------


def test_the_archive_is_killed_again_and_again(folder: Folder) -> None:
    assert folder.example("archive.py", "--kills", "3") == [
        "killed 3 times",
        "1200 events sent, 1200 kept, 0 lost, 0 duplicated",
        "each once, in order",
    ]
    hop = json.loads(folder.graph("trace", "archive.py", "kept@archive", "0", "--json"))
    assert (hop["processor"], hop["inputs"][0]["inputs"][0]["journal"]) == ("archive/keep", "events")
    folder.append("kept", b'{"number": 1}', "archive")
    assert folder.example("archive.py", "--kills", "0", code=1)[1:] == [
        "0 events sent, 1201 kept, 0 lost, 1 duplicated",
        "this is wrong",
    ]
