"""A consumer is killed at each durable step, in each kind of state; whoever starts next finishes or drops its work.

Downstream readers count: nothing is lost, doubled, reordered or torn, in the output and in the state.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import detent
from consumerworld import KINDS, RECORDED, SQL, TRANSACTION, cases, check, consumes, place_of
from detent import crash
from processes import Processes, eventually

STARTING = ("consumer.after_restore", "consumer.after_recover")
ONCE_A_LIFE = {*STARTING, "state.sql.after_fence", "state.sql.after_restore", *RECORDED[:2]}
CASES = cases((*STARTING, *TRANSACTION))

SENT = [b"m%d" % number for number in range(40)]
SLOW = {"max_transaction": "10ms", "sleep": 0.002, "lease_ms": 50}
"""A few messages a transaction, so that there are many."""


def test_every_point_is_visited() -> None:
    here = {point for point in crash.POINTS if point.startswith(("consumer.", "state."))}
    assert here == {*STARTING, *TRANSACTION, *SQL, *RECORDED, "consumer.after_lease"}


@pytest.fixture
def url(store_dir: Path) -> str:
    url = f"file:{store_dir}"
    with detent.open(url) as store:
        store.journal("in").append_many(SENT)
    return url


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_killed_at(url: str, tmp_path: Path, processes: Processes, kind: str, point: str) -> None:
    place = place_of(kind, tmp_path)
    given = {"url": url, "name": "c", "kind": kind, "place": place, "once": True, "options": SLOW}
    if point in ONCE_A_LIFE:  # let there be something to restore
        first = processes.start(consumes, environment={"DETENT_CRASH_AT": "consumer.after_commit:2"}, **given)
        assert first.was_killed()
    times = 1 if point in ONCE_A_LIFE else 2
    child = processes.start(consumes, environment={"DETENT_CRASH_AT": f"{point}:{times}"}, **given)
    assert child.was_killed(), f"{point} was never reached\n{child.errors()}"
    again = processes.start(consumes, **given)
    assert again.wait() == 0, again.errors()
    with detent.open(url) as store:
        check(store, "c", kind, place, SENT)
        info = store.journal("out").info()
        assert info.open_spans <= 1, "one transaction that died, at most"


@pytest.mark.parametrize("kind", KINDS)
def test_killed_again_and_again(url: str, tmp_path: Path, processes: Processes, kind: str) -> None:
    """At another step each time, before anybody has finished."""
    place = place_of(kind, tmp_path)
    given = {"url": url, "name": "c", "kind": kind, "place": place, "once": True, "options": SLOW}
    for point in ("consumer.after_commit", "consumer.after_recover", "consumer.before_ack", "consumer.after_append"):
        child = processes.start(consumes, environment={"DETENT_CRASH_AT": point}, **given)
        assert child.was_killed(), point
    again = processes.start(consumes, **given)
    assert again.wait() == 0, again.errors()
    with detent.open(url) as store:
        check(store, "c", kind, place, SENT)


@pytest.mark.parametrize(("kind", "deadline"), [("recorded", "0s"), ("sqlite", "14d")])
def test_shard_that_was_dead_past_the_journals_deadline_delivers(
    url: str, tmp_path: Path, processes: Processes, kind: str, deadline: str
) -> None:
    """Held by the log in the same store, without any deadline of its own; or by that deadline, for a database."""
    place = place_of(kind, tmp_path)
    options = {**SLOW, "output_deadline": deadline}
    given = {"url": url, "name": "c", "kind": kind, "place": place, "once": True, "options": options}
    child = processes.start(consumes, environment={"DETENT_CRASH_AT": "consumer.after_commit:2"}, **given)
    assert child.was_killed(), child.errors()
    with detent.open(url) as store:
        store.publisher().publish_uncommitted("out", [b"of a plain publisher"])
        for journal in ("out", "out/totals"):
            store.journal(journal).configure(transaction_deadline="1ms")
        eventually(lambda: store.journal("out").info().aborted_spans, what="the roll back")
        assert store.journal("out").info().open_spans == 1, "that of the shard"
        for journal in ("out", "out/totals"):
            store.journal(journal).configure(transaction_deadline="1h")
    again = processes.start(consumes, **given)
    assert again.wait() == 0, again.errors()
    with detent.open(url) as store:
        check(store, "c", kind, place, SENT)


def test_killed_between_the_lease_and_the_work(url: str, tmp_path: Path, processes: Processes) -> None:
    """The shard is free again when the lease of the dead has run out."""
    place = place_of("engine", tmp_path)
    given = {"url": url, "name": "c", "kind": "engine", "place": place, "options": {"lease_ms": 50}}
    child = processes.start(consumes, environment={"DETENT_CRASH_AT": "consumer.after_lease"}, **given)
    assert child.was_killed(), child.errors()
    other = processes.start(consumes, **given)
    other.expect("started")
    assert other.expect("taken")["shard"] == 0
    with detent.open(url) as store:
        store.consumer("c").await_processed("in", len(SENT) - 1, timeout="30s")
        check(store, "c", "engine", place, SENT)
    other.finish()
