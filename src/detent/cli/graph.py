"""`detent graph`: processors that read journals and write others; draw them, send to them, trace their messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Final

import click

from detent.cli._common import count_text, json_option
from detent.cli._graph_shown import print_graph
from detent.cli._help import CommandList
from detent.cli._output import line_text, note, print_json, print_table, progress_bar, time_text
from detent.cli.kinds import GRAPH
from detent.cli.kinds.graph import duration_of, opened
from detent.cli.run import task_store_option
from detent.errors import DetentError, Invalid

if TYPE_CHECKING:
    from detent.cli._messages import Entry
    from detent.journal import Appended
    from detent.processor.graph import Graph
    from detent.processor.live_graph import LiveGraph
    from detent.processor.tracing import Hop

STDIN: Final = "-"


@click.group(cls=CommandList, short_help="Draw graphs of processors, send to them, trace their messages.")
def graph() -> None:
    """Draw graphs of processors, send to them, and trace their messages.

    A graph is a `detent.processor.Graph` in a Python file of yours: sources, streams and sinks, which are functions
    from messages of journals to messages of other journals. Each message takes effect exactly once, whenever and
    however often a process dies.

    \b
    A file, shop.py:
      from detent.processor import Graph

    \b
      graph = Graph("shop", store="file:./data", errors="failed")
      graph.source("orders")

    \b
      @graph.stream(input="orders", output="totals")
      def total(order):
          return {"order": order["id"], "total": order["price"] * order["count"]}

    \b
      @graph.sink(input="totals")
      def show(total, step):
          print(step.key, total)

    \b
    Try it:
      detent graph show shop.py
      detent graph send shop.py orders '{"id": 1, "price": 3, "count": 2}'
      detent run shop.py --once
      detent graph trace shop.py totals 0
      detent run shop.py

    TARGET is package.module:name or path/to/file.py:name; the name may be left out where there is one graph, or one
    called graph. What a file does under `if __name__ == "__main__"` is not done.
    """


@graph.command()
@click.argument("target")
@click.option("--mermaid", is_flag=True, help="Print a flowchart for Mermaid, as in a Markdown file.")
@json_option
def show(target: str, mermaid: bool, as_json: bool) -> None:
    """Draw a graph, and list what was declared for each processor.

    If something is wrong with the graph, that is said too. Nothing is opened, made or run.

    A row is a processor, a lane a journal: it goes down from the first one that writes it to the last one that has to
    do with it. Inputs with + between them are joined, one message of each at a time; of those with | it takes any.

    \b
    Examples:
      detent graph show shop.py
      detent graph show shop.py:graph --mermaid > shop.mmd
    """
    if mermaid and as_json:
        raise click.UsageError("--mermaid and --json are two forms of the same: give one of them")
    print_graph(GRAPH.find(target), as_json=as_json, mermaid=mermaid)


# -- where a message is from ------------------------------------------------------------------------------------------


@graph.command()
@click.argument("target")
@click.argument("journal")
@click.argument("offset", type=click.IntRange(0))
@task_store_option
@json_option
def trace(target: str, journal: str, offset: int, url: str | None, as_json: bool) -> None:
    """Show where a message comes from.

    Shows which processor wrote it and when, from which messages, and so on up to the sources. HOP is the time from the
    writing of its newest input to its own, IN ALL that from when the oldest message which had a part in it entered the
    graph.

    \b
    Examples:
      detent graph trace shop.py totals 0
      detent graph trace shop.py kept@archive 17 --json
    """
    with opened(GRAPH.find(target), url) as live:
        hop = live.trace(journal, offset)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(hop))
    else:
        print_table(["message", "written", "by", "hop", "in all", "key"], list(_hop_rows(hop, "", "")))


def _hop_rows(hop: Hop, lead: str, below: str) -> Iterator[list[str]]:
    """A message, and under it its inputs: `lead` is in front of it, `below` in front of what comes under it."""
    where = f"{lead}{line_text(hop.journal)} {hop.offset}"
    if hop.published_ms is None:
        yield [where, "not there any more", "-", "-", "-", "-"]
    else:
        yield [
            where,
            time_text(hop.published_ms),
            "(outside)" if hop.processor is None else line_text(hop.processor),
            "-" if hop.hop_ms is None else duration_of(hop.hop_ms),
            "-" if hop.total_ms is None else duration_of(hop.total_ms),
            "-" if hop.key is None else line_text(hop.key),
        ]
    for index, one in enumerate(hop.inputs):
        is_last = index == len(hop.inputs) - 1 and not hop.more
        yield from _hop_rows(one, f"{below}{'└─' if is_last else '├─'} ", f"{below}{'   ' if is_last else '│  '}")
    if hop.more:
        yield [f"{below}└─ {hop.more} more", "-", "-", "-", "-", "-"]


# -- sending ----------------------------------------------------------------------------------------------------------


@graph.command()
@click.argument("target")
@click.argument("words", metavar="[JOURNAL] BODY", nargs=-1, required=True)
@click.option("--key", help="The key of the message: parallel processors keep the order of messages of one key.")
@click.option("--type", "kind", metavar="TYPE", help="The type, which processors may filter by.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="A topic; repeat it for more.")
@task_store_option
@json_option
def send(
    target: str,
    words: tuple[str, ...],
    key: str | None,
    kind: str | None,
    topics: tuple[str, ...],
    url: str | None,
    as_json: bool,
) -> None:
    """Send a message to a graph. Prints its offset; by then it survives a power cut.

    JOURNAL may be left out where the graph has one source. BODY is JSON or any other text, as it is; with - each line
    of stdin is a message, and they are committed up to 1000 at a time.

    \b
    Examples:
      detent graph send shop.py '{"id": 1, "price": 3, "count": 2}'
      detent graph send shop.py orders '{"id": 2}' --key customer-7 --type sale
      detent graph send shop.py orders - < orders.ndjson
    """
    if len(words) > 2:
        raise click.UsageError(f"give [JOURNAL] BODY, not {len(words)} arguments: put the body in quotes")
    found = GRAPH.find(target)
    to = _place_of(found, words[0] if len(words) == 2 else None)
    with opened(found, url, create=True) as live:
        _send(live, to, words[-1], key=key, kind=kind, topics=topics, as_json=as_json)


def _place_of(graph: Graph, to: str | None) -> str:
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
        raise Invalid(f"the graph {graph.name!r} has no source {to!r}, and no processor reads it: it has {listed}")
    return sources[to]


def _send(
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
    from detent.cli._messages import batches
    from detent.processor.declaration import place
    from detent.processor.outcome import headers_of
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
    from detent.cli._messages import read_lines

    raw = None if key is None else key.encode()
    for number, line in read_lines(source):
        yield number, (line, raw, headers)


def _say(to: str, done: Appended, count: int, *, as_json: bool) -> None:
    if as_json:
        from detent.cli._messages import encode_line

        sys.stdout.buffer.write(encode_line({"journal": to, "offset": done.offset, "count": count}))
        sys.stdout.buffer.flush()
    else:
        last = f" to {done.offset + count - 1}" if count > 1 else ""
        click.echo(f"{to}: {'offsets' if last else 'offset'} {done.offset}{last}")
