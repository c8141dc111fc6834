"""`detent queue`, their readers: who takes messages by number, how far they have come, and how to let go of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import (
    confirm,
    count_text,
    open_for_writing,
    store_options,
    takes_store,
    yes_option,
)
from detent.cli._output import line_text, print_answer, print_json, print_table, time_text
from detent.cli.queue import ms_of
from detent.cli.queue_messages import queue
from detent.errors import NotFound

if TYPE_CHECKING:
    from detent.queue import Queue, ReaderInfo


@queue.command()
@takes_store("QUEUE")
@store_options
def readers(url: str, queue: str, force: bool, as_json: bool) -> None:
    """List the readers of a queue: the streaming queries.

    A reader takes messages by number instead of under leases. Shows the last assignment that each has done, and what is
    assigned to it since when.

    \b
    Example:
      detent queue readers file:./data orders
    """
    with open_for_writing(url, force=force) as store:
        found = store.queue(queue).readers()
    if as_json:
        print_json({"queue": queue, "readers": [_fields(reader) for reader in found]})
        return
    rows = [[line_text(reader.name), str(reader.acked), str(reader.assigned), _since(reader)] for reader in found]
    print_table(["reader", "done up to", "assigned", "since"], rows)


def _fields(reader: ReaderInfo) -> dict[str, Any]:
    return {
        "name": reader.name,
        "generation": reader.generation,
        "opened_ms": ms_of(reader.opened),
        "acked": reader.acked,
        "assigned": reader.assigned,
        "assigned_ms": ms_of(reader.assigned_since),
    }


def _since(reader: ReaderInfo) -> str:
    since_ms = ms_of(reader.assigned_since)
    return "-" if since_ms is None else time_text(since_ms)


@queue.command()
@takes_store("QUEUE", "READER")
@click.option("--delete", is_flag=True, help="Forget the reader as well.")
@yes_option
@store_options
def release(url: str, queue: str, reader: str, delete: bool, yes: bool, force: bool, as_json: bool) -> None:
    """Take back what is assigned to a reader.

    Its messages can be claimed again at once; what the query did with them before is not undone. The query that used
    the reader is refused from now on: start it with a new checkpoint. Asks before it does so; a script says --yes.

    \b
    Example:
      detent queue release file:./data orders nightly
    """
    with open_for_writing(url, force=force) as store:
        target = store.queue(queue)
        held = _find(target, reader).assigned
        what = f"{count_text(held)} of reader {line_text(reader)} to queue {queue}"
        confirm(f"Give back {what}, and refuse the query that reads them?", f"gives back {what}", yes=yes)
        handle = target.reader(reader)
        count = handle.release()
        if delete:
            handle.delete()
    print_answer(
        {"queue": queue, "reader": reader, "messages": count, "deleted": delete},
        f"released reader {line_text(reader)}: {count_text(count)} can be claimed again from {queue}",
        as_json=as_json,
    )


def _find(queue: Queue, name: str) -> ReaderInfo:
    for reader in queue.readers():
        if reader.name == name:
            return reader
    raise NotFound(f"queue {queue.name!r} has no reader {name!r}; `detent queue readers` lists them")


__all__ = ["queue"]
