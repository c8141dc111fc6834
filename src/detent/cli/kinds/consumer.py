"""Consumers: applications with state that read journals."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from detent.cli._common import count_text, open_for_writing, resolve
from detent.cli._output import line_text, ms_of, print_fields, print_json, print_table, time_text
from detent.cli._views import LAG, Look, ReportColumn, TaskNotice, TaskView, said
from detent.cli.kinds.kind import Found, Given, KnownTask, ReadyTask, TaskKind, VerbOptions, store_of
from detent.durations import Duration
from detent.errors import Denied, DetentError, Invalid, NotFound
from detent.runtime.report import Report, State, Trouble, state_of
from detent.shard.calls import behind, is_other, place_of

if TYPE_CHECKING:
    from detent.consumer import Consumer
    from detent.consumer.progress import Progress
    from detent.shard import ConsumerInfo, ShardInfo
    from detent.store import Store

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

JOURNALS_SHOWN = 3
"""Journals of a shard in a table; --json has them all."""

FREE = "free"
"""What is shown of a shard on which no process works."""

_STATES: Final = {
    "starting": State.STARTING, "restoring": State.STARTING, "running": State.RUNNING, "following": State.STANDBY,
    "paused": State.PAUSED, "failed": State.FAILED,
}  # fmt: skip


# -- finding ----------------------------------------------------------------------------------------------------------


def adjust(
    consumer: Consumer, *, shards: int | None = None, standbys: int | None = None, lease: Duration | None = None
) -> None:
    """Replace what was declared by what the command that runs it says."""
    from detent.consumer.application import STANDBYS_MAX, checked_number
    from detent.shard.operations import SHARDS_MAX
    from detent.stream.opening import lease_ms

    if shards is not None:
        consumer.shards = checked_number(shards, 1, SHARDS_MAX, "shards")
    if standbys is not None:
        consumer.standbys = checked_number(standbys, 0, STANDBYS_MAX, "standbys")
    if lease is not None:
        consumer.lease_ms = lease_ms(lease)


def store_url(consumer: Consumer, given: str | None) -> str:
    """Where the consumer's store is: the first of those that say it."""
    return store_of("consumer", "Consumer", consumer.name, consumer.store, given)


class ConsumerKind(TaskKind):
    """The kind."""

    noun = "consumer"
    home = "detent.consumer"
    example = "orders.py:app or shop.orders:app"
    lines = 'from detent.consumer import Consumer; app = Consumer("orders", read="orders")'

    def classes(self) -> tuple[type, ...]:
        """Of a consumer."""
        from detent.consumer import Consumer

        return (Consumer,)

    def find(self, target: str) -> Consumer:
        """One that consumes something."""
        found: Consumer = super().find(target)
        _ = found.consume_function  # which says what to do if there is none
        return found

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
        """All consumers of a store. Processors of graphs and bridges are kept as consumers, too, and so is what streams
        of pipelines say of themselves: these are not listed here."""
        for info in store.consumers():
            if not info.name.startswith(("graph/", "bridge/", "pipeline/")):
                yield KnownConsumer(store, info.name)

    def known(self, store: Store, name: str) -> KnownTask | None:
        """Also a processor of a graph."""
        with suppress(NotFound):
            store.consumer(name).info()
            return KnownConsumer(store, name)
        return None


# -- running ----------------------------------------------------------------------------------------------------------


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

    def _summarize(self, seen: SeenConsumer, progress: dict[int, Progress], view: TaskView) -> None:
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


@dataclass(frozen=True, slots=True)
class SeenConsumer:
    """A consumer, and how many messages each shard has still to process of each journal."""

    info: ConsumerInfo
    lag: Mapping[int, Mapping[str, int]]
    gone: Mapping[int, Mapping[str, str]]
    """The journals of each shard that were deleted since it has read them, and what became of them."""


