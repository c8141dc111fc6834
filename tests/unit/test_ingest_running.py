"""Runs that end before they began, and ingests that never ran."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyspark.errors import PySparkRuntimeError

import detent.spark
import ingestfakes
from detent.errors import NotFound
from detent.ingest import Counters, Ingest, IngestConfig, read_table


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


def test_a_spark_that_does_not_start_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detent.spark, "session", no_java)
    with pytest.raises(PySparkRuntimeError):
        an_ingest(tmp_path).run()
