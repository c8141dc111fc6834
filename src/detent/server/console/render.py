"""Pages from templates. Every value is escaped; a template has no script, no style and no way around the escaping."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from detent.server.console import wording
from detent.server.console.assets import asset_name

TEMPLATES: Final = Path(__file__).parent / "templates"


@cache
def environment() -> Environment:
    """The templates of the package. Names that are missing are errors, not empty text."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "number": wording.number_text,
        "size": wording.size_text,
        "span": wording.span_text,
        "line": wording.line_text,
        "visible": wording.visible_text,
    }
    made.globals |= {"asset_name": asset_name}
    return made


class Links:
    """Addresses below the console's path. A name that is part of one is encoded once, slashes too, so that no name
    leads anywhere else."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, *segments: str | int, **query: object) -> str:
        """An address; fields of the query that are empty are left out."""
        tail = "".join(f"/{quote(str(segment), safe='')}" for segment in segments)
        fields = {name: value for name, value in query.items() if value not in {None, ""}}
        return f"{self._path}{tail}{'?' if fields else ''}{urlencode(fields)}"


def render(template: str, **values: Any) -> bytes:
    """A page, or a part of one."""
    text: str = environment().get_template(template).render(values)
    return text.encode("utf-8", "replace")


class Clock:
    """How a page says times: in the zone that its browser chose, or as time that has passed since `now`."""

    def __init__(self, zone: str, now: datetime | None = None) -> None:
        self.zone_name = zone
        self.zone = wording.zone_of(zone) if zone else UTC
        self.now = datetime.now(UTC) if now is None else now

    def time(self, value: Any) -> str:
        """The time itself."""
        return wording.time_text(value, self.zone)

    def ago(self, value: Any) -> str:
        """How long ago."""
        return wording.ago_text(value, self.now)

    def between(self, first: Any, last: Any) -> float | None:
        """Seconds from one time to another."""
        began, ended = wording.time_of(first), wording.time_of(last)
        return None if began is None or ended is None else (ended - began).total_seconds()

    def age_s(self, value: Any) -> float | None:
        """For how many seconds."""
        when = wording.time_of(value)
        return None if when is None else max(0.0, (self.now - when).total_seconds())
