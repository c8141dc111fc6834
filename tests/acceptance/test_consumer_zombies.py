"""A consumer stands still between two steps, another takes its shard, and then the first one wakes up.

The store is the test's own, so that nobody but the zombie stands still. Whatever the zombie still tries is refused, or
was committed before the other restored; downstream readers see each message once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import detent
from consumerworld import RECORDED, TRANSACTION, cases, check, consumes, place_of, wait_processed
from processes import Child, Processes, eventually

STARTING = ("consumer.after_lease", "consumer.after_restore", "consumer.after_recover")
FIRST_TIME = {*STARTING, "state.sql.after_fence", "state.sql.after_restore", *RECORDED}
CASES = cases((*STARTING, *TRANSACTION))

LOCKED_S = 1.0
"""How long the second one may wait for what the first has locked in its database before the first goes on: it cannot
have the shard earlier, which is as good as a fence."""

SENT = [b"m%d" % number for number in range(40)]
OPTIONS = {"max_transaction": "10ms", "sleep": 0.002, "lease_ms": 100}


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_a_zombie_that_stood_still_at(
    store_dir: Path, tmp_path: Path, processes: Processes, kind: str, point: str
) -> None:
    place = place_of(kind, tmp_path)
    with detent.open(f"file:{store_dir}") as store:
        store.journal("in").append_many(SENT[:20])
        given = {"url": store.url, "name": "c", "kind": kind, "place": place, "role": "client", "options": OPTIONS}
        times = 1 if point in FIRST_TIME else 2
        zombie = processes.start(consumes, environment={"DETENT_STOP_AT": f"{point}:{times}"}, **given, member="old")
        eventually(zombie.stands_still, what=f"{point} of {kind}")
        heir = processes.start(consumes, **given, member="new")
        taken(heir)
        try:
            eventually(lambda: done(store, 20), seconds=LOCKED_S)
        except AssertionError:
            assert kind in {"sqlite", "postgres"}, "only a database makes the heir wait for the zombie"
        zombie.resume()
        wait_processed(store, "c", "in", 20)
        store.journal("in").append_many(SENT[20:])
        wait_processed(store, "c", "in", len(SENT))
        zombie.finish()
        heir.finish()
        check(store, "c", kind, place, SENT)
        # On a busy machine the shard may change hands more often than it was made to: leases are short here.
        lives = sum(event["event"] == "taken" for child in (zombie, heir) for event in child.events)
        assert lives >= 2
        for journal in ("out", "out/totals"):
            assert store.journal(journal).info().open_spans < lives, "at most what the replaced ones left pending"


def taken(heir: Child) -> None:
    """The heir has the lease."""
    while (event := heir.next_event()) is not None:
        if event["event"] == "taken":
            return
    raise AssertionError(heir.errors())


def done(store: detent.Store, count: int) -> bool:
    return store.consumer("c").info().shards[0].processed.get("in", 0) >= count
