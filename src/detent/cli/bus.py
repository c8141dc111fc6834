"""`detent bus`: apps that handle typed messages; run them, look at them, and at their outboxes."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from detent.cli._bus_shown import checked, counts_text, fields_of_app, outbox_counts, print_app, print_ascii_json
from detent.cli._bus_views import COUNTED, JsonView, LineView, Notice, Tally, View, fields_of, view_of
from detent.cli._common import count_text, json_option
from detent.cli._help import Commands
from detent.cli._logs import logs_shown
from detent.cli._output import line_text, note, print_fields, print_json, print_table
from detent.errors import Invalid

if TYPE_CHECKING:
    from detent.bus.app import Bus

LOOK_S: Final = 0.2
"""How often a command that runs looks whether it is to stop."""

ONCE_TIMEOUT: Final = "365d"
"""How long --once may take: the user says when it is enough."""

SHOWN_MAX: Final = 100
"""Messages of an outbox in a table: those behind them were set aside for the same reasons, as a rule."""

INTERRUPTED: Final = 128 + signal.SIGINT


@click.group(cls=Commands, short_help="Run apps that handle typed messages, and look at them.")
def bus() -> None:
    """Run apps that handle typed messages, and look at them.

    An app is a `detent.bus.Bus` in a Python file of yours: a queue, the handlers of its messages, and where they write.

    \b
    A file, shop.py:
      from dataclasses import dataclass
      from detent.bus import Bus

    \b
      @dataclass
      class OrderPlaced:
          number: int

    \b
      billing = Bus("billing", "file:./data")

    \b
      @billing.handler
      def invoice(order: OrderPlaced):
          print("invoice for", order.number)

    \b
    Try it:
      detent bus show shop.py
      detent bus run shop.py
      echo 'from shop import *; billing.publish(OrderPlaced(1)); billing.stop()' |
          python

    Messages that an app gave up are on the failed list of its queue: `detent queue failed file:./data billing` shows
    them with what went wrong, `detent queue redrive file:./data billing --all` has them tried again.
    """


# -- running ----------------------------------------------------------------------------------------------------------


@bus.command()
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option("--concurrency", type=click.IntRange(1), help="How many messages each app handles at once.")
@click.option(
    "--transport", metavar="URL", help="What carries messages, instead of what the file says: file:./data, "
    "sqs:?region=R, redis://HOST/0, pubsub:?project=P, MODULE:CLASS:?OPTION=VALUE.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Handle what there is, one message after the other, then stop.")
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    help="Serve metrics for Prometheus on this port of the loopback address.",
)
@click.option("--verbose", is_flag=True, help="Show the log too: where in the code a handler failed.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print an object a line: what happens, and a status now and then."
)
def run(
    targets: tuple[str, ...],
    concurrency: int | None,
    transport: str | None,
    once: bool,
    metrics_port: int | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run apps: handle their messages, and forward their outboxes.

    All of it happens in this process.

    TARGET is package.module:name or path/to/file.py:name; without a name, all apps that are declared there. What a file
    does under `if __name__ == "__main__"` is not done. Run the same in as many processes as you like.

    It runs until Ctrl-C or SIGTERM, which let the handlers under way end; a second Ctrl-C does not wait, and what it
    cuts off comes again.

    Messages that an app gave up: `detent queue failed` shows them, `detent queue redrive` has them tried again.

    \b
    Examples:
      detent bus run shop.py:billing
      detent bus run shop.py warehouse.py --concurrency 16
      detent bus run shop.apps:billing --once --json
      detent bus run shop.py:billing --transport shop_queues:RabbitQueue:?host=h
    """
    from detent.cli.kinds.bus import load_buses

    if once and metrics_port is not None:
        raise click.UsageError("--metrics-port is for apps that go on running, and --once ends: give one of them")
    buses = load_buses(targets)
    for one in buses:
        one.concurrency = concurrency or one.concurrency
        if transport is not None:
            one.use(transport)
    if once:
        view: View = JsonView() if as_json else LineView()
        with _logs(view, verbose=verbose, as_json=as_json):
            _run_once(buses, view, as_json=as_json)
        return
    view = view_of(as_json=as_json)
    with _logs(view, verbose=verbose, as_json=as_json):
        _run(buses, view, metrics_port)