def look(store: Store, name: str) -> SeenConsumer:
    """A consumer as it is now. `NotFound` if there is none."""
    info = store.consumer(name).info()
    places = {journal: store.reader.whereabouts(journal) for journal in info.sources}
    lag = {
        shard.index: {journal: behind(shard, journal, places[journal]) for journal in shard.journals}
        for shard in info.shards
    }
    gone = {
        shard.index: {
            journal: "deleted" if places[journal] is None else "recreated"
            for journal in shard.journals
            if is_other(shard, journal, places[journal])
        }
        for shard in info.shards
    }
    return SeenConsumer(info, lag, gone)


def consumer_fields(seen: SeenConsumer) -> dict[str, Any]:
    """A consumer with its shards and members; times in milliseconds."""
    info = seen.info
    return {
        "name": info.name,
        "partition": info.partition,
        "paused": info.paused,
        "created_ms": ms_of(info.created),
        "lag": total_lag(seen),
        "members": [{"member": one.member, "info": one.info, "expires_ms": ms_of(one.expires)} for one in info.members],
        "shards": [_shard_fields(seen, shard) for shard in info.shards],
    }


def _shard_fields(seen: SeenConsumer, shard: ShardInfo) -> dict[str, Any]:
    return {
        "shard": shard.index,
        "journals": list(shard.journals),
        "holder": shard.holder or None,
        "lease_ms": round(shard.lease.total_seconds() * 1000),
        "status": shown_status(seen, shard),
        "error": shown_error(seen, shard) or None,
        "generation": shard.generation,
        "processed": shard.processed,
        "published": shard.published,
        "lag": dict(seen.lag[shard.index]),
        "gone": dict(seen.gone[shard.index]),
    }


def shown_status(seen: SeenConsumer, shard: ShardInfo) -> str:
    """What a shard is at. What it said last counts for nothing when no process works on it any more; nor does that it
    runs, when a journal is gone that it reads."""
    said = (shard.status or "starting") if shard.holder else FREE
    return "failed" if said == "running" and seen.gone[shard.index] else said


def shown_error(seen: SeenConsumer, shard: ShardInfo) -> str:
    """What is wrong with a shard, and what to do: at once, whether or not the shard has noticed, and runs."""
    for journal, what in seen.gone[shard.index].items():
        if what == "recreated":
            return (
                f"the journal {journal!r} was deleted and made anew: to read the new one, "
                f"detent reset consumer/{seen.info.name} --input {journal}=earliest"
            )
        return f"the journal {journal!r} was deleted: when there is another one, reset the consumer"
    return shard.error


def shown_journals(shard: ShardInfo) -> str:
    """The first few journals of a shard."""
    names = [line_text(name) for name in shard.journals[:JOURNALS_SHOWN]]
    more = len(shard.journals) - len(names)
    return " ".join([*names, f"and {more} more"] if more else names) or "-"


def total_lag(seen: SeenConsumer) -> int:
    """How many messages all shards have still to process. Those of a consumer that is divided by key are passed by
    every shard, and count once for each."""
    return sum(sum(behind.values()) for behind in seen.lag.values())


