"""`detent run`: whatever a file declares, in the way in which its kind runs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any, Final, NoReturn

import click

from detent.cli._common import Option, force_option, names_server, url_option, with_options
from detent.cli._logs import logs_shown
from detent.cli._output import note
from detent.cli._views import PartView, TaskView, logs_told, view_of
from detent.cli.kinds import CONSUMER, KINDS, find_all
from detent.cli.kinds.kind import Found, Given, HandlersLate, ReadyTask, TaskKind
from detent.errors import Invalid
from detent.runtime.signals import stop_on_signals
from detent.runtime.supervisor import Supervisor
from detent.runtime.task import DONE, Next, Task

INTERRUPTED: Final = 130
"""The exit code of a program that did not wait for what was under way."""

SHOW_CURSOR: Final = "\x1b[?25h"
"""A progress bar hides it."""

OPTIONS: Final[dict[str, tuple[set[str], dict[str, Option]]]] = {
    "Options of consumers": ({"consumer"}, {
        "shards": click.option(
            "--shards", type=click.IntRange(1), help="How many shards, instead of the consumer's own number."
        ),
        "workers": click.option(
            "--workers",
            type=click.IntRange(1),
            help="How many processes. Left out: one a shard, but no more than there are processors, and enough for "
            "standbys.",
        ),
        "standbys": click.option(
            "--standbys", type=click.IntRange(0), help="How many processes follow each shard, ready to take over."
        ),
        "lease": click.option(
            "--lease", metavar="DURATION", help="How long a process that vanished keeps its shards, such as 10s."
        ),
        "force": force_option,
    }),
    "Options of graphs and pipelines": ({"graph", "pipeline"}, {
        "only": click.option(
            "--only", metavar="NAME", multiple=True, help="Run this processor or stream only; repeat it for more."
        ),
        "migrate": click.option(
            "--migrate",
            metavar="NAME",
            multiple=True,
            help="This processor has other inputs than before, or this stream starts over, under another name or on "
            "an input made anew: on purpose.",
        ),
    }),
    "Options of apps": ({"app"}, {
        "concurrency": click.option(
            "--concurrency", type=click.IntRange(1), help="How many messages each app handles at once."
        ),
        "transport": click.option(
            "--transport",
            metavar="URL",
            help="What carries messages, instead of what the file says: file:./data, sqs:?region=R, redis://HOST/0, "
            "pubsub:?project=P, MODULE:CLASS:?OPTION=VALUE.",
        ),
    }),
    "Options of apps and ingests": ({"app", "ingest"}, {
        "metrics_port": click.option(
            "--metrics-port",
            type=click.IntRange(1, 65_535),
            help="Serve metrics for Prometheus on this port of the loopback address.",
        ),
    }),
    "Options of pipelines and ingests": ({"pipeline", "ingest"}, {
        "cores": click.option(
            "--cores", type=click.IntRange(1), help="How many tasks run at once; all processors if left out."
        ),
        "memory": click.option("--memory", metavar="SIZE", help="Spark's memory, such as 4g."),
        "quick": click.option("--quick", is_flag=True, help="Start faster and then run slower: for little data."),
    }),
    "Options of pipelines": ({"pipeline"}, {
        "server": click.option(
            "--server",
            metavar="URL",
            help="The server that owns the store, for a store on an object store, whose data tasks read and write "
            "themselves. Without one this process owns it.",
        ),
        "master": click.option(
            "--master", metavar="URL", help="A cluster of Spark, such as spark://HOST:7077, instead of this machine."
        ),
        "checkpoints": click.option(
            "--checkpoints", metavar="DIR", help="The folder of the checkpoints; beside a file: store if left out."
        ),
        "conf": click.option(
            "--conf", metavar="KEY=VALUE", multiple=True, help="A setting of Spark; can be given several times."
        ),
    }),
    "Options of bridges": ({"bridge"}, {
        "accept": click.option(
            "--accept",
            metavar="WORD",
            multiple=True,
            help="Go on after what a bridge refuses, by the word that the refusal says; repeat it for more.",
        ),
    }),
    "Options of ingests": ({"ingest"}, {
        "backfill": click.option(
            "--backfill",
            metavar="PREFIX",
            help="Also ingest the files under a folder or s3://bucket/prefix that were not announced. Those in "
            "subfolders are included; hidden ones (_x, .x) are left out.",
        ),
        "match": click.option(
            "--match",
            metavar="PATTERN",
            help="Of the files of --backfill, only those whose names (without folders) match a shell pattern, such as "
            "'*.json.gz'.",
        ),
    }),
}  # fmt: skip
"""Options that only some kinds have: their title, the kinds, and the options by name."""

STORED: Final = {"bridge", "consumer", "graph", "pipeline"}
"""Kinds whose store a command can say. An app has a transport, a worker its queue, an ingest its queue and table."""

task_store_option = url_option("url", "The store, instead of the task's own (or DETENT_URL).")


class _RunCommand(click.Command):
    """A command that lists its options by the kinds that have them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the lists."""
        titles = {name: title for title, (_, options) in OPTIONS.items() for name in options}
        rows: dict[str, list[tuple[str, str]]] = {"Options": [], **{title: [] for title in OPTIONS}}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                rows[titles.get(parameter.name or "", "Options")].append(record)
        for title, records in rows.items():
            with formatter.section(title):
                formatter.write_dl(records)


@click.command("run", cls=_RunCommand, short_help="Run what a file declares: consumers, graphs, apps, pipelines.")
@click.argument("targets", metavar="FILE[:NAME]...", nargs=-1, required=True)
@click.option("--once", is_flag=True, help="Do what there is to do, then stop.")
@click.option("--check", is_flag=True, help="Only check what is declared, and show it. Nothing is started.")
@task_store_option
@click.option("--verbose", is_flag=True, help="Show the log too: where in the code something failed, and Spark's own.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object a line: what happens, and a status now and then."
)
@with_options([option for _, options in OPTIONS.values() for option in options.values()])
def run(targets: tuple[str, ...], check: bool, of_kind: TaskKind | None = None, **given: Any) -> None:
    """Run what a file declares: consumers, graphs, apps, pipelines, ingests and workers.

    FILE is a Python file, or the TOML file of an ingest; a module such as shop.apps works too. With a name, only that
    one is run, without a name all that is declared there. Several run in this process together; a consumer has
    processes of its own. What a file does under `if __name__ == "__main__"` is not done.

    It runs until Ctrl-C or SIGTERM, which let what is under way end, and goes on from there the next time: every
    message takes effect once, however it ended. A second Ctrl-C does not wait. What fails is tried again, later each
    time; what is wrong in itself is given up, and the exit code is 1.

    \b
    A file, shop.py:
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
      echo '{"id": 1, "amount": 9.5}' |
          detent journal append file:./data orders
      detent run shop.py --once
      detent journal read file:./data paid
      detent ls shop.py

    `detent consumer`, `graph`, `bus` and `ingest` have a file to try for the other kinds.
    """
    ready = _ready(find_all(targets, of_kind), given)
    if check:
        for one in ready:
            one.check(as_json=given["as_json"])
        return
    execute(ready, given)


def _ready(found: dict[str, list[Found]], given: Given) -> list[ReadyTask]:
    """What is to be run. An option that none of it has was meant for something else, and is refused."""
    for kinds, options in OPTIONS.values():
        if kinds.isdisjoint(found):
            for name in options:
                if given[name]:
                    meant, declared = " and ".join(sorted(kinds)), " and ".join(found)
                    raise click.UsageError(f"--{name.replace('_', '-')} is an option of {meant}: this is {declared}")
    if given["url"] is not None and STORED.isdisjoint(found):
        raise click.UsageError(f"--store is an option of {' and '.join(sorted(STORED))}: this is {' and '.join(found)}")
    if given["once"] and given["workers"]:
        raise click.UsageError("--once works in one process: leave --workers out, or --once")
    return [one for kind in KINDS if kind.noun in found for one in kind.ready(found[kind.noun], given)]


# -- running ----------------------------------------------------------------------------------------------------------


def execute(ready: Sequence[ReadyTask], given: Given) -> None:
    """Run tasks until they have ended, and end the command with an exit code if something is wrong."""
    once, as_json = given["once"], given["as_json"]
    view = view_of(as_json=as_json, is_live=not once or [one.sets_handlers for one in ready] == [True])
    try:
        with _logs(ready, view, given):
            code = _run_alone(ready[0], view, once=once) if len(ready) == 1 else _run_together(ready, view, once=once)
    except HandlersLate as error:
        note(f"error: {error}")
        end_now(1)
    for one in ready:
        one.summarize()
    if code:
        click.get_current_context().exit(code)


def _logs(ready: Sequence[ReadyTask], view: TaskView, given: Given) -> AbstractContextManager[None]:
    """What parts of the tasks say in their logs."""
    verbose, as_json = given["verbose"], given["as_json"]
    if all(one.kind == CONSUMER.noun for one in ready):
        return logs_shown(verbose=verbose, as_json=as_json)  # a consumer tells of each failure in a line
    if not any(one.tells_of_log for one in ready):
        return nullcontext()
    is_told = lambda logged: any(one.is_told(logged) for one in ready)  # noqa: E731
    return logs_told(view, is_told, verbose=verbose, as_json=as_json)


class _Asked(threading.Event):
    """Whether a signal has asked a task to stop."""

    def __init__(self, ready: ReadyTask) -> None:
        super().__init__()
        self._ready = ready

    def set(self) -> None:
        """It has."""
        super().set()
        self._ready.stop()


def _run_alone(one: ReadyTask, view: TaskView, *, once: bool, asked: _Asked | None = None) -> int:
    """One task, in this thread. Spark sets handlers of signals of its own: what uses it sets ours by itself."""
    at_once = (lambda: end_now(INTERRUPTED, view)) if one.hangs_on_threads else None
    signals: AbstractContextManager[Any] = (
        nullcontext() if one.sets_handlers else stop_on_signals(asked or _Asked(one), at_once)
    )
    with signals, view:
        return one.run_once(view) if once else one.run(view)


def _run_together(ready: Sequence[ReadyTask], view: TaskView, *, once: bool) -> int:
    """Several tasks, each in a thread, until all have ended or one has failed. The last one is stopped first, and the
    stores that they share stay open until all have ended."""
    import detent

    if once:
        codes = []
        for one in ready:
            asked = _Asked(one)
            codes.append(_run_alone(one, PartView(view, one.title), once=True, asked=asked))
            if asked.is_set() or (one.sets_handlers and one.stopping.is_set()):
                break
        return max(codes)
    shared = _shared(ready)
    stopping = threading.Event()
    supervisor = Supervisor()
    with stop_on_signals(stopping, lambda: end_now(INTERRUPTED, view)), view, ExitStack() as stores:
        for url in shared:
            stores.enter_context(detent.open(url))
        running = [_ReadyRun(one, PartView(view, one.title)) for one in ready]
        for task in running:
            supervisor.add(task)
        supervisor.run(stopping)
    return max(task.code for task in running)


def _shared(ready: Sequence[ReadyTask]) -> list[str]:
    """The stores on disk that tasks work on. `Invalid` if several work on one that is open in one place only."""
    urls = [url for one in ready for url in one.urls if not names_server(url)]
    for url in urls:
        if not url.startswith("file:") and urls.count(url) > 1:
            names = " and ".join(one.title for one in ready if url in one.urls)
            raise Invalid(
                f"{names} work on {url}, which is open in one place only: run them one by one, or put a server before "
                "it (detent serve) and give its address as the store"
            )
    return list(dict.fromkeys(url for url in urls if url.startswith("file:")))


class _ReadyRun(Task):
    """One of several tasks of this process. What its kind tries again is tried again in there: an error that comes out
    of it is the end of all."""

    def __init__(self, ready: ReadyTask, view: TaskView) -> None:
        super().__init__(ready.title)
        self.kind = ready.kind
        self._ready = ready
        self._view = view
        self.code = 0

    def step(self) -> Next:
        """All of its work."""
        self.code = self._ready.run(self._view)
        return DONE

    def interrupt(self) -> None:
        """It shall stop."""
        self._ready.stop()

    def is_hopeless(self, error: Exception) -> bool:
        """Always."""
        del error
        return True


def end_now(code: int, view: TaskView | None = None) -> NoReturn:
    """End without waiting for threads in which functions of the user's hang, as Python would. What they were at comes
    again."""
    if view is not None:
        view.__exit__(None, None, None)
        if sys.__stderr__ is not None and sys.__stderr__.isatty():
            sys.__stderr__.write(SHOW_CURSOR)
    for stream in (sys.stdout, sys.stderr):
        with suppress(RuntimeError):  # a signal has come while it was written to
            stream.flush()
    os._exit(code)
