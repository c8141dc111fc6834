"""One stream of a pipeline: what it reads, what it writes, and the checks of its declaration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from detent import patterns
from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.names import check_name
from detent.spark.places import EARLIEST, OffsetPlaces
from detent.tables.options import TableOptions

MESSAGES_MAX: Final = 1_000_000
"""A batch is this long unless told: enough to keep Spark busy, and what a replay repeats after a crash."""

PUBLISHED_MAX: Final = 20_000
"""The same for streams into queues: all that a batch publishes passes through the owner in one transaction."""

MODES: Final = ("append", "update", "complete")
"""Spark's output modes. Complete writes the whole result again with each batch, so it is for tables alone."""

QUARANTINE: Final = ".quarantine"
PART_MAX: Final = 64
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""Also the name of a folder, so fewer characters than in a journal's name."""


@dataclass(frozen=True, slots=True)
class JournalEnd:
    """A journal, or as a source all journals that a pattern matches."""

    kind: ClassVar = "journal"

    name: str

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for any number of journals."""
        return patterns.is_pattern(self.name)

    def reads(self, other: object) -> bool:
        """Whether what is written to `other` is read here."""
        return isinstance(other, JournalEnd) and patterns.matches(self.name, other.name)

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return f"journal {self.name}"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """A queue."""

    kind: ClassVar = "queue"

    name: str

    def __post_init__(self) -> None:
        check_name(self.name, "queue")

    def reads(self, other: object) -> bool:
        """Whether what is written to `other` is read here."""
        return self == other

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return str(self)

    def __str__(self) -> str:
        return f"queue {self.name}"


@dataclass(frozen=True, slots=True)
class TableEnd:
    """A Delta table by its path, or with a catalog an Iceberg table by its name."""

    path: str
    options: TableOptions = field(default_factory=TableOptions)
    catalog: Any = field(default=None, repr=False, compare=False)
    """A URL, a name, or a dictionary of properties; there may be a password in it."""

    location: str | None = None
    """The folder or the URL of an Iceberg table, unless its catalog chooses one."""

    @classmethod
    def at(
        cls, path: str | Path, options: TableOptions, catalog: Any = None, location: str | Path | None = None
    ) -> TableEnd:
        """A table, checked."""
        text = str(path)
        if not text.strip():
            raise Invalid('a table has a path, for example "./tables/paid" or "s3://bucket/paid"')
        if catalog is None and location is not None:
            raise Invalid("location is for Iceberg tables, which have a catalog; path says where a Delta table is")
        if catalog is not None and not all(text.rpartition(".")[::2]):
            raise Invalid(f"an Iceberg table is named with its namespace, such as lake.paid, and not {text!r}")
        return cls(text, options, catalog, None if location is None else str(location))

    @property
    def kind(self) -> str:
        """The format."""
        return "delta" if self.catalog is None else "iceberg"

    def check_mode(self, mode: str) -> None:
        """Refuse update mode, whose rows replace earlier ones, unless it is said which ones."""
        self.options.check_mode(mode, str(self))

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return str(self)

    def __str__(self) -> str:
        return f"table {self.path}"


@dataclass(frozen=True, slots=True)
class Custom:
    """A sink of :func:`detent.spark.once` as it is."""

    kind: ClassVar = "custom"

    sink: Any

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return str(getattr(self.sink, "name", self))

    def __str__(self) -> str:
        kind = type(self.sink).__name__.lstrip("_")
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind).lower()


Source = JournalEnd | QueueEnd
Output = JournalEnd | QueueEnd | TableEnd | Custom
Read = str | QueueEnd | list[str | QueueEnd] | Mapping[str, str | QueueEnd | list[str]]
Write = Any
"""A journal's name, a queue, a sink, or a list of them. The class of sinks cannot be named here without Spark."""

Schema = Any
"""DDL, a StructType, or a dictionary of one of these for each parameter."""


