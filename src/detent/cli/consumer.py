"""`detent consumer`: what runs as a consumer, how far it is, and how to steer it; `detent consume`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import (
    confirm,
    count_text,
    force_option,
    json_option,
    open_for_writing,
    parse_time,
    takes_store,
)
from detent.cli._consumer_shown import consumer_fields, look, shown_error, shown_journals, shown_status, total_lag
from detent.cli._help import Commands
from detent.cli._output import line_text, print_fields, print_json, print_table, time_text
from detent.cli.kinds.consumer import (
    Consumers,
    adjust,
    contents,
    delete_all,
    load_consumer,
    log_as_asked,
    logs_of,
    store_url,
)
from detent.cli.kinds.kind import Found
from detent.cli.run import events_option, once_option, options_named, run_found, store_option, verbose_option
from detent.errors import Denied, NotFound
from detent.shard.calls import place_of

if TYPE_CHECKING:
    from detent.cli._consumer_shown import Seen

WAIT = "30s"


@click.group(cls=Commands, short_help="See how far consumers are; pause, reset and delete them.")
def consumer() -> None:
    """See how far consumers are, wait for them, and pause, reset or delete them.

    A consumer is an application that reads journals, keeps state and publishes; `detent run` runs it. Its work is
    divided into shards, each of which one process holds at a time.

    \b
    Example:
      export DETENT_URL=file:./data
      detent consumer ls
      detent consumer show words
      detent consumer wait words lines --end
      detent consumer state words
    """


# -- looking --------------------------------------------------------------------------------------------------------


@consumer.command("ls")
@takes_store()
@click.option("--prefix", default="", help="Only consumers whose names begin so.")
@force_option
@json_option
def list_consumers(url: str, prefix: str, force: bool, as_json: bool) -> None:
    """List the consumers of a store, and how far they are.

    Shows how many shards each has, how many processes work on them, and how many messages are left to process (LAG).

    \b
    Example:
      detent consumer ls file:./data --prefix shop
    """
    with open_for_writing(url, force=force) as store, _listing():
        found = [look(store, info.name) for info in store.consumers(prefix)]
    if as_json:
        print_json([consumer_fields(seen) for seen in found])
        return
    print_table(["name", "shards", "held", "members", "failed", "paused", "lag"], list(map(_row, found)))


@contextmanager
def _listing() -> Iterator[None]:
    """Listing is a look at the whole store, which a token for some of its consumers is not for."""
    try:
        yield
    except Denied as error:
        raise Denied(
            f"{error}, which listing needs: look at one with `detent consumer show NAME`, or take a token that was "
            "made with --grant 'consume:*:*'"
        ) from error


def _row(seen: Seen) -> list[str]:
    info = seen.info
    held = sum(bool(shard.holder) for shard in info.shards)
    failed = sum(shown_status(seen, shard) == "failed" for shard in info.shards)
    return [
        line_text(info.name),
        str(len(info.shards)),
        str(held),
        str(len(info.members)),
        str(failed),
        "yes" if info.paused else "no",
        str(total_lag(seen)),
    ]


@consumer.command()
@takes_store("NAME")
@force_option
@json_option
def show(url: str, name: str, force: bool, as_json: bool) -> None:
    """Show a consumer and its shards.

    For each shard: the process that holds it, what it does now, its last error, and how far it is in each journal.
    PROCESSED is the offset after the last message whose effects are all visible, LAG how many messages come after it.

    \b
    Example:
      detent consumer show file:./data words
    """
    with open_for_writing(url, force=force) as store:
        seen = look(store, name)
    if as_json:
        print_json(consumer_fields(seen))
        return
    info = seen.info
    print_fields(
        {
            "name": line_text(info.name),
            "divided by": info.partition,
            "paused": "yes" if info.paused else "no",
            "lag": count_text(total_lag(seen)),
            "created": time_text(round(info.created.timestamp() * 1000)),
            "members": "  ".join(f"{line_text(one.member)} ({line_text(one.info)})" for one in info.members) or "-",
        }
    )
    click.echo()
    print_table(["shard", "journals", "holder", "status", "processed", "lag", "error"], _shard_rows(seen))


def _shard_rows(seen: Seen) -> list[list[str]]:
    return [
        [
            str(shard.index),
            shown_journals(shard),
            line_text(shard.holder) or "-",
            shown_status(seen, shard),
            str(sum(shard.processed.values())),
            str(sum(seen.lag[shard.index].values())),
            line_text(shown_error(seen, shard)) or "-",
        ]
        for shard in seen.info.shards
    ]


@consumer.command()
@takes_store("NAME", "JOURNAL")
@click.option("--offset", type=click.IntRange(0), help="Wait for the message at this offset.")
@click.option("--end", is_flag=True, help="Wait for all that is committed now.")
@click.option("--timeout", default=WAIT, show_default=True, metavar="DURATION", help="Give up after so long.")
@force_option
@json_option
def wait(
    url: str, name: str, journal: str, offset: int | None, end: bool, timeout: str, force: bool, as_json: bool
) -> None:
    """Wait until a consumer has processed a message.

    Prints how far the consumer has written its output journals. A client that reads these up to there has seen
    everything that the message led to: so you read your own writes.

    \b
    Example:
      detent journal append file:./data lines --body 'to be or not to be'
      detent consumer wait file:./data words lines --end
    """
    if (offset is None) is not end:
        raise click.UsageError("say which message to wait for: --offset N, or --end for all that is there now")
    with open_for_writing(url, force=force) as store:
        handle = store.consumer(name)
        if journal not in handle.info().sources:
            raise NotFound(f"the consumer {name!r} does not read the journal {journal!r}")
        far = store.journal(journal).info().next_offset if offset is None else offset + 1
        published = handle.await_processed(journal, far - 1, timeout) if far else {}
    if as_json:
        print_json({"name": name, "journal": journal, "processed": far, "published": published})
        return
    click.echo(f"{line_text(name)} has processed {line_text(journal)} up to offset {far}")
    for other, end_of_other in published.items():
        click.echo(f"  {line_text(other)} is written up to offset {end_of_other}")


# -- steering -------------------------------------------------------------------------------------------------------


@consumer.command()
@takes_store("NAME")
@force_option
@json_option
def pause(url: str, name: str, force: bool, as_json: bool) -> None:
    """Pause a consumer until `resume`.

    Its shards finish the transaction that is under way, and stay where they are.

    \b
    Example:
      detent consumer pause file:./data words
    """
    _set_paused(url, name, force=force, as_json=as_json, paused=True)


@consumer.command()
@takes_store("NAME")
@force_option
@json_option
def resume(url: str, name: str, force: bool, as_json: bool) -> None:
    """Resume a consumer that is paused.

    \b
    Example:
      detent consumer resume file:./data words
    """
    _set_paused(url, name, force=force, as_json=as_json, paused=False)


def _set_paused(url: str, name: str, *, force: bool, as_json: bool, paused: bool) -> None:
    with open_for_writing(url, force=force) as store:
        handle = store.consumer(name)
        handle.pause() if paused else handle.resume()
    if as_json:
        print_json({"name": name, "paused": paused})
    else:
        click.echo(f"{line_text(name)} {'rests' if paused else 'goes on'}")


@consumer.command()
@takes_store("NAME")
@click.option("--journal", required=True, metavar="JOURNAL", help="The journal to read from another place.")
@click.option("--offset", type=click.IntRange(0), help="Go on with the message at this offset.")
@click.option("--time", "since", metavar="TIME", help="Go on with the first message from this time on.")
@click.option("--earliest", is_flag=True, help="Go on with the first message that there is.")
@click.option("--latest", is_flag=True, help="Go on with the next message that comes.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@force_option
@json_option
def reset(
    url: str,
    name: str,
    journal: str,
    offset: int | None,
    since: str | None,
    earliest: bool,
    latest: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Move a consumer to another place in a journal.

    It may run meanwhile. What it has made of the messages stays: its state, and what it has published. So messages that
    it reads again take effect again, and those that it skips never do. To start over, `delete` it.

    Asks before it does so; a script says --yes.

    \b
    Examples:
      detent consumer reset file:./data words --journal lines --offset 100
      detent consumer reset file:./data words --journal lines \\
          --time 2026-01-31T12:00:00Z --yes
    """
    if sum([offset is not None, since is not None, earliest, latest]) != 1:
        raise click.UsageError("say where to go on, once: --offset N, --time TIME, --earliest or --latest")
    time = None if since is None else parse_time(since)
    with open_for_writing(url, force=force) as store:
        seen = look(store, name)
        handle = store.journal(journal)
        if time is not None:
            place = handle.offset_at(time)
        elif offset is not None:
            place = offset
        else:
            info = handle.info()
            place = info.first_offset if earliest else info.next_offset
        what = (
            f"resets {line_text(name)} to offset {place} of {line_text(journal)}: {_consequence(seen, journal, place)}"
        )
        confirm(f"This {what}. Go on?", what, yes=yes)
        store.consumer(name).reset({journal: place})
    if as_json:
        print_json({"name": name, "journal": journal, "offset": place})
    else:
        click.echo(f"{line_text(name)} goes on at offset {place} of {line_text(journal)}")


