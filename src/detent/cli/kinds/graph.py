"""Graphs of processors: functions between journals."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from detent.cli._common import count_text, is_server, open_for_writing, parse_place, resolve
from detent.cli._output import note, print_table, progress_bar
from detent.cli._views import LAG, Look, ReportColumn, TaskNotice, TaskView, counted
from detent.cli.kinds.consumer import FREE, look, shown_error, shown_status, total_lag
from detent.cli.kinds.kind import LOOK_S, Found, Given, KnownTask, ReadyTask, TaskKind, VerbOptions, store_of
from detent.errors import DetentError, Invalid, NotFound, Unavailable
from detent.runtime import thread
from detent.runtime.report import Report, State, Trouble, state_of

if TYPE_CHECKING:
    from detent.processor import Graph
    from detent.processor.declaration import JournalPlace, Processor
    from detent.processor.live_graph import LiveGraph
    from detent.processor.status import ProcessorStatus
    from detent.shard import ConsumerInfo
    from detent.store import Store

COUNTED: Final = ("outputs", "errors", "nils")
"""What may come of an input set."""

COLUMNS: Final = (
    ReportColumn("processor", lambda part: part.name, is_number=False),
    ReportColumn("status", lambda part: part.about["status"], is_number=False),
    LAG,
    *map(counted, COUNTED),
    ReportColumn("restarts", lambda part: f"{part.restarts:,}"),
)

_STATES: Final = {
    "new": State.STOPPED, "starting": State.STARTING, "running": State.RUNNING, "standby": State.STANDBY,
    "fenced": State.STANDBY, "paused": State.PAUSED, "failed": State.FAILED, "died": State.FAILED,
}  # fmt: skip


# -- finding ----------------------------------------------------------------------------------------------------------


def graph_store(graph: Graph, given: str | None) -> str:
    """Where the graph's store is: the first of those that say it."""
    return store_of("graph", "Graph", graph.name, graph.store, given)


@contextmanager
def opened(graph: Graph, given: str | None, *, create: bool = False) -> Iterator[LiveGraph]:
    """The graph with its stores open. A command that only looks makes none: in the wrong folder it would be empty."""
    from detent.kv import open_reader

    url = graph_store(graph, given)
    if not create and not is_server(url):
        try:
            open_reader(url).close()
        except NotFound as error:
            hint = "run the graph once, or say where its store is with --store URL"
            raise NotFound(f"{error}; {hint}") from error
    with graph.open(url) as live:
        yield live


class GraphKind(TaskKind):
    """The kind."""

    noun = "graph"
    home = "detent.processor"
    usual = "graph"
    is_named_by_file = True
    example = "shop.py:graph or shop.graphs:orders"
    lines = 'from detent.processor import Graph; graph = Graph("shop", store="file:./data")'

    def classes(self) -> tuple[type, ...]:
        """Of a graph."""
        from detent.processor import Graph

        return (Graph,)

    def find(self, target: str) -> Graph:
        """One that can run; `Invalid` with all that is wrong if it cannot."""
        found: Graph = super().find(target)
        found.check()
        return found

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """One task a graph."""
        return [ReadyGraph(one.what, given) for one in found]

    @contextmanager
    def declared(self, found: Any, given: Given) -> Iterator[KnownTask]:
        """A graph of a file, in the stores that it says."""
        found.check()
        url = given.get("url")
        taken = open_for_writing(graph_store(found, url), force=True) if given.get("force") else nullcontext()
        with taken, opened(found, url) as live:
            yield KnownGraph(live)

    def stored(self, store: Store) -> Iterator[KnownTask]:
        """All graphs of which a store has processors."""
        names = sorted({info.name.split("/")[1] for info in store.consumers("graph/")})
        for name in names:
            yield StoredGraph(store, name)

    def known(self, store: Store, name: str) -> KnownTask | None:
        """One of which there are processors; ``NAME/PROCESSOR`` is one of these alone."""
        found = StoredGraph(store, name)
        return found if found.consumers() else None


def processors_to_run(graph: Graph, only: Sequence[str]) -> list[str]:
    """The processors that there is something to run of."""
    for name in only:
        if not graph.processor(name).runs:
            raise Invalid(f"the source {name!r} is a journal that others write: there is nothing to run")
    names = [one.name for one in graph.in_order() if one.runs and (not only or one.name in only)]
    if not names:
        raise Invalid(f"the graph {graph.name!r} has only sources that others write: there is nothing to run")
    return names


# -- running ----------------------------------------------------------------------------------------------------------


