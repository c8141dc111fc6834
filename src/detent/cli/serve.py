"""`detent serve`: a store behind a port."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import click

from detent.cli._common import count_text, force_option, may_take_store, names_server
from detent.cli._logs import set_up_logs
from detent.errors import Invalid
from detent.extras import install_command
from detent.paths import path_url


@click.command()
@may_take_store
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 for all.")
@click.option("--port", default=7410, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option(
    "--sqs-port", type=click.IntRange(0, 65535), help="A second port, for SQS clients that are set up for one (9324)."
)
@click.option("--keys", metavar="FILE", help="The file of keys that `detent token` makes (or DETENT_KEYS_FILE).")
@click.option("--no-auth", is_flag=True, help="Let every client that can reach the port do anything.")
@click.option("--tls-cert", metavar="FILE", type=click.Path(path_type=Path), help="Serve HTTPS with this certificate.")
@click.option("--tls-key", metavar="FILE", type=click.Path(path_type=Path), help="The certificate's private key.")
@click.option(
    "--metrics-queues",
    default=500,
    show_default=True,
    type=click.IntRange(0, 1000),
    metavar="N",
    help="Queues on the page /metrics: those with the longest backlogs.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="info", show_default=True)
@force_option
def serve(
    url: str | None,
    host: str,
    port: int,
    sqs_port: int | None,
    keys: str | None,
    no_auth: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    metrics_queues: int,
    log_format: str,
    log_level: str,
    force: bool,
) -> None:
    """Serve a store to clients of Detent, HTTP and SQS, on one port.

    Without a URL the store is in memory and ends with the server; file:PATH keeps it on a disk, s3://BUCKET/PREFIX on
    an object store. DETENT_URL is not read here: it says where commands find a store, which may be this very server.

    \b
    Try it:
      detent serve file:./data
      curl http://127.0.0.1:7410/healthz
      detent queue create http://127.0.0.1:7410 mails
      curl http://127.0.0.1:7410/v1/queues/mails/messages \\
          -d '{"body": "hello"}'
      AWS_ENDPOINT_URL_SQS=http://127.0.0.1:7410 aws sqs list-queues

    http://127.0.0.1:7410/console shows what is in the store to a browser.

    On an address that other machines can reach it wants keys: `detent token create` makes one.
    """
    try:
        from detent.server.keys import FILE_VARIABLE, KEYS_VARIABLE, open_ring
        from detent.server.serving import Serving, run
    except ModuleNotFoundError as error:
        raise Invalid(f"the server needs {error.name}: {install_command('server')}") from error

    set_up_logs(log_format, log_level)
    store = store_url(url)
    if no_auth and keys:
        raise click.UsageError("--keys and --no-auth contradict each other: give one of them")
    for variable in (FILE_VARIABLE, KEYS_VARIABLE):
        if no_auth and os.environ.get(variable):
            raise click.UsageError(
                f"--no-auth lets every client in, and {variable} gives keys: leave --no-auth out, or unset {variable}"
            )
    ring = None if no_auth else open_ring(keys)
    serving = Serving(store, host, port, ring, no_auth, tls_cert, tls_key, force, metrics_queues, sqs_port)

    def ready(address: str) -> None:
        kept = " (nothing is kept when it stops)" if store == "memory:" else ""
        who = "every client that can reach it" if ring is None else "the holders of " + count_text(len(ring), "key")
        click.echo(f"detent serves {store}{kept} at {address}, to {who}; stop it with Ctrl-C", err=True)
        sys.stderr.flush()

    run(serving, ready)
    logging.getLogger("detent.server").info("stopped")


def store_url(given: str | None) -> str:
    """The store to serve: a URL, or a path, also of one word, which can be nothing else here."""
    if given is None:
        return "memory:"
    if names_server(given):
        raise click.UsageError(f"{given} is a server already: give the store that is to be served, such as file:./data")
    return given if ":" in given else path_url(given)
