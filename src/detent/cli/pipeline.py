"""`detent run`: the pipeline that a Python file declares. `detent quarantine`: what did not match its schemas."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import (
    confirm,
    count_text,
    force_option,
    json_option,
    open_for_reading,
    open_for_writing,
    takes_store,
)
from detent.cli._help import Commands
from detent.cli._output import line_text, print_json, print_table
from detent.paths import as_url

if TYPE_CHECKING:
    from detent.spark.pipeline import Pipeline
    from detent.spark.stream_state import PipelineView, Summary

BODY_SHOWN = 80
"""What fits beside the rest on a terminal; --json shows all."""


@click.command("run", short_help="Run the pipeline that a Python file declares.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Read what there is, then stop.")
@click.option("--check", is_flag=True, help="Only check the file, and show the streams. Nothing is started.")
@click.option(
    "--store", "--url", "url", metavar="URL", help="The store, instead of the pipeline's own (or DETENT_URL)."
)
@click.option("--only", metavar="NAME", multiple=True, help="Run this stream only; can be given several times.")
@click.option(
    "--migrate",
    metavar="NAME",
    multiple=True,
    help="This stream starts over, under another name or on an input made anew, on purpose.",
)
@click.option("--checkpoints", metavar="DIR", help="The folder of the checkpoints; beside a file: store if left out.")
@click.option("--cores", type=click.IntRange(1), help="How many tasks run at once; all processors if left out.")
@click.option("--memory", metavar="SIZE", help="Spark's memory, such as 4g.")
@click.option("--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; can be given several times.")
@click.option("--quick", is_flag=True, help="Start faster and then run slower: for little data.")
@click.option("--verbose", is_flag=True, help="Show Spark's own log too.")
@click.option("--json", "as_json", is_flag=True, help="Print an object a line: each event, and a summary at the end.")
def run_pipeline(
    file: Path,
    once: bool,
    check: bool,
    url: str | None,
    only: tuple[str, ...],
    migrate: tuple[str, ...],
    checkpoints: str | None,
    conf: tuple[str, ...],
    as_json: bool,
    **session: Any,
) -> None:
    """Run the pipeline that a Python file declares: streams of Spark between journals, queues and tables.

    It runs until Ctrl-C or SIGTERM, which let the current batches end, and goes on from there the next time: every
    message takes effect once, however it ended. A stream that fails is started again, later each time; one that is
    wrong in itself is given up, and the exit code is 1.

    \b
    A file:
      from detent.spark import Pipeline
      pipeline = Pipeline("shop", store="file:./data")

    \b
      @pipeline.stream(read="orders", write="paid",
                       json="id BIGINT NOT NULL, amount DOUBLE")
      def paid(orders):
          return orders.where("amount > 0")

    \b
    Try it:
      detent run shop.py --check
      echo '{"id": 1, "amount": 9.5}' | detent journal append file:./data orders
      detent run shop.py --once
      detent journal read file:./data paid
    """
    from detent.cli.kinds.pipeline import load_pipeline

    settings = dict(map(_setting, conf))
    pipeline = load_pipeline(file)
    if check:
        _show(pipeline, list(only) or None, as_json)
        return
    _let_workers_import(file.resolve().parent)
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from detent.spark.pipeline_runner import run

    summary = run(
        pipeline,
        store=None if url is None else as_url(url),
        checkpoints=checkpoints,
        once=once,
        only=list(only) or None,
        migrate=migrate,
        view=_view(pipeline, as_json),
        signals=True,
        conf=settings,
        **session,
    )
    _print_summary(summary, as_json)
    if summary.failed:
        click.get_current_context().exit(1)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"a setting is KEY=VALUE, not {text!r}")
    return key, value


def _let_workers_import(folder: Path) -> None:
    """What lies beside the file can be imported by Spark's processes too."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])


def _show(pipeline: Pipeline, only: list[str] | None, as_json: bool) -> None:
    from detent.spark.pipeline import as_json as graph
    from detent.spark.pipeline import as_mermaid, as_text, chosen

    chosen(pipeline, only)
    if as_json:
        print_json(graph(pipeline))
    else:
        click.echo(f"{as_text(pipeline)}\n\n{as_mermaid(pipeline)}")


