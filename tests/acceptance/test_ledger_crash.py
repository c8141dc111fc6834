"""An owner that is killed while it commits a batch: its ledger row and its fragment are both there, or neither."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import detent
from acceptance.test_crash_points import COMMITTING, DURABLE, open_quietly
from detent import AlreadyEntered, FragmentRef, NotFound
from processes import Io, Processes, arm

pytestmark = pytest.mark.xdist_group("crash-points")


def table(*bodies: str) -> Any:
    return pa.table({"body": pa.array([body.encode() for body in bodies], pa.binary())})


def commits_a_batch(io: Io, url: str, point: str) -> None:
    with open_quietly(url) as store:
        ref = store.journal("j").write_fragment(table("a", "b"))
        io.say("written", ref=[ref.id.hex(), ref.rows, ref.size, ref.checksum])
        arm(point)
        with store.transaction() as transaction:
            transaction.adopt("j", [ref])
            transaction.enter_ledger("to j", 0, query="q", run="first")
        io.say("acknowledged")


def bodies(store: detent.Store) -> list[bytes]:
    try:
        return [message.body for message in store.journal("j").read()]
    except NotFound:
        return []


@pytest.mark.parametrize("point", COMMITTING)
def test_killed_while_it_committed_a_batch(store_dir: Path, processes: Processes, point: str) -> None:
    url = f"file:{store_dir}"
    child = processes.start(commits_a_batch, url=url, point=point)
    fields = child.expect("written")["ref"]
    assert child.was_killed(), f"{point} was never reached"
    assert child.next_event() is None, "it was acknowledged, and then killed before its commit"
    with detent.open(url) as store:
        before = bodies(store)
        assert (before, len(store.ledgers())) == (([b"a", b"b"], 1) if point in DURABLE else ([], 0))
        # Whoever comes next replays the batch: it takes effect now, or has done so before.
        ref = FragmentRef(bytes.fromhex(fields[0]), *fields[1:])
        transaction = store.transaction()
        transaction.enter_ledger("to j", 0, query="q", run="second")
        transaction.adopt("j", [ref])
        if point in DURABLE:
            with pytest.raises(AlreadyEntered):
                transaction.commit()
        else:
            transaction.commit()
        assert bodies(store) == [b"a", b"b"]
        info = store.ledger("to j")
        assert (info.batch, info.entries, info.run) == (0, 1, "first" if point in DURABLE else "second")
