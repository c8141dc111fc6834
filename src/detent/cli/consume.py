"""`detent consume`: a consumer in several processes, or in this one until nothing is left to read."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import TYPE_CHECKING

import click

from detent.cli._common import URL_VARIABLE, check_kept, force_option
from detent.cli._consume_views import JsonView, LineView, view_of
from detent.cli._consumers import consumer_fields, look, shown_journals
from detent.cli._logs import set_up_logs
from detent.cli._output import print_table
from detent.errors import DetentError, Invalid
from detent.paths import as_url

if TYPE_CHECKING:
    from detent.cli._consumers import Seen
    from detent.consumer import Consumer
    from detent.consumer.progress import Progress


@click.command(short_help="Run a consumer: an app that reads each message once.")
@click.argument("target")
@click.option("--shards", type=click.IntRange(1), help="How many shards, instead of the consumer's own number.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="How many processes. Left out: one a shard, but no more than there are processors, and enough for standbys.",
)
@click.option("--standbys", type=click.IntRange(0), help="How many processes follow each shard, ready to take over.")
@click.option(
    "--store", "--url", "url", metavar="URL", help=f"The store, instead of the consumer's own (or {URL_VARIABLE})."
)
@click.option("--once", is_flag=True, help="Read what there is, in this process, then stop.")
@click.option("--lease", metavar="DURATION", help="How long a process that vanished keeps its shards, such as 10s.")
@click.option("--verbose", is_flag=True, help="Show the log too: where in the code a shard failed.")
@click.option("--worker", "member", hidden=True, help="What a supervisor starts its processes with.")
@force_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object a line: what happens, and a status now and then."
)
def consume(
    target: str,
    shards: int | None,
    workers: int | None,
    standbys: int | None,
    url: str | None,
    once: bool,
    lease: str | None,
    verbose: bool,
    member: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Run a consumer: an application that reads journals, keeps state and publishes, each message exactly once.

    TARGET is package.module:name or path/to/file.py:name; the name may be left out where there is one consumer, or one
    called app. Its shards are divided over processes, here and wherever else the same is run on the same store.

    It runs until Ctrl-C or SIGTERM, which let the transactions under way end; a second Ctrl-C does not wait. A process
    that dies is started again, and others take its shards at once.

    \b
    A file, words.py:
      from detent.consumer import Consumer
      app = Consumer("words", store="file:./data", read="lines")

    \b
      @app.consume
      def count(message, state, publish):
          for word in message.body.decode().split():
              state[word] = state.get(word, 0) + 1

    \b
    Try it:
      echo 'to be or not to be' | detent journal append file:./data lines
      detent consume words.py --once
      detent consumer state file:./data words
      detent consume words.py:app --workers 2
    """
    from detent.cli.kinds.consumer import adjust, load_consumer

    if once and (workers or member):
        raise click.UsageError("--once works in one process: leave --workers out, or --once")
    _set_up_logs(verbose=verbose, as_json=as_json)
    app = load_consumer(target)
    adjust(app, shards=shards, standbys=standbys, lease=lease)
    place = _store_of(app, url)
    if member is not None:
        from detent.consumer.supervisor import work

        click.get_current_context().exit(work(app, place, member))
    if once:
        _run_once(app, place, as_json=as_json)
    else:
        _supervise(target, app, place, workers, verbose=verbose, force=force, as_json=as_json)


def _set_up_logs(*, verbose: bool, as_json: bool) -> None:
    """What a consumer logs is told by us in a line; where in the code something failed, who asks for it sees."""
    if verbose:
        set_up_logs("json" if as_json else "text", "info")
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    else:
        logging.getLogger("detent").setLevel(logging.CRITICAL)


def _store_of(app: Consumer, given: str | None) -> str:
    url = given or app.store or os.environ.get(URL_VARIABLE)
    if not url:
        raise Invalid(
            f"the consumer {app.name!r} has no store: give --store URL, write Consumer({app.name!r}, "
            f"store='file:./data', ...), or set {URL_VARIABLE}"
        )
    check_kept(url)
    return as_url(url)


# -- until it is told to stop ---------------------------------------------------------------------------------------


def _supervise(
    target: str, app: Consumer, url: str, workers: int | None, *, verbose: bool, force: bool, as_json: bool
) -> None:
    from detent.consumer.supervisor import Processes, run_alone, worker_count
    from detent.runtime.signals import stop_on_signals

    count = worker_count(app, url, workers)
    stopping = threading.Event()
    is_watched = not as_json and sys.stderr.isatty()
    with stop_on_signals(stopping), view_of(app.name, as_json=as_json) as view:
        if not count:
            run_alone(app, url, stopping, view.tell, view.show)
            return
        processes = Processes(
            target,
            app,
            url,
            count,
            tell=view.tell,
            show=view.show,
            catch_output=is_watched,
            options=["--verbose", *(["--json"] if as_json else [])] if verbose else [],
            force=force,
        )
        processes.run(stopping)


# -- once -----------------------------------------------------------------------------------------------------------


def _run_once(app: Consumer, url: str, *, as_json: bool) -> None:
    from detent.consumer.consumer import opened, stopped_by
    from detent.consumer.supervisor import Notice
    from detent.runtime.signals import stop_on_signals

    view = JsonView(app.name) if as_json else LineView()

    def on_event(what: str, shard: int, text: str) -> None:
        if what == "waiting":  # for the process that holds the shard, which may take long; the rest is in the summary
            view.tell(Notice(what, shard=shard, text=text))

    stopping = threading.Event()
    with stop_on_signals(stopping), opened(app, url, on_event=on_event) as worker:
        try:
            with stopped_by(stopping, worker):
                worker.run(once=True)
        except DetentError:
            raise
        except Exception as error:
            raise Invalid(_why(app, error)) from error
        _print_summary(look(worker.store, app.name), worker.progress, as_json=as_json)


def _why(app: Consumer, error: Exception) -> str:
    """What the application raised, and what that means."""
    from detent.consumer.task import why

    return (
        f"the consumer {app.name!r} failed: {why(error)}; nothing of that transaction took effect, and the next run "
        "begins with it"
    )


def _print_summary(seen: Seen, progress: dict[int, Progress], *, as_json: bool) -> None:
    counts = {shard.index: progress[shard.index].messages for shard in seen.info.shards if shard.index in progress}
    if as_json:
        fields = consumer_fields(seen)
        for shard in fields["shards"]:
            shard["messages"] = counts.get(shard["shard"], 0)
        JsonView(seen.info.name).say({"event": "summary", "messages": sum(counts.values()), **fields})
        return
    rows = [
        [
            str(shard.index),
            shown_journals(shard),
            str(counts.get(shard.index, 0)),
            str(sum(shard.processed.values())),
            str(sum(seen.lag[shard.index].values())),
        ]
        for shard in seen.info.shards
    ]
    print_table(["shard", "journals", "messages", "processed", "lag"], rows)
