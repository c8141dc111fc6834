"""Older commands that do what a verb does. They are not shown in lists, and call the verbs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from detent.cli._common import parse_inputs
from detent.cli._logs import logs_shown
from detent.cli.bus import bus
from detent.cli.consumer import consumer
from detent.cli.graph import graph
from detent.cli.ingest import ingest
from detent.cli.kinds import APP, CONSUMER, GRAPH, INGEST
from detent.cli.kinds.consumer import adjust, store_url
from detent.cli.kinds.kind import TaskKind, VerbOptions
from detent.cli.run import run
from detent.cli.tasks import (
    list_tasks,
    pause_task,
    remove_task,
    reset,
    reset_task,
    resume_task,
    show_task,
    wait_for_task,
)


def _call(verb: click.Command, **given: Any) -> Any:
    assert verb.callback is not None
    return verb.callback(**given)


def _same(group: click.Group, name: str, verb: click.Command, kind: TaskKind) -> None:
    """A hidden command that is the verb: for the task of this kind that NAME means, or for those of its file."""
    callback = lambda **given: _call(verb, of_kind=kind, **given)  # noqa: E731
    group.add_command(click.Command(name, params=verb.params, hidden=True, help=verb.help, callback=callback))


def _older(group: click.Group, name: str, verb: click.Command, *, without: str) -> Callable[[Any], click.Command]:
    """A hidden command that calls the verb, and has some options of its own instead of the verb's."""

    def decorate(function: Any) -> click.Command:
        command = click.command(name, hidden=True, help=verb.help)(function)
        command.params += [one for one in verb.params if one.name not in without.split()]
        group.add_command(command)
        return command

    return decorate


_same(consumer, "show", show_task, CONSUMER)
_same(consumer, "pause", pause_task, CONSUMER)
_same(consumer, "resume", resume_task, CONSUMER)
_same(graph, "run", run, GRAPH)
_same(graph, "status", show_task, GRAPH)
_same(bus, "run", run, APP)
_same(ingest, "run", run, INGEST)
_same(ingest, "status", show_task, INGEST)


# -- consumers --------------------------------------------------------------------------------------------------------


@_older(consumer, "ls", list_tasks, without="kind")
def list_consumers(**given: Any) -> None:
    """`detent ls --kind consumer`."""
    _call(list_tasks, kind=CONSUMER.noun, **given)


@_older(consumer, "wait", wait_for_task, without="inputs")
@click.option("--offset", type=click.IntRange(0), help="Wait for the message at this offset.")
@click.option("--end", is_flag=True, help="Wait for all that is committed now.")
def wait_for_journal(words: tuple[str, ...], offset: int | None, end: bool, **given: Any) -> None:
    """`detent wait TASK --input JOURNAL=OFFSET`."""
    if (offset is None) is not end or len(words) < 2:
        raise click.UsageError("say which message to wait for: JOURNAL, and --offset N or --end")
    place = "latest" if offset is None else str(offset)
    _call(wait_for_task, words=words[:-1], inputs=(f"{words[-1]}={place}",), of_kind=CONSUMER, **given)


@_older(consumer, "reset", reset_task, without="to inputs parts")
@click.option("--journal", required=True, metavar="JOURNAL", help="The journal to read from another place.")
@click.option("--offset", type=click.IntRange(0), help="Go on with the message at this offset.")
@click.option("--time", metavar="TIME", help="Go on with the first message from this time on.")
@click.option("--earliest", is_flag=True, help="Go on with the first message that there is.")
@click.option("--latest", is_flag=True, help="Go on with the next message that comes.")
def reset_journal(journal: str, offset: int | None, time: str | None, **given: Any) -> None:
    """`detent reset TASK --input JOURNAL=WHERE`."""
    ends = [end for end in ("earliest", "latest") if given.pop(end)]
    places = [*([] if offset is None else [str(offset)]), *([] if time is None else [time]), *ends]
    if len(places) != 1:
        raise click.UsageError("say where to go on, once: --offset N, --time TIME, --earliest or --latest")
    reset(wanted=VerbOptions(inputs=parse_inputs([f"{journal}={places[0]}"])), of_kind=CONSUMER, **given)


@_older(consumer, "delete", remove_task, without="parts running force")
@click.option("--force", "running", is_flag=True, help="Also while a process works on it, which then ends.")
def delete(**given: Any) -> None:
    """`detent rm TASK`."""
    _call(remove_task, parts=(), force=False, of_kind=CONSUMER, **given)


@click.command("consume", hidden=True, help=run.help, params=list(run.params))
@click.option("--worker", "member", hidden=True, help="What a supervisor starts its processes with.")
def consume(member: str | None, **given: Any) -> None:
    """`detent run`, and what it starts the processes of a consumer with."""
    with logs_shown(verbose=given["verbose"], as_json=given["as_json"]):
        if member is None:
            _call(run, of_kind=CONSUMER, **given)
            return
        from detent.consumer.supervisor import work

        app = CONSUMER.find(given["targets"][0])
        adjust(app, shards=given["shards"], standbys=given["standbys"], lease=given["lease"])
        click.get_current_context().exit(work(app, store_url(app, given["url"]), member))


# -- graphs and ingests -----------------------------------------------------------------------------------------------


@_older(graph, "reset", reset_task, without="parts")
@click.option("--time", metavar="TIME", help="All inputs: the first message from this time on.")
@click.option("--forget", is_flag=True, help="Delete the progress instead, also of a processor that is gone.")
def reset_processor(words: tuple[str, ...], **given: Any) -> None:
    """`detent reset FILE --only NAME`, or `detent rm FILE --only NAME`."""
    to, time, inputs, forget = (given.pop(name) for name in ("to", "time", "inputs", "forget"))
    if len(words) != 2:
        raise click.UsageError("give the graph and the processor: TARGET NAME")
    if sum([to is not None, time is not None, bool(inputs), forget]) > 1:
        raise click.UsageError("say where to go on, once: --to, --time, --input or --forget")
    meant: dict[str, Any] = {"words": words[:1], "of_kind": GRAPH, **given}
    if forget:
        _call(remove_task, parts=words[1:], running=False, **meant)
    else:
        reset(wanted=VerbOptions(to or time or "earliest", parse_inputs(inputs), words[1:]), **meant)


@_older(ingest, "reset", reset_task, without="to inputs parts yes")
@click.option("--yes", "typed", metavar="NAME", help="Do not ask. NAME is that of the ingest.")
def reset_ingest(**given: Any) -> None:
    """`detent reset FILE`."""
    reset(wanted=VerbOptions(), yes=False, of_kind=INGEST, **given)
