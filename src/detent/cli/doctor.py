"""`detent doctor`: finds what is misconfigured, and says what to do."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import stat
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from detent.cli._common import URL_VARIABLE, count_text, json_option, may_take_store, names_server
from detent.cli._output import line_text, print_json
from detent.errors import Denied, DetentError
from detent.extras import install_command
from detent.paths import as_url
from detent.sizes import size_text

if TYPE_CHECKING:
    from detent.kv import Reader
    from detent.remote.address import Address

FREE_BYTES_LOW: Final = 1 << 30
"""A store can grow by as much in minutes."""

DESCRIPTORS_LOW: Final = 4096
"""Each client of a server takes one."""

SKEW_S: Final = 60.0
"""A clock that is off by this much makes times of day surprising; at 15 minutes signatures are refused."""

AHEAD_S: Final = 5.0
"""A store whose time is ahead by this much was written under another clock, not a little earlier or later."""

OVERDUE_MS: Final = 300_000
"""A schedule that is due for so long has no owner that publishes: one that takes over does so in less."""

ANSWER_S: Final = 5.0
ANSWER_BYTES_SHOWN: Final = 200
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "afs", "ceph", "fuse.sshfs"})
"""LMDB and file locks are not safe on these."""

VARIABLES: Final = frozenset(
    {
        "URL",
        "DEBUG",
        "CRASH_AT",
        "KEYS",
        "KEYS_FILE",
        "TOKEN",
        "TOKEN_FILE",
        "CA_FILE",
        "INGEST_QUEUE",
        "INGEST_STATE",
        "SOAK",
        "SEED",
    }
)


class Diagnosis(NamedTuple):
    """One thing that was looked at. `state` is ok, warning or wrong."""

    state: str
    what: str
    advice: str = ""


@click.command()
@may_take_store
@click.option("--keys", metavar="FILE", help="A file of keys to look at (or DETENT_KEYS_FILE).")
@json_option
def doctor(url: str | None, keys: str | None, as_json: bool) -> None:
    """Look for what is wrong with this machine, a store or a server.

    Says what to do about each finding. Nothing is changed, and no store is opened for writing. A server is asked as
    clients ask it, with the token of DETENT_TOKEN or DETENT_TOKEN_FILE. Exit code 1 if something is wrong.

    \b
    Try it:
      detent doctor
      detent doctor file:./data
      detent doctor http://127.0.0.1:7410
    """
    url = url or as_url(os.environ.get(URL_VARIABLE, ""))
    found = [*_machine(), *_environment(), *_keys(keys)]
    if url:
        found += _server(url) if names_server(url) else _store(url)
    if as_json:
        print_json([finding._asdict() for finding in found])
    else:
        for finding in found:
            colour = {"ok": "green", "warning": "yellow", "wrong": "red"}[finding.state]
            click.echo(f"{click.style(finding.state.ljust(8), fg=colour)} {finding.what}")
            if finding.advice:
                click.echo(f"         {finding.advice}")
    if any(finding.state == "wrong" for finding in found):
        click.get_current_context().exit(1)


def _machine() -> Iterator[Diagnosis]:
    version = ".".join(map(str, sys.version_info[:3]))
    yield Diagnosis("ok", f"Python {version}")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < DESCRIPTORS_LOW:
        advice = f"ulimit -n {DESCRIPTORS_LOW}, or LimitNOFILE= in the systemd unit"
        yield Diagnosis("warning", f"a process may open {limit} files only; a busy server needs more", advice)
    else:
        yield Diagnosis("ok", f"a process may open {limit} files")
    extras = {"server": ("prometheus_client", "uvloop", "httptools"), "s3": ("slatedb", "obstore")}
    for extra, modules in extras.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        if missing:
            yield Diagnosis("warning", f"detent[{extra}] is not whole: {', '.join(missing)} is missing",
                          f"{install_command(extra)}, if you need it")  # fmt: skip
        else:
            yield Diagnosis("ok", f"detent[{extra}] is installed")


def _environment() -> Iterator[Diagnosis]:
    """A variable that is misspelt is ignored without a word."""
    unknown = sorted(
        name for name in os.environ if name.startswith("DETENT_") and name.removeprefix("DETENT_") not in VARIABLES
    )
    for name in unknown:
        known = ", ".join(sorted(f"DETENT_{known}" for known in VARIABLES - {"CRASH_AT", "SOAK", "SEED"}))
        yield Diagnosis("warning", f"nothing reads the environment variable {name}", f"known are {known}")
    if os.environ.get("DETENT_CRASH_AT"):
        yield Diagnosis("wrong", "DETENT_CRASH_AT is set: this process would kill itself", "unset it; it is for tests")
    for name in ("DETENT_TOKEN_FILE", "DETENT_KEYS_FILE", "DETENT_CA_FILE"):
        path = os.environ.get(name)
        if path and not Path(path).is_file():
            yield Diagnosis("wrong", f"{name} names {path}, and there is no such file", "correct it, or unset it")


def _keys(given: str | None) -> Iterator[Diagnosis]:
    from detent.server.keys import keys_file, read_keys

    path = keys_file(given)
    if path is None or (given is None and not path.is_file()):
        return
    try:
        keys = read_keys(path, managing=True)
    except DetentError as error:
        yield Diagnosis("wrong", str(error))
        return
    yield Diagnosis("ok", f"{path} has {count_text(len(keys), 'key')}")
    now = datetime.now(UTC)
    for key in keys:
        if key.has_expired(now):
            yield Diagnosis("warning", f"the key {key.name} has expired", f"detent token revoke {key.name}")
        if "admin:*:*" in key.grants and key.expires is None:
            yield Diagnosis("warning", f"the key {key.name} may do everything, for ever", "give it an end, or less")


# -- a store ------------------------------------------------------------------------------------------------------


def _store(url: str) -> Iterator[Diagnosis]:
    from detent.kv import parse_url

    try:
        location = parse_url(url)
    except DetentError as error:
        yield Diagnosis("wrong", str(error))
        return
    if location.scheme == "file":
        yield from _folder(location.directory)
    yield from _readable(url)


def _folder(path: Path) -> Iterator[Diagnosis]:
    from detent.kv.ownership import read_owner

    if not path.is_dir():
        yield Diagnosis("wrong", f"there is no folder {path}", "check the path, or create the store by using it")
        return
    free = shutil.disk_usage(path).free
    if free < FREE_BYTES_LOW:
        yield Diagnosis("warning", f"{size_text(free)} are free on the disk of {path}", "make room before it is full")
    else:
        yield Diagnosis("ok", f"{size_text(free)} are free on the disk of {path}")
    if not os.access(path, os.W_OK):
        yield Diagnosis("wrong", f"{path} may not be written by this user", f"chown or chmod {path}")
    if stat.S_IMODE(path.stat().st_mode) & stat.S_IWOTH:
        yield Diagnosis("wrong", f"every user may write into {path}", f"chmod o-w {path}")
    kind = _file_system(path)
    if kind in NETWORK_FILE_SYSTEMS:
        yield Diagnosis("wrong", f"{path} is on a network file system ({kind})", "use a local disk, or s3://")
    owner = read_owner(path)
    if owner is not None:
        yield Diagnosis("ok", f"process {owner.pid} owns the store, epoch {owner.epoch}")


def _file_system(path: Path) -> str:
    """The kind of file system that a path is on, as far as the kernel says it."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, where, found, *_ = line.split(" ")
        where = where.encode().decode("unicode_escape")
        if path.resolve().is_relative_to(where) and len(where) >= len(best):
            best, kind = where, found
    return kind


