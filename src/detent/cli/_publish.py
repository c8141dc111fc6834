"""What `queue publish` and `message publish` share: the options, where messages come from, what is said of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from detent.cli._common import Function, count_text, open_for_writing, parse_headers, parse_time
from detent.cli._output import note, progress_bar
from detent.durations import milliseconds
from detent.errors import DetentError, Invalid, NotFound

if TYPE_CHECKING:
    from detent.queue import Outgoing, Published
    from detent.store import Store

FOREVER = "forever"

_OPTIONS = (
    click.option(
        "--file",
        "path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Publish one message with this file's bytes; with --format, read the messages from this file.",
    ),
    click.option("--uri", help="Publish one message that holds no bytes but says where they are: s3://bucket/key."),
    click.option(
        "--format",
        "form",
        type=click.Choice(["lines", "ndjson", "whole"]),
        help="How stdin is read. 'lines' (the default): each line is a body. 'ndjson': each line is a JSON object. "
        "'whole': all of it is one body.",
    ),
    click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; repeat it for more."),
    click.option("--delay", metavar="DURATION", help="It cannot be claimed before so long from now, such as 10m."),
    click.option("--visible-at", metavar="TIME", help="It cannot be claimed before this time: 2026-01-31T12:00:00Z."),
    click.option(
        "--retention", metavar="DURATION", help="Forget it after so long, claimed or not [4d]; 'forever' keeps it."
    ),
    click.option("--dedup-key", metavar="KEY", help="Publish it only if no message with this key came lately."),
)


def publish_options(function: Function) -> Function:
    """The options of both commands."""
    decorated: Any = function
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    result: Function = decorated
    return result


@dataclass
class Options:
    """What was said about the messages, all of them or the one."""

    path: Path | None
    uri: str | None
    form: str | None
    headers: tuple[str, ...]
    delay: str | None
    visible_at: str | None
    retention: str | None
    dedup_key: str | None

    def check(self, body: tuple[str, ...], queue: str | None) -> None:
        """Refuse what does not go together, before anything is opened or read."""
        if len(body) > 1:
            raise click.UsageError(f"the body is one argument, not {len(body)}: put it in quotes")
        if len(body) + (self.path is not None) + (self.uri is not None) > 1:
            raise click.UsageError("give the body once: as BODY, with --file or with --uri")
        if (body or self.uri is not None) and self.form is not None:
            raise click.UsageError("--format says how stdin or a --file is read; BODY and --uri are the message")
        if self.dedup_key is not None and not self.is_one(body):
            raise click.UsageError("--dedup-key belongs to one message; with --format ndjson each has its dedup_key")
        if self.delay is not None and self.visible_at is not None:
            raise click.UsageError("--delay and --visible-at say the same in two ways: give one of them")
        if self.retention == FOREVER:
            self.retention = "0s"
        for duration in (self.delay, self.retention):
            if duration is not None:
                milliseconds(duration)
        if queue is not None and "queue" in parse_headers(self.headers):
            raise click.UsageError("the header 'queue' is where a message goes, which the argument QUEUE says")

    def is_one(self, body: tuple[str, ...]) -> bool:
        """Whether there is one message, and not a stream of them."""
        return bool(body) or self.uri is not None or self.form == "whole" or (self.path is not None and not self.form)

    def template(self) -> Outgoing:
        """A message that says what all of them say."""
        from detent.queue import Outgoing

        return Outgoing(
            headers=parse_headers(self.headers),
            uri=self.uri,
            visible_at=None if self.visible_at is None else parse_time(self.visible_at),
            delay=self.delay,
            retention=self.retention,
            dedup_key=self.dedup_key,
        )


def run(url: str, queue: str | None, body: tuple[str, ...], options: Options, *, force: bool, as_json: bool) -> None:
    """Publish, to a queue by name or to all that match, and say what became of it."""
    options.check(body, queue)
    template = options.template()
    with open_for_writing(url, force=force) as store:
        accept = _acceptance(store, queue)
        if options.is_one(body):
            message = replace(template, body=_body(body, options))
            accept(message)
            (done,) = _publish(store, queue, [message])
            if as_json:
                _print_lines([done])
            elif done.duplicate_of is not None:
                click.echo(f"duplicate of {done.duplicate_of}: nothing was published")
            else:
                click.echo(f"published message {done.message}{_where(store, queue, done.message)}")
            return
        if options.path is not None:
            with options.path.open("rb") as source:
                numbers, duplicates = _publish_stream(store, queue, source, options.form, template, accept, as_json)
        else:
            if sys.stdin.isatty():
                note("reading messages from the terminal, one a line; Ctrl-D ends")
            numbers, duplicates = _publish_stream(
                store, queue, sys.stdin.buffer, options.form, template, accept, as_json
            )
    if not as_json:
        click.echo(f"published {numbers}{f', and left out {duplicates} duplicates' if duplicates else ''}")


def _body(body: tuple[str, ...], options: Options) -> bytes:
    if body:
        return os.fsencode(body[0])
    if options.path is not None:
        return options.path.read_bytes()
    return b"" if options.uri is not None else sys.stdin.buffer.read()


def _acceptance(store: Store, queue: str | None) -> Callable[[Outgoing], None]:
    """Refuses a message that is meant for a queue and would not get there."""
    if queue is None:
        return lambda _message: None
    from detent.queue.filters import Filter

    wanted = Filter(store.queue(queue).info().filter)

    def accept(message: Outgoing) -> None:
        if not wanted.matches({**message.headers, "queue": queue}):
            raise Invalid(
                f"the filter of {queue!r} does not match these headers: it takes {wanted.text}; add a --header"
            )

    return accept


def _addressed(message: Outgoing, queue: str | None) -> Outgoing:
    """A message that was claimed from another queue carries that one's name; it goes to this one now."""
    if queue is None or "queue" not in message.headers:
        return message
    return replace(message, headers={name: value for name, value in message.headers.items() if name != "queue"})


