"""`detent queue`, what is in them: publish, claim, say what became of a message, and deal with those that failed."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import (
    confirm,
    count_text,
    dry_run_option,
    force_option,
    open_for_writing,
    parse_message,
    store_options,
    takes_store,
    yes_option,
)
from detent.cli._output import (
    line_text,
    note,
    print_answer,
    print_fields,
    print_json,
    print_table,
    progress_bar,
    time_text,
)
from detent.cli._publish import Options, publish_options, run
from detent.cli.queue import contents_text, queue
from detent.errors import NotFound

if TYPE_CHECKING:
    from detent.queue import Delivery, FailedMessage, QueuedMessage, Receipt
    from detent.store import Store

PEEK_STEP = 500
"""Messages that a list asks for at once."""


# -- publishing -----------------------------------------------------------------------------------------------------


@queue.command()
@takes_store("QUEUE", rest="[BODY]")
@publish_options
@store_options
def publish(url: str, queue: str, body: tuple[str, ...], force: bool, as_json: bool, **options: Any) -> None:
    """Publish messages to one queue, by its name.

    Publishes one message that is given as BODY, or many from stdin.

    Prints the number of the message; with --json, a line for each. When the command ends well, all are durable and can
    be claimed. Input from stdin is published in transactions of up to 1000 messages; if a line is wrong, the error says
    which, and what was published before it. To publish to every queue whose filter matches: `detent message publish`.

    \b
    NDJSON has one object a line, and takes what `claim --json` and
    `failed --json` print:
      {"body": "text", "headers": {"name": "value"}, "dedup_key": "k"}
      {"body": "text", "delay": "5m", "retention": "7d"}
      {"body": {"base64": "AAEC"}, "visible_at": "2026-01-31T12:00:00Z"}
      {"uri": "s3://bucket/key"}

    \b
    Examples:
      detent queue publish file:./data orders hello --header priority=10
      detent queue publish file:./data orders 'pay 7' --dedup-key payment-7
      detent queue publish file:./data orders < lines.txt
      jq -c '{body: tojson}' < objects.json |
          detent queue publish file:./data orders --format ndjson
    """
    run(url, queue, body, Options(**options), force=force, as_json=as_json)


# -- claiming -------------------------------------------------------------------------------------------------------


@queue.command()
@takes_store("QUEUE")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Claim up to so many messages.")
@click.option("--wait", metavar="DURATION", help="Wait so long for a message if there is none, such as 20s.")
@click.option("--lease", metavar="DURATION", help="Hold them so long; the queue has a default.")
@click.option("--consumer", metavar="NAME", help="Who claims them, for those who look; else the machine and process.")
@click.option("--ack", is_flag=True, help="Acknowledge them once they are printed.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["fields", "bodies", "ndjson"]),
    default="fields",
    show_default=True,
    help="'fields': for people. 'bodies': each body and a newline. 'ndjson': a JSON object a line.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format ndjson.")
@force_option
def claim(
    url: str,
    queue: str,
    count: int,
    wait: str | None,
    lease: str | None,
    consumer: str | None,
    ack: bool,
    form: str,
    as_json: bool,
    force: bool,
) -> None:
    """Claim messages: the most urgent first, then the oldest.

    Each comes with a receipt, for `ack`, `fail` and `extend`. Prints nothing if there is nothing to claim. With --ack
    the messages are acknowledged after they were printed: if this is interrupted in between, they come again.

    \b
    Examples:
      detent queue claim file:./data orders --count 10 --wait 20s
      detent queue claim file:./data orders --json | jq -r .receipt
      detent queue claim file:./data orders --ack --format bodies > order.txt
    """
    form = "ndjson" if as_json else form
    if form == "bodies" and not ack:
        raise click.UsageError(
            "--format bodies shows no receipts, so the messages could not be acknowledged: add --ack"
        )
    with open_for_writing(url, force=force) as store:
        target = store.queue(queue)
        found = target.claim(count, wait=wait, lease=lease, consumer=consumer)
        if not found and form == "fields":
            info = target.info()
            note(f"nothing to claim: {'the queue is paused, with ' if info.paused else ''}{contents_text(info)}")
        _print_deliveries(found, form)
        if ack:
            target.ack(found)


def _print_deliveries(found: list[Delivery], form: str) -> None:
    from detent.cli._messages import delivery_fields, delivery_lines, encode_line

    out = sys.stdout.buffer
    for index, message in enumerate(found):
        if form == "fields":
            if index:
                click.echo()
            print_fields(delivery_lines(message))
        else:
            body = message.body if message.uri is None else message.uri.encode()
            out.write(body + b"\n" if form == "bodies" else encode_line(delivery_fields(message)))
    sys.stdout.flush()
    out.flush()


def _receipts(texts: Iterable[str]) -> list[Receipt]:
    from detent.queue import Receipt

    return list(dict.fromkeys(map(Receipt.parse, texts)))


@queue.command()
@takes_store(rest="RECEIPT...")
@store_options
def ack(url: str, receipt: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Acknowledge messages: they are done.

    Several are acknowledged in one transaction: if one receipt is stale, all are refused.

    \b
    Example:
      detent queue ack file:./data 1-0-1 1-2-2
    """
    receipts = _receipts(receipt)
    with open_for_writing(url, force=force) as store, store.transaction() as transaction:
        transaction.ack(*receipts)
    _say_ended("acknowledged", receipts, as_json)


