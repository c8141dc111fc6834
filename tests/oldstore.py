"""Stores that an earlier release has made: `oldstores/make.py` says how. What they hold, and how to check it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import detent
from oldstores.make import said

HERE = Path(__file__).parent / "oldstores"

SAID: dict[str, Any] = json.loads((HERE / "said.json").read_text())


def unpack_file(directory: Path) -> str:
    """A `file:` store of format 2 whose owner was killed; its URL."""
    with zipfile.ZipFile(HERE / "file.zip") as archive:
        archive.extractall(directory)
    return f"file:{directory}"


def unpack_s3() -> str:
    """A store of format 1 on the loopback S3 server; its URL."""
    import obstore

    import s3server
    from detent.kv.objectstore import open_bucket
    from detent.kv.urls import parse_url

    url = str(s3server.s3_store_url())
    bucket = open_bucket(parse_url(url))
    with zipfile.ZipFile(HERE / "s3.zip") as archive:
        for name in sorted(archive.namelist()):
            obstore.put(bucket, name, archive.read(name))
    return url


def check_served(url: str) -> None:
    """All that the store held is served, and it takes more."""
    with detent.open(url) as store:
        assert json.loads(json.dumps(said(store))) == SAID
        assert store.queue("orders").publish(b"again", dedup_key="for ever").duplicate_of == 6
        store.journal("plain").append(b"more")
        store.queue("orders").publish(b"more")
