"""Spark's own connector for Kafka beside Detent's sinks: a topic through `once` into a Delta table and a journal, with
the driver killed at each step, and a journal out to a topic by Spark's sink.

The connector of Spark 4.3 is not on Maven Central; that of 4.2 works with it as far as these tests go. `make kafka`
runs them.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import detent
import sparkling
from kafkaserver import Broker, needs_kafka, shared_broker
from mavenjars import Jar, Jars
from zygote import Forked

CONNECTOR = Jars(
    "spark-kafka-4.2.0",
    (
        Jar("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", alone=True),
        Jar("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
        Jar("org.apache.kafka", "kafka-clients", "3.9.2", alone=True),
        Jar("org.apache.commons", "commons-pool2", "2.13.1", alone=True),
    ),
)
"""Each alone: the connector's own pom names a token provider that Maven Central does not have."""

pytestmark = [
    *sparkling.PROCESS_MARKS,
    needs_kafka,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("DETENT_KAFKA"), reason="takes minutes: `make kafka` runs it"),
]

POINTS = ("spark.once.table_after_commit", "spark.once.before_commit", "spark.once.after_commit")
RECORDS = 300
PATIENCE_S = 300

PROGRAM = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import detent.spark
    from detent.spark import once, to_delta, to_journal

    folder, brokers, topic, jars, way = Path(sys.argv[1]), *sys.argv[2:6]
    url = f"file:{folder / 'store'}"
    spark = detent.spark.session(store=url, cores=1, quick=True, conf={"spark.jars": jars})
    if way == "in":
        frame = spark.readStream.format("kafka").option("kafka.bootstrap.servers", brokers).option("subscribe", topic)
        frame = frame.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
        rows = frame.option("maxOffsetsPerTrigger", 100).load().selectExpr("CAST(value AS STRING) AS value")
        write = once(
            url, "copied", to_delta(folder / "delta"), to_journal("copied", select=["CAST(value AS BINARY) AS body"])
        )
        writer = rows.writeStream.foreachBatch(write)
    else:
        frame = spark.readStream.format("detent").option("journals", "copied").load(url)
        writer = frame.selectExpr("body AS value").writeStream.format("kafka").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", brokers)
    writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{way}")).trigger(availableNow=True)
    writer.start().awaitTermination()
    """
)


def drive(folder: Path, broker: Broker, topic: str, way: str, crash_at: str = "") -> tuple[int, str]:
    """Run the program until it ends, or dies at the point; how it ended, and what it wrote."""
    program, log = folder / "program.py", folder / "program.log"
    program.write_text(PROGRAM)
    jars = ",".join(CONNECTOR.paths())
    with log.open("wb") as out:
        process = Forked(
            [sys.executable, str(program), str(folder), broker.brokers, topic, jars, way],
            stdout=out,
            stderr=out,
            env={**os.environ, "DETENT_CRASH_AT": crash_at},
            start_new_session=True,
            with_spark=True,
        )
    try:
        return process.wait(PATIENCE_S), log.read_text()[-4000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def test_topic_through_spark_is_in_table_and_journal_once_and_goes_out_again(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    broker = shared_broker()
    topic, out = (broker.topic(f"{name}-{os.urandom(4).hex()}", partitions=2) for name in ("spark", "spark-out"))
    broker.produce(topic, [(b"%d" % (number % 7), b"%d" % number) for number in range(RECORDS)])
    for point in POINTS:
        code, log = drive(tmp_path, broker, topic, "in", point)
        assert code == -signal.SIGKILL, log
    code, log = drive(tmp_path, broker, topic, "in")
    assert code == 0, log
    values = DeltaTable(tmp_path / "delta").to_pyarrow_table().column("value").to_pylist()
    assert sorted(map(int, values)) == list(range(RECORDS))
    with detent.open(f"file:{tmp_path / 'store'}") as store:
        assert sorted(int(message.body) for message in store.journal("copied").read()) == list(range(RECORDS))

    code, log = drive(tmp_path, broker, out, "out")
    assert code == 0, log
    found = Counter(int(record.value()) for record in broker.read(out, partitions=2))
    assert found.keys() == set(range(RECORDS)), "at least once: Spark's sink promises no more"
