"""Errors that name a missing extra print a command that installs it beside this very Detent."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Iterator

import pytest

from detent import extras


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    extras._around_extra.cache_clear()
    yield
    extras._around_extra.cache_clear()


class Installed:
    def __init__(self, recorded: str | None) -> None:
        self._recorded = recorded

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._recorded


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (None, "pip install 'detent[sql]'"),
        ('{"url": "file:///a%20b/detent-1.whl", "archive_info": {}}', "pip install '/a b/detent-1.whl[sql]'"),
        ('{"url": "file:///src/{x}", "dir_info": {}}', "pip install '/src/{x}[sql]'"),
        ('{"url": "file:///src", "dir_info": {"editable": true}}', "pip install --editable '/src[sql]'"),
        ('{"url": "https://host/d.whl", "archive_info": {}}', "pip install 'detent[sql] @ https://host/d.whl'"),
    ],
)
def test_extra_is_installed_from_where_detent_came(
    monkeypatch: pytest.MonkeyPatch, recorded: str | None, command: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _name: Installed(recorded))
    assert extras.install_command("sql") == command


def test_source_tree_that_is_not_installed_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)
    assert extras.install_command("s3") == "pip install 'detent[s3]'"


def test_pandas_is_one_that_pyspark_supports() -> None:
    """It warns of one that it does not."""
    from pyspark.sql.pandas.utils import require_minimum_pandas_version

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_minimum_pandas_version()
