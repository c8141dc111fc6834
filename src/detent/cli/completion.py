"""`detent completion`: what makes a shell complete commands, options, stores and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from detent.errors import Invalid

VARIABLE = "_DETENT_COMPLETE"
"""By which the shell asks for what could follow. Click answers it in any command."""


@click.command(short_help="Print what makes a shell complete commands.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a shell complete detent's commands, options, stores and names.

    Names of queues, journals, consumers, ledgers and tasks are completed where a look is cheap: of a store in a folder,
    and of a server that answers within a second. Consumers, ledgers and tasks of a folder take a running owner. Bash
    breaks words at colons, so give a folder as a path there: ./data, and not file:./data.

    \b
    Put it where your shell looks, once:
      detent completion bash > ~/.local/share/bash-completion/completions/detent
      detent completion zsh > "${fpath[1]}/_detent"
      detent completion fish > ~/.config/fish/completions/detent.fish

    \b
    Or try it in this shell:
      source <(detent completion bash)
    """
    from detent.cli import cli

    found = get_completion_class(shell)
    if found is None:
        raise Invalid(f"this version of click has no completion for {shell}: install a newer one")
    try:
        click.echo(found(cli, {}, "detent", VARIABLE).source())
    except RuntimeError as error:  # a bash that is too old, or that is not there
        raise Invalid(f"{shell} cannot be set up: {error}") from error
