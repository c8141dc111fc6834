"""What all commands share: the store's URL, the options that many have, and how a store is opened.

Nothing of Detent is imported here before a command runs: `--help` should not wait for Arrow.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from detent.errors import Invalid, NotFound

if TYPE_CHECKING:
    from detent.journal import Journal, JournalInfo
    from detent.kv import Reader
    from detent.store import Store

URL_VARIABLE = "DETENT_URL"
SCHEMES = ("file:", "s3:", "gs:", "az:", "memory:")

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_store(*names: str) -> Callable[[Function], Function]:
    """The arguments of a command: the store's URL, which DETENT_URL may say instead, and then `names`.

    Whether the URL was left out shows in the number of arguments, so `read URL NAME` and `read NAME` both work.
    """
    keys = ("url", *(name.lower() for name in names))

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            given = [values.pop(key) for key in keys]
            return function(**dict(zip(keys, _place(given, names), strict=True)), **values)

        decorated: Any = command
        for name in reversed(names):
            decorated = click.argument(name.lower(), metavar=name.upper(), required=False)(decorated)
        decorated = click.argument("url", metavar="[URL]", required=False)(decorated)
        result: Function = decorated
        return result

    return decorate


def _place(given: list[str | None], names: tuple[str, ...]) -> list[str]:
    """Put the arguments where they belong, the URL from the environment in front if it was left out."""
    present = [value for value in given if value is not None]
    url = os.environ.get(URL_VARIABLE)
    if url and len(present) <= len(names) and not (present and present[0].startswith(SCHEMES)):
        present.insert(0, url)
    if not present:
        raise click.UsageError(
            f"give the URL of a store, such as file:./data, as the first argument, or set {URL_VARIABLE}"
        )
    if len(present) <= len(names):
        hint = (
            ""
            if present[0].startswith(SCHEMES)
            else f" (the first one is the store's URL, unless {URL_VARIABLE} says it)"
        )
        raise click.UsageError(f"the argument {names[len(present) - 1].upper()} is missing{hint}")
    return present


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")

force_option = click.option(
    "--force",
    is_flag=True,
    help="If another process owns the store and does not answer, end that process and take over.",
)

dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


def _check_url(url: str) -> None:
    if url.startswith("memory:"):
        raise Invalid("a memory: store lives and ends with its process, so there is nothing to see; use file:PATH")


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """A store that does not exist: say what to do."""
    try:
        yield
    except NotFound as error:
        hint = f"check the URL, or create it with: detent journal append {url} NAME --body TEXT"
        raise NotFound(f"{error}; {hint}") from error


@contextmanager
def open_for_reading(url: str) -> Iterator[Store]:
    """The store, read directly: no owner is needed, and none is disturbed."""
    from detent.store import open as open_store

    _check_url(url)
    with _explained(url):
        store = open_store(url, role="reader")
    with store:
        yield store


@contextmanager
def open_for_writing(url: str, *, force: bool, create: bool = False) -> Iterator[Store]:
    """The store through its owner, or owned by this process while the command runs."""
    from detent.store import open as open_store

    _check_url(url)
    if not create:
        with raw_reader(url):
            pass
    with open_store(url, force=force) as store:
        yield store


@contextmanager
def raw_reader(url: str) -> Iterator[Reader]:
    """The store's records themselves."""
    from detent.kv import open_reader

    _check_url(url)
    with _explained(url):
        reader = open_reader(url)
    try:
        yield reader
    finally:
        reader.close()


def infos(store: Store, prefix: str = "") -> list[JournalInfo]:
    """All journals; one that is deleted while we look is left out."""
    found = []
    for name in store.journals(prefix):
        with suppress(NotFound):
            found.append(store.reader.info(name))
    return found


def resolve(journal: Journal, info: JournalInfo, where: str, *, uncommitted: bool = False) -> int:
    """A number from what `--from` and `--before` take: a number, earliest, latest, or a time."""
    first, following = (
        (info.first_position, info.next_position) if uncommitted else (info.first_offset, info.next_offset)
    )
    if where == "earliest":
        return first
    if where == "latest":
        return following
    if where.isascii() and where.isdigit():
        return int(where)
    try:
        time = datetime.fromisoformat(where)
    except ValueError:
        raise click.UsageError(
            f"{where!r} is no place in a journal: write a number, 'earliest', 'latest' or a time such as "
            "2026-01-31T12:00:00Z"
        ) from None
    if uncommitted:
        raise click.UsageError("a time finds committed messages only; with --uncommitted give a position")
    return journal.offset_at(time.replace(tzinfo=UTC) if time.tzinfo is None else time)
