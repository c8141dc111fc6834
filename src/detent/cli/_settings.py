"""Settings on the command line: options, what was given, and the lines of `info`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import click

from detent.cli._common import Function, parse_labels
from detent.cli._output import duration_text, line_text
from detent.durations import milliseconds
from detent.settings.setting import Choice, Flag, Labels, Milliseconds, Number, Seconds, Setting, Settings, Size
from detent.sizes import size_text


def settings_options(settings: Settings, *, changes: bool = False) -> Callable[[Function], Function]:
    """Adds an option for each setting; for `changes`, flags can be taken back too."""

    def decorate(function: Function) -> Function:
        decorated: Any = function
        for setting in reversed(list(settings)):
            decorated = _option(setting, changes=changes)(decorated)
        result: Function = decorated
        return result

    return decorate


def _option(setting: Setting, *, changes: bool) -> Any:
    name, flag, about = setting.name, setting.flag, setting.help
    if isinstance(setting, Flag):
        text = f"{flag}/--no-{flag.removeprefix('--')}" if changes else flag
        return click.option(text, name, is_flag=True, default=None, help=about)
    if isinstance(setting, Labels):
        return click.option(flag, name, multiple=True, metavar=setting.metavar, help=about)
    if isinstance(setting, Choice):
        return click.option(flag, name, type=click.Choice(list(setting.in_words)), help=about)
    if isinstance(setting, Milliseconds | Seconds):
        return click.option(flag, name, metavar="DURATION", help=about)
    if isinstance(setting, Number):
        return click.option(flag, name, type=click.IntRange(setting.given_from), help=about)
    return click.option(flag, name, metavar=setting.metavar, help=about)


def given_settings(settings: Settings, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, as the library takes them; what is wrong with a duration is said before a store is
    opened or made."""
    found = {name: value for name, value in given.items() if value is not None and value != ()}
    for name, value in found.items():
        setting = settings.by_name[name]
        if isinstance(setting, Labels):
            found[name] = parse_labels(value)
        elif isinstance(setting, Seconds) and value == setting.none_word:
            found[name] = None
        elif isinstance(setting, Milliseconds | Seconds):
            milliseconds(value)
    return found


def settings_lines(settings: Settings, shown: Mapping[str, Any]) -> dict[str, str]:
    """What `info` prints of settings, from how the library shows them."""
    lines: dict[str, str] = {}
    for setting in settings:
        text = _text(setting, shown[setting.shown_as])
        if setting.label and text:
            lines[setting.label] = f"{lines[setting.label]}, {text}" if setting.label in lines else text
    return lines


def _text(setting: Setting, value: Any) -> str:
    if isinstance(value, timedelta):
        return setting.words.format(duration_text(round(value.total_seconds() * 1000)) if value else "0s")
    if not value:
        return setting.absent
    if isinstance(setting, Choice):
        value = setting.in_words[value]
    return setting.words.format(size_text(value) if isinstance(setting, Size) else line_text(str(value)))
