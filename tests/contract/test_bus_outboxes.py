"""Every outbox passes the suite that authors of outboxes are given, and what the one in SQL does besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from busdatabases import ASYNC, PLAIN, BusDatabase
from detent.bus import outbox_sql
from detent.bus.messages import Envelope
from detent.bus.outbox_sql import SqlOutbox
from detent.bus.statements import LOOKED_AT, outbox_statements, schema
from detent.bus.unit_of_work import UnitOfWork
from detent.errors import Fenced, Invalid
from detent.testing import OutboxSuite
from detent.testing.outboxes import LONG_S, A, B, _letters


class TestSqlOutbox(OutboxSuite):
    @pytest.fixture(autouse=True, params=PLAIN + ASYNC[:2])
    def _database(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.database = BusDatabase(request.param, tmp_path)

    def outbox(self) -> SqlOutbox:
        return SqlOutbox(self.database.outbox)

    def keeping_outbox(self) -> SqlOutbox:
        return SqlOutbox(self.database.outbox, keep_sent="50ms")

    def unit_of_work(self) -> UnitOfWork:
        return self.database.unit_of_work()

    def close(self) -> Any:
        return self.database.close()

    def test_a_lane_that_was_forgotten_has_no_token_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.save("a")
        zombie = self.claimed()
        self.sent(zombie)
        assert self.within(self._outbox.renew, zombie, 10, LONG_S, 0.0) is None
        monkeypatch.setattr(outbox_sql, "LANE_IDLE_MS", 0)
        self.within(self._outbox.forget, 10)
        assert self.database.execute(f"SELECT * FROM {self.database.outbox}_lanes") == []
        self.save("b")
        assert self.claimed().token > zombie.token
        with pytest.raises(Fenced):
            self.within(self._outbox.release, zombie)

    def test_a_lane_that_is_used_is_not_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox_sql, "LANE_IDLE_MS", 0)
        self.save("a")
        claim = self.claimed()
        self.sent(claim)
        self.within(self._outbox.forget, 10)
        assert self.within(self._outbox.renew, claim, 10, LONG_S, 0.0) is None

    def test_a_row_that_somebody_has_spoilt_is_set_aside(self) -> None:
        self.save("abcde")
        for letter, headers in zip("abcd", ("no json", "[1]", '{"a": 1}', "[" * 100_000), strict=True):
            spoil = f"SET headers = '{headers}' WHERE message_id = '{letter}'"
            self.database.execute(f"UPDATE {self.database.outbox} {spoil}")
        assert _letters(self.claim(limit=1)) == ["e"]
        found = self.within(self._outbox.set_aside, 10)
        assert [one.envelope.id for one in found] == ["a", "b", "c", "d"]
        assert all("no headers" in one.error for one in found)

    @pytest.mark.parametrize("body", ["'text by hand'", "7"])
    def test_a_body_that_is_none_is_set_aside(self, body: str) -> None:
        """SQLite takes anything for bytes."""
        if self.database.dialect != "sqlite":
            pytest.skip("PostgreSQL takes bytes only")
        self.save("ab")
        self.save("c", B)
        self.database.execute(f"UPDATE {self.database.outbox} SET body = {body} WHERE message_id = 'a'")
        assert _letters(self.claim()) == ["b"]
        assert _letters(self.claim()) == ["c"]
        (found,) = self.within(self._outbox.set_aside, 10)
        assert (found.envelope.id, found.envelope.headers) == ("a", {})
        assert "not bytes" in found.error

    @pytest.mark.parametrize("column", ["leased_until", "retry_at"])
    def test_a_lane_that_was_written_by_a_clock_ahead_is_free(self, column: str) -> None:
        self.save("a")
        claim = self.claimed()
        self.sent(claim)
        self.within(self._outbox.release, claim)
        year_ms = 365 * 86_400_000
        self.database.execute(f"UPDATE {self.database.outbox}_lanes SET {column} = leased_until + {year_ms}")
        self.save("b")
        assert _letters(self.claim()) == ["b"]
        assert self.claim() is None

    def test_lanes_behind_many_messages_of_others_are_found(self) -> None:
        """And each has its turn."""
        crowd = "".join(chr(ord("A") + number) for number in range(LOOKED_AT // 2 + 1))
        for lane in ("queue:busy", "queue:z busy"):
            self.save(crowd, lane)
            assert self.claimed(limit=1).lane == lane
        lanes = [f"queue:{number}" for number in range(5)] + ["queue:zz"]
        for lane in lanes:
            self.save("a", lane)
        taken = []
        for _ in range(2 * len(lanes)):
            claim = self.claimed()
            taken.append(claim.lane)
            self.within(self._outbox.release, claim)
        assert sorted(set(taken)) == lanes
        assert {self.claimed().lane for _ in lanes} == set(lanes)
        assert self.claim() is None


class TestTables:
    """Migrations, and plans."""

    @pytest.fixture(params=PLAIN)
    def database(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        database = BusDatabase(request.param, tmp_path)
        yield database
        database.close()

    def test_tables_of_a_migration_are_those_that_are_made(self, database: BusDatabase) -> None:
        made = schema(database.dialect, tracker=database.handled, outbox=database.outbox)
        for statement in made.split(";\n"):
            if statement:
                database.execute(statement)
        unit = database.unit_of_work().begin()
        try:
            SqlOutbox(database.outbox).prepare(unit)
            SqlOutbox(database.outbox).save(unit, [Envelope("1", A, {}, b"", None)])
            unit.commit()
        finally:
            unit.close()
        assert database.execute(f"SELECT count(*) FROM {database.outbox}")[0][0] == 1

    def test_statements_use_the_indexes(self, database: BusDatabase) -> None:
        """Whatever waits, claiming does not look at all of it."""
        unit = database.unit_of_work().begin()
        SqlOutbox(database.outbox).prepare(unit)
        unit.commit()
        unit.close()
        statements = outbox_statements(database.dialect, database.outbox)
        values = {
            ":ahead": "0",
            ":lease": "1",
            ":limit": "10",
            ":lanes": "'[]'",
            ":lane": "'a'",
            ":after": "''",
            ":positions": "'[1]'",
            ":age": "0",
        }
        asked = [statements.read, statements.remove, statements.forget]
        if database.dialect == "sqlite":
            asked += [statements.take, statements.take_after]
        else:
            asked += [statements.candidates, statements.candidates_after]
        for statement in asked:
            for name, value in values.items():
                statement = statement.replace(name, value)
            assert _scans(database, statement) == [], statement


def _scans(database: BusDatabase, statement: str) -> list[str]:
    """Steps of a plan that look at a whole table of messages."""
    if database.dialect == "sqlite":
        found = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}")]
        return [
            line for line in found if line.startswith(("SCAN o ", f"SCAN {database.outbox}")) and "INDEX" not in line
        ]
    database.execute(
        f"INSERT INTO {database.outbox} (lane, message_id, headers, body, visible_at, saved_at) "
        "SELECT 'queue:' || n % 7, n, '{}', '', CASE n % 5 WHEN 0 THEN 9999999999999 END, 0 "
        "FROM generate_series(1, 5000) n"
    )
    database.execute(f"ANALYZE {database.outbox}")
    found = [row[0] for row in database.execute(f"EXPLAIN {statement}")]
    return [line for line in found if f"Seq Scan on {database.outbox}" in line and "_lanes" not in line]


def test_sqlite_commits_to_one_file_at_a_time() -> None:
    with pytest.raises(Invalid, match="leave the schema out"):
        schema("sqlite", outbox="other.outbox")
    assert '"shop"."outbox"' in schema("postgresql", outbox="shop.outbox")
    with pytest.raises(Invalid, match="mysql"):
        schema("mysql")


def test_tables_are_not_those_of_others() -> None:
    with pytest.raises(Invalid, match="cannot be both"):
        schema("sqlite", tracker="same", outbox="SAME")
    with pytest.raises(Invalid, match="lanes of another outbox"):
        SqlOutbox("outbox_lanes")
    with pytest.raises(Invalid, match="names of consumers"):
        schema("postgresql", tracker="detent_consumers")
