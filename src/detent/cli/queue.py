"""`detent queue`: create queues, publish to them, claim from them, and see what became of their messages."""

from __future__ import annotations

import sys
import time
from dataclasses import fields as fields_of
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import (
    confirm,
    count_text,
    dry_run_option,
    listing,
    open_for_writing,
    prefix_option,
    store_options,
    table_options,
    takes_store,
    yes_option,
)
from detent.cli._help import CommandList
from detent.cli._output import age_text, line_text, note, print_answer, print_fields, print_json, print_table, time_text
from detent.cli._settings import given_settings, settings_lines, settings_options
from detent.settings.queue import QUEUE

if TYPE_CHECKING:
    from detent.queue import QueueInfo

COUNTERS = ("total_routed", "total_acked", "total_failed", "total_dead_lettered", "total_expired", "total_purged")
_LABELS = {"total_dead_lettered": "dead lettered"}
NUMBERS = ("available", "delayed", "blocked", "blocked_delayed", "in_flight", "failed", "done", *COUNTERS)
SPARE_NUMBERS = (
    "purged", "expired", "dead lettered", "gave up", "blocked delayed", "routed", "acked", "done", "blocked", "delayed",
)  # fmt: skip
"""Columns that a narrow terminal leaves out, the first one first."""


@click.group(cls=CommandList, short_help="Create queues, publish to them, claim from them.")
def queue() -> None:
    """Create queues, publish to them, claim from them.

    A worker claims a message and holds it until its lease ends (SQS: visibility timeout). With the receipt it says what
    became of it: `ack` when it is done, `fail` when it did not work, `extend` to hold it for longer. A message whose
    lease ends comes back to the queue by itself.

    \b
    Example:
      export DETENT_URL=file:./data
      detent queue create orders
      detent queue publish orders hello
      detent queue claim orders
      detent queue ack 1-0-1
    """


