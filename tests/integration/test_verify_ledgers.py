"""`store verify` on ledgers: a healthy store has no findings, and each kind of damage is named."""

from __future__ import annotations

import pytest

from detent.codec.ledger import (
    INPUTS,
    NO_BATCH,
    PIN,
    PLAN,
    ROW,
    STREAM,
    BatchInputs,
    Declared,
    Pin,
    Plan,
    PlanStep,
    Row,
    key_of,
)
from detent.engine.verify import Counts, Finding
from detent.kv import Batch
from detent.ledger import operations as ops
from detent.verify import verify
from ledgerworld import LedgerWorld

TIME = 1_700_000_000_000


@pytest.fixture
def world() -> LedgerWorld:
    """A store with every kind of record of ledgers."""
    world = LedgerWorld()
    world.append("j", b"x")
    for batch in range(20):
        world.enter(batch, name="orders é", query="q", run=f"r{batch}")
    world.enter(0, name="plain", query="")
    world.enter(0, name="reset", run="a")
    world.commit(ops.ResetLedger("reset"))
    world.commit(ops.PinOffsets("p", {"a": 1, "b/c": ops.OFFSET_MAX}), ops.PinOffsets("none", {}))
    world.commit(ops.DeclareStream("stream", {"journal a": 3, "queue é": 1}, {"table /x": 0}))
    for number in range(40):
        digests = [bytes([kind, number]) * 8 for kind in range(3)]
        world.commit(ops.EnterLedger("inputs", "q", number, "", digests[0]))
        world.commit(ops.PlanOffsets("plan", *digests, {"a": number, "b/c": ops.OFFSET_MAX}))
    return world


def run(world: LedgerWorld) -> tuple[list[Finding], Counts]:
    findings: list[Finding] = []
    check = verify(world.writer)
    while True:
        try:
            findings.append(next(check))
        except StopIteration as end:
            return findings, end.value


def write(world: LedgerWorld, key: bytes, value: bytes) -> None:
    batch = Batch()
    batch.put(key, value)
    world.writer.commit(batch)


def test_a_healthy_store_has_no_findings(world: LedgerWorld) -> None:
    findings, counts = run(world)
    assert findings == []
    assert (counts.ledgers, counts.pins, counts.journals) == (4, 2, 1)


WHOLE = Row(TIME, TIME, 0, 1, 0, "q", "r", ())
PLAN_STEP = PlanStep(TIME, bytes(16), bytes(16), bytes(16), {"a": 1})
DAMAGE: dict[str, tuple[bytes, bytes, str]] = {
    "inputs without a row": (
        key_of(INPUTS, "x"),
        BatchInputs(((0, bytes(16)),)).encode(),
        "batch -1 as the ledger's highest",
    ),
    "inputs above the row": (
        key_of(INPUTS, "reset"),
        BatchInputs(((3, bytes(16)),)).encode(),
        "batch -1 as the ledger's highest",
    ),
    "inputs out of order": (
        key_of(INPUTS, "x"),
        BatchInputs(((1, bytes(16)), (0, bytes(16)))).encode(),
        "out of order",
    ),
    "inputs of nothing": (key_of(INPUTS, "plain"), BatchInputs(()).encode(), "malformed inputs of a ledger"),
    "a stream of a number too high": (
        key_of(STREAM, "x"),
        Declared(TIME, {"journal a": 1 << 63}, {}).encode(),
        "is not the number of",
    ),
    "a stream out of order": (
        key_of(STREAM, "x"),
        Declared(TIME, {"b": 1}, {"b": 1, "c": 2}).encode().replace(b"b", b"d", 3),
        "out of order",
    ),
    "a plan without steps": (key_of(PLAN, "x"), Plan(()).encode(), "no steps"),
    "a plan of no time": (key_of(PLAN, "x"), Plan((PLAN_STEP._replace(planned_ms=-1),)).encode(), "is not a time"),
    "a plan that ends early": (key_of(PLAN, "x"), Plan((PLAN_STEP,)).encode()[:-1], "a malformed plan: plan"),
    "a row that ends early": (key_of(ROW, "x"), WHOLE.encode()[:-1], "a malformed ledger: ledger row"),
    "a row that goes on": (key_of(ROW, "x"), WHOLE.encode() + b"\0", "follow the last field"),
    "counts that disagree": (key_of(ROW, "x"), WHOLE._replace(entries=2).encode(), "2 entries, and batch 0"),
    "a reset row with a query": (
        key_of(ROW, "x"),
        WHOLE._replace(batch=NO_BATCH, entries=0, run="").encode(),
        "although nothing is entered",
    ),
    "a run that is there twice": (key_of(ROW, "x"), WHOLE._replace(replaced=("r",)).encode(), "replaced runs"),
    "a query that nobody enters": (key_of(ROW, "x"), WHOLE._replace(query="a\nb").encode(), "is no query"),
    "a run that nobody has": (key_of(ROW, "x"), WHOLE._replace(replaced=("a\0b",)).encode(), "is no run"),
    "a row from no time": (key_of(ROW, "x"), WHOLE._replace(updated_ms=-1).encode(), "is not a time"),
    "a name that nobody gives": (key_of(ROW, "a\nb"), WHOLE.encode(), "is no ledger name"),
    "a name that is not text": (ROW.key(b"\xff"), WHOLE.encode(), "is not UTF-8"),
    "no name": (ROW.raw, WHOLE.encode(), "has no name"),
    "a pin that ends early": (key_of(PIN, "x"), Pin(TIME, {"a": 1}).encode()[:-1], "a malformed pin: pin"),
    "a pin of no journal": (key_of(PIN, "x"), Pin(TIME, {"a b": 1}).encode(), "is no journal name"),
    "a pin of no offset": (key_of(PIN, "x"), Pin(TIME, {"a": ops.OFFSET_MAX + 1}).encode(), "is not an offset"),
    "a pin from no time": (key_of(PIN, "x"), Pin(1 << 62, {}).encode(), "is not a time"),
    "a pin without a name": (PIN.raw, Pin(TIME, {}).encode(), "has no name"),
    "a record of another type": (b"\x08\x01\x03x", b"", "no known version and type (ledger)"),
    "a record of another version": (b"\x08\x02\x01x", WHOLE.encode(), "no known version and type (ledger)"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named(world: LedgerWorld, what: str) -> None:
    key, value, problem = DAMAGE[what]
    write(world, key, value)
    (finding,), counts = run(world)
    assert finding.where == f"record {key.hex()}"
    assert problem in finding.problem
    assert counts.journals == 1, "the rest was checked too"
