"""`detent quarantine`: messages that did not match the schema of their stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from detent.cli._common import (
    confirm,
    count_text,
    json_option,
    open_for_reading,
    open_for_writing,
    store_options,
    takes_store,
    yes_option,
)
from detent.cli._help import CommandList
from detent.cli._output import line_text, print_answer, print_json, print_table

if TYPE_CHECKING:
    pass

BODY_SHOWN = 80
"""What fits beside the rest on a terminal; --json shows all."""


@click.group(cls=CommandList, short_help="Look at messages that did not match a schema; put them back.")
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
@yes_option
@store_options
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
    print_answer({"name": name, "redriven": count}, f"{count_text(count)} put back", as_json=as_json)
