"""The HTTP API's route for curves: what queues held and did in the last minutes and hours."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from detent.errors import Denied, NotFound
from detent.names import NAME_MAX, check_name
from detent.remote.rights import may_all
from detent.server.models import AnswerModel, RequestModel
from detent.server.route import ApiCall, Route, may_see
from detent.server.series import QUEUES_MAX, SPANS


class SeriesQuery(RequestModel, kw_only=True):
    """Of which queue (of all together, if none is named), and how far back."""

    queue: Annotated[str, Meta(max_length=NAME_MAX)] = ""
    span: Literal["15m", "24h"] = "15m"


class SeriesAnswer(AnswerModel, kw_only=True):
    """Points that are `step` seconds apart, the oldest first; null where nothing was seen. `published` and `done` are
    messages a second, `commit` is the mean length of a commit in milliseconds, and the others are counts."""

    queue: str
    span: str
    step: float
    published: list[float | None]
    done: list[float | None]
    available: list[float | None]
    in_flight: list[float | None]
    failed: list[float | None]
    commit: list[float | None]


async def show_series(call: ApiCall[None, SeriesQuery]) -> SeriesAnswer:
    """Curves of a queue, or of all queues together, for callers that may read all of these. They are in the server's
    memory, and begin anew when it starts."""
    queue, series = call.query.queue, call.service.series
    if queue:
        check_name(queue, "queue")
        if not may_see(call.caller, "queue", queue):
            raise Denied(f"{call.caller.name} may not look at the queue {queue!r}")
    elif not may_all(call.caller, "read", "queue"):
        raise Denied(f"{call.caller.name} may not look at all queues together")
    found = None if series is None else series.of(queue, call.query.span)
    if found is None:
        raise NotFound(f"there is no curve of {queue!r}: those of the {QUEUES_MAX} busiest queues are kept")
    return SeriesAnswer(queue=queue, span=call.query.span, step=SPANS[call.query.span].step_s, **found)


ROUTES: Final = (
    Route("GET", "/v1/series", show_series, "Show curves of queues", None, SeriesAnswer, query=SeriesQuery),
)
"""What can be asked of curves."""
