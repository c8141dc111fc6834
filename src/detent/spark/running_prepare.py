"""What is settled before a pipeline runs: its store, its folder of checkpoints, and that what it names is there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from detent.errors import Invalid, NotFound
from detent.kv import absolute_url, parse_url
from detent.remote import server_address
from detent.spark.pipeline import Pipeline
from detent.spark.pipeline_graph import journals_read, journals_written, queues_used
from detent.spark.pipeline_stream import Stream
from detent.store import Store

URL_VARIABLE = "DETENT_URL"
CHECKPOINTS = ".checkpoints"


def store_url(pipeline: Pipeline, given: str | None) -> str:
    """The store: the one that is given, the pipeline's own, or that of the environment."""
    url = given or pipeline.store or os.environ.get(URL_VARIABLE)
    if not url:
        raise Invalid(
            f'the pipeline {pipeline.name!r} has no store: write Pipeline({pipeline.name!r}, store="file:./data"), '
            f"give --store file:./data, or set {URL_VARIABLE}"
        )
    if server_address(url) is not None:
        return url
    if parse_url(url).scheme == "memory":
        raise Invalid("Spark's processes cannot reach a memory: store; take file:PATH, or a server's")
    return absolute_url(url)


def checkpoint_folder(pipeline: Pipeline, given: str | Path | None, url: str) -> str:
    """Where the checkpoints are, each under its pipeline and stream: as given, as the pipeline says, or beside a store
    on this disk."""
    chosen = given or pipeline.checkpoints
    if chosen is not None:
        text = str(chosen)
        return text.rstrip("/") if urlsplit(text).scheme else str(Path(text).absolute())
    if server_address(url) is not None or parse_url(url).scheme != "file":
        raise Invalid(
            f"say where the checkpoints of {pipeline.name!r} are, with --checkpoints or Pipeline(checkpoints=...): "
            "they say how far each stream has read, and are kept as long as the store"
        )
    directory = parse_url(url).directory
    return str(directory.with_name(directory.name + CHECKPOINTS))


def is_local(folder: str) -> bool:
    """Whether a folder is on this machine's disk."""
    return urlsplit(folder).scheme in ("", "file")


def prepare(store: Store, streams: list[Stream]) -> Iterator[str]:
    """Create the journals that are missing, and say so where nobody writes them. Queues have to be there: a queue has
    settings, which a pipeline cannot guess."""
    _check_queues(store, queues_used(streams))
    known = set(store.journals())
    written = journals_written(streams)
    for name in dict.fromkeys([*written, *journals_read(streams)]):
        if name not in known:
            store.journal(name).create(exist_ok=True)
            if name not in written:
                yield f"the journal {name} was not there, and nobody in the pipeline writes it: it was created, empty"


def _check_queues(store: Store, names: Iterable[str]) -> None:
    for name in names:
        try:
            store.queue(name).info()
        except NotFound as error:
            raise NotFound(
                f"there is no queue {name!r}, which the pipeline uses: create it with `detent queue create {store.url} "
                f"{name}`"
            ) from error