@queue.command()
@takes_store(rest="RECEIPT...")
@click.option("--reason", default="", help="Why; it is shown with the message.")
@click.option("--delay", metavar="DURATION", help="Try again after so long, not after the queue's back-off.")
@click.option("--final", is_flag=True, help="Do not try again: the message has failed.")
@store_options
def fail(
    url: str, receipt: tuple[str, ...], reason: str, delay: str | None, final: bool, force: bool, as_json: bool
) -> None:
    """Say that attempts failed: the messages are tried again later.

    A message whose last attempt this was goes to the failed list.

    \b
    Examples:
      detent queue fail file:./data 1-0-1 --reason 'no answer' --delay 10m
      detent queue fail file:./data 1-0-1 --reason 'no such customer' --final
    """
    if final and delay is not None:
        raise click.UsageError("--final means never again, so there is nothing to --delay")
    receipts = _receipts(receipt)
    with open_for_writing(url, force=force) as store, store.transaction() as transaction:
        for held in receipts:
            transaction.fail(held, reason, delay=delay, final=final)
    _say_ended("failed", receipts, as_json)


def _say_ended(what: str, receipts: list[Receipt], as_json: bool) -> None:
    print_answer({what: list(map(str, receipts))}, f"{what} {count_text(len(receipts))}", as_json=as_json)


@queue.command()
@takes_store(rest="RECEIPT...")
@click.option("--lease", metavar="DURATION", help="Hold them so long from now on; the queue has a default.")
@store_options
def extend(url: str, receipt: tuple[str, ...], lease: str | None, force: bool, as_json: bool) -> None:
    """Extend or shorten the lease of messages.

    The lease ends --lease from now.

    \b
    Example:
      detent queue extend file:./data 1-0-1 --lease 10m
    """
    receipts = _receipts(receipt)
    with open_for_writing(url, force=force) as store, store.transaction() as transaction:
        for held in receipts:
            transaction.extend(held, lease)
    until = [
        {"receipt": str(held), "lease_until": time_text(result.lease_ms)}
        for held, result in zip(receipts, transaction.results, strict=True)
    ]
    if as_json:
        print_json({"extended": until})
    else:
        for line in until:
            click.echo(f"{line['receipt']} is held until {line['lease_until']}")


# -- looking ----


@queue.command()
@takes_store("QUEUE")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only messages that are available, delayed, blocked, 'in flight', assigned, failed or done; repeat it for "
    "more.",
)
@click.option("--filter", metavar="CEL", help="Only those whose headers match, such as 'headers.tier == \"gold\"'.")
@click.option("--priority", type=click.IntRange(0, 255), help="Only those of this priority.")
@click.option("--older-than", metavar="DURATION", help="Only those that were published longer ago, such as 2h.")
@click.option("--newer-than", metavar="DURATION", help="Only those that were published less long ago.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Show at most so many.")
@click.option(
    "--body-bytes",
    type=click.IntRange(0, 4096),
    default=64,
    show_default=True,
    help="Show the first bytes of each body; 0 shows none.",
)
@click.option("--cursor", metavar="CURSOR", help="Go on where an earlier list ended.")
@store_options
def messages(url: str, queue: str, limit: int, cursor: str | None, force: bool, as_json: bool, **wanted: Any) -> None:
    """Look at a queue's messages without claiming them.

    Nothing changes, and no attempt is counted. First come those that wait or are in flight, in the order in which they
    came to the queue, then those that failed, then those that are done. If there are more, the cursor for the next ones
    is on stderr; with --json it is in the document.

    \b
    Examples:
      detent queue messages file:./data orders
      detent queue messages file:./data orders --state 'in flight' --state blocked
      detent queue messages file:./data orders --older-than 1h \\
          --filter 'headers.tier == "gold"'
    """
    found: list[QueuedMessage] = []
    with open_for_writing(url, force=force) as store:
        target = store.queue(queue)
        while True:
            page = target.peek(min(limit - len(found), PEEK_STEP), cursor=cursor, **wanted)
            found += page.messages
            cursor = page.cursor
            if cursor is None or len(found) == limit:
                break
    _print_queued(queue, found, cursor, as_json)


def _print_queued(queue: str, found: list[QueuedMessage], cursor: str | None, as_json: bool) -> None:
    from detent.cli._messages import queued_fields, queued_row

    if as_json:
        print_json({"queue": queue, "messages": list(map(queued_fields, found)), "cursor": cursor})
        return
    columns = ["message", "state", "since or until", "attempts", "priority", "bytes", "body", "headers", "remarks"]
    print_table(columns, list(map(queued_row, found)))
    if cursor is not None:
        note(f"there are more: go on with --cursor {cursor}")


# -- what failed ----------------------------------------------------------------------------------------------------


