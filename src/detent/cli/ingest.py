"""`detent ingest`: files that a queue announces, each into a table exactly once."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import confirm, json_option, yes_option
from detent.cli._help import CommandList
from detent.cli._output import line_text, print_answer, print_json, print_table, time_text
from detent.cli.kinds.ingest import database, read_config
from detent.errors import Invalid
from detent.sizes import size_text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from detent.ingest.config import IngestConfig

_config = click.argument("config", type=click.Path(path_type=Path))


@click.group(cls=CommandList, short_help="Look at files that were brought into a table, once each.")
def ingest() -> None:
    """Bring files that a queue announces into a table, each exactly once, through Spark.

    CONFIG is a TOML file. Any number of processes may run the same one. Relative paths in it, also in its URLs, begin
    in its folder. Files are announced by absolute paths or URIs.

    \b
    orders.toml:
      name = "orders"
      queue = "sqs:new-orders"           # or redis://localhost/0#files,
                                         # or detent:file:./data#files,
                                         # or MODULE:CLASS:NAME, a class of yours
      table = "./lake/orders"
      committer = "delta"                # or manifest, iceberg
      state = "sqlite:///orders.db"      # PostgreSQL for several machines
      format = "json"                    # or csv, parquet, text, binary
      schema = "id BIGINT, name STRING"  # left out: inferred once, and kept
      transform = "clean.py:clean"       # a function from DataFrame to DataFrame
      allow = ["s3://bucket/orders/"]    # names must begin so; default: any
      [batch]
      files = 10000
      bytes = "1GiB"
      age = "10s"

    \b
    Try it:
      detent run orders.toml --once
      detent run orders.toml --backfill s3://bucket/orders/
      detent show orders.toml
      detent ingest quarantine orders.toml
      detent ingest redrive orders.toml --all
    """


@ingest.command("files")
@_config
@click.option("--state", type=click.Choice(["open", "redriven", "done", "quarantined"]), help="Only these.")
@click.option("--containing", default="", metavar="TEXT", help="Only files whose name contains this.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="How many to show.")
@json_option
def list_files(config: Path, state: str | None, containing: str, limit: int, as_json: bool) -> None:
    """List the files that are remembered, by name.

    \b
    Example:
      detent ingest files orders.toml --state open
    """
    _list(config, limit, as_json, state=state, containing=containing)


@ingest.command("quarantine")
@_config
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="How many to show.")
@json_option
def list_quarantine(config: Path, limit: int, as_json: bool) -> None:
    """List the files that failed too often, and why.

    \b
    Example:
      detent ingest quarantine orders.toml
    """
    _list(config, limit, as_json, state="quarantined")


def _list(config: Path, limit: int, as_json: bool, **chosen: Any) -> None:
    from itertools import islice

    from detent.ingest import steering

    settings = read_config(config)
    with database(settings.state_url) as engine:
        steering.status(engine, settings.name)
        found = list(islice(steering.files(engine, settings.name, **chosen), limit))
    if as_json:
        print_json([file.as_json() for file in found])
        return
    rows = [
        [
            line_text(file.uri),
            file.state,
            size_text(file.size),
            str(file.attempts),
            time_text(file.updated_at),
            line_text(file.reason),
        ]
        for file in found
    ]
    print_table(["file", "state", "size", "failures", "changed", "reason"], rows)


@ingest.command("redrive")
@_config
@click.argument("uris", metavar="[FILE]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Put all files of the quarantine back.")
@json_option
def redrive_files(config: Path, uris: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Put files of the quarantine back, to be tried again.

    The pipeline that runs takes them, or the next one that starts. FILE is a name as `detent ingest quarantine` shows
    it.

    \b
    Examples:
      detent ingest redrive orders.toml s3://bucket/orders/17.json
      detent ingest redrive orders.toml --all
    """
    from detent.ingest import steering

    if uris and everything:
        raise click.UsageError("--all puts back all files, and FILE these alone: say one or the other")
    if not uris and not everything:
        raise click.UsageError("name files, or say --all")
    settings = read_config(config)
    with database(settings.state_url) as engine:
        count = steering.redrive(engine, settings.name, _named(engine, settings.name, uris))
    print_json({"redriven": count}) if as_json else click.echo(f"{count} put back")


def _named(engine: Engine, source: str, uris: tuple[str, ...]) -> list[str]:
    """The names of files, of which some may be given as they are shown: what is not printable is written out then."""
    from detent.ingest import steering

    if not any("\\" in uri for uri in uris):
        return list(uris)
    shown = {line_text(file.uri): file.uri for file in steering.files(engine, source, state="quarantined")}
    return [shown.get(uri, uri) for uri in uris]


@ingest.command("prune")
@_config
@click.option(
    "--orphans",
    is_flag=True,
    help="Also delete the data files of batches that were never committed, as crashed pipelines leave them. Younger "
    "ones than --older-than stay, because a pipeline may be writing them.",
)
@click.option(
    "--older-than",
    metavar="DURATION",
    help="How old orphans have to be, such as 2h: longer than a batch takes, if pipelines run. Left out: the "
    "configuration's orphan_age, which is a day unless said.",
)
@yes_option
@json_option
def prune_files(config: Path, orphans: bool, older_than: str | None, yes: bool, as_json: bool) -> None:
    """Forget finished files that are older than the window. Running pipelines do that by themselves.

    The table's rows stay, and so do the files that were ingested: what is forgotten is
    only that they were.

    \b
    Examples:
      detent ingest prune orders.toml
      detent ingest prune orders.toml --orphans --older-than 2h
    """
    from detent.durations import milliseconds

    if older_than is not None and not orphans:
        raise click.UsageError("--older-than is about orphans: say --orphans too")
    try:
        milliseconds(older_than or "0s")
    except Invalid:
        raise click.UsageError(f"--older-than: {older_than!r} is not a duration: write '2h', '1d'") from None
    settings = read_config(config)
    age = settings.orphan_age if older_than is None else older_than
    what = f"forgets the files of {settings.name} that were finished more than {settings.window} ago"
    if orphans:
        what += f", and deletes the data files of batches that were not committed and are older than {age}"
    confirm(f"This {what}. Go on?", what, yes=yes)
    pruned, swept = _prune(settings, milliseconds(age) / 1000 if orphans else None)
    print_answer(
        {"pruned": pruned, "swept": swept},
        f"{pruned} files forgotten" + (f", {swept} batches deleted" if orphans else ""),
        as_json=as_json,
    )


def _prune(settings: IngestConfig, orphan_s: float | None) -> tuple[int, int]:
    """How many files were forgotten, and how many batches were deleted because they are orphans of that age."""
    from detent.ingest import forgetting, ownership
    from detent.ingest.committers import committer_of
    from detent.ingest.shared_state import QueueSharedState
    from detent.ingest.staging import sweep_staging

    with database(settings.state_url) as engine:
        epoch = ownership.register(engine, settings)
        pruned = forgetting.prune(engine, settings, None)
        if orphan_s is None:
            return pruned, 0
        shared = QueueSharedState(engine, settings.name, uuid.uuid4().hex, round(settings.grace_s * 1000), epoch)
        swept = committer_of(settings, shared).sweep(orphan_s, settings.window_s)
        sweep_staging(settings.staging_folder, orphan_s)
        return pruned, swept
