"""`detent consumer`: what consumers alone have, beside the verbs of all tasks."""

from __future__ import annotations

import json
from typing import Any

import click

from detent.cli._common import open_for_writing, store_options, takes_store
from detent.cli._help import CommandList


@click.group(cls=CommandList, short_help="See the state that consumers keep in their store.")
def consumer() -> None:
    """See the state that consumers keep in their store.

    A consumer is an application that reads journals, keeps state and publishes, each message exactly once. `detent run`
    runs it; its work is divided into shards, each of which one process holds at a time, here and wherever else the
    same is run on the same store. `detent ls`, `show`, `wait`, `pause`, `resume`, `reset` and `rm` look at it and steer
    it.

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
      export DETENT_URL=file:./data
      echo 'to be or not to be' | detent journal append lines
      detent run words.py --once
      detent consumer state words
      detent run words.py:app --workers 2
      detent show consumer/words
      detent wait words --input lines=latest
    """


@consumer.command()
@takes_store("NAME")
@click.option("--shard", type=click.IntRange(0), help="Only this shard.")
@click.option("--prefix", default="", help="Only keys that begin so.")
@store_options
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
