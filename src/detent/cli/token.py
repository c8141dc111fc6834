"""`detent token`: who may use a server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click

from detent.cli._common import confirm, json_option, yes_option
from detent.cli._help import CommandList
from detent.cli._output import print_json, print_table

keys_option = click.option(
    "--keys", "given", metavar="FILE", help="The file of keys (./detent-keys.json, unless DETENT_KEYS_FILE names one)."
)


PRESETS: Final = {"metrics": ("read:metrics:*",), "viewer": ("read:*:*",)}
"""The grants for a purpose."""


@click.group(cls=CommandList)
def token() -> None:
    """Make, list and revoke the keys of a server.

    A key is an id and a secret, with grants that say what it is for. They are kept in a file that only you can read;
    `detent serve --keys FILE` uses it, and notices changes within a second.

    \b
    Example:
      detent token create billing --grant 'consume:queue:invoices*'
      detent token ls
      detent serve file:./data --keys detent-keys.json
    """


def _path(given: str | None) -> Path:
    from detent.server.keys import keys_file

    return keys_file(given) or Path("detent-keys.json")


@token.command()
@click.argument("name")
@click.option(
    "--grant",
    "grants",
    multiple=True,
    metavar="RIGHT:KIND:PATTERN",
    help="What it may do: read, publish, consume or admin, on queue, journal, ledger, consumer, metrics or *, by name "
    "with * and ?. Repeatable.",
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    type=click.Choice(list(PRESETS)),
    help="The grants for a purpose. 'metrics': to read /metrics, and nothing else. 'viewer': to see everything, "
    "and change nothing.",
)
@click.option("--expires", metavar="DURATION", help="Counts no more after this time, such as 90d.")
@keys_option
@json_option
def create(
    name: str,
    grants: tuple[str, ...],
    presets: tuple[str, ...],
    expires: str | None,
    given: str | None,
    as_json: bool,
) -> None:
    """Make a key and print it. The secret is shown here, and kept in the file of keys alone.

    \b
    Try it:
      detent token create billing --grant 'consume:queue:invoices*'
      detent token create shop --grant publish:queue:orders --expires 90d
      detent token create operator --grant 'admin:*:*' --expires 30d
      detent token create prometheus --preset metrics
      detent token create wallboard --preset viewer
    """
    from datetime import timedelta

    from detent.durations import milliseconds
    from detent.server.keys import add_key, new_key

    grants = (*grants, *(grant for preset in presets for grant in PRESETS[preset]))
    if not grants:
        raise click.UsageError("say what it is for, with --grant or --preset; for example --grant publish:queue:orders")
    now = datetime.now(UTC).replace(microsecond=0)
    until = None if expires is None else now + timedelta(milliseconds=milliseconds(expires))
    key = new_key(name, grants, now=now, expires=until)
    path = _path(given)
    add_key(path, key)
    if as_json:
        print_json({"id": key.id, "secret": key.secret, "token": f"{key.id}.{key.secret}", "file": str(path)})
        return
    click.echo(f"kept in {path}", err=True)
    click.echo(f"DETENT_TOKEN={key.id}.{key.secret}")
    click.echo(f"AWS_ACCESS_KEY_ID={key.id}")
    click.echo(f"AWS_SECRET_ACCESS_KEY={key.secret}")


@token.command()
@keys_option
@json_option
def ls(given: str | None, as_json: bool) -> None:
    """List the keys, without their secrets.

    \b
    Example:
      detent token ls
    """
    from detent.server.keys import read_keys

    now = datetime.now(UTC)
    rows: list[dict[str, Any]] = [
        {
            "name": key.name,
            "id": key.id,
            "grants": list(key.grants),
            "created": key.created.isoformat(),
            "expires": None if key.expires is None else key.expires.isoformat(),
            "expired": key.has_expired(now),
        }
        for key in read_keys(_path(given), managing=True)
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["name", "id", "grants", "expires"],
        [
            [
                row["name"],
                row["id"],
                " ".join(row["grants"]),
                "expired" if row["expired"] else row["expires"] or "never",
            ]
            for row in rows
        ],
    )


@token.command()
@click.argument("name")
@yes_option
@keys_option
def revoke(name: str, yes: bool, given: str | None) -> None:
    """Take a key away, by its name or id.

    Servers refuse it within a second.

    \b
    Example:
      detent token revoke billing
    """
    from detent.server.keys import remove_key

    confirm(f"Revoke the key {name}? Clients that use it are refused from then on.", "revokes a key", yes=yes)
    key = remove_key(_path(given), name)
    click.echo(f"revoked {key.name} ({key.id})", err=True)
