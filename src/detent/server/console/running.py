"""What runs: consumers, the processors of graphs, bridges and pipelines, as their store knows them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final, NamedTuple

from detent.errors import Invalid
from detent.server.console import drawing
from detent.server.console.visit import Form, Page, Visit
from detent.server.http import Response

ROWS: Final = 200

GRAPH: Final = "graph/"


class GraphShown(NamedTuple):
    """A graph of which the store has processors."""

    name: str
    parts: list[Any]


async def list_running(visit: Visit) -> Response:
    """All that the store knows of, graphs as one line each."""
    asked = visit.asked("prefix", "after")
    found = await visit.ask("GET", "/v1/consumers", query={**asked, "limit": ROWS})
    graphs: dict[str, list[Any]] = defaultdict(list)
    alone = []
    for one in found.consumers:
        if one.name.startswith(GRAPH) and one.name.count("/") > 1:
            graphs[one.name.removeprefix(GRAPH).partition("/")[0]].append(one)
        else:
            alone.append(one)
    shown = [GraphShown(name, parts) for name, parts in graphs.items()]
    return visit.page("running.html", "Running", found=found, asked=asked, alone=alone, graphs=shown, state_of=state_of)


def state_of(parts: list[Any]) -> str:
    """The state of what has several parts: the one that needs most attention."""
    states = {one.state for one in parts}
    return next((state for state in ("failed", "stopped", "paused", "running") if state in states), "stopped")


async def show_consumer(visit: Visit) -> Response:
    """One of them: shards, members, lag."""
    found = await visit.ask("GET", "/v1/consumers/{consumer}", visit.name)
    return visit.page("consumer.html", visit.name, one=found)


async def show_graph(visit: Visit) -> Response:
    """A graph, drawn from what its processors read and have written."""
    found = await visit.ask("GET", "/v1/consumers", query={"prefix": f"{GRAPH}{visit.name}/", "limit": ROWS})
    nodes = [
        drawing.Processor(
            one.name.rpartition("/")[2], one.state, one.lag, one.journals,
            one.writes,
            visit.link("running", one.name),
        )
        for one in found.consumers
    ]  # fmt: skip
    picture = drawing.graph(nodes, lambda journal: visit.link("journals", journal)) if nodes else None
    return visit.page("graph.html", f"Graph {visit.name}", name=visit.name, parts=found.consumers, picture=picture)


async def pause(visit: Visit, form: Form) -> Response:
    """Pause a consumer, or let it go on."""
    paused = form.text("to") == "paused"
    await visit.ask("PATCH", "/v1/consumers/{consumer}", visit.name, body={"paused": paused})
    words = "rests once it has finished what is under way" if paused else "goes on"
    return visit.go(visit.link("running", visit.name), f"{visit.name} {words}.")


async def reset(visit: Visit, form: Form) -> Response:
    """Have one journal read from another offset."""
    journal, offset = form.text("journal"), form.text("offset")
    if not (offset.isascii() and offset.isdigit()):
        raise Invalid(f"an offset is a number, not {offset[:50]!r}")
    await visit.ask("POST", "/v1/consumers/{consumer}/reset", visit.name, body={"offsets": {journal: int(offset)}})
    return visit.go(visit.link("running", visit.name), f"{visit.name} reads {journal} from offset {offset} on.")


PAGES: Final = (
    Page("/running", list_running),
    Page("/running/{}", show_consumer),
    Page("/running/{}/pause", None, pause),
    Page("/running/{}/reset", None, reset),
    Page("/graphs/{}", show_graph),
)
