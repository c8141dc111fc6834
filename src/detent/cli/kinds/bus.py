"""Apps that handle typed messages."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from detent.cli._common import open_for_writing
from detent.cli._output import print_table
from detent.cli._views import Look, TaskNotice, TaskView
from detent.cli.kinds.kind import LOOK_S, Found, Given, HandlersLate, KnownTask, ReadyTask, TaskKind, VerbOptions
from detent.cli.kinds.worker import KnownQueue, known_queue, queue_report, stored_queues
from detent.errors import Invalid
from detent.runtime.report import Report, State

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from detent.bus import Bus
    from detent.bus.declared import Outcome
    from detent.bus.messages import Incoming
    from detent.bus.outbox import OutboxCounts
    from detent.store import Store

ONCE_TIMEOUT: Final = "365d"
"""How long --once may take: the user says when it is enough."""

COUNTED: Final = ("handled", "repeated", "retried", "given up", "left")
"""What becomes of deliveries, as `Outcome` calls it."""

LOOK_EVERY_S: Final = 5.0
"""An outbox is counted for metrics no more often than this: the count reads every message that waits."""

_FAILED: Final = ("retried", "given up", "left")


# -- finding ----------------------------------------------------------------------------------------------------------


def refuse_twins(buses: Iterable[Bus]) -> None:
    """`Invalid` if two apps have one name."""
    by_name: dict[str, Bus] = {}
    for bus in buses:
        if by_name.setdefault(bus.name, bus) is not bus:
            raise Invalid(
                f"two of these apps are called {bus.name!r}: each would take messages that the other has handled for "
                "its own. Give one of them another name, or run one of them"
            )


def refuse_metrics_once(given: Given) -> None:
    """There is nothing to be scraped of a command that ends soon."""
    if given["once"] and given["metrics_port"] is not None:
        raise click.UsageError("--metrics-port is for apps that go on running, and --once ends: give one of them")


class BusKind(TaskKind):
    """The kind."""

    noun = "app"
    home = "detent.bus"
    article = "an"
    example = "shop.py:billing or shop.apps:billing"
    lines = 'from detent.bus import Bus; billing = Bus("billing", "file:./data")'

    def classes(self) -> tuple[type, ...]:
        """Of an app."""
        from detent.bus import Bus

        return (Bus,)

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """All of them are one task: each has subscribed before the first one publishes."""
        buses = [one.what for one in found]
        refuse_twins(buses)
        for one in buses:
            one.concurrency = given["concurrency"] or one.concurrency
            if given["transport"] is not None:
                one.use(given["transport"])
        return [ReadyBuses(buses, given)]

    @contextmanager
    def declared(self, found: Any, given: Given) -> Iterator[KnownTask]:
        """An app of a file, with its queue if a store has that."""
        if given.get("transport"):
            found.use(given["transport"])
        url = _kept_at(found) if given.get("force") else None
        with nullcontext() if url is None else open_for_writing(url, force=True):
            yield KnownBus(found)

    def stored(self, store: Store) -> Iterator[KnownTask]:
        """The queues of a store that have subscribed to types of messages."""
        return stored_queues(store, kind="app")

    def known(self, store: Store, name: str) -> KnownTask | None:
        """One whose queue has subscriptions."""
        return known_queue(store, name, kind="app")


# -- running ----------------------------------------------------------------------------------------------------------


def _kept_at(bus: Bus) -> str | None:
    """The store of an app's queue, if other processes can see it, too."""
    from detent.bus.looking import url_of

    url = url_of(bus)
    return None if url is None or url.startswith("memory:") else url


