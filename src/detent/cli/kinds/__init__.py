"""The kinds of tasks: how each is found in a file, run, looked at and steered.

Nothing of a kind is imported before a command needs it.

    kind.py       what a kind is: `TaskKind`, `ReadyTask` (about to run), `KnownTask` (to be looked at and steered)
    consumer.py   applications with state that read journals
    graph.py      graphs of processors
    bus.py        apps that handle typed messages
    pipeline.py   streams of Spark
    ingest.py     files that a queue announces, into a table
    worker.py     functions that handle the messages of a queue
    bridge.py     a topic of Kafka into a store, a journal out to one
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from detent.cli.kinds.bridge import BridgeKind
from detent.cli.kinds.bus import BusKind
from detent.cli.kinds.consumer import ConsumerKind
from detent.cli.kinds.graph import GraphKind
from detent.cli.kinds.ingest import IngestKind, read_config
from detent.cli.kinds.kind import Found, TaskKind
from detent.cli.kinds.pipeline import PipelineKind
from detent.cli.kinds.worker import WorkerKind
from detent.runtime.target import Loaded, Sought, Target

CONSUMER, GRAPH, APP, WORKER = ConsumerKind(), GraphKind(), BusKind(), WorkerKind()
BRIDGE, INGEST, PIPELINE = BridgeKind(), IngestKind(), PipelineKind()

KINDS: Final[tuple[TaskKind, ...]] = (CONSUMER, GRAPH, APP, WORKER, BRIDGE, INGEST, PIPELINE)
"""In the order in which several of one process are started."""

ANYTHING: Final[Sought[Any]] = Sought(
    (),
    noun="task",
    plural="tasks",
    article="a",
    example="shop.py, shop.py:billing, shop.apps:billing or orders.toml",
    lines='from detent.consumer import Consumer; app = Consumer("orders", read="orders"), or those of a Graph, a Bus, '
    "a Pipeline, an IngestConfig, a FromTopic, a ToTopic or a Worker",
)


def find_all(targets: Iterable[str], only: TaskKind | None = None) -> dict[str, list[Found]]:
    """What targets mean, by kind: the one that is named, or all that a file declares. Each is there once, also if it is
    meant twice. A file that is meant twice is run once, so that its tasks are the same ones. With `only`, nothing but
    tasks of one kind is looked for."""
    found: dict[str, list[Found]] = {}
    loaded: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()
    for text in targets:
        target = Target.parse(text, (only or ANYTHING).example)
        if target.place.endswith(".toml") or (only is INGEST and not target.place.endswith(".py")):
            found.setdefault(INGEST.noun, []).append(Found(text, read_config(Path(target.place))))
            continue
        key = str(Path(target.place).resolve()) if target.is_file else target.place
        if key not in loaded:
            loaded[key] = dict(target.load(ANYTHING if only is None else only.sought()).names)
        for kind, one in _of(target, loaded[key], only):
            if id(one.what) not in seen:
                seen.add(id(one.what))
                found.setdefault(kind.noun, []).append(one)
    _let_travel(found, loaded.values())
    return {kind.noun: found[kind.noun] for kind in KINDS if kind.noun in found}


def _of(target: Target, names: dict[str, Any], only: TaskKind | None) -> list[tuple[TaskKind, Found]]:
    """What one target means."""
    soughts = [(kind, kind.sought()) for kind in KINDS if (kind.is_imported if only is None else kind is only)]
    wanted = soughts[0][1] if only else replace(ANYTHING, cls=tuple(cls for _, one in soughts for cls in _classes(one)))
    place: Loaded[Any] = Loaded(wanted, target.place, names)
    some = [place.named(target.name)] if target.name else place.all()
    return [
        (kind, Found(f"{target.place}:{place.name_of(one)}", one))
        for one in some
        for kind, sought in soughts
        if isinstance(one, sought.cls)
    ]


def _classes(sought: Sought[Any]) -> tuple[type, ...]:
    return sought.cls if isinstance(sought.cls, tuple) else (sought.cls,)


def _let_travel(found: dict[str, list[Found]], loaded: Iterable[dict[str, Any]]) -> None:
    """Functions of a pipeline travel to Spark's workers by value: these cannot import the file. So it does not stay
    imported, unless something else is declared in it that may look for its module later."""
    if "pipeline" not in found:
        return
    for names in loaded:
        name = str(names["__name__"])
        module = sys.modules.get(name)
        if module is None or module.__spec__ is not None:  # a package's own, which workers may have, too
            continue
        if len(found) > 1:
            from detent.spark.sessions import send_by_value

            send_by_value(module)
        else:
            del sys.modules[name]
