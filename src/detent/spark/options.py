"""Options of the Spark formats: each known by name, checked before anything is read or written.

Spark hands over text and ignores the case of names. An unknown name is refused, because a misspelt limit or filter
that is silently ignored is worse than none.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Final

from detent.errors import Invalid

SPARK_OPTIONS: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""What Spark itself adds, or every format takes."""

_TRUTH: Final = {"true": True, "false": False}
_SIZE: Final = re.compile(r"(\d+)\s*([kmg]i?b?|b)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
NUMBER_MAX: Final = (1 << 62) - 1


class FormatOptions:
    """The options of one read or write."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        self._what = what
        self._names = {name.lower(): name for name in known}
        self._given = {name.lower(): value for name, value in given.items()}
        for name in self._given:
            if name not in self._names and name not in SPARK_OPTIONS:
                raise Invalid(self._unknown(name))

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, list(self._names), n=1)
        hint = f"did you mean {self._names[near[0]]}?" if near else f"there are {', '.join(self._names.values())}."
        return f"{self._what} has no option {name!r}; {hint}"

    def text(self, name: str, default: str | None = None) -> str | None:
        """An option as it was given; empty is absent."""
        return self._given.get(name.lower()) or default

    def url(self) -> str:
        """The store's URL."""
        url = self.text("path")
        if url is None:
            raise Invalid(f'{self._what} needs the store\'s URL: .load("file:/data/store"), or .option("path", url)')
        return url

    def owner_url(self) -> str:
        """Where changes are committed: the store itself, or the server that owns it. Tasks still read and write the
        object store directly."""
        return self.text("server") or self.url()

    def required(self, name: str, example: str) -> str:
        """An option that must be there."""
        value = self.text(name)
        if value is None:
            raise Invalid(f"{self._what} needs the option {name}, for example {example}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.text(name)
        if value is None:
            return default
        try:
            return _TRUTH[value.lower()]
        except KeyError:
            raise Invalid(f"the option {name} is true or false, not {value!r}") from None

    def number(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """A whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not value.isascii() or not value.isdigit() or not least <= int(value) <= NUMBER_MAX:
            raise Invalid(f"the option {name} is a whole number from {least} on, not {value!r}")
        return int(value)

    def size(self, name: str) -> int | None:
        """A number of bytes, in plain figures or like 64m and 1g."""
        value = self.text(name)
        if value is None:
            return None
        found = _SIZE.fullmatch(value.strip())
        size = 0 if found is None else int(found[1]) * _UNITS[(found[2] or "")[:1].lower()]
        if not 1 <= size <= NUMBER_MAX:
            raise Invalid(f"the option {name} is a number of bytes such as 1048576, 64m or 1g, not {value!r}")
        return size

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of a few words; the first unless said."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise Invalid(f"the option {name} is one of {', '.join(choices)}, not {value!r}")
        return value
