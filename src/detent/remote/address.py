"""Where an owner answers: a Unix socket on this machine, or a server's URL; and what is needed to be let in there."""

from __future__ import annotations

import ipaddress
import logging
import os
import ssl
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from detent.errors import Invalid

TOKEN: Final = "DETENT_TOKEN"
TOKEN_FILE: Final = "DETENT_TOKEN_FILE"
CA_FILE: Final = "DETENT_CA_FILE"
"""Environment variables: a bearer token, or the file that holds one; certificates to trust instead of the system's."""

TOKEN_BYTES_MAX: Final = 8 << 10
"""What servers take for a header."""

NO_TLS: Final = False
"""httpx's word for connections on which nothing is encrypted, and for which no certificates are loaded."""

SCHEMES: Final = ("http", "https")
SOCKET: Final = "unix:"
"""The URL of a socket on this machine, at which the owner of a store on an object store answers."""

PORTS: Final = {"http": 80, "https": 443}
URL_MAX: Final = 4096

logger = logging.getLogger("detent.remote")


@dataclass(frozen=True, slots=True)
class Address:
    """A Unix socket's path, or a server's base URL."""

    socket: str | None = None
    url: str = "http://owner"
    shares_files: bool = True
    """Whether the store of this socket's owner is a folder of this machine."""

    @property
    def has_files(self) -> bool:
        """Whether a client of this owner can read the store's files itself."""
        return self.socket is not None and self.shares_files

    @property
    def store_url(self) -> str:
        """What a client opens to get here."""
        return self.url if self.socket is None else f"{SOCKET}{self.socket}"

    @property
    def host_header(self) -> str:
        """What requests call the owner."""
        return httpx.URL(self.url).netloc.decode("ascii")

    @property
    def endpoint(self) -> tuple[str, int]:
        """A server's host and port."""
        url = httpx.URL(self.url)
        return url.host, url.port or PORTS[url.scheme]

    def transport(self, limits: httpx.Limits, tls: ssl.SSLContext | None) -> httpx.HTTPTransport:
        """Connections for one client, with what `tls` has answered."""
        return httpx.HTTPTransport(uds=self.socket, limits=limits, verify=tls or NO_TLS)

    def auth(self) -> httpx.Auth:
        """What says in every request who sends it."""
        if not self._is_private and read_token() is not None:
            logger.warning("the token for %s travels unencrypted: use https", self.url)
        return _TokenAuth(self)

    def token(self) -> str | None:
        """The token that a request shows, if any, looked up now: those in files are replaced while a process runs."""
        return None if self.socket is not None else read_token()

    def tls(self) -> ssl.SSLContext | None:
        """Whom to trust, where connections are encrypted. Loading certificates takes 25 ms: once for each client."""
        if not self.url.startswith("https:"):
            return None
        path = os.environ.get(CA_FILE)
        try:
            context = ssl.create_default_context(cafile=path or None)
        except OSError as error:
            raise Invalid(f"{CA_FILE} names {path!r}, which holds no certificates: {error}") from error
        context.set_alpn_protocols(["http/1.1"])
        return context

    @property
    def _is_private(self) -> bool:
        """Whether it cannot be read on the way."""
        if self.socket is not None:
            return True
        host = urlsplit(self.url).hostname or ""
        if self.url.startswith("https:") or host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


class _TokenAuth(httpx.Auth):
    """Shows the token of the moment in each request."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        token = self._address.token()
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        yield request


SERVERS_MAX: Final = 16
"""So many servers may a URL name; more than stand by for any store."""


def server_addresses(url: str) -> list[Address]:
    """The servers that a store URL names, such as ``http://a:7410,http://b:7410``; none for a URL of another kind. One
    after the first may leave the scheme out."""
    first = server_address(url)
    if first is None or first.socket is not None or "," not in url:
        return [] if first is None else [first]
    parts = url.split(",")
    if len(parts) > SERVERS_MAX:
        raise Invalid(f"a URL names at most {SERVERS_MAX} servers, not {len(parts)}")
    scheme = parts[0].partition(":")[0]
    found = [first, *(server_address(part if "://" in part else f"{scheme}://{part}") for part in parts[1:])]
    if any(one is None or one.socket is not None for one in found):
        raise Invalid(f"{url[:200]!r} names something else among its servers: write http://A:PORT,http://B:PORT")
    return [one for one in found if one is not None]


def server_address(url: str) -> Address | None:
    """The server that a store URL names, the first one of several; None for a URL of another kind."""
    if isinstance(url, str) and not url.startswith(f"{SOCKET}/"):
        url = url.partition(",")[0]
    if isinstance(url, str) and url.startswith(f"{SOCKET}/"):
        return Address(socket=url.removeprefix(SOCKET), shares_files=False)
    scheme = url.partition(":")[0].lower() if isinstance(url, str) else ""
    if scheme not in SCHEMES:
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise Invalid(f"this is no server's URL: {error}; write {scheme}://HOST:PORT") from error
    if "@" in parts.netloc:  # not repeated in the error: it may be a user's password
        raise Invalid(
            f"a store URL holds no credentials: put a token into {TOKEN}, or its file's name into {TOKEN_FILE}"
        )
    if not host or len(url) > URL_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise Invalid(f"{url[:200]!r} is no server's URL: write {scheme}://HOST:PORT")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or "?" in url or "#" in url:
        raise Invalid(f"{url[:200]!r} says more than a server's URL should: write {scheme}://HOST:PORT")
    where = f"[{host}]" if ":" in host else host
    return Address(url=f"{scheme}://{where}" + ("" if port is None else f":{port}"))


def read_token() -> str | None:
    """The token that the environment gives, if any."""
    token, path = os.environ.get(TOKEN), os.environ.get(TOKEN_FILE)
    if token is None and path:
        try:
            token = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{TOKEN_FILE} names {path!r}, which cannot be read: {error}") from error
    token = (token or "").strip()
    if not token:
        return None
    if not token.isascii() or not token.isprintable() or " " in token or len(token) > TOKEN_BYTES_MAX:
        raise Invalid(f"the token in {TOKEN} or {TOKEN_FILE} is no token: that is one word of ASCII characters")
    return token
