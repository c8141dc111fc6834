"""How a group lists its commands: with the first sentence of each, which is never cut."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

WHOLE: Final = 1_000
"""More characters than any first sentence has. Click takes what fits on a line, and cuts the rest."""


class CommandList(click.Group):
    """A group whose list of commands is wrapped where a terminal is narrow, and not cut."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list."""
        self.write_commands(ctx, formatter, "Commands", self.list_commands(ctx))

    def write_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter, title: str, names: Iterable[str]
    ) -> None:
        """Write a list of some commands."""
        shown = [(name, self.get_command(ctx, name)) for name in names]
        rows = [(name, one.get_short_help_str(WHOLE)) for name, one in shown if one is not None and not one.hidden]
        with formatter.section(title):
            formatter.write_dl(rows)
