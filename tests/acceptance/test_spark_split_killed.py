"""A driver that splits a batch over several transactions, killed at each step of it: every message once, in order.

The driver has no Spark, only the rows of a batch, so that it can be killed often; each replay computes them in another
order, as a shuffle may.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
from pathlib import Path

import pytest

import detent
from detent import crash
from zygote import Forked

MESSAGES = 10
PATIENCE_S = 120
POINTS = sorted(point for point in crash.POINTS if point.startswith("spark.split."))
AT = [*POINTS, "spark.split.before_part:3", "spark.split.after_part:3", "spark.once.before_commit"]


DRIVER = textwrap.dedent(
    """
    import sys

    sys.path.insert(0, sys.argv[1])
    import pyarrow as pa
    from pyspark.sql.types import LongType, StructField, StructType

    import detent
    from detent.spark import once, queue_outgoing, to_journal, to_queue
    from sparkframes import Frame

    queue_outgoing.PUBLISHED_MAX = 3
    url, turn, count = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    numbers = [(number + turn) % count for number in range(count)]
    schema = StructType([StructField("id", LongType())])
    frame = Frame(schema, [pa.RecordBatch.from_pydict({"id": numbers})], run=f"run-{turn}")
    with detent.open(url) as store:
        once(store, "shop", to_queue("mail"), to_journal("out"))(frame, 0)
    """
)
"""What a driver does with batch 0: its messages to a queue, three a transaction, and to a journal."""


def drive(folder: Path, turn: int, crash_at: str = "") -> int:
    """Run a driver until it ends, or dies at the point."""
    program = folder / "driver.py"
    program.write_text(DRIVER)
    tests = Path(__file__).parents[1]
    arguments = [tests, f"file:{folder / 'store'}", turn, MESSAGES]
    process = Forked(
        [sys.executable, str(program), *map(str, arguments)],
        env={**os.environ, "DETENT_CRASH_AT": crash_at},
        with_spark=True,
    )
    return process.wait(PATIENCE_S)


@pytest.mark.parametrize("point", AT)
def test_every_message_is_published_once_whatever_the_driver_died_of(tmp_path: Path, point: str) -> None:
    url = f"file:{tmp_path / 'store'}"
    with detent.open(url) as store:
        store.queue("mail").create()
    assert drive(tmp_path, 1, point) == -signal.SIGKILL
    with detent.open(url) as store:
        assert (store.journals("out"), [info.name for info in store.ledgers("shop") if info.name == "shop"]) == ([], [])
        begun = bool(store.journals("spark-parts/"))
    for turn in (2, 3):
        assert drive(tmp_path, turn) == 0
    with detent.open(url) as store:
        found = [json.loads(message.body)["id"] for message in store.queue("mail").claim(100)]
        first = 1 if begun else 2  # the order of the driver whose messages were made durable
        assert found == [(number + first) % MESSAGES for number in range(MESSAGES)]
        assert (store.journal("out").next_offset(), store.ledger("shop").entries) == (MESSAGES, 1)
        assert not store.journals("spark-parts/")