class AppTally:
    """Counts what became of the deliveries of some apps, and tells of those that failed."""

    def __init__(self, buses: Sequence[Bus], view: TaskView) -> None:
        self._buses = buses
        self._view = view
        self._counts: dict[str, Counter[str]] = {bus.name: Counter() for bus in buses}
        self._lock = threading.Lock()

    def see(self, bus: Bus, incoming: Incoming, outcome: Outcome) -> None:
        """Something became of a delivery. For any thread."""
        with self._lock:
            self._counts[bus.name][outcome.value] += 1
        if outcome.value in _FAILED:
            self._view.tell(_failure(bus, incoming, outcome))

    def counts(self, bus: Bus) -> dict[str, int]:
        """What became of an app's deliveries so far."""
        with self._lock:
            return {name: self._counts[bus.name][name] for name in COUNTED}

    def rows(self) -> list[tuple[str, dict[str, int | None]]]:
        """The apps, with what waits in their outboxes: None where that cannot be seen now."""
        return [
            (bus.name, {**self.counts(bus), **({} if bus.outbox is None else {"outbox": _pending(bus)})})
            for bus in self._buses
        ]

    def reports(self) -> list[Report]:
        """The apps as they are now."""
        found = []
        for name, counts in self.rows():
            done = {key: count for key, count in counts.items() if key != "outbox" and count is not None}
            about = {} if "outbox" not in counts else {"outbox": number_text(counts["outbox"])}
            found.append(Report("app", name, State.RUNNING, done, about=about))
        return found


def _pending(bus: Bus) -> int | None:
    counts = outbox_of(bus)
    return None if counts is None else counts.pending


def outbox_of(bus: Bus) -> OutboxCounts | None:
    """What is in an app's outbox; None where it cannot be seen now."""
    from detent.bus.looking import OutboxLook

    try:
        return OutboxLook(bus).counts()
    except Exception as error:  # noqa: BLE001 - the database is away: the forwarder says so, and this is a look only
        logging.getLogger("detent.cli").info("the outbox of %r cannot be seen now: %s", bus.name, error)
        return None


def _failure(bus: Bus, incoming: Incoming, outcome: Outcome) -> TaskNotice:
    from detent.bus.looking import id_of
    from detent.bus.messages import TYPE
    from detent.queue.message import reason_of

    reason = "" if incoming.error is None else getattr(incoming.error, "reason", None) or reason_of(incoming.error)
    named = f"{incoming.headers.get(TYPE) or 'message'} {id_of(incoming)}"
    lines = {
        "retried": f"attempt {incoming.attempts} at {named} failed, and it is tried again: {reason}",
        "given up": f"gave up {named} after attempt {incoming.attempts}: {reason}",
        "left": f"left {named} to its lease: {reason}",
    }
    fields = {
        "message": id_of(incoming),
        "type": incoming.headers.get(TYPE),
        "attempts": incoming.attempts,
        "reason": reason,
    }
    return _notice(outcome.value.replace(" ", "_"), bus, lines[outcome.value], fields)


def _notice(event: str, bus: Bus, text: str, fields: dict[str, Any]) -> TaskNotice:
    return TaskNotice(event, f"{bus.name}: {text}", {"app": bus.name, **fields}, "above")


def number_text(count: int | None) -> str:
    """A number that may not be known now."""
    return "?" if count is None else f"{count:,}"


def status_line(report: Report) -> str:
    """Numbers in a line; those that are hardly ever anything but 0 only if they are."""
    done = [f"{count:,} {name}" for name, count in report.progress.items() if count or name == "handled"]
    outbox = report.about.get("outbox")
    return ", ".join([*done, *([] if outbox is None else [f"{outbox} in the outbox"])])


def fields_of(tally: AppTally) -> list[dict[str, Any]]:
    """The apps for programs."""
    return [
        {"app": name, **{key.replace(" ", "_"): count for key, count in counts.items()}}
        for name, counts in tally.rows()
    ]


