"""What commands show of a graph: its processors as they are declared, how they are doing, where a message is from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from detent.cli._output import duration_text, line_text, print_table, time_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from detent.processor.declaration import Processor
    from detent.processor.graph import Graph
    from detent.processor.status import ProcessorStatus
    from detent.processor.tracing import Hop

# -- as declared ------------------------------------------------------------------------------------------------------


def print_options(graph: Graph) -> None:
    """Each processor with what was said of it."""
    from detent.processor.drawing import JOINED, rows_of
    from detent.processor.plan import errors_of

    rows = []
    for one in rows_of(graph):
        errors = errors_of(one, graph.errors)
        rows.append(
            [
                one.name,
                one.kind,
                JOINED[one.mode].join(map(str, one.inputs)) or "-",
                ", ".join(map(_bound, one.outputs.items())) or "-",
                "-" if errors is None else str(errors),
                (one.delivery or graph.delivery) if one.inputs else "-",
                str(one.batch) if one.inputs else "-",
                str(one.parallel) if one.inputs else "-",
                ", ".join(_more(one)) or "-",
            ]
        )
    columns = ["processor", "kind", "inputs", "outputs", "errors", "delivery", "batch", "parallel", "more"]
    print_table(columns, rows)


def _bound(output: tuple[str, Any]) -> str:
    """An output, with the name that the function has for it if that is another one."""
    binding, place = output
    return str(place) if binding == str(place) else f"{line_text(binding)}={place}"


def _more(processor: Processor) -> Iterator[str]:
    """What most processors do not say."""
    if processor.types:
        yield f"types {line_text(' '.join(sorted(processor.types)))}"
    if processor.topics:
        yield f"topics {line_text(' '.join(sorted(processor.topics)))}"
    if processor.whole:
        yield "whole batches"
    if processor.retries:
        yield f"retries {processor.retries}, first after {duration_text(processor.retry_pause_ms)}"
    if processor.inputs and processor.start != "earliest":
        yield f"starts at {processor.start}"
    if processor.kind == "source" and processor.runs:
        yield f"asked every {duration_text(processor.every_ms)}"
    if processor.is_async:
        yield "async"
    if processor.formerly:
        yield f"formerly {processor.formerly}"


def graph_fields(graph: Graph) -> dict[str, Any]:
    """A graph for programs."""
    from detent.processor.drawing import rows_of

    return {
        "graph": graph.name,
        "store": graph.store,
        "stores": graph.stores,
        "errors": None if graph.errors is None else str(graph.errors),
        "delivery": graph.delivery,
        "lease_ms": graph.lease_ms,
        "processors": [_processor_fields(graph, one) for one in rows_of(graph)],
    }


def _processor_fields(graph: Graph, one: Processor) -> dict[str, Any]:
    from detent.processor.plan import errors_of

    errors = errors_of(one, graph.errors)
    return {
        "name": one.name,
        "kind": one.kind,
        "runs": one.runs,
        "mode": one.mode,
        "inputs": list(map(str, one.inputs)),
        "outputs": {binding: str(place) for binding, place in one.outputs.items()},
        "errors": None if errors is None else str(errors),
        "delivery": one.delivery or graph.delivery,
        "types": sorted(one.types),
        "topics": sorted(one.topics),
        "batch": one.batch,
        "whole": one.whole,
        "parallel": one.parallel,
        "retries": one.retries,
        "retry_pause_ms": one.retry_pause_ms,
        "start": one.start,
        "every_ms": one.every_ms,
        "is_async": one.is_async,
        "formerly": one.formerly,
    }


# -- as it is doing ---------------------------------------------------------------------------------------------------


def print_status(found: Sequence[ProcessorStatus]) -> None:
    """The processors, what went wrong, and how long messages take."""
    rows = [
        [
            one.name,
            one.kind or "-",
            one.status if one.declared else f"{one.status}, not declared",
            str(one.lag),
            str(one.outputs),
            str(one.errors),
            str(one.nils),
            str(one.owed),
            line_text(one.holder) or "-",
            line_text(one.error) or "-",
        ]
        for one in found
    ]
    columns = ["processor", "kind", "status", "lag", "outputs", "errors", "nils", "owed", "holder", "error"]
    print_table(columns, rows)
    times = [[where, one.name, took] for one in found for where, took in one.latency.items()]
    if times:
        click.echo()
        print_table(
            ["journal", "written by", "messages", "median", "p99", "max"],
            [
                [where, name, str(took["messages"]), *(milliseconds_text(took[f"{key}_ms"]) for key in _TIMES)]
                for where, name, took in times
            ],
        )


_TIMES = ("median", "p99", "max")


def status_fields(one: ProcessorStatus) -> dict[str, Any]:
    """The same for programs."""
    import msgspec

    return {**msgspec.to_builtins(one), "lag": one.lag}


def milliseconds_text(ms: float) -> str:
    """How long something took, with as many digits as say something.

    >>> milliseconds_text(7), milliseconds_text(12_345)
    ('7 ms', '12.3 s')
    """
    return f"{ms:.0f} ms" if ms < 10_000 else f"{ms / 1000:,.1f} s"


# -- where a message is from ------------------------------------------------------------------------------------------


def print_trace(hop: Hop) -> None:
    """A message and what it was made from, as a tree."""
    print_table(["message", "written", "by", "hop", "in all", "key"], list(_hop_rows(hop, "", "")))


def _hop_rows(hop: Hop, lead: str, below: str) -> Iterator[list[str]]:
    """A message, and under it its inputs: `lead` is in front of it, `below` in front of what comes under it."""
    where = f"{lead}{line_text(hop.journal)} {hop.offset}"
    if hop.published_ms is None:
        yield [where, "not there any more", "-", "-", "-", "-"]
    else:
        yield [
            where,
            time_text(hop.published_ms),
            "(outside)" if hop.processor is None else line_text(hop.processor),
            "-" if hop.hop_ms is None else milliseconds_text(hop.hop_ms),
            "-" if hop.total_ms is None else milliseconds_text(hop.total_ms),
            "-" if hop.key is None else line_text(hop.key),
        ]
    for index, one in enumerate(hop.inputs):
        is_last = index == len(hop.inputs) - 1 and not hop.more
        yield from _hop_rows(one, f"{below}{'└─' if is_last else '├─'} ", f"{below}{'   ' if is_last else '│  '}")
    if hop.more:
        yield [f"{below}└─ {hop.more} more", "-", "-", "-", "-", "-"]
