"""`detent ls`, `show`, `pause`, `resume`, `reset`, `rm` and `wait`: the verbs of everything that runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import click

from detent.cli._common import (
    SCHEMES,
    URL_VARIABLE,
    confirm,
    confirm_name,
    force_option,
    json_option,
    listing,
    open_for_writing,
    parse_inputs,
    parse_place,
    prefix_option,
    store_options,
    table_options,
    timeout_option,
    url_option,
    with_options,
    yes_option,
)
from detent.cli._complete import complete_task
from detent.cli._output import line_text, note, print_fields, print_json, print_table, time_text
from detent.cli.kinds import INGEST, KINDS, find_all
from detent.cli.kinds.ingest import ingests_of, is_database, settings_of
from detent.cli.kinds.kind import KnownTask, TaskKind, VerbOptions
from detent.durations import milliseconds
from detent.errors import DetentError, Invalid, NotFound
from detent.paths import as_url
from detent.runtime.report import Report, State
from detent.runtime.target import Target

STATE_VARIABLE: Final = "DETENT_INGEST_STATE"
"""Says where ingests keep their state whose files do not."""

_FILES: Final = (".py", ".toml")
_NOUNS: Final = tuple(kind.noun for kind in KINDS)


# -- finding ----------------------------------------------------------------------------------------------------------


def _is_file(text: str) -> bool:
    """Whether a word names a file that declares tasks, and not a task of a store."""
    return Target(*text.partition(":")[::2]).place.endswith(_FILES)


def _is_store(text: str) -> bool:
    """Whether a word says where a store is, or a database of ingests."""
    if _is_file(text):
        return False
    return is_database(text) or text.lower().startswith((*SCHEMES, ".", "/")) or os.path.isdir(text)


@contextmanager
def _declared(target: str, url: str | None, *, force: bool, of_kind: TaskKind | None) -> Iterator[list[KnownTask]]:
    """All that a file declares, or the one that is named."""
    given = {"url": None if url is None else as_url(url), "transport": None, "force": force}
    with ExitStack() as stack:
        known: list[KnownTask] = []
        for noun, some in find_all([target], of_kind).items():
            kind = KINDS[_NOUNS.index(noun)]
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

    def check(self, wanted: VerbOptions) -> None:
        """Nothing can be done with it."""
        del wanted
        raise self._error


class _KnownTasks:
    """Where tasks are known: a store, a database of ingests, or both, as the environment says."""

    def __init__(self, given: str | None, *, force: bool) -> None:
        url = given or os.environ.get(URL_VARIABLE)
        self._database = given if given and is_database(given) else None if given else os.environ.get(STATE_VARIABLE)
        self._url = None if not url or is_database(url) else as_url(url)
        self._force = force
        if self._url is None and self._database is None:
            raise click.UsageError(
                f"say which tasks: give a file that declares them, such as shop.py, or the URL of the store that they "
                f"work on, such as file:./data, as the first argument, with --url or in {URL_VARIABLE}"
            )

    @contextmanager
    def all(self, of_kind: TaskKind | None = None) -> Iterator[list[KnownTask]]:
        """All tasks that are known here."""
        known: list[KnownTask] = []
        with ExitStack() as stack:
            if self._url is not None and of_kind is not INGEST:
                store = stack.enter_context(open_for_writing(self._url, force=self._force))
                stack.enter_context(listing("show KIND/NAME"))
                known += [one for kind in ([of_kind] if of_kind else KINDS) for one in kind.stored(store)]
            if self._database is not None and of_kind in (None, INGEST):
                known += stack.enter_context(ingests_of(self._database))
            yield known

    @contextmanager
    def one(self, text: str) -> Iterator[KnownTask]:
        """The task that KIND/NAME means, or NAME alone."""
        noun, _, name = text.partition("/")
        with ExitStack() as stack:
            if noun in _NOUNS and noun != INGEST.noun and self._url is not None:
                store = stack.enter_context(open_for_writing(self._url, force=self._force))
                found = KINDS[_NOUNS.index(noun)].known(store, name)
                if found is not None:
                    yield found
                    return
            yield _named(text, stack.enter_context(self.all()))


def _named(text: str, known: Sequence[KnownTask]) -> KnownTask:
    found = [one for one in known if text in {one.title, one.name}]
    if len(found) == 1:
        return found[0]
    if found:
        raise Invalid(f"{text!r} may be {' or '.join(one.title for one in found)}: say which one")
    there = ", ".join(one.title for one in known[:10]) or "none at all"
    raise NotFound(f"the store knows no task {text!r}: there is {there}")


@contextmanager
def _meant(
    words: Sequence[str], named: str | None, *, force: bool, of_kind: TaskKind | None = None
) -> Iterator[list[KnownTask]]:
    """The tasks that ``[URL] TASK`` means: those of a file, or one of a store by KIND/NAME, or by NAME alone. With
    `of_kind`, the file is one of its kind, or NAME is that of one."""
    if len(words) > 2 or (len(words) == 2 and not _is_store(words[0])):
        raise click.UsageError(f"give [URL] TASK, and not {' '.join(words)}")
    if len(words) == 2 and named is not None:
        raise click.UsageError(f"--url says which store, and so does {words[0]!r}: give one of them")
    task, url = words[-1], words[0] if len(words) == 2 else named
    if _is_file(task) or (of_kind is not None and of_kind.is_named_by_file):
        with _declared(task, url, force=force, of_kind=of_kind) as found:
            yield found
        return
    if len(words) == 1 and _is_store(task):
        raise click.UsageError(f"which task of {task}? `detent ls {task}` shows them")
    with _KnownTasks(url, force=force).one(task if of_kind is None else f"{of_kind.noun}/{task}") as known:
        yield [known]


_takes_task = with_options(
    [
        click.argument("words", metavar="[URL] TASK", nargs=-1, required=True, shell_complete=complete_task),
        url_option(),
        force_option,
        json_option,
    ]
)
"""The arguments and options that all verbs have which are for one task."""

_input_option = click.option(
    "--input", "inputs", metavar="JOURNAL=WHERE", multiple=True, help="One journal alone; repeat it for more."
)
_only_option = click.option(
    "--only", "parts", metavar="NAME", multiple=True, help="Of a graph, this processor only; repeat it for more."
)


# -- looking ----------------------------------------------------------------------------------------------------------


@click.command("ls", short_help="List tasks: all that a store knows, or that a file declares.")
@click.argument("place", metavar="[URL|FILE]", required=False)
@click.option("--kind", type=click.Choice(_NOUNS), help="Only tasks of this kind.")
@prefix_option
@url_option()
@table_options
@store_options
def list_tasks(place: str | None, kind: str | None, prefix: str, named: str | None, force: bool, as_json: bool) -> None:
    """List tasks: consumers, graphs, apps, workers, pipelines and ingests, with how they are.

    Give a store, and see all that it knows; or a file that declares tasks, and see these. Ingests are known by their
    database: give its URL, as in the file of one (`state`), or set DETENT_INGEST_STATE.

    LAG is how much waits: messages that are not processed, or files that are not ingested. The state is unknown where
    nothing that can be asked knows it: a queue sees a worker only while it handles a message.

    \b
    Examples:
      detent ls file:./data
      detent ls file:./data --kind consumer --prefix shop
      detent ls shop.py
      detent ls sqlite:///orders.db --json
    """
    of_kind = None if kind is None else KINDS[_NOUNS.index(kind)]
    context: AbstractContextManager[list[KnownTask]]
    if place is not None and not _is_store(place):
        context = _declared(place, named, force=force, of_kind=of_kind)
    elif place is not None and named is not None:
        raise click.UsageError(f"--url says which store, and so does {place!r}: give one of them")
    else:
        context = _KnownTasks(place or named, force=force).all(of_kind)
    with context as known:
        reports = [_report_of(one) for one in known if one.name.startswith(prefix)]
    if as_json:
        print_json([report.as_json() for report in reports])
        return
    rows = [[report.title, *_cells(report)] for report in reports]
    cells = [list(map(line_text, row)) for row in rows]
    print_table(["task", "state", "done", "lag", "error"], cells, spare=["done"])


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
def show_task(
    words: tuple[str, ...], named: str | None, force: bool, as_json: bool, of_kind: TaskKind | None = None
) -> None:
    """Show a task and its parts: the shards of a consumer, the processors of a graph, the streams of a pipeline.

    TASK is KIND/NAME of a task that a store knows, as `detent ls` shows it, or NAME alone; or FILE[:NAME] of one that
    a file declares, which for a graph shows more: what became of its messages, and how long they took.

    PROCESSED is the offset after the last message whose effects are all visible, LAG how many messages come after it.
    OWED are messages that another store may not have yet.

    \b
    Examples:
      detent show file:./data consumer/words
      detent show words --url file:./data
      detent show shop.py:billing --json
    """
    documents = []
    with _meant(words, named, force=force, of_kind=of_kind) as known:
        for number, one in enumerate(known):
            report = one.report()
            if as_json:
                details = one.details()
                documents.append({**report.as_json(), **({"details": details} if details else {})})
                continue
            if number:
                click.echo()
            _print(report)
            one.print_more()
    if as_json:
        print_json(documents[0] if len(documents) == 1 else documents)


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
def pause_task(words: tuple[str, ...], of_kind: TaskKind | None = None, **given: Any) -> None:
    """Let a task rest, wherever it runs, until `resume`.

    What is under way is finished. A consumer's shards and a graph's processors stay where they are; the queue of an
    app or a worker hands out no messages. A task that asks nothing of a store while it runs cannot be paused: the
    error says what to do.

    \b
    Examples:
      detent pause file:./data consumer/words
      detent pause shop.py:billing
    """
    _each(words, "pause", "rests", of_kind, **given)


@click.command("resume", short_help="Let a task go on that was paused.")
@_takes_task
def resume_task(words: tuple[str, ...], of_kind: TaskKind | None = None, **given: Any) -> None:
    """Let a task go on that was paused.

    \b
    Example:
      detent resume file:./data consumer/words
    """
    _each(words, "resume", "goes on", of_kind, **given)


def _each(
    words: Sequence[str], verb: str, text: str, of_kind: TaskKind | None, named: str | None, force: bool, as_json: bool
) -> None:
    """Pause or resume all tasks that are meant; if it cannot be done with one, it is done with none."""
    with _meant(words, named, force=force, of_kind=of_kind) as known:
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
@click.option("--to", metavar="WHERE", help="All journals: 'earliest' [default], 'latest', an offset, or a time.")
@_input_option
@_only_option
@yes_option
@_takes_task
def reset_task(
    words: tuple[str, ...], to: str | None, inputs: tuple[str, ...], parts: tuple[str, ...], **given: Any
) -> None:
    """Have a task begin again from another place: a consumer or a graph in what it reads.

    It may run meanwhile. What it has made of messages stays: those that it reads again take effect again, and those
    that it skips never do. Of a graph, what a processor does from there on are new deliveries, under new keys. To start
    over, with no state, `rm` it. An ingest forgets the files of a table that is gone.

    Asks before it does so; a script says --yes.

    \b
    Examples:
      detent reset file:./data consumer/words
      detent reset file:./data words --input lines=100
      detent reset shop.py:graph --to 2026-01-31T12:00:00Z --yes
      detent reset shop.py --only total --input orders=100 --input prices=7
    """
    if to is not None and inputs:
        raise click.UsageError("say where to go on, once: --to for all journals, or --input for some")
    reset(words, VerbOptions(to or "earliest", parse_inputs(inputs), parts), **given)


def reset(
    words: Sequence[str],
    wanted: VerbOptions,
    *,
    named: str | None,
    yes: bool,
    force: bool,
    as_json: bool,
    of_kind: TaskKind | None = None,
    typed: str | None = None,
) -> None:
    """Say what would become of the messages between, ask, and move the tasks. What cannot be had again is asked for by
    its name, which may have been `typed` already."""
    parse_place(wanted.to)
    with _meant(words, named, force=force, of_kind=of_kind) as known:
        for one in known:
            one.check(wanted)
        consequences = [one.reset_consequence(wanted) for one in known]
        for one, text in zip(known, consequences, strict=True):
            if one.kind == INGEST.noun:
                confirm_name(text, one.name, one.name if yes else typed)
            else:
                confirm(f"This {text}. Go on?", text, yes=yes)
        places = [one.reset(wanted) for one in known]
    if as_json:
        print_json([{"task": one.title, "to": place} for one, place in zip(known, places, strict=True)])
        return
    for one, text in zip(known, consequences, strict=True):
        click.echo(_past(text))
        if one.kind == INGEST.noun:
            note("`detent run FILE --backfill PREFIX` brings them in again")


def _past(text: str) -> str:
    """What was done, from what would be."""
    for verb, done in (("deletes", "deleted"), ("forgets", "forgot"), ("resets", "reset"), ("moves", "moved")):
        if text.startswith(verb):
            return done + text.removeprefix(verb)
    return text


@click.command("rm", short_help="Delete what is kept of a task.")
@_only_option
@click.option("--running", is_flag=True, help="Also while a process works on a consumer, which then ends.")
@yes_option
@_takes_task
def remove_task(
    words: tuple[str, ...],
    parts: tuple[str, ...],
    running: bool,
    named: str | None,
    yes: bool,
    force: bool,
    as_json: bool,
    of_kind: TaskKind | None = None,
) -> None:
    """Delete what is kept of a task: its progress and its state; of an app or a worker, its queue.

    What it has written stays. If it runs again under this name, it begins at the beginning. The state of a consumer
    goes as far as it is in the store, with its recovery logs (the journals NAME/recovery/SHARD); rows of a database are
    not touched. Refused while a process works on it.

    Asks before it does so; a script says --yes.

    \b
    Examples:
      detent rm file:./data consumer/words --yes
      detent rm shop.py --only total
    """
    wanted = VerbOptions(parts=parts, while_running=running)
    with _meant(words, named, force=force, of_kind=of_kind) as known:
        for one in known:
            one.check(wanted)
        consequences = [one.remove_consequence(wanted) for one in known]
        for text in consequences:
            confirm(f"This {text}. Go on?", text, yes=yes)
        removed = [one.remove(wanted) for one in known]
    if as_json:
        print_json([{"task": one.title, "deleted": True, **more} for one, more in zip(known, removed, strict=True)])
        return
    for text in consequences:
        click.echo(_past(text))


@click.command("wait", short_help="Wait until a task has done all that there is now.")
@_input_option
@timeout_option
@_takes_task
def wait_for_task(
    words: tuple[str, ...],
    inputs: tuple[str, ...],
    timeout: str,
    named: str | None,
    force: bool,
    as_json: bool,
    of_kind: TaskKind | None = None,
) -> None:
    """Wait until a task has done all that there is to do now.

    A consumer has processed what was committed when the command began, or with --input the message at an offset of a
    journal. It prints how far the consumer has written other journals: a client that reads these up to there has seen
    all that the message led to, and so reads its own writes. Of a graph, an app, a worker and an ingest, nothing is
    left to do. The exit code is 1 if that takes longer than --timeout.

    \b
    Examples:
      detent wait file:./data consumer/words --timeout 2m
      detent wait file:./data words --input lines=17
    """
    wanted = VerbOptions(inputs=parse_inputs(inputs))
    with _meant(words, named, force=force, of_kind=of_kind) as known:
        for one in known:
            one.check(wanted)
        written = [one.wait(milliseconds(timeout), wanted.inputs) for one in known]
        reports = [one.report() for one in known]
    if as_json:
        print_json([{**one.as_json(), "written": far} for one, far in zip(reports, written, strict=True)])
        return
    for report, far in zip(reports, written, strict=True):
        paused = ", and is paused" if report.state is State.PAUSED else ""
        click.echo(f"{line_text(report.title)} has done what there was{paused}")
        for journal, end in far.items():
            click.echo(f"  {line_text(journal)} is written up to offset {end}")


COMMANDS: Final = (list_tasks, show_task, pause_task, resume_task, reset_task, remove_task, wait_for_task)
