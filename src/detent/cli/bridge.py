"""`detent bridge`: a topic of Kafka into a store and out again, without a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from detent.cli._common import with_options
from detent.cli._help import CommandList
from detent.cli.kinds.bridge import ReadyBridge
from detent.cli.run import OPTIONS, execute, task_store_option

_shared = with_options(
    [
        click.option("--brokers", metavar="HOST:PORT,...", help="The brokers (or DETENT_KAFKA_BROKERS)."),
        click.option(
            "--config",
            type=click.Path(path_type=Path),
            help="A file with settings of librdkafka, name=value on each line, such as credentials.",
        ),
        click.option("--name", help="The bridge's name in the store and in Kafka; if left out, that of what it reads."),
        click.option(
            "--start",
            type=click.Choice(["earliest", "latest"]),
            default="earliest",
            show_default=True,
            help="Where it begins when it runs for the first time.",
        ),
        click.option("--batch", type=click.IntRange(1), help="Messages of one transaction, at most."),
        OPTIONS["Options of bridges"][1]["accept"],
        task_store_option,
        click.option("--once", is_flag=True, help="Copy what there is, then stop."),
        click.option("--verbose", is_flag=True, help="Show the log too."),
        click.option("--json", "as_json", is_flag=True, help="Print an object a line: what happens, and a status."),
    ]
)


@click.group(cls=CommandList, short_help="Copy between Kafka and a store, exactly once.")
def bridge() -> None:
    """Copy between Kafka and a store, each message exactly once, without Spark and without Java.

    \b
    Try it:
      export DETENT_URL=file:./data DETENT_KAFKA_BROKERS=127.0.0.1:9092
      detent bridge kafka in orders --journal orders --once
      detent bridge kafka out orders --topic copies --once
      detent ls
    """


@bridge.group("kafka", cls=CommandList, short_help="Bridges to Kafka.")
def kafka() -> None:
    """Bridges to Kafka: a topic into a journal or a queue, and a journal out to a topic.

    A bridge runs until Ctrl-C or SIGTERM and goes on from there the next time, however it ended. What it cannot be
    certain of, it refuses: records that were deleted before they were read, a topic that was made anew, a place that
    Kafka has forgotten. The refusal says which word of --accept lets it go on, and with what consequence.

    Passwords belong into a file: --config FILE, or DETENT_KAFKA_CONFIG. A Python file can declare bridges, too, for
    `detent run`. `detent show`, `pause`, `resume`, `reset` and `rm` steer them.
    """


@kafka.command("in", short_help="Copy a topic into a journal or a queue.")
@click.argument("topic")
@click.option("--journal", help="The journal; {partition} in its name is the partition's number.")
@click.option("--queue", help="The queue, instead of a journal.")
@click.option("--dead-letters", metavar="JOURNAL", help="The journal for records that a message cannot hold.")
@click.option("--shards", type=click.IntRange(1), help="How many parts the partitions are divided into, for ever.")
@_shared
def copy_in(
    topic: str, journal: str | None, queue: str | None, dead_letters: str | None, shards: int | None, **given: Any
) -> None:
    """Copy a topic into a journal or a queue, each committed record once.

    Records, and the offsets of the next ones, are one transaction of the store. Keys stay keys, headers headers; the
    headers kafka.topic, kafka.partition, kafka.offset and kafka.timestamp say where a message is from. Several
    processes share the partitions if there are --shards.

    A record that a message cannot hold, such as one over 16 MiB, ends the bridge. With --dead-letters it becomes a
    message of that journal, once: the headers kafka.partition and kafka.offset say where the record is, kafka.refused
    why, and kafka.left what of it the message does not have.

    \b
    Examples:
      detent bridge kafka in orders --journal orders
      detent bridge kafka in orders --queue orders --start latest
      detent bridge kafka in orders --journal orders/{partition} --shards 4
      detent bridge kafka in orders --journal orders --dead-letters orders-dead
    """
    from detent.kafka import FromTopic

    ends: dict[str, Any] = {"journal": journal, "queue": queue, "dead_letters": dead_letters}
    if shards is not None:
        ends["shards"] = shards
    made = FromTopic(given["name"] or topic, topic=topic, **ends, **_options(given))
    _run(made, given)


@kafka.command("out", short_help="Copy a journal into a topic.")
@click.argument("journal")
@click.option("--topic", required=True, help="The topic, which must be there.")
@_shared
def copy_out(journal: str, topic: str, **given: Any) -> None:
    """Copy a journal into a topic: readers of committed records see each message once.

    Messages, and the offset of the next one, are one transaction of Kafka. A second process waits until the first one
    is gone; one that was replaced writes nothing any more. The headers detent.journal and detent.offset say which
    message a record was.

    \b
    Example:
      detent bridge kafka out paid --topic paid
    """
    from detent.kafka import ToTopic

    _run(ToTopic(given["name"] or journal, journal=journal, topic=topic, **_options(given)), given)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a declaration."""
    from detent.kafka.cluster import read_config

    config = given["config"]
    found = {"brokers": given["brokers"], "start": given["start"], "config": read_config(config) if config else {}}
    return found if given["batch"] is None else {**found, "batch": given["batch"]}


def _run(made: Any, given: dict[str, Any]) -> None:
    execute([ReadyBridge(made, given)], given)
