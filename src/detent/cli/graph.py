"""`detent graph`: processors that read journals and write others; draw them, run them, look at them, steer them."""

from __future__ import annotations

from typing import Any

import click

from detent.cli._common import json_option, parse_time
from detent.cli._help import Commands
from detent.cli._output import print_json
from detent.cli.kinds.graph import Graphs, load_graph, opened
from detent.cli.kinds.kind import Found
from detent.cli.run import events_option, once_option, options_named, run_found, store_option, verbose_option


@click.group(cls=Commands, short_help="Draw, run and steer graphs of processors: streams over journals.")
def graph() -> None:
    """Draw, run and steer graphs of processors.

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


# -- drawing ----------------------------------------------------------------------------------------------------------


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
    from detent.cli._graph_shown import graph_fields, print_options

    if mermaid and as_json:
        raise click.UsageError("--mermaid and --json are two forms of the same: give one of them")
    found = load_graph(target)
    if as_json:
        print_json(graph_fields(found))
        return
    click.echo(found.draw("mermaid" if mermaid else "text"))
    if not mermaid:
        click.echo()
        print_options(found)


# -- running ----------------------------------------------------------------------------------------------------------


@graph.command(hidden=True)
@click.argument("target")
@store_option
@options_named("only", "migrate")
@once_option
@verbose_option
@events_option
def run(target: str, **given: Any) -> None:
    """Run the processors of a graph in this process.

    Start it in as many processes as you like: each processor runs in one of them, and the others stand by to take over.

    It runs until Ctrl-C or SIGTERM, which let the steps under way end; a second Ctrl-C does not wait, and what it cuts
    off is done again. A processor whose function fails, and has no journal for errors, rests and tries again. With
    --once it does so a few times, longer if it says that something is away; then the command ends with exit code 1. It
    ends at once for a failure that cannot pass, and for a message that was dropped.

    \b
    Examples:
      detent graph run shop.py
      detent graph run shop.py --once
      detent graph run shop.graphs:orders --store s3://bucket/shop --only total
      detent graph run shop.py --only total --only show --json
    """

    run_found(Graphs.noun, [Found(target, load_graph(target))], **given)


# -- looking ----------------------------------------------------------------------------------------------------------


@graph.command()
@click.argument("target")
@store_option
@json_option
def status(target: str, url: str | None, as_json: bool) -> None:
    """Show how far the processors of a graph are, wherever they run.

    LAG counts the messages that a processor has not read. OUTPUTS, ERRORS and NILS say what became of the input sets:
    messages, an error, or nothing, as with a sink. OWED are messages that another store may not have yet. HOLDER is the
    process that runs it. The second table says how long the last 1000 messages of a journal took, from when the oldest
    message that had a part in them entered the graph.

    \b
    Example:
      detent graph status shop.py
    """
    from detent.cli._graph_shown import print_status, status_fields

    found = load_graph(target)
    with opened(found, url) as live:
        seen = live.status()
    if as_json:
        print_json({"graph": found.name, "processors": list(map(status_fields, seen))})
    else:
        print_status(seen)


@graph.command()
@click.argument("target")
@click.argument("journal")
@click.argument("offset", type=click.IntRange(0))
@store_option
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
    from detent.cli._graph_shown import print_trace

    found = load_graph(target)
    with opened(found, url) as live:
        hop = live.trace(journal, offset)
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(hop))
    else:
        print_trace(hop)


# -- steering ---------------------------------------------------------------------------------------------------------


@graph.command()
@click.argument("target")
@click.argument("name")
@click.option("--to", metavar="WHERE", help="All inputs: 'earliest' [default], 'latest', or an offset.")
@click.option("--time", "since", metavar="TIME", help="All inputs: the first message from this time on.")
@click.option("--input", "inputs", metavar="JOURNAL=OFFSET", multiple=True, help="One input; others stay.")
@click.option("--forget", is_flag=True, help="Delete the progress instead, also of a processor that is gone.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@store_option
@json_option
def reset(
    target: str,
    name: str,
    to: str | None,
    since: str | None,
    inputs: tuple[str, ...],
    forget: bool,
    yes: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Move a processor to another place in its inputs, or forget it.

    It may run meanwhile. --forget deletes its progress. What it has written stays. What it does from there on are new
    deliveries, under new keys: messages that it reads again take effect again, also outside. Those that it skips never
    do.

    Asks before it does so; a script says --yes.

    \b
    Examples:
      detent graph reset shop.py total --to earliest
      detent graph reset shop.py total --time 2026-01-31T12:00:00Z --yes
      detent graph reset shop.py total --input orders=100 --input prices=7
      detent graph reset shop.py total --forget
    """
    from detent.cli import _graph_reset

    if sum([to is not None, since is not None, bool(inputs), forget]) > 1:
        raise click.UsageError("say where to go on, once: --to, --time, --input or --forget")
    time = None if since is None else parse_time(since)
    found = load_graph(target)
    with opened(found, url) as live:
        if forget:
            _graph_reset.forget(live, name, yes=yes, as_json=as_json)
            return
        wanted = _graph_reset.wanted(live, found.processor(name), to or "earliest", time, inputs)
        place = wanted if inputs else int(to) if to and to.isdigit() else to or "earliest"
        _graph_reset.reset(live, name, wanted, place, time, yes=yes, as_json=as_json)


@graph.command()
@click.argument("target")
@click.argument("words", metavar="[JOURNAL] BODY", nargs=-1, required=True)
@click.option("--key", help="The key of the message: parallel processors keep the order of messages of one key.")
@click.option("--type", "kind", metavar="TYPE", help="The type, which processors may filter by.")
@click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="A topic; repeat it for more.")
@store_option
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
    from detent.cli import _graph_send

    if len(words) > 2:
        raise click.UsageError(f"give [JOURNAL] BODY, not {len(words)} arguments: put the body in quotes")
    found = load_graph(target)
    to = _graph_send.place_of(found, words[0] if len(words) == 2 else None)
    with opened(found, url, create=True) as live:
        _graph_send.send(live, to, words[-1], key=key, kind=kind, topics=topics, as_json=as_json)
