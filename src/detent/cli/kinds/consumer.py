"""Consumers: applications with state that read journals."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from detent.cli._common import count_text, open_for_writing
from detent.cli._consumer_shown import Seen, consumer_fields, look, shown_error, shown_journals, shown_status, total_lag
from detent.cli._logs import set_up_logs
from detent.cli._output import line_text, print_fields, print_json, print_table
from detent.cli._views import LAG, Look, ReportColumn, TaskNotice, TaskView, said
from detent.cli.kinds.kind import Found, Given, KnownTask, ReadyTask, TaskKind, store_of
from detent.durations import Duration, milliseconds
from detent.errors import Denied, DetentError, Invalid, NotFound
from detent.runtime.report import Report, State, Trouble
from detent.runtime.target import Sought, find

if TYPE_CHECKING:
    from detent.consumer import Consumer
    from detent.consumer.progress import Progress
    from detent.shard import ConsumerInfo
    from detent.store import Store

MODULE: Final = "__detent_consumer__"
"""The name of a file as a module. It stays imported: classes that are declared in it may look for it at any time."""

COLUMNS: Final = (
    ReportColumn("shard", lambda part: part.name),
    said("journals"),
    said("holder"),
    said("status"),
    ReportColumn("processed", lambda part: f"{part.progress['processed']:,}"),
    LAG,
    said("msgs/s", is_number=True),
)

LOGS_SHOWN: Final = 10
"""Recovery logs in a question; --json has them all."""

_STATES: Final = {
    "starting": State.STARTING, "restoring": State.STARTING, "running": State.RUNNING, "following": State.STANDBY,
    "paused": State.PAUSED, "failed": State.FAILED,
}  # fmt: skip


# -- finding ----------------------------------------------------------------------------------------------------------


def load_consumer(target: str) -> Consumer:
    """The consumer that ``package.module:name`` or ``path/to/file.py:name`` means. The name may be left out where there
    is one consumer, or one called `app`. Modules are looked for in the current folder too."""
    found: Consumer = find(target, Consumers().sought(), kept_as=MODULE)
    _ = found.consume_function  # which says what to do if there is none
    return found


def adjust(
    consumer: Consumer, *, shards: int | None = None, standbys: int | None = None, lease: Duration | None = None
) -> None:
    """Replace what was declared by what the command that runs it says."""
    from detent.consumer.application import LEASE_MS_MIN, STANDBYS_MAX, checked_number
    from detent.shard.operations import SHARDS_MAX

    if shards is not None:
        consumer.shards = checked_number(shards, 1, SHARDS_MAX, "shards")
    if standbys is not None:
        consumer.standbys = checked_number(standbys, 0, STANDBYS_MAX, "standbys")
    if lease is not None:
        consumer.lease_ms = milliseconds(lease)
        if consumer.lease_ms < LEASE_MS_MIN:
            raise Invalid(f"a lease lasts at least {LEASE_MS_MIN} ms, not {lease}")


def store_url(consumer: Consumer, given: str | None) -> str:
    """Where the consumer's store is: the first of those that say it."""
    return store_of("consumer", "Consumer", consumer.name, consumer.store, given)


class Consumers(TaskKind):
    """The kind."""

    noun = "consumer"
    home = "detent.consumer"

    def sought(self) -> Sought[Any]:
        """What a file is to declare."""
        from detent.consumer import Consumer

        return Sought(
            Consumer,
            noun="consumer",
            plural="consumers",
            article="a",
            example="orders.py:app or shop.orders:app",
            lines='from detent.consumer import Consumer; app = Consumer("orders", read="orders")',
        )

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """One task a consumer. Its processes load the file by themselves."""
        for one in found:
            _ = one.what.consume_function  # which says what to do if there is none
            adjust(one.what, shards=given["shards"], standbys=given["standbys"], lease=given["lease"])
        return [ReadyConsumer(one, given) for one in found]

    @contextmanager
    def declared(self, found: Any, given: Given) -> Iterator[KnownTask]:
        """A consumer of a file, in the store that it says."""
        url = store_url(found, given.get("url"))
        with open_for_writing(url, force=given.get("force", False)) as store:
            yield KnownConsumer(store, found.name)

    def stored(self, store: Store) -> Iterator[KnownTask]:
        """All consumers of a store. Processors of graphs are kept as consumers, too, and are not listed here."""
        for info in store.consumers():
            if not info.name.startswith("graph/"):
                yield KnownConsumer(store, info.name)


# -- running ----------------------------------------------------------------------------------------------------------


def log_as_asked(*, verbose: bool, as_json: bool) -> None:
    """What a consumer logs is told by us in a line; where in the code something failed, --verbose shows."""
    if verbose:
        set_up_logs("json" if as_json else "text", "info")
        logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    else:
        logging.getLogger("detent").setLevel(logging.CRITICAL)