class ReadyBuses(ReadyTask):
    """Apps that are about to run in this process."""

    kind = "app"
    hangs_on_threads = True
    tells_of_log = True

    def __init__(self, buses: Sequence[Bus], given: Given) -> None:
        super().__init__()
        self._buses = buses
        self._given = given
        self.name = ",".join(bus.name for bus in buses)
        refuse_metrics_once(given)
        self.urls = sorted({url for bus in buses if (url := _kept_at(bus)) is not None})

    def check(self, *, as_json: bool) -> None:
        """Show each with its parts, and check that they go together."""
        for bus in self._buses:
            show_bus(bus, as_json=as_json)

    def is_told(self, logged: logging.LogRecord) -> bool:
        """Of a message that failed."""
        return logged.name == "detent.bus.attempts"

    def run(self, view: TaskView) -> int:
        """Handle their messages and forward their outboxes until `stop`."""
        from detent.bus.looking import observed

        tally = AppTally(self._buses, view)
        if self._given["metrics_port"] is not None:
            serve_bus_metrics(self._given["metrics_port"], self._buses, tally)
        look = Look(self.title, tally.reports, lambda: {"apps": fields_of(tally)}, line=status_line)
        with ExitStack() as stack:
            for one in self._buses:
                stack.enter_context(observed(one, partial(tally.see, one)))
            for one in self._buses:  # all have subscribed before the first one publishes
                stack.callback(_stop, one, view, tally)
                one.prepare()
            for one in self._buses:
                one.start()
                view.tell(_started(one))
            while not self.stopping.wait(LOOK_S):
                view.show(look)
            view.tell(TaskNotice("stopping", "stopping: handlers under way are waited for; Ctrl-C does not wait"))
            for one in self._buses:  # all at once: together they may take as long as the slowest one
                one.stop_taking()
        late = [one for one in threading.enumerate() if one.name.startswith("detent-bus-")]
        if late:
            raise HandlersLate(f"{len(late)} handlers did not end in time; their messages come again")
        return 0

    def run_once(self, view: TaskView) -> int:
        """Handle what there is, one message after the other."""
        from detent.bus.looking import observed

        tally = AppTally(self._buses, view)
        with ExitStack() as stack:
            for one in self._buses:
                stack.enter_context(observed(one, partial(tally.see, one)))
                stack.callback(one.stop)
            idle = 0
            while idle < 2:  # what one forwards only now is seen by those before it in the next round
                handled = [outcome for one in self._buses for outcome in one.drain(ONCE_TIMEOUT)]
                idle = 0 if handled else idle + 1
            fields, rows = fields_of(tally), tally.rows()
        if self._given["as_json"]:
            view.tell(TaskNotice("summary", "", {"apps": fields}))
            return 0
        columns = [*COUNTED, "outbox"]
        print_table(["app", *columns], [[name, *(_cell(counts, key) for key in columns)] for name, counts in rows])
        return 0


def _cell(counts: dict[str, int | None], key: str) -> str:
    return "-" if key not in counts else "?" if counts[key] is None else str(counts[key])


def _started(bus: Bus) -> TaskNotice:
    handlers = [handler.name for handler in bus.all_handlers]
    does = f"{', '.join(handlers)} of {', '.join(bus.topics)}" if handlers else "sends only"
    queue = None if bus.send_only else bus.transport.input_name
    where = bus.transport.place
    fields = {"queue": queue, "transport": where, "handlers": handlers, "messages": bus.topics}
    return _notice("started", bus, f"started on {where}: {does}", fields)


def _stop(bus: Bus, view: TaskView, tally: AppTally) -> None:
    bus.stop()
    counts = tally.counts(bus)
    text = ", ".join(f"{counts[name]:,} {name}" for name in COUNTED)
    fields = {name.replace(" ", "_"): count for name, count in counts.items()}
    view.tell(_notice("stopped", bus, f"stopped: {text}", fields))


# -- metrics ----------------------------------------------------------------------------------------------------------


def serve_bus_metrics(port: int, buses: Sequence[Bus], tally: AppTally) -> None:
    """Show the metrics on a port of the loopback address."""
    from detent.scraped import new_registry, serve_metrics

    registry = new_registry()
    registry.register(BusCollector(buses, tally))
    serve_metrics(port, registry)