class Rates:
    """Messages a second of each shard, from one look to the next."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, int]] = {}
        self.by_shard: dict[int, float] = {}

    def note(self, seen: SeenConsumer, now: float) -> None:
        """The shards as they are at a moment."""
        for shard in seen.info.shards:
            count = sum(shard.processed.values())
            then, before = self._before.get(shard.index, (now, count))
            self.by_shard[shard.index] = max(0, count - before) / (now - then) if now > then else 0.0
            self._before[shard.index] = now, count


def report_of(seen: SeenConsumer, rates: Rates | None = None) -> Report:
    """A consumer with its shards."""
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
    inputs_have_offsets = True

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name
        self._handle = store.consumer(name)

    def report(self) -> Report:
        """The consumer with its shards."""
        seen = look(self._store, self.name)
        info = seen.info
        members = "  ".join(f"{one.member} ({one.info})" for one in info.members)
        about = {"divided by": info.partition, "created": time_text(ms_of(info.created)), "members": members or "-"}
        return replace(report_of(seen), about=about)

    def details(self) -> dict[str, Any]:
        """Offsets by journal, leases, members."""
        return consumer_fields(look(self._store, self.name))

    def pause(self) -> None:
        """Its shards end the transaction under way, and rest."""
        self._handle.pause()

    def resume(self) -> None:
        """Its shards go on."""
        self._handle.resume()

    def reset_consequence(self, wanted: VerbOptions) -> str:
        """Where it goes, and what becomes of the messages between."""
        shards, again, skipped = self._handle.info().shards, 0, 0
        for journal, place in (places := self._places(wanted)).items():
            known = [far for shard in shards if (far := place_of(shard, journal)) is not None]
            again += max(0, max(known, default=place) - place)
            skipped += max(0, place - min(known, default=place))
        parts = [f"up to {count_text(again)} take effect again"] * bool(again)
        parts += [f"up to {count_text(skipped)} are skipped for ever"] * bool(skipped)
        then = ", and ".join(["its state stays", *parts])
        return f"resets {line_text(self.name)} to {places_text(places)}: {then}"

    def reset(self, wanted: VerbOptions) -> dict[str, Any]:
        """Move it in the journals that it reads."""
        places = self._places(wanted)
        self._handle.reset(places)
        return places

    def _places(self, wanted: VerbOptions) -> dict[str, int]:
        if wanted.inputs:
            return {journal: self._place(journal, to) for journal, to in wanted.inputs.items()}
        places = {}
        for journal in self._handle.info().sources:
            with suppress(NotFound):  # it is deleted
                places[journal] = self._place(journal, wanted.to)
        return places

    def _place(self, journal: str, to: str) -> int:
        self._require_read(journal)
        found = self._store.journal(journal)
        return int(to) if to.isdecimal() else resolve(found, found.info(), to)

    def _require_read(self, journal: str) -> None:
        if journal not in self._handle.info().sources:
            raise NotFound(f"the consumer {self.name!r} does not read the journal {journal!r}")

    def remove_consequence(self, wanted: VerbOptions) -> str:
        """What goes."""
        del wanted
        info = self._handle.info()
        return f"deletes {contents(info, logs_of(self._store, info))}"

    def remove(self, wanted: VerbOptions) -> dict[str, Any]:
        """Delete its progress, state and recovery logs: all of it or nothing. Once the consumer is gone, its logs would
        never be deleted."""
        from detent.journal.operations import DeleteJournal
        from detent.shard.operations import DeleteConsumer

        logs = logs_of(self._store, self._handle.info())
        self._store.commit([DeleteConsumer(self.name, wanted.while_running), *map(DeleteJournal, logs)])
        return {"logs": logs}

    def wait(self, timeout_ms: int, inputs: Mapping[str, str]) -> dict[str, int]:
        """Until all that is committed now is processed, or the messages at some offsets."""
        deadline = time.monotonic() + timeout_ms / 1000
        written: dict[str, int] = {}
        for journal in inputs or self._handle.info().sources:
            self._require_read(journal)
            to = inputs.get(journal, "latest")
            if end := self._end(journal) if to == "latest" else self._place(journal, to) + 1:
                left_ms = max(0, round((deadline - time.monotonic()) * 1000))
                written |= self._handle.await_processed(journal, end - 1, f"{left_ms}ms")
        return written

    def _end(self, journal: str) -> int:
        """The offset after the last message that there is now; 0 if there is none."""
        found = self._store.reader.whereabouts(journal)
        return 0 if found is None or found.next_offset == found.first_offset else found.next_offset


def places_text(places: dict[str, int]) -> str:
    """Offsets, for people."""
    return " and ".join(f"offset {offset} of {line_text(journal)}" for journal, offset in places.items()) or "nothing"


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
