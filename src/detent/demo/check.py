"""``python -m detent.demo.check URL TABLE COUNT...``: counts what arrived, in a process of its own.

It shares no code with the processes that wrote. What should be there is computed here once more from the numbers of
orders alone; what is there is read as Arrow, from the journals and from the Delta table, and compared in DuckDB.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

COLUMNS: Final = ("expected", "found", "lost", "duplicated", "strange", "wrong", "disordered")

_EXPECTED: Final = """
CREATE TABLE expected AS
SELECT producer, id, amount, CASE WHEN amount > 0 THEN 'paid' ELSE 'rejected' END AS fate
FROM (SELECT producer, id, id * 7919 % 20011 - 1000 AS amount
      FROM (SELECT p AS producer, p * 1000000000 + unnest(range(n)) AS id
            FROM (SELECT unnest(?::BIGINT[]) AS n, generate_subscripts(?::BIGINT[], 1) - 1 AS p)))
"""
"""All orders: how much each one is, and whether it is paid."""

_FROM_ROWS: Final = "CREATE OR REPLACE TEMP TABLE found AS SELECT place, id, amount FROM rows"
_FROM_MESSAGES: Final = """
CREATE OR REPLACE TEMP TABLE found AS
SELECT place, TRY_CAST(said->>'id' AS BIGINT) AS id, TRY_CAST(said->>'amount' AS BIGINT) AS amount
FROM (SELECT place, TRY_CAST(TRY(decode(body)) AS JSON) AS said FROM rows)
"""
"""A body that is not an order has no id, and is strange."""

_FAULTS: Final = """
CREATE OR REPLACE TEMP TABLE lost AS SELECT id FROM wanted ANTI JOIN found USING (id);
CREATE OR REPLACE TEMP TABLE doubled AS SELECT id FROM found WHERE id IS NOT NULL GROUP BY id HAVING count(*) > 1;
INSERT INTO all_lost FROM lost;
INSERT INTO all_doubled FROM doubled;
"""

_COUNTS: Final = {
    "expected": "SELECT count(*) FROM wanted",
    "found": "SELECT count(*) FROM found",
    "lost": "SELECT count(*) FROM lost",
    "duplicated": "SELECT count(*) FROM doubled",
    "strange": "SELECT count(*) FROM found ANTI JOIN wanted USING (id)",
    "wrong": "SELECT count(*) FROM found JOIN wanted USING (id) WHERE found.amount IS DISTINCT FROM wanted.amount",
    "disordered": """SELECT count(*) FROM (
        SELECT id < lag(id) OVER (PARTITION BY id // 1000000000 ORDER BY place) AS is_back FROM found
        WHERE id // 1000000000 < $ordered) WHERE is_back""",
    "cents_expected": "SELECT coalesce(sum(amount), 0)::BIGINT FROM wanted",
    "cents_found": "SELECT coalesce(sum(amount), 0)::BIGINT FROM found",
}


@dataclass(frozen=True)
class CheckedPlace:
    """One of the places where orders should be, and what is there: orders that are missing, that are there more than
    once, that do not belong there, that have another amount, and that stand before an older one of their producer."""

    name: str
    expected: int
    found: int
    lost: int
    duplicated: int
    strange: int
    wrong: int
    disordered: int
    cents_expected: int
    cents_found: int

    @property
    def is_right(self) -> bool:
        """Whether everything is there, once, as it should be."""
        faults = self.lost or self.duplicated or self.strange or self.wrong or self.disordered
        return not faults and self.cents_found == self.cents_expected


@dataclass(frozen=True)
class Verdict:
    """What was found. `lost` and `duplicated` are orders, each counted once, wherever it is missing or there twice."""

    places: tuple[CheckedPlace, ...]
    lost: int
    duplicated: int

    @classmethod
    def from_json(cls, text: str) -> Verdict:
        """The verdict that another process printed."""
        said = json.loads(text)
        return cls(tuple(CheckedPlace(**place) for place in said["places"]), said["lost"], said["duplicated"])

    @property
    def is_right(self) -> bool:
        """Whether every order took effect exactly once."""
        return all(place.is_right for place in self.places)


class Judge:
    """Knows which orders there should be. The first `ordered` producers place theirs in order."""

    def __init__(self, counts: list[int], ordered: int) -> None:
        import duckdb

        # Nothing is to be fetched: what is needed comes with the package.
        self._duck = duckdb.connect(config={"autoinstall_known_extensions": "false"})
        self._duck.execute(_EXPECTED, [counts, counts])
        self._duck.execute("CREATE TABLE all_lost (id BIGINT); CREATE TABLE all_doubled (id BIGINT)")
        self._ordered = ordered
        self._places: list[CheckedPlace] = []

    def look(self, name: str, rows: Any, fate: str | None, *, is_ordered: bool = True) -> None:
        """Compare what is at one place: an Arrow table with the columns place (the order of the rows), and id and
        amount, or body if it is messages. `fate` is "paid" or "rejected" if only such orders belong there."""
        duck = self._duck
        duck.register("rows", rows)
        duck.execute(_FROM_MESSAGES if "body" in rows.column_names else _FROM_ROWS)
        duck.unregister("rows")
        duck.execute("CREATE OR REPLACE TEMP TABLE wanted AS FROM expected WHERE fate = coalesce(?, fate)", [fate])
        duck.execute(_FAULTS)
        counted = {key: self._number(query, self._ordered if is_ordered else 0) for key, query in _COUNTS.items()}
        self._places.append(CheckedPlace(name, **counted))

    def verdict(self) -> Verdict:
        """All places together."""
        lost = self._number("SELECT count(DISTINCT id) FROM all_lost")
        doubled = self._number("SELECT count(DISTINCT id) FROM all_doubled")
        return Verdict(tuple(self._places), lost, doubled)

    def _number(self, query: str, ordered: int = 0) -> int:
        parameters = {"ordered": ordered} if "$ordered" in query else None
        number: int = self._duck.execute(query, parameters).fetchall()[0][0]
        return number


def messages(store: Any, journal: str) -> Any:
    """The bodies of a journal, in order."""
    import pyarrow as pa

    bodies = pa.chunked_array([batch.column("body") for batch in store.journal(journal).read_batches()], pa.binary())
    return pa.table({"place": pa.array(range(len(bodies)), pa.int64()), "body": bodies})


def table_rows(path: str) -> Any:
    """The rows of the Delta table; none if it was never made. A table has no order."""
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        rows = DeltaTable(path).to_pyarrow_table(columns=["id", "amount"])
    except TableNotFoundError:
        rows = pa.table({"id": pa.array([], pa.int64()), "amount": pa.array([], pa.int64())})
    return rows.append_column("place", pa.nulls(rows.num_rows, pa.int64()))


def check(url: str, table: str, counts: list[int]) -> Verdict:
    """Look at all places. The last of the producers is the one whose orders go through a queue, in no order."""
    import detent

    judge = Judge(counts, ordered=len(counts) - 1)
    with detent.open(url, role="reader") as store:
        judge.look("journal orders", messages(store, "orders"), None)
        judge.look("journal paid", messages(store, "paid"), "paid")
        judge.look("journal rejected", messages(store, "rejected"), "rejected")
    judge.look("table paid", table_rows(table), "paid", is_ordered=False)
    return judge.verdict()


if __name__ == "__main__":
    print(json.dumps(asdict(check(sys.argv[1], sys.argv[2], [int(count) for count in sys.argv[3:]]))))
