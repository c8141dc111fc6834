"""The store as a whole, its ledgers and pins, and the keys of its server."""

from __future__ import annotations

from typing import Final

from detent.errors import Denied
from detent.server.console.visit import Page, Visit
from detent.server.http import Response

ROWS: Final = 100


async def show_store(visit: Visit) -> Response:
    """How much there is, who owns it, and how it is looked after."""
    found = await visit.ask("GET", "/v1/store")
    return visit.page("store.html", "Store", store=found)


async def list_ledgers(visit: Visit) -> Response:
    """Ledgers and pins, by name."""
    asked = visit.asked("prefix", "after")
    found = await visit.ask("GET", "/v1/ledgers", query={**asked, "limit": ROWS})
    pins = await visit.ask("GET", "/v1/pins", query={"prefix": asked["prefix"], "limit": ROWS})
    return visit.page("ledgers.html", "Ledgers", found=found, pins=pins, asked=asked)


async def list_keys(visit: Visit) -> Response:
    """The keys of the server, without their secrets. Who may do everything may see who else may what."""
    if not visit.may_everywhere("admin"):
        raise Denied("the keys are shown to those who may do everything: the grant admin:*:*")
    return visit.page("keys.html", "Keys", keys=visit.console.entrance.listed_keys())


PAGES: Final = (
    Page("/store", show_store),
    Page("/ledgers", list_ledgers),
    Page("/keys", list_keys),
)
