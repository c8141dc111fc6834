"""A batch on its way into sinks: what names it, whether it was there before, and its rows."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame

from detent.codec.ledger import BatchInputs, Row
from detent.errors import AlreadyEntered, Invalid, LimitExceeded, NotFound
from detent.ledger import EnterLedger
from detent.ledger.entering import enter
from detent.spark.batch_identity import QUERY_PROPERTY, RUN_PROPERTY, UNKNOWN, checkpoint_of, input_of, running_query
from detent.spark.queue_outgoing import PublishRoom
from detent.store import Store
from detent.tables.marks import BatchKey
from detent.tables.merge import BYTES_MAX, ROWS_MAX
from detent.tables.options import COMPLETE
from detent.transaction import Transaction

_UTC: Final = pa.timestamp("us", tz="UTC")

Select = Callable[[DataFrame], DataFrame] | Sequence[str] | None
"""What a sink takes of a batch: a function from DataFrame to DataFrame, SQL expressions such as ``["id", "total * 2 AS
twice"]``, or None for all of it."""

_ANSWER: Final = "partition int, answer binary"


class MarkPlace(NamedTuple):
    """Where a sink keeps its record of batches. Two sinks at the same place would take each other's rows for theirs."""

    words: str
    within: object = None  # not shown: it may be a URL with a password

    def __str__(self) -> str:
        return self.words


class Share(NamedTuple):
    """What a sink has of a batch's transaction: the batch, what this sink is called, as no other one of its stream is,
    and the room for what it publishes."""

    key: BatchKey
    sink: str
    room: PublishRoom


class ExternalSink(ABC):
    """A sink outside of the store. It keeps its own record of the batches that it has."""

    @property
    def name(self) -> str:
        """What it is called in views and reports."""
        return type(self).__name__.strip("_")

    @property
    def place(self) -> MarkPlace | None:
        """Where it keeps its record; None if it keeps none."""
        return None

    def check_mode(self, mode: str) -> None:
        """Refuse an output mode of Spark's whose rows it would keep wrongly. Not every query says its mode."""
        del mode

    @abstractmethod
    def write(self, batch: DataFrame, key: BatchKey) -> None:
        """Let a batch take effect, unless it did before."""


class EngineSink(ABC):
    """A sink in the store. What all of them stage takes effect in one transaction."""

    @property
    def name(self) -> str:
        """What it is called in views and reports."""
        return type(self).__name__.strip("_")

    def check_mode(self, mode: str) -> None:
        """Refuse complete mode, which writes the whole result with each batch: what is in a store only grows."""
        if mode == COMPLETE:
            raise Invalid(
                "a stream in complete mode writes its whole result with each batch, and journals and queues would get "
                'all rows again: use outputMode("update") or "append"'
            )

    @abstractmethod
    def stage(self, batch: DataFrame, url: str) -> list[Any]:
        """Let tasks bring the rows on their way; what they answer."""

    @property
    def publishes(self) -> bool:
        """Whether it publishes to queues, for which a transaction has little room."""
        return False

    @abstractmethod
    def add(self, store: Store, transaction: Transaction, staged: list[Any], share: Share) -> None:
        """Add what was staged to the batch's transaction. What has no room there takes effect before it, once."""


def key_of(name: str, batch: DataFrame, number: int) -> BatchKey:
    """What names the batch that a foreachBatch function was given."""
    try:
        context = batch.sparkSession.sparkContext
    except PySparkAttributeError as error:
        raise Invalid(
            "once(...) needs classic Spark: under Spark Connect a foreachBatch function is not told which query it "
            'works for. Write with the formats "detent" and "detent.queue" there, which are'
        ) from error
    query = context.getLocalProperty(QUERY_PROPERTY)
    if not query:
        raise Invalid(
            "once(...) is for streams: df.writeStream.foreachBatch(once(...)).start(). For a batch write use the "
            'format "detent" with the options txnAppId and txnVersion'
        )
    checkpoint = checkpoint_of(batch.sparkSession, query)
    made_from = UNKNOWN if checkpoint is None else input_of(checkpoint, number)
    return BatchKey(name, query, number, context.getLocalProperty(RUN_PROPERTY) or "", made_from)


def is_entered(store: Store, key: BatchKey) -> bool:
    """Whether the ledger has the batch. `Fenced` if it would not take it from this query, or from this run of it, and
    `OtherInput` if it has another one of that number."""
    try:
        info = store.describe_ledger(key.name)
    except NotFound:
        return False
    row = Row(0, 0, info.batch, info.entries, info.generation, info.query, info.run, tuple(info.replaced))
    inputs = BatchInputs(tuple(info.inputs))
    try:
        enter(row, EnterLedger(key.name, key.query, key.batch, key.run, key.input), 0, inputs)
    except AlreadyEntered:
        return True
    return False


def check_select(select: Select) -> None:
    """Refuse what cannot select."""
    if select is None or callable(select):
        return
    if isinstance(select, str) or not select or not all(isinstance(expression, str) for expression in select):
        raise Invalid(
            f'select is a function of a DataFrame, or a list of SQL expressions such as ["id"], not {select!r}'
        )


def selected(batch: DataFrame, select: Select) -> DataFrame:
    """What a sink takes of a batch."""
    if select is None:
        return batch
    return select(batch) if callable(select) else batch.selectExpr(*select)


def in_tasks(frame: DataFrame, work: Callable[[Iterator[Any]], Any]) -> list[Any]:
    """Let tasks work on the Arrow batches of their partitions; what each of them answers, by partition."""
    rows = frame.mapInArrow(partial(_answer, work), _ANSWER).collect()
    return [pickle.loads(row["answer"]) for row in sorted(rows, key=lambda row: row["partition"])]


def _answer(work: Callable[[Iterator[Any]], Any], batches: Iterator[Any]) -> Iterator[Any]:
    """What a task does: one row, with what came out."""
    context = TaskContext.get()
    if context is None:
        raise Invalid("rows are written inside a Spark task")
    answer = pickle.dumps(work(batches))
    yield pa.RecordBatch.from_arrays(
        [pa.array([context.partitionId()], pa.int32()), pa.array([answer], pa.binary())], names=["partition", "answer"]
    )


# -- the batch's query: a function of ``foreachBatch`` is told nothing of it, so Spark's own object is asked ----------

_STATE_MARKS: Final = ("state info [", "StateStore")
"""What Spark's plans say of operators that keep state from batch to batch."""


class QueryKind(NamedTuple):
    """The output mode, empty where Spark does not say it; and whether the query keeps state."""

    mode: str
    keeps_state: bool


def query_kind(batch: DataFrame) -> QueryKind:
    """What the query is like that a ``foreachBatch`` function works for."""
    execution = _execution(batch)
    if execution is None:
        return QueryKind("", False)
    plan = str(execution.lastExecution().executedPlan().toString())
    return QueryKind(_mode(execution), any(mark in plan for mark in _STATE_MARKS))


def output_mode(batch: DataFrame) -> str:
    """The output mode of the query alone."""
    execution = _execution(batch)
    return "" if execution is None else _mode(execution)


def _mode(execution: Any) -> str:
    return str(execution.outputMode().toString()).lower()


def _execution(batch: DataFrame) -> Any:
    """Spark's object of the running query; None outside of one."""
    session: Any = batch.sparkSession
    query = session.sparkContext.getLocalProperty(QUERY_PROPERTY)
    return running_query(session, query) if query else None


def compute(batch: DataFrame) -> None:
    """Compute all of a batch, for the state that its query keeps: Spark fails a batch whose state was not written, also
    one that changes nothing in any sink because it is a replay."""
    batch.write.format("noop").mode("append").save()


# -- rows for the driver ------------------------------------------------------------------------------------------


def collect(frame: DataFrame) -> Any:
    """The rows of a batch as a table in the driver, in the order of its partitions; times in UTC."""
    found = [part for part in in_tasks(frame, partial(_packed, ROWS_MAX, BYTES_MAX)) if part is not None]
    tables = [pa.ipc.open_stream(part).read_all() for part in found] or [frame.limit(0).toArrow()]
    rows = pa.concat_tables(tables)
    _check_size(rows.num_rows, rows.nbytes, ROWS_MAX, BYTES_MAX)
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            rows = rows.set_column(place, field.name, rows.column(place).cast(_UTC))
    return rows


def _packed(rows_max: int, bytes_max: int, batches: Iterator[Any]) -> bytes | None:
    """What a task does: its rows as an Arrow stream; None without any."""
    found = []
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        _check_size(rows, size, rows_max, bytes_max)
        found.append(batch)
    if not found:
        return None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found[0].schema) as writer:
        for batch in found:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _check_size(rows: int, size: int, rows_max: int, bytes_max: int) -> None:
    if rows > rows_max or size > bytes_max:
        raise LimitExceeded(
            f"a batch brings at most {rows_max} rows of {bytes_max} bytes together to the driver: let the source give "
            "fewer rows a batch, or aggregate them first"
        )
