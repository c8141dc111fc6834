"""The DataFrames of a stream: what its function gets, and how what it answers becomes messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from detent.errors import Invalid
from detent.queue.reader_operations import ASSIGNED_MAX
from detent.spark import quarantine
from detent.spark.pipeline_stream import JournalEnd, QueueEnd, Stream, StreamInput
from detent.spark.places import EARLIEST
from detent.spark.queue_reading import ASSIGNED_BYTES_DEFAULT
from detent.spark.store_place import StorePlace

MESSAGE: Final = "_message"
"""What is known of a message besides its parsed body. It is for the function, and not written."""

REASON_MAX: Final = 1_000
"""A schema can be long, and headers have a limit."""

_PARSED, _VALUE, _BROKEN, _REASON = "_detent_parsed", "value", "broken", "_detent_reason"
_SOURCE_COLUMNS: Final = frozenset(
    {"journal", "offset", "published_at", MESSAGE}
    | {"queue", "message", "delivery", "attempts", "priority", "created_at", "received_at", "uri"}
)
"""What sources add to a message. A function that only filters answers them too, and they are left behind."""

_HEADERS: Final = MapType(StringType(), StringType())
_PARTS: Final = ("body", "key", "headers")
_PUBLISHED: Final = frozenset({"delay", "dedup_key"})
_RESULT, _REJECTED = "_detent_result", "_detent_rejected"


class Frames(NamedTuple):
    """What a stream writes: what its function answered, and what does not match the schemas as messages."""

    result: DataFrame
    rejected: DataFrame | None


def frames_of(spark: SparkSession, place: StorePlace, stream: Stream, ends: Mapping[str, int]) -> Frames:
    """Read the inputs of a stream, journals up to `ends` if it is to end, and call its function."""
    rejected: DataFrame | None = None
    arguments: dict[str, DataFrame] = {}
    for one in stream.inputs:
        frame = _read(spark, place, stream, one, ends)
        if one.schema is not None:
            frame, bad = parse(frame, _struct(stream, one))
            rejected = bad if rejected is None else rejected.unionByName(bad)
        arguments[one.parameter] = frame
    result = stream.function(**arguments)
    if not isinstance(result, DataFrame):
        raise Invalid(
            f"the function of the stream {stream.name!r} answered {type(result).__name__}: it has to return a DataFrame"
        )
    if not result.isStreaming:
        raise Invalid(
            f"the function of the stream {stream.name!r} answered a DataFrame that is no stream: derive it from its "
            "parameters"
        )
    return Frames(result, rejected)


def _read(
    spark: SparkSession, place: StorePlace, stream: Stream, one: StreamInput, ends: Mapping[str, int]
) -> DataFrame:
    """The messages of an input."""
    settings = stream.settings
    if isinstance(one.sources[0], JournalEnd):
        reader = spark.readStream.format("detent").option("includeHeaders", "true")
        reader = reader.option("journals", ",".join(source.name for source in one.sources))
        reader = reader.option("maxMessagesPerTrigger", stream.messages_max)
        reader = reader.option("planName", f"{stream.full_name}:{one.parameter}")
        if any(isinstance(target, QueueEnd) for target in stream.outputs):
            reader = reader.option("maxBytesPerTrigger", ASSIGNED_BYTES_DEFAULT)  # about what one transaction publishes
        reader = reader.option("failOnDataLoss", str(settings.fail_on_loss).lower())
        upto = {
            name: end for name, end in ends.items() if any(source.reads(JournalEnd(name)) for source in one.sources)
        }
        if upto:
            reader = reader.option("endingOffsets", json.dumps(upto))
        if settings.start != EARLIEST:
            reader = reader.option("startingOffsets", settings.start)
        if not settings.start_is_fixed:
            reader = reader.option("readerName", f"{stream.full_name}:{one.parameter}")
        return reader.options(**place.options).load(place.url)
    reader = spark.readStream.format("detent.queue").option("queue", one.sources[0].name)
    reader = reader.option("readerName", stream.full_name)
    reader = reader.option("maxMessagesPerTrigger", min(ASSIGNED_MAX, stream.messages_max))
    return reader.options(**place.options).load(place.url)


# -- parsing --------------------------------------------------------------------------------------------------------


def _struct(stream: Stream, one: StreamInput) -> StructType:
    schema = one.schema if isinstance(one.schema, StructType) else StructType.fromDDL(one.schema)
    if not isinstance(schema, StructType) or not schema.fields:
        raise Invalid(f"the schema of the stream {stream.name!r} has no fields")
    if MESSAGE in schema.fieldNames():
        raise Invalid(f"the schema of the stream {stream.name!r} has a field {MESSAGE}, which is Detent's own name")
    return schema


def parse(frame: DataFrame, schema: StructType) -> tuple[DataFrame, DataFrame]:
    """Messages whose bodies match a schema, with its fields as columns; and the others, as messages for quarantine."""
    text = F.concat(F.lit('{"v":'), F.col("body").cast("string"), F.lit("}"))
    # Inside another object, because Spark's parser ignores whatever comes after the end of a value.
    whole = StructType().add("v", schema).add(_BROKEN, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN, "allowSingleQuotes": "false"}
    parsed = frame.withColumn(_PARSED, F.from_json(text, whole, options))
    value = F.col(f"{_PARSED}.v")
    reason = (
        F.when(F.col("body").isNull(), F.lit("the message has no body"))
        .when(F.try_parse_json(text).isNull(), F.lit("the body is no JSON"))
        .when(F.col(f"{_PARSED}.{_BROKEN}").isNotNull(), F.lit(_mismatch(schema)))
        .when(value.isNull(), F.lit("the body is no JSON object"))
    )
    for path in _required(schema):
        reason = reason.when(path.missing(value), F.lit(f"the field {path.name} is missing"))
    is_bad = _is_bad(value, schema)
    others = [F.col(name) for name in frame.columns if name != "body"]
    good = parsed.where(~is_bad).select(f"{_PARSED}.v.*", F.struct(*others).alias(MESSAGE))
    return good, _rejected(parsed.where(is_bad).withColumn(_REASON, reason))


def _is_bad(value: Column, schema: StructType) -> Column:
    """Whether a body does not match. The reason is found for those alone, as it takes another look at the text."""
    bad = F.col("body").isNull() | F.col(f"{_PARSED}.{_BROKEN}").isNotNull() | value.isNull()
    for path in _required(schema):
        bad = bad | path.missing(value)
    return F.coalesce(bad, F.lit(True))


class _Path(NamedTuple):
    """A field that has to be there, if those around it are."""

    around: tuple[str, ...]
    field: str

    @property
    def name(self) -> str:
        return ".".join((*self.around, self.field))

    def missing(self, value: Column) -> Column:
        """Whether a value lacks it."""
        for name in self.around:
            value = value.getField(name)
        return value.isNotNull() & value.getField(self.field).isNull()


def _required(schema: StructType, around: tuple[str, ...] = ()) -> list[_Path]:
    """The fields that are NOT NULL; those of fields within fields too. Spark's parser does not look at that."""
    found = []
    for field in schema.fields:
        if not field.nullable:
            found.append(_Path(around, field.name))
        if isinstance(field.dataType, StructType):
            found += _required(field.dataType, (*around, field.name))
    return found


