"""Ways from a journal to a journal: a graph, the same by hand, or none, where both are the same journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice, pairwise
from typing import Any, NamedTuple

import detent
from bench.place import Place
from detent.journal import Journal
from detent.processor import Graph, Out, stream

PATIENCE_S = 60.0
BODY_BYTES = 100
NAP_S = 0.001
"""How long a function takes that waits for something."""


class Ends(NamedTuple):
    """Where messages go in, and where they come out. Those who send take the inputs in turn."""

    inputs: Sequence[Journal]
    output: Journal


Way = Callable[[detent.Store, str, int, int], AbstractContextManager[Ends]]
"""Is given a store, a name for what it makes there, how many messages may be handed on at once, and how many come."""


@contextmanager
def new_store(place: Place, kind: str) -> Iterator[detent.Store]:
    """An empty store, on the disk or in memory."""
    with place.fresh() as folder, detent.open(f"file:{folder / 'store'}" if kind == "file" else "memory:") as store:
        yield store


def body(number: int) -> bytes:
    """The body of a message; each has its number in it."""
    return (b"%d " % number).ljust(BODY_BYTES, b"x")


# -- journals alone -----------------------------------------------------------------------------------------------


@contextmanager
def raw(store: detent.Store, name: str, batch: int, count: int) -> Iterator[Ends]:
    """One journal."""
    yield _ends(_journals(store, name, 1))


def by_hand(hops: int) -> Way:
    """A thread for each hop, which tails a journal and appends to the next one."""

    @contextmanager
    def way(store: detent.Store, name: str, batch: int, count: int) -> Iterator[Ends]:
        journals = _journals(store, name, hops + 1)
        carry = _carry_one if batch == 1 else _carry_many
        threads = [
            threading.Thread(target=carry, args=(source, target, batch, count), daemon=True)
            for source, target in pairwise(journals)
        ]
        for thread in threads:
            thread.start()
        yield _ends(journals)
        for thread in threads:
            thread.join(PATIENCE_S)

    return way


def _carry_one(source: Journal, target: Journal, _: int, count: int) -> None:
    for message in islice(source.tail(0), count):
        target.append(message.body)


def _carry_many(source: Journal, target: Journal, batch: int, count: int) -> None:
    """As `Journal.tail` does it, which does not say where the messages end that are there by now."""
    at = 0
    while at < count:
        source.wait(at)
        messages = source.read(at, source.next_offset())
        while some := [message.body for message in islice(messages, batch)]:
            target.append_many(some)
            at += len(some)


def _journals(store: detent.Store, name: str, count: int) -> list[Journal]:
    journals = [store.journal(f"{name}-{number}") for number in range(count)]
    for journal in journals:
        journal.create()
    return journals


def _ends(journals: Sequence[Journal]) -> Ends:
    return Ends(journals[:1], journals[-1])


# -- graphs -------------------------------------------------------------------------------------------------------


def same(value: bytes) -> bytes:
    """A function for those who want to know what everything else costs."""
    return value


def same_later(value: bytes) -> bytes:
    """The same after a while."""
    time.sleep(NAP_S)
    return value


def same_whole(values: list[bytes]) -> list[Out]:
    """The same for a batch."""
    return [Out(value) for value in values]


def graph(hops: int = 1, function: Callable[..., Any] = same, **options: Any) -> Way:
    """Streams in a row."""

    @contextmanager
    def way(store: detent.Store, name: str, batch: int, count: int) -> Iterator[Ends]:
        journals = _journals(store, name, hops + 1)
        made = Graph(name)
        made.source(journals[0].name)
        for source, target in pairwise(journals):
            made.add(stream(target.name, function, input=source.name, output=target.name, batch=batch, **options))
        with running(made, store):
            yield _ends(journals)

    return way


@contextmanager
def any_of(store: detent.Store, name: str, batch: int, count: int) -> Iterator[Ends]:
    """One stream with two inputs."""
    *inputs, output = _journals(store, name, 3)
    made = Graph(name)
    for one in inputs:
        made.source(one.name)
    made.add(stream("any", same, any_of=[one.name for one in inputs], output=output.name, batch=batch))
    with running(made, store):
        yield Ends(inputs, output)


def across(place: Place) -> Way:
    """One stream whose output is in another store, also on the disk."""

    @contextmanager
    def way(store: detent.Store, name: str, batch: int, count: int) -> Iterator[Ends]:
        (source,) = _journals(store, name, 1)
        with place.fresh() as folder:
            made = Graph(name, stores={"other": f"file:{folder / 'other'}"})
            made.source(source.name)
            made.add(stream("across", same, input=source.name, output=f"{name}-other-0@other", batch=batch))
            with made.open(store) as live:  # the graph opens the other store, so that this process owns it too
                (target,) = _journals(live.stores["other"], f"{name}-other", 1)
                live.start()
                yield Ends([source], target)

    return way


@contextmanager
def running(made: Graph, store: detent.Store) -> Iterator[None]:
    """A graph in threads of this process."""
    with made.open(store) as live:
        live.start()
        yield
