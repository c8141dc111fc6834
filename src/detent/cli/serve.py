"""`detent serve`: a store behind a port."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Final

import click

from detent.cli._common import count_text, force_option, may_take_store, names_server
from detent.cli._logs import set_up_logs
from detent.durations import milliseconds
from detent.errors import Invalid
from detent.extras import install_command
from detent.paths import path_url

REPLACED: Final = 75
"""The exit code of a server that another process has replaced: sysexits.h calls it a temporary failure, after which a
supervisor may start it again."""


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
@click.option("--standby", is_flag=True, help="On an object store: wait for it while another server owns it.")
@click.option(
    "--lease",
    metavar="DURATION",
    help="How long until a silent server is replaced.  [default: 15s, or 2.5s with --standby]",
)
@click.option("--advertise", metavar="URL", help="Where clients find this server, if not where it listens.")
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
    standby: bool,
    lease: str | None,
    advertise: str | None,
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

    Several servers of one store on an object store, on two or three machines: one owns it, the others stand by and
    say where it is. When it dies, hangs or loses the bucket, the next one serves within seconds.

    \b
      detent serve s3://bucket/store --standby --host 0.0.0.0 \\
          --keys detent-keys.json
      detent queue ls http://a:7410,http://b:7410

    The exit code is 0 after a stop that was asked for, and 75 when another process has taken over the store.
    """
    try:
        from detent.server.keys import FILE_VARIABLE, KEYS_VARIABLE, open_ring
        from detent.server.serving import Serving
        from detent.server.turns import run
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
    lease_s = None if lease is None else milliseconds(lease) / 1000
    serving = Serving(
        store,
        host,
        port,
        ring,
        no_auth,
        tls_cert,
        tls_key,
        force,
        metrics_queues,
        sqs_port,
        standby=standby,
        lease_s=lease_s,
        advertised=_advertised(advertise),
    )

    def ready(address: str, stands_by: bool) -> None:
        if stands_by:
            click.echo(f"detent stands by for {store} at {address}; stop it with Ctrl-C", err=True)
            return
        kept = " (nothing is kept when it stops)" if store == "memory:" else ""
        who = "every client that can reach it" if ring is None else "the holders of " + count_text(len(ring), "key")
        click.echo(f"detent serves {store}{kept} at {address}, to {who}; stop it with Ctrl-C", err=True)
        sys.stderr.flush()

    replaced = run(serving, ready)
    logging.getLogger("detent.server").info("stopped")
    if replaced is not None:
        click.echo(f"error: {replaced}; start it again with --standby, and it waits for its turn", err=True)
        click.get_current_context().exit(REPLACED)


def _advertised(given: str | None) -> str | None:
    """The URL that is given, without a slash at its end; `Invalid` if it is not a server's."""
    from detent.remote import server_address

    if given is None:
        return None
    address = server_address(given)
    if address is None or address.socket is not None:
        raise click.UsageError(f"--advertise {given}: write http://HOST:PORT")
    return address.url


def store_url(given: str | None) -> str:
    """The store to serve: a URL, or a path, also of one word, which can be nothing else here."""
    if given is None:
        return "memory:"
    if names_server(given):
        raise click.UsageError(f"{given} is a server already: give the store that is to be served, such as file:./data")
    return given if ":" in given else path_url(given)