def _readable(url: str) -> Iterator[Diagnosis]:
    from detent.journal import JournalReader
    from detent.kv import open_reader
    from detent.kv.stored import FORMAT_VERSION

    try:
        reader = open_reader(url)
    except DetentError as error:
        yield Diagnosis("wrong", f"the store cannot be read: {error}")
        return
    try:
        journals = len(JournalReader(reader).names())
        yield Diagnosis(
            "ok", f"the store can be read: {size_text(reader.size_bytes())}, {count_text(journals, 'journal')}"
        )
        yield from _ahead(reader)
        yield from _overdue(reader)
        yield Diagnosis("ok", f"the store has format {FORMAT_VERSION}, which this release writes")
    except DetentError as error:
        yield Diagnosis("wrong", f"the store cannot be read: {error}", f"detent store verify {url} says more")
    finally:
        reader.close()


def _ahead(reader: Reader) -> Iterator[Diagnosis]:
    """A store that is behind was not used for a while. One that is ahead was written under another wall clock."""
    from detent.engine.ownertime import TIME, RecordedTime, wall_ms

    with reader.view() as view:
        stored = view.get(TIME.raw)
    ahead_s = 0.0 if stored is None else (RecordedTime.decode(stored).time_ms - wall_ms()) / 1000
    if ahead_s > AHEAD_S:
        what = f"the store's time is {ahead_s:.0f} s ahead of this machine's clock, which was another one before"
        yield Diagnosis(
            "warning", what, "set the clock by NTP; the store follows it, and its leases last as they should"
        )


def _overdue(reader: Reader) -> Iterator[Diagnosis]:
    """Schedules tick while a process owns the store. One that has been due for long has none, or cannot publish."""
    from detent.codec import schedule as records
    from detent.codec.ledger import name_of
    from detent.engine.ownertime import wall_ms

    late: list[str] = []
    with reader.view() as view:
        for key, value in view.scan(*records.STATE.range()):
            name = name_of(records.STATE, key)
            next_ms = records.ScheduleState.decode(value).next_ms
            said = view.get(records.DEFINITION.key(name.encode()))
            rests = said is None or records.ScheduleDefinition.decode(said).paused
            if next_ms and not rests and wall_ms() - next_ms > OVERDUE_MS:
                late.append(name)
    if late:
        yield Diagnosis(
            "warning",
            f"{count_text(len(late), 'schedule')} should have published by now: the first is {late[0]!r}",
            "keep a process that owns the store, such as `detent serve`; `detent schedule show` says what is wrong",
        )


