"""`once(...)`: a function for ``foreachBatch`` that lets each batch take effect once in every sink it has.

Spark runs a batch again when it does not know that it was done. So each sink keeps a record of what it has, in the same
commit as the rows: the store its ledger, a Delta table its transaction ids, a database a table. Sinks outside of the
store come first and the store's ledger last, so a batch that the ledger has is in all of them; after a crash in
between, those that are done see it and change nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame

from detent import crash, spans
from detent.errors import AlreadyEntered, Invalid, OtherInput
from detent.kv import absolute_url, parse_url
from detent.ledger.operations import check_name
from detent.remote import server_address
from detent.spark.advice import completing
from detent.spark.once_batch import (
    EngineSink,
    ExternalSink,
    MarkPlace,
    QueryKind,
    Select,
    Share,
    check_select,
    compute,
    is_entered,
    key_of,
    query_kind,
    selected,
)
from detent.spark.opened import opened
from detent.spark.queue_outgoing import whole_room
from detent.store import Store
from detent.tables.marks import BatchKey

Sink = ExternalSink | EngineSink


def once(store: Store | str, name: str, *sinks: Sink, server: str | None = None) -> Once:
    """Make a function for ``foreachBatch`` that writes each batch to all `sinks`, once.

    >>> write = once("file:/data/store", "paid", to_delta("/tables/paid"), to_queue("mail", select=["id AS body"]))
    >>> orders.where("paid").writeStream.foreachBatch(write).option("checkpointLocation", "/checkpoints/paid").start()

    `store` holds the ledger, and the journals and queues that are written to; `name` is this stream's own in the
    ledger. Sinks are made by `to_journal`, `to_queue`, `to_delta`, `to_sql` and `call`. All journals and queues of a
    batch, and its ledger row, take effect in one transaction. `server` is the URL of the server that owns the store, if
    it is not the driver that does: tasks then write to the object store directly, and the server commits.

    A stream whose checkpoint was deleted is another query, and is refused with `Fenced` until ``detent ledger reset
    NAME``: it would write again what is there.
    """
    return Once(store, name, sinks, server)


class Once:
    """What :func:`once` makes. It can be pickled; a store that was given open stays behind, and is found by its URL."""

    def __init__(self, store: Store | str, name: str, sinks: tuple[Sink, ...], server: str | None = None) -> None:
        check_name(name)
        self._url = _url_of(store)
        self._owner_url = self._url if server is None else server
        self._name = name
        self._sinks = sinks
        self._store = store if isinstance(store, Store) and server is None else None
        self._kinds: dict[str, QueryKind] = {}
        _check_sinks(sinks)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        more = {"detent.batch": batch_id}
        with completing(self._owner_url), spans.processing(self._name, (), operation="batch", more=more):
            self._write(batch, batch_id)

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        key = key_of(self._name, batch, batch_id)
        store = self._store or opened(self._owner_url, "client")
        kind = self._kind(batch, key)
        if is_entered(store, key):
            if kind.keeps_state:
                compute(batch)
            return
        with _kept(batch, len(self._sinks), kind.keeps_state):
            # Nothing that is staged has an effect yet, and rows that do not fit are found before anything has.
            staged = [(sink, sink.stage(batch, self._url)) for sink in self._sinks if isinstance(sink, EngineSink)]
            crash.point("spark.once.after_stage")
            if not self._write_outside(store, batch, key):
                return
        transaction = store.transaction()
        transaction.enter_ledger(key.name, key.batch, query=key.query, run=key.run, input=key.input)
        for sink, answers, share in _shared(key, staged):
            sink.add(store, transaction, answers, share)
        crash.point("spark.once.before_commit")
        with contextlib.suppress(AlreadyEntered):  # by another driver of the same query, with all that belongs to it
            transaction.commit()
        crash.point("spark.once.after_commit")

    def _write_outside(self, store: Store, batch: DataFrame, key: BatchKey) -> bool:
        """Let the sinks outside of the store have the batch. False if another driver has finished it meanwhile: a sink
        may then be ahead of it, and can not tell."""
        try:
            for external in self._sinks:
                if isinstance(external, ExternalSink):
                    external.write(batch, key)
        except OtherInput:
            if is_entered(store, key):
                return False
            raise
        return True

    def _kind(self, batch: DataFrame, key: BatchKey) -> QueryKind:
        """What the query is like. A run of it has one kind; sinks refuse one that they cannot write."""
        kind = self._kinds.get(key.run)
        if kind is None:
            kind = query_kind(batch)
            for sink in self._sinks:
                sink.check_mode(kind.mode)
            self._kinds = {key.run: kind}
        return kind


def _shared(key: BatchKey, staged: list[tuple[EngineSink, list[Any]]]) -> Iterator[tuple[EngineSink, list[Any], Share]]:
    """What each sink has of the batch's transaction, in which those that publish share the room. They come first: what
    has no room is published meanwhile. A replay may have other sinks, so each is known by its name, and by how many of
    that name came before it."""
    publishing = sum(sink.publishes for sink, _ in staged)
    room = whole_room().share(max(publishing, 1))
    seen: Counter[str] = Counter()
    for sink, answers in sorted(staged, key=lambda pair: not pair[0].publishes):
        before = seen[sink.name]
        seen[sink.name] += 1
        yield sink, answers, Share(key, f"{sink.name} {before + 1}" if before else sink.name, room)


@contextlib.contextmanager
def _kept(batch: DataFrame, sinks: int, keeps_state: bool) -> Iterator[None]:
    """Compute a batch once for several sinks. Computed anew for each, what is not a pure function of the input, such as
    ``uuid()`` or ``current_timestamp()``, would tell each another story. With state it is computed in any case: sinks
    that have the batch do not ask for its rows."""
    if sinks == 1 and not keeps_state:
        yield
        return
    batch.persist()
    try:
        yield
        if keeps_state:
            compute(batch)
    finally:
        batch.unpersist()


def _url_of(store: Store | str) -> str:
    if isinstance(store, Store):
        url = store.url
    elif isinstance(store, str):
        url = store if server_address(store) is not None else absolute_url(store)
    else:
        raise Invalid(f"a store is given open, or by its URL such as file:/data/store, and not as {store!r}")
    if server_address(url) is None and parse_url(url).scheme == "memory":
        raise Invalid("a memory: store lives in one process, and Spark's work is done by many: use file:, s3: or http:")
    return url


def _check_sinks(sinks: tuple[Sink, ...]) -> None:
    if not sinks:
        raise Invalid("once(...) has nothing to write to: give it a sink, such as to_journal('orders')")
    places: list[MarkPlace] = []
    for sink in sinks:
        if not isinstance(sink, ExternalSink | EngineSink):
            raise Invalid(
                f"{sink!r} is no sink: make one with to_journal, to_queue, to_delta, to_sql, or of a function with call"
            )
        place = sink.place if isinstance(sink, ExternalSink) else None
        if place in places:
            raise Invalid(
                f"two sinks have the same record of their batches ({place}), so the second one would take its rows for "
                "written: unite the rows first, or give one of the sinks a label of its own, if it takes one"
            )
        if place is not None:
            places.append(place)


def call(function: Callable[[DataFrame, str], Any], *, select: Select = None) -> ExternalSink:
    """A sink that is a function of the batch and a key, such as ``paid/0b1c.../17``.

    It is called at least once: again, with the same key, when the batch is replayed before all sinks were done. Let
    it put the key where it writes, and look for it first; then it is once. (No record of ours can tell whether a
    function that ended in a crash had written.)
    """
    return _Call(function, select)


class _Call(ExternalSink):
    @property
    def name(self) -> str:
        return f"function {getattr(self._function, '__name__', type(self._function).__name__)}"

    def __init__(self, function: Callable[[DataFrame, str], Any], select: Select) -> None:
        if not callable(function):
            raise Invalid(f"call takes a function of a DataFrame and a key, not {function!r}")
        check_select(select)
        self._function = function
        self._select = select

    def write(self, batch: DataFrame, key: BatchKey) -> None:
        self._function(selected(batch, self._select), str(key))
