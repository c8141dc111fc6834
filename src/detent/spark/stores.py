"""The stores that a session keeps open, so that Spark's short-lived processes find an owner."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from detent.errors import Invalid, NotFound
from detent.kv import absolute_url, parse_url
from detent.remote import server_address
from detent.store import Store
from detent.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_stores: weakref.WeakKeyDictionary[Any, dict[str, Store]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def open_for_spark(url: str) -> Store:
    """Open a store that other processes can reach too."""
    if server_address(url) is None and parse_url(url).scheme == "memory":
        raise Invalid("Spark's processes cannot reach a memory: store; take file:PATH, or a server's")
    return open_store(url)


def keep(spark: SparkSession, store: Store) -> None:
    """Hold a store open until the session is stopped, or the process ends."""
    with _lock:
        held = _stores.get(spark)
        if held is None:
            held = _stores[spark] = {}
            _close_with(spark, held)
        if store.url in held:
            store.close()  # the first one is as good
        else:
            held[store.url] = store


def store_of(spark: SparkSession, url: str | None = None) -> Store:
    """The store that :func:`detent.spark.session` opened for a session; say its URL if there are several."""
    held = dict(_stores.get(spark, {}))
    if url is None and len(held) == 1:
        return next(iter(held.values()))
    if url is None and held:
        raise Invalid(f"this session has several stores open ({', '.join(held)}): say which one")
    found = None if url is None else held.get(url if server_address(url) is not None else absolute_url(url))
    if found is None:
        raise NotFound("this session has no such store open: start it with detent.spark.session(store=URL)")
    return found


def _close_with(spark: SparkSession, held: dict[str, Store]) -> None:
    """Let the stores be closed after ``spark.stop()``; or when the session, or the process, is gone."""
    closing = weakref.finalize(spark, _close, held)
    alive = weakref.ref(spark)
    stop = type(spark).stop

    def stop_and_close() -> None:
        try:
            if (stopped := alive()) is not None:
                stop(stopped)
        finally:
            closing()

    spark.stop = stop_and_close  # type: ignore[method-assign]


def _close(held: dict[str, Store]) -> None:
    while held:
        held.popitem()[1].close()
