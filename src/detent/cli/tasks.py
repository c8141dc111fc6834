"""`detent ls`, `show`, `pause`, `resume`, `reset`, `rm` and `wait`: the verbs of everything that runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import click

from detent.cli._common import (
    SCHEMES,
    URL_VARIABLE,
    confirm,
    force_option,
    json_option,
    listing,
    open_for_writing,
    url_option,
)
from detent.cli._output import line_text, print_fields, print_json, print_table, time_text
from detent.cli.kinds import KINDS, find_all
from detent.cli.kinds.ingest import settings_of
from detent.cli.kinds.kind import KnownTask
from detent.durations import milliseconds
from detent.errors import DetentError, Invalid, NotFound
from detent.paths import as_url
from detent.runtime.report import Report, State
from detent.runtime.target import Target

WAIT: Final = "30s"

_FILES: Final = (".py", ".toml")


# -- finding ----------------------------------------------------------------------------------------------------------


def _is_file(text: str) -> bool:
    """Whether a word names a file that declares tasks, and not a task of a store."""
    return Target(*text.partition(":")[::2]).place.endswith(_FILES)


def _is_store(text: str) -> bool:
    """Whether a word says where a store is."""
    if _is_file(text):
        return False
    return text.lower().startswith((*SCHEMES, ".", "/")) or os.path.isdir(text)


def _store_url(given: str | None) -> str:
    url = given or os.environ.get(URL_VARIABLE)
    if not url:
        raise click.UsageError(
            f"say which tasks: give a file that declares them, such as shop.py, or the URL of the store that they work "
            f"on, such as file:./data, as the first argument, with --url or in {URL_VARIABLE}"
        )
    return as_url(url)


@contextmanager
def _declared(target: str, url: str | None, *, force: bool) -> Iterator[list[KnownTask]]:
    """All that a file declares, or the one that is named."""
    given = {"url": None if url is None else as_url(url), "transport": None, "force": force}
    with ExitStack() as stack:
        known = []
        for noun, some in find_all([target]).items():
            kind = next(kind for kind in KINDS if kind.noun == noun)
            for one in some:
                try:
                    known.append(stack.enter_context(kind.declared(one.what, given)))
                except NotFound as error:
                    known.append(_NeverRan(noun, settings_of(one.what).name, error))
        yield known


class _NeverRan(KnownTask):
    """A task that a file declares, and whose store or database is not there yet."""

    def __init__(self, kind: str, name: str, error: NotFound) -> None:
        self.kind = kind
        self.name = name
        self._error = error

    def report(self) -> Report:
        """There is nothing to say."""
        raise self._error

    def refusal(self, verb: str) -> DetentError:
        """Why nothing can be done with it."""
        del verb
        return self._error


@contextmanager
def _stored(url: str, *, force: bool) -> Iterator[list[KnownTask]]:
    """All that a store knows."""
    with open_for_writing(url, force=force) as store, listing("consumer"):
        yield [one for kind in KINDS for one in kind.stored(store)]


@contextmanager
def _meant(words: Sequence[str], named: str | None, *, force: bool) -> Iterator[list[KnownTask]]:
    """The tasks that ``[URL] TASK`` means: those of a file, or one of a store by KIND/NAME, or by NAME alone."""
    if len(words) > 2 or (len(words) == 2 and not _is_store(words[0])):
        raise click.UsageError(f"give [URL] TASK, and not {' '.join(words)}")
    if len(words) == 2 and named is not None:
        raise click.UsageError(f"--url says which store, and so does {words[0]!r}: give one of them")
    task, url = words[-1], words[0] if len(words) == 2 else named
    if _is_file(task):
        with _declared(task, url, force=force) as found:
            yield found
        return
    if len(words) == 1 and _is_store(task):
        raise click.UsageError(f"which task of {task}? `detent ls {task}` shows them")
    with _stored(_store_url(url), force=force) as known:
        yield [_named(task, known)]


def _named(text: str, known: Sequence[KnownTask]) -> KnownTask:
    found = [one for one in known if text in {one.title, one.name}]
    if len(found) == 1:
        return found[0]
    if found:
        raise Invalid(f"{text!r} may be {' or '.join(one.title for one in found)}: say which one")
    there = ", ".join(one.title for one in known[:10]) or "none at all"
    raise NotFound(f"the store knows no task {text!r}: there is {there}. An ingest is known by its file alone")


def _takes_task(function: Callable[..., Any]) -> Any:
    """The arguments and options that all verbs have which are for one task."""
    for decorate in (json_option, force_option, url_option):
        function = decorate(function)
    return click.argument("words", metavar="[URL] TASK", nargs=-1, required=True)(function)


# -- looking ----------------------------------------------------------------------------------------------------------


@click.command("ls", short_help="List tasks: all that a store knows, or that a file declares.")
@click.argument("place", metavar="[URL|FILE]", required=False)
@url_option
@force_option
@json_option
def list_tasks(place: str | None, named: str | None, force: bool, as_json: bool) -> None:
    """List tasks: consumers, graphs, apps, workers, pipelines and ingests, with how they are.

    Give a store, and see all that it knows; or a file that declares tasks, and see these. LAG is how much waits: for
    messages that are not processed, or files that are not ingested. The state is unknown where nothing that can be
    asked knows it: Spark runs a pipeline without asking the store, and a queue sees a worker only while it handles a
    message. An ingest is known by its file alone.

    \b
    Examples:
      detent ls file:./data
      detent ls shop.py
      detent ls orders.toml --json
    """
    if place is not None and not _is_store(place):
        context = _declared(place, named, force=force)
    elif place is not None and named is not None:
        raise click.UsageError(f"--url says which store, and so does {place!r}: give one of them")
    else:
        context = _stored(_store_url(place or named), force=force)
    with context as known:
        reports = [_report_of(one) for one in known]
    if as_json:
        print_json([report.as_json() for report in reports])
        return
    rows = [[report.title, *_cells(report)] for report in reports]
    print_table(["task", "state", "done", "lag", "error"], [list(map(line_text, row)) for row in rows])


def _report_of(one: KnownTask) -> Report:
    """How a task is; one that never ran is in a list, too."""
    try:
        return one.report()
    except NotFound as error:
        return Report(one.kind, one.name, State.STOPPED, about={"never ran": str(error)})


def _cells(report: Report) -> list[str]:
    """What a row says of a task, or of a part of it, behind its name."""
    done = ", ".join(f"{count} {name}" for name, count in report.progress.items() if count)
    lag = "-" if report.lag is None else str(report.lag)
    return [str(report.state), done or "-", lag, report.error or "-"]


@click.command("show", short_help="Show a task and its parts.")
@_takes_task
def show_task(words: tuple[str, ...], named: str | None, force: bool, as_json: bool) -> None:
    """Show a task and its parts: the shards of a consumer, the processors of a graph, the streams of a pipeline.

    TASK is KIND/NAME of a task that a store knows, as `detent ls` shows it, or NAME alone; or FILE[:NAME] of one that
    a file declares. `detent consumer`, `graph`, `bus` and `ingest` have commands that show more of their kind.

    \b
    Examples:
      detent show file:./data consumer/words
      detent show words --url file:./data
      detent show shop.py:billing --json
    """
    with _meant(words, named, force=force) as known:
        reports = [one.report() for one in known]
    if as_json:
        print_json(reports[0].as_json() if len(reports) == 1 else [report.as_json() for report in reports])
        return
    for number, report in enumerate(reports):
        if number:
            click.echo()
        _print(report)


def _print(report: Report) -> None:
    state, done, lag, error = _cells(report)
    since = {} if report.since is None else {"since": time_text(round(report.since * 1000))}
    fields = {"task": report.title, "state": state, **since, "done": done, "lag": lag, **report.about, "error": error}
    print_fields({name: line_text(text) for name, text in fields.items()})
    if report.parts:
        click.echo()
        names = sorted(
            {name for part in report.parts for name in part.about if name not in {"left", "state", "status"}}
        )
        rows = [
            [part.name, *_cells(part)[:3], *(part.about.get(name, "-") for name in names), _cells(part)[3]]
            for part in report.parts
        ]
        heads = [report.parts[0].kind, "state", "done", "lag", *names, "error"]
        print_table(heads, [list(map(line_text, row)) for row in rows])


# -- steering ---------------------------------------------------------------------------------------------------------


@click.command("pause", short_help="Let a task rest, wherever it runs, until `resume`.")
@_takes_task
def pause_task(words: tuple[str, ...], named: str | None, force: bool, as_json: bool) -> None:
    """Let a task rest, wherever it runs, until `resume`.

    What is under way is finished. A consumer's shards and a graph's processors stay where they are; the queue of an
    app or a worker hands out no messages. A task that asks nothing of a store while it runs cannot be paused: the
    error says what to do.

    \b
    Examples:
      detent pause file:./data consumer/words
      detent pause shop.py:billing
    """
    _each(words, named, "pause", "rests", force=force, as_json=as_json)


@click.command("resume", short_help="Let a task go on that was paused.")
@_takes_task
def resume_task(words: tuple[str, ...], named: str | None, force: bool, as_json: bool) -> None:
    """Let a task go on that was paused.

    \b
    Example:
      detent resume file:./data consumer/words
    """
    _each(words, named, "resume", "goes on", force=force, as_json=as_json)


def _each(words: Sequence[str], named: str | None, verb: str, text: str, *, force: bool, as_json: bool) -> None:
    """Pause or resume all tasks that are meant; if it cannot be done with one, it is done with none."""
    with _meant(words, named, force=force) as known:
        for one in known:
            if verb in one.instead:
                raise one.refusal(verb)
        for one in known:
            one.pause() if verb == "pause" else one.resume()
    if as_json:
        print_json([{"task": one.title, "paused": verb == "pause"} for one in known])
        return
    for one in known:
        click.echo(f"{line_text(one.title)} {text}")


@click.command("reset", short_help="Have a task begin again from another place.")
@click.option("--to", default="earliest", show_default=True, metavar="WHERE", help="'earliest', 'latest' or a time.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_takes_task
def reset_task(words: tuple[str, ...], named: str | None, to: str, yes: bool, force: bool, as_json: bool) -> None:
    """Have a task begin again from another place: a consumer or a graph in all that it reads.

    It may run meanwhile. What it has made of messages stays: those that it reads again take effect again, and those
    that it skips never do. For one journal alone there are `detent consumer reset` and `detent graph reset`. An ingest
    forgets the files of a table that is gone.

    Asks before it does so; a script says --yes.

    \b
    Examples:
      detent reset file:./data consumer/words
      detent reset shop.py:graph --to 2026-01-31T12:00:00Z --yes
    """
    with _meant(words, named, force=force) as known:
        consequences = [one.reset_consequence(to) for one in known]
        for text in consequences:
            confirm(f"This {text}. Go on?", text, yes=yes)
        places = [one.reset(to) for one in known]
    if as_json:
        print_json([{"task": one.title, "to": place} for one, place in zip(known, places, strict=True)])
        return
    for one in known:
        click.echo(f"{line_text(one.title)} begins again at {to}")


@click.command("rm", short_help="Delete what is kept of a task.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_takes_task
def remove_task(words: tuple[str, ...], named: str | None, yes: bool, force: bool, as_json: bool) -> None:
    """Delete what is kept of a task: its progress and its state; of an app or a worker, its queue.

    What it has written stays. If it runs again under this name, it begins at the beginning. Refused while a process
    works on it.

    Asks before it does so; a script says --yes.

    \b
    Example:
      detent rm file:./data consumer/words --yes
    """
    with _meant(words, named, force=force) as known:
        consequences = [one.remove_consequence() for one in known]
        for text in consequences:
            confirm(f"This {text}. Go on?", text, yes=yes)
        for one in known:
            one.remove()
    if as_json:
        print_json([{"task": one.title, "deleted": True} for one in known])
        return
    for text in consequences:
        click.echo(text.replace("deletes", "deleted", 1).replace("forgets", "forgot", 1))


@click.command("wait", short_help="Wait until a task has done all that there is now.")
@click.option("--timeout", default=WAIT, show_default=True, metavar="DURATION", help="Give up after so long.")
@_takes_task
def wait_for_task(words: tuple[str, ...], named: str | None, timeout: str, force: bool, as_json: bool) -> None:
    """Wait until a task has done all that there is to do now.

    A consumer has processed what was committed when the command began; of a graph, an app, a worker and an ingest,
    nothing is left to do. The exit code is 1 if that takes longer than --timeout. For one message of one journal there
    is `detent consumer wait`.

    \b
    Example:
      detent wait file:./data consumer/words --timeout 2m
    """
    with _meant(words, named, force=force) as known:
        for one in known:
            one.wait(milliseconds(timeout))
        reports = [one.report() for one in known]
    if as_json:
        print_json([report.as_json() for report in reports])
        return
    for report in reports:
        paused = ", and is paused" if report.state is State.PAUSED else ""
        click.echo(f"{line_text(report.title)} has done what there was{paused}")


COMMANDS: Final = (list_tasks, show_task, pause_task, resume_task, reset_task, remove_task, wait_for_task)
