"""`detent journal`: create, append to, read and trim journals."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from detent.cli._common import (
    confirm,
    count_text,
    dry_run_option,
    infos,
    json_option,
    listing,
    open_for_reading,
    open_for_writing,
    parse_headers,
    prefix_option,
    resolve,
    store_options,
    table_options,
    takes_store,
    yes_option,
)
from detent.cli._help import CommandList
from detent.cli._output import note, print_answer, print_fields, print_json, print_table, progress_bar, time_text
from detent.cli._settings import given_settings, settings_lines, settings_options
from detent.errors import DetentError, NotFound
from detent.settings.journal import JOURNAL
from detent.sizes import size_text

if TYPE_CHECKING:
    from detent.cli._messages import Entry
    from detent.journal import Journal, JournalInfo, Message

from_option = click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Where to begin: an offset, 'earliest', 'latest', or a time such as 2026-01-31T12:00:00Z.",
)

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["bodies", "ndjson"]),
    default="bodies",
    show_default=True,
    help="'bodies': each body and a newline. 'ndjson': a JSON object a line, which append reads back as it was.",
)

stream_json_option = click.option("--json", "as_json", is_flag=True, help="The same as --format ndjson.")


@click.group(cls=CommandList, short_help="Create, append to, read and trim journals.")
def journal() -> None:
    """Create, append to, read and trim journals.

    A journal is a named log of messages. Committed messages have the offsets 0, 1, 2 and so on, without
    gaps.

    \b
    Example:
      export DETENT_URL=file:./data
      seq 1 10 | detent journal append numbers
      detent journal read numbers --from 5
    """


# -- looking --------------------------------------------------------------------------------------------------------


@journal.command("ls")
@takes_store()
@prefix_option
@table_options
@json_option
def list_journals(url: str, prefix: str, as_json: bool) -> None:
    """List the journals of a store.

    \b
    Example:
      detent journal ls file:./data --prefix orders/
    """
    with (
        open_for_reading(url) as store,
        listing("journal info NAME", "/v1/journals"),
    ):
        found = infos(store, prefix)
    if as_json:
        print_json([_info_fields(info) for info in found])
        return
    rows = [
        [
            info.name,
            str(info.messages),
            str(info.first_offset),
            str(info.next_offset),
            size_text(info.block_bytes + info.fragment_bytes),
            time_text(info.updated_ms),
        ]
        for info in found
    ]
    print_table(["name", "messages", "first", "next", "size", "updated"], rows, spare=["updated", "first", "next"])


def _info_fields(info: JournalInfo) -> dict[str, Any]:
    import msgspec

    return {"messages": info.messages, **msgspec.to_builtins(info)}


@journal.command("info")
@takes_store("NAME")
@json_option
def show_info(url: str, name: str, as_json: bool) -> None:
    """Show a journal's extent, settings and registers.

    \b
    Example:
      detent journal info file:./data orders
    """
    with open_for_reading(url) as store:
        info = store.journal(name).info()
    if as_json:
        print_json(_info_fields(info))
        return
    print_fields(
        {
            "name": info.name,
            "messages": f"{info.messages} (offsets {info.first_offset} to {info.next_offset}, not included)",
            "stored rows": f"positions {info.first_position} to {info.next_position}, not included",
            "blocks": f"{info.blocks} ({size_text(info.block_bytes)})",
            "fragments": f"{info.fragments} ({size_text(info.fragment_bytes)})",
            "created": time_text(info.created_ms),
            "updated": time_text(info.updated_ms),
            **settings_lines(JOURNAL, JOURNAL.shown(info)),
            "transactions": f"{info.open_spans} open, {info.aborted_spans} rolled back after their deadline",
            **{f"register {key}": value for key, value in sorted(info.registers.items())},
        }
    )


# -- creating and deleting ------------------------------------------------------------------------------------------


@journal.command()
@takes_store("NAME")
@settings_options(JOURNAL)
@click.option("--exist-ok", is_flag=True, help="It is fine if the journal exists; its settings stay.")
@store_options
def create(url: str, name: str, exist_ok: bool, force: bool, as_json: bool, **settings: Any) -> None:
    """Create a journal with settings of its own. Without any, the first append creates it as well.

    \b
    Example:
      detent journal create file:./data orders --retention 7d
    """
    wanted: Any = given_settings(JOURNAL, settings)
    with open_for_writing(url, force=force, create=True) as store:
        store.journal(name).create(exist_ok=exist_ok, **wanted)
        info = store.journal(name).info()
    print_answer(_info_fields(info), f"journal {name} is there", as_json=as_json)


@journal.command("rm")
@takes_store("NAME")
@yes_option
@dry_run_option
@store_options
def remove(url: str, name: str, yes: bool, dry_run: bool, force: bool, as_json: bool) -> None:
    """Delete a journal with all its messages.

    Asks before it does so; a script says --yes.

    \b
    Example:
      detent journal rm file:./data orders --dry-run
    """
    with open_for_reading(url) as store:
        info = store.journal(name).info()
    what = f"journal {name} with {count_text(info.messages)}"
    if not dry_run:
        confirm(f"Delete {what}?", f"deletes {what}", yes=yes)
        with open_for_writing(url, force=force) as store:
            store.journal(name).delete()
    print_answer(
        {"journal": name, "messages": info.messages, "deleted": not dry_run},
        f"{'would delete' if dry_run else 'deleted'} {what}",
        as_json=as_json,
    )


@journal.command()
@takes_store("NAME")
@click.option("--before", required=True, metavar="WHERE", help="The first offset to keep; also 'latest', or a time.")
@dry_run_option
@store_options
def trim(url: str, name: str, before: str, dry_run: bool, force: bool, as_json: bool) -> None:
    """Forget the messages below an offset. They cannot be read any more, and their space is used again.

    \b
    Example:
      detent journal trim file:./data orders --before 1000 --dry-run
    """
    with open_for_reading(url) as store:
        info = store.journal(name).info()
        offset = resolve(store.journal(name), info, before)
    if offset > info.next_offset:
        raise NotFound(f"offset {offset} does not exist yet: the next one of {name!r} is {info.next_offset}")
    count = max(0, offset - info.first_offset)
    if not dry_run:
        with open_for_writing(url, force=force) as store:
            store.journal(name).trim(offset)
            info = store.journal(name).info()
    first = max(offset, info.first_offset)
    print_answer(
        {"journal": name, "messages": count, "first_offset": first, "trimmed": not dry_run},
        f"{'would forget' if dry_run else 'forgot'} {count} messages: {name} begins at offset {first}",
        as_json=as_json,
    )


# -- appending ------------------------------------------------------------------------------------------------------


@journal.command()
@takes_store("NAME")
@click.option("--body", help="Append one message with this text.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Append one message with this file's bytes; with --format, read the messages from this file.",
)
@click.option("--key", help="The key of the one message.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header of the one message.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "ndjson"]),
    help="How stdin is read. 'lines' (the default): each line is a body. 'ndjson': each line is a JSON object.",
)
@store_options
def append(
    url: str,
    name: str,
    body: str | None,
    path: Path | None,
    key: str | None,
    headers: tuple[str, ...],
    form: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Append messages: one with --body or --file, or many from stdin.

    When the command ends well, all of them are committed and survive a power cut. Input from stdin is committed in
    transactions of up to 1000 messages; if a line is wrong, the error says which, and what was committed before it.

    \b
    NDJSON has one object a line; bytes that are no text go in as base64:
      {"body": "text", "key": "k", "headers": {"name": "value"}}
      {"body": {"base64": "AAEC"}}

    \b
    Examples:
      detent journal append file:./data orders --body hello --key customer-7
      detent journal append file:./data orders < lines.txt
      detent journal read file:./a orders --format ndjson > orders.ndjson
      detent journal append file:./b orders --format ndjson < orders.ndjson
    """
    one = body is not None or (path is not None and form is None)
    if body is not None and (path is not None or form is not None):
        raise click.UsageError("--body goes with neither --file nor --format: it is the message")
    if not one and (key is not None or headers):
        raise click.UsageError("--key and --header belong to one message, given with --body or --file")
    pairs = parse_headers(headers)
    with open_for_writing(url, force=force, create=True) as store:
        target = store.journal(name)
        if one:
            content = body.encode() if body is not None else Path(path or "").read_bytes()
            done = target.append(content, key=None if key is None else key.encode(), headers=pairs)
            first, count = done.offset, 1
        elif path is not None:
            with path.open("rb") as source:
                first, count = _append_stream(target, source, form or "lines")
        else:
            if sys.stdin.isatty():
                note("reading messages from the terminal, one a line; Ctrl-D ends")
            first, count = _append_stream(target, sys.stdin.buffer, form or "lines")
    print_answer(
        {"journal": name, "count": count, "first_offset": first if count else None},
        f"appended {count_text(count)}{_offsets(first, count)}",
        as_json=as_json,
    )


