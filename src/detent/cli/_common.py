"""What all commands share: the store's URL, the options that many have, and how a store is opened.

Nothing of Detent is imported here before a command runs: `--help` should not wait for Arrow.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from detent.errors import Denied, Invalid, NotFound
from detent.paths import as_url

if TYPE_CHECKING:
    from detent.journal import Journal, JournalInfo
    from detent.kv import Reader
    from detent.store import Store

URL_VARIABLE = "DETENT_URL"
SERVER_SCHEMES = ("http:", "https:")
SCHEMES = ("file:", "s3:", "gs:", "az:", "memory:", *SERVER_SCHEMES)

MESSAGE_MAX = 1 << 62
"""No message has a higher number."""

Function = TypeVar("Function", bound=Callable[..., Any])
Option = Callable[[Any], Any]


def url_option(name: str = "named", help: str = "The store, instead of the first argument.") -> Option:
    """Where the store is, as an option."""
    return click.option("--url", "--store", name, metavar="URL", help=help, shell_complete=_places)


def _stores(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    from detent.cli._complete import complete_store

    return complete_store(context, parameter, begun)


def _names(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    from detent.cli._complete import complete_name

    return complete_name(context, parameter, begun)


def _places(context: click.Context, parameter: click.Parameter, begun: str) -> list[Any]:
    from detent.cli._complete import places

    del context, parameter
    return places(begun)


def with_options(options: Sequence[Option]) -> Callable[[Function], Function]:
    """A command with options that are listed elsewhere, in their order."""

    def decorate(function: Function) -> Function:
        decorated: Any = function
        for option in reversed(options):
            decorated = option(decorated)
        result: Function = decorated
        return result

    return decorate


def takes_store(*names: str, rest: str = "") -> Callable[[Function], Function]:
    """The arguments of a command: the store's URL, which --url or DETENT_URL may say instead, then `names`, then any
    number of `rest` (at least one, unless it is written in brackets), which the command gets as a tuple.

    Whether the URL was left out shows in the number of arguments, so `read URL NAME` and `read NAME` both work; where
    there is a `rest`, in what the first one looks like.
    """
    keys = ("url", *(name.lower() for name in names))
    last = rest.strip("[].").lower()
    needed = names if not rest or rest.startswith("[") else (*names, last)

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            given = [values.pop(key) for key in keys]
            more = values.pop(last) if rest else ()
            present = [value for value in (*given, *more) if value is not None]
            present = _with_store(present, len(names), rest, values.pop("named"))
            _check_whole(present, needed)
            if rest:
                values[last] = tuple(present[len(keys) :])
            return function(**dict(zip(keys, present[: len(keys)], strict=True)), **values)

        decorated: Any = command
        if rest:
            decorated = click.argument(last, metavar=rest, nargs=-1, shell_complete=_names)(decorated)
        for name in reversed(names):
            told = click.argument(name.lower(), metavar=name.upper(), required=False, shell_complete=_names)
            decorated = told(decorated)
        first = click.argument("url", metavar="[URL]", required=False, shell_complete=_stores)
        result: Function = url_option()(first(decorated))
        return result

    return decorate


def may_take_store(function: Function) -> Function:
    """The argument of a command that needs no store: its URL or None. What DETENT_URL says is the command's affair."""

    @functools.wraps(function)
    def command(url: str | None, named: str | None, **values: Any) -> Any:
        if url is not None and named is not None:
            raise _named_twice(url)
        given = named if url is None else url
        return function(url=None if given is None else as_url(given), **values)

    decorated: Any = click.argument("url", metavar="[URL]", required=False, shell_complete=_places)(command)
    result: Function = url_option()(decorated)
    return result


def _with_store(present: list[str], count: int, rest: str, named: str | None) -> list[str]:
    """The arguments with the store's URL in front, from --url or the environment if it was left out."""
    leads = _leads(present, count, rest)
    if named is not None and leads:
        raise _named_twice(present[0], " (a body that looks like one can come from stdin)" if "BODY" in rest else "")
    url = named if named is not None else os.environ.get(URL_VARIABLE)
    if url and not leads:
        present = [url, *present]
    if not present:
        raise click.UsageError(
            f"give the URL of a store, such as file:./data, as the first argument or with --url, or set {URL_VARIABLE}"
        )
    return [as_url(present[0]), *present[1:]]