class ReadyConsumer(ReadyTask):
    """A consumer that is about to run: in several processes, or in this one until nothing is left to read."""

    kind = "consumer"

    def __init__(self, found: Found, given: Given) -> None:
        super().__init__()
        self._app = app = found.what
        self._target = found.target
        self._given = given
        self._rates = Rates()
        self.name = app.name
        self.url = store_url(app, given["url"])
        self.urls = [self.url]

    def is_told(self, logged: logging.LogRecord) -> bool:
        """Of a shard that failed."""
        return logged.name.startswith("detent.consumer")

    def check(self, *, as_json: bool) -> None:
        """Its numbers and what it reads."""
        app = self._app
        fields = {"consumer": app.name, "store": self.url, "shards": app.shards, "standbys": app.standbys}
        print_json(fields) if as_json else print_fields({name: str(value) for name, value in fields.items()})

    def run(self, view: TaskView) -> int:
        """Start its processes, and watch them until `stop`."""
        from detent.consumer.supervisor import Processes, run_alone, worker_count

        app, given, url = self._app, self._given, self.url
        count = worker_count(app, url, given["workers"])

        def tell(notice: Any) -> None:
            view.tell(notice_of(notice))

        def show(store: Store) -> None:
            view.show(self._look(store))

        if not count:
            run_alone(app, url, self.stopping, tell, show)
            return 0
        processes = Processes(
            self._target,
            app,
            url,
            count,
            tell=tell,
            show=show,
            catch_output=not given["as_json"] and sys.stderr.isatty(),
            options=["--verbose", *(["--json"] if given["as_json"] else [])] if given["verbose"] else [],
            force=given["force"],
        )
        processes.run(self.stopping)
        return 0

    def _look(self, store: Store) -> Look:
        def reports() -> list[Report]:
            seen = look(store, self.name)
            self._rates.note(seen, time.monotonic())
            return [report_of(seen, self._rates)]

        fields = lambda: consumer_fields(look(store, self.name))  # noqa: E731
        return Look(self.title, reports, fields, COLUMNS, first_status_s=0)

    def run_once(self, view: TaskView) -> int:
        """Read what there is, in this process, then print how far it is."""
        from detent.consumer.consumer import opened, stopped_by

        def on_event(what: str, shard: int, text: str) -> None:
            if what == "waiting":  # for the process that holds the shard, which may take long
                view.tell(TaskNotice(what, f"shard {shard} is waited for: {text}", {"shard": shard, "text": text}))

        with opened(self._app, self.url, on_event=on_event) as worker:
            try:
                with stopped_by(self.stopping, worker):
                    worker.run(once=True)
            except DetentError:
                raise
            except Exception as error:
                raise Invalid(_why(self._app, error)) from error
            self._summarize(look(worker.store, self.name), worker.progress, view)
        return 0

    def _summarize(self, seen: Seen, progress: dict[int, Progress], view: TaskView) -> None:
        counts = {shard.index: progress[shard.index].messages for shard in seen.info.shards if shard.index in progress}
        if self._given["as_json"]:
            fields = consumer_fields(seen)
            for shard in fields["shards"]:
                shard["messages"] = counts.get(shard["shard"], 0)
            view.tell(TaskNotice("summary", "", {"messages": sum(counts.values()), **fields}))
            return
        rows = [
            [
                str(shard.index),
                shown_journals(shard),
                str(counts.get(shard.index, 0)),
                str(sum(shard.processed.values())),
                str(sum(seen.lag[shard.index].values())),
            ]
            for shard in seen.info.shards
        ]
        print_table(["shard", "journals", "messages", "processed", "lag"], rows)


def _why(app: Consumer, error: Exception) -> str:
    """What the application raised, and what that means."""
    from detent.consumer.task import why

    return (
        f"the consumer {app.name!r} failed: {why(error)}; nothing of that transaction took effect, and the next run "
        "begins with it"
    )


def notice_of(notice: Any) -> TaskNotice:
    """What a supervisor of processes tells."""
    text, member = notice.text, notice.member
    lines = {
        "started": f"worker {member} started (process {notice.pid})",
        "died": f"worker {member} died (process {notice.pid}): {text}",
        "taken": f"shard {notice.shard} taken by {member}",
        "released": f"shard {notice.shard} released by {member}",
        "following": f"shard {notice.shard} followed by {member}",
        "failed": f"shard {notice.shard} failed, and is tried again: {text}",
        "fenced": f"shard {notice.shard} taken over from {member}",
        "waiting": f"shard {notice.shard} is waited for: {text}",
        "stopping": "stopping: transactions under way are finished",
        "output": text,  # on a screen above the table, as the application prints without one
    }
    fields = {name: value for name, value in notice.as_json().items() if name != "event"}
    line = lines.get(notice.kind, f"{notice.kind} {text}".strip())
    return TaskNotice(notice.kind, line, fields, "above" if notice.kind == "output" else "note")


# -- looking ----------------------------------------------------------------------------------------------------------


