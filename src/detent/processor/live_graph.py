"""A graph with its stores open: its processors in threads, supervised; messages sent, read and traced."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from detent.durations import Duration, milliseconds
from detent.errors import DetentError, Invalid, NotFound, Unavailable
from detent.journal import Appended, Message
from detent.processor import moving, settling, status, tracing
from detent.processor.declaration import JournalPlace, Processor, place
from detent.processor.outcome import encoded, headers_of, key_of
from detent.processor.plan import GraphPlan, OpenGraph, consumer_name
from detent.processor.recovery import check_same_inputs, shape_of
from detent.processor.runner import Runner
from detent.processor.step import Out
from detent.processor.task import ProcessorTask, SupervisedProcessor
from detent.runtime.signals import stop_on_signals
from detent.runtime.supervisor import OnEvent, Supervised
from detent.runtime.target import refuse_while_loading
from detent.stream.membership import BEATS, Beats, new_member
from detent.stream.opening import coroutines_run, opened_stores, store_url

if TYPE_CHECKING:
    from detent.store import Store

REPORT_S: Final = 1.0
BEAT_END_S: Final = 1.0
"""How long the end of a graph waits, at least, for the thread that renews its leases."""

STOP_TIMEOUT: Final = "60s"
logger = logging.getLogger("detent.processor")


@contextmanager
def opened(
    graph: GraphPlan, store: str | Store | None = None, *, on_event: OnEvent | None = None, member: str | None = None
) -> Iterator[LiveGraph]:
    """The graph with its stores open. At the end its processors are stopped."""
    graph.check()
    url = partial(store_url, f"Graph({graph.name!r}, store='file:./data')", graph.store)
    is_async = any(processor.is_async for processor in graph.processors)
    with opened_stores(url, store, graph.stores) as stores, coroutines_run(is_async) as run_coroutine:
        _refuse_twins(stores)
        live = LiveGraph(graph, stores, run_coroutine, on_event, member)
        try:
            yield live
        finally:
            live.stop()


def _refuse_twins(stores: Mapping[str, Store]) -> None:
    """A store under two names has two fences for one processor, which would replace itself again and again."""
    seen: dict[str, str] = {}
    for name, store in stores.items():
        if store.url == "memory:":
            continue  # each is its own
        url = os.path.realpath(store.url.removeprefix("file:")) if store.url.startswith("file:") else store.url
        if (other := seen.setdefault(url, name)) != name:
            first = f"the store {other!r}" if other else "the graph's own store"
            raise Invalid(f"{first} and the store {name!r} are one, {store.url}: use one name for it")


def run(
    graph: GraphPlan,
    store: str | Store | None = None,
    *,
    once: bool = False,
    only: Sequence[str] | None = None,
    migrate: Sequence[str] = (),
) -> None:
    """Run a graph until it is told to stop, or until nothing is left to do."""
    refuse_while_loading("graph.run()")
    with opened(graph, store) as live:
        if threading.current_thread() is not threading.main_thread():
            live.start(only=only, migrate=migrate)
            live.finish() if once else live.join()
            return
        stopping = threading.Event()
        with stop_on_signals(stopping):
            live.start(only=only, migrate=migrate)
            live.finish(stopping) if once else stopping.wait()


class LiveGraph:
    """A graph whose stores are open. Made by ``with graph.open() as live``."""

    def __init__(
        self,
        graph: GraphPlan,
        stores: Mapping[str, Store],
        run_coroutine: Callable[[Any], Any] | None = None,
        on_event: OnEvent | None = None,
        member: str | None = None,
    ) -> None:
        self.graph = graph
        self.stores = stores
        self.store = stores[""]
        self.opened = OpenGraph(graph, stores)
        self._run_coroutine = run_coroutine
        self._on_event = on_event or _ignore
        self._member = member or new_member()
        self._lives: dict[str, SupervisedProcessor] = {}
        self._beats: Supervised | None = None
        self._steering = threading.RLock()

    # -- running ------------------------------------------------------------------------------------------------

    def start(self, *, only: Sequence[str] | None = None, migrate: Sequence[str] = ()) -> None:
        """Start the processors, or some of them. Returns when each of those that this process got has recovered, or has
        failed to: what is wrong with the graph itself is raised here.

        `migrate` names processors whose inputs were changed on purpose.
        """
        with self._steering:
            names = self._start(only, migrate)
        self._wait_until_started(names)

    def _start(self, only: Sequence[str] | None, migrate: Sequence[str]) -> list[str]:
        chosen = self.graph.in_order() if only is None else [self.graph.processor(name) for name in only]
        for name in migrate:
            self.graph.processor(name)
        running = [one for one in chosen if one.runs]
        self._check_shapes([one for one in running if one.name not in migrate])
        moving.take_over(self.opened, running)
        for processor in chosen:
            if processor.runs:
                self._life(processor, processor.name in migrate).start()
        if self._beats is None:
            period_s = min(REPORT_S, self.graph.lease_ms / 1000 / BEATS)
            self._beats = Supervised(Beats(f"detent-graph-{self.graph.name}", period_s, self._beat)).start()
        return [one.name for one in running]

    def _check_shapes(self, processors: Sequence[Processor]) -> None:
        """Refuse what cannot go on, before any has begun. (Each looks again when it opens its record: that is what
        counts.)"""
        known = status.records(self.opened)
        for processor in processors:
            found = known.get(processor.name) or (known.get(processor.formerly) if processor.formerly else None)
            if found is not None and found[1] is not None:
                shape = shape_of(processor, self.graph.errors_of(processor), self.graph.delivery_of(processor))
                check_same_inputs(f"{self.graph.name}/{processor.name}", found[1].shape, shape)

    def _life(self, processor: Processor, migrate: bool) -> SupervisedProcessor:
        """The supervised processor; made anew unless it is at work."""
        known = self._lives.get(processor.name)
        if known is not None and known.is_alive:
            return known
        task = ProcessorTask(
            processor,
            consumer_name(self.graph.name, processor.name),
            lambda: self._runner(processor, migrate),
            self.store,
            member=self._member,
            lease_ms=self.graph.lease_ms,
        )
        life = SupervisedProcessor(task, self._on_event)
        self._lives[processor.name] = life
        return life

    def _runner(self, processor: Processor, migrate: bool) -> Runner:
        return Runner(
            self.graph.name,
            processor,
            self.stores,
            errors=self.graph.errors_of(processor),
            delivery=self.graph.delivery_of(processor),
            system=self.graph.system,
            run_coroutine=self._run_coroutine,
            migrate=migrate,
        )

    def _wait_until_started(self, names: Sequence[str]) -> None:
        """Until each runs, stands by or has failed. A failure at the very start is the caller's: with what was declared
        it would happen again and again."""
        for name in names:
            life = self._lives[name]
            while life.status == "starting" and life.is_alive:
                time.sleep(0.001)
            error = life.error
            if isinstance(error, DetentError) and not isinstance(error, Unavailable) and life.task.record is None:
                self.stop()
                raise error

    def stop(self, timeout: Duration = STOP_TIMEOUT) -> None:
        """End all processors, each after the step under way. `Unavailable` if one does not end in time."""
        for life in list(self._lives.values()):  # at once, also those that are just being started
            life.stop_soon()
        with self._steering:
            for life in self._lives.values():
                life.stop_soon()
            deadline = time.monotonic() + milliseconds(timeout) / 1000
            ends = [(life, life.join(max(0.0, deadline - time.monotonic()))) for life in self._lives.values()]
            late = [life.processor.name for life, has_ended in ends if not has_ended]
            if self._beats is not None:  # it may wait for a store that is away, and ends by itself then
                self._beats.stop(max(BEAT_END_S, deadline - time.monotonic()))
                self._beats = None
        if late:
            raise Unavailable(f"{', '.join(late)} did not end within {timeout}: a function is still at work")

    def restart(self, name: str) -> None:
        """End one processor after its step, and begin it again."""
        self.graph.processor(name)
        life = self._lives.get(name)
        if life is None:
            raise Invalid(f"the processor {name!r} was not started here")
        life.restart()

    def join(self) -> None:
        """Wait until all processors were stopped."""
        for life in list(self._lives.values()):
            life.join()

    # -- leases and reports -------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Renew the leases, and tell the store how each processor is doing."""
        for life in list(self._lives.values()):
            life.task.beat(life.status, life.error)

    # -- messages -----------------------------------------------------------------------------------------------

    def send(
        self,
        value: Any,
        to: str | None = None,
        *,
        key: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        type: str | None = None,
        topics: Sequence[str] = (),
    ) -> Appended:
        """Append a message to a source; when this returns it survives a power cut. `to` may be left out where there is
        one source."""
        out = Out(value, key, headers or {}, type, topics)
        where = self._source(to)
        raw = None if out.key is None else key_of(out.key)
        journal = self.stores[where.store].journal(where.journal)
        return journal.append(encoded(value), key=raw, headers=headers_of(out))

    def _source(self, to: str | None) -> JournalPlace:
        """A journal that a processor reads, or a source: what is sent anywhere else would be lost unnoticed."""
        sources = {one.name: next(iter(one.outputs.values())) for one in self.graph.processors if one.kind == "source"}
        if to is None:
            if len(sources) != 1:
                raise Invalid(f"the graph {self.graph.name!r} has {len(sources)} sources: say to which one")
            return next(iter(sources.values()))
        where = self._place(to)
        if where in sources.values() or any(where in one.inputs for one in self.graph.processors):
            return where
        if to not in sources:
            listed = ", ".join(map(str, sources.values())) or "none"
            raise Invalid(
                f"the graph {self.graph.name!r} has no source {to!r}, and no processor reads it: it has {listed}"
            )
        return sources[to]

    def _place(self, text: str) -> JournalPlace:
        found = place(text)
        if found.store not in self.stores:
            raise Invalid(f"the graph {self.graph.name!r} has no store {found.store!r}")
        return found

    def read(self, journal: str, start: int | None = None, end: int | None = None) -> Iterator[Message]:
        """The messages of a journal of the graph; none if it does not exist yet."""
        where = self._place(journal)
        try:
            yield from self.stores[where.store].journal(where.journal).read(start, end)
        except NotFound:
            if (
                start is not None
                or end is not None
                or self.stores[where.store].reader.number(where.journal) is not None
            ):
                raise

    def trace(self, journal: str, offset: int) -> tracing.Hop:
        """Where a message comes from: which processor wrote it and when, and the same for each of its inputs."""
        return tracing.trace(self.stores, self._place(journal), offset)

    def latency(self, journal: str, last: int = tracing.LAST) -> tracing.Latency | None:
        """How long the last messages of a journal took from their source to there; None if it is empty."""
        return tracing.latency_of(self.stores, self._place(journal), last)

    # -- looking and steering -----------------------------------------------------------------------------------

    def status(self, *, latency: bool = True) -> list[status.ProcessorStatus]:
        """How each processor is doing, as the store knows it: also those that run elsewhere. For the `latency` the last
        messages of every output are read."""
        return status.statuses(self.opened, latency=latency)

    def local_error(self, name: str) -> BaseException | None:
        """Why a processor of this process failed last, if it has not run since."""
        life = self._lives.get(name)
        return None if life is None else life.error

    def settle(self, timeout: Duration | None = "60s", *, stopping: threading.Event | None = None) -> None:
        """Wait until the processors that were started here have done all that there is to do, also those of them that
        another process runs. Raises what made one fail; `Unavailable` if it fails in another process, and after the
        timeout."""
        if not self._lives:
            raise Invalid("nothing was started here: live.start() comes first")
        settling.settle(self._lives.values(), self.stores, timeout, stopping)

    def finish(self, stopping: threading.Event | None = None) -> None:
        """The same for a run that ends then, without a timeout: a processor that fails starts over, as in a run that
        does not end, and what made it fail is raised if it does so several times with no step in between."""
        processors = self.graph.processors
        dropping = {one.name for one in processors if self.graph.delivery_of(one) == "at-most-once"}
        patience = settling.RestartPatience(dropping)
        settling.settle(self._lives.values(), self.stores, None, stopping, patience)

    def reset(
        self, name: str, to: str | int | Mapping[str, int] = "earliest", *, time: Any = None
    ) -> Mapping[str, int]:
        """Have a processor read its inputs again from other offsets: "earliest", "latest", a number, or a number for
        each input; or from a `time` on. What it does then are new deliveries, under new keys. Answers the offsets."""
        offsets = moving.reset(self.opened, self.graph.processor(name), to, time)
        life = self._lives.get(name)
        if life is not None and life.is_alive:
            life.restart()  # one that waits for messages would not hear of it before the next one
        return offsets

    def forget(self, name: str) -> None:
        """Delete the progress of a processor, which the graph need not have any more. One of that name begins anew."""
        moving.forget(self.opened, name)


def _ignore(what: str, processor: str, more: str) -> None:
    del what, processor, more
