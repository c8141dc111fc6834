"""Fixtures that more than one module uses."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from contract.kvengine import Engine
from detent.kv import Writer
from processes import Processes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell lets its background jobs ignore Ctrl-C, and children inherit that; tests send it to theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With DETENT_ONE_CASE the first case of each test alone: whether another Python runs the code, and not once more
    what the code does."""
    if not os.environ.get("DETENT_ONE_CASE"):
        return
    first: dict[str, pytest.Item] = {}
    for item in items:
        first.setdefault(item.nodeid.partition("[")[0], item)
    chosen = set(map(id, first.values()))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
    items[:] = [item for item in items if id(item) in chosen]


@pytest.fixture(autouse=True)
def loaded_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test loaded from its own files, because the next test may write one of that name."""
    before = set(sys.modules)
    yield
    temporary = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        # A target that was given as shop.py has that for its file: it lay in the test's current folder.
        if file is not None and (file.startswith(temporary) or not os.path.isabs(file)):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, for tests that load files from it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def store_dir(tmp_path: Path) -> Path:
    """A directory for one store. It does not exist yet: opening the store makes it."""
    return tmp_path / "store"


S3_MARKS = [pytest.mark.s3, pytest.mark.xdist_group("s3")]


@pytest.fixture(params=["memory", "file", pytest.param("s3", marks=S3_MARKS)])
def kv_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """Each kv engine in turn."""
    if request.param == "s3":
        for module in ("slatedb", "obstore", "s3server"):
            pytest.importorskip(module)
    engine = Engine(request.param, tmp_path)
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture
def kv_writer(kv_engine: Engine) -> Writer:
    """The writer of a new store."""
    return kv_engine.writer()


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Child processes, which end with the test at the latest."""
    with Processes() as started:
        yield started


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark session for all tests that need one; mark their modules with ``sparkling.MARKS``.

    Streams need a checkpoint location of their own, and each test its own store: what a test leaves in the session is
    there for the next one.
    """
    pytest.importorskip("pyspark")
    import sparkling

    with sparkling.session() as started:
        yield started