def _offsets(first: int, count: int) -> str:
    if not count:
        return ""
    return f" at offset {first}" if count == 1 else f" from offset {first} on"


def _entries(source: IO[bytes], form: str) -> Iterator[tuple[int, Entry]]:
    from detent.cli._messages import parse_line, read_lines

    for number, line in read_lines(source):
        if form == "lines":
            yield number, (line, None, None)
        elif line.strip():
            yield number, parse_line(number, line)


def _append_stream(target: Journal, source: IO[bytes], form: str) -> tuple[int, int]:
    """Append what a stream holds; the first offset and the count."""
    from detent.cli._messages import batches

    first, count = -1, 0
    with progress_bar("appending") as progress:
        try:
            for batch in batches(_entries(source, form), lambda entry: len(entry[0])):
                offset = _append_batch(target, batch)
                first = offset if first < 0 else first
                count += len(batch)
                progress(count, None)
        except DetentError as error:
            done_before = (
                f"{count_text(count)} committed before it{_offsets(first, count)}" if count else "nothing committed"
            )
            raise type(error)(f"{error}; {done_before}") from error
    return first, count


def _append_batch(target: Journal, batch: list[tuple[int, Entry]]) -> int:
    try:
        return target.append_many(entry for _, entry in batch).offset
    except DetentError as error:
        raise type(error)(f"lines {batch[0][0]} to {batch[-1][0]} were refused: {error}") from error