# -- creating, changing, deleting -----------------------------------------------------------------------------------


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the library takes them; what is wrong with them is said before a store is opened
    or made."""
    settings = given_settings(QUEUE, given)
    if "filter" in settings:
        from detent.queue.filters import Filter

        Filter(settings["filter"])
    return settings


@queue.command()
@takes_store("QUEUE")
@settings_options(QUEUE)
@click.option("--earliest", is_flag=True, help="It also gets the messages that are stored already and match.")
@click.option("--exist-ok", is_flag=True, help="It is fine if the queue exists; its settings stay.")
@store_options
def create(url: str, queue: str, earliest: bool, exist_ok: bool, force: bool, as_json: bool, **settings: Any) -> None:
    """Create a queue, and the store if there is none.

    Numbers in brackets are the defaults. Durations are 250ms, 30s, 5m, 2h or 7d.

    \b
    Examples:
      detent queue create file:./data orders
      detent queue create file:./data gold --filter 'headers.tier == "gold"'
      detent queue create file:./data mails --max-attempts 10 --backoff 5s
    """
    wanted = _settings(settings)
    with open_for_writing(url, force=force, create=True) as store:
        new = store.queue(queue).create(earliest=earliest, exist_ok=exist_ok, **wanted)
        info = store.queue(queue).info()
    if as_json:
        print_json({"new": new, **_info_fields(info)})
    elif new:
        click.echo(f"created queue {queue}")
    else:
        click.echo(f"queue {queue} was there already, and its settings stay")


@queue.command()
@takes_store("QUEUE")
@settings_options(QUEUE, changes=True)
@click.option("--no-labels", is_flag=True, help="Take all labels away.")
@store_options
def configure(url: str, queue: str, no_labels: bool, force: bool, as_json: bool, **settings: Any) -> None:
    """Change a queue's settings; what is not named stays.

    A new filter applies to messages that are published from now on.

    \b
    Example:
      detent queue configure file:./data orders --max-attempts 3 --lease 2m
    """
    wanted = _settings(settings)
    if no_labels:
        if "labels" in wanted:
            raise click.UsageError("--no-labels takes all labels away, and --label sets some: give one of them")
        wanted["labels"] = {}
    if not wanted:
        raise click.UsageError("say what to change, such as --max-attempts 3; --help lists the settings")
    _configure(url, queue, wanted, "is configured", force=force, as_json=as_json)


@queue.command()
@takes_store("QUEUE")
@store_options
def pause(url: str, queue: str, force: bool, as_json: bool) -> None:
    """Give out no messages until `resume`.

    Messages in flight can still be acknowledged, and publishing goes on.

    \b
    Example:
      detent queue pause file:./data orders
    """
    _configure(url, queue, {"paused": True}, "is paused", force=force, as_json=as_json)


@queue.command()
@takes_store("QUEUE")
@store_options
def resume(url: str, queue: str, force: bool, as_json: bool) -> None:
    """Resume a queue that is paused.

    It also gets what was published meanwhile.

    \b
    Example:
      detent queue resume file:./data orders
    """
    _configure(url, queue, {"paused": False}, "goes on", force=force, as_json=as_json)


def _configure(url: str, name: str, settings: Any, done: str, *, force: bool, as_json: bool) -> None:
    with open_for_writing(url, force=force) as store:
        store.queue(name).configure(**settings)
        info = store.queue(name).info()
    print_answer(_info_fields(info), f"queue {name} {done}", as_json=as_json)


@queue.command("rm")
@takes_store("QUEUE")
@yes_option
@dry_run_option
@store_options
def remove(url: str, queue: str, yes: bool, dry_run: bool, force: bool, as_json: bool) -> None:
    """Delete a queue with all that is in it.

    Messages that are in other queues as well stay there.

    Asks before it does so; a script says --yes.

    \b
    Example:
      detent queue rm file:./data orders --dry-run
    """
    with open_for_writing(url, force=force) as store:
        info = store.queue(queue).info()
        what = f"queue {queue} with {contents_text(info)}"
        if not dry_run:
            confirm(f"Delete {what}?", f"deletes {what}", yes=yes)
            store.queue(queue).delete()
    if as_json:
        counts = {name: getattr(info, name) for name in ("available", "delayed", "in_flight", "failed")}
        print_json({"queue": queue, **counts, "deleted": not dry_run})
    else:
        click.echo(f"{'would delete' if dry_run else 'deleted'} {what}")


def contents_text(info: QueueInfo, *, available: bool = True, flying: bool = True, failed: bool = True) -> str:
    parts = [f"{info.available} available", f"{info.delayed} delayed"] if available else []
    parts += [f"{info.blocked} blocked"] if available and info.blocked else []
    parts += [f"{info.in_flight} in flight"] if flying else []
    parts += [f"{info.failed} failed"] if failed else []
    return f"{', '.join(parts[:-1])} and {parts[-1]} messages" if len(parts) > 1 else f"{parts[0]} messages"


# -- looking --------------------------------------------------------------------------------------------------------


@queue.command("ls")
@takes_store()
@prefix_option
@table_options
@store_options
def list_queues(url: str, prefix: str, force: bool, as_json: bool) -> None:
    """List the queues of a store.

    Says on stderr how many stored messages matched no queue.

    \b
    Example:
      detent queue ls file:./data --prefix mails/
    """
    with (
        open_for_writing(url, force=force) as store,
        listing("queue info NAME", "/v1/queues"),
    ):
        found, unmatched = store.queues(prefix), store.unmatched()
    if as_json:
        print_json({"queues": [_info_fields(info) for info in found], "unmatched": unmatched})
        return
    rows = [
        [
            info.name,
            *(str(getattr(info, name)) for name in ("available", "delayed", "in_flight", "failed")),
            _state(info),
        ]
        for info in found
    ]
    print_table(
        ["name", "available", "delayed", "in flight", "failed", "state"], rows, spare=["delayed", "in flight", "state"]
    )
    if unmatched:
        note(f"{count_text(unmatched)} matched no queue; one created with --earliest gets what its filter matches")


def _state(info: QueueInfo) -> str:
    return "paused" if info.paused else "catching up" if info.catching_up else "running"


def _info_fields(info: QueueInfo) -> dict[str, Any]:
    """A queue for programs: times and durations in milliseconds; null is no time, and for ever."""
    names = {setting.shown_as: setting.ms_name for setting in QUEUE} | {"created": "created_ms", "oldest": "oldest_ms"}
    values: dict[str, Any] = {}
    for field in fields_of(info):
        name, value = names.get(field.name, field.name), getattr(info, field.name)
        values[name] = value if name == field.name else ms_of(value)
    return values


def ms_of(value: datetime | timedelta | None) -> int | None:
    """A time or a duration in milliseconds, for programs."""
    if value is None:
        return None
    return round((value.total_seconds() if isinstance(value, timedelta) else value.timestamp()) * 1000)


@queue.command("info")
@takes_store("QUEUE")
@store_options
def show_info(url: str, queue: str, force: bool, as_json: bool) -> None:
    """Show a queue's settings, what is in it, and what it has counted.

    \b
    Example:
      detent queue info file:./data orders
    """
    with open_for_writing(url, force=force) as store:
        info = store.queue(queue).info()
    if as_json:
        print_json(_info_fields(info))
        return
    print_fields(
        {
            "name": info.name,
            **({"description": line_text(info.description)} if info.description else {}),
            "state": _state(info),
            "created": time_text(ms_of(info.created) or 0),
            **settings_lines(QUEUE, {setting.shown_as: getattr(info, setting.shown_as) for setting in QUEUE}),
            **{f"label {line_text(name)}": line_text(value) for name, value in info.labels.items()},
            **_number_lines(info),
        }
    )


def _number_lines(info: QueueInfo) -> dict[str, str]:
    lines = {_LABELS.get(name, name.replace("_", " ")): str(getattr(info, name)) for name in NUMBERS}
    lines["oldest available"] = _age(info)
    for priority, count in info.available_by_priority.items():
        lines[f"available at priority {priority}"] = str(count)
    return lines


def _age_ms(info: QueueInfo) -> int | None:
    """How long the oldest available message has waited."""
    received_ms = ms_of(info.oldest)
    return None if received_ms is None or not info.available else max(0, int(time.time() * 1000) - received_ms)


def _age(info: QueueInfo) -> str:
    age_ms = _age_ms(info)
    return "-" if age_ms is None else age_text(age_ms)


@queue.command()
@takes_store(rest="[QUEUE]...")
@click.option("--watch", metavar="SECONDS", type=click.FloatRange(0.1), help="Look again every so often, until Ctrl-C.")
@table_options
@store_options
def stats(url: str, queue: tuple[str, ...], watch: float | None, force: bool, as_json: bool) -> None:
    """Show the numbers of some queues, or of all.

    First what is in a queue now: AVAILABLE messages can be claimed, DELAYED ones later, BLOCKED ones wait for their
    group, IN FLIGHT ones are claimed, FAILED ones are on the failed list, DONE ones are remembered. Then what it has
    counted since it was made: messages ROUTED to it, ACKED, given up (GAVE UP), EXPIRED and PURGED. OLDEST is how long
    the oldest available message has waited. For one queue it also shows what is available at each priority.

    A terminal that is too narrow gets fewer columns, or with --wide several tables. With --watch and --json, each look
    is one line.

    \b
    Examples:
      detent queue stats file:./data
      detent queue stats file:./data orders --watch 2
    """
    with (
        open_for_writing(url, force=force) as store,
        listing("queue info NAME", "/v1/queues"),
    ):
        while True:
            found = [store.queue(name).info() for name in queue] if queue else store.queues()
            _print_stats(found, one=len(queue) == 1, as_json=as_json, watched=watch is not None)
            if watch is None:
                return
            time.sleep(watch)


def _print_stats(found: list[QueueInfo], *, one: bool, as_json: bool, watched: bool) -> None:
    if as_json:
        numbers = [_stats_fields(info) for info in found]
        if watched:
            from detent.cli._messages import encode_line

            sys.stdout.buffer.write(encode_line({"time_ms": int(time.time() * 1000), "queues": numbers}))
            sys.stdout.buffer.flush()
        else:
            print_json(numbers)
        return
    if watched:
        click.clear()  # does nothing unless this is a terminal
    if one:
        print_fields({"name": found[0].name, **_number_lines(found[0])})
    else:
        heads = ["name", *(name.removeprefix("total_").replace("_", " ") for name in NUMBERS), "oldest"]
        heads[heads.index("failed", heads.index("failed") + 1)] = "gave up"
        rows = [[info.name, *(str(getattr(info, name)) for name in NUMBERS), _age(info)] for info in found]
        print_table(heads, rows, spare=SPARE_NUMBERS, is_divisible=True)
    sys.stdout.flush()


def _stats_fields(info: QueueInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        **{name: getattr(info, name) for name in NUMBERS},
        "available_by_priority": info.available_by_priority,
        "oldest_ms": ms_of(info.oldest),
        "oldest_age_ms": _age_ms(info),
    }
