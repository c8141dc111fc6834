"""One setting: how a caller gives it, how it is stored, how it is shown.

A caller gives a setting by its name, in the form that Python, JSON and the command line share (a duration is a
`timedelta` or text such as "30s"). Records and operations hold it under its `key`, as a number, a text, a truth or
labels. `info` shows it under `shown_as`, as a `timedelta` where it is a duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Final

import msgspec

from detent.durations import Duration, milliseconds
from detent.errors import DetentError, Invalid, LimitExceeded

NUMBER_MAX: Final = 1 << 62
U32_MAX: Final = (1 << 32) - 1

NumberFrom0 = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What every setting has; operations hold it as `stored_as`, or as None: it stays as it is.

    The `help` is the command line's; `note` is what the API says of the setting after its name. `label` and `words`
    make the line of `detent ... info`; settings with the same label share one. `absent` stands there in place of a
    value that is not set; if it is empty too, or if there is no label, there is no line.

    One that is `later` came with a later release than the record: its default is zero or empty, and it is written once
    it is another, so that the release before goes on reading the records that do without. `sqs` says that SQS clients
    can set it, as DetentName.
    """

    stored_as: ClassVar[Any] = str

    help: str
    name: str = ""
    key: str = ""
    shown_as: str = ""
    metavar: str | None = None
    note: str = ""
    label: str = ""
    words: str = "{}"
    absent: str = ""
    later: bool = False
    sqs: bool = False

    @property
    def flag(self) -> str:
        """The option of the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def ms_name(self) -> str:
        """Its name where durations are numbers of milliseconds: in the JSON of the command line and in columns."""
        is_duration = isinstance(self, Milliseconds | Seconds) and not self.shown_as.endswith("_ms")
        return f"{self.shown_as}_ms" if is_duration else self.shown_as

    def store(self, value: Any) -> Any:
        """As records and operations hold what was given; None changes nothing."""
        return value

    def show(self, stored: Any) -> Any:
        """As `info` shows what is stored."""
        return stored

    def check(self, stored: Any) -> None:
        """Refuse a value that cannot be stored."""


@dataclass(frozen=True, kw_only=True)
class Text(Setting):
    """A text. One that is `optional` can be taken away: None, stored as the empty text. `unset` makes the text that
    stands for None from the owner's name. `subject` begins the message that refuses a text over `bytes_max`."""

    optional: bool = False
    unset: Callable[[str], str] | None = None
    bytes_max: int | None = None
    subject: str = ""

    def store(self, value: Any) -> Any:
        return (value or "") if self.optional else value


@dataclass(frozen=True, kw_only=True)
class Choice(Setting):
    """One of a few words; `in_words` says what each of them is called in a sentence."""

    in_words: Mapping[str, str]
    subject: str

    def check(self, stored: Any) -> None:
        if stored not in self.in_words:
            raise Invalid(f"{self.subject} is one of {', '.join(self.in_words)}, not {stored!r}")


@dataclass(frozen=True, kw_only=True)
class Flag(Setting):
    """Yes or no."""

    stored_as = bool


@dataclass(frozen=True, kw_only=True)
class Labels(Setting):
    """Free pairs of name and value."""

    stored_as = dict[str, str]

    option: str

    @property
    def flag(self) -> str:
        return self.option

    def store(self, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping) or set(map(type, (*value, *value.values()))) - {str}:
            raise Invalid(f"labels are a mapping of text to text, not {value!r}"[:500])
        return dict(value)

    def show(self, stored: Any) -> dict[str, str]:
        return dict(stored)


@dataclass(frozen=True, kw_only=True)
class Number(Setting):
    """A number from 0 on, stored within `least` and `most`; `limit` is the message that refuses others, and `refusal`
    its
    exception. If it is `unlimited`, zero means that there is no limit, and `info` has None. The command line takes
    numbers from `given_from` on."""

    stored_as = NumberFrom0

    least: int = 0
    most: int = NUMBER_MAX
    limit: str = ""
    refusal: type[DetentError] = LimitExceeded
    unlimited: bool = False
    given_from: int = 0

    def show(self, stored: Any) -> Any:
        return None if self.unlimited and not stored else stored

    def check(self, stored: Any) -> None:
        if not self.least <= stored <= self.most:
            raise self.refusal(self.limit or f"{self.name} is a number from {self.least} to {self.most}, not {stored}")


@dataclass(frozen=True, kw_only=True)
class Count(Number):
    """A number of something."""

    def store(self, value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= NUMBER_MAX:
            raise Invalid(f"{self.name} is a number from 0 to {NUMBER_MAX}, not {value!r}")
        return value


@dataclass(frozen=True, kw_only=True)
class Size(Count):
    """A number of bytes."""


@dataclass(frozen=True, kw_only=True)
class Milliseconds(Number):
    """A duration, stored in milliseconds."""

    def store(self, value: Any) -> Any:
        return None if value is None else milliseconds(value)

    def show(self, stored: Any) -> timedelta | None:
        return None if self.unlimited and not stored else timedelta(milliseconds=stored)


@dataclass(frozen=True, kw_only=True)
class Seconds(Number):
    """A duration that can be None, which is stored as 0; otherwise in seconds, of which a part counts as a whole one.
    A duration of zero is stored as `zero`, or refused with the text that stands there. On the command line None is
    `none_word`."""

    zero: int | str
    none_word: str

    def store(self, value: Any) -> int:
        if value is None:
            return 0
        stored = whole_seconds(value) or self.zero
        if isinstance(stored, str):
            raise Invalid(stored)
        return stored

    def show(self, stored: Any) -> timedelta | None:
        return None if stored == 0 else timedelta(seconds=0 if stored == self.zero else stored)


def whole_seconds(value: Duration) -> int:
    """A duration in seconds; part of one counts as a whole one."""
    return -(-milliseconds(value) // 1000)


def _stored(setting: Setting, value: Any, owner: str) -> Any:
    if value is None and isinstance(setting, Text) and setting.unset is not None:
        return setting.unset(owner)
    return setting.store(value)


class Settings:
    """All settings of one kind of thing, by name, in the order in which operations hold them: new ones come last."""

    def __init__(self, owner: str, /, **settings: Setting) -> None:
        self.owner = owner
        self.by_name: dict[str, Setting] = {
            name: replace(setting, name=name, key=setting.key or name, shown_as=setting.shown_as or name)
            for name, setting in settings.items()
        }
        self.by_key = {setting.key: setting for setting in self}

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.by_name.values())

    def stored(self, owner: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """What callers give, by key, as operations hold it; `Invalid` for a setting that there is not. Where None
        means nothing, it changes nothing."""
        unknown = set(given) - set(self.by_name)
        if unknown:
            raise Invalid(f"a {self.owner} has no setting {sorted(unknown)[0]!r}; it has {', '.join(self.by_name)}")
        stored = ((self.by_name[name], value) for name, value in given.items())
        held = {setting.key: _stored(setting, value, owner) for setting, value in stored}
        return {key: value for key, value in held.items() if value is not None}

    def shown(self, held: Any) -> dict[str, Any]:
        """All settings as `info` shows them, from what holds them by key."""
        return {setting.shown_as: setting.show(getattr(held, setting.key)) for setting in self}

    def check(self, held: Any) -> None:
        """Refuse values that cannot be stored, each for itself."""
        for setting in self:
            setting.check(getattr(held, setting.key))