class GraphTally:
    """What is told of the processors of this process, and how often each had to start over."""

    def __init__(self, view: TaskView, graph: str, names: Sequence[str], *, silent: Sequence[str] = ()) -> None:
        self._view = view
        self._graph = graph
        self._names = names
        self._silent = silent
        self._lock = threading.Lock()
        self.restarts: Counter[str] = Counter()
        self.told: dict[str, str] = {}
        """What was last told of each."""

    def see(self, what: str, processor: str, more: str) -> None:
        """Something has happened to a processor. For any thread."""
        with self._lock:
            self.told[processor] = what
            self.restarts[processor] += what == "failed"
        if what in self._silent:
            return
        lines = {
            "running": "running",
            "standby": f"standing by: {more}",
            "fenced": f"replaced, or reset: {more}",
            "failed": f"failed, and starts over: {more}",
        }
        fields = {"processor": processor, **({"text": more} if more else {})}
        self._view.tell(TaskNotice(what, f"{processor}: {lines.get(what, f'{what} {more}')}", fields))

    def stopped(self) -> None:
        """All of them have ended."""
        with self._lock:
            self.told = dict.fromkeys(self._names, "stopped")

    def look(self, live: LiveGraph) -> Report:
        """The processors as they are now."""
        found = {one.name: one for one in live.status(latency=False)}
        parts = [
            replace(part_of(live, found[name], self.told.get(name)), restarts=self.restarts[name])
            for name in self._names
        ]
        return whole_of(self._graph, parts)


def done_of(part: Report) -> int:
    """Input sets that a processor has taken."""
    return sum(part.progress[name] for name in COUNTED)


def part_of(live: LiveGraph, one: ProcessorStatus, told: str | None = None) -> Report:
    """A processor, as its store knows it, or as it was told of last in this process. `left` are the input sets that it
    could take: of a join, as many as the shortest input has."""
    status, lags = told or one.status, [each.lag for each in one.inputs]
    joins = one.declared and live.graph.processor(one.name).mode == "zip"
    left = (min(lags) if joins else sum(lags)) if lags else 0
    return Report(
        "processor",
        one.name,
        _STATES.get(status, State.STOPPED),
        {name: getattr(one, name) for name in COUNTED},
        one.lag,
        Trouble(one.error) if one.error else None,
        about={"status": status, "holder": one.holder or "-", "left": str(left), "owed": str(one.owed)},
    )


def whole_of(graph: str, parts: Sequence[Report]) -> Report:
    """A graph of its processors."""
    counted = [name for name in COUNTED if all(name in part.progress for part in parts)]
    progress = {name: sum(part.progress[name] for part in parts) for name in counted}
    lag = sum(part.lag or 0 for part in parts)
    trouble = next((part.trouble for part in parts if part.trouble), None)
    state = state_of(part.state for part in parts)
    return Report("graph", graph, state, progress, lag, trouble, sum(p.restarts for p in parts), parts=tuple(parts))


def fields_of(report: Report) -> list[dict[str, Any]]:
    """The processors for programs."""
    return [
        {
            "processor": part.name,
            "status": part.about["status"],
            "lag": part.lag,
            "left": int(part.about["left"]),
            **part.progress,
            "restarts": part.restarts,
        }
        for part in report.parts
    ]


