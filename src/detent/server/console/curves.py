"""The curves of a page: what queues held and did, drawn from what the server remembers."""

from __future__ import annotations

from typing import Final, NamedTuple

from markupsafe import Markup

from detent.errors import Denied, NotFound
from detent.server.console.drawing import Curve, chart
from detent.server.console.visit import Visit
from detent.server.console.wording import number_text

SPANS: Final = {"15m": "15 min", "24h": "24 h"}


class Shown(NamedTuple):
    """One picture, with what its curves are called."""

    title: str
    names: tuple[str, ...]
    picture: Markup


async def of_queue(visit: Visit, queue: str = "") -> list[Shown]:
    """The pictures of a queue, or of all queues together; none for a visitor that may not see them, or where none are
    kept."""
    span = span_of(visit)
    try:
        found = await visit.ask("GET", "/v1/series", query={"queue": queue, "span": span})
    except (Denied, NotFound):
        return []
    shown = [
        _picture("Messages a second", ("published", "done"), [found.published, found.done], span),
        _picture("Messages", ("available", "in flight", "failed"),
                 [found.available, found.in_flight, found.failed], span),
    ]  # fmt: skip
    if any(value is not None for value in found.commit):
        shown.append(_picture("Milliseconds of a commit", ("mean",), [found.commit], span))
    return shown


def span_of(visit: Visit) -> str:
    """How far back the visitor wants to look."""
    wanted = visit.query.get("span", "")
    return wanted if wanted in SPANS else "15m"


def _picture(title: str, names: tuple[str, ...], values: list[list[float | None]], span: str) -> Shown:
    newest = [next((value for value in reversed(points) if value is not None), None) for points in values]
    words = ", ".join(f"{name} {number_text(value)}" for name, value in zip(names, newest, strict=True))
    curves = [Curve(name, points) for name, points in zip(names, values, strict=True)]
    return Shown(title, names, chart(curves, f"{title} in the last {SPANS[span]}; now {words}", SPANS[span]))