# -- a server -----------------------------------------------------------------------------------------------------


class ServerAnswer(NamedTuple):
    """What a server said."""

    status: int
    text: str
    date: str | None


def _server(url: str) -> Iterator[Diagnosis]:
    from detent.remote import server_addresses

    try:
        addresses = server_addresses(url)
    except DetentError as error:
        yield Diagnosis("wrong", str(error))
        return
    for address in addresses:
        yield from _one_server(address)


def _one_server(address: Address) -> Iterator[Diagnosis]:
    from http.client import HTTPException

    url = address.url
    try:
        answer = _ask(url, "/readyz")
    except DetentError as error:
        yield Diagnosis("wrong", str(error))
        return
    except (OSError, HTTPException) as error:
        yield Diagnosis("wrong", f"{url} does not answer: {error}", _advice(error))
        return
    if answer.status == 200:
        yield Diagnosis("ok", f"{url} is ready")
    elif _stands_by(answer):
        yield Diagnosis("ok", f"{url} stands by: another server owns the store")
        yield from _clock(answer)
        return
    else:
        yield Diagnosis("wrong", f"{url} answers {answer.status}: {answer.text}", "see the server's log")
    yield from _admission(address)
    yield from _clock(answer)


def _stands_by(answer: ServerAnswer) -> bool:
    """Whether a server says which other one owns the store."""
    return answer.status == 503 and '"error":"NotOwner"' in answer.text and '"leader":"http' in answer.text


def _ask(server: str, path: str) -> ServerAnswer:
    """Ask a server as Detent's clients do: past every proxy, and with the certificates of DETENT_CA_FILE."""
    import ssl
    from http.client import HTTPConnection, HTTPSConnection
    from urllib.parse import urlsplit

    from detent.errors import Invalid
    from detent.remote.address import CA_FILE

    parts = urlsplit(server)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=ANSWER_S)
    if parts.scheme == "https":
        trusted = os.environ.get(CA_FILE) or None
        try:
            context = ssl.create_default_context(cafile=trusted)
        except OSError as error:
            raise Invalid(f"{CA_FILE} names {trusted}, which holds no certificates: {error}") from error
        connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=ANSWER_S, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read(ANSWER_BYTES_SHOWN).decode(errors="replace").strip()
        return ServerAnswer(answer.status, line_text(text), answer.getheader("date"))
    finally:
        connection.close()


def _advice(error: Exception) -> str:
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return "if its certificate should be trusted, name a file with those that vouch for it in DETENT_CA_FILE"
    if isinstance(error, ssl.SSLError):
        return "does it serve HTTPS on this port? Without --tls-cert its URL begins with http://"
    return "is the server running, and the port right?"


def _admission(address: Address) -> Iterator[Diagnosis]:
    """Whether the server lets in who asks, and whether others could read along."""
    from urllib.parse import urlsplit

    from detent.remote import RemoteOwner
    from detent.remote.address import TOKEN, TOKEN_FILE, read_token

    server, new = address.url, "`detent token create` makes one where the server's keys are"
    try:
        token = read_token()
        owner = RemoteOwner(address)
        try:
            owner.status(ANSWER_S)
        finally:
            owner.close()
    except Denied:
        source = TOKEN if os.environ.get(TOKEN) is not None else TOKEN_FILE
        if token is None:
            yield Diagnosis("wrong", f"{server} wants a token, and there is none", f"put one into {TOKEN}; {new}")
        else:
            what = f"{server} refuses the token in {source}: it is wrong, was revoked, or has expired"
            yield Diagnosis("wrong", what, f"put another one there; {new}")
        return
    except DetentError as error:
        yield Diagnosis("wrong", f"{server} answers no calls: {error}")
        return
    yield Diagnosis("ok", f"{server} answers calls {'without a' if token is None else 'with this'} token")
    host = urlsplit(server).hostname or ""
    if token is not None and server.startswith("http:") and not _is_loopback(host):
        yield Diagnosis("warning", f"the token travels to {host} unencrypted", "serve with --tls-cert and --tls-key")


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _clock(answer: ServerAnswer) -> Iterator[Diagnosis]:
    try:
        said = parsedate_to_datetime(answer.date or "")
        skew = abs((said - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):  # no date, or one without a zone: something else may answer in its place
        return
    state = "ok" if skew < SKEW_S else "warning"
    advice = "" if state == "ok" else "set both clocks by NTP"
    yield Diagnosis(state, f"its clock and this one differ by {skew:.0f} s", advice)
