"""Where a pipeline's store is: its data, its owner, and the checkpoints beside it.

A store on an object store has two addresses. Spark's tasks read and write the bucket; plans and commits go to the
owner, which is a server, or the driver itself. A driver that owns the store answers the Python processes that Spark
starts beside it, on a socket in a folder that only this user can enter; another owner answers where its lease says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from detent.errors import Invalid
from detent.kv import absolute_url, parse_url
from detent.remote import server_address
from detent.spark.pipeline_stream import QueueEnd, Stream
from detent.spark.settings import CHECKPOINTS as MANAGER
from detent.store import Store

if TYPE_CHECKING:
    from detent.spark.pipeline import Pipeline

URL_VARIABLE: Final = "DETENT_URL"
CHECKPOINTS: Final = ".checkpoints"

S3A_CLASS: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
S3_SCHEMES: Final = ("s3", "s3a")
ABORTING_MANAGER: Final = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
"""Writes an entry of a log in one upload, which is given up if it is not finished. It is in Spark's module for clouds,
which PySpark does not bring."""


class StorePlace(NamedTuple):
    """The URL of the store's data; and of its owner, where that is another one."""

    url: str
    server: str | None = None

    @property
    def owner_url(self) -> str:
        """Where plans and commits go."""
        return self.server or self.url

    @property
    def options(self) -> dict[str, str]:
        """What Spark's formats are told besides the URL of the data."""
        return {} if self.server is None else {"server": self.server}


def place_of(pipeline: Pipeline, store: str | None, server: str | None) -> StorePlace:
    """Where the store is: as given, or else as the pipeline says. The pipeline's server is that of its own store."""
    url = store_url(pipeline, store)
    found = server or (pipeline.server if store is None else None)
    if found is None:
        return StorePlace(url)
    if server_address(found) is None:
        raise Invalid(f'{found!r} is not a server\'s URL: write server="https://HOST:PORT"')
    if server_address(url) is not None or parse_url(url).scheme == "file":
        raise Invalid(
            f"the store is {url}, and the server {found}: a server is named beside a store on an object store, whose "
            "data Spark's tasks read and write themselves. Leave one of the two out"
        )
    return StorePlace(url, found)


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


# -- the owner --------------------------------------------------------------------------------------------------------


def reachable(store: Store, place: StorePlace, streams: list[Stream], *, is_local: bool) -> StorePlace:
    """The place as Spark's processes reach it. The owner of a store on an object store answers where its lease says."""
    scheme = "" if server_address(place.owner_url) is not None else parse_url(place.owner_url).scheme
    if not is_local and scheme == "file":
        raise Invalid(
            f"the store {place.url} is a folder of this machine, and Spark's tasks run on others: take a store on an "
            "object store, or a server's URL"
        )
    if scheme in ("", "file"):
        return place
    if not is_local:
        _check_queues(streams, place)
    return StorePlace(place.url, store.owner_url)


def _check_queues(streams: list[Stream], place: StorePlace) -> None:
    """Tasks ask the owner for the messages of a queue, and the driver answers this machine alone."""
    for stream in streams:
        for source in stream.sources:
            if isinstance(source, QueueEnd):
                raise Invalid(
                    f"the stream {stream.name!r} reads the {source}, whose messages tasks on other machines ask the "
                    f"owner of {place.url} for: run `detent serve {place.url}`, and name it with server="
                )


# -- checkpoints ------------------------------------------------------------------------------------------------------


def checkpoint_folder(pipeline: Pipeline, given: str | Path | None, url: str) -> str:
    """Where the checkpoints are, each under its pipeline and stream: as given, as the pipeline says, or beside a store
    on this disk."""
    chosen = given or pipeline.checkpoints
    if chosen is not None:
        text = str(chosen).rstrip("/")
        scheme = urlsplit(text).scheme
        if scheme == "s3":
            return f"s3a{text.removeprefix('s3')}"  # as Hadoop calls it
        return text if scheme else str(Path(text).absolute())
    if server_address(url) is not None or parse_url(url).scheme != "file":
        raise Invalid(
            f"say where the checkpoints of {pipeline.name!r} are, with --checkpoints or Pipeline(checkpoints=...): "
            "they say how far each stream has read, and are kept as long as the store. Take a folder that the next "
            "driver finds too, such as a volume; or s3a://BUCKET/PREFIX, if Spark has the jars for it"
        )
    directory = parse_url(url).directory
    return str(directory.with_name(directory.name + CHECKPOINTS))


def is_local(folder: str) -> bool:
    """Whether a folder is on this machine's disk."""
    return urlsplit(folder).scheme in ("", "file")


def set_manager(spark: Any, folder: str) -> None:
    """Let Spark write its logs as the file system of the checkpoints needs it. On an object store nothing is renamed:
    the manager of Spark's module for clouds is taken where there is one, and Spark's own choice otherwise."""
    if is_local(folder):
        return
    if urlsplit(folder).scheme in S3_SCHEMES and not _has_class(spark, S3A_CLASS):
        raise Invalid(
            f"the checkpoints are in {folder}, and Spark's Java has no file system for s3a: put hadoop-aws (of the "
            "version of PySpark's hadoop-client) and its bundle of AWS's SDK on the class path, for example with "
            "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION; or keep the checkpoints in a folder of "
            "the driver that outlives it, such as a volume, with --checkpoints DIR"
        )
    if _has_class(spark, ABORTING_MANAGER):
        spark.conf.set(MANAGER, ABORTING_MANAGER)
    else:
        spark.conf.unset(MANAGER)


def _has_class(spark: Any, name: str) -> bool:
    """Whether Spark's Java can load a class."""
    jvm = spark._jvm
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, True)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        return False
    return True
