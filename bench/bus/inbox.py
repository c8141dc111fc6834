"""What `@exactly_once` adds to a function that writes a row and commits it, one call after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

from sqlalchemy.orm import Session, sessionmaker

from bench.bus import job
from bench.bus.suite import SUITE
from bench.bus.throughput import database_url
from bench.harness import INFORMATIVE, Plan, Row, Size, in_turn
from bench.journal.timing import per_call_us
from bench.place import Place
from detent.bus import exactly_once

SLICE = 50
"""Calls of one side before it is the other's turn."""


def bare(sessions: sessionmaker[Session]) -> Callable[[int], None]:
    def place(number: int) -> None:
        with sessions() as session:
            job.enter(session, number, "customer", 1.0)
            session.commit()

    return place


def once(sessions: sessionmaker[Session]) -> Callable[[int], None]:
    @exactly_once(sessions, consumer=job.ORDERS, id=lambda number: f"order-{number}")
    def place(number: int, session: Session) -> None:
        job.enter(session, number, "customer", 1.0)

    return place


@SUITE.measurement("inbox")
@contextmanager
def inbox(place: Place, size: Size) -> Iterator[Plan]:
    slices = size.of(10, 4)
    with ExitStack() as stack:
        server = stack.enter_context(database_url(place))
        sides = {}
        for kind in job.DATABASES:
            opened = {
                name: lambda kind=kind, make=make: _opened(place, make, kind, f"{server}")
                for name, make in MADE.items()
            }
            sides[kind] = in_turn(opened, slices)
        yield Plan(sides, _rows())


MADE = {"bare": bare, "once": once}


@contextmanager
def _opened(
    place: Place, make: Callable[[sessionmaker[Session]], Callable[[int], None]], kind: str, server: str
) -> Iterator[Callable[[], float]]:
    """A slice of calls, each for another message. On the one server both sides write to the same table."""
    numbers = count()
    with place.fresh() as folder, job.books(job.url_of(kind, folder, server)) as sessions:
        function = make(sessions)
        yield lambda: per_call_us(lambda: function(next(numbers)), SLICE)


def _rows() -> list[Row]:
    note = "one call after another; other: the same function with a session of its own that it commits"
    return [
        Row(f"@exactly_once on {name}, one call", "us", f"{kind}.once", INFORMATIVE, f"{kind}.bare", note)
        for kind, name in job.DATABASES.items()
    ]