class BusCollector:
    """Looks at the apps when the page is asked for."""

    def __init__(self, buses: Sequence[Bus], tally: AppTally) -> None:
        self._buses = buses
        self._tally = tally
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._outboxes: dict[str, OutboxCounts] = {}

    def describe(self) -> list[Metric]:
        """Nothing: what there is to show is not looked for before the page is asked for."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        done = CounterMetricFamily(
            "detent_bus_deliveries", "Deliveries of messages, by what became of them.", labels=["app", "outcome"]
        )
        for bus in self._buses:
            for outcome, count in self._tally.counts(bus).items():
                done.add_metric([bus.name, outcome.replace(" ", "_")], count)
        yield done
        held: Any = GaugeMetricFamily("detent_outbox_messages", "Messages in an outbox.", labels=["app", "state"])
        age: Any = GaugeMetricFamily(
            "detent_outbox_oldest_age_seconds", "How long the oldest message has waited since it was due.",
            labels=["app"],
        )  # fmt: skip
        for name, counts in self._counts().items():
            held.add_metric([name, "pending"], counts.pending)
            held.add_metric([name, "failed"], counts.failed)
            age.add_metric([name], counts.oldest_s)
        yield held
        yield age

    def _counts(self) -> dict[str, OutboxCounts]:
        """What is in the outboxes, as it was a few seconds ago at most; without those that cannot be seen now."""
        with self._lock:
            if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
                found = {bus.name: outbox_of(bus) for bus in self._buses if bus.outbox is not None}
                self._outboxes = {name: counts for name, counts in found.items() if counts is not None}
                self._looked_s = time.monotonic()
            return self._outboxes


# -- steering ---------------------------------------------------------------------------------------------------------


def show_bus(app: Bus, *, as_json: bool) -> None:
    """An app with its parts, and what is wrong with it."""
    from detent.bus.looking import look_at_queue, making_nothing
    from detent.cli._bus_shown import checked, fields_of_app, outbox_counts, print_app, print_ascii_json
    from detent.cli._output import note

    with making_nothing():
        problem, warnings = checked(app)
        queue = look_at_queue(app)
        outbox = None if problem else outbox_counts(app)
        if as_json:
            print_ascii_json(fields_of_app(app, queue, outbox, problem, warnings))
        else:
            print_app(app, queue, outbox)
            for warning in warnings:
                note(f"warning: {warning}")
    if problem:
        raise Invalid(problem)


class KnownBus(KnownTask):
    """An app of a file. What can be steered is its queue, where a store has that."""

    kind = "app"
    instead: ClassVar[Mapping[str, str]] = KnownQueue.instead

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.name = bus.name

    @contextmanager
    def _queue(self, verb: str) -> Iterator[KnownQueue]:
        from detent.bus.looking import url_of

        url = url_of(self._bus)
        if url is None:
            raise Invalid(
                f"{self.title} cannot be told to {verb} from here: its queue is not in a store but on "
                f"{self._bus.transport.place}, whose own tools steer it"
            )
        with open_for_writing(url, force=False) as store:
            yield KnownQueue(store, self._bus.transport.input_name or self.name, kind="app")

    def report(self) -> Report:
        """Its queue, as far as that can be seen."""
        from detent.bus.looking import look_at_queue, making_nothing, url_of

        with making_nothing():
            found = look_at_queue(self._bus)
        if found is None:
            where = "not made yet" if url_of(self._bus) is not None else "not shown for this transport"
            return Report(self.kind, self.name, State.UNKNOWN, about={"queue": where})
        with self._queue("show") as queue:
            return queue_report(queue.info(), self.kind, self.name)

    def pause(self) -> None:
        """Its queue hands out no messages, in any process."""
        with self._queue("pause") as queue:
            queue.pause()

    def resume(self) -> None:
        """Its queue hands them out again."""
        with self._queue("resume") as queue:
            queue.resume()

    def remove_consequence(self, wanted: VerbOptions) -> str:
        """What goes."""
        with self._queue("rm") as queue:
            return queue.remove_consequence(wanted)

    def remove(self, wanted: VerbOptions) -> dict[str, Any]:
        """Delete its queue."""
        with self._queue("rm") as queue:
            return queue.remove(wanted)

    def wait(self, timeout_ms: int, inputs: Mapping[str, str]) -> dict[str, int]:
        """Until its queue is empty."""
        with self._queue("wait") as queue:
            return queue.wait(timeout_ms, inputs)
