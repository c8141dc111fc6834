"""The demo's check: everything in its place is right, and no planted fault escapes it."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

pytest.importorskip("duckdb")

from detent.demo.check import CheckedPlace, Judge, Verdict
from detent.demo.orders import order

COUNTS = [40, 40, 20]
"""Orders by producer. Those of the last one come in no order."""

BODIES = [order(producer, number) for producer, count in enumerate(COUNTS) for number in range(count)]
PAID = [body for body in BODIES if json.loads(body)["amount"] > 0]


def judged(bodies: list[bytes], fate: str | None = None) -> Verdict:
    judge = Judge(COUNTS, ordered=2)
    judge.look("journal", pa.table({"place": range(len(bodies)), "body": pa.array(bodies, pa.binary())}), fate)
    return judge.verdict()


def only(verdict: Verdict) -> CheckedPlace:
    (place,) = verdict.places
    return place


def test_what_was_placed_is_what_should_be_there() -> None:
    verdict = judged(BODIES)
    assert verdict.is_right
    assert (only(verdict).expected, only(verdict).found, verdict.lost, verdict.duplicated) == (100, 100, 0, 0)


def test_the_orders_of_one_journal_are_those_of_its_fate() -> None:
    assert 0 < len(PAID) < len(BODIES)
    assert judged(PAID, "paid").is_right
    assert judged([body for body in BODIES if body not in PAID], "rejected").is_right
    assert only(judged(BODIES, "paid")).strange == len(BODIES) - len(PAID)


def test_a_planted_duplicate_is_seen() -> None:
    verdict = judged([*BODIES, BODIES[-1]])
    assert not verdict.is_right
    assert (verdict.lost, verdict.duplicated) == (0, 1)


def test_a_planted_loss_is_seen() -> None:
    verdict = judged(BODIES[:30] + BODIES[31:])
    assert not verdict.is_right
    assert (verdict.lost, verdict.duplicated) == (1, 0)


def test_a_wrong_amount_is_seen() -> None:
    wrong = json.loads(BODIES[7])
    wrong["amount"] += 1
    verdict = judged([*BODIES[:7], json.dumps(wrong).encode(), *BODIES[8:]])
    assert not verdict.is_right
    place = only(verdict)
    assert (place.wrong, place.cents_found - place.cents_expected) == (1, 1)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b'{"id": "x"}', b'{"id": 999}', b'{"id": 5000000000}'])
def test_what_is_no_order_is_strange(body: bytes) -> None:
    verdict = judged([*BODIES, body])
    assert not verdict.is_right
    assert only(verdict).strange == 1


def test_orders_of_a_producer_in_the_wrong_order_are_seen() -> None:
    swapped = [BODIES[1], BODIES[0], *BODIES[2:]]
    assert only(judged(swapped)).disordered == 1
    assert not judged(swapped).is_right


def test_producers_may_be_mixed_and_rush_orders_come_in_any_order() -> None:
    mixed = [body for pair in zip(BODIES[:40], BODIES[40:80], strict=True) for body in pair]
    assert judged(mixed + BODIES[:79:-1]).is_right


def test_an_order_is_lost_once_however_many_places_miss_it() -> None:
    judge = Judge(COUNTS, ordered=2)
    for name in ("one", "two"):
        bodies = BODIES[1:]
        judge.look(name, pa.table({"place": range(len(bodies)), "body": pa.array(bodies, pa.binary())}), None)
    verdict = judge.verdict()
    assert (verdict.lost, [place.lost for place in verdict.places]) == (1, [1, 1])


def test_the_rows_of_a_table_have_no_order() -> None:
    rows = [json.loads(body) for body in reversed(PAID)]
    columns = {"id": [row["id"] for row in rows], "amount": [row["amount"] for row in rows]}
    table = pa.table({**columns, "place": pa.nulls(len(rows), pa.int64())})
    judge = Judge(COUNTS, ordered=2)
    judge.look("table", table, "paid", is_ordered=False)
    assert judge.verdict().is_right
    judge = Judge(COUNTS, ordered=2)
    judge.look("table", table.slice(1), "paid", is_ordered=False)
    assert judge.verdict().lost == 1
