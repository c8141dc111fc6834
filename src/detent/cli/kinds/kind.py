"""What a kind of tasks is: how one is found in a file, run, looked at, and steered.

There is one `TaskKind` for each kind. A `ReadyTask` is declared by a file, and about to run in this process; a
`KnownTask` can be looked at and steered, wherever it runs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from detent.cli._common import URL_VARIABLE, check_kept, count_text
from detent.errors import DetentError, Invalid, Unavailable
from detent.paths import as_url
from detent.runtime.report import Report

if TYPE_CHECKING:
    from detent.cli._views import TaskView
    from detent.runtime.target import Sought
    from detent.store import Store

LOOK_S: Final = 0.2
"""How often a command that runs looks whether it is to stop, and how far it is."""

Given = Mapping[str, Any]
"""The options of a command."""

Function = TypeVar("Function", bound=Callable[..., Any])


class Found(NamedTuple):
    """Something that a file declares."""

    target: str
    """How another process finds it."""

    what: Any


class HandlersLate(Exception):
    """Functions of the user's did not end in time: the process is to end without waiting for their threads."""


class ReadyTask:
    """A task that is about to run in this process."""

    kind: str
    name: str
    urls: Sequence[str] = ()
    """The stores that it works on, which are to be open until all tasks of the process have ended."""

    hangs_on_threads = False
    """Whether Python would wait at its end for threads in which functions of the user's hang: a second Ctrl-C ends the
    process without it."""

    sets_handlers = False
    """Whether it has SIGTERM and Ctrl-C call `stop` by itself, in the main thread: Spark sets handlers, too, when it
    starts."""

    tells_of_log = False
    """Whether warnings of its parts in their logs are told as notices."""

    def __init__(self) -> None:
        self.stopping = threading.Event()

    @property
    def title(self) -> str:
        """How commands name it."""
        return f"{self.kind}/{self.name}"

    def stop(self) -> None:
        """End after what is under way. For any thread, also before it runs."""
        self.stopping.set()

    def run(self, view: TaskView) -> int:
        """Work until `stop`; the exit code."""
        raise NotImplementedError

    def run_once(self, view: TaskView) -> int:
        """Do what there is to do, then print a summary; the exit code."""
        raise NotImplementedError

    def is_told(self, logged: logging.LogRecord) -> bool:
        """Whether what its parts say in a log is told as a notice of its own, too."""
        del logged
        return False

    def summarize(self) -> None:
        """Print for people how it ended, once nothing else is shown any more."""

    def check(self, *, as_json: bool) -> None:
        """Only print what is declared. What is wrong with it was raised when it was made."""
        raise NotImplementedError


class KnownTask:
    """A task that is there, whether or not it runs, here or elsewhere. Only the verbs that its kind has are
    overridden: the others say why there is no such thing, and what to do."""

    kind: str
    name: str
    unit = "message"
    """What waits for it."""

    instead: ClassVar[Mapping[str, str]] = {}
    """What to do instead, for verbs that the kind does not have."""

    @property
    def title(self) -> str:
        """How commands name it."""
        return f"{self.kind}/{self.name}"

    def report(self) -> Report:
        """The task as it is now."""
        raise NotImplementedError

    def pause(self) -> None:
        """Let it rest, wherever it runs, until `resume`."""
        raise self.refusal("pause")

    def resume(self) -> None:
        """Let it go on."""
        raise self.refusal("resume")

    def reset_consequence(self, to: str) -> str:
        """What a reset would do, as the end of the sentence "this ..."."""
        del to
        raise self.refusal("reset")

    def reset(self, to: str) -> dict[str, Any]:
        """Have it work again from another place on: "earliest", "latest" or a time. Where that is."""
        del to
        raise self.refusal("reset")

    def remove_consequence(self) -> str:
        """What a removal would do, as the end of the sentence "this ..."."""
        raise self.refusal("rm")

    def remove(self) -> None:
        """Delete what is kept of it."""
        raise self.refusal("rm")

    def left(self) -> int | None:
        """How much it still has to do, for `wait`."""
        return self.report().lag

    def wait(self, timeout_ms: int) -> None:
        """Return when it has done all that there is now; `Unavailable` after the time."""
        if "wait" in self.instead:
            raise self.refusal("wait")
        deadline = time.monotonic() + timeout_ms / 1000
        while left := self.left():
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.title} still has {count_text(left, self.unit)} to do")
            time.sleep(LOOK_S)

    def refusal(self, verb: str) -> DetentError:
        """Why the kind has no such verb, and what to do."""
        return Invalid(f"{self.title} cannot be told to {verb}: {self.instead[verb]}")


class TaskKind:
    """One kind of tasks."""

    noun: str
    home: str
    """The package of the class that declares one."""

    def sought(self) -> Sought[Any]:
        """What a file is to declare."""
        raise NotImplementedError

    @property
    def is_imported(self) -> bool:
        """Whether a file has imported what declares one: else there is nothing of this kind to be found in it."""
        return self.home in sys.modules

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """What a file declares, to be run."""
        raise NotImplementedError

    def declared(self, found: Any, given: Given) -> AbstractContextManager[KnownTask]:
        """What a file declares, to be looked at and steered."""
        raise NotImplementedError

    def stored(self, store: Store) -> Iterator[KnownTask]:
        """All tasks of this kind that a store knows."""
        del store
        return iter(())


def with_options(options: Sequence[Callable[[Any], Any]]) -> Callable[[Function], Function]:
    """A command with options that are listed elsewhere, in their order."""

    def decorate(function: Function) -> Function:
        decorated: Any = function
        for option in reversed(options):
            decorated = option(decorated)
        result: Function = decorated
        return result

    return decorate


def store_of(noun: str, cls: str, name: str, own: str | None, given: str | None) -> str:
    """Where a task's store is: the first of those that say it."""
    url = given or own or os.environ.get(URL_VARIABLE)
    if not url:
        raise Invalid(
            f"the {noun} {name!r} has no store: give --store URL, write {cls}({name!r}, store='file:./data', ...), or "
            f"set {URL_VARIABLE}"
        )
    check_kept(url)
    return as_url(url)
