"""What a shell offers when the person presses Tab: stores, and the names of what is in one, where a look is cheap.

A store of a folder is read directly, without an owner; a server is asked, for a second at most. An object store is not
asked: to open one takes seconds. Whatever goes wrong there, there is nothing to offer, and the line is not disturbed.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

NAMES_MAX: Final = 200
"""Names that are offered: a person does not read more."""

TIMEOUT: Final = "1s"
"""How long a server may take, while the person waits for the line."""

_FILES: Final = ("*.py", "*.toml")
_STORE_FILES: Final = ("data.mdb",)
"""What the folder of a store has in it."""


def complete_store(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Stores: folders that are one, and what else could lead to one. Or the name that follows, where DETENT_URL or
    --url says which store."""
    from detent.cli._common import URL_VARIABLE

    del parameter
    named = context.params.get("named") or os.environ.get(URL_VARIABLE)
    follows = [one for one in context.command.params if isinstance(one, click.Argument) and one.name != "url"]
    names = _names_of(named, _kind_of(context, follows[0].name), begun) if named and follows else []
    return [*names, *places(begun)]


def complete_name(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Names of the kind that an argument is about, in the store that is named before."""
    from detent.cli._common import URL_VARIABLE

    params = context.params
    url = params.get("named") or params.get("url") or os.environ.get(URL_VARIABLE)
    return _names_of(url, _kind_of(context, parameter.name), begun) if url else []


def complete_task(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Tasks of a store, and files that declare some."""
    from detent.cli._common import URL_VARIABLE

    del parameter
    words = context.params.get("words") or ()
    url = context.params.get("named") or (words[0] if words else os.environ.get(URL_VARIABLE))
    tasks = _names_of(url, "task", begun) if url else []
    files = [] if words else [path for form in _FILES for path in sorted(glob.glob(f"{glob.escape(begun)}{form}"))]
    return [*tasks, *files, *([] if words else places(begun))]


def places(begun: str) -> list[str]:
    """Folders below, as a store's URL is written: those of stores whole, others with a slash to go on from."""
    scheme, path = ("file:", begun.removeprefix("file:")) if begun.startswith("file:") else ("", begun)
    found = []
    for each in sorted(glob.glob(f"{glob.escape(path)}*/"))[:NAMES_MAX]:
        is_store = any((Path(each) / name).exists() for name in _STORE_FILES)
        found.append(f"{scheme}{each.rstrip('/') if is_store else each}")
    return [*found, "file:"] if begun and "file:".startswith(begun) else found


def _kind_of(context: click.Context, argument: str | None) -> str:
    """What an argument names: its own name says so, or the noun of the command."""
    if argument in {"queue", "journal", "consumer", "ledger"}:
        return argument
    noun = context.parent.info_name if context.parent is not None else ""
    return noun if argument in {"name", "queue"} and noun in _KINDS else ""


def _names_of(url: str, kind: str, begun: str) -> list[str]:
    from detent.errors import DetentError
    from detent.paths import as_url

    if not kind:
        return []
    try:
        return list(islice(_KINDS[kind](as_url(url), begun), NAMES_MAX))
    except (DetentError, OSError):  # nothing is said on a line that is being typed
        return []


def _queues(url: str, begun: str) -> Iterable[str]:
    if _is_folder(url):
        from detent.codec import queue as records
        from detent.kv import open_reader

        reader = open_reader(url)
        try:
            with reader.view() as view:
                prefix = records.CONFIG.raw
                found = view.scan(*records.CONFIG.range(), limit=_SCANNED_MAX)
                names = (bytes(key).removeprefix(prefix).decode() for key, _ in found)
                return [name for name in names if name.startswith(begun)]
        finally:
            reader.close()
    from detent.queue.surveying import SurveyQueues

    op = SurveyQueues(begun, "name", NAMES_MAX)
    return _asked(url, lambda store: [one.name for one in store.commit([op])[0].queues])


_SCANNED_MAX: Final = 10_000
"""Records of queues that are looked at for names: a few milliseconds."""


def _journals(url: str, begun: str) -> Iterable[str]:
    if _is_folder(url):
        import detent

        with detent.open(url, role="reader") as store:
            return store.journals(begun)
    return _asked(url, lambda store: store.journals(begun))


def _consumers(url: str, begun: str) -> Iterable[str]:
    return _asked(url, lambda store: [one.name for one in store.consumers(begun)])


def _ledgers(url: str, begun: str) -> Iterable[str]:
    return _asked(url, lambda store: [one.name for one in store.ledgers(begun)])


def _tasks(url: str, begun: str) -> Iterable[str]:
    from detent.cli.kinds import APP, INGEST, KINDS, WORKER

    kinds = [kind for kind in KINDS if kind not in (APP, WORKER, INGEST)]
    titles = _asked(url, lambda store: [one.title for kind in kinds for one in kind.stored(store)])
    return [title for title in titles if title.startswith(begun)]


def _asked(url: str, ask: Callable[[Any], Sequence[str]]) -> Sequence[str]:
    """What the store's owner answers; nothing of a store without one."""
    import detent
    from detent.remote import server_address

    if not _is_folder(url) and server_address(url) is None:
        return []
    with detent.open(url, role="client", timeout=TIMEOUT) as store:
        return ask(store)


def _is_folder(url: str) -> bool:
    return url.startswith("file:")


_KINDS: Final[dict[str, Callable[[str, str], Iterable[str]]]] = {
    "queue": _queues, "journal": _journals, "consumer": _consumers, "ledger": _ledgers, "task": _tasks,
}  # fmt: skip