def _leads(present: list[str], count: int, rest: str) -> bool:
    """Whether the first argument says where the store is, even if --url or DETENT_URL does. `count` names follow it,
    which may hold slashes, but begin with none and with no dot; what comes as a BODY may be any text."""
    if not present or _is_url(present[0]):
        return bool(present)
    if not rest:
        return len(present) > count
    return present[0].startswith((".", "/")) and (len(present) > 1 or "BODY" not in rest)


def _check_whole(present: list[str], needed: tuple[str, ...]) -> None:
    if len(present) <= len(needed):
        hint = f" (the first one is the store's URL, unless --url or {URL_VARIABLE} says it)"
        missing = needed[len(present) - 1].upper()
        raise click.UsageError(f"the argument {missing} is missing{'' if _is_url(present[0]) else hint}")


def _named_twice(argument: str, hint: str = "") -> click.UsageError:
    return click.UsageError(f"--url says which store, and so does {argument!r}: give one of them{hint}")


def _is_url(text: str) -> bool:
    return text.lower().startswith(SCHEMES)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")

force_option = click.option(
    "--force",
    is_flag=True,
    help="End an owner that does not answer, and take over. On an object store: take it from any owner.",
)

store_options = with_options([force_option, json_option])
"""Those of commands that go through the owner of a store."""


