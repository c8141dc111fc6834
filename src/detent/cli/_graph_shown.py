"""What commands show of a graph as it is declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from detent.cli._output import duration_text, line_text, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from detent.processor.declaration import Processor
    from detent.processor.graph import Graph


def print_graph(graph: Graph, *, as_json: bool, mermaid: bool = False) -> None:
    """A graph with its processors."""
    if as_json:
        print_json(graph_fields(graph))
        return
    click.echo(graph.draw("mermaid" if mermaid else "text"))
    if not mermaid:
        click.echo()
        _print_options(graph)


def _print_options(graph: Graph) -> None:
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
