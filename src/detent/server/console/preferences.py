"""What a browser has chosen: the zone of its times, and its colours. Both are kept in the browser, in a cookie."""

from __future__ import annotations

from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from detent.errors import Invalid
from detent.server.console.visit import LOOK_COOKIE, THEMES, Form, Page, Visit
from detent.server.http import Response

KEPT_S: Final = 365 * 24 * 3600


async def show(visit: Visit) -> Response:
    """The form."""
    return visit.page("settings.html", "This browser", zones=sorted(available_timezones()))


async def keep(visit: Visit, form: Form) -> Response:
    """Keep what was chosen."""
    zone, theme = form.text("zone").strip(), form.text("theme")
    if zone:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise Invalid(f"{zone[:100]!r} is not a time zone, such as Europe/Paris: pick one of the list") from error
    if theme not in {"", *THEMES}:
        raise Invalid(f"colours are {' or '.join(THEMES)}, not {theme[:50]!r}")
    cookie = f"{LOOK_COOKIE}={zone}|{theme}; Path={visit.link()}; Max-Age={KEPT_S}; SameSite=Lax; HttpOnly"
    return visit.go(visit.link("settings"), "Kept in this browser.", cookie=cookie)


PAGES: Final = (Page("/settings", show, keep),)
