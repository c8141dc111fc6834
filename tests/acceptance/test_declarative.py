"""Spark's Declarative Pipelines with Detent's formats: the example project, run as its page says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import detent
import sparkling

pytestmark = [*sparkling.PROCESS_MARKS, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parents[2] / "examples" / "declarative"
ORDERS = 100
RUNS = 2 if os.environ.get("DETENT_SOAK") else 1
"""The second run goes on where the first one ended."""


def run(folder: Path, store: str) -> str:
    """`spark-pipelines run`, with the program that the page advises. What it said: its exit code is that of a defect
    of Spark's client, and says nothing."""
    from detent.spark import java, launch

    launcher = str(launch.launcher())
    environment = {
        **os.environ,
        "DETENT_URL": store,
        "JAVA_HOME": str(java.stand_in(java.find())),
        "PYSPARK_PYTHON": launcher,
        "PYSPARK_DRIVER_PYTHON": launcher,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    import pyspark

    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run"]
    done = subprocess.run(
        [*command, "--spec", str(folder / "spark-pipeline.yml")], env=environment, capture_output=True, text=True
    )
    return done.stdout + done.stderr


def test_flows_from_a_journal_into_a_journal_and_a_queue_take_effect_once(tmp_path: Path) -> None:
    for module in ("yaml", "grpc_status"):
        pytest.importorskip(module)
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder)
    spec = folder / "spark-pipeline.yml"
    storage, places = re.subn(r"(?m)^storage: .*$", f"storage: file://{tmp_path}/storage", spec.read_text())
    assert places == 1
    spec.write_text(storage)
    with detent.open(f"file:{tmp_path / 'data'}") as store:
        store.queue("large").create()
        for number in range(1, RUNS + 1):
            orders = [b'{"id": %d, "amount": %d}' % (order, 10 * order) for order in range(ORDERS)]
            store.journal("orders").append_many(orders)
            said = run(folder, store.url)
            assert store.journal("paid").info().messages == number * (ORDERS - 1), said[-8000:]
        paid = [json.loads(message.body)["id"] for message in store.journal("paid").read()]
        assert sorted(paid) == sorted([*range(1, ORDERS)] * RUNS)
        large = [int(message.body) for message in store.queue("large").claim(10 * ORDERS)]
        assert sorted(large) == sorted([*range(51, ORDERS)] * RUNS)
        assert sorted(ledger.entries for ledger in store.ledgers()) == [RUNS, RUNS]
