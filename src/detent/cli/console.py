"""`detent console`: pages that show a store to a browser, from a process of their own."""

from __future__ import annotations

import sys
import webbrowser

import click

from detent.cli._common import check_kept, takes_store
from detent.cli._logs import set_up_logs
from detent.errors import Invalid, Unavailable
from detent.extras import install_command


@click.command()
@takes_store()
@click.option("--port", default=0, show_default="any that is free", type=click.IntRange(0, 65535))
@click.option("--own", is_flag=True, help="Become the owner of the store if no process owns it.")
@click.option("--open", "in_browser", is_flag=True, help="Open the link in this machine's browser.")
def console(url: str, port: int, own: bool, in_browser: bool) -> None:
    """Show a store to a browser: what is in it, and changing it.

    It prints a link that opens one session and then counts no more, because every user of a machine reaches its
    loopback address. The store stays with the process that owns it, or with its server; of a file: store that no
    process owns the console becomes the owner with --own.

    A store that `detent serve` serves has its console there, at /console.

    \b
    Try it:
      detent console file:./data --own
      detent console http://127.0.0.1:7410
    """
    try:
        from detent.server.serving import Serving
        from detent.server.turns import run_console
    except ModuleNotFoundError as error:
        raise Invalid(f"the console needs {error.name}: {install_command('server')}") from error

    check_kept(url)
    set_up_logs("text", "warning")

    def ready(link: str) -> None:
        click.echo(f"the console of {url} is at", err=True)
        click.echo(link)
        click.echo("The link opens one session. Stop it with Ctrl-C.", err=True)
        sys.stdout.flush()
        if in_browser:
            webbrowser.open(link)

    try:
        run_console(Serving(url, port=port), "auto" if own else "client", ready)
    except Unavailable as error:
        if own:
            raise
        raise Unavailable(f"{error}; if no process owns the store, say --own") from error
