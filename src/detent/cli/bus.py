"""`detent bus`: apps that handle typed messages; look at them, and at their outboxes."""

from __future__ import annotations

from typing import Final

import click

from detent.cli._bus_shown import counts_text, print_ascii_json
from detent.cli._common import count_text, json_option
from detent.cli._help import CommandList
from detent.cli._output import line_text, note, print_answer, print_fields, print_json, print_table
from detent.cli.kinds import APP
from detent.cli.kinds.bus import show_bus

SHOWN_MAX: Final = 100
"""Messages of an outbox in a table: those behind them were set aside for the same reasons, as a rule."""


@click.group(cls=CommandList, short_help="Look at apps that handle typed messages, and at their outboxes.")
def bus() -> None:
    """Look at apps that handle typed messages, and at their outboxes.

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
      detent run shop.py
      echo 'from shop import *; billing.publish(OrderPlaced(1)); billing.stop()' |
          python

    Messages that an app gave up are on the failed list of its queue: `detent queue failed file:./data billing` shows
    them with what went wrong, `detent queue redrive file:./data billing --all` has them tried again.
    """


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

    app = APP.find(target)
    if transport is not None:
        app.use(transport)
    show_bus(app, as_json=as_json)


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

    if positions and not redrive:
        raise click.UsageError("positions say which messages are tried again: give --redrive, too")
    if failed and redrive:
        raise click.UsageError("--failed lists messages, --redrive has them tried again: give one of them")
    app = APP.find(target)
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
    print_answer({"dialect": dialect, "sql": text}, text.removesuffix("\n"), as_json=as_json)