def _logs(view: View, *, verbose: bool, as_json: bool) -> AbstractContextManager[None]:
    """What apps say in their logs. What is said there of a message that failed is told already."""

    def tell(text: str) -> None:
        view.tell(Notice("warning", text=text, fields={"text": text}))

    failed = ("pipeline", "failed")
    return logs_shown(tell, lambda said: (said.module, said.funcName) == failed, verbose=verbose, as_json=as_json)


def _run(buses: Sequence[Bus], view: View, metrics_port: int | None) -> None:
    from detent.bus.observing import observed
    from detent.cli._bus_metrics import serve_bus_metrics
    from detent.runtime.signals import stop_on_signals

    stopping = threading.Event()
    tally = Tally(buses, view)
    if metrics_port is not None:
        serve_bus_metrics(metrics_port, buses, tally)
    with stop_on_signals(stopping, lambda: _end_now(INTERRUPTED, view)), view, ExitStack() as stack:
        for one in buses:
            stack.enter_context(observed(one, partial(tally.see, one)))
        for one in buses:  # all have subscribed before the first one publishes
            stack.callback(_stop, one, view, tally)
            one.prepare()
        for one in buses:
            one.start()
            view.tell(_started(one))
        while not stopping.wait(LOOK_S):
            view.show(tally)
        view.tell(Notice("stopping", text="stopping: handlers under way are waited for; Ctrl-C does not wait"))
        for one in buses:  # all at once: together they may take as long as the slowest one
            one.stop_taking()
    late = [thread for thread in threading.enumerate() if thread.name.startswith("detent-bus-")]
    if late:
        note(f"error: {len(late)} handlers did not end in time; their messages come again")
        _end_now(1)


def _started(bus: Bus) -> Notice:
    handlers = [handler.name for handler in bus.all_handlers]
    does = f"{', '.join(handlers)} of {', '.join(bus.topics)}" if handlers else "sends only"
    queue = None if bus.send_only else bus.transport.input_name
    where = bus.transport.place
    return Notice(
        "started",
        bus.name,
        f"started on {where}: {does}",
        {"queue": queue, "transport": where, "handlers": handlers, "messages": bus.topics},
    )


def _stop(bus: Bus, view: View, tally: Tally) -> None:
    bus.stop()
    counts = tally.counts(bus)
    said = ", ".join(f"{counts[name]:,} {name}" for name in COUNTED)
    fields = {name.replace(" ", "_"): count for name, count in counts.items()}
    view.tell(Notice("stopped", bus.name, f"stopped: {said}", fields))


def _end_now(code: int, view: View | None = None) -> None:
    """End without waiting for threads in which handlers hang, as Python would. Their messages come again."""
    if view is not None:
        view.__exit__(None, None, None)
    for stream in (sys.stdout, sys.stderr):
        with suppress(RuntimeError):  # a signal has come while it was written to
            stream.flush()
    os._exit(code)


def _run_once(buses: Sequence[Bus], view: View, *, as_json: bool) -> None:
    from detent.bus.observing import observed

    tally = Tally(buses, view)
    with ExitStack() as stack:
        for one in buses:
            stack.enter_context(observed(one, partial(tally.see, one)))
            stack.callback(one.stop)
        idle = 0
        while idle < 2:  # what one forwards only now is seen by those before it in the next round
            handled = [outcome for one in buses for outcome in one.drain(ONCE_TIMEOUT)]
            idle = 0 if handled else idle + 1
        fields = fields_of(tally)
        rows = tally.rows()
    if as_json:
        assert isinstance(view, JsonView)
        view.say({"event": "summary", "apps": fields})
        return
    columns = [*COUNTED, "outbox"]
    print_table(["app", *columns], [[name, *(_number(counts, key) for key in columns)] for name, counts in rows])


def _number(counts: dict[str, int | None], key: str) -> str:
    return "-" if key not in counts else "?" if counts[key] is None else str(counts[key])


# -- looking ----------------------------------------------------------------------------------------------------------


