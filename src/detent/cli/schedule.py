"""`detent schedule`: messages that a store publishes by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import (
    Option,
    confirm,
    dry_run_option,
    listing,
    open_for_writing,
    parse_headers,
    parse_time,
    prefix_option,
    store_options,
    takes_store,
    with_options,
    yes_option,
)
from detent.cli._help import CommandList
from detent.cli._messages import content_fields, content_lines, iso
from detent.cli._output import duration_text, line_text, ms_of, print_answer, print_fields, print_json, print_table

if TYPE_CHECKING:
    from detent.schedule import ScheduleInfo

TICKS_SHOWN = 5
ALL_TICKS_MAX = 1_000


@click.group(cls=CommandList, short_help="Have messages published at times.")
def schedule() -> None:
    """Have messages published at times, each tick once.

    A schedule is a record of a store: a message, the queue or journal that it goes to, and when. The store's owner
    publishes it in the very commit that moves the schedule on, so that each tick is published once, whatever dies.
    It needs an owner to tick: `detent serve`, or a process that has the store open.

    \b
    Example:
      export DETENT_URL=http://localhost:8080
      detent schedule create report --cron "0 6 * * *" --queue reports
      detent schedule create beat --every 30s --journal beats
      detent schedule ls
    """


def _timing_options() -> list[Option]:
    return [
        click.option("--cron", metavar="EXPR", help="When: minute, hour, day, month, weekday; '0 6 * * mon-fri'."),
        click.option("--tz", metavar="ZONE", help="The time zone of --cron [UTC], such as Europe/Paris."),
        click.option("--every", metavar="DURATION", help="When: at this interval, such as 30s or 6h."),
        click.option("--start", metavar="TIME", help="When --every begins [now]: 2026-01-31T12:00:00Z."),
    ]


def _message_options() -> list[Option]:
    return [
        click.option("--queue", metavar="QUEUE", help="Publish to this queue."),
        click.option("--journal", metavar="JOURNAL", help="Append to this journal."),
        click.option("--body", metavar="TEXT", help="The body; without one, JSON that says which tick it is."),
        click.option(
            "--file",
            "path",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The body is this file's bytes.",
        ),
        click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeat it for more."),
        click.option("--key", metavar="TEXT", help="The key of a journal's messages."),
        click.option("--delay", metavar="DURATION", help="A queue's message cannot be claimed before so long."),
        click.option("--retention", metavar="DURATION", help="A queue forgets the message after so long [4d]."),
        click.option(
            "--missed",
            type=click.Choice(["none", "last", "all"]),
            help="Ticks that no owner was there for: make up for none, by one message [last], or for each.",
        ),
        click.option(
            "--missed-max", type=click.IntRange(1), metavar="N", help="With --missed all: the newest N at most [100]."
        ),
        click.option("--paused/--running", default=None, help="Whether it rests [running]."),
    ]


setting_options = with_options([*_timing_options(), *_message_options()])


@schedule.command("ls")
@takes_store()
@prefix_option
@store_options
def list_schedules(url: str, prefix: str, force: bool, as_json: bool) -> None:
    """List the schedules of a store: when they tick, and how far they are.

    \b
    Example:
      detent schedule ls file:./data --prefix billing/
    """
    with open_for_writing(url, force=force) as store, listing("schedule show NAME", "/v1/schedules"):
        found = store.schedules(prefix)
    if as_json:
        print_json([_fields(info) for info in found])
        return
    rows = [
        [line_text(info.name), _when(info), _where(info), _state(info), _time(info.next), _time(info.last)]
        for info in found
    ]
    print_table(["name", "when", "to", "state", "next", "last"], rows)


@schedule.command()
@takes_store("NAME")
@setting_options
@store_options
def create(url: str, name: str, force: bool, as_json: bool, **given: Any) -> None:
    """Make a schedule.

    Say when with --cron or --every, and where to with --queue or --journal. Each message has the headers
    detent-schedule (the name), detent-tick (the tick's time) and detent-id, which is the same however often the
    message is delivered.

    \b
    Example:
      detent schedule create file:./data report --cron "0 6 * * *" --queue reports
      detent schedule create file:./data beat --every 30s --journal beats
    """
    settings = _settings(given)
    with open_for_writing(url, force=force, create=True) as store:
        info = store.create_schedule(name, **settings)
    _print_one("created", info, as_json=as_json)


@schedule.command()
@takes_store("NAME")
@setting_options
@store_options
def change(url: str, name: str, force: bool, as_json: bool, **given: Any) -> None:
    """Change a schedule. What is not named stays.

    A schedule whose times stay goes on with the tick that is next; with other times it begins anew.

    \b
    Example:
      detent schedule change file:./data report --cron "30 6 * * *"
      detent schedule change file:./data report --body weekly --missed all
    """
    settings = _settings(given)
    if not settings:
        raise click.UsageError("there is nothing to change: name a setting, such as --cron or --body")
    with open_for_writing(url, force=force) as store:
        info = store.change_schedule(name, **settings)
    _print_one("changed", info, as_json=as_json)


@schedule.command()
@takes_store("NAME")
@click.option(
    "--ticks",
    type=click.IntRange(0, ALL_TICKS_MAX),
    default=TICKS_SHOWN,
    show_default=True,
    help="How many of the next ticks to show.",
)
@store_options
def show(url: str, name: str, ticks: int, force: bool, as_json: bool) -> None:
    """Show a schedule: its message, its next ticks, and how far it is.

    \b
    Example:
      detent schedule show file:./data report --ticks 10
    """
    with open_for_writing(url, force=force) as store:
        info = store.find_schedule(name)
    if as_json:
        print_json({**_fields(info), "upcoming_ms": [ms_of(tick) for tick in info.upcoming(ticks)]})
        return
    print_fields(_lines(info, ticks))


@schedule.command()
@takes_store("NAME")
@store_options
def pause(url: str, name: str, force: bool, as_json: bool) -> None:
    """Let a schedule rest. It has no ticks meanwhile, so it misses none.

    \b
    Example:
      detent schedule pause file:./data report
    """
    with open_for_writing(url, force=force) as store:
        store.pause_schedule(name)
    print_answer({"name": name, "paused": True}, f"paused the schedule {line_text(name)}", as_json=as_json)


@schedule.command()
@takes_store("NAME")
@store_options
def resume(url: str, name: str, force: bool, as_json: bool) -> None:
    """Let a schedule go on, with its first tick after now.

    \b
    Example:
      detent schedule resume file:./data report
    """
    with open_for_writing(url, force=force) as store:
        store.resume_schedule(name)
        info = store.find_schedule(name)
    document = {"name": name, "paused": False, "next_ms": _ms(info.next)}
    print_answer(document, f"resumed the schedule {line_text(name)}: next at {_time(info.next)}", as_json=as_json)


@schedule.command()
@takes_store("NAME")
@store_options
def run(url: str, name: str, force: bool, as_json: bool) -> None:
    """Publish a schedule's message now, besides its ticks.

    Also while the schedule rests. It is published once; the id that is printed is in its header detent-id.

    \b
    Example:
      detent schedule run file:./data report
    """
    with open_for_writing(url, force=force) as store:
        id = store.run_schedule(name)
    print_answer({"name": name, "id": id}, f"asked for {id}", as_json=as_json)


@schedule.command()
@takes_store("NAME")
@yes_option
@dry_run_option
@store_options
def delete(url: str, name: str, yes: bool, dry_run: bool, force: bool, as_json: bool) -> None:
    """Delete a schedule. What it has published stays.

    Asks before it does so; a script says --yes.

    \b
    Example:
      detent schedule delete file:./data report --dry-run
    """
    with open_for_writing(url, force=force) as store:
        info = store.find_schedule(name)
        what = f"the schedule {line_text(name)}, {_when(info)} to {_where(info)}"
        if not dry_run:
            confirm(f"Delete {what}?", f"deletes {what}", yes=yes)
            store.delete_schedule(name)
    text = f"would delete {what}" if dry_run else f"deleted {what}"
    print_answer({**_fields(info), "deleted": not dry_run}, text, as_json=as_json)


# -- settings -------------------------------------------------------------------------------------------------------


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """What was said, as the library takes it."""
    body, path = given.pop("body"), given.pop("path")
    if body is not None and path is not None:
        raise click.UsageError("give the body once: with --body or with --file")
    settings = {name: value for name, value in given.items() if value is not None and value != ()}
    if body is not None:
        settings["body"] = os.fsencode(body)
    if path is not None:
        settings["body"] = path.read_bytes()
    if "headers" in settings:
        settings["headers"] = parse_headers(settings["headers"])
    if "key" in settings:
        settings["key"] = os.fsencode(settings["key"])
    if "start" in settings:
        settings["start"] = parse_time(settings["start"])
    return settings


# -- printing -------------------------------------------------------------------------------------------------------


def _print_one(done: str, info: ScheduleInfo, *, as_json: bool) -> None:
    when = "it rests" if info.next is None else f"next at {_time(info.next)}"
    text = f"{done} the schedule {line_text(info.name)}, {_when(info)} to {_where(info)}: {when}"
    print_answer(_fields(info), text, as_json=as_json)


def _when(info: ScheduleInfo) -> str:
    if info.every is not None:
        return f"every {duration_text(ms_of(info.every))}"
    return line_text(f"{info.cron} ({info.tz})")


def _where(info: ScheduleInfo) -> str:
    return f"queue {info.queue}" if info.queue is not None else f"journal {info.journal}"


def _state(info: ScheduleInfo) -> str:
    return "trouble" if info.problem else "paused" if info.paused else "running"


def _time(time: datetime | None) -> str:
    return "-" if time is None else iso(time)


def _ms(time: datetime | None) -> int | None:
    return None if time is None else ms_of(time)


def _lines(info: ScheduleInfo, ticks: int) -> dict[str, str]:
    lines = {"name": line_text(info.name), "when": _when(info), "to": _where(info), "state": _state(info)}
    if info.problem:
        lines["problem"] = line_text(info.problem)
    lines |= {
        "next": _joined(info.upcoming(ticks)),
        "last": _time(info.last),
        "published": f"{info.published}, the last at {_time(info.published_at)}" if info.published else "0",
        "skipped": str(info.skipped),
        "missed ticks": info.missed if info.missed != "all" else f"all, up to {info.missed_max}",
    }
    if info.waiting:
        lines["asked for by hand"] = str(info.waiting)
    if info.start is not None:
        lines["start"] = _time(info.start)
    if info.key is not None:
        lines["key"] = line_text(info.key.decode(errors="backslashreplace"))
    if info.queue is not None:
        lines |= {"delay": _span(ms_of(info.delay)), "retention": duration_text(ms_of(info.retention))}
    shown = content_lines(info.body or b"", None, info.headers)
    if info.body is None:
        shown["body"] = "JSON that says which tick it is"
    return {**lines, **shown, "changed": _time(info.updated), "created": _time(info.created)}


def _span(duration_ms: int) -> str:
    return duration_text(duration_ms) if duration_ms else "none"


def _joined(times: Sequence[datetime]) -> str:
    return " ".join(map(iso, times)) or "-"


def _fields(info: ScheduleInfo) -> dict[str, Any]:
    """A schedule for programs: times and durations in milliseconds; what it does not have is null."""
    content = content_fields(info.body or b"", None, info.headers)
    return {
        "name": info.name,
        "cron": info.cron,
        "tz": info.tz,
        "every_ms": None if info.every is None else ms_of(info.every),
        "start_ms": _ms(info.start),
        "queue": info.queue,
        "journal": info.journal,
        "body": None if info.body is None else content["body"],
        "headers": info.headers,
        "key": None if info.key is None else content_fields(info.key, None, {})["body"],
        "delay_ms": ms_of(info.delay),
        "retention_ms": ms_of(info.retention),
        "missed": info.missed,
        "missed_max": info.missed_max,
        "paused": info.paused,
        "next_ms": _ms(info.next),
        "last_ms": _ms(info.last),
        "published_ms": _ms(info.published_at),
        "published": info.published,
        "skipped": info.skipped,
        "waiting": info.waiting,
        "problem": info.problem or None,
        "created_ms": ms_of(info.created),
        "updated_ms": ms_of(info.updated),
    }
