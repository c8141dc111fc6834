"""Apps are killed before and after each durable step; whoever starts next finishes, and the books balance.

Each order has one row of each app: none is lost, none is there twice. At the end no mark, no message and no lane is
left over that should not be.
"""

from __future__ import annotations

import os
from pathlib import Path

import psycopg
import pytest

import detent
from busprogram import engine_entries, entries, expected, inbox, make_books, place_of, send_orders, works
from detent import crash
from postgresserver import new_database, postgres_server
from processes import Processes, eventually

HANDLING = (
    "bus.before_track", "bus.after_track", "bus.before_handler", "bus.after_handler", "bus.before_save",
    "bus.after_save", "bus.before_commit", "bus.after_commit", "bus.before_ack", "bus.after_ack",
)  # fmt: skip
FORWARDING = (
    "bus.after_claim", "bus.before_forward", "bus.after_forward", "bus.before_mark_sent", "bus.after_mark_sent",
)  # fmt: skip
RESENDING = ("bus.before_send", "bus.after_send", "bus.after_commit")
IN_THE_ENGINE = ("bus.before_handler", "bus.after_handler", "bus.before_commit", "bus.after_commit")
IS_LONG = bool(os.environ.get("DETENT_SOAK"))
ORDERS = 6

CASES = [
    *[("sqlite", point) for point in (*HANDLING, *FORWARDING)],
    *[("resend", point) for point in RESENDING],
    *[("engine", point) for point in IN_THE_ENGINE],
]
ON_POSTGRES = (*HANDLING, *FORWARDING) if IS_LONG else ("bus.after_track", "bus.before_commit", "bus.after_commit")


def test_every_point_is_visited() -> None:
    assert {point for point in crash.POINTS if point.startswith("bus.")} == {*HANDLING, *FORWARDING, *RESENDING}


@pytest.fixture
def url(store_dir: Path) -> str:
    send_orders(f"file:{store_dir}", ORDERS)
    return f"file:{store_dir}"


def check(url: str, books: str, kind: str) -> None:
    with detent.open(url) as store:
        found = engine_entries(store) if kind == "engine" else entries(books)
        assert found == expected(ORDERS)
        for name in ("orders", "billing"):
            info = store.queue(name).info()
            assert (info.available, info.in_flight, info.failed) == (0, 0, 0)


def killed(processes: Processes, url: str, books: str, kind: str, point: str) -> None:
    given = {"store_url": url, "books": books, "kind": kind, "count": ORDERS}
    times = 1 if point in FORWARDING else 2  # a batch may have everything in it
    child = processes.start(works, environment={"DETENT_CRASH_AT": f"{point}:{times}"}, **given)
    assert child.was_killed(), f"{point} was never reached\n{child.errors()}"
    again = processes.start(works, **given)
    assert again.wait() == 0, again.errors()
    check(url, books, kind)


@pytest.mark.parametrize(("kind", "point"), CASES)
def test_killed_at(url: str, tmp_path: Path, processes: Processes, kind: str, point: str) -> None:
    books = place_of(tmp_path)
    make_books(books)
    killed(processes, url, books, kind, point)


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("point", ON_POSTGRES)
def test_killed_on_postgres_at(url: str, processes: Processes, point: str) -> None:
    books = new_database()
    make_books(books)
    killed(processes, url, books, "postgres", point)


def test_killed_again_and_again(url: str, tmp_path: Path, processes: Processes) -> None:
    """At another step each time, before anybody has finished."""
    books = place_of(tmp_path)
    make_books(books)
    given = {"store_url": url, "books": books, "kind": "sqlite", "count": ORDERS}
    for point in ("bus.after_commit", "bus.after_forward", "bus.before_ack", "bus.after_track", "bus.before_mark_sent"):
        child = processes.start(works, environment={"DETENT_CRASH_AT": point}, **given)
        child.wait()
    again = processes.start(works, **given)
    assert again.wait() == 0, again.errors()
    check(url, books, "sqlite")


