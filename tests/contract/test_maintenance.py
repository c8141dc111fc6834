"""Every way in which a store is kept in order, on every engine: what an owner does by itself, and what commands ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import detent
from contract.backends import S3_MARKS
from detent.errors import Invalid, Unavailable
from detent.kv.compact import compact
from detent.kv.upgrade import upgrade
from detent.remote import owner as owners
from detent.verify import verify


@pytest.fixture(params=["memory", "file", pytest.param("s3", marks=S3_MARKS)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        pytest.importorskip("slatedb")
        import s3server

        return s3server.s3_store_url()
    return "memory:" if request.param == "memory" else f"file:{tmp_path / 'store'}"


@pytest.fixture
def store(url: str) -> Iterator[detent.Store]:
    """A store that has something to keep in order: trimmed messages, an orphan, acknowledged messages."""
    with detent.open(url) as opened:
        journal = opened.journal("j")
        journal.append_many([b"a", b"b", b"c"])
        journal.trim(2)
        journal.write_fragment(pa.table({"body": pa.array([b"orphan"], pa.binary())}))
        queue = opened.queue("q")
        queue.create()
        queue.publish_many([b"m", b"n"])
        queue.claim(1)[0].ack()
        yield opened


def test_housekeeping_of_the_owner(store: detent.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick, and the sweep that is due once an hour, as the owner's own task makes them."""
    local: Any = store._connection.current
    monkeypatch.setattr(local._housekeeper, "_next_tick", 0.0)
    monkeypatch.setattr(local._housekeeper, "_next_sweep", 0.0)
    local._housekeeper._keep_house()
    assert local._housekeeper._next_sweep > 0
    assert local._housekeeper._next_tick > 0
    assert owners.SWEEP_EVERY_S > 0
    assert [message.body for message in store.journal("j").read(2)] == [b"c"]


def test_sweep(store: detent.Store) -> None:
    assert store.sweep(grace="1d") == 0
    while not store.sweep(grace="0s"):  # the horizon is a whole millisecond
        pass
    assert not list(store.objects.list("fragments/"))


def test_abandoned_uploads_are_looked_for(store: detent.Store) -> None:
    assert store.objects.remove_abandoned(0) == 0


def test_verify_finds_nothing(store: detent.Store) -> None:
    local: Any = store._connection.current
    assert list(verify(local.reader)) == []


def test_compact_and_upgrade(store: detent.Store, url: str) -> None:
    if url == "memory:":
        for refused in (compact, upgrade):
            with pytest.raises(Invalid):
                refused(url)
        return
    if url.startswith("file:"):
        with pytest.raises(Unavailable):
            compact(url)
        store.close()
    done = compact(url)
    assert done.after > 0
    store.close()
    assert upgrade(url).records == 0
    with detent.open(url) as again:
        assert [message.body for message in again.journal("j").read(2)] == [b"c"]
        assert [one.body for one in again.queue("q").claim(5)] == [b"n"]