@dataclass(frozen=True, slots=True)
class StreamInput:
    """What one parameter of the function gets: one source, or several journals together; parsed, if it has a schema."""

    parameter: str
    sources: tuple[Source, ...]
    schema: Any = None

    @property
    def label(self) -> str:
        """The sources, for people."""
        return ", ".join(map(str, self.sources))


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The arguments of a stream that say how it runs, checked."""

    start: str
    mode: str
    every_ms: int | None
    messages_max: int | None
    fail_on_loss: bool

    @classmethod
    def of(
        cls,
        start: str | None,
        mode: str,
        every: Duration | None,
        messages_max: int | None,
        fail_on_loss: bool,
    ) -> StreamSettings:
        place = EARLIEST if start is None else start
        if not isinstance(place, str):
            raise Invalid(f'start is "earliest", "latest" or a time such as "2026-01-31T12:00:00Z", not {start!r}')
        OffsetPlaces("start", place, EARLIEST)
        if mode not in MODES:
            raise Invalid(f"mode is one of {', '.join(MODES)}, not {mode!r}")
        if messages_max is not None and (type(messages_max) is not int or messages_max < 1):
            raise Invalid(f"max_messages is a whole number from 1 on, not {messages_max!r}")
        return cls(place, mode, None if every is None else milliseconds(every), messages_max, bool(fail_on_loss))

    @property
    def start_is_fixed(self) -> bool:
        """Whether the start means the same whenever it is asked."""
        return OffsetPlaces("start", self.start, EARLIEST).is_fixed


@dataclass(frozen=True, slots=True)
class Stream:
    """A declared stream."""

    pipeline: str
    name: str
    function: Callable[..., Any]
    inputs: tuple[StreamInput, ...]
    outputs: tuple[Output, ...]
    settings: StreamSettings

    @property
    def full_name(self) -> str:
        """How Spark, the ledger and the store's readers know it."""
        return f"{self.pipeline}/{self.name}"

    @property
    def sources(self) -> list[Source]:
        """All that is read."""
        return [source for one in self.inputs for source in one.sources]

    @property
    def quarantine(self) -> JournalEnd | None:
        """Where bodies go that do not match their schema."""
        return JournalEnd(self.full_name + QUARANTINE) if any(one.schema is not None for one in self.inputs) else None

    @property
    def messages_max(self) -> int:
        """How many messages a batch has at most."""
        into_queues = any(isinstance(target, QueueEnd) for target in self.outputs)
        return self.settings.messages_max or (PUBLISHED_MAX if into_queues else MESSAGES_MAX)

    @property
    def targets(self) -> list[Output]:
        """All that is written, the quarantine too."""
        return [*self.outputs, *([self.quarantine] if self.quarantine else [])]

    def check(self) -> None:
        """Refuse a start for queues, which have none; an output mode that an output cannot take; and a stream that
        reads what it writes: each message would make another one, for ever."""
        if self.settings.start != EARLIEST and not any(isinstance(source, JournalEnd) for source in self.sources):
            raise Invalid(f"the stream {self.name!r} reads no journal, so it cannot start at {self.settings.start!r}")
        for output in self.outputs:
            _check_mode(self.name, self.settings.mode, output)
        for source in self.sources:
            for target in self.targets:
                if source.reads(target):
                    raise Invalid(
                        f"the stream {self.name!r} reads {source} and writes {target}: each message would come back as "
                        "another one. Write to another journal"
                    )


def check_part(name: str, what: str) -> None:
    """`Invalid` unless this can be the name of a pipeline or of a stream."""
    if not isinstance(name, str) or len(name) > PART_MAX or not _PART.fullmatch(name):
        raise Invalid(
            f"{name!r} is no name for a {what}: use up to {PART_MAX} ASCII letters, digits and any of _ . -, "
            "beginning with a letter or a digit"
        )


# -- what is read ---------------------------------------------------------------------------------------------------


def inputs_of(name: str, function: Callable[..., Any], read: Read, json: Schema | None) -> tuple[StreamInput, ...]:
    """What each parameter of a stream's function gets."""
    parameters = _parameters(name, function)
    if isinstance(read, Mapping):
        given = {parameter: _sources(name, one) for parameter, one in read.items()}
        if set(given) != set(parameters):
            raise Invalid(
                f"the stream {name!r} reads {{{', '.join(given)}}}, and its function takes ({', '.join(parameters)}): "
                "the parameters have the same names"
            )
    else:
        given = _by_parameter(name, parameters, _sources(name, read))
    for parameter, sources in given.items():
        _check_together(name, parameter, sources)
    _check_each_once(name, [source for sources in given.values() for source in sources])
    schemas = _schemas(name, parameters, json)
    return tuple(StreamInput(parameter, given[parameter], schemas.get(parameter)) for parameter in parameters)