def _view(pipeline: Pipeline, as_json: bool) -> PipelineView:
    from detent.spark.pipeline_views import JsonView, LineView, LiveView

    if as_json:
        return JsonView()
    return LiveView(f"pipeline {pipeline.name}") if sys.stderr.isatty() else LineView()


def _print_summary(summary: Summary, as_json: bool) -> None:
    from detent.spark.pipeline_views import JsonView, cells_of
    from detent.spark.stream_state import Event

    if as_json:
        JsonView().tell(Event("summary", fields=summary.as_json()))
        return
    rows = []
    for state in summary.states:
        cells = cells_of(state)
        rows.append([cells[0], cells[1], str(state.messages), str(state.batches), cells[6], cells[3], *cells[7:]])
    print_table(["stream", "state", "messages", "batches", "read up to", "waiting", "quarantined", "failures"], rows)
    for state in summary.failed:
        click.echo(f"error: the stream {state.name} was given up: {state.error}", err=True)


# -- quarantine -----------------------------------------------------------------------------------------------------


@click.group(cls=Commands, short_help="Look at messages that did not match a schema; put them back.")
def quarantine() -> None:
    """Look at messages that did not match the schema of their stream, and put them back.

    A stream with a schema puts a message that is not JSON, or does not match, into the journal
    PIPELINE/STREAM.quarantine.

    \b
    Example:
      detent quarantine ls file:./data
      detent quarantine show file:./data shop/paid.quarantine
      detent quarantine redrive file:./data shop/paid.quarantine
    """


@quarantine.command("ls")
@takes_store()
@json_option
def list_quarantines(url: str, as_json: bool) -> None:
    """List the quarantines of a store.

    Shows how many messages wait in each, and how many were put back.

    \b
    Example:
      detent quarantine ls file:./data
    """
    from dataclasses import asdict

    from detent.spark.quarantine import quarantines

    with open_for_reading(url) as store:
        found = quarantines(store)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    print_table(["name", "waiting", "put back"], [[one.name, str(one.waiting), str(one.redriven)] for one in found])


@quarantine.command("show")
@takes_store("NAME")
@click.option("--limit", default=20, show_default=True, type=click.IntRange(1), help="How many messages to show.")
@json_option
def show_quarantine(url: str, name: str, limit: int, as_json: bool) -> None:
    """Show the messages that wait in a quarantine, oldest first.

    Shows where each came from, why it is here, and the beginning of its body; --json shows all of the body.

    \b
    Example:
      detent quarantine show file:./data shop/paid.quarantine
    """
    from itertools import islice

    from detent.spark.quarantine import waiting

    with open_for_reading(url) as store:
        found = list(islice(waiting(store, name), limit))
    if as_json:
        print_json([
            {"offset": one.offset, "source": one.source, "place": one.place, "reason": one.reason,
             "headers": one.headers, "body": one.body.decode(errors="replace")}
            for one in found
        ])  # fmt: skip
        return
    rows = []
    for one in found:
        source = f"{'queue ' if one.is_queue else ''}{one.source} {one.place}"
        rows.append([str(one.offset), source, one.reason, _shown(one.body)])
    print_table(["offset", "from", "reason", "body"], rows)


def _shown(body: bytes) -> str:
    """A body, or its beginning and its size."""
    text = line_text(body.decode(errors="replace"))
    return text if len(text) <= BODY_SHOWN else f"{text[:BODY_SHOWN]} (of {len(body):,} bytes)"


@quarantine.command("redrive")
@takes_store("NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@force_option
@json_option
def redrive_quarantine(url: str, name: str, yes: bool, force: bool, as_json: bool) -> None:
    """Put the messages of a quarantine back to where they came from.

    Each is put back once, as a new message. Do it when the schema of the stream is mended and takes them now. All
    readers of the journal or queue get them, also those that had no trouble with them the first time.

    \b
    Example:
      detent quarantine redrive file:./data shop/paid.quarantine
    """
    from detent.spark.quarantine import info, redrive

    with open_for_writing(url, force=force) as store:
        waiting = info(store, name).waiting
        confirm(f"Put {count_text(waiting)} back?", "puts messages back to where they came from", yes=yes)
        count = redrive(store, name)
    if as_json:
        print_json({"name": name, "redriven": count})
    else:
        click.echo(f"{count_text(count)} put back")