def _publish(store: Store, queue: str | None, messages: list[Outgoing]) -> Sequence[Published]:
    return store.publish_many(messages) if queue is None else store.queue(queue).publish_many(messages)


def _where(store: Store, queue: str | None, message: int) -> str:
    """The queues that got a message that was for all queues that match."""
    if queue is not None:
        return ""
    with suppress(NotFound):
        names = [place.queue for place in store.message(message).places]
        return f" to {', '.join(names)}" if names else ", which is in no queue yet"
    return ""  # it was fast: done already, and not kept


def _print_lines(results: Sequence[Published]) -> None:
    from detent.cli._messages import encode_line

    for done in results:
        sys.stdout.buffer.write(encode_line({"id": done.message, "duplicate_of": done.duplicate_of}))
    sys.stdout.buffer.flush()


def _entries(source: IO[bytes], form: str | None, template: Outgoing) -> Iterator[tuple[int, Outgoing]]:
    from detent.cli._messages import parse_published, read_lines

    for number, line in read_lines(source):
        if form != "ndjson":
            yield number, replace(template, body=line)
        elif line.strip():
            yield number, _laid_over(template, parse_published(number, line))


def _laid_over(template: Outgoing, message: Outgoing) -> Outgoing:
    """What a message says itself stands; of the rest, what was said for all."""
    timed = message.delay is not None or message.visible_at is not None
    return replace(
        message,
        headers={**template.headers, **message.headers},
        delay=message.delay if timed else template.delay,
        visible_at=message.visible_at if timed else template.visible_at,
        retention=template.retention if message.retention is None else message.retention,
    )


def _publish_stream(
    store: Store,
    queue: str | None,
    source: IO[bytes],
    form: str | None,
    template: Outgoing,
    accept: Callable[[Outgoing], None],
    as_json: bool,
) -> tuple[str, int]:
    """Publish what a stream holds; the new messages as a text, and the number of duplicates."""
    from detent.cli._messages import batches

    new = Numbers()
    duplicates = 0
    with progress_bar("publishing", hidden=as_json) as progress:
        try:
            for batch in batches(_entries(source, form, template), lambda message: len(message.body)):
                results = _publish_batch(store, queue, batch, accept)
                for done in results:
                    if done.duplicate_of is None:
                        new.add(done.message)
                    else:
                        duplicates += 1
                if as_json:
                    _print_lines(results)
                progress(new.count + duplicates, None)
        except DetentError as error:
            before = f"{new} published before it" if new.count else "nothing published"
            raise type(error)(f"{error}; {before}") from error
    return str(new), duplicates


@dataclass
class Numbers:
    """Messages as they got their numbers, which may leave some out: others publish, too."""

    count: int = 0
    first: int = -1
    last: int = -1

    def add(self, number: int) -> None:
        """One more."""
        self.first = number if self.first < 0 else self.first
        self.last = number
        self.count += 1

    def __str__(self) -> str:
        if not self.count:
            return count_text(0)
        return f"{count_text(self.count)} ({self.first if self.count == 1 else f'{self.first} to {self.last}'})"


def _publish_batch(
    store: Store, queue: str | None, batch: list[tuple[int, Outgoing]], accept: Callable[[Outgoing], None]
) -> Sequence[Published]:
    for number, message in batch:
        try:
            accept(message)
        except Invalid as error:
            raise Invalid(f"line {number}: {error}") from error
    try:
        return _publish(store, queue, [_addressed(message, queue) for _, message in batch])
    except DetentError as error:
        raise type(error)(f"lines {batch[0][0]} to {batch[-1][0]} were refused: {error}") from error
