"""Pipelines: streams of Spark."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import click

from detent.cli._common import count_text, open_for_writing
from detent.cli._output import print_json, print_table
from detent.cli._views import Look, ReportColumn, TaskNotice, TaskView, said
from detent.cli.kinds.kind import LOOK_S, Found, Given, KnownTask, ReadyTask, TaskKind, VerbOptions
from detent.errors import Invalid, NotFound, Unavailable
from detent.paths import as_url
from detent.runtime.report import Report, State, state_of

if TYPE_CHECKING:
    from detent.spark.pipeline import Pipeline
    from detent.spark.stream_state import Event, StreamState, Summary
    from detent.store import Store
    from detent.stream.told import ToldReport

_QUIET: Final = frozenset({"progress", "stopped"})
"""Events that are not worth a line for people: there are many, or the end of the run shows them."""

TOLD_AGAIN: Final = 2
"""What a stream said just after the command began may have been counted before."""

COLUMNS: Final = (
    ReportColumn("stream", lambda part: part.name, is_number=False),
    said("state"),
    said("in/s", is_number=True),
    ReportColumn("waiting", lambda part: "-" if part.lag is None else f"{part.lag:,}"),
    said("batch", is_number=True),
    said("took", is_number=True),
    said("read up to"),
    said("quarantined", is_number=True),
    said("failures", is_number=True),
)


# -- finding ----------------------------------------------------------------------------------------------------------


def only_pipeline(found: Sequence[Pipeline], shown: str) -> Pipeline:
    """The only one of them: there is one Spark a process."""
    if len(found) > 1:
        all_names = ", ".join(pipeline.name for pipeline in found)
        raise Invalid(f"{shown} declares {len(found)} pipelines ({all_names}): put each one into a file of its own")
    return found[0]


class PipelineKind(TaskKind):
    """The kind."""

    noun = "pipeline"
    home = "detent.spark"
    usual = "pipeline"
    example = "shop.py:pipeline"
    lines = 'from detent.spark import Pipeline; pipeline = Pipeline("shop")'

    def classes(self) -> tuple[type, ...]:
        """Of a pipeline."""
        from detent.spark import Pipeline

        return (Pipeline,)

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """The only one."""
        pipeline = only_pipeline([one.what for one in found], found[0].target.partition(":")[0])
        return [ReadyPipeline(pipeline, found[0].target, given)]

    @contextmanager
    def declared(self, found: Any, given: Given) -> Iterator[KnownTask]:
        """A pipeline of a file, in the store that it says."""
        from detent.spark.store_place import place_of

        place = place_of(found, given.get("url"), given.get("server"))
        with open_for_writing(place.owner_url, force=given.get("force", False)) as store:
            yield KnownPipeline(store, found.name, [stream.name for stream in found.streams])

    def stored(self, store: Store) -> Iterator[KnownTask]:
        """The pipelines that have declared streams in a store."""
        streams: dict[str, list[str]] = {}
        for one in store.declared_streams():
            pipeline, _, stream = one.name.partition("/")
            streams.setdefault(pipeline, []).append(stream)
        for name, of_pipeline in sorted(streams.items()):
            yield KnownPipeline(store, name, of_pipeline)


# -- running ----------------------------------------------------------------------------------------------------------


class ReadyPipeline(ReadyTask):
    """A pipeline whose streams are about to run in this process."""

    kind = "pipeline"
    sets_handlers = True

    def __init__(self, pipeline: Pipeline, target: str, given: Given) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._folder = Path(target.partition(":")[0]).resolve().parent
        self._given = given
        self._settings = dict(map(_setting, given["conf"]))
        self._summary: Summary | None = None
        self.name = pipeline.name

    def check(self, *, as_json: bool) -> None:
        """Show its streams."""
        from detent.spark.pipeline import as_json as graph
        from detent.spark.pipeline import as_mermaid, as_text, chosen

        chosen(self._pipeline, list(self._given["only"]) or None)
        if as_json:
            print_json(graph(self._pipeline))
        else:
            click.echo(f"{as_text(self._pipeline)}\n\n{as_mermaid(self._pipeline)}")

    def run(self, view: TaskView) -> int:
        """Run its streams until `stop`, or until each was given up."""
        return self._run(view, once=False)

    def run_once(self, view: TaskView) -> int:
        """Let its streams read what there is."""
        return self._run(view, once=True)

    def _run(self, view: TaskView, *, once: bool) -> int:
        _let_workers_import(self._folder)
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        from detent.spark.pipeline_runner import run

        given = self._given
        summary = run(
            self._pipeline,
            store=None if given["url"] is None else as_url(given["url"]),
            server=given["server"],
            checkpoints=given["checkpoints"],
            once=once,
            only=list(given["only"]) or None,
            migrate=given["migrate"],
            view=Watched(view, self.name),
            signals=threading.current_thread() is threading.main_thread(),
            stop=self.stopping,
            conf=self._settings,
            **{name: given[name] for name in ("cores", "memory", "master", "quick", "verbose")},
        )
        self._summary = summary
        if given["as_json"]:
            view.tell(TaskNotice("summary", "", summary.as_json()))
        return 1 if summary.failed else 0

    def summarize(self) -> None:
        """A row for each stream, and what was given up."""
        if self._summary is None or self._given["as_json"]:
            return
        rows = [_summary_row(state.report()) for state in self._summary.states]
        heads = ["stream", "state", "messages", "batches", "read up to", "waiting", "quarantined", "failures"]
        print_table(heads, rows)
        for state in self._summary.failed:
            click.echo(f"error: the stream {state.name} was given up: {state.error}", err=True)


def _summary_row(part: Report) -> list[str]:
    lag = "-" if part.lag is None else f"{part.lag:,}"
    about, done = part.about, part.progress
    row = [part.name, about["state"], str(done["messages"]), str(done["batches"]), about["read up to"], lag]
    return [*row, about["quarantined"], about["failures"]]


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"a setting is KEY=VALUE, not {text!r}")
    return key, value


def _let_workers_import(folder: Path) -> None:
    """What lies beside the file can be imported by Spark's processes too."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])


