"""`detent store`, its copies: backup, list and remove backups, restore, compact."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import check_kept, count_text, is_server, json_option, takes_store
from detent.cli._output import note, print_answer, print_json, print_table, progress_bar, time_text
from detent.cli.store import store
from detent.errors import Invalid
from detent.paths import as_url
from detent.sizes import size_text

if TYPE_CHECKING:
    from detent.backup import KeptBackup, Removed

__all__ = ["store"]

KEEP_HELP = "Keep so many of the newest backups, and remove the others."


@store.command()
@takes_store("TO")
@click.option("--keep", type=click.IntRange(1), help=KEEP_HELP)
@json_option
def backup(url: str, to: str, keep: int | None, as_json: bool) -> None:
    """Copy a store to a folder or a bucket, while it is used.

    The backup has the state at one commit: all that was acknowledged before, and nothing by halves. It shares with the
    backups that are in TO what has not changed since. All is read back and compared as it is written. No owner has to
    stop, and none is asked; what counts is the right to read the store's files. Interrupted, the next backup goes on
    with what was copied.

    \b
    Examples:
      detent store backup file:./data file:/mnt/other/data --keep 14
      detent store backup file:./data s3://bucket/backups/data
    """
    from detent.backup import BackupPlace, remove, take_backup

    _refuse_server(url)
    to = as_url(to)
    with progress_bar("copying", hidden=as_json) as progress:
        taken = take_backup(url, to, progress)
    made = taken.manifest
    removed = None if keep is None else remove(BackupPlace(to), keep)
    if as_json:
        print_json(
            {
                "backup": made.job,
                "made_ms": made.made_ms,
                "records": made.records,
                "record_bytes": made.record_bytes,
                "fragments": len(made.objects),
                "fragment_bytes": made.object_bytes,
                "copied_bytes": made.copied_bytes,
                "view_seconds": round(taken.view_seconds, 3),
                "removed": None if removed is None else removed._asdict(),
            }
        )
        return
    click.echo(
        f"backup {made.job}: {count_text(made.records, 'record')} and {count_text(len(made.objects), 'fragment')}, "
        f"{size_text(made.record_bytes + made.object_bytes)}; {size_text(made.copied_bytes)} of it were new"
    )
    if removed is not None:
        _say_removed(removed)


@store.command()
@click.argument("to", metavar="TO")
@click.option("--keep", type=click.IntRange(1), help=KEEP_HELP)
@json_option
def backups(to: str, keep: int | None, as_json: bool) -> None:
    """List the backups in a folder or a bucket, or remove old ones.

    Exits with 1 if one of them is not whole.

    \b
    Examples:
      detent store backups s3://bucket/backups/data
      detent store backups s3://bucket/backups/data --keep 14
    """
    from detent.backup import BackupPlace, remove

    place = BackupPlace(as_url(to))
    removed = None if keep is None else remove(place, keep)
    kept = place.kept()
    if as_json:
        fields = None if removed is None else removed._asdict()
        print_json({"backups": [_fields(one) for one in kept], "removed": fields})
    else:
        columns = ("backup", "made", "store", "records", "fragments", "size", "new")
        print_table(columns, [_row(one) for one in kept])
        if removed is not None:
            _say_removed(removed)
    broken = [one.manifest.job for one in kept if one.missing]
    for job in broken:
        note(f"backup {job} has lost some of its parts, and cannot be restored")
    if broken:
        click.get_current_context().exit(1)


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("url", metavar="URL")
@click.option("--backup", "job", type=click.IntRange(1), help="Which backup. [default: the newest one]")
@json_option
def restore(source: str, url: str, job: int | None, as_json: bool) -> None:
    """Make a store from a backup: at a new place, for a new life.

    URL is file:PATH or an object store, of either kind whatever the backup is of, with no store there. Nothing opens
    the store until it is whole and every record of it is verified. Interrupted, it is finished by running it again.

    Clients of the old store are refused by the restored one with `Restored`, and so is a checkpoint that is ahead of
    it: docs/backup.md says what to do then.

    \b
    Example:
      detent store restore s3://bucket/backups/data file:./restored
    """
    from detent.backup import restore as restore_store

    check_kept(url)
    _refuse_server(url)
    with progress_bar("restoring", hidden=as_json) as progress:
        made = restore_store(as_url(source), as_url(url), backup=job, progress=progress)
    if as_json:
        print_json({"backup": made.manifest.job, "made_ms": made.manifest.made_ms, "counts": asdict(made.counts)})
        return
    counts = made.counts
    click.echo(
        f"restored backup {made.manifest.job} of {time_text(made.manifest.made_ms)}: {count_text(counts.messages)} in "
        f"{count_text(counts.journals, 'journal')}, {count_text(counts.queued, 'queued message')}, "
        f"{count_text(counts.records, 'record')}, {count_text(counts.fragments, 'fragment')}; no problem found"
    )


@store.command()
@takes_store()
@json_option
def compact(url: str, as_json: bool) -> None:
    """Give back the room that deleted messages have left.

    A `file:` store's records are copied into a new file, which takes the old one's place at once: no process may have
    the store open, and for a while there has to be room for both. Interrupted, the store is as it was. On an object
    store the owner does this by itself; what nothing needs any more is deleted now.

    \b
    Example:
      detent store compact file:./data
    """
    from detent.kv.compact import compact as compact_store

    check_kept(url)
    _refuse_server(url)
    done = compact_store(url)
    text = f"{size_text(done.before)} before, {size_text(done.after)} now"
    print_answer(done._asdict(), text, as_json=as_json)


def _refuse_server(url: str) -> None:
    if is_server(url):
        raise Invalid(
            f"{url} is a server's: do this where its records are, with file:PATH or s3://BUCKET/PREFIX; a backup can "
            "be taken there while the server runs"
        )


def _say_removed(removed: Removed) -> None:
    if removed.waits is not None:
        note(f"no backup was removed: job {removed.waits} may be copying; the next removal does it")
    elif removed.backups or removed.files:
        note(f"removed {count_text(len(removed.backups), 'backup')}: {size_text(removed.bytes)} are free")


def _fields(kept: KeptBackup) -> dict[str, Any]:
    made = kept.manifest
    return {
        "backup": made.job,
        "made_ms": made.made_ms,
        "store": made.store,
        "url": made.url,
        "format": made.format,
        "records": made.records,
        "record_bytes": made.record_bytes,
        "fragments": len(made.objects),
        "fragment_bytes": made.object_bytes,
        "copied_bytes": made.copied_bytes,
        "missing": kept.missing,
    }


def _row(kept: KeptBackup) -> list[str]:
    made = kept.manifest
    return [
        str(made.job),
        time_text(made.made_ms),
        made.url,
        str(made.records),
        str(len(made.objects)),
        size_text(made.record_bytes + made.object_bytes),
        size_text(made.copied_bytes),
    ]