# -- reading --------------------------------------------------------------------------------------------------------


@journal.command()
@takes_store("NAME")
@from_option
@click.option("--to", "end", type=click.IntRange(0), help="Where to stop: the first offset that is not read.")
@click.option("--limit", type=click.IntRange(0), help="Read at most so many messages.")
@click.option("--uncommitted", is_flag=True, help="Read all stored rows by position: pending ones, duplicates, ACKs.")
@format_option
@stream_json_option
def read(
    url: str,
    name: str,
    start: str | None,
    end: int | None,
    limit: int | None,
    uncommitted: bool,
    form: str,
    as_json: bool,
) -> None:
    """Read the committed messages of a journal.

    Begins with the first message, unless --from says otherwise. Needs no owner and does not become one: it reads what
    is durable, while others write or not.

    \b
    Examples:
      detent journal read file:./data orders --from 100 --limit 10
      detent journal read file:./data orders --from 2026-01-31T12:00:00Z
    """
    with open_for_reading(url) as store:
        target = store.journal(name)
        info = target.info()
        first = resolve(target, info, start or "earliest", uncommitted=uncommitted)
        last = end if end is not None else info.next_position if uncommitted else info.next_offset
        if limit is not None:
            last = min(last, first + limit)
        messages = target.read(first, max(first, last), isolation="uncommitted" if uncommitted else "committed")
        _write(messages, "ndjson" if as_json else form, flush=False)


@journal.command()
@takes_store("NAME")
@from_option
@click.option("--timeout", metavar="DURATION", help="End when nothing has come for so long, such as 10s.")
@click.option("--limit", type=click.IntRange(1), help="End after so many messages.")
@format_option
@stream_json_option
def tail(
    url: str, name: str, start: str | None, timeout: str | None, limit: int | None, form: str, as_json: bool
) -> None:
    """Follow a journal: print messages when they are committed.

    Begins with the next message, unless --from says otherwise. Ends with Ctrl-C, after --limit messages, or when
    nothing has come for --timeout.

    \b
    Example:
      detent journal tail file:./data orders --from earliest --timeout 10s
    """
    with open_for_reading(url) as store:
        target = store.journal(name)
        try:
            first = resolve(target, target.info(), start or "latest")
        except NotFound:
            if start is not None and start.isdigit() and int(start):
                raise
            note(f"there is no journal {name!r} yet; waiting for its first message")
            first = 0
        messages: Iterator[Message] = target.tail(first, timeout=timeout)
        _write(itertools.islice(messages, limit), "ndjson" if as_json else form, flush=True)


def _write(messages: Iterable[Message], form: str, *, flush: bool) -> None:
    from detent.cli._messages import format_message

    out = sys.stdout.buffer
    for message in messages:
        out.write(message.body + b"\n" if form == "bodies" else format_message(message))
        if flush:
            out.flush()
    out.flush()
