"""Ingests: files that a queue announces, into a table."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from detent.cli._output import age_text, note, print_fields, print_json, time_text
from detent.cli._views import Look, TaskNotice, TaskView
from detent.cli.kinds.kind import Found, Given, KnownTask, ReadyTask, TaskKind, VerbOptions
from detent.runtime.report import Report, State
from detent.scraped import new_registry, serve_metrics
from detent.sizes import size_text

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from detent.ingest.config import IngestConfig
    from detent.ingest.progress import Counters, IngestProgress
    from detent.ingest.steering import SourceStatus

LINE_EVERY_S: Final = 10.0
JSON_EVERY_S: Final = 1.0


# -- finding ----------------------------------------------------------------------------------------------------------


class IngestKind(TaskKind):
    """The kind."""

    noun = "ingest"
    home = "detent.ingest"
    article = "an"
    usual = "ingest"
    is_named_by_file = True
    example = "orders.toml or shop.py:orders"
    lines = (
        "from detent.ingest import IngestConfig; "
        'orders = IngestConfig(name="orders", queue="sqs:new-orders", table="./lake/orders")'
    )

    def classes(self) -> tuple[type, ...]:
        """Of an ingest, or of its settings."""
        from detent.ingest import Ingest, IngestConfig

        return (IngestConfig, Ingest)

    def find(self, target: str) -> IngestConfig:
        """The settings of the one that a TOML file describes, or a Python file declares."""
        is_toml = target.endswith(".toml") or not target.partition(":")[0].endswith(".py")
        return read_config(Path(target)) if is_toml else settings_of(super().find(target))

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """One task an ingest."""
        if given["match"] is not None and given["backfill"] is None:
            raise click.UsageError("--match chooses among the files of a backfill: say --backfill PREFIX too")
        return [ReadyIngest(one.what, given) for one in found]

    @contextmanager
    def declared(self, found: Any, given: Given) -> Iterator[KnownTask]:
        """An ingest with its database."""
        del given
        settings = settings_of(found)
        with database(settings.state_url) as engine:
            yield KnownIngest(engine, settings.name, settings)


def settings_of(found: Any) -> IngestConfig:
    """The settings of an ingest, which may be all that a file declares."""
    settings: IngestConfig = getattr(found, "_config", found)
    return settings


@contextmanager
def database(url: str) -> Iterator[Engine]:
    """Where ingests keep their state."""
    from detent.ingest import metastore

    engine = metastore.connect_existing(url)
    try:
        yield engine
    finally:
        engine.dispose()


def read_config(path: Path) -> IngestConfig:
    """An ingest that a TOML file describes."""
    from detent.ingest.config import IngestConfig

    return IngestConfig.read(path)


# -- running ----------------------------------------------------------------------------------------------------------


def start(settings: Any, session: dict[str, Any], watch: Any) -> Any:
    """A pipeline of an ingest."""
    from detent.ingest.pipeline import Ingest

    return settings if isinstance(settings, Ingest) else Ingest(settings, session=session, watch=watch)


class ReadyIngest(ReadyTask):
    """An ingest that is about to run in this process."""

    kind = "ingest"
    sets_handlers = True

    def __init__(self, found: Any, given: Given) -> None:
        super().__init__()
        self._found = found
        self._given = given
        self._running: Any = None
        self._counters: Counters | None = None
        self.name = settings_of(found).name

    def check(self, *, as_json: bool) -> None:
        """Its queue and its table."""
        settings = settings_of(self._found)
        settings.check_place()
        fields = {"ingest": settings.name, "queue": settings.queue_url, "table": settings.location}
        print_json(fields) if as_json else print_fields(fields)

    def stop(self) -> None:
        """Let the batch under way be committed, and end."""
        super().stop()
        if self._running is not None:
            self._running.stop()

    def run(self, view: TaskView) -> int:
        """Ingest until `stop`."""
        return self._run(view, once=False)

    def run_once(self, view: TaskView) -> int:
        """Ingest what there is."""
        return self._run(view, once=True)

    def _run(self, view: TaskView, *, once: bool) -> int:
        given = self._given
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        if not given["as_json"]:
            note("starting Spark…")
        shown = Shown(view, self.name)
        port = given["metrics_port"]
        watch = shown.show if port is None else metrics_view(port, self.name, shown.show)
        session = {name: given[name] for name in ("cores", "memory", "quick", "verbose")}
        self._running = start(self._found, session, watch)
        if self.stopping.is_set():
            return 0
        counters = self._running.run(
            once=once,
            backfill=given["backfill"],
            match=given["match"],
            signals=threading.current_thread() is threading.main_thread(),
        )
        shown.end(counters)
        self._counters = counters
        return 0

    def summarize(self) -> None:
        """What it has done."""
        if self._counters is not None and not self._given["as_json"]:
            done = summary_of(self._counters)
            print_fields(done) if done else click.echo("nothing to ingest")


class Shown:
    """The progress of an ingest on a view."""

    def __init__(self, view: TaskView, name: str) -> None:
        self._view = view
        self._name = name
        self._last: dict[str, Any] = {}
        self._batches = 0
        self._json_at = self._line_at = float("-inf")

    def show(self, progress: IngestProgress) -> None:
        """What changed for programs, at most once a second; what was committed in a line, at most every ten seconds."""
        now, counters = time.monotonic(), progress.counters.as_json()
        report = report_of(self._name, progress)
        if counters != self._last and now - self._json_at >= JSON_EVERY_S:
            self._last, self._json_at = counters, now
            waits = {"ready": progress.ready, "in_progress": progress.in_progress, "lag_s": round(progress.lag_s, 3)}
            self._view.tell(TaskNotice("progress", "", {**waits, **counters}))
        if progress.counters.batches != self._batches and now - self._line_at >= LINE_EVERY_S:
            self._batches, self._line_at = progress.counters.batches, now
            self._view.tell(TaskNotice("", f"{self._name}: {line_of(report)}", live="no"))
        self._view.show(Look(f"ingest/{self._name}", lambda: [report], dict, line=line_of))

    def end(self, counters: Counters) -> None:
        """A summary for programs."""
        self._view.tell(TaskNotice("summary", "", counters.as_json()))


def report_of(name: str, progress: IngestProgress) -> Report:
    """How far an ingest is."""
    return progress.told(Report("ingest", name, State.RUNNING))


def line_of(report: Report) -> str:
    """Files, rows, bytes, lag and quarantine, for people."""
    done, about = report.progress, report.about
    parts = [
        f"{done['files']:,} files",
        f"{done['rows']:,} rows ({about['rows/s']}/s)",
        size_text(done["bytes"]),
        f"{report.lag:,} waiting",
        f"lag {about['lag']}",
    ]
    if done["quarantined"]:
        parts.append(f"{done['quarantined']} in quarantine")
    if done["unreadable"]:
        parts.append(f"unreadable: {_left(done['unreadable'])}")
    return ", ".join(parts)


def summary_of(counters: Counters) -> dict[str, str]:
    """What was done in a run, for people: counters that are not 0."""
    done = {name: str(value) for name, value in counters.as_json().items() if value}
    return {**done, "unreadable": _left(counters.unreadable)} if counters.unreadable else done


def _left(unreadable: int) -> str:
    return f"{unreadable} left to the queue"


def metrics_view(port: int, name: str, show: Callable[[IngestProgress], None]) -> Callable[[IngestProgress], None]:
    """Serve what is shown as metrics too, on the loopback address."""
    registry = new_registry()
    from prometheus_client import Gauge

    gauges: dict[str, Any] = {}
    serve_metrics(port, registry)

    def told(progress: IngestProgress) -> None:
        waits = {"ready": progress.ready, "in_progress": progress.in_progress, "lag_seconds": progress.lag_s}
        for key, value in {**progress.counters.as_json(), **waits}.items():
            if key not in gauges:
                gauges[key] = Gauge(f"detent_ingest_{key}", f"{key} of the pipeline", ["ingest"], registry=registry)
            gauges[key].labels(name).set(value)
        show(progress)

    return told


# -- steering ---------------------------------------------------------------------------------------------------------


class KnownIngest(KnownTask):
    """An ingest, as its database knows it. Announcements that wait in the queue are not known yet. Without its file,
    and so without its settings, there is no reset: the file says which table it writes."""

    kind = "ingest"
    unit = "open file"
    instead: ClassVar[Mapping[str, str]] = {
        "pause": "its processes ask nothing but the queue. Stop them (Ctrl-C or SIGTERM): announcements wait in the "
        "queue, and the next run goes on with them",
        "resume": "start it with `detent run`: it goes on with the announcements that wait in the queue",
        "reset": "its file says which table it writes: give that file, such as orders.toml",
        "rm": "its database may be that of other ingests, and its table is yours. `detent reset` forgets the files of "
        "a table that is gone",
    }

    def __init__(self, engine: Engine, name: str, settings: IngestConfig | None = None) -> None:
        self._engine = engine
        self.name = name
        self._settings = settings

    def _status(self) -> SourceStatus:
        from detent.ingest import steering

        return steering.status(self._engine, self.name)

    def report(self) -> Report:
        """What it has committed, and what is open."""
        found = self._status()
        done = {name: getattr(found, name) for name in ("done", "quarantined", "batches", "rows", "bytes")}
        about = {
            "pipelines": str(found.pipelines),
            "oldest open": age_text(found.oldest_open_ms) if found.oldest_open_ms else "-",
            "committed": f"{found.batches:,} batches, {found.rows:,} rows, {size_text(found.bytes)}",
            "last commit": time_text(found.last_commit_at),
            "forgotten up to": time_text(found.forgotten_to),
        }
        state = State.RUNNING if found.pipelines else State.UNKNOWN
        return Report(self.kind, self.name, state, done, found.open + found.redriven, about=about)

    def details(self) -> dict[str, Any]:
        """All that is counted, and times."""
        return self._status().as_json()

    def reset_consequence(self, wanted: VerbOptions) -> str:
        """What is forgotten, and cannot be had again."""
        from detent.ingest import forgetting

        if self._settings is None:
            raise self.refusal("reset")
        if wanted.to != "earliest":
            raise click.UsageError("an ingest begins anew only as a whole: leave --to out")
        found = forgetting.look_for_reset(self._engine, self._settings)
        had = f"{found.rows:,} rows of {found.batches:,} commits"
        return f"forgets {found.files:,} files of {self.name}, whose table {found.table} with {had} is gone"

    def reset(self, wanted: VerbOptions) -> dict[str, Any]:
        """Forget what was ingested into a table that is gone."""
        from detent.ingest import forgetting

        del wanted
        if self._settings is None:
            raise self.refusal("reset")
        return dict(forgetting.reset(self._engine, self._settings)._asdict())


def is_database(place: str) -> bool:
    """Whether a word is the URL of a database, in which ingests keep their state."""
    return place.startswith(("sqlite:", "postgresql:", "postgresql+"))


@contextmanager
def ingests_of(url: str) -> Iterator[list[KnownTask]]:
    """All ingests that a database knows."""
    from sqlalchemy import select

    from detent.ingest.shard_sql import SOURCES
    from detent.sql.transactions import read

    with database(url) as engine:
        query = select(SOURCES.c.source).order_by(SOURCES.c.source)
        names = read(engine, lambda connection: list(connection.execute(query).scalars()))
        yield [KnownIngest(engine, name) for name in names]
