"""The kinds of tasks: how each is found in a file, run, looked at and steered.

Nothing of a kind is imported before a command needs it.

    kind.py       what a kind is: `TaskKind`, `ReadyTask` (about to run), `KnownTask` (to be looked at and steered)
    consumer.py   applications with state that read journals
    graph.py      graphs of processors
    bus.py        apps that handle typed messages
    pipeline.py   streams of Spark
    ingest.py     files that a queue announces, into a table
    worker.py     functions that handle the messages of a queue
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from detent.cli.kinds.bus import Buses
from detent.cli.kinds.consumer import Consumers
from detent.cli.kinds.graph import Graphs
from detent.cli.kinds.ingest import Ingests, read_config
from detent.cli.kinds.kind import Found, TaskKind
from detent.cli.kinds.pipeline import Pipelines
from detent.cli.kinds.worker import Workers
from detent.runtime.target import Loaded, Sought, Target

KINDS: Final[tuple[TaskKind, ...]] = (Consumers(), Graphs(), Buses(), Workers(), Ingests(), Pipelines())
"""In the order in which several of one process are started."""

ANYTHING: Final[Sought[Any]] = Sought(
    (),
    noun="task",
    plural="tasks",
    article="a",
    example="shop.py, shop.py:billing, shop.apps:billing or orders.toml",
    lines='from detent.consumer import Consumer; app = Consumer("orders", read="orders"), or those of a Graph, a Bus, '
    "a Pipeline, an IngestConfig or a Worker",
)


def find_all(targets: Iterable[str]) -> dict[str, list[Found]]:
    """What targets mean, by kind: the one that is named, or all that a file declares. Each is there once, also if it is
    meant twice."""
    found: dict[str, list[Found]] = {}
    loaded: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()
    for text in targets:
        target = Target.parse(text, ANYTHING.example)
        if target.place.endswith(".toml"):
            found.setdefault("ingest", []).append(Found(text, read_config(Path(target.place))))
            continue
        key = str(Path(target.place).resolve()) if target.is_file else target.place
        if key not in loaded:
            loaded[key] = dict(target.load(ANYTHING).names)
        for kind, one in _of(target, loaded[key]):
            if id(one.what) not in seen:
                seen.add(id(one.what))
                found.setdefault(kind.noun, []).append(one)
    _let_travel(found, loaded.values())
    return {kind.noun: found[kind.noun] for kind in KINDS if kind.noun in found}


def _of(target: Target, names: dict[str, Any]) -> list[tuple[TaskKind, Found]]:
    """What one target means."""
    soughts = [(kind, kind.sought()) for kind in KINDS if kind.is_imported]
    classes = tuple(cls for _, sought in soughts for cls in _classes(sought))
    place: Loaded[Any] = Loaded(Sought(classes, *_words(ANYTHING)), target.place, names)
    some = [place.named(target.name)] if target.name else place.all()
    return [
        (kind, Found(f"{target.place}:{place.name_of(one)}", one))
        for one in some
        for kind, sought in soughts
        if isinstance(one, sought.cls)
    ]


def _classes(sought: Sought[Any]) -> tuple[type, ...]:
    return sought.cls if isinstance(sought.cls, tuple) else (sought.cls,)


def _words(sought: Sought[Any]) -> tuple[str, ...]:
    return (sought.noun, sought.plural, sought.article, sought.example, sought.lines, sought.usual)


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