class Watched:
    """What a runner of streams tells, on a view."""

    def __init__(self, view: TaskView, pipeline: str) -> None:
        self._view = view
        self._pipeline = pipeline

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def tell(self, event: Event) -> None:
        """Something happened."""
        self._view.tell(notice_of(event))

    def show(self, states: Sequence[StreamState]) -> None:
        """How the streams are now."""
        is_last = all(state.is_over for state in states)
        name = f"pipeline/{self._pipeline}"
        reports = lambda: [report_of(self._pipeline, states)]  # noqa: E731
        self._view.show(Look(name, reports, dict, COLUMNS), is_last=is_last)


def notice_of(event: Event) -> TaskNotice:
    """An event of a stream, or of the whole run."""
    fields = {"stream": event.stream, "text": event.text}
    words = [event.stream + ":" if event.stream else "", event.kind.replace("_", " "), event.text]
    line = "" if event.kind in _QUIET else " ".join(word for word in words if word)
    return TaskNotice(event.kind, line, {**{key: text for key, text in fields.items() if text}, **event.fields})


def report_of(pipeline: str, states: Sequence[StreamState]) -> Report:
    """A pipeline with its streams."""
    parts = tuple(state.report() for state in states)
    progress = {name: sum(part.progress[name] for part in parts) for name in ("messages", "batches")}
    return Report("pipeline", pipeline, state_of(part.state for part in parts), progress, parts=parts)


# -- steering ---------------------------------------------------------------------------------------------------------


class KnownPipeline(KnownTask):
    """A pipeline whose streams a store knows: what has taken effect, and what the process that runs it says."""

    kind = "pipeline"
    instead: ClassVar[Mapping[str, str]] = {
        "pause": "Spark runs it in one process, which asks the store for nothing. Stop that process (Ctrl-C or "
        "SIGTERM): the next run goes on where it was",
        "resume": "Spark runs it in one process. Start it with `detent run`: it goes on where it was",
        "reset": "its progress is in the checkpoints of Spark. Delete the checkpoint of a stream, and run it once with "
        "`detent run FILE --migrate STREAM`, or forget what has taken effect with `detent ledger reset`",
    }

    def __init__(self, store: Store, name: str, streams: Sequence[str]) -> None:
        self._store = store
        self.name = name
        self._streams = streams

    def _heard(self) -> dict[str, ToldReport]:
        from detent.stream.told import heard_reports

        return heard_reports(self._store, self.title, "stream")

    def report(self) -> Report:
        """Its streams, as the process says that runs them, with the batches that have taken effect in all."""
        heard, parts = self._heard(), []
        for stream in self._streams:
            told = heard[stream].report if stream in heard else Report("stream", stream, State.UNKNOWN)
            try:
                effective = str(self._store.ledger(f"{self.name}/{stream}").entries)
            except NotFound:
                effective = "-"
            parts.append(replace(told, about={**told.about, "in effect": effective}))
        state = state_of(part.state for part in parts) if heard else State.UNKNOWN
        names = {name for part in parts for name in part.progress}
        progress = {name: sum(part.progress.get(name, 0) for part in parts) for name in sorted(names)}
        lags = [part.lag for part in parts if part.lag is not None]
        trouble = next((part.trouble for part in parts if part.trouble), None)
        return Report("pipeline", self.name, state, progress, sum(lags) if lags else None, trouble, parts=tuple(parts))

    def wait(self, timeout_ms: int, inputs: Mapping[str, str]) -> dict[str, int]:
        """Until every stream has said, after the command began, that nothing is left."""
        del inputs
        deadline = time.monotonic() + timeout_ms / 1000
        before = self._heard()
        while True:
            heard = self._heard()
            streams = [heard[name] for name in self._streams if name in heard and heard[name].member]
            if not streams:
                raise Invalid(
                    f"{self.title} does not run, so how far it is, Spark alone knows. `detent run FILE --once` ends "
                    "when all that there was has been read"
                )
            new = [one for one in streams if one.is_new(before.get(one.report.name), TOLD_AGAIN)]
            if len(new) == len(streams) and all(one.report.lag == 0 for one in new):
                return {}
            if time.monotonic() > deadline:
                left = sum(one.report.lag or 0 for one in streams)
                raise Unavailable(f"{self.title} still has {count_text(left)} to read, or has not said so yet")
            time.sleep(LOOK_S)

    def remove_consequence(self, wanted: VerbOptions) -> str:
        """What goes."""
        del wanted
        names = ", ".join(self._streams)
        return (
            f"forgets which batches of {self.name} ({names}) have taken effect: with its checkpoints left where they "
            "are, batches that are tried again take effect again"
        )

    def remove(self, wanted: VerbOptions) -> dict[str, Any]:
        """Forget the ledger rows of its streams."""
        from detent.stream.told import forget_reports

        del wanted
        for stream in self._streams:
            self._store.reset_ledger(f"{self.name}/{stream}")  # forgets what the stream reads and writes, too
            with suppress(NotFound):
                self._store.delete_ledger(f"{self.name}/{stream}")
        forget_reports(self._store, self.title)
        return {}
