"""Every tracker passes the suite that authors of trackers are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from busdatabases import KINDS, BusDatabase
from detent.bus.idempotency import InMemoryTracker
from detent.bus.tracker_sql import SqlTracker, enter_consumer
from detent.bus.unit_of_work import UnitOfWork
from detent.errors import Invalid
from detent.testing import TrackerSuite


class TestInMemoryTracker(TrackerSuite):
    is_lasting = False

    def tracker(self) -> InMemoryTracker:
        return InMemoryTracker()


class TestSqlTracker(TrackerSuite):
    @pytest.fixture(autouse=True, params=KINDS)
    def _database(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.database = BusDatabase(request.param, tmp_path)

    def tracker(self) -> SqlTracker:
        return SqlTracker(self.database.handled)

    def forgetful_tracker(self) -> SqlTracker:
        return SqlTracker(self.database.handled, retention="0s")

    def broken_tracker(self) -> SqlTracker:
        return SqlTracker("nowhere")

    def unit_of_work(self) -> UnitOfWork:
        return self.database.unit_of_work()

    def close(self) -> Any:
        return self.database.close()

    def test_a_name_belongs_to_one_place(self) -> None:
        name = f"it's {self.database.handled}"
        for place in ("queue billing", "queue billing", None):
            self._in_unit(lambda unit, place=place: self._tracker.prepare(name, place, unit))
        with pytest.raises(Invalid, match=r"Rename one of them.*DELETE FROM .*it''s"):
            self._in_unit(lambda unit: self._tracker.prepare(name, "queue shipping", unit))
        with pytest.raises(Invalid, match="queue billing"):
            self._in_unit(lambda unit: enter_consumer(unit.sql, name, "elsewhere", table=self.database.handled))

    def test_only_a_mark_that_is_there_is_a_duplicate(self) -> None:
        """Another constraint that is broken is an error: its message would be lost as a duplicate."""
        table = self.database.handled
        self.database.execute(f"CREATE UNIQUE INDEX {table}_other ON {table} (message_id)")
        assert self.handle("1", "billing")
        with pytest.raises(Exception, match=r"(?i)unique"):
            self.handle("1", "shipping")


class TestSqlTrackerElsewhere(TrackerSuite):
    """Marks in a database of their own are written after the commit."""

    waits = False

    @pytest.fixture(autouse=True)
    def _database(self, tmp_path: Path) -> None:
        self.url = f"sqlite:///{tmp_path}/marks.db"
        self.made: list[SqlTracker] = []

    def tracker(self) -> SqlTracker:
        return self._made(SqlTracker(engine=self.url))

    def forgetful_tracker(self) -> SqlTracker:
        return self._made(SqlTracker(engine=self.url, retention="0s"))

    def broken_tracker(self) -> SqlTracker:
        return self._made(SqlTracker("nowhere", engine=self.url))

    def _made(self, tracker: SqlTracker) -> SqlTracker:
        self.made.append(tracker)
        return tracker

    def close(self) -> None:
        for tracker in self.made:
            tracker.close()

    def test_it_says_that_it_is_not_in_the_transaction(self) -> None:
        assert not self._tracker.is_transactional
        assert self._tracker.place == self.url
        assert SqlTracker().is_transactional
        assert SqlTracker().place is None

    def test_an_engine_of_the_users_is_left_open(self) -> None:
        engine = sqlalchemy.create_engine(self.url)
        tracker = SqlTracker(engine=engine)
        assert self.handle("1", tracker=tracker)
        tracker.close()
        assert not self.handle("1", tracker=tracker)
        engine.dispose()


def test_marks_need_a_transaction_of_a_database() -> None:
    with pytest.raises(Invalid, match="SqlAlchemyUnitOfWork"):
        SqlTracker().track("billing", "1", None)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "a.b.c", "x" * 49, "1a", "a;", None])
def test_what_is_no_name_of_a_table_is_refused(name: Any) -> None:
    with pytest.raises(Invalid, match="not the name of a table"):
        SqlTracker(name)
