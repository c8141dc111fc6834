"""`detent message`: publish messages to all queues that match, and look at one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from detent.cli._common import open_for_writing, parse_message, store_options, takes_store
from detent.cli._help import CommandList
from detent.cli._output import duration_text, line_text, print_fields, print_json
from detent.cli._publish import Options, publish_options, run

if TYPE_CHECKING:
    from detent.queue import MessageInfo, MessagePlace


@click.group(cls=CommandList, short_help="Publish messages to the queues that match, and look at one.")
def message() -> None:
    """Publish messages to all queues whose filters match, and look at one.

    A message is stored once and has one number, in however many queues it is.

    \b
    Example:
      export DETENT_URL=file:./data
      detent queue create gold --filter 'headers.tier == "gold"'
      detent message publish 'order 7' --header tier=gold
      detent message show 0
    """


@message.command()
@takes_store(rest="[BODY]")
@publish_options
@store_options
def publish(url: str, body: tuple[str, ...], force: bool, as_json: bool, **options: Any) -> None:
    """Publish messages to every queue whose filter matches.

    A filter looks at the headers of a message. Publishes one message that is given as BODY, or many from stdin. Prints
    the number of the message. When the command ends well, all are durable. A message that no queue wants is stored all
    the same: a queue that is created with --earliest gets it. To publish to one queue by name, use `detent queue
    publish`; its help says how stdin is read.

    \b
    Examples:
      detent message publish file:./data 'order 7' --header tier=gold
      detent message publish file:./data --uri s3://bucket/video.mp4 \\
          --header kind=video --retention forever
      detent message publish file:./data --header source=import < lines.txt
    """
    run(url, None, body, Options(**options), force=force, as_json=as_json)


@message.command()
@takes_store("ID")
@store_options
def show(url: str, id: str, force: bool, as_json: bool) -> None:
    """Show a message: its headers, its body, and its queues.

    For each queue: whether the message waits, is in flight, is done or failed, and the attempts at it.

    \b
    Example:
      detent message show file:./data 17
    """
    number = parse_message(id)
    with open_for_writing(url, force=force) as store:
        found = store.message(number)
    if as_json:
        from detent.cli._messages import message_fields

        print_json(message_fields(found))
    else:
        _print(found)


def _print(found: MessageInfo) -> None:
    from detent.cli._messages import attempt_text, content_lines, iso, print_dead_letters

    fields = {"message": str(found.message)}
    if found.created is not None and found.received is not None and found.visible is not None:
        retention = found.retention
        fields["created"] = iso(found.created)
        fields["published"] = iso(found.received)
        fields["visible from"] = iso(found.visible)
        fields["retention"] = "forever" if retention is None else duration_text(round(retention.total_seconds() * 1000))
        fields |= content_lines(found.body, found.uri, found.headers)
    else:
        fields["body"] = "not stored any more"
    print_fields(fields)
    if not found.places:
        click.echo("in no queue")
    for place in found.places:
        click.echo(f"in queue {place.queue}: {_place_text(place)}")
        for attempt in place.history:
            click.echo(f"  {attempt_text(attempt)}")
        print_dead_letters(place.dead_letters)


def _place_text(place: MessagePlace) -> str:
    from detent.cli._messages import iso

    tries = "1 attempt" if place.attempts == 1 else f"{place.attempts} attempts"
    word = "until" if place.state in {"delayed", "in flight"} else "since"
    text = f"{place.state} {word} {iso(place.at)}, {tries}"
    if place.state != "done":
        text += f", priority {place.priority}"
    if place.consumer:
        text += f", {'read' if place.state == 'assigned' else 'claimed'} by {line_text(place.consumer)}"
    return text + (f": {line_text(place.reason)}" if place.reason else "")