STANDING = (*HANDLING, *FORWARDING) if IS_LONG else (
    "bus.after_track", "bus.before_commit", "bus.after_commit", "bus.before_forward", "bus.before_mark_sent",
)  # fmt: skip


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("point", STANDING)
def test_a_zombie_changes_nothing(store_dir: Path, processes: Processes, point: str) -> None:
    """One process stands still in the middle of a message, others take it over, and then it goes on. The database ends
    transactions that stand still, as it should where processes may: their locks are waited for otherwise."""
    url, books = f"file:{store_dir}", f"{new_database()}?options=-cidle_in_transaction_session_timeout%3D700"
    make_books(books)
    owner = processes.store(url)
    send_orders(url, ORDERS)
    given = {"store_url": url, "books": books, "kind": "postgres", "count": ORDERS, "role": "client"}
    zombie = processes.start(works, environment={"DETENT_STOP_AT": f"{point}:1"}, **given)
    eventually(zombie.stands_still, what=point)
    other = processes.start(works, **given)
    assert other.wait() == 0, other.errors()
    zombie.resume()
    assert zombie.wait() == 0, zombie.errors()
    owner.finish()
    check(url, books, "postgres")


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("point", ["bus.before_commit", "bus.after_commit"])
def test_postgres_itself_is_killed_around_a_commit(store_dir: Path, processes: Processes, point: str) -> None:
    """The app stands still right before or after its COMMIT, the database dies and comes back, and the app goes on."""
    url = f"file:{store_dir}"
    send_orders(url, ORDERS)
    with postgres_server() as server:
        books = server.new_database()
        make_books(books)
        given = {"store_url": url, "books": books, "kind": "postgres", "count": ORDERS}
        child = processes.start(works, environment={"DETENT_STOP_AT": f"{point}:3"}, **given)
        eventually(child.stands_still, what=point)
        server.kill()
        server.start()
        child.resume()
        assert child.wait() == 0, child.errors()
        check(url, books, "postgres")


@pytest.mark.xdist_group("postgres")
def test_postgres_is_killed_in_the_middle_of_a_commit(store_dir: Path, processes: Processes) -> None:
    """A COMMIT is on the disk and waits for a replica that does not exist; then the database dies, and the app never
    hears what became of it. What was committed is found when the message comes again."""
    url = f"file:{store_dir}"
    send_orders(url, ORDERS)
    with postgres_server() as server:
        books = server.new_database()
        make_books(books)
        given = {"store_url": url, "books": books, "kind": "postgres", "count": ORDERS}
        child = processes.start(works, environment={"DETENT_STOP_AT": "bus.before_commit:2"}, **given)
        eventually(child.stands_still, what="a handler that is about to commit")
        with psycopg.connect(books.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            connection.execute("SELECT pg_reload_conf()")
            child.resume()
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            eventually(lambda: connection.execute(waiting).fetchone()[0], what="a commit that waits")
        server.kill()
        server.start()
        with psycopg.connect(books.replace("+psycopg", ""), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
        assert child.wait() == 0, child.errors()
        assert "OutcomeUnknown" in child.errors()
        check(url, books, "postgres")


@pytest.mark.parametrize("point", ["bus.before_track", "bus.after_track", "bus.before_commit", "bus.after_commit"])
def test_an_inbox_killed_at(tmp_path: Path, processes: Processes, point: str) -> None:
    """`exactly_once`: whoever is given the messages again skips those that took effect, and no others."""
    books = place_of(tmp_path)
    make_books(books)
    child = processes.start(inbox, environment={"DETENT_CRASH_AT": f"{point}:3"}, books=books, count=ORDERS)
    assert child.was_killed(), child.errors()
    assert len(entries(books)) == (3 if point == "bus.after_commit" else 2)
    again = processes.start(inbox, books=books, count=ORDERS)
    assert again.wait() == 0, again.errors()
    assert entries(books) == [("inbox", number) for number in range(ORDERS)]