def _mismatch(schema: StructType) -> str:
    text = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
    return f"the body does not match the schema {text}"[:REASON_MAX]


def _rejected(bad: DataFrame) -> DataFrame:
    """Messages for quarantine: as they were, with headers that say why and where from."""
    from_journal = "journal" in bad.columns
    ours = {
        quarantine.REASON: F.col(_REASON),
        (quarantine.JOURNAL if from_journal else quarantine.QUEUE): F.col("journal" if from_journal else "queue"),
        (quarantine.OFFSET if from_journal else quarantine.MESSAGE): F.col("offset" if from_journal else "message"),
    }
    if "uri" in bad.columns:
        ours[quarantine.URI] = F.col("uri")
    added = F.create_map(*[part for name, value in ours.items() for part in (F.lit(name), value.cast("string"))])
    # A message that was here before may carry our headers, and no name may be there twice.
    own = F.map_filter(F.coalesce("headers", _no_headers()), lambda name, _: ~name.isin(*quarantine.HEADERS))
    added = F.map_filter(added, lambda _, value: value.isNotNull())
    key = F.col("key") if "key" in bad.columns else F.lit(None)
    return bad.select(
        F.coalesce("body", F.lit(b"")).alias("body"),
        key.cast("binary").alias("key"),
        F.map_concat(own, added).alias("headers"),
    )


