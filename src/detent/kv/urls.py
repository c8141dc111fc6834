"""Store URLs: ``memory:NAME``, ``file:PATH`` (or the path alone), ``s3://BUCKET/PREFIX``, ``gs://…``, ``az://…``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from detent.errors import Invalid
from detent.paths import as_url

OBJECT_STORE_SCHEMES = frozenset({"s3", "gs", "az"})
URL_MAX = 4096


@dataclass(frozen=True, slots=True)
class Location:
    """A parsed store URL."""

    scheme: str
    bucket: str
    path: str

    @property
    def is_object_store(self) -> bool:
        """Whether it is reached by requests."""
        return self.scheme in OBJECT_STORE_SCHEMES

    @property
    def directory(self) -> Path:
        """The directory of a ``file:`` store, absolute, so that a later chdir changes nothing."""
        return Path(self.path).absolute()


def absolute_url(url: str | os.PathLike[str]) -> str:
    """The same store from wherever the process stands later: a relative path is made absolute now."""
    url = as_url(url)
    location = parse_url(url)
    if location.scheme != "file":
        return url
    return "file:" + str(location.directory).replace("%", "%25")


def parse_url(url: str | os.PathLike[str]) -> Location:
    """Take a store URL, or a path, apart; `Invalid` says what a right one looks like."""
    url = as_url(url)
    if not isinstance(url, str):
        raise Invalid(f"a store URL is text such as 'file:./data', not {type(url).__name__}")
    if len(url) > URL_MAX or "\x00" in url:
        raise Invalid(f"a store URL has at most {URL_MAX} characters and no NUL")
    scheme, colon, rest = url.partition(":")
    if not colon or len(scheme) == 1:
        raise Invalid(f"{url!r} is not a store URL; for a directory write 'file:{url}'")
    if scheme == "memory":
        return Location("memory", "", rest.removeprefix("//"))
    if scheme == "file":
        host = rest.removeprefix("//").partition("/")[0] if rest.startswith("//") else ""
        if host not in {"", "localhost", ".", ".."}:
            raise Invalid(f"a file: store is on this machine, not on {host!r}: write file:/PATH, or file:PATH")
        path = unquote(rest.removeprefix("//").removeprefix("localhost/" if host == "localhost" else ""))
        if host == "localhost":
            path = "/" + path
        if not path:
            raise Invalid("'file:' needs the path of a directory, such as file:./data")
        return Location("file", "", path)
    if scheme in OBJECT_STORE_SCHEMES:
        parts = urlsplit(url)
        if not parts.netloc or parts.query or parts.fragment or "@" in parts.netloc:
            raise Invalid(f"write {scheme}://BUCKET/PREFIX; credentials come from the environment, never from the URL")
        return Location(scheme, parts.netloc, parts.path.strip("/"))
    raise Invalid(
        f"unknown kind of store {scheme!r}: use memory:, file:PATH, s3://BUCKET/PREFIX, gs:// or az://, or "
        "https://HOST:PORT for a server's"
    )