@bus.command()
@click.argument("target")
@click.option("--transport", metavar="URL", help="What carries messages, instead of what the file says.")
@json_option
def show(target: str, transport: str | None, as_json: bool) -> None:
    """Show an app, and check it.

    Shows its queue, its handlers, where they write, and what waits in its outbox. The check is the one that the app
    makes when it starts: whether all these parts go together. Nothing is made, and no message is handled.

    TARGET is package.module:name or path/to/file.py:name. If something is wrong, the last line says what, and the exit
    code is 1.

    Messages that the app gave up are counted as failed: `detent queue failed` shows them, `detent queue redrive` has
    them tried again.

    \b
    Example:
      detent bus show shop.py:billing
    """
    from detent.bus.looking import look_at_queue, making_nothing
    from detent.cli.kinds.bus import load_bus

    app = load_bus(target)
    if transport is not None:
        app.use(transport)
    with making_nothing():
        problem, warnings = checked(app)
        queue = look_at_queue(app)
        outbox = None if problem else outbox_counts(app)
        if as_json:
            print_ascii_json(fields_of_app(app, queue, outbox, problem, warnings))
        else:
            print_app(app, queue, outbox)
            for warning in warnings:
                note(f"warning: {warning}")
    if problem:
        raise Invalid(problem)


# -- outboxes ---------------------------------------------------------------------------------------------------------


@bus.command()
@click.argument("target")
@click.argument("positions", metavar="[POSITION]...", nargs=-1, type=click.IntRange(0))
@click.option("--failed", is_flag=True, help="List messages that can never be sent as they are, with what went wrong.")
@click.option("--redrive", is_flag=True, help="Have failed messages tried again: those at POSITION..., or all.")
@json_option
def outbox(target: str, positions: tuple[int, ...], failed: bool, redrive: bool, as_json: bool) -> None:
    """Show what waits or failed in an app's outbox, or try it again.

    TARGET is package.module:name or path/to/file.py:name. A message fails if it is too large, or if its address is not
    valid; all others are tried until they are sent. The app forwards them, wherever it runs.

    \b
    Examples:
      detent bus outbox shop.py
      detent bus outbox shop.py --failed
      detent bus outbox shop.py:billing --redrive
      detent bus outbox shop.py:billing --redrive 17 21
    """
    from detent.bus.looking import opened_outbox
    from detent.cli.kinds.bus import load_bus

    if positions and not redrive:
        raise click.UsageError("positions say which messages are tried again: give --redrive, too")
    if failed and redrive:
        raise click.UsageError("--failed lists messages, --redrive has them tried again: give one of them")
    app = load_bus(target)
    with opened_outbox(app) as look:
        look.prepare()
        if redrive:
            _print_redriven(look.redrive(list(positions) or None), len(positions), as_json=as_json)
            return
        counts = look.counts()
        listed = look.set_aside(SHOWN_MAX) if failed else []
    rows = [
        {
            "position": one.position,
            "id": one.envelope.id,
            "to": one.envelope.to,
            "headers": dict(one.envelope.headers),
            "bytes": len(one.envelope.body),
            "error": one.error,
        }
        for one in listed
    ]
    if as_json:
        found = {"app": app.name, **counts._asdict(), **({"messages": rows} if failed else {})}
        print_ascii_json(found)
        return
    if not failed:
        print_fields({"app": app.name, "outbox": counts_text(counts)})
        return
    keys = ("position", "id", "to", "bytes", "error")
    print_table(keys, [[line_text(str(row[key])) for key in keys] for row in rows])
    if counts.failed > len(rows):
        note(f"{count_text(counts.failed - len(rows))} more failed")


def _print_redriven(count: int, asked: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"redriven": count})
        return
    click.echo(f"{count_text(count)} will be tried again")
    if asked > count:
        note(f"{asked - count} of these positions are of no failed message")


@bus.command()
@click.option(
    "--dialect", type=click.Choice(["sqlite", "postgresql"]), default="postgresql", show_default=True,
    help="The database.",
)  # fmt: skip
@click.option("--tracker", metavar="TABLE", help="The name of the tracker's table, if it is one of your own.")
@click.option("--outbox", metavar="TABLE", help="The name of the outbox's table, if it is one of your own.")
@json_option
def schema(dialect: str, tracker: str | None, outbox: str | None, as_json: bool) -> None:
    """Print the SQL for the tables of a tracker and an outbox.

    It is for migrations of your own: an app that has the right to create tables makes them itself when it starts.

    \b
    Examples:
      detent bus schema --dialect sqlite | sqlite3 shop.db
      detent bus schema > migrations/0007_detent.sql
    """
    from detent.bus.statements import HANDLED, OUTBOX
    from detent.bus.statements import schema as statements

    text = statements(dialect, tracker=tracker or HANDLED, outbox=outbox or OUTBOX)
    if as_json:
        print_json({"dialect": dialect, "sql": text})
    else:
        click.echo(text, nl=False)
