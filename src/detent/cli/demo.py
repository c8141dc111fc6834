"""`detent demo`: exactly once, shown."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from detent.cli._output import print_json, print_table
from detent.errors import Invalid
from detent.extras import install_command

if TYPE_CHECKING:
    from detent.demo.plan import DemoPlan
    from detent.demo.running import DemoOutcome
    from detent.demo.view import DemoLines, DemoScreen

NEEDED: Final = ("pyspark", "pandas", "deltalake", "duckdb", "matplotlib")
MESSAGES_MIN: Final = 100
MESSAGES_MAX: Final = 10_000_000
"""The check holds the ids of all orders in memory, once for each place."""


@click.command(short_help="Show that each message takes effect once, whatever is killed.")
@click.option(
    "--folder",
    default="demo-data",
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where to run: a new folder, an empty one, or that of an earlier demo.",
)
@click.option(
    "--messages",
    default=200_000,
    show_default=True,
    type=click.IntRange(MESSAGES_MIN, MESSAGES_MAX),
    help="How many orders.",
)
@click.option(
    "--kills", default=12, show_default=True, type=click.IntRange(0, 100), help="How often a process is killed."
)
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(5),
    help="About how long it should take; a busy machine needs longer.",
)
@click.option("--keep", is_flag=True, help="Leave the store and the table there, to look around.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end, for programs.")
def demo(folder: Path, messages: int, kills: int, seconds: float, keep: bool, as_json: bool) -> None:
    """Send orders from producers through Spark into a Delta table, kill everything on the way, and count.

    Three producers append orders to a journal; a clerk publishes rush orders to a queue, and a worker appends them to
    the journal too. Spark checks the orders, splits them into two journals, and writes those that are paid into a Delta
    table. Meanwhile each of these processes, and the owner of the store, is ended by the signal SIGKILL, which it
    cannot catch, and started again. At the end another process looks for each order in the journals and in the table.

    The lines on stderr say what happens; the result is on stdout, and a picture of the run in FOLDER/demo.png. It takes
    about a minute on two cores. The exit code is 1 unless every order is everywhere exactly once.

    \b
    Try it:
      detent demo
      detent demo --messages 20000 --kills 4 --keep
    """
    check_extra()
    from detent.demo.picture import draw
    from detent.demo.plan import DemoPlan
    from detent.demo.running import empty, new_folder, run
    from detent.spark import java

    java.find()  # what is missing is said before anything runs
    with new_folder(folder) as place:
        plan = DemoPlan(str(place), messages, seconds, kills, started=time.time())
        with _view(plan) as view:
            outcome = run(plan, view)
        draw(outcome, plan.picture)
        is_right = outcome.is_finished and outcome.verdict.is_right
        if is_right and not keep:
            empty(place, but=(plan.picture.name,))
    if as_json:
        print_json(summary_of(outcome))
    else:
        _print(outcome, folder, kept=keep or not is_right)
    if not is_right:
        click.echo(f"error: {_fault(outcome)}; everything is in {folder}", err=True)
        click.get_current_context().exit(1)


def check_extra() -> None:
    """`Invalid` if something is not installed that the demo needs."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Invalid(f"the demo needs {', '.join(missing)}: {install_command('demo')}")


def _fault(outcome: DemoOutcome) -> str:
    if outcome.is_finished:
        return "not every order took effect once"
    from detent.demo.running import STALL_S

    return (
        f"the run did not finish, because no order moved for {STALL_S:.0f} s. Mostly Spark could not start on a busy "
        "machine (logs/driver.log says why): try `detent demo --messages 20000 --kills 4`"
    )


def _view(plan: DemoPlan) -> DemoScreen | DemoLines:
    from detent.demo.view import DemoLines, DemoScreen

    return DemoScreen(plan) if sys.stderr.isatty() else DemoLines(plan)


def summary_of(outcome: DemoOutcome) -> dict[str, float | bool]:
    """A run for programs."""
    return {
        "messages": outcome.plan.messages,
        "kills": len(outcome.kills),
        "finished": outcome.is_finished,
        "lost": outcome.verdict.lost,
        "duplicated": outcome.verdict.duplicated,
        "seconds": round(outcome.seconds, 1),
        "rows_per_second": round(outcome.rate),
    }


def _result(outcome: DemoOutcome) -> str:
    if not outcome.is_finished:
        return "The run did not finish"
    return "Every order took effect exactly once" if outcome.verdict.is_right else "Not every order took effect once"


def _print(outcome: DemoOutcome, folder: Path, *, kept: bool) -> None:
    from detent.demo.check import COLUMNS
    from detent.demo.story import COLUMNS_EXPLAINED, WIDTH, meaning

    rows = [[place.name, *(f"{getattr(place, column):,}" for column in COLUMNS)] for place in outcome.verdict.places]
    print_table(["place", *COLUMNS], rows)
    click.echo(f"{textwrap.fill(COLUMNS_EXPLAINED, WIDTH)}\n")
    for line in meaning(outcome.verdict, [kill.role for kill in outcome.kills], is_finished=outcome.is_finished):
        click.echo(line)
    pace = f"{outcome.plan.messages:,} orders in {outcome.seconds:.1f} s, {outcome.rate:,.0f} a second"
    click.echo(f"\n{_result(outcome)}: {pace}.\n")
    click.echo(f"The picture:  {folder / outcome.plan.picture.name} (orders a second, and each kill)")
    if not kept:
        click.echo("Look around:  run it with --keep, and the store, the table and the logs stay")
        return
    click.echo(f"The folder:   {folder}, with store, tables/paid, checkpoints and logs")
    click.echo(f"Look around:  detent journal ls file:{folder}/store")
    click.echo(f"              detent journal read file:{folder}/store paid --limit 3")
    click.echo(f"              detent store verify file:{folder}/store")
