"""`detent store`: a store as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

import click

from detent.cli._common import (
    check_kept,
    count_text,
    infos,
    is_server,
    json_option,
    open_for_reading,
    open_for_writing,
    raw_reader,
    store_options,
    takes_store,
)
from detent.cli._help import CommandList
from detent.cli._output import note, print_answer, print_fields, print_json, progress_bar
from detent.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from detent.engine.verify import Counts, Finding
    from detent.kv import Reader
    from detent.store import Store

LEASE_ANSWER_S = 10.0
"""How long the bucket may take to show the lease."""

UPGRADE_WAIT_S = 60.0
"""How long an upgrade waits for the lease of an owner that is silent."""

CHILD = "DETENT_VERIFIES_FOR_PARENT"

FINDINGS_SHOWN = 1000
"""A store that is broken throughout would print for hours; the first findings tell enough."""


@click.group(cls=CommandList, short_help="Look at a store as a whole, and check it.")
def store() -> None:
    """Look at a store as a whole, and check it.

    \b
    Example:
      detent store verify file:./data
    """


@store.command()
@takes_store()
@json_option
def info(url: str, as_json: bool) -> None:
    """Show how much a store holds, how big it is, and its owner.

    Needs no owner and does not become one.

    \b
    Example:
      detent store info file:./data
    """
    from detent.kv.stored import FORMAT_VERSION

    with open_for_reading(url) as opened:
        journals = infos(opened)
        owner = _owner(url, opened)
        fields: dict[str, Any] = {
            "url": url,
            "format": None if is_server(url) else FORMAT_VERSION,  # others do not open
            "journals": len(journals),
            "messages": sum(found.messages for found in journals),
            "record_bytes": opened.size_bytes(),
            "fragments": sum(found.fragments for found in journals),
            "fragment_bytes": sum(found.fragment_bytes for found in journals),
            "open_transactions": sum(found.open_spans for found in journals),
            "aborted_transactions": sum(found.aborted_spans for found in journals),
            "owner": owner,
        }
    if as_json:
        print_json(fields)
        return
    who = "no process" if owner is None else _owner_text(owner)
    print_fields(
        {
            "url": url,
            "format": "not shown by the server" if fields["format"] is None else str(fields["format"]),
            "owner": who,
            "journals": str(len(journals)),
            "messages": str(fields["messages"]),
            "records": size_text(fields["record_bytes"]),
            "fragments": f"{fields['fragments']} ({size_text(fields['fragment_bytes'])})",
            "open transactions": str(fields["open_transactions"]),
            "aborted transactions": str(fields["aborted_transactions"]),
        }
    )


def _owner_text(owner: dict[str, Any]) -> str:
    if "epoch" in owner:
        return f"process {owner['pid']}, epoch {owner['epoch']}"
    return f"process {owner['pid']} on {owner['host']}, {owner['state']} {' '.join(owner['addresses'])}".rstrip()


def _owner(url: str, opened: Store) -> dict[str, Any] | None:
    """The process that owns a store, or serves one. On an object store its lease says which."""
    from detent.kv import parse_url
    from detent.kv.leaseobject import LeaseObject
    from detent.kv.ownership import is_owned, read_owner
    from detent.remote import RemoteOwner, server_address

    if is_server(url):
        server = server_address(opened.owner_url or url)
        assert server is not None
        there = RemoteOwner(server)
        try:
            return there.status()
        finally:
            there.close()
    location = parse_url(url)
    if location.is_object_store:
        found = LeaseObject.of(url, LEASE_ANSWER_S).read()
        if found is None or found.note.state == "released":
            return None
        note = found.note
        return {"pid": note.pid, "host": note.host, "addresses": note.addresses, "state": note.state}
    owned = location.scheme == "file" and is_owned(location.directory)
    owner = read_owner(location.directory) if owned else None
    return None if owner is None else {"pid": owner.pid, "epoch": owner.epoch}


@store.command()
@takes_store()
@click.option("--limit", type=click.IntRange(1), default=FINDINGS_SHOWN, show_default=True, help="Stop after so many.")
@json_option
def verify(url: str, limit: int, as_json: bool) -> None:
    """Check every record of a store, and that all of them agree.

    Checksums of all records and fragments, counts, the order of commits worked out again from the messages,
    producers, open transactions; the queues' state worked out again from its log, and that each queued message has
    its body and its metadata; ledgers and pins; consumers and their shards; schedules. Nothing is changed, and a
    writer may be at work meanwhile.
    Exits with 1 if anything is wrong.

    \b
    Example:
      detent store verify file:./data && echo all is well
    """
    if url.startswith("file:") and CHILD not in os.environ:
        _verify_in_a_child(url, limit, as_json)
    with raw_reader(url) as reader, progress_bar("checking", hidden=as_json) as progress:
        findings, counts = _verify(reader, limit, progress)
    if as_json:
        found = [{"where": finding.where, "problem": finding.problem} for finding in findings]
        print_json({"ok": not findings, "counts": None if counts is None else asdict(counts), "findings": found})
    else:
        for finding in findings:
            click.echo(str(finding))
        if counts is not None:
            checked = (
                f"{count_text(counts.journals, 'journal')}, {count_text(counts.messages)} in "
                f"{count_text(counts.blocks, 'block')} and {count_text(counts.fragments, 'fragment')}, "
                f"{count_text(counts.queues, 'queue')}, {count_text(counts.queued, 'queued message')}, "
                f"{size_text(counts.body_bytes)} of bodies, {count_text(counts.ledgers, 'ledger')}, "
                f"{count_text(counts.consumers, 'consumer')}, {count_text(counts.schedules, 'schedule')}, "
                f"{count_text(counts.records, 'record')}, "
                f"{size_text(counts.bytes)}"
            )
            problems = count_text(len(findings), "problem") if findings else "no problem found"
            if counts.damaged:
                problems += f", {counts.damaged} records do not match their checksum"
            click.echo(f"checked {checked}: {problems}")
        else:
            note(f"stopped after {limit} problems")
    if findings:
        click.get_current_context().exit(1)


def _verify_in_a_child(url: str, limit: int, as_json: bool) -> NoReturn:
    """A damaged data file can end the process that reads it: LMDB checks little, and stops where it finds nonsense."""
    options = [f"--limit={limit}", *(["--json"] if as_json else []), "--", url]
    command = [sys.executable, "-m", "detent.cli", "store", "verify", *options]
    done = subprocess.run(command, env={**os.environ, CHILD: "1"}, stdout=subprocess.PIPE, check=False)
    if done.returncode >= 0:
        sys.stdout.buffer.write(done.stdout)
        sys.stdout.flush()
        raise SystemExit(done.returncode)
    name = signal.Signals(-done.returncode).name
    problem = f"reading it ended the process that checked it ({name}): the file is damaged, restore it from a copy"
    print_answer(
        {"ok": False, "counts": None, "findings": [{"where": "data.mdb", "problem": problem}]},
        f"data.mdb: {problem}",
        as_json=as_json,
    )
    raise SystemExit(1)


def _verify(
    reader: Reader, limit: int, progress: Callable[[int, int | None], None]
) -> tuple[list[Finding], Counts | None]:
    """The findings, and what was checked; None if the limit ended it early."""
    from detent.verify import verify as verify_records

    findings: list[Finding] = []
    run = verify_records(reader, progress=progress)
    while len(findings) < limit:
        try:
            findings.append(next(run))
        except StopIteration as end:
            counts: Counts = end.value
            return findings, counts
    run.close()
    return findings, None


@store.command()
@takes_store()
@click.option("--grace", default="24h", show_default=True, help="Keep what was begun within this time.")
@store_options
def sweep(url: str, grace: str, force: bool, as_json: bool) -> None:
    """Delete fragments that never became part of a journal.

    The owner of a store does this by itself once an hour. Writers that take longer than the grace time from beginning a
    fragment to adopting it are refused afterwards, and have to write it again.

    \b
    Example:
      detent store sweep file:./data --grace 2d
    """
    with open_for_writing(url, force=force) as opened:
        deleted = opened.sweep(grace=grace)
    print_answer({"deleted": deleted}, f"deleted {deleted} fragments", as_json=as_json)


@store.command()
@takes_store()
@json_option
def upgrade(url: str, as_json: bool) -> None:
    """Bring a store to the format of this release, in place.

    No other process may be at work on the store. Interrupted, it is finished by running it again; until then the store
    opens for nothing else. Take a copy of the folder first if you may want to go back: earlier releases do not read
    what comes out.

    \b
    Example:
      detent store upgrade file:./data && detent store verify file:./data
    """
    from detent.errors import Invalid
    from detent.kv import parse_url
    from detent.kv.stored import FORMAT_VERSION
    from detent.kv.upgrade import upgrade as upgrade_store
    from detent.remote import held_alone

    check_kept(url)
    if is_server(url):
        raise Invalid("a server's store is upgraded where its records are, with file:PATH or s3://BUCKET/PREFIX")
    alone = held_alone(url, UPGRADE_WAIT_S) if parse_url(url).is_object_store else nullcontext()
    with alone, progress_bar("upgrading", hidden=as_json) as progress:
        done = upgrade_store(url, progress)
    changed = done.before != FORMAT_VERSION
    if as_json:
        print_json({"from": done.before, "to": FORMAT_VERSION, "changed": changed, "records": done.records})
    elif changed:
        click.echo(f"upgraded from format {done.before} to {FORMAT_VERSION}: {done.records} records")
    else:
        click.echo(f"the store has format {FORMAT_VERSION} already")


@store.command("abandon-log")
@takes_store()
@click.option("--yes", is_flag=True, help="Do it; without this nothing is changed.")
@json_option
def abandon_log(url: str, yes: bool, as_json: bool) -> None:
    """Go on although the commit log is damaged. What can be read of it stays; the rest is lost.

    For a `file:` store that refuses to open because of its log, when there is no better copy. The log holds up to a
    second of commits. The damaged file is kept under another name.

    \b
    Example:
      detent store abandon-log file:./data --yes
    """
    from detent.errors import Invalid, Unavailable
    from detent.kv import parse_url
    from detent.kv.file import abandon_log as abandon
    from detent.kv.ownership import OwnerLock

    location = parse_url(url)
    if location.scheme != "file":
        raise Invalid("only file: stores have a commit log")
    if not yes:
        raise Invalid("this gives up commits that were acknowledged; say --yes if there is no better copy")
    lock = OwnerLock(location.directory)
    if not lock.try_acquire():
        raise Unavailable("another process has this store open: end it first")
    try:
        kept = abandon(location.directory)
    finally:
        lock.release()
    print_answer(
        {"kept": None if kept is None else kept.name},
        "the log is given up" + ("" if kept is None else f", and kept as {kept.name}"),
        as_json=as_json,
    )