class Rates:
    """Messages a second of each shard, from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, int]] = {}
        self.by_shard: dict[int, float] = {}

    def note(self, seen: Seen, now: float) -> None:
        """The shards as they are at a moment."""
        for shard in seen.info.shards:
            count = sum(shard.processed.values())
            then, before = self._before.get(shard.index, (now, count))
            self.by_shard[shard.index] = max(0, count - before) / (now - then) if now > then else 0.0
            self._before[shard.index] = now, count


def report_of(seen: Seen, rates: Rates | None = None) -> Report:
    """A consumer with its shards."""
    from detent.runtime.report import state_of

    parts = []
    for shard in seen.info.shards:
        status, error = shown_status(seen, shard), shown_error(seen, shard)
        about = {"journals": shown_journals(shard), "holder": shard.holder or "-", "status": status}
        if rates is not None:
            about["msgs/s"] = f"{rates.by_shard.get(shard.index, 0.0):,.0f}"
        parts.append(
            Report(
                "shard",
                str(shard.index),
                _STATES.get(status, State.STOPPED),
                {"processed": sum(shard.processed.values())},
                sum(seen.lag[shard.index].values()),
                Trouble(error) if error else None,
                about=about,
            )
        )
    state = State.PAUSED if seen.info.paused else state_of(part.state for part in parts)
    processed = sum(part.progress["processed"] for part in parts)
    trouble = next((part.trouble for part in parts if part.trouble), None)
    return Report(
        "consumer", seen.info.name, state, {"processed": processed}, total_lag(seen), trouble, parts=tuple(parts)
    )


# -- steering ---------------------------------------------------------------------------------------------------------


class KnownConsumer(KnownTask):
    """A consumer that a store knows."""

    kind = "consumer"

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name

    def report(self) -> Report:
        """The consumer with its shards."""
        return report_of(look(self._store, self.name))

    def pause(self) -> None:
        """Its shards end the transaction under way, and rest."""
        self._store.consumer(self.name).pause()

    def resume(self) -> None:
        """Its shards go on."""
        self._store.consumer(self.name).resume()

    def _places(self, to: str) -> dict[str, int]:
        places = {}
        for journal in self._store.consumer(self.name).info().sources:
            try:
                places[journal] = place_in(self._store, journal, to)
            except NotFound:
                continue
        return places

    def reset_consequence(self, to: str) -> str:
        """Where it goes."""
        return (
            f"resets {line_text(self.name)} to {places_text(self._places(to))}: its state stays, messages that it "
            "reads again take effect again, and those that it skips never do"
        )

    def reset(self, to: str) -> dict[str, Any]:
        """Move it in all journals that it reads."""
        places = self._places(to)
        self._store.consumer(self.name).reset(places)
        return places

    def remove_consequence(self) -> str:
        """What goes."""
        info = self._store.consumer(self.name).info()
        return f"deletes {contents(info, logs_of(self._store, info))}"

    def remove(self) -> None:
        """Delete its progress, state and recovery logs."""
        logs = logs_of(self._store, self._store.consumer(self.name).info())
        delete_all(self._store, self.name, logs, force=False)

    def wait(self, timeout_ms: int) -> None:
        """Until all that is committed now is processed."""
        deadline = time.monotonic() + timeout_ms / 1000
        handle = self._store.consumer(self.name)
        for journal in handle.info().sources:
            found = self._store.reader.whereabouts(journal)
            if found is not None and found.next_offset > found.first_offset:
                left_ms = max(0, round((deadline - time.monotonic()) * 1000))
                handle.await_processed(journal, found.next_offset - 1, f"{left_ms}ms")


def place_in(store: Store, journal: str, to: str) -> int:
    """The offset in a journal that "earliest", "latest", a number or a time means."""
    from detent.cli._common import resolve

    handle = store.journal(journal)
    return resolve(handle, handle.info(), to)


def places_text(places: dict[str, int]) -> str:
    """Offsets, for people."""
    return " and ".join(f"offset {offset} of {line_text(journal)}" for journal, offset in places.items()) or "nothing"


def delete_all(store: Store, name: str, logs: list[str], *, force: bool) -> None:
    """All of it or nothing: once the consumer is gone, its logs would never be deleted."""
    from detent.journal.operations import DeleteJournal
    from detent.shard.operations import DeleteConsumer

    store.commit([DeleteConsumer(name, force), *map(DeleteJournal, logs)])


def logs_of(store: Store, info: ConsumerInfo) -> list[str]:
    """The journals in which a consumer has recorded its state, by number."""
    from detent.state.recovery_log import log_prefix

    prefix = log_prefix(info.name)
    try:
        found = store.journals(prefix)
    except Denied:  # a token for this consumer: it sees the logs that it has a right to
        found = [log for shard in info.shards if _is_there(store, log := f"{prefix}{shard.index}")]
    return sorted((log for log in found if log.removeprefix(prefix).isdecimal()), key=lambda log: (len(log), log))


def _is_there(store: Store, journal: str) -> bool:
    with suppress(NotFound, Denied, Invalid):
        store.reader.extent(journal)
        return True
    return False


def contents(info: ConsumerInfo, logs: list[str]) -> str:
    shards = count_text(len(info.shards), "shard")
    what = f"the consumer {line_text(info.name)}, with the progress and state of {shards}"
    if logs:
        more = [f"{len(logs) - LOGS_SHOWN} more"] if len(logs) > LOGS_SHOWN else []
        what += f" and the recovery logs {', '.join([*logs[:LOGS_SHOWN], *more])}"
    return f"{what}; rows of a database (table detent_shards) are not touched"