def _choose_columns(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    from detent.cli._output import table_columns

    if parameter.name == "wide":
        table_columns().is_wide = value
    elif value is not None:
        names = tuple(name.strip().lower() for name in value.split(","))
        if not all(names):
            raise click.BadParameter("name columns, with commas between them, such as name,failed", context, parameter)
        table_columns().named = names


table_options = with_options(
    [
        click.option("--wide", is_flag=True, expose_value=False, callback=_choose_columns, help="Show all columns."),
        click.option("--columns", metavar="NAME,...", expose_value=False, callback=_choose_columns,
                     help="Show these columns, in this order."),
    ]
)  # fmt: skip
"""Those of commands whose table leaves out columns where a terminal is narrow."""

dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")

timeout_option = click.option(
    "--timeout", default="30s", show_default=True, metavar="DURATION", help="Give up after so long."
)

prefix_option = click.option("--prefix", default="", help="Only those whose names begin so.")


def check_kept(url: str) -> None:
    """Refuse a store that is gone when the command ends."""
    if url.startswith("memory:"):
        raise Invalid("a memory: store lives and ends with its process, so there is nothing to see; use file:PATH")


def names_server(url: str) -> bool:
    """Whether a URL is meant to be a server's, be it right or wrong."""
    return url.lower().startswith(SERVER_SCHEMES)


def is_server(url: str) -> bool:
    """Whether a store is behind a server, and not here to be looked at."""
    from detent.remote import server_address

    return server_address(url) is not None


@contextmanager
def _explained(url: str) -> Iterator[None]:
    """A store that does not exist: say what to do."""
    try:
        yield
    except NotFound as error:
        path = click.get_current_context().command_path.split()
        about_queues = len(path) > 1 and path[1] in {"queue", "message"}
        example = f"queue create {url} NAME" if about_queues else f"journal append {url} NAME --body TEXT"
        hint = f"check the URL, or create it with: detent {example}"
        raise NotFound(f"{error}; {hint}") from error


@contextmanager
def open_for_reading(url: str) -> Iterator[Store]:
    """The store, read directly: no owner is needed, and none is disturbed."""
    from detent.store import open as open_store

    check_kept(url)
    with _explained(url):
        store = open_store(url, role="reader")
    with store:
        yield store


@contextmanager
def open_for_writing(url: str, *, force: bool, create: bool = False) -> Iterator[Store]:
    """The store through its owner, or owned by this process while the command runs."""
    from detent.store import open as open_store

    check_kept(url)
    if not create and not is_server(url):
        with raw_reader(url):
            pass
    with open_store(url, force=force) as store:
        yield store


@contextmanager
def raw_reader(url: str) -> Iterator[Reader]:
    """The store's records themselves."""
    from detent.kv import open_reader

    check_kept(url)
    if is_server(url):
        raise Invalid("a server does not show its store's records: do this where they are, with file:PATH")
    with _explained(url):
        reader = open_reader(url)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def listing(command: str, path: str = "") -> Iterator[None]:
    """Listing is a look at the whole store, which a token for some of what is in it is not for. `command` shows one,
    and a server lists at `path` what the token may see."""
    try:
        yield
    except Denied as error:
        if "whole store" not in str(error):
            raise
        asked = f"ask the server for what this token may see with GET {path}, " if path else ""
        raise Denied(
            f"{error}, which listing needs: look at one with `detent {command}`, {asked}or take a token that was made "
            "with --grant 'consume:*:*'"
        ) from error


def parse_headers(texts: Iterable[str]) -> dict[str, str]:
    """The headers of a message, from what `--header` takes."""
    return _parse_pairs(texts, "header", "message")


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """The labels of a queue, from what `--label` takes."""
    return _parse_pairs(texts, "label", "queue")


def _parse_pairs(texts: Iterable[str], what: str, owner: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"a {what} is NAME=VALUE, not {text!r}")
        if name in pairs:
            raise click.UsageError(f"the {what} {name!r} is given twice; a {owner} has each {what} once")
        pairs[name] = value
    return pairs


def parse_time(text: str, wrong: str = "is not a time: write") -> datetime:
    """A time, in UTC unless it says another zone; `wrong` begins to say what is wrong with a text that is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{text!r} {wrong} a time such as 2026-01-31T12:00:00Z") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def parse_message(text: str) -> int:
    """The number of a message."""
    if not (text.isascii() and text.isdigit() and int(text) <= MESSAGE_MAX):
        raise click.UsageError(f"{text!r} is not a message: messages have numbers from 0 on, as `publish` prints them")
    return int(text)


def count_text(count: int, noun: str = "message") -> str:
    """A number of things whose plural ends with an s."""
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def confirm(question: str, what: str, *, yes: bool) -> None:
    """Ask before something is lost, unless `yes`; a script cannot be asked, and has to say it."""
    if not yes and not sys.stdin.isatty():
        raise click.UsageError(f"this {what}; say --yes if that is meant")
    if not yes and not click.confirm(question, err=True):
        click.get_current_context().exit(1)


def confirm_name(what: str, name: str, given: str | None) -> None:
    """Have a name said before something is lost that cannot be had again: typed, or given as ``--yes NAME``."""
    if given is None:
        if not sys.stdin.isatty():
            raise click.UsageError(f"this {what}; say --yes {name} if that is meant")
        given = click.prompt(f"This {what}. Type {name} to go on", default="", show_default=False, err=True)
        if given != name:
            click.get_current_context().exit(1)
    if given != name:
        raise click.UsageError(f"--yes {given}: this {what}; say --yes {name} if that is meant")


def infos(store: Store, prefix: str = "") -> list[JournalInfo]:
    """All journals; one that is deleted while we look is left out."""
    found = []
    for name in store.journals(prefix):
        with suppress(NotFound):
            found.append(store.reader.info(name))
    return found


def parse_place(where: str) -> str | int | datetime:
    """A place in a journal: a number, "earliest", "latest", or a time."""
    if where in {"earliest", "latest"}:
        return where
    if where.isascii() and where.isdigit():
        return int(where)
    return parse_time(where, "is not a place in a journal: write a number, 'earliest', 'latest' or")


def parse_inputs(texts: Iterable[str]) -> dict[str, str]:
    """Places of single journals, from what ``--input JOURNAL=WHERE`` takes."""
    inputs = {}
    for text in texts:
        journal, equals, where = text.rpartition("=")
        if not equals or not journal:
            raise click.UsageError(f"an input is JOURNAL=WHERE, such as orders=100 or orders=latest, not {text!r}")
        parse_place(where)
        inputs[journal] = where
    return inputs


def resolve(journal: Journal, info: JournalInfo, where: str, *, uncommitted: bool = False) -> int:
    """The number that a place in a journal has."""
    place = parse_place(where)
    if isinstance(place, int):
        return place
    if isinstance(place, datetime):
        if uncommitted:
            raise click.UsageError("a time finds committed messages only; with --uncommitted give a position")
        return journal.offset_at(place)
    ends = (info.first_position, info.next_position) if uncommitted else (info.first_offset, info.next_offset)
    return ends[place == "latest"]
