"""The `detent` command: nouns, then verbs; and the verbs of everything that runs.

This file puts the commands together, runs them, and turns errors into exit codes.

Everything that runs:

    run.py             `detent run`: whatever a file declares
    tasks.py           `detent ls`, `show`, `pause`, `resume`, `reset`, `rm`, `wait`
    kinds/             the kinds of tasks: how each is found in a file, run, looked at and steered
    aliases.py         older commands that call the verbs, and are not shown in lists

The nouns, each with what it alone has:

    store.py           `detent store`
    store_backup.py    `detent store`: backup, restore, compact
    journal.py         `detent journal`
    queue.py           `detent queue`: create, change, show
    queue_messages.py  `detent queue`: publish, claim, settle, failed messages
    queue_readers.py   `detent queue`: readers
    message.py         `detent message`
    ledger.py          `detent ledger`
    schedule.py        `detent schedule`
    consumer.py        `detent consumer`
    bus.py             `detent bus`
    graph.py           `detent graph`
    bridge.py          `detent bridge`
    quarantine.py      `detent quarantine`
    ingest.py          `detent ingest`
    table.py           `detent table`: Delta and Iceberg tables
    spark.py           `detent spark`: what a Spark needs that Detent does not start
    serve.py           `detent serve`
    console.py         `detent console`
    token.py           `detent token`
    doctor.py          `detent doctor`
    top.py             `detent top`: the screen and its keys
    demo.py            `detent demo`
    completion.py      `detent completion`
    __main__.py        `python -m detent.cli`

What commands share:

    _common.py         the store's URL, common options, opening a store
    _help.py           help texts: whole sentences, whatever the width
    _output.py         tables for people, JSON for programs
    _complete.py       what a shell offers for stores and names
    _settings.py       settings of queues and journals: options, and lines of `info`
    _logs.py           logs of long-running commands
    _views.py          the frame in which tasks are shown while they run
    _samples.py        what moves in a store, and how fast, for `detent top`
    _messages.py       messages as text, in and out
    _publish.py        `queue publish` and `message publish`

What commands show of a declaration, each from several files:

    _bus_shown.py      an app: its parts, what waits, whether it goes together
    _graph_shown.py    a graph: its processors, with their options
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any, NoReturn

import click

from detent.cli._help import CommandList
from detent.cli._output import line_text
from detent.cli.aliases import consume
from detent.cli.bridge import bridge
from detent.cli.bus import bus
from detent.cli.completion import completion
from detent.cli.console import console
from detent.cli.consumer import consumer
from detent.cli.demo import demo
from detent.cli.doctor import doctor
from detent.cli.graph import graph
from detent.cli.ingest import ingest
from detent.cli.journal import journal
from detent.cli.ledger import ledger
from detent.cli.message import message
from detent.cli.quarantine import quarantine
from detent.cli.queue_readers import queue
from detent.cli.run import run as run_command
from detent.cli.schedule import schedule
from detent.cli.serve import serve
from detent.cli.spark import spark
from detent.cli.store_backup import store
from detent.cli.table import table
from detent.cli.tasks import COMMANDS as TASK_COMMANDS
from detent.cli.token import token
from detent.cli.top import top
from detent.errors import DetentError

FAILED = 1
INTERRUPTED = 128 + signal.SIGINT
BROKEN_PIPE = 128 + signal.SIGPIPE
"""Exit codes as a shell gives them to a program that a signal ended."""


class _AllCommands(CommandList):
    """The commands: the nouns first, and then the verbs of everything that runs. With an exit code of our own where
    click would end the process with 1."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write both lists."""
        verbs = [name for one in (run_command, *TASK_COMMANDS) if (name := one.name) is not None]
        self.write_commands(ctx, formatter, "Commands", [name for name in self.list_commands(ctx) if name not in verbs])
        self.write_commands(ctx, formatter, "Commands for everything that runs", verbs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _silence_stdout()
            ctx.exit(BROKEN_PIPE)


@click.group(cls=_AllCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="detent", prog_name="detent", message="%(prog)s %(version)s")
def cli() -> None:
    """Messages that take effect exactly once: durable journals and queues on a disk or an object store.

    A journal is a log that many can read; a queue gives each message to one worker. Both are kept in a store.

    A store has a URL: file:PATH for a directory, s3://BUCKET/PREFIX for an object store, http://HOST:PORT for a server.
    Give it as the first argument of a command, with --url, or once for all commands in the environment variable
    DETENT_URL. A path works too: one that begins with a slash or a dot, such as ./data, or the name of a directory that
    exists. The first command that writes creates the store.

    \b
    Try it:
      detent journal append file:./data orders --body hello
      detent journal read file:./data orders
      detent queue create file:./data mails
      detent queue publish file:./data mails hello
      detent queue claim file:./data mails
      detent store verify file:./data

    `detent run FILE` runs what a file of yours declares: consumers, graphs, apps, pipelines, ingests, workers. `detent
    ls`, `show`, `pause`, `resume`, `reset`, `rm` and `wait` are for all of these, wherever they run.

    `detent COMMAND --help` explains a command, with examples. `detent doctor` looks for what is wrong with this
    machine, a store or a server, and `detent demo` shows all parts at work.

    Exit codes: 0 done, 1 failed (one line on stderr says why), 2 wrong usage, 130 interrupted. With DETENT_DEBUG=1 a
    failure shows where in the code it came from.
    """


cli.add_command(bridge)
cli.add_command(bus)
cli.add_command(console)
cli.add_command(consume)
cli.add_command(completion)
cli.add_command(consumer)
cli.add_command(demo)
cli.add_command(doctor)
cli.add_command(graph)
cli.add_command(ingest)
cli.add_command(journal)
cli.add_command(ledger)
cli.add_command(message)
cli.add_command(quarantine)
cli.add_command(queue)
cli.add_command(run_command)
cli.add_command(schedule)
cli.add_command(serve)
cli.add_command(spark)
cli.add_command(table)
cli.add_command(store)
cli.add_command(token)
cli.add_command(top)
for command in TASK_COMMANDS:
    cli.add_command(command)


def main() -> NoReturn:
    """Run the command line and exit."""
    sys.exit(run())


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code. No error reaches the user as a traceback, unless DETENT_DEBUG asks."""
    try:
        code = cli.main(arguments, prog_name="detent", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except DetentError as error:
        return _failed(error, line_text(" ".join(str(error).split())))
    except Exception as error:  # noqa: BLE001  the last resort: a bug must not look like a crash dump either
        return _failed(error, f"{type(error).__name__}: {error} (set DETENT_DEBUG=1 to see where)")
    return code if isinstance(code, int) else 0


def _failed(error: Exception, message: str) -> int:
    if os.environ.get("DETENT_DEBUG"):
        raise error
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"error: {message}", err=True)
    return FAILED


def _silence_stdout() -> None:
    """The reader of our output has gone; what Python still holds of it must not fail at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


__all__ = ["cli", "main", "run"]
