"""`detent table`: look at Delta and Iceberg tables, compact their small files, delete what no reader needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from detent.cli._common import confirm, count_text, dry_run_option, json_option, yes_option
from detent.cli._help import CommandList
from detent.cli._output import line_text, print_answer, print_fields, print_json
from detent.errors import Invalid

if TYPE_CHECKING:
    from detent.tables.maintenance import Place

MIB = 1 << 20


@click.group(cls=CommandList, short_help="Look at, compact and vacuum tables.")
def table() -> None:
    """Look at Delta and Iceberg tables, compact them, and delete what no reader needs.

    A Delta table is given by its folder or URL. An Iceberg table is given by its name, and its catalog by --catalog:
    the URL of a REST catalog, or of a database. Writers and readers go on meanwhile.

    \b
    Example:
      detent table info s3://bucket/paid
      detent table compact s3://bucket/paid
      detent table vacuum lake.paid --catalog sqlite:////data/catalog.db
    """


def _takes_table(function: Callable[..., None]) -> Callable[..., None]:
    """The argument and the options that name a table."""
    for option in (
        click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="For the bucket; repeat it."),
        click.option("--catalog", metavar="URL", help="The catalog of an Iceberg table."),
        click.argument("name", metavar="TABLE"),
    ):
        function = option(function)
    return function


def _place(name: str, catalog: str | None, options: tuple[str, ...]) -> Place:
    from detent.tables.delta import DeltaPlace
    from detent.tables.iceberg_table import IcebergTable

    pairs = [option.partition("=") for option in options]
    if not all(sign and key for key, sign, _ in pairs):
        raise Invalid("an option of the bucket is such as --option aws_endpoint_url=http://127.0.0.1:9000")
    storage = {key: value for key, _, value in pairs}
    return DeltaPlace.at(name, storage) if catalog is None else IcebergTable(name, catalog, storage=storage)


@table.command()
@_takes_table
@json_option
def info(name: str, catalog: str | None, options: tuple[str, ...], as_json: bool) -> None:
    """Show a table: its version, files, rows and partitions.

    Many small files make a table slow: compact it.

    \b
    Example:
      detent table info s3://bucket/paid
    """
    from detent.tables import maintenance

    found = maintenance.info(_place(name, catalog, options))
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    print_fields(
        {
            "table": line_text(found.table),
            "kind": found.kind,
            "version": str(found.version),
            "rows": "-" if found.rows is None else str(found.rows),
            "files": str(found.files),
            "small files": f"{found.small_files} below {maintenance.SMALL_BYTES // MIB} MiB",
            "bytes": str(found.bytes),
            "partitions": " ".join(map(line_text, found.partition_by)) or "-",
        }
    )


@table.command()
@_takes_table
@click.option("--target", default=128, metavar="MIB", help="How large files become, about.", type=click.IntRange(1))
@json_option
def compact(name: str, catalog: str | None, options: tuple[str, ...], target: int, as_json: bool) -> None:
    """Make small files into larger ones.

    Rows stay as they are, and so do marks of batches. The small files stay for readers of older versions, until
    `detent table vacuum`.

    \b
    Example:
      detent table compact s3://bucket/paid --target 256
    """
    from detent.tables import maintenance

    replaced = maintenance.compact(_place(name, catalog, options), target * MIB)
    print_answer({"replaced": replaced}, f"{count_text(replaced, 'file')} replaced", as_json=as_json)


@table.command()
@_takes_table
@click.option("--days", default=7.0, help="Keep what is younger; at least a day.", type=click.FloatRange(1))
@yes_option
@dry_run_option
@json_option
def vacuum(
    name: str, catalog: str | None, options: tuple[str, ...], days: float, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Delete files that no version of the table needs which is kept.

    Versions from before that time cannot be read any more. Files of batches that are being written are younger: keep
    them for longer than a batch takes. A batch that waited for longer finds out at its commit that its files are gone,
    and is written again. Asks before it deletes.

    \b
    Example:
      detent table vacuum s3://bucket/paid --days 14 --dry-run
    """
    from detent.tables import maintenance

    place = _place(name, catalog, options)
    if not dry_run:
        question = f"Delete what {name} does not need and is older than {days:g} days?"
        confirm(question, "deletes files of old versions", yes=yes)
    found = maintenance.vacuum(place, days * 86400, dry_run=dry_run)
    what = "would be deleted" if dry_run else "deleted"
    print_answer({"deleted": found, "dry_run": dry_run}, f"{count_text(len(found), 'file')} {what}", as_json=as_json)
