"""How far a query of Spark is, by name: Spark's own report calls a Python source ``PythonMicroBatchStream...@1234``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from detent.spark.ranges import without_life

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def progress(query: StreamingQuery) -> dict[str, Any]:
    """Where the last batch left a query: its sources and its sink by name, with the store, and for journals how many
    messages wait.

    >>> detent.spark.progress(query)["sources"][0]["journals"]
    {'orders': {'offset': 3, 'lag': 0}}

    Names are those of the options; they are known while the query runs. Under Spark Connect they are not.
    """
    last = query.lastProgress
    found: dict[str, Any] = {"query": query.name or str(query.id), "batch": None if last is None else last.batchId}
    execution = _execution(query)
    options = [] if execution is None else list(_options_of(execution))
    reports = [] if last is None else json.loads(last.json)["sources"]
    if not reports:
        found["sources"] = [_named(one) for one in options]
    else:
        # Spark reports its sources in the order in which the plan has them.
        known = options if len(options) == len(reports) else [{}] * len(reports)
        found["sources"] = [_source(one, report) for one, report in zip(known, reports, strict=True)]
    found["sink"] = None if execution is None else _sink(execution)
    return found


def _execution(query: Any) -> Any:
    """Spark's object of the running query; None when it has ended, or runs elsewhere."""
    from pyspark.sql import SparkSession

    session: Any = SparkSession.getActiveSession()
    java = getattr(session, "_jsparkSession", None)
    if java is None:
        return None
    identity = session.sparkContext._jvm.java.util.UUID.fromString(str(query.id))
    return java.sharedState().activeStreamingQueries().get(identity)


def _options_of(execution: Any) -> Iterator[Mapping[str, str]]:
    """The options of each source. Sources that are not of version 2, such as Spark's own files, have none here."""
    leaves = execution.logicalPlan().collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        is_newer = "StreamingDataSourceV2" in leaf.getClass().getName()
        yield dict(leaf.relation().options().asCaseSensitiveMap()) if is_newer else {}


def _sink(execution: Any) -> dict[str, str]:
    plan = execution.logicalPlan()
    written = plan.writeOptions()
    options = {
        name: written.get(name).get() for name in ("path", "journal", "queue", "server") if written.contains(name)
    }
    return _named(options) if options else {"name": str(execution.sink().toString()).partition("@")[0]}


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """What a source or sink is called, and where its store is."""
    kinds = ("queue", "journal", "journals")
    words = next((f"{kind} {options[kind]}" for kind in kinds if options.get(kind)), "")
    store = options.get("path", "")
    return {"name": words or store, **({"store": store} if store else {})}


def _source(options: Mapping[str, str], report: Mapping[str, Any]) -> dict[str, Any]:
    end, latest = _object(report.get("endOffset")), _object(report.get("latestOffset"))
    found: dict[str, Any] = {**_named(options), "rows": report.get("numInputRows", 0)}
    if not found["name"]:
        found["name"] = str(report.get("description", "")).partition("@")[0]
    if "assignment" in end:
        return {**found, "name": f"queue {end['queue']}", "assignment": end["assignment"]}
    if "journals" in options:
        found["journals"] = {
            name: {"offset": offset, "lag": max(0, latest.get(name, offset) - offset)} for name, offset in end.items()
        }
        found["lag"] = sum(one["lag"] for one in found["journals"].values())
    return found


def _object(given: Any) -> dict[str, Any]:
    """An offset as Spark reports it: an object, its text, or nothing."""
    found = json.loads(given) if isinstance(given, str) else given
    return without_life(found) if isinstance(found, dict) else {}
