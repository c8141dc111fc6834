"""What `detent run` finds in a file: every kind by its class, each once, and functions that reach Spark's workers."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from detent.cli.kinds import KINDS, find_all
from detent.cli.kinds.kind import KnownTask
from detent.errors import Invalid, NotFound

CONSUMER = """
from detent.consumer import Consumer
words = Consumer("words", read="lines")
same = words
"""
PIPELINE = """
from detent.spark import Pipeline
pipeline = Pipeline("shop")

def half(number):
    return number / 2
"""
INGEST = """
from detent.ingest import IngestConfig
orders = IngestConfig(name="orders", queue="sqs:new-orders", table="./orders")
"""


def test_every_kind_is_found_once(folder: Path) -> None:
    (folder / "shop.py").write_text(CONSUMER + INGEST)
    (folder / "shop.toml").write_text('name = "files"\nqueue = "sqs:files"\ntable = "lake"\n')
    found = find_all(["shop.py", "shop:words", "./shop.py:same", "shop.toml"])
    assert {kind: [one.target for one in some] for kind, some in found.items()} == {
        "consumer": ["shop.py:words"],
        "ingest": ["shop.py:orders", "shop.toml"],
    }
    assert [one.what.name for one in found["ingest"]] == ["orders", "files"]
    with pytest.raises(Invalid, match=r"shop.py:Consumer is no task but a type; there is shop.py:orders, shop.py:same"):
        find_all(["shop.py:Consumer"])
    with pytest.raises(NotFound, match="there is no module 'nothing'"):
        find_all(["nothing:app"])


RUNS = """
import asyncio, detent
from detent.consumer import Consumer
from detent.ingest import Ingest, IngestConfig
from detent.spark import Pipeline
store = detent.open("memory:")

async def handle(message): ...
"""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("detent.Worker(store.queue('mails'), print).run()", "Worker.run"),
        ("asyncio.run(detent.AsyncWorker(store.queue('mails'), handle).run())", "AsyncWorker.run"),
        ("Consumer('words', read='lines', store='memory:').run()", "run"),
        ("Pipeline('shop').run()", "pipeline.run"),
        ("Ingest(IngestConfig(name='orders', queue='sqs:new', table='./orders')).run()", "Ingest.run"),
    ],
)
def test_file_that_runs_something_when_it_is_loaded_is_refused(folder: Path, line: str, what: str) -> None:
    (folder / "shop.py").write_text(RUNS + line)
    says = rf"shop.py:\d+: {what}\(\) runs whenever the file is loaded: put it under if __name__ == "
    with pytest.raises(Invalid, match=says):
        find_all(["shop.py"])


@pytest.mark.parametrize("more", ["", CONSUMER], ids=["alone", "beside a consumer"])
def test_functions_of_pipeline_travel_by_value(folder: Path, more: str) -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    (folder / "shop.py").write_text(PIPELINE + more)
    (pipeline,) = find_all(["shop.py"])["pipeline"]
    assert pipeline.what.name == "shop"
    assert ("shop" in sys.modules) is bool(more)
    half = sys.modules["shop"].half if more else None
    if half is not None:
        sent = cloudpickle.dumps(half)
        del sys.modules["shop"]
        assert pickle.loads(sent)(3) == 1.5


def test_each_kind_says_what_it_has_no_verb_for() -> None:
    """A refusal says what to do: no verb is missing without a word."""
    verbs = {"pause", "resume", "reset", "rm", "wait"}
    steered = [one for one in _all_known(KnownTask) if one.instead]
    assert {one.kind for one in steered if "kind" in vars(one)} >= {"pipeline", "ingest", "graph", "app"}
    for one in steered:
        assert set(one.instead) <= verbs
    assert [kind.noun for kind in KINDS] == ["consumer", "graph", "app", "worker", "bridge", "ingest", "pipeline"]


def _all_known(cls: type[KnownTask]) -> list[type[KnownTask]]:
    return [one for each in cls.__subclasses__() for one in (each, *_all_known(each))]
