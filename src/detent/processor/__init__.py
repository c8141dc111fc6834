"""Processors: graphs of sources, streams and sinks over journals, each message taking effect exactly once.

>>> from detent.processor import Graph
>>> graph = Graph("shop", store="file:./data", errors="failed")
>>> graph.source("orders")
>>> @graph.stream(input="orders", output="totals")
... def total(order):
...     return {"order": order["id"], "total": order["price"] * order["count"]}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.journal import Message
    from detent.processor.appender import Appender, delete_appender
    from detent.processor.declaration import Processor, sink, source, stream
    from detent.processor.graph import Graph
    from detent.processor.live import LiveGraph
    from detent.processor.provenance import Origin, Provenance, provenance_of
    from detent.processor.sink_file import FileSink
    from detent.processor.sink_http import HttpSink
    from detent.processor.sink_objects import ObjectSink
    from detent.processor.sink_sql import SqlSink
    from detent.processor.status import InputStatus, ProcessorStatus
    from detent.processor.step import Out, Polled, Step
    from detent.processor.tailer import Tailer, any_of, delete_tailer
    from detent.processor.tracing import Hop, Latency

_HOME = {
    "Appender": "detent.processor.appender",
    "FileSink": "detent.processor.sink_file",
    "Graph": "detent.processor.graph",
    "Hop": "detent.processor.tracing",
    "HttpSink": "detent.processor.sink_http",
    "InputStatus": "detent.processor.status",
    "Latency": "detent.processor.tracing",
    "LiveGraph": "detent.processor.live",
    "Message": "detent.journal",
    "ObjectSink": "detent.processor.sink_objects",
    "Origin": "detent.processor.provenance",
    "Out": "detent.processor.step",
    "Polled": "detent.processor.step",
    "Processor": "detent.processor.declaration",
    "ProcessorStatus": "detent.processor.status",
    "Provenance": "detent.processor.provenance",
    "SqlSink": "detent.processor.sink_sql",
    "Step": "detent.processor.step",
    "Tailer": "detent.processor.tailer",
    "any_of": "detent.processor.tailer",
    "delete_appender": "detent.processor.appender",
    "delete_tailer": "detent.processor.tailer",
    "provenance_of": "detent.processor.provenance",
    "sink": "detent.processor.declaration",
    "source": "detent.processor.declaration",
    "stream": "detent.processor.declaration",
}

__all__ = [
    "Appender",
    "FileSink",
    "Graph",
    "Hop",
    "HttpSink",
    "InputStatus",
    "Latency",
    "LiveGraph",
    "Message",
    "ObjectSink",
    "Origin",
    "Out",
    "Polled",
    "Processor",
    "ProcessorStatus",
    "Provenance",
    "SqlSink",
    "Step",
    "Tailer",
    "any_of",
    "delete_appender",
    "delete_tailer",
    "provenance_of",
    "sink",
    "source",
    "stream",
]

if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
