"""Commands in errors, so that they work as they are printed: with the store's URL, and without a question.

The ledger and the queues do not know under which URL a caller reaches their store; the code here does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from detent.errors import DetentError, OtherInput

_COMMAND: Final = re.compile(r"`(detent (?:queue release|ledger reset|journal rm) [^`]+)`")
_ASKING: Final = "--yes"


def release_command(url: str, queue: str, reader: str) -> str:
    """Gives back what is assigned to a reader, and lets a new stream begin."""
    return shlex.join(("detent", "queue", "release", url, queue, reader, _ASKING))


def reset_command(url: str, ledger: str) -> str:
    """Lets another query use a ledger's name."""
    return shlex.join(("detent", "ledger", "reset", url, ledger, _ASKING))


def completed(text: str, url: str) -> str:
    """A text with all that its commands lack."""
    return _COMMAND.sub(lambda found: f"`{_complete(found[1], url)}`", text)


def _complete(command: str, url: str) -> str:
    words = shlex.split(command)
    given = [word for word in words[3:] if word != _ASKING]
    names = 2 if words[1] == "queue" else 1
    return shlex.join([*words[:3], url, *given[-names:], _ASKING])


@contextmanager
def completing(url: str) -> Iterator[None]:
    """Errors of a store leave with commands that work at this URL."""
    try:
        yield
    except DetentError as error:
        text = _with_ledger(completed(str(error), url), url)
        error.args = (text, *error.args[1:])
        if isinstance(error, OtherInput):
            error.message = text
        raise


def _with_ledger(text: str, url: str) -> str:
    """A new checkpoint is a new query. So where a reader is to be released, a ledger has to be reset as well; the
    stream that reads does not know its name."""
    if "`detent queue release" not in text or "`detent ledger reset" in text:
        return text
    listing = shlex.join(("detent", "ledger", "ls", url))
    return (
        f"{text}. If what it writes is in a ledger (`{listing}` shows their names), let the new stream use it: "
        f"`detent ledger reset {shlex.quote(url)} NAME {_ASKING}`"
    )