@queue.command()
@takes_store("QUEUE")
@click.option("--limit", type=click.IntRange(1), help="Show at most so many.")
@store_options
def failed(url: str, queue: str, limit: int | None, force: bool, as_json: bool) -> None:
    """List the failed messages, with their reasons and attempts.

    The oldest comes first. With --json, each line is an object. `detent message show` shows one of them with its
    body, and `detent queue redrive` tries them again.

    \b
    Example:
      detent queue failed file:./data orders --limit 20
    """
    with open_for_writing(url, force=force) as store:
        for message in itertools.islice(store.queue(queue).failed(), limit):
            _print_failed(message, as_json)
    sys.stdout.flush()


def _print_failed(message: FailedMessage, as_json: bool) -> None:
    from detent.cli._messages import attempt_text, encode_line, failed_fields, iso, print_dead_letters

    if as_json:
        sys.stdout.buffer.write(encode_line(failed_fields(message)))
        return
    tries = "1 attempt" if message.attempts == 1 else f"{message.attempts} attempts"
    click.echo(f"message {message.message}: {iso(message.failed)}, {tries}: {line_text(message.reason) or 'no reason'}")
    for attempt in message.history:
        click.echo(f"  {attempt_text(attempt)}")
    print_dead_letters(message.dead_letters)


@queue.command()
@takes_store("QUEUE", rest="[MESSAGE]...")
@click.option("--filter", metavar="CEL", help="Those whose headers match, such as 'headers.tier == \"gold\"'.")
@click.option("--all", "everything", is_flag=True, help="All failed messages of the queue.")
@click.option("--to", metavar="QUEUE", help="Try them in another queue.")
@store_options
def redrive(
    url: str,
    queue: str,
    message: tuple[str, ...],
    filter: str | None,
    everything: bool,
    to: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Try failed messages again, as if they were new.

    Name the messages, give a filter for their headers, or say --all.

    \b
    Examples:
      detent queue redrive file:./data orders 17 18
      detent queue redrive file:./data orders --filter 'headers.tier == "gold"'
      detent queue redrive file:./data orders --all --to orders/careful
    """
    if bool(message) + (filter is not None) + everything != 1:
        raise click.UsageError(
            "say which failed messages: their numbers, or --filter CEL, or --all (`detent queue failed` lists them)"
        )
    numbers = [parse_message(text) for text in message] or None
    with open_for_writing(url, force=force) as store, progress_bar("redriving", hidden=as_json) as progress:
        target = store.queue(queue)
        total = target.info().failed if everything else None
        done = target.redrive(numbers, filter=filter, to=to, progress=lambda moved: progress(moved, total))
    print_answer(
        {"queue": queue, "to": to or queue, "messages": done},
        f"{count_text(done)} of {queue} can be claimed again{f' from {to}' if to else ''}",
        as_json=as_json,
    )


@queue.command()
@takes_store("QUEUE")
@click.option("--available", is_flag=True, help="Only messages that wait, delayed ones too.")
@click.option("--failed", is_flag=True, help="Only failed messages.")
@click.option("--message", "messages", multiple=True, metavar="N", help="Only this failed message; repeat it for more.")
@yes_option
@dry_run_option
@store_options
def purge(
    url: str,
    queue: str,
    available: bool,
    failed: bool,
    messages: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Remove messages from a queue for good.

    Removes available and failed ones, unless told otherwise. Messages in flight stay.

    Asks before it does so; a script says --yes.

    \b
    Examples:
      detent queue purge file:./data orders --dry-run
      detent queue purge file:./data orders --failed --yes
      detent queue purge file:./data orders --message 17 --message 18
    """
    if messages and (available or failed):
        raise click.UsageError("--message names the messages; --available and --failed choose all of a kind")
    numbers = sorted({parse_message(text) for text in messages}) or None
    if not available and not failed:
        available = failed = True
    with open_for_writing(url, force=force) as store:
        target = store.queue(queue)
        info = target.info()
        if numbers:
            _check_failed(store, queue, numbers)
            what, count = f"{count_text(len(numbers))} that failed", len(numbers)
        else:
            what = contents_text(info, available=available, flying=False, failed=failed)
            count = (info.available + info.delayed) * available + info.failed * failed
        if not dry_run:
            confirm(f"Remove {what} from queue {queue}?", f"removes {what} from queue {queue}", yes=yes)
            with progress_bar("purging", hidden=as_json) as progress:
                count = target.purge(
                    available=available,
                    failed=failed,
                    messages=numbers,
                    progress=lambda done: progress(done, max(done, count)),
                )
    print_answer(
        {"queue": queue, "messages": count, "purged": not dry_run},
        f"{'would remove' if dry_run else 'removed'} {count_text(count)} from queue {queue}",
        as_json=as_json,
    )


def _check_failed(store: Store, queue: str, numbers: list[int]) -> None:
    """Say before the question that there is nothing to ask for."""
    for number in numbers:
        if not any(place.queue == queue and place.state == "failed" for place in store.message(number).places):
            raise NotFound(f"message {number} is not among the failed ones of {queue!r}")


__all__ = ["queue"]
