"""What `detent graph send` does: one message, or the lines of stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING

import click

from detent.cli._common import count_text
from detent.cli._messages import Entry, batches, encode_line, read_lines
from detent.cli._output import note, progress_bar
from detent.errors import DetentError, Invalid

if TYPE_CHECKING:
    from detent.journal import Appended
    from detent.processor.graph import Graph
    from detent.processor.live_graph import LiveGraph

STDIN = "-"


def place_of(graph: Graph, to: str | None) -> str:
    """The journal that is meant: that of a source, or one that a processor reads. An error comes before a store is
    made."""
    sources = {
        one.name: str(place) for one in graph.processors if one.kind == "source" for place in one.outputs.values()
    }
    listed = ", ".join(sources.values()) or "none"
    if to is None:
        if len(sources) != 1:
            raise Invalid(f"the graph {graph.name!r} has {len(sources)} sources: {listed}; say to which one")
        return next(iter(sources.values()))
    read = {str(place) for one in graph.processors for place in one.inputs}
    if to in read or to in sources.values():
        return to
    if to not in sources:
        raise Invalid(f"the graph {graph.name!r} has no source {to!r}, and nobody reads it: it has {listed}")
    return sources[to]


def send(
    live: LiveGraph,
    to: str,
    body: str,
    *,
    key: str | None,
    kind: str | None,
    topics: Sequence[str],
    as_json: bool,
) -> None:
    """Append the message, or all lines of stdin; each offset is printed once its message is durable."""
    if body != STDIN:
        raw = os.fsencode(body)
        _say(to, live.send(raw, to, key=key, type=kind, topics=topics), 1, as_json=as_json)
        return
    from detent.processor.outcome import headers_of
    from detent.processor.place import place
    from detent.processor.step import Out

    where = place(to)
    journal = live.stores[where.store].journal(where.journal)
    headers = headers_of(Out(b"", type=kind, topics=topics))
    if sys.stdin.isatty():
        note("reading messages from the terminal, one a line; Ctrl-D ends")
    count = 0
    with progress_bar("sending", hidden=as_json) as progress:
        try:
            for batch in batches(_entries(sys.stdin.buffer, key, headers), lambda entry: len(entry[0])):
                _say(to, journal.append_many([entry for _, entry in batch]), len(batch), as_json=as_json)
                count += len(batch)
                progress(count, None)
        except DetentError as error:
            before = f"{count_text(count)} sent before it" if count else "nothing sent"
            raise type(error)(f"{error}; {before}") from error


def _entries(source: IO[bytes], key: str | None, headers: dict[str, str]) -> Iterator[tuple[int, Entry]]:
    raw = None if key is None else key.encode()
    for number, line in read_lines(source):
        yield number, (line, raw, headers)


def _say(to: str, done: Appended, count: int, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.buffer.write(encode_line({"journal": to, "offset": done.offset, "count": count}))
        sys.stdout.buffer.flush()
    else:
        last = f" to {done.offset + count - 1}" if count > 1 else ""
        click.echo(f"{to}: {'offsets' if last else 'offset'} {done.offset}{last}")