class ReadyGraph(ReadyTask):
    """A graph whose processors are about to run in this process."""

    kind = "graph"
    hangs_on_threads = True
    tells_of_log = True

    def __init__(self, graph: Graph, given: Given) -> None:
        super().__init__()
        graph.check()
        self._graph = graph
        self._given = given
        self._names = processors_to_run(graph, given["only"])
        for name in given["migrate"]:
            graph.processor(name)
        self.name = graph.name
        self.url = graph_store(graph, given["url"])
        self.urls = [self.url]

    def check(self, *, as_json: bool) -> None:
        """Draw it."""
        from detent.cli._graph_shown import print_graph

        print_graph(self._graph, as_json=as_json)

    def run(self, view: TaskView) -> int:
        """Run processors until `stop`, which lets the steps under way end."""
        tally = GraphTally(view, self.name, self._names)
        with self._graph.open(self.url, on_event=tally.see) as live:
            before = tally.look(live)
            live.start(only=self._names, migrate=self._given["migrate"])
            view.tell(self._started())
            look = Look(self.title, lambda: [tally.look(live)], lambda: _status(tally.look(live)), COLUMNS)
            while not self.stopping.wait(LOOK_S):
                view.show(look)
            view.tell(TaskNotice("stopping", "stopping: steps under way are waited for; Ctrl-C does not wait"))
            live.stop()
            tally.stopped()
            now = tally.look(live)
            view.show(look._replace(reports=lambda: [now]), is_last=True)
            for part in _since(before, now).parts:
                view.tell(_stopped(part))
        return 0

    def is_told(self, logged: logging.LogRecord) -> bool:
        """Of a processor that failed."""
        return logged.module == "task" and bool(logged.exc_info)

    def _started(self) -> TaskNotice:
        text = f"started {self.name} on {self.url}: {', '.join(self._names)}"
        return TaskNotice("started", text, {"graph": self.name, "store": self.url, "processors": list(self._names)})

    # -- once ---------------------------------------------------------------------------------------------------

    def run_once(self, view: TaskView) -> int:
        """Run processors until none has anything left to do; raises what made one fail."""
        tally = GraphTally(view, self.name, self._names, silent=("running", "failed"))
        with ExitStack() as stack:
            move = stack.enter_context(progress_bar(f"running {self.name}", hidden=self._given["as_json"]))
            live = stack.enter_context(self._graph.open(self.url, on_event=tally.see))
            before = tally.look(live)
            live.start(only=self._names, migrate=self._given["migrate"])
            with _moving(move, live, tally, sum(map(done_of, before.parts))):
                problem = self._settled(live, tally)
            live.stop()
            seen = _since(before, tally.look(live))
        self._summarize(seen, problem, view)
        if problem is not None:
            raise problem
        return 0

    def _settled(self, live: LiveGraph, tally: GraphTally) -> DetentError | None:
        """Wait until nothing is left, also of what another process has taken on. What went wrong, if something did."""
        try:
            live.finish(self.stopping)
        except Exception as error:  # noqa: BLE001 - of the user's function, which is told, and raised
            return _problem(live, tally, error)
        return None

    def _summarize(self, seen: Report, problem: DetentError | None, view: TaskView) -> None:
        from detent.processor.plan import errors_of

        columns = [*COUNTED, "lag"]
        if self._given["as_json"]:
            listed = [{name: fields[name] for name in ("processor", *columns)} for fields in fields_of(seen)]
            text = None if problem is None else str(problem)
            view.tell(TaskNotice("summary", "", {"graph": self.name, "processors": listed, "problem": text}))
            return
        rows = [[part.name, *(str(part.progress[name]) for name in COUNTED), str(part.lag)] for part in seen.parts]
        print_table(["processor", *columns], rows)
        errors = [part for part in seen.parts if part.progress["errors"]]
        failed = {str(errors_of(self._graph.processor(part.name), self._graph.errors)) for part in errors}
        if failed:
            note(f"what failed is in {' and '.join(sorted(failed))}: `detent journal read` shows it")


def _status(report: Report) -> dict[str, Any]:
    return {"processors": fields_of(report)}


def _since(before: Report, now: Report) -> Report:
    """What has become of input sets in between."""
    pairs = zip(before.parts, now.parts, strict=True)
    parts = tuple(
        replace(part, progress={name: part.progress[name] - then.progress[name] for name in COUNTED})
        for then, part in pairs
    )
    return replace(now, parts=parts)


def _stopped(part: Report) -> TaskNotice:
    text = ", ".join(f"{count:,} {name}" for name, count in part.progress.items())
    return TaskNotice("stopped", f"{part.name}: stopped: {text}", {"processor": part.name, **part.progress}, "no")


def _problem(live: LiveGraph, tally: GraphTally, error: BaseException) -> DetentError:
    """Which processor failed, of what, and what that means."""
    from detent.processor.plan import errors_of
    from detent.processor.task import told

    failed = [name for name in tally.restarts if live.local_error(name) is error]
    if not failed:
        return error if isinstance(error, DetentError) else Invalid(f"{type(error).__name__}: {error}")
    one = live.graph.processor(failed[0])
    dropped = (one.delivery or live.graph.delivery) == "at-most-once"
    then = "its input counts as done" if dropped else "nothing came of that input, and the next run begins with it"
    has_journal = errors_of(one, live.graph.errors) is not None
    hint = "; with errors='...' it would be written to a journal, and passed by"
    if has_journal or one.kind == "source" or isinstance(error, DetentError):
        hint = ""  # it is not the message that is wrong
    return Invalid(f"the processor {one.name!r} failed: {told(error)}; {then}{hint}")


