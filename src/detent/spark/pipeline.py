"""`Pipeline`: streams between journals, queues and tables, declared in a file that ``detent run`` runs.

>>> from detent.spark import Pipeline
>>> pipeline = Pipeline("shop", store="file:./data")
>>> @pipeline.stream(read="orders", write="paid", json="id BIGINT NOT NULL, amount DOUBLE")
... def paid(orders):
...     return orders.where("amount > 0")

Declaring starts nothing and needs no Spark: what is wrong with a declaration is said before Java runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detent.errors import Exists, Invalid, NotFound
from detent.runtime.target import refuse_while_loading
from detent.spark.pipeline_stream import (
    Custom,
    JournalEnd,
    Output,
    QueueEnd,
    Read,
    Schema,
    Source,
    Stream,
    StreamSettings,
    TableEnd,
    Write,
    check_part,
    inputs_of,
    outputs_of,
)
from detent.tables.options import TableOptions

if TYPE_CHECKING:
    from detent.durations import Duration
    from detent.spark.stream_state import Summary
    from detent.tables.catalogs import CatalogGiven

Function = TypeVar("Function", bound=Callable[..., Any])


def queue(name: str) -> QueueEnd:
    """A queue, as what a stream reads or writes; a bare name is a journal.

    >>> @pipeline.stream(read=queue("orders"), write=["paid", queue("mails")])
    ... def paid(orders): ...
    """
    return QueueEnd(name)


class Pipeline:
    """Streams that belong together: each reads journals or queues, is changed by a function, and writes.

    `store` is the URL of the store; left out, it comes from ``detent run --store`` or DETENT_URL. For a store on an
    object store, `server` is the URL of the server that owns it: Spark's tasks read and write the bucket, and the
    server commits. Without one the driver owns the store while it runs. `checkpoints` is the folder of Spark's
    checkpoints, ``PIPELINE/STREAM`` in it; left out, it lies beside a ``file:`` store. Keep it as long as the store: it
    says how far each stream has read. `storage_options` say how to reach the object store of tables that name none of
    their own. `conf` are settings of Spark.
    """

    def __init__(
        self,
        name: str,
        store: str | None = None,
        *,
        server: str | None = None,
        checkpoints: str | Path | None = None,
        storage_options: Mapping[str, str] | None = None,
        conf: Mapping[str, object] | None = None,
    ) -> None:
        check_part(name, "pipeline")
        self.name = name
        self.store = store
        self.server = server
        self.storage_options = dict(storage_options or {})
        self.checkpoints = checkpoints
        self.conf = dict(conf or {})
        self._streams: dict[str, Stream] = {}

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self._streams)} streams)"

    @property
    def streams(self) -> list[Stream]:
        """The streams, in the order of their declaration."""
        return list(self._streams.values())

    def stream(
        self,
        *,
        read: Read,
        write: Write,
        name: str | None = None,
        json: Schema | None = None,
        start: str | None = None,
        mode: str = "append",
        every: Duration | None = None,
        max_messages: int | None = None,
        fail_on_loss: bool = True,
    ) -> Callable[[Function], Function]:
        """Declare a stream: the function takes a streaming DataFrame and answers another one.

        `read` is a journal, a pattern such as ``"shop/*"``, a ``queue(...)``, or a list of them. A function with one
        parameter gets the messages of all journals together (the column `journal` tells them apart); one with several
        gets a DataFrame for each source, by name: the parameters are called like the sources, or `read` is a dictionary
        of parameters and sources.

        `write` is a journal, a ``queue(...)``, a sink such as ``to_sql(...)``, or a list: all of them get the rows of a
        batch, those in the store in one transaction. A message is the columns `body`, `key` and `headers`; without a
        column `body`, all columns become a JSON object.

        `json` is the schema of the bodies, as DDL or a StructType: the function gets its fields as columns, and the
        rest of the message in the struct `_message`, which is not written. What is no JSON, or does not match, goes to
        the journal ``PIPELINE/STREAM.quarantine``, in the transaction of the batch it came with. A field must be there
        only if the schema says NOT NULL.

        `start` is where the first run begins in the journals: "earliest" (unless told), "latest", or a time. `mode` is
        Spark's output mode: "append", "update" for results that change, which tables take with `merge_on`, or
        "complete" for tables that each batch replaces. `every` sets a pace, such as "10s"; left out, a batch begins as
        soon as there is something to read. `max_messages` bounds a batch. With `fail_on_loss` set to False the stream
        goes on where messages it has not read were trimmed away.
        """
        settings = StreamSettings.of(start, mode, every, max_messages, fail_on_loss)

        def declare(function: Function) -> Function:
            self._add(function, name, read, outputs_of(write), json, settings)
            return function

        return declare

    def table(
        self,
        *,
        read: Read,
        path: str | Path,
        catalog: CatalogGiven | None = None,
        location: str | Path | None = None,
        merge_on: list[str] | None = None,
        partition_by: list[str] | str | None = None,
        evolve: bool = False,
        sort_by: list[str] | str | None = None,
        file_bytes: int = 0,
        compact_after: int = 0,
        storage_options: Mapping[str, str] | None = None,
        name: str | None = None,
        json: Schema | None = None,
        start: str | None = None,
        mode: str = "append",
        every: Duration | None = None,
        max_messages: int | None = None,
        fail_on_loss: bool = True,
    ) -> Callable[[Function], Function]:
        """Declare a stream into a table: the rows that the function answers are appended, each batch once.

        `path` is the folder or URL of a Delta table. With `catalog`, a URL such as ``https://catalog:8181`` or
        ``sqlite:////data/catalog.db``, it is the name of an Iceberg table, such as ``"lake.paid"``, which is made at
        `location` unless the catalog chooses a place.

        With `merge_on`, columns such as ``["id"]``, a row replaces the one with the same key, if there is one. Rows of
        ``mode="update"`` need that; with ``mode="complete"`` each batch replaces the table. `partition_by`, `evolve`,
        `sort_by`, `file_bytes` and `compact_after` are those of :func:`detent.spark.to_delta`. `storage_options` say
        how to reach a table on an object store, instead of those of the pipeline.

        The other arguments are those of :meth:`stream`.
        """
        settings = StreamSettings.of(start, mode, every, max_messages, fail_on_loss)
        options = TableOptions.checked(
            merge_on=merge_on,
            partition_by=partition_by,
            storage_options=self.storage_options if storage_options is None else storage_options,
            evolve=evolve,
            sort_by=sort_by,
            file_bytes=file_bytes,
            compact_after=compact_after,
        )
        sink = TableEnd.at(path, options, catalog, location)

        def declare(function: Function) -> Function:
            self._add(function, name, read, (sink,), json, settings)
            return function

        return declare

    def _add(
        self,
        function: Callable[..., Any],
        name: str | None,
        read: Read,
        outputs: tuple[Output, ...],
        json: Schema | None,
        settings: StreamSettings,
    ) -> None:
        if not callable(function):
            raise Invalid(f"a stream is a function that takes and answers a DataFrame, not {function!r}")
        chosen = str(name or getattr(function, "__name__", ""))
        check_part(chosen, "stream")
        if chosen in self._streams:
            raise Exists(
                f"the pipeline {self.name!r} has a stream {chosen!r} already: call the function differently, or give "
                "this one another name with name="
            )
        stream = Stream(self.name, chosen, function, inputs_of(chosen, function, read, json), outputs, settings)
        stream.check()
        self._streams[chosen] = stream

    def run(self, *, once: bool = False, only: list[str] | None = None, **options: Any) -> Summary:
        """Run the streams in this process: until it is told to stop, or with `once` until everything there is has been
        read. It takes the options of :func:`detent.spark.pipeline_runner.run`, such as `store` and `checkpoints`."""
        from detent.spark.pipeline_runner import run

        refuse_while_loading("pipeline.run()")
        return run(self, once=once, only=only, **options)


# -- the streams as a graph: the order in which they run, and how it is shown -----------------------------------------


def chosen(pipeline: Pipeline, only: Iterable[str] | None) -> list[Stream]:
    """The streams to run, upstream first: all, or those that are named."""
    streams = ordered(pipeline.streams)
    if not streams:
        raise Invalid(
            f"the pipeline {pipeline.name!r} has no streams: declare one with @pipeline.stream(read=..., write=...)"
        )
    if only is None:
        return streams
    wanted = set(only)
    for name in sorted(wanted - {stream.name for stream in streams}):
        raise NotFound(f"there is no stream {name!r}; there are {', '.join(stream.name for stream in streams)}")
    return [stream for stream in streams if stream.name in wanted]


def ordered(streams: list[Stream]) -> list[Stream]:
    """The streams so that what one writes is read by later ones. In a circle, the one that was declared first leads."""
    left = list(streams)
    found: list[Stream] = []
    while left:
        free = [one for one in left if not any(feeds(other, one) for other in left if other is not one)]
        # What stands downstream of a circle is no part of it, so it is not taken to break it.
        following = (free or [one for one in left if one in _behind(one, left)])[0]
        found.append(following)
        left.remove(following)
    return found


def feeds(one: Stream, other: Stream) -> bool:
    """Whether a stream writes what another one reads."""
    return any(source.reads(target) for source in other.sources for target in one.targets)


def _behind(stream: Stream, streams: list[Stream]) -> list[Stream]:
    """The streams that messages of this one can reach."""
    found: list[Stream] = []
    waiting = [stream]
    while waiting:
        at = waiting.pop()
        for other in streams:
            if other not in found and feeds(at, other):
                found.append(other)
                waiting.append(other)
    return found


def circles(pipeline: Pipeline) -> list[str]:
    """The streams whose messages can come back to them."""
    return [stream.name for stream in pipeline.streams if stream in _behind(stream, pipeline.streams)]


def journals_read(streams: list[Stream]) -> list[str]:
    """The journals that are read by name, once each."""
    names = (s.name for stream in streams for s in stream.sources if isinstance(s, JournalEnd) and not s.is_pattern)
    return list(dict.fromkeys(names))


def journals_written(streams: list[Stream]) -> list[str]:
    """The journals that are written, once each."""
    return list(dict.fromkeys(t.name for stream in streams for t in stream.targets if isinstance(t, JournalEnd)))


def queues_used(streams: list[Stream]) -> list[str]:
    """The queues that are read or written, once each."""
    ends = (end for stream in streams for end in (*stream.sources, *stream.targets))
    return list(dict.fromkeys(end.name for end in ends if isinstance(end, QueueEnd)))


# -- shown ----------------------------------------------------------------------------------------------------------


def as_text(pipeline: Pipeline) -> str:
    """The streams, one a line, in the order in which they run."""
    streams = ordered(pipeline.streams)
    width = max((len(stream.name) for stream in streams), default=0)
    lines = [f"pipeline {pipeline.name}"]
    for stream in streams:
        read = ", ".join(map(str, stream.sources))
        written = ", ".join(map(str, stream.outputs))
        aside = f"  (what does not match: {stream.quarantine})" if stream.quarantine else ""
        lines.append(f"  {stream.name:<{width}}  {read} -> {written}{aside}")
    back = circles(pipeline)
    if back:
        lines.append(f"note: messages of {', '.join(back)} can come back to them")
    return "\n".join(lines)


def as_mermaid(pipeline: Pipeline) -> str:
    """The graph in Mermaid's language, as README files and many editors show it."""
    nodes: dict[object, str] = {}
    lines = ["flowchart LR"]

    def node(end: Source | Output) -> str:
        if end not in nodes:
            nodes[end] = f"n{len(nodes)}"
            lines.append(f"    {nodes[end]}{_shape(end)}")
        return nodes[end]

    for number, stream in enumerate(ordered(pipeline.streams)):
        lines.append(f"    s{number}{{{{{_quoted(stream.name)}}}}}")
        lines += [f"    {node(source)} --> s{number}" for source in stream.sources]
        lines += [f"    s{number} --> {node(target)}" for target in stream.outputs]
        if stream.quarantine is not None:
            lines.append(f"    s{number} -.-> {node(stream.quarantine)}")
    return "\n".join(lines)


def _shape(end: Source | Output) -> str:
    text = _quoted(end.path if isinstance(end, TableEnd) else str(end) if isinstance(end, Custom) else end.name)
    if isinstance(end, QueueEnd):
        return f"[/{text}/]"
    return f"[({text})]" if isinstance(end, TableEnd) else f"[{text}]"


def _quoted(text: str) -> str:
    """A label, with what would end it written out."""
    return '"' + text.replace("#", "#35;").replace('"', "#quot;") + '"'


def as_json(pipeline: Pipeline) -> dict[str, Any]:
    """The graph for programs."""
    return {
        "pipeline": pipeline.name,
        "streams": [
            {
                "name": stream.name,
                "read": [_end(source) for source in stream.sources],
                "write": [_end(target) for target in stream.outputs],
                "quarantine": stream.quarantine and stream.quarantine.name,
            }
            for stream in ordered(pipeline.streams)
        ],
        "circles": circles(pipeline),
        "mermaid": as_mermaid(pipeline),
    }


def _end(end: Source | Output) -> dict[str, str]:
    if isinstance(end, TableEnd):
        return {"kind": end.kind, "path" if end.catalog is None else "name": end.path}
    return {"kind": end.kind, "name": str(end) if isinstance(end, Custom) else end.name}
