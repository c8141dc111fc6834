"""Where a read begins or ends, as a user says it: earliest, latest, a time, or JSON with one of these a journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from detent.durations import since_1970_ms
from detent.errors import Invalid

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
JSON_BYTES_MAX: Final = 1 << 20

Place = int | datetime | str
"""An offset, a time, or one of the two words."""


class OffsetPlaces:
    """A place in every journal: one for all, or one each and a word for those that are not named."""

    def __init__(self, option: str, text: str, default: str) -> None:
        self.option = option
        self._default: Place = default
        self._named: dict[str, Place] = {}
        text = text.strip()
        if text.startswith("{"):
            self._named = self._from_json(text)
        else:
            self._default = self._place(text, "it")

    @property
    def is_fixed(self) -> bool:
        """Whether it means the same whenever it is asked: offsets and the beginning do, times and the end do not."""
        return all(place == EARLIEST or isinstance(place, int) for place in (self._default, *self._named.values()))

    @property
    def described(self) -> list[str | dict[str, str]]:
        """What was said, as JSON can say it: two that mean the same may differ, two that are equal mean the same."""
        return [str(self._default), {name: str(place) for name, place in sorted(self._named.items())}]

    def _from_json(self, text: str) -> dict[str, Place]:
        if len(text) > JSON_BYTES_MAX:
            raise Invalid(f"the option {self.option} has at most {JSON_BYTES_MAX} characters")
        try:
            found = msgspec.json.decode(text, type=dict[str, int | str])
        except msgspec.MsgspecError as error:
            raise Invalid(
                f"the option {self.option} is no JSON object of journals and offsets such as "
                f'{{"orders": 120, "refunds": "latest"}}: {error}'
            ) from error
        return {
            name: self._offset(value, name) if isinstance(value, int) else self._place(value, name)
            for name, value in found.items()
        }

    def _offset(self, value: int, name: str) -> int:
        if not 0 <= value < 1 << 62:
            raise Invalid(f"in the option {self.option} the offset of {name!r} is {value}: offsets count from 0")
        return value

    def _place(self, text: str, name: str) -> Place:
        if text.lower() in {EARLIEST, LATEST}:
            return text.lower()
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise Invalid(
                f"the option {self.option} is earliest, latest, a time such as 2026-01-31T12:00:00Z, or JSON with one "
                f"of these or an offset for each journal; {name} is {text!r}"
            ) from None
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

    def check_names(self, journals: Iterable[str]) -> None:
        """Refuse places of journals that are not read: a misspelt name would be read from its default."""
        for name in self._named.keys() - set(journals):
            raise Invalid(f"the option {self.option} names {name!r}, which is not among the journals that are read")

    def find(self, extents: Mapping[str, tuple[int, int]], offset_at: Callable[[str, int], int]) -> dict[str, int]:
        """The offset in each journal, of which the extents are given."""
        return {name: self._find(name, extents[name], offset_at) for name in sorted(extents)}

    def _find(self, name: str, extent: tuple[int, int], offset_at: Callable[[str, int], int]) -> int:
        place = self._named.get(name, self._default)
        if isinstance(place, int):
            return place
        if isinstance(place, datetime):
            return offset_at(name, since_1970_ms(place))
        return extent[0] if place == EARLIEST else extent[1]
