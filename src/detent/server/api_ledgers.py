"""The HTTP API's routes for ledgers and pins."""

from __future__ import annotations

from typing import Final

from detent.ledger import LedgerInfo
from detent.server.limits import ListQuery, page_of
from detent.server.models import AnswerModel, TimeText, time_text
from detent.server.route import ApiCall, Route


class LedgerAnswer(AnswerModel, kw_only=True):
    """A ledger: the highest batch that its query has entered (-1: none since it was reset), by which run, and the runs
    that were replaced."""

    name: str
    query: str
    batch: int
    run: str
    replaced: list[str]
    entries: int
    generation: int
    created: TimeText
    updated: TimeText


class LedgerList(AnswerModel, kw_only=True):
    """Ledgers by name; `next` is the name to go on `after`, if there are more."""

    ledgers: list[LedgerAnswer]
    next: str | None


class PinAnswer(AnswerModel, kw_only=True):
    """Where a stream began: the offset of each of its journals."""

    name: str
    offsets: dict[str, int]
    created: TimeText


class PinList(AnswerModel, kw_only=True):
    """Pins by name; `next` is the name to go on `after`, if there are more."""

    pins: list[PinAnswer]
    next: str | None


def _ledger(info: LedgerInfo) -> LedgerAnswer:
    return LedgerAnswer(
        name=info.name,
        query=info.query,
        batch=info.batch,
        run=info.run,
        replaced=list(info.replaced),
        entries=info.entries,
        generation=info.generation,
        created=time_text(info.created),
        updated=time_text(info.updated),
    )


async def list_ledgers(call: ApiCall[None, ListQuery]) -> LedgerList:
    """The ledgers that the caller may look at, by name."""
    found = {info.name: info for info in await call.store.ledgers(call.query.prefix)}
    visible = [name for name in found if call.caller.may("read", "ledger", name)]
    page, following = page_of(visible, call.query)
    return LedgerList(ledgers=[_ledger(found[name]) for name in page], next=following)


async def list_pins(call: ApiCall[None, ListQuery]) -> PinList:
    """The pins that the caller may look at, by name."""
    found = {pin.name: pin for pin in await call.store.pins(call.query.prefix)}
    visible = [name for name in found if call.caller.may("read", "ledger", name)]
    page, following = page_of(visible, call.query)
    pins = [PinAnswer(name=name, offsets=found[name].offsets, created=time_text(found[name].created)) for name in page]
    return PinList(pins=pins, next=following)


ROUTES: Final = (
    Route("GET", "/v1/ledgers", list_ledgers, "List ledgers", None, LedgerList, query=ListQuery, errors=()),
    Route("GET", "/v1/pins", list_pins, "List pins", None, PinList, query=ListQuery, errors=()),
)
"""What can be asked of ledgers."""