def _parameters(name: str, function: Callable[..., Any]) -> list[str]:
    """The parameters that a stream's function needs."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise Invalid(f"the function of the stream {name!r} needs {parameter.name}=, but is called by position")
        found.append(parameter.name)
    if not found:
        raise Invalid(f"the function of the stream {name!r} takes no DataFrame: give it a parameter for what it reads")
    return found


def _sources(name: str, read: Any) -> tuple[Source, ...]:
    if isinstance(read, str | QueueEnd):
        read = [read]
    if not isinstance(read, list | tuple) or not read:
        raise Invalid(f'the stream {name!r} reads a journal such as "orders", a queue("orders"), or a list of them')
    return tuple(_source(name, one) for one in read)


def _source(name: str, read: Any) -> Source:
    if isinstance(read, QueueEnd):
        return read
    if not isinstance(read, str):
        raise Invalid(f'the stream {name!r} cannot read {read!r}: give a journal such as "orders", or queue("orders")')
    found = JournalEnd(read)
    if not found.is_pattern:
        check_name(read, "journal")
    elif "," in read:
        raise Invalid(f"the stream {name!r} reads {read!r}: give several journals as a list")
    return found


def _by_parameter(name: str, parameters: list[str], sources: tuple[Source, ...]) -> dict[str, tuple[Source, ...]]:
    """Sources without parameters: all to the only one, or one to each by its name."""
    if len(parameters) == 1:
        return {parameters[0]: sources}
    listed = ", ".join(map(str, sources))
    if len(parameters) != len(sources):
        raise Invalid(
            f"the function of the stream {name!r} takes {len(parameters)} DataFrames ({', '.join(parameters)}), and "
            f"reads {len(sources)} sources ({listed}): give it one parameter for each, or one for all"
        )
    named: dict[str, tuple[Source, ...]] = {_as_parameter(source): (source,) for source in sources}
    if set(named) != set(parameters):
        example = ", ".join(f'"{one}": …' for one in parameters)
        raise Invalid(
            f"which of ({', '.join(parameters)}) gets which of ({listed})? Call the parameters of the stream {name!r} "
            f"({', '.join(map(_as_parameter, sources))}), or say it: read={{{example}}}"
        )
    return named


def _as_parameter(source: Source) -> str:
    """What a parameter is called that gets this source: the last part of its name."""
    return re.sub(r"\W", "_", source.name.rsplit("/", 1)[-1])


def _check_together(name: str, parameter: str, sources: tuple[Source, ...]) -> None:
    if len(sources) > 1 and not all(isinstance(source, JournalEnd) for source in sources):
        raise Invalid(
            f"the stream {name!r} reads several sources as {parameter!r}, with a queue among them: only journals can "
            "be read together; give the function one parameter for each source"
        )


def _check_each_once(name: str, sources: list[Source]) -> None:
    for source in sources:
        if sources.count(source) > 1:
            raise Invalid(
                f"the stream {name!r} reads {source} twice: read it once, and use the DataFrame twice in the function"
            )


def _schemas(name: str, parameters: list[str], json: Schema | None) -> dict[str, Any]:
    """The schema of each parameter that has one."""
    if json is None:
        return {}
    given = dict(json) if isinstance(json, Mapping) else dict.fromkeys(parameters, json)
    for parameter, schema in given.items():
        if parameter not in parameters:
            raise Invalid(f"json= has a schema for {parameter!r}, which is no parameter of the stream {name!r}")
        if isinstance(schema, str):
            if not schema.strip():
                raise Invalid(f'json= of the stream {name!r} is empty: give DDL such as "id BIGINT, amount DOUBLE"')
        elif type(schema).__name__ != "StructType":  # by name: Spark is not imported for a declaration
            raise Invalid(f"json= of the stream {name!r} is DDL text or a StructType, not {type(schema).__name__}")
    return given


# -- what is written ------------------------------------------------------------------------------------------------


def _check_mode(name: str, mode: str, output: Output) -> None:
    if isinstance(output, JournalEnd | QueueEnd):
        if mode == "complete":
            raise Invalid(
                f"the stream {name!r} writes to {output} in complete mode, which writes the whole result with each "
                'batch: what is in a store only grows; use mode="update" or "append"'
            )
        return
    check = output.check_mode if isinstance(output, TableEnd) else getattr(output.sink, "check_mode", None)
    if check is not None:
        check(mode)


def outputs_of(write: Write) -> tuple[Output, ...]:
    """What a stream writes."""
    given = list(write) if isinstance(write, list | tuple) else [write]
    if not given:
        raise Invalid('write= is a journal such as "paid", a queue("mails"), a sink, or a list of them; it is empty')
    found = tuple(map(_output, given))
    for one in found:
        if found.count(one) > 1:
            raise Invalid(f"write= names {one} twice: every row would be written there twice")
    return found


def _output(write: Any) -> Output:
    if isinstance(write, str):
        check_name(write, "journal")
        return JournalEnd(write)
    if isinstance(write, QueueEnd | TableEnd):
        return write
    if any(callable(getattr(write, method, None)) for method in ("write", "stage")):  # what sinks of `once` can do
        return Custom(write)
    raise Invalid(
        f'a stream cannot write to {write!r}: give a journal such as "paid", queue("mails"), or a sink such as '
        "to_sql(url, table)"
    )
