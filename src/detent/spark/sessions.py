"""`session()`: a Spark session that starts fast, keeps to this machine, and has a store at hand."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from detent.errors import Invalid
from detent.spark import launch, stores
from detent.spark.settings import AT_LAUNCH, Wishes, helpful, wishes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CONNECT: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
_UNREMARKABLE: Final = ("spark.master", "spark.app.", "spark.api.", "spark.driver.", "spark.ui.", "spark.authenticate")
"""A session that somebody else started has these of its own, and nobody expects ours."""

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
        opened = None if store is None else undo.enter_context(stores.open_for_spark(store))
        spark = _running(wanted) or _start(wanted)
        if opened is not None:
            stores.keep(spark, opened)
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
    """What we would set, of what somebody else's session has not set itself."""
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