def _no_headers() -> Column:
    return F.create_map().cast(_HEADERS)


# -- writing --------------------------------------------------------------------------------------------------------


def rows_of(result: DataFrame) -> DataFrame:
    """What the function answered, for tables and functions: without the rest of the messages."""
    return result.drop(MESSAGE)


def messages_of(result: DataFrame, *, into_queues: bool = False) -> DataFrame:
    """What the function answered as messages of a journal: body, key and headers. Columns that are for the queues which
    the stream writes too are left behind."""
    kinds = {field.name: field.dataType for field in result.schema}
    body = _body(result, kinds, _PUBLISHED if into_queues else frozenset())
    _check_text(kinds, "key")
    return result.select(body, _key(kinds).cast("binary").alias("key"), _headers(kinds))


def published_of(result: DataFrame) -> DataFrame:
    """What the function answered as messages of a queue: body (or uri) and headers, delay and dedup_key."""
    kinds = {field.name: field.dataType for field in result.schema}
    kept: list[str] = [name for name in ("delay", "dedup_key") if name in kinds]
    if "body" in kinds and "uri" in kinds:
        kept.append("uri")
    # A message that came from a queue has its address among its headers, and gets a new one.
    headers = F.map_filter(_headers(kinds), lambda name, _: name != "queue").alias("headers")
    return result.select(_body(result, kinds, _PUBLISHED), headers, *kept)


def _body(result: DataFrame, kinds: dict[str, DataType], apart: frozenset[str]) -> Column:
    """The body: the column of that name, or all columns as a JSON object; `apart` are parts of a message too."""
    others = [name for name in result.columns if name not in _PARTS and name not in apart]
    if "body" in kinds:
        strange = [name for name in others if name not in _SOURCE_COLUMNS]
        if strange:
            raise Invalid(
                f"the columns {', '.join(strange)} have no place in a message, which is body, key and headers: drop "
                "them, or leave body out, and all columns become a JSON object"
            )
        _check_text(kinds, "body")
        return F.col("body").cast("binary").alias("body")
    content = [F.col(_escaped(name)) for name in others if name != MESSAGE]
    if not content:
        raise Invalid("the function answered no column body, and nothing to make one of")
    return F.to_json(F.struct(*content), {"ignoreNullFields": "false"}).cast("binary").alias("body")


def _key(kinds: dict[str, DataType]) -> Column:
    return F.col("key") if "key" in kinds else F.lit(None)


def _headers(kinds: dict[str, DataType]) -> Column:
    kind = kinds.get("headers")
    if kind is None:
        return _no_headers().alias("headers")
    if not isinstance(kind, MapType) or (kind.keyType, kind.valueType) != (StringType(), StringType()):
        raise Invalid(f"the column headers is a map<string,string>, not {kind.simpleString()}")
    return F.coalesce("headers", _no_headers()).alias("headers")


def _check_text(kinds: dict[str, DataType], name: str) -> None:
    kind = kinds.get(name)
    if kind is not None and not isinstance(kind, BinaryType | StringType):
        raise Invalid(f"the column {name} is binary or string, not {kind.simpleString()}")


def _escaped(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# -- both in one ----------------------------------------------------------------------------------------------------


def joined(frames: Frames) -> DataFrame:
    """What the function answered and what does not match as one stream, because a stream has one batch at a time: each
    row is the one or the other. `result_of` and `rejected_of` take them apart again."""
    if frames.rejected is None:
        return frames.result
    result = frames.result.select(F.struct(*map(_escaped, frames.result.columns)).alias(_RESULT))
    rejected = frames.rejected.select(F.struct(*_PARTS).alias(_REJECTED))
    return result.unionByName(rejected, allowMissingColumns=True)


def result_of(batch: DataFrame) -> DataFrame:
    """What the function answered, of a batch."""
    if _RESULT not in batch.columns:
        return batch
    return batch.where(F.col(_RESULT).isNotNull()).select(f"{_RESULT}.*")


def rejected_of(batch: DataFrame) -> DataFrame:
    """What does not match, of a batch."""
    return batch.where(F.col(_REJECTED).isNotNull()).select(f"{_REJECTED}.*")
