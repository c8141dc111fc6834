"""`session()`: a Spark session that starts fast, keeps to this machine, and has a store at hand."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from detent.errors import Invalid, NotFound
from detent.kv import absolute_url, parse_url
from detent.remote import server_address
from detent.spark import launch
from detent.spark.settings import AT_LAUNCH, Wishes, helpful, wishes
from detent.store import Store
from detent.store import open as open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_UNREMARKABLE: Final = ("spark.master", "spark.app.", "spark.api.", "spark.driver.", "spark.ui.", "spark.authenticate")
"""A session that was there before has these of its own, and is not expected to have ours."""

_lock = threading.Lock()
_started: weakref.WeakSet[Any] = weakref.WeakSet()


def session(
    store: str | None = None,
    *,
    app: str = "detent",
    cores: int | None = None,
    memory: str | None = None,
    master: str | None = None,
    conf: Mapping[str, object] | None = None,
    checkpoint_root: str | os.PathLike[str] | None = None,
    quick: bool = False,
    verbose: bool = False,
) -> SparkSession:
    """Start Spark in this process, or take the session that runs already.

    >>> spark = detent.spark.session(store="file:./data")
    >>> orders = spark.readStream.format("detent").load("file:./data")

    `store` is opened here and stays open until ``spark.stop()``, so that Spark's short-lived Python processes find an
    owner of it; :func:`store_of` gives it to you. `cores` tasks run at once, on all processors unless told; `memory`
    is Java's, such as "4g" (Spark's own default is 1g); `master` names a cluster instead. `conf` are further settings
    of Spark, and win over everything set here. Streams without a checkpoint location of their own keep theirs under
    `checkpoint_root`. `quick` starts faster and then runs slower: for tests and short runs. `verbose` leaves Spark's
    log as Spark has it; otherwise errors alone are shown.

    Java is found by :func:`detent.spark.java.find`. A session that runs already is taken as it is: what can be set
    while it runs is set, and a warning names what cannot.
    """
    wanted = wishes(app, cores, memory, master, conf, checkpoint_root, quick, verbose)
    _refuse_connect()
    with contextlib.ExitStack() as undo, _lock:
        # Opened a second time, a store on an object store would be taken from the session that has it open.
        opened = None if store is None or _is_kept(store) else undo.enter_context(open_for_spark(store))
        spark = _running(wanted) or _start(wanted)
        if opened is not None:
            keep(spark, opened)
        undo.pop_all()
        return spark


def _refuse_connect() -> None:
    named = [name for name in _CONNECT if os.environ.get(name)]
    if named:
        raise Invalid(
            f"{named[0]} is set, so Spark runs elsewhere: take SparkSession.builder.getOrCreate(), and make Detent's "
            "formats known to it with detent.spark.register(spark)"
        )


def _start(wanted: Wishes) -> SparkSession:
    with _quiet_import():
        spark, refused = launch.start(wanted)
    _started.add(spark)
    _warn_of(refused, "Spark's Java runs already")
    return spark


def _running(wanted: Wishes) -> SparkSession | None:
    """The session of this process, if there is one, with what is wanted set in it."""
    with _quiet_import():
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    if SparkContext._active_spark_context is None:
        return None
    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    explicit = wanted.explicit()
    settings = explicit if spark in _started else _unset(wanted, spark) | explicit
    refused = []
    for key, value in settings.items():
        if spark.conf.get(key, None) == value:
            continue
        if spark.conf.isModifiable(key):
            spark.conf.set(key, value)
        elif key in explicit or not key.startswith(_UNREMARKABLE):
            refused.append(key)
    _warn_of(refused, "a Spark session runs already")
    return spark


def _unset(wanted: Wishes, spark: SparkSession) -> dict[str, str]:
    """What we would set, of what a session that was there before has not set itself."""
    given = dict(spark.sparkContext.getConf().getAll())
    return {key: value for key, value in helpful(replace(wanted, given=given)).items() if key not in given}


def _warn_of(refused: list[str], reason: str) -> None:
    if refused:
        where = " in a new process" if AT_LAUNCH.intersection(refused) else ""
        names = ", ".join(sorted(refused))
        warnings.warn(
            f"{reason}, and these could not be set any more: {names}. Start it anew{where} if you need them",
            stacklevel=4,
        )


@contextlib.contextmanager
def _quiet_import() -> Iterator[None]:
    """Importing pyspark warns of each new pandas; what Detent uses of the two works together."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        yield


def send_by_value(module: ModuleType) -> None:
    """Let functions of a module that stays imported travel to Spark's workers by value: these cannot import it."""
    from pyspark import cloudpickle

    register: Callable[[ModuleType], None] = cloudpickle.register_pickle_by_value
    register(module)


# -- the stores that a session keeps open, so that Spark's short-lived processes find an owner ------------------------

_stores: weakref.WeakKeyDictionary[Any, dict[str, Store]] = weakref.WeakKeyDictionary()
_keeping = threading.Lock()


def open_for_spark(url: str) -> Store:
    """Open a store that other processes can reach too."""
    if server_address(url) is None and parse_url(url).scheme == "memory":
        raise Invalid("Spark's processes cannot reach a memory: store; take file:PATH, or a server's")
    return open_store(url)


def keep(spark: SparkSession, store: Store) -> None:
    """Hold a store open until the session is stopped, or the process ends."""
    with _keeping:
        held = _stores.get(spark)
        if held is None:
            held = _stores[spark] = {}
            _close_with(spark, held)
        if store.url in held:
            store.close()  # the first one is as good
        else:
            held[store.url] = store


def _is_kept(url: str) -> bool:
    """Whether the session that runs has a store open."""
    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    with _keeping:
        return spark is not None and _url_of(url) in _stores.get(spark, {})


def _url_of(url: str) -> str:
    """The URL by which a store is kept."""
    return url if server_address(url) is not None else absolute_url(url)


def store_of(spark: SparkSession, url: str | None = None) -> Store:
    """The store that :func:`detent.spark.session` opened for a session; say its URL if there are several."""
    held = dict(_stores.get(spark, {}))
    if url is None and len(held) == 1:
        return next(iter(held.values()))
    if url is None and held:
        raise Invalid(f"this session has several stores open ({', '.join(held)}): say which one")
    found = None if url is None else held.get(_url_of(url))
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


def is_here(spark: SparkSession) -> bool:
    """Whether Spark's tasks run on this machine."""
    return (spark.sparkContext.master or "local").partition("[")[0] == "local"


# -- under a command that a person watches ----------------------------------------------------------------------------


def silence(spark: SparkSession) -> None:
    """Let Spark log nothing: why something failed is told by us, in a line. Spark's own way to say so, setLogLevel,
    skips the loggers that matter. A function of a sink that fails is logged on this side of Java, with its trace."""
    for name in ("py4j", "py4j.clientserver", "py4j.java_gateway", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)
    log4j: Any = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    log4j.core.config.Configurator.setAllLevels("", log4j.Level.OFF)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """What the connection to Java logs when that is gone, under no name of its own."""
    return record.module not in {"java_gateway", "clientserver"}
