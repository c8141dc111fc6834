"""Runs that end before they began, and ingests that never ran."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from pyspark.errors import PySparkRuntimeError

import detent.spark
import ingestfakes
from detent.errors import Fenced, Invalid, NotFound
from detent.ingest import Counters, Ingest, IngestConfig, read_table
from detent.ingest import pipeline as running
from detent.ingest.job import SparkEnded


def an_ingest(folder: Path) -> Ingest:
    config = IngestConfig(name="orders", queue="none:", table="lake", schema="id BIGINT", folder=str(folder))
    return Ingest(config, queue=ingestfakes.World(folder / "fake").queue)


def no_java(*_: Any, **__: Any) -> NoReturn:
    raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})


def test_told_to_end_with_all_its_processes_while_spark_starts_it_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest = an_ingest(tmp_path)

    def stopped(**options: Any) -> NoReturn:
        ingest.stop()
        no_java(**options)

    monkeypatch.setattr(detent.spark, "session", stopped)
    assert ingest.run() == Counters()


def test_reading_the_table_of_an_ingest_that_never_ran_leaves_nothing_behind(tmp_path: Path) -> None:
    config = IngestConfig(name="orders", queue="none:", table="lake", folder=str(tmp_path))
    spark: Any = None  # is not asked
    with pytest.raises(NotFound, match="no ingest ever ran"):
        read_table(spark, config)
    assert list(tmp_path.iterdir()) == []


def test_run_starts_without_queue_that_its_reader_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Any) -> NoReturn:
        raise NotFound("there is no stream")

    monkeypatch.setattr(detent.spark, "session", no_java)
    monkeypatch.setattr(ingestfakes.Queue, "retention_s", missing)
    with pytest.raises(NotFound, match="no stream"):
        an_ingest(tmp_path / "others").run()
    monkeypatch.setattr(ingestfakes.Queue, "receive_creates", True, raising=False)
    with pytest.raises(PySparkRuntimeError):  # it came as far as Spark
        an_ingest(tmp_path / "streams").run()


def test_a_spark_that_does_not_start_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detent.spark, "session", no_java)
    with pytest.raises(PySparkRuntimeError):
        an_ingest(tmp_path).run()


def test_time_before_the_first_batch_does_not_count_in_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ingestfakes.World(tmp_path)
    pipeline = world.pipeline()
    shown: list[running.IngestProgress] = []
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: world.now))
    until = running._Until(threading.Event(), True, None, None)
    receiving = running._ReceivingFiles(world.config, pipeline, world.engine, None, until)
    batching = running._BatchingFiles(world.config, pipeline, receiving, until, shown.append)
    world.sleep(120)
    batching.step()
    world.put("a")
    pipeline.poll(0)
    world.sleep(20)
    batching.step()
    world.sleep(2)
    batching.step()
    assert [one.seconds for one in shown] == [0, 0, 2]
    world.engine.dispose()


def test_a_pipeline_reports_what_it_has_done(tmp_path: Path) -> None:
    world = ingestfakes.World(tmp_path / "world")
    assert an_ingest(tmp_path).report().state == "starting"
    world.put("a", "b")
    until = running._Until(threading.Event(), True, None, None)
    run = running._PipelineRun(world.config, world.pipeline(), world.engine, None, until, lambda _: None)
    run.run()
    report = run.report()
    assert (report.title, report.state, report.lag) == ("ingest/orders", "stopped", 0)
    assert (report.progress["files"], report.progress["acknowledged"]) == (2, 2)
    world.engine.dispose()


def test_an_error_in_a_part_of_a_pipeline_ends_it_and_an_end_of_the_program_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = ingestfakes.World(tmp_path)

    def run(part: str, error: BaseException) -> None:
        def fail(*_: object, **__: object) -> NoReturn:
            raise error

        pipeline = world.pipeline()
        monkeypatch.setattr(pipeline, part, fail)
        until = running._Until(threading.Event(), False, None, None)
        running._PipelineRun(world.config, pipeline, world.engine, None, until, lambda _: None).run()

    for part in ("poll", "keep", "next_batch"):
        for error in (Invalid("wrong"), Fenced("reset"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                run(part, error)
    assert caplog.messages == []  # the caller has the error, and nothing else is said of it
    world.engine.dispose()


def test_java_that_ends_with_a_pipeline_that_was_told_to_stop_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world, stopping = ingestfakes.World(tmp_path), threading.Event()

    def ended(*_: object, **__: object) -> NoReturn:
        stopping.set()
        raise SparkEnded("there is no Java any more")

    pipeline = world.pipeline()
    monkeypatch.setattr(pipeline, "next_batch", ended)
    until = running._Until(stopping, False, None, None)
    running._PipelineRun(world.config, pipeline, world.engine, None, until, lambda _: None).run()
    assert caplog.messages == ["stopped before the batch was committed; it will be done the next time"]
    world.engine.dispose()


THEIRS = """
class TheirQueue:
    name, visibility_max_s = "orders", 60.0
    def __init__(self, name, *, kept="7d"): self.kept = kept
    def receive(self, limit, wait_s, visibility_s): return []
    def extend(self, deliveries, visibility_s): return []
    def give_back(self, deliveries): pass
    def acknowledge(self, deliveries): return []
    def retention_s(self): return self.kept
    def close(self): pass
"""


def test_a_class_is_found_beside_the_configuration_and_its_answers_are_checked(tmp_path: Path) -> None:
    (tmp_path / "their_queue.py").write_text(THEIRS)
    queue = "their_queue.py:TheirQueue:orders"
    config = IngestConfig(name="orders", queue=queue, table="lake", schema="id BIGINT", folder=str(tmp_path))
    with pytest.raises(Invalid, match=r"TheirQueue.retention_s answered '7d': it is seconds"):
        Ingest(config).run()


def test_a_queue_that_is_given_is_checked_before_spark_starts(tmp_path: Path) -> None:
    config = IngestConfig(name="orders", queue="none:", table="lake", schema="id BIGINT", folder=str(tmp_path))
    wrong: Any = object()
    with pytest.raises(Invalid, match="object has no receive, extend, give_back"):
        Ingest(config, queue=wrong).run()
