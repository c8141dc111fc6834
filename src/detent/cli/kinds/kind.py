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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import click

from detent.cli._common import URL_VARIABLE, check_kept, count_text
from detent.errors import DetentError, Invalid, Unavailable
from detent.paths import as_url
from detent.runtime.report import Report
from detent.runtime.target import Sought, find

if TYPE_CHECKING:
    from detent.cli._views import TaskView
    from detent.store import Store

LOOK_S: Final = 0.2
"""How often a command that runs looks whether it is to stop, and how far it is."""

Given = Mapping[str, Any]
"""The options of a command."""


class Found(NamedTuple):
    """Something that a file declares."""

    target: str
    """How another process finds it."""

    what: Any


class VerbOptions(NamedTuple):
    """What was said with a verb about one task."""

    to: str = "earliest"
    """Where all inputs are to be read from, or none of them is named: "earliest", "latest", an offset or a time."""

    inputs: Mapping[str, str] = {}
    """Places of single inputs, by journal; the others stay."""

    parts: Sequence[str] = ()
    """The parts that are meant; all of them, if none is named."""

    while_running: bool = False
    """Also while a process works on it."""


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

    inputs_have_offsets = False
    """Whether single inputs of it can be named, each with an offset."""

    parts_can_be_named = False
    """Whether a verb can be for some of its parts."""

    instead: ClassVar[Mapping[str, str]] = {}
    """What to do instead, for verbs that the kind does not have."""

    @property
    def title(self) -> str:
        """How commands name it."""
        return f"{self.kind}/{self.name}"

    def report(self) -> Report:
        """The task as it is now."""
        raise NotImplementedError

    def details(self) -> dict[str, Any]:
        """What only its kind has, for programs, beside its report."""
        return {}

    def print_more(self) -> None:
        """Print what only its kind has, for people, below its report."""

    def pause(self) -> None:
        """Let it rest, wherever it runs, until `resume`."""
        raise self.refusal("pause")

    def resume(self) -> None:
        """Let it go on."""
        raise self.refusal("resume")

    def reset_consequence(self, wanted: VerbOptions) -> str:
        """What a reset would do, as the end of the sentence "this ..."."""
        del wanted
        raise self.refusal("reset")

    def reset(self, wanted: VerbOptions) -> dict[str, Any]:
        """Have it work again from another place on. Where that is."""
        del wanted
        raise self.refusal("reset")

    def remove_consequence(self, wanted: VerbOptions) -> str:
        """What a removal would do, as the end of the sentence "this ..."."""
        del wanted
        raise self.refusal("rm")

    def remove(self, wanted: VerbOptions) -> dict[str, Any]:
        """Delete what is kept of it. What else there is to say of that, for programs."""
        del wanted
        raise self.refusal("rm")

    def left(self) -> int | None:
        """How much it still has to do, for `wait`."""
        return self.report().lag

    def wait(self, timeout_ms: int, inputs: Mapping[str, str]) -> dict[str, int]:
        """Return when it has done all that there is now, or all up to the offsets of some inputs; `Unavailable` after
        the time. How far it has written other journals, where that is known."""
        del inputs
        if "wait" in self.instead:
            raise self.refusal("wait")
        deadline = time.monotonic() + timeout_ms / 1000
        while left := self.left():
            if time.monotonic() > deadline:
                raise Unavailable(f"{self.title} still has {count_text(left, self.unit)} to do")
            time.sleep(LOOK_S)
        return {}

    def refusal(self, verb: str) -> DetentError:
        """Why the kind has no such verb, and what to do."""
        return Invalid(f"{self.title} cannot be told to {verb}: {self.instead[verb]}")

    def check(self, wanted: VerbOptions) -> None:
        """Refuse what was said with a verb and means nothing to this kind."""
        if wanted.inputs and not self.inputs_have_offsets:
            raise click.UsageError(f"--input names a journal of a consumer or a graph: this is {self.title}")
        if wanted.parts and not self.parts_can_be_named:
            raise click.UsageError(f"--only names processors of a graph: this is {self.title}")


class TaskKind:
    """One kind of tasks."""

    noun: str
    home: str
    """The package of the class that declares one."""

    article = "a"
    usual = "app"
    """The name of the one that is meant where several are declared and none is named."""

    example: str
    """How targets are written."""

    lines: str
    """What a file needs to have one."""

    is_named_by_file = False
    """Whether older commands of the kind take its file, and not the name that a store knows."""

    def classes(self) -> tuple[type, ...]:
        """The classes that declare one, which are imported for that."""
        raise NotImplementedError

    def sought(self) -> Sought[Any]:
        """What a file is to declare."""
        classes = self.classes()
        sought = classes if len(classes) > 1 else classes[0]
        noun = self.noun
        return Sought(sought, noun, f"{noun}s", self.article, self.example, self.lines, self.usual)

    def find(self, target: str) -> Any:
        """The one that ``package.module:name`` or ``path/to/file.py:name`` means. The name may be left out where there
        is one, or one that has the usual name. Modules are looked for in the current folder too."""
        return find(target, self.sought())

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

    def known(self, store: Store, name: str) -> KnownTask | None:
        """The one of this name that a store knows. Those that can be found without a list are: a token for one task
        may not list all."""
        return next((one for one in self.stored(store) if one.name == name), None)


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
