"""What Spark does with a batch: read its files, apply the user's function, write Parquet."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from detent import crash
from detent.errors import Busy, DetentError, Invalid, Unavailable
from detent.ingest.committer import PROBE, BatchOutput, TableCommitter
from detent.ingest.config import IngestConfig, Transform, parted
from detent.ingest.executor_reading import ExecutorSource, reads_in_tasks
from detent.ingest.local_state import HeldFile
from detent.ingest.objects import FileObjects
from detent.ingest.pinned import ObjectAccess, failure_in
from detent.ingest.reading import BatchReader, Source
from detent.ingest.staged_reading import StagedSource
from detent.ingest.staging import FilesFailed, Staging
from detent.runtime.target import UserFile, find_function
from detent.spark.once_batch import in_tasks
from detent.tables.files import FilePlan, WrittenFile, write_files

if TYPE_CHECKING:
    from sqlalchemy import Engine

OPEN_BYTES: Final = 64 << 10
"""What opening a file costs, in bytes that could be read instead. Spark reckons with 4 MiB, so that a task gets 32
small files; here they are local."""

TASK_BYTES: Final = 128 << 20
"""What a task reads at most, and so about the size of what it writes, before compression."""

SETTINGS: Final = {
    "spark.sql.files.openCostInBytes": str(OPEN_BYTES),
    "spark.sql.files.maxPartitionBytes": str(TASK_BYTES),
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
}
"""What the job sets in its Spark session."""


_NOISE: Final = re.compile(r"^(?:[a-z]\w*\.)+\w+(?:Exception|Error): |\s+SQLSTATE: \w+$")
"""What Java puts around what it says."""


class SparkEnded(DetentError):
    """There is no Spark any more, and a new one takes a new process."""


class BatchFailed(Exception):
    """Spark could not read or write a batch. `suspects` are the files that its error names, if any."""

    def __init__(self, reason: str, suspects: Sequence[HeldFile]) -> None:
        super().__init__(reason)
        self.reason = reason
        self.suspects = suspects


class Job:
    """Runs the batches of one pipeline, one at a time."""

    def __init__(
        self,
        spark: SparkSession,
        config: IngestConfig,
        engine: Engine,
        objects: FileObjects,
        committer: TableCommitter,
        transform: Transform | None,
    ) -> None:
        self._config = config
        self._objects = objects
        self._committer = committer
        self._transform = transform
        self._spark = spark
        self._before = {name: spark.conf.get(name, None) for name in SETTINGS}
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        self._lent = _lend_keys(spark)
        self._reader = BatchReader(spark, config, engine)
        self._reader.given_schema()  # a wrong one is known before a file is taken

    def close(self) -> None:
        """Leave the session as it was: it may be the caller's."""
        if has_ended(self._spark):
            return
        for name in self._lent:
            self._spark.sparkContext.environment.pop(name, None)
        for name, value in self._before.items():
            if value is None:
                self._spark.conf.unset(name)
            else:
                self._spark.conf.set(name, value)

    def run(self, batch: str, files: Sequence[HeldFile]) -> BatchOutput:
        """Write the rows of files. `FilesFailed` names those that cannot be had, `BatchFailed` says that Spark failed,
        which may be one file's fault."""
        folder = self._committer.folder_of(batch)
        with Staging(self._config.staging_folder / batch, files, self._objects, self._is_pinned) as staging:
            staging.fetch()
            crash.point("ingest.after_read")
            with ExitStack() as closing:
                with self._told(staging, folder):
                    frame = self._read(staging, closing)
                if frame is None:
                    return BatchOutput(batch, folder, (), StructType([]))
                frame = self._completed(self._transformed(frame))
                self._committer.prepare(frame.schema)
                plan = self._committer.plan(batch, frame.schema)
                with self._told(staging, folder):
                    written = write(frame, plan)
                    self._committer.check_written(written)
        crash.point("ingest.after_write")
        return BatchOutput(batch, folder, written, frame.schema, plan.schema, self._committer.rule)

    def _is_pinned(self, uri: str) -> bool:
        return reads_in_tasks(uri, self._config.format, self._config.options)

    def _read(self, staging: Staging, closing: ExitStack) -> DataFrame | None:
        """The rows of files that were copied, and those of objects."""
        kind, spark = self._config.format, self._spark
        sources: list[Source] = []
        if staging.copied:
            self._balance([staged.file for staged in staging.copied])
            sources.append(StagedSource(spark, staging.folder, staging.copied, kind))
        if staging.pinned:
            access = ObjectAccess(self._config.identity, self._config.s3_options)
            held = [staging.files[one.number].file for one in staging.pinned]
            options = {"header": "true", **self._config.options} if kind == "csv" else self._config.options
            sources.append(ExecutorSource(spark, access, staging.pinned, held, kind, options))
        frames = []
        for source in sources:
            closing.callback(source.close)
            frames.append(self._reader.read(source, staging.files))
        found = [frame for frame in frames if frame is not None]
        return reduce(partial(DataFrame.unionByName, allowMissingColumns=True), found) if found else None

    def _balance(self, files: Sequence[HeldFile]) -> None:
        """Let Spark cut the files into tasks that keep all cores busy to the end: three tasks on two cores take as long
        as four."""
        cores = self._spark.sparkContext.defaultParallelism
        size = sum(file.shard.size + OPEN_BYTES for file in files)
        tasks = cores * -(-size // (TASK_BYTES * cores))
        share = -(-size // tasks)
        self._spark.conf.set("spark.sql.files.maxPartitionBytes", str(share + share // 32))

    def check_working(self) -> None:
        """Whether Spark can write anything at all where the table is, before a file is blamed for what went wrong:
        `Unavailable` if not, and `SparkEnded` if there is none any more."""
        folder = self._committer.folder_of(PROBE)
        plan = self._committer.probe()
        try:
            write(self._spark.range(1), plan)
        except Exception as error:
            if has_ended(self._spark):
                raise SparkEnded(f"Spark's Java has ended: {_reason(error)}") from error
            raise Unavailable(f"Spark cannot write to {folder}: {_reason(error)}") from error
        finally:
            self._committer.drop(folder)

    @contextmanager
    def _told(self, staging: Staging, folder: str) -> Iterator[None]:
        """What goes wrong in here may be a file's fault."""
        try:
            yield
        except (Unavailable, Busy, FilesFailed):
            self._committer.drop(folder)
            raise
        except Exception as error:
            self._committer.drop(folder)
            if has_ended(self._spark):
                raise SparkEnded(f"Spark's Java has ended, perhaps for want of memory: {_reason(error)}") from error
            failure = failure_in(str(error))
            raise (_explained(error, staging) if failure is None else staging.failed(*failure)) from error

    def _completed(self, frame: DataFrame) -> DataFrame:
        """The rows with the columns that the table is partitioned by, and the one that says which is newer."""
        newest = [("newest_by", self._config.newest_by)] if self._config.newest_by else []
        for option, text in [*(("partition_by", one) for one in self._config.partition_by), *newest]:
            column, expression = parted(text)
            if not expression:
                continue
            if column in frame.columns:
                raise Invalid(f"the rows have a column {column}, which {option} makes: give one of them another name")
            try:
                frame = frame.withColumn(column, F.expr(expression))
            except AnalysisException as error:
                raise Invalid(f"{option} has {expression!r}, which cannot be computed: {_reason(error)}") from error
        return frame

    def _transformed(self, frame: DataFrame) -> DataFrame:
        """The rows after the user's function. What is wrong with that is not a file's fault, and ends the pipeline."""
        if self._transform is None:
            return frame
        try:
            changed = self._transform(frame)
        except Exception as error:
            raise Invalid(
                f"the transform failed: {_place_of(error)}{type(error).__name__}: {_reason(error)}"
            ) from error
        if not isinstance(changed, DataFrame):
            raise Invalid(f"the transform answered {type(changed).__name__}, and has to answer a DataFrame")
        return changed


def write(frame: DataFrame, plan: FilePlan) -> tuple[WrittenFile, ...]:
    """Let tasks write the rows where the table is; the files that came of it. What tasks write that are run again is in
    the batch's folder, too, and in no commit."""
    return tuple(file for task in in_tasks(frame, partial(write_files, plan)) for file in task)


_KEYS: Final = ("AWS_", "GOOGLE_", "AZURE_")
"""How the names of the variables begin that say how a bucket is reached."""


def _lend_keys(spark: SparkSession) -> list[str]:
    """Let tasks on this machine reach buckets as this process does: Java may have begun with another environment. The
    names of what they got. On a cluster tasks have the keys of their own machines."""
    context = spark.sparkContext
    if not str(context.master).startswith("local"):
        return []
    lent = {name: os.environ[name] for name in os.environ if name.startswith(_KEYS)}
    lent = {name: value for name, value in lent.items() if name not in context.environment}
    context.environment.update(lent)
    return list(lent)


def has_ended(spark: SparkSession) -> bool:
    """Whether there is no Java behind a session any more."""
    try:
        return bool(spark.sparkContext._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001  there is no answer any more
        return True


def _explained(error: Exception, staging: Staging) -> Exception:
    """An error of Spark's, with the files that it names."""
    suspects = staging.named_in(str(error))
    text = _reason(error)
    for file, name in suspects:
        text = text.replace(f"file://{staging.folder}/{name}", file.shard.uri)
    return BatchFailed(text, [file for file, _ in suspects])


def _reason(error: Exception) -> str:
    """What an error says, without Java's list of where it was: what was behind it in the end, and the first line."""
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "An error occurred while calling"))]
    causes = [line.removeprefix("Caused by: ") for line in said if line.startswith("Caused by: ")]
    shown = [*_python_error(str(error)), *causes[-1:], said[0] if said else type(error).__name__]
    return "; ".join(dict.fromkeys(_NOISE.sub("", line).strip() for line in shown))


def _python_error(text: str) -> list[str]:
    """The last line of the last traceback of a Python worker, and where in a user's file it was."""
    _, found, trace = text.rpartition("Traceback (most recent call last):")
    if not found:
        return []
    lines = list(takewhile(lambda line: line.strip() and not line.startswith("\tat "), trace.splitlines()[1:]))
    last = next((line for line in reversed(lines) if not line.startswith(" ")), "")
    places = [line.strip() for line in lines if line.startswith('  File "')]
    return [f"{last} ({places[-1]})" if places else last] if last else []


def _place_of(error: Exception) -> str:
    """Where an error was raised in the file of a transform."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames[1:] if "site-packages" not in frame.filename]
    return f"{Path(mine[-1].filename).name}, line {mine[-1].lineno}: " if mine else ""


# -- the user's function ----------------------------------------------------------------------------------------------


def find_transform(config: IngestConfig) -> Callable[[SparkSession], Transform | None]:
    """What loads the function that the configuration names: itself, "file.py:function" or "module:function".

    What can be known to be wrong is raised here. The file is run later, when there is a Spark session: functions of
    Spark's, such as a UDF whose type is a text, cannot be made before.
    """
    wanted = config.transform
    if wanted is None or callable(wanted):
        return lambda _spark: wanted
    if not isinstance(wanted, str):
        raise Invalid(f'transform is "file.py:function" or "module:function", not {wanted!r}')
    load = find_function(wanted, "transform", path_of=config.path)
    return lambda spark: cast(Transform, load(lambda file: _names_of(file, spark)))


def _names_of(file: UserFile, spark: SparkSession) -> dict[str, object]:
    """The names of a file. What lies beside it can be imported by it, and so by its functions in Spark's workers."""
    environment = spark.sparkContext.environment
    paths = [str(file.path.resolve().parent), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return file.run()
