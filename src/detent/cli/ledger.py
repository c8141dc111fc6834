"""`detent ledger`: which batches of which query have taken effect, and where streams began."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import (
    confirm,
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
from detent.cli._output import line_text, ms_of, print_answer, print_fields, print_json, print_table, time_text
from detent.errors import Denied, NotFound

if TYPE_CHECKING:
    from detent.ledger import LedgerInfo, PinInfo
    from detent.store import Store

JOURNALS_SHOWN = 3
"""Journals of a pin in a table; --json has them all."""


@click.group(cls=CommandList, short_help="See which batches of a query took effect.")
def ledger() -> None:
    """See which batches of a query took effect, and where streams began.

    A query that writes batches, such as Spark's, enters each one in the ledger of its name, in the transaction that
    makes it take effect. One that comes again is found there and changes nothing. A pin is where a stream began that
    started at the end of its journals.

    \b
    Example:
      export DETENT_URL=file:./data
      detent ledger ls
      detent ledger show orders-to-table
      detent ledger pins
    """


# -- ledgers --------------------------------------------------------------------------------------------------------


@ledger.command("ls")
@takes_store()
@prefix_option
@table_options
@store_options
def list_ledgers(url: str, prefix: str, force: bool, as_json: bool) -> None:
    """List the ledgers of a store with the highest batch of each.

    \b
    Example:
      detent ledger ls file:./data --prefix orders
    """
    with open_for_writing(url, force=force) as store, listing("ledger show NAME"):
        found = store.ledgers(prefix)
    if as_json:
        print_json([_fields(info) for info in found])
        return
    rows = [
        [line_text(info.name), _batch(info), _text(info.query), _text(info.run), time_text(ms_of(info.updated))]
        for info in found
    ]
    print_table(["name", "batch", "query", "run", "updated"], rows, spare=["run", "query"])


@ledger.command()
@takes_store("NAME")
@store_options
def show(url: str, name: str, force: bool, as_json: bool) -> None:
    """Show a ledger: its query, its highest batch, and its runs.

    A run is a start of the driver; those are shown that entered batches.

    \b
    Example:
      detent ledger show file:./data orders-to-table
    """
    with open_for_writing(url, force=force) as store:
        info = store.ledger(name)
    if as_json:
        print_json(_fields(info))
        return
    print_fields(
        {
            "name": line_text(info.name),
            "query": _text(info.query),
            "highest batch": _batch(info),
            "batches": str(info.entries),
            "run": _text(info.run),
            "replaced runs": " ".join(map(line_text, info.replaced)) or "-",
            "resets": str(info.generation),
            "created": time_text(ms_of(info.created)),
            "updated": time_text(ms_of(info.updated)),
        }
    )


@ledger.command()
@takes_store("NAME")
@yes_option
@dry_run_option
@store_options
def reset(url: str, name: str, **given: Any) -> None:
    """Let another query use a ledger's name.

    The ledger forgets its query, its highest batch and its run. For a query that was refused because its checkpoint was
    deleted, and that is meant to start over. It begins with batch 0, so whatever it reads again it writes again: what
    its predecessor wrote stays. A driver of the predecessor that still runs is refused from then on.

    What the store knows of the stream of that name, its inputs and outputs, is forgotten too.

    Asks before it does so; a script says --yes.

    \b
    Example:
      detent ledger reset file:./data orders-to-table --dry-run
    """
    _end(url, name, "reset", "A query that starts over writes again.", **given)


@ledger.command()
@takes_store("NAME")
@yes_option
@dry_run_option
@store_options
def delete(url: str, name: str, **given: Any) -> None:
    """Delete a ledger that is not used any more.

    Its query, should it come again, would enter its batches a second time: to let another query use the name, `reset`
    is enough, and keeps old drivers out.

    Asks before it does so; a script says --yes.

    \b
    Example:
      detent ledger delete file:./data orders-to-table --dry-run
    """
    _end(url, name, "delete", "Its batches could be entered again.", **given)


def _end(
    url: str, name: str, verb: str, consequence: str, *, yes: bool, dry_run: bool, force: bool, as_json: bool
) -> None:
    """Reset a ledger, or delete it, once that is confirmed."""
    with open_for_writing(url, force=force) as store:
        info = _ledger_or_stream(store, name)
        what = f"ledger {line_text(name)} with {_contents(info)}"
        if not dry_run:
            confirm(f"{verb.title()} {what}? {consequence}", f"{verb}s {what}", yes=yes)
            store.reset_ledger(name) if verb == "reset" else store.delete_ledger(name)
    done = "reset" if verb == "reset" else "deleted"
    text = f"would {verb} {what}" if dry_run else f"{done} {what}"
    print_answer({**_fields(info, name), done: not dry_run}, text, as_json=as_json)


# -- pins -----------------------------------------------------------------------------------------------------------


@ledger.command()
@takes_store()
@prefix_option
@store_options
def pins(url: str, prefix: str, force: bool, as_json: bool) -> None:
    """List the pins of a store.

    A pin is where a stream began that started at the end of its journals.

    \b
    Example:
      detent ledger pins file:./data
    """
    with open_for_writing(url, force=force) as store, listing("ledger show NAME"):
        found = store.pins(prefix)
    if as_json:
        print_json([_pin_fields(info) for info in found])
        return
    rows = [
        [line_text(info.name), str(len(info.offsets)), _offsets(info), time_text(ms_of(info.created))] for info in found
    ]
    print_table(["name", "journals", "offsets", "created"], rows)


@ledger.command()
@takes_store("NAME")
@yes_option
@store_options
def unpin(url: str, name: str, yes: bool, force: bool, as_json: bool) -> None:
    """Forget where a stream began. If it starts over, it starts at the end that its journals have then.

    Asks before it does so; a script says --yes.

    \b
    Example:
      detent ledger unpin file:./data orders-reader --yes
    """
    what = f"the pin {line_text(name)}"
    with open_for_writing(url, force=force) as store:
        confirm(f"Forget {what}? Its stream, if it starts over, skips what came since.", f"forgets {what}", yes=yes)
        store.unpin(name)
    print_answer({"name": name, "unpinned": True}, f"forgot {what}", as_json=as_json)


# -- printing -------------------------------------------------------------------------------------------------------


def _ledger_or_stream(store: Store, name: str) -> LedgerInfo | None:
    """A ledger; None if a stream of this name was declared that has entered no batch yet."""
    try:
        return store.ledger(name)
    except NotFound:
        with suppress(Denied):  # a token for this ledger alone: what it may know of is not there
            if any(stream.name == name for stream in store.declared_streams()):
                return None
        raise


def _contents(info: LedgerInfo | None) -> str:
    if info is None:
        return "nothing entered"
    batches = "1 batch" if info.entries == 1 else f"{info.entries} batches"
    return f"{batches} of query {_text(info.query)}" if info.entries else "nothing entered"


def _batch(info: LedgerInfo) -> str:
    return str(info.batch) if info.entries else "-"


def _text(text: str) -> str:
    return line_text(text) or "-"


def _offsets(info: PinInfo) -> str:
    """The first few; --json has all of them."""
    shown = [f"{journal}={offset}" for journal, offset in list(info.offsets.items())[:JOURNALS_SHOWN]]
    more = len(info.offsets) - len(shown)
    return " ".join([*shown, f"and {more} more"] if more else shown) or "-"


def _fields(info: LedgerInfo | None, name: str = "") -> dict[str, Any]:
    """A ledger for programs: times in milliseconds; no batch is null. One that has no row yet has its name only."""
    if info is None:
        return {"name": name, "batch": None, "entries": 0}
    return {
        "name": info.name,
        "query": info.query,
        "batch": info.batch if info.entries else None,
        "entries": info.entries,
        "run": info.run,
        "replaced": list(info.replaced),
        "generation": info.generation,
        "created_ms": ms_of(info.created),
        "updated_ms": ms_of(info.updated),
    }


def _pin_fields(info: PinInfo) -> dict[str, Any]:
    return {"name": info.name, "offsets": info.offsets, "created_ms": ms_of(info.created)}
