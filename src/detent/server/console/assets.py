"""What the console's pages load: one style sheet, one script, and htmx. All of it comes from the package itself.

`vendored.json` names what others wrote, with its version, licence and SHA-256; a test compares the digests.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from detent.errors import NotFound
from detent.server.http import HttpRequest, Response

FOLDER: Final = Path(__file__).parent / "static"

_TYPES: Final = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Asset(NamedTuple):
    """A file as it is sent."""

    body: bytes
    type: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """All files, by name. They are read once."""
    found = {}
    for path in FOLDER.iterdir():
        if path.suffix in _TYPES:
            body = path.read_bytes()
            found[path.name] = Asset(body, _TYPES[path.suffix], hashlib.sha256(body).hexdigest()[:16])
    return found


def asset_name(name: str) -> str:
    """A file's name with its digest, so that a browser keeps it for as long as it is the same."""
    return f"{name}?{assets()[name].tag}"


def send_asset(request: HttpRequest, name: str) -> Response:
    """A file; `NotFound` if there is none of that name."""
    asset = assets().get(name)
    if asset is None:
        raise NotFound(f"there is no file {name[:100]!r}")
    if request.raw_query.decode("latin-1") == asset.tag:
        keep = "public, max-age=31536000, immutable"
    else:
        keep = "no-cache"
    return Response(asset.body, type=asset.type, headers={"cache-control": keep, "x-content-type-options": "nosniff"})
