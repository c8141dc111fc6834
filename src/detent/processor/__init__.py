"""Processors: graphs of sources, streams and sinks over journals, each message taking effect once.

>>> from detent.processor import Graph
>>> graph = Graph("shop", store="file:./data", errors="failed")
>>> graph.source("orders")
>>> @graph.stream(input="orders", output="totals")
... def total(order):
...     return {"order": order["id"], "total": order["price"] * order["count"]}

Declaring a graph:

    graph.py          `Graph`: sources, streams and sinks
    declaration.py    one of these, as a value, and the journals that it names
    plan.py           a graph as it was declared, and what is refused before it starts
    drawing.py        a graph as text or for Mermaid

Running it, in the order in which things happen:

    live_graph.py     the graph with its stores open, each processor in a thread
    task.py           one processor: waits for its lease, runs, starts over when it fails
    runner.py         one such run: raises the fence, recovers, then makes step after step
    records.py        what a processor writes down: its record, and a mark in each other store
    recovery.py       what it does when it starts, and whether it may: a pure function of what is durable
    inputs.py         input sets: one message, one of each of several journals, one of any
    calling.py        runs input sets through the function: filtered, retried, in parallel
    function.py       how the function's parameters are filled
    step.py           what the function is told of its step, and what it may return
    outcome.py        what comes of a step: messages for journals, and counts
    provenance.py     where a message comes from: a header that every output carries

Sinks that take effect once:

    sink_base.py      what they have in common
    sink_sql.py       rows and delivery key in one SQL transaction
    sink_objects.py   one object a delivery, under a name that only one put can take
    sink_http.py      requests with an idempotency key
    sink_file.py      lines of one file
    sink_notes.py     the notes beside that file: how much of it is good

Looking and steering:

    status.py         how processors are doing
    settling.py       whether a graph has done all that there is to do
    tracing.py        where messages come from, hop by hop, with times
    moving.py         reading inputs again; a new name for a processor; forgetting one

Without a graph, `Tailer` and `Appender` are in `detent.stream`, with what all of this stands on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.journal import Message
    from detent.processor.declaration import Processor, sink, source, stream
    from detent.processor.graph import Graph
    from detent.processor.live_graph import LiveGraph
    from detent.processor.provenance import Origin, Provenance, provenance_of
    from detent.processor.sink_file import FileSink
    from detent.processor.sink_http import HttpSink
    from detent.processor.sink_objects import ObjectSink
    from detent.processor.sink_sql import SqlSink
    from detent.processor.status import InputStatus, ProcessorStatus
    from detent.processor.step import Out, Polled, Step
    from detent.processor.tracing import Hop, Latency
    from detent.stream.appender import Appender, delete_appender
    from detent.stream.tailer import Tailer, any_of, delete_tailer

_HOME = {
    "Appender": "detent.stream.appender",
    "FileSink": "detent.processor.sink_file",
    "Graph": "detent.processor.graph",
    "Hop": "detent.processor.tracing",
    "HttpSink": "detent.processor.sink_http",
    "InputStatus": "detent.processor.status",
    "Latency": "detent.processor.tracing",
    "LiveGraph": "detent.processor.live_graph",
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
    "Tailer": "detent.stream.tailer",
    "any_of": "detent.stream.tailer",
    "delete_appender": "detent.stream.appender",
    "delete_tailer": "detent.stream.tailer",
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
