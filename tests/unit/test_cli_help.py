"""The help of every command, at the width of a terminal: nothing in it is cut."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click
import pytest
from click.testing import CliRunner

from detent.cli import cli

WIDTH = 80


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command and all below it, with the words that lead there."""
    yield path, command
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from commands(one, (*path, name))


ALL = dict(commands(cli))


def help_of(path: tuple[str, ...], columns: int = WIDTH) -> str:
    done = CliRunner().invoke(cli, [*path, "--help"], prog_name="detent", env={"COLUMNS": str(columns)})
    assert done.exit_code == 0, done.output
    return done.output


def words_of(text: str) -> str:
    return " ".join(text.replace("\b", "").split())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_terminal(path: tuple[str, ...]) -> None:
    assert [line for line in help_of(path).splitlines() if len(line) > WIDTH] == []


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_has_every_word_whole(path: tuple[str, ...]) -> None:
    command, shown = ALL[path], words_of(help_of(path))
    assert command.help
    assert words_of(cleandoc(command.help)) in shown
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.help and not parameter.hidden:
            assert words_of(parameter.help) in shown


@pytest.mark.parametrize("path", [path for path, one in ALL.items() if isinstance(one, click.Group)], ids=" ".join)
def test_list_of_commands_is_not_cut(path: tuple[str, ...]) -> None:
    group = ALL[path]
    assert isinstance(group, click.Group)
    listed = help_of(path).partition("\nCommands:\n")[2]
    assert "..." not in listed
    for name, one in group.commands.items():
        if one.hidden:
            assert name not in {line.split()[0] for line in listed.splitlines() if line.strip()}
            continue
        summary = one.short_help or words_of(cleandoc(one.help or "")).partition(". ")[0].rstrip(".")
        (line,) = [line for line in listed.splitlines() if line.split()[:1] == [name] and line.startswith("  ")]
        assert line.split(maxsplit=1)[1].rstrip(".") == summary.rstrip("."), "say it in one line"


@pytest.mark.parametrize("path", [path for path, one in ALL.items() if not isinstance(one, click.Group)], ids=" ".join)
def test_every_command_is_shown_at_work(path: tuple[str, ...]) -> None:
    """In its own help, or in that of its group. An older command has the help of the verb that it calls."""
    if ALL[path].hidden:
        assert [line for line in help_of(path).splitlines() if line.startswith("    detent ")]
        return
    assert f"  detent {' '.join(path)}" in help_of(path).partition("\n\n")[2] + help_of(path[:-1])


@pytest.mark.parametrize("columns", [60, 20])
def test_narrow_terminal_gets_whole_words(columns: int) -> None:
    for path, command in ALL.items():
        for name, one in getattr(command, "commands", {}).items():
            if one.hidden:
                continue
            summary = one.short_help or words_of(cleandoc(one.help or "")).partition(". ")[0].rstrip(".")
            assert f"{name} {words_of(summary)}" in words_of(help_of(path, columns))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["queu"], "queue"), (["queue", "publsh"], "publish"), (["queue", "stats", "--jsn"], "--json")],
)
def test_mistyped_word_gets_suggestion(typed: list[str], meant: str) -> None:
    done = CliRunner().invoke(cli, typed, prog_name="detent")
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in done.output


def test_bare_command_shows_help() -> None:
    done = CliRunner().invoke(cli, [], prog_name="detent", env={"COLUMNS": str(WIDTH)})
    assert done.output == help_of(())