@contextmanager
def _moving(move: Callable[[int, int | None], None], live: LiveGraph, tally: GraphTally, before: int) -> Iterator[None]:
    """Move the progress bar meanwhile, if it is shown: what was done, of that and what is left."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(LOOK_S):
            try:
                seen = tally.look(live)
            except (Unavailable, OSError) as error:  # a look only
                logging.getLogger("detent.cli").info("the processors cannot be seen now: %s", error)
                continue
            done = sum(map(done_of, seen.parts)) - before
            move(done, done + sum(int(part.about["left"]) for part in seen.parts))

    if not sys.stderr.isatty():
        yield
        return
    following = thread.start("detent-graph-progress", follow)
    try:
        yield
    finally:
        ended.set()
        following.join()


# -- steering ---------------------------------------------------------------------------------------------------------


class StoredGraph(KnownTask):
    """A graph of which a store knows processors, and whose file is not there. NAME/PROCESSOR is one of these alone."""

    kind = "graph"
    _needs_file = "which journals its processors read is said in its file: give FILE:NAME instead of graph/NAME"
    instead: ClassVar[Mapping[str, str]] = {"reset": _needs_file}
    parts_can_be_named = True

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name

    def consumers(self) -> list[ConsumerInfo]:
        """What the store keeps of its processors."""
        if "/" not in self.name:
            return self.store.consumers(f"graph/{self.name}/")
        with suppress(NotFound):
            return [self.store.consumer(f"graph/{self.name}").info()]
        return []

    def _known(self) -> list[ConsumerInfo]:
        found = self.consumers()
        if not found:
            raise NotFound(f"the graph {self.name!r} never ran on this store")
        return found

    def _began(self) -> list[str]:
        """The processors of which there is progress."""
        return list(map(_processor_of, self._known()))

    def _to_forget(self, wanted: VerbOptions) -> Sequence[str]:
        began = self._began()
        for name in wanted.parts:
            if name not in began:
                listed = ", ".join(began) or "no processor"
                raise NotFound(f"there is no progress of {name!r} to forget: there is that of {listed}")
        return wanted.parts or began

    def report(self) -> Report:
        """Its processors, as far as a store can tell without the graph."""
        return whole_of(self.name, [self._part(info) for info in self._known()])

    def _part(self, info: ConsumerInfo) -> Report:
        seen = look(self.store, info.name)
        shard = seen.info.shards[0]
        status, error = shown_status(seen, shard), shown_error(seen, shard)
        status = "paused" if seen.info.paused else "stopped" if status == FREE else status
        about = {"status": status, "holder": shard.holder or "-"}
        trouble = Trouble(error) if error else None
        state = _STATES.get(status, State.STOPPED)
        return Report("processor", _processor_of(info), state, {}, total_lag(seen), trouble, about=about)

    def pause(self) -> None:
        """Its processors end the step under way, and rest."""
        for info in self._known():
            self.store.consumer(info.name).pause()

    def resume(self) -> None:
        """Its processors go on."""
        for info in self._known():
            self.store.consumer(info.name).resume()

    def remove_consequence(self, wanted: VerbOptions) -> str:
        """What goes."""
        names = ", ".join(self._to_forget(wanted))
        return (
            f"deletes the progress of {self.name} ({names}): if it runs again it begins anew, and its deliveries have "
            "new keys"
        )

    def remove(self, wanted: VerbOptions) -> dict[str, Any]:
        """Delete the records of its processors."""
        for name in self._to_forget(wanted):
            self.store.consumer(f"graph/{self.name.partition('/')[0]}/{name}").delete()
        return {}


def _processor_of(info: ConsumerInfo) -> str:
    return info.name.split("/", 2)[2]


class KnownGraph(StoredGraph):
    """A graph whose file says what it is."""

    inputs_have_offsets = True
    instead: ClassVar[Mapping[str, str]] = {}

    def __init__(self, live: LiveGraph) -> None:
        super().__init__(live.store, live.graph.name)
        self._live = live

    def report(self) -> Report:
        """Its processors, with what became of their input sets."""
        parts = [part_of(self._live, one) for one in self._live.status(latency=False)]
        paused = {_processor_of(info) for info in self.consumers() if info.paused}
        return whole_of(
            self.name, [replace(part, state=State.PAUSED) if part.name in paused else part for part in parts]
        )

    def details(self) -> dict[str, Any]:
        """The inputs of each processor, what another store may not have yet, and how long messages take."""
        import msgspec

        return {"processors": [{**msgspec.to_builtins(one), "lag": one.lag} for one in self._live.status()]}

    def print_more(self) -> None:
        """How long the last messages of each output took."""
        times = [[where, one.name, took] for one in self._live.status() for where, took in one.latency.items()]
        if times:
            click.echo()
            rows = [
                [where, name, str(took["messages"]), *(duration_of(took[f"{key}_ms"]) for key in _TIMES)]
                for where, name, took in times
            ]
            print_table(["journal", "written by", "messages", *_TIMES], rows)

    def _ran(self) -> dict[str, ProcessorStatus]:
        return {one.name: one for one in self._live.status(latency=False) if one.status != "new"}

    def _began(self) -> list[str]:
        return list(self._ran())

    def _meant(self, wanted: VerbOptions) -> list[Processor]:
        """The processors that are to go on elsewhere: those that are named, or that read one of the inputs."""
        graph, ran = self._live.graph, self._ran()
        some = [graph.processor(name) for name in wanted.parts] or [
            one for one in graph.in_order() if one.inputs and one.name in ran
        ]
        for one in some:
            if not one.inputs:
                then = "`detent rm` has it asked from its beginning" if one.runs else "others write that journal"
                raise Invalid(f"the source {one.name!r} reads nothing: {then}")
            if one.name not in ran:
                raise NotFound(f"the processor {one.name!r} never ran: it begins where its `start` says")
        if wanted.inputs and not wanted.parts:
            some = [one for one in some if wanted.inputs.keys() & set(map(str, one.inputs))]
        return some

    def _offsets(self, processor: Processor, wanted: VerbOptions) -> dict[str, int]:
        """The offsets that a processor is to go on at, by input."""
        places = {str(place): place for place in processor.inputs}
        for journal in wanted.inputs if wanted.parts else ():
            if journal not in places:
                raise Invalid(f"{processor.name!r} does not read {journal!r}: it reads {', '.join(places)}")
        if wanted.inputs:
            named = {journal: to for journal, to in wanted.inputs.items() if journal in places}
        else:
            named = dict.fromkeys(places, wanted.to)
        return {journal: self._offset(places[journal], to) for journal, to in named.items()}

    def _offset(self, place: JournalPlace, to: str) -> int:
        store = self._live.stores[place.store]
        found = store.reader.whereabouts(place.journal)
        first, end = (0, 0) if found is None else found[1:3]
        wanted = parse_place(to)
        offset = wanted if isinstance(wanted, int) else 0
        if found is not None and not isinstance(wanted, int):
            journal = store.journal(place.journal)
            offset = resolve(journal, journal.info(), to)
        if not first <= offset <= end:
            raise NotFound(f"{str(place)!r} has the offsets from {first} to {end}, and not {to}")
        return offset

    def reset_consequence(self, wanted: VerbOptions) -> str:
        """Where it goes, and what becomes of the messages between."""
        ran, moves = self._ran(), []
        for one in self._meant(wanted):
            offsets = self._offsets(one, wanted)
            known = {each.journal: each.position for each in ran[one.name].inputs}
            moves += [_move(one.name, journal, known.get(journal, to), to) for journal, to in offsets.items()]
        return f"moves {'; '.join(moves) or 'nothing'}. Deliveries have new keys from there on"

    def reset(self, wanted: VerbOptions) -> dict[str, Any]:
        """Move processors that read something: to where "latest" is by then."""
        moved = {}
        for one in self._meant(wanted):
            place: Any = self._offsets(one, wanted)
            if not wanted.inputs and wanted.to in {"earliest", "latest"}:
                place = wanted.to
            moved[one.name] = dict(self._live.reset(one.name, place))
        return moved

    def remove(self, wanted: VerbOptions) -> dict[str, Any]:
        """Delete the progress of its processors, in all of its stores."""
        for name in self._to_forget(wanted):
            self._live.forget(name)
        return {}


def _move(name: str, journal: str, position: int, to: int) -> str:
    """What a reset does to the messages between."""
    if to < position:
        then = f"goes from offset {position} to {to}: {count_text(position - to)} processed again"
    elif to > position:
        then = f"goes from offset {position} to {to}: {count_text(to - position)} skipped for ever"
    else:
        then = f"stays at offset {to}"
    return f"{name}, where {journal} {then}"


_TIMES: Final = ("median", "p99", "max")


def duration_of(ms: float) -> str:
    """How long something took, with as many digits as say something.

    >>> duration_of(7), duration_of(12_345)
    ('7 ms', '12.3 s')
    """
    return f"{ms:.0f} ms" if ms < 10_000 else f"{ms / 1000:,.1f} s"