def _consequence(seen: Seen, journal: str, place: int) -> str:
    """What a reset does to the messages between."""
    known = [far for shard in seen.info.shards if (far := place_of(shard, journal)) is not None]
    stays = "its state stays"
    if not known:
        return f"{stays}, and it goes on from there"
    again, skipped = max(0, max(known) - place), max(0, place - min(known))
    parts = [f"up to {count_text(again)} take effect again"] * bool(again)
    parts += [f"up to {count_text(skipped)} are skipped for ever"] * bool(skipped)
    return ", and ".join([stays, *parts])


@consumer.command()
@takes_store("NAME")
@click.option("--force", is_flag=True, help="Also while a process works on it, which then ends.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete(url: str, name: str, force: bool, yes: bool, as_json: bool) -> None:
    """Delete a consumer: its progress, state and recovery logs.

    The state is what it keeps in this store; the recovery logs are the journals NAME/recovery/SHARD. What it has
    published stays.

    If it runs again under this name, it begins at the beginning. Rows of a database are not touched: with its state
    there, delete those of the consumer in the table detent_shards too. Refused while a process works on it, unless
    --force is said.

    Asks before it does so; a script says --yes.

    \b
    Example:
      detent consumer delete file:./data words --yes
    """
    with open_for_writing(url, force=False) as store:
        info = store.consumer(name).info()
        logs = logs_of(store, info)
        what = contents(info, logs)
        confirm(f"This deletes {what}. Go on?", f"deletes {what}", yes=yes)
        delete_all(store, name, logs, force=force)
    if as_json:
        print_json({"name": name, "deleted": True, "logs": logs})
    else:
        click.echo(f"deleted {what}")


@consumer.command()
@takes_store("NAME")
@click.option("--shard", type=click.IntRange(0), help="Only this shard.")
@click.option("--prefix", default="", help="Only keys that begin so.")
@force_option
@click.option("--json", "as_json", is_flag=True, help="Print an object a line, for programs.")
def state(url: str, name: str, shard: int | None, prefix: str, force: bool, as_json: bool) -> None:
    """Print the state that a consumer keeps in its store.

    Each line is a key and its value, as JSON. A consumer whose state is in a database or in files has none here.

    \b
    Examples:
      detent consumer state file:./data words --prefix to
      detent consumer state file:./data words --shard 0 --json
    """
    with open_for_writing(url, force=force) as store:
        handle = store.consumer(name)
        shards = range(len(handle.info().shards)) if shard is None else [shard]
        for index in shards:
            for key, value in handle.state(index).items(prefix):
                click.echo(_entry(index, key, value, as_json=as_json))


def _entry(shard: int, key: str, value: Any, *, as_json: bool) -> str:
    if as_json:
        return json.dumps({"shard": shard, "key": key, "value": value}, ensure_ascii=False)
    return f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"


# -- running --------------------------------------------------------------------------------------------------------


@click.command("consume", hidden=True, short_help="Run a consumer, as `detent run` does.")
@click.argument("target")
@options_named("shards", "workers", "standbys", "lease", "force")
@store_option
@once_option
@verbose_option
@click.option("--worker", "member", hidden=True, help="What a supervisor starts its processes with.")
@events_option
def consume(target: str, member: str | None, **given: Any) -> None:
    """Run a consumer: an application that reads journals, keeps state and publishes, each message exactly once.

    TARGET is package.module:name or path/to/file.py:name; the name may be left out where there is one consumer, or one
    called app. Its shards are divided over processes, here and wherever else the same is run on the same store.

    It runs until Ctrl-C or SIGTERM, which let the transactions under way end; a second Ctrl-C does not wait. A process
    that dies is started again, and others take its shards at once.

    \b
    A file, words.py:
      from detent.consumer import Consumer
      app = Consumer("words", store="file:./data", read="lines")

    \b
      @app.consume
      def count(message, state, publish):
          for word in message.body.decode().split():
              state[word] = state.get(word, 0) + 1

    \b
    Try it:
      echo 'to be or not to be' | detent journal append file:./data lines
      detent consume words.py --once
      detent consumer state file:./data words
      detent consume words.py:app --workers 2
    """

    if given["once"] and (given["workers"] or member):
        raise click.UsageError("--once works in one process: leave --workers out, or --once")
    log_as_asked(verbose=given["verbose"], as_json=given["as_json"])
    app = load_consumer(target)
    if member is None:
        run_found(Consumers.noun, [Found(target, app)], **given)
        return
    from detent.consumer.supervisor import work

    adjust(app, shards=given["shards"], standbys=given["standbys"], lease=given["lease"])
    click.get_current_context().exit(work(app, store_url(app, given["url"]), member))
