"""Any history of queues, their clients, crashes and failed commits: the machine does what a plain model says.

Each step is a transaction, or several in one group, with some time before it and perhaps a fault in its commit. After
each one the machine's memory must be the model's, its counters and timers must fit, and what was answered must hold. A
restart must find exactly what was there. In some histories all limits are tiny, so that buckets, segments, checkpoints
and steps end often. With DETENT_SOAK=1 there are many more histories.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any
from unittest import mock

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import queuemodel
from detent.codec import queue as records
from detent.codec.published import FOREVER
from detent.codec.queue import NOT_KEPT, Config
from detent.engine import Operation
from detent.errors import DetentError, Unavailable
from detent.journal import operations as journal_ops
from detent.queue import checkpoint, holdings, housekeeping, places, publishing
from detent.queue import operations as ops
from detent.queue import reader_operations as reader_ops
from detent.queue.holdings import LIVE
from queuemodel import AVAILABLE, FAILED, IN_FLIGHT, Model
from world import World

SETTINGS = settings(
    max_examples=3_000 if os.environ.get("DETENT_SOAK") else 60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)

NAMES = ("orders", "gold", "all", "a")
READERS = ("spark", "é")
WINDOWS = (0, 2_000, ops.DEDUP_WINDOW_MS)
START = {"all": "true", "gold": 'headers.tier == "gold"', "a": "has(headers.a)"}
BASES = (
    ops.Settings(),
    ops.Settings(max_attempts=2, backoff_ms=400, backoff_max_ms=1_000),
    ops.Settings(max_attempts=2, backoff_ms=0, lease_ms=1_000, done_retention_s=2),
    ops.Settings(max_attempts=3, backoff_ms=400, backoff_max_ms=1_000, group_header="group"),
    ops.Settings(max_attempts=2, backoff_ms=0, lease_ms=1_000, done_retention_s=2, group_header="group"),
    ops.Settings(max_attempts=0, backoff_ms=0, lease_ms=1_000, group_header="group", group_overlap=True),
    ops.Settings(max_attempts=3, backoff_ms=400, lease_ms=1_000, group_header="group", group_fair=True),
)
EVERYTHING = (
    ops.Settings(filter="true"),
    ops.Settings(filter='headers.tier == "gold"'),
    ops.Settings(),
    ops.Settings(filter="true", group_header="group"),
)
HEADERS = (
    {},
    {"queue": "orders"},
    {"queue": "orders", "priority": "3"},
    {"queue": "orders", "priority": "200"},
    {"queue": "orders", "tier": "gold"},
    {"tier": "gold", "queue": "gold", "urgency": "1", "priority": "0"},
    {"a": "1", "tier": "lead", "urgency": "7"},
    {"queue": "all", "a": "2"},
    {"queue": "orders", "group": "x"},
    {"queue": "orders", "group": "x", "a": "1"},
    {"queue": "orders", "group": "x", "priority": "3"},
    {"queue": "orders", "group": "x", "priority": "200", "tier": "gold"},
    {"queue": "orders", "group": "y", "priority": "3", "a": "y"},
    {"queue": "orders", "group": "", "tier": "gold"},
)
TOO_LONG = {"queue": "orders", "group": "é" * 65, "a": "x"}
WRONG_PRIORITY = {"queue": "orders", "priority": "no", "urgency": "256", "tier": "gold"}
TIMES = (*[0] * 16, 1, 1, 400, 400, 1_000, 1_000, 2_000, 6_000, 31_000, 3_700_000, 2 * 86_400_000)
SETTINGS_CHANGES = (
    ops.Settings(filter="true"),
    ops.Settings(filter='headers.tier == "gold"'),
    ops.Settings(filter="has(headers.a)"),
    ops.Settings(max_attempts=1),
    ops.Settings(max_attempts=2),
    ops.Settings(max_attempts=0),
    ops.Settings(lease_ms=400),
    ops.Settings(lease_ms=2_000, lease_max_ms=3_000),
    ops.Settings(backoff_ms=0),
    ops.Settings(backoff_ms=400, backoff_max_ms=1_000),
    ops.Settings(done_retention_s=0),
    ops.Settings(done_retention_s=2),
    ops.Settings(done_retention_s=NOT_KEPT),
    ops.Settings(failed_policy="discard"),
    ops.Settings(failed_policy="keep"),
    ops.Settings(priority_header="urgency"),
    ops.Settings(group_header="group"),
    ops.Settings(group_header="a"),
    ops.Settings(group_header=""),
    ops.Settings(group_overlap=True),
    ops.Settings(group_overlap=False),
    ops.Settings(group_fair=True),
    ops.Settings(group_fair=False),
    ops.Settings(labels={"team": "a", "é": ""}),
    ops.Settings(labels={}),
    *(ops.Settings(dead_letter=name) for name in (*NAMES, "")),
    *(ops.Settings(dead_letter_retention_s=kept_s) for kept_s in (0, 3, 3, 60)),
    ops.Settings(paused=True),
    ops.Settings(paused=True),
    ops.Settings(paused=False),
    ops.Settings(paused=False),
)
SMALL: dict[Any, dict[str, int]] = {
    holdings: {"CHUNK": 8, "SEGMENT_MESSAGES": 8},
    checkpoint: {"RECORDS_MAX": 6},
    records: {"DONE_PER_RECORD": 2},
    housekeeping: {"CATCH_UP_STEP": 3, "COLLECT_RECORDS": 3, "COLLECT_BUCKETS": 1},
    publishing: {"RECORD_MESSAGES_MAX": 3},
    ops: {"STEP_MESSAGES": 2},
    places: {"FAIR_EVERY": 3},
}

names = st.sampled_from(NAMES)
elapsed = st.sampled_from(TIMES)
faults = st.sampled_from(("", "", "", "", "", "", "", "before", "after", "again"))
numbers = st.integers(0, 1_000)
leases = st.sampled_from((None, 1, 500, 60_000))
publishes = st.fixed_dictionaries(
    {
        "headers": st.lists(st.sampled_from((*HEADERS * 3, TOO_LONG, WRONG_PRIORITY)), min_size=1, max_size=5),
        "shared": st.booleans(),
        "keys": st.lists(st.sampled_from((None, "k1", "k2", "k3")), max_size=5),
        "delay_ms": st.sampled_from((0, 0, 0, 1, 700, 40_000)),
        "retention_s": st.sampled_from((*[4 * 86_400] * 5, 0, 0, 1, 1, 2, 20)),
        "uri": st.booleans(),
        "to": st.sampled_from((*[""] * 5, "orders", "orders", "gold")),
    }
)
RECEIPTS = st.tuples(
    st.sampled_from(("ack", "fail", "extend", "unclaim")), st.tuples(st.lists(numbers, min_size=1, max_size=4), leases)
)
READING = st.tuples(
    st.sampled_from(("open", "assign", "assign", "assign", "ack assigned", "read", "release", "delete reader")),
    st.tuples(
        names,
        st.sampled_from(READERS),
        st.sampled_from((-1, 0, 0, 0, 1, 1, 1, 1, 2)),
        st.integers(1, 12),
        st.sampled_from((0, 0, 0, 1, 30)),
        st.sampled_from((0, 0, 0, 0, 0, 1)),
    ),
)
STEP = st.one_of(
    st.tuples(st.just("publish"), publishes),
    st.tuples(st.just("claim"), st.tuples(names, st.integers(1, 12), leases)),
    RECEIPTS,
    RECEIPTS,
    RECEIPTS,
    READING,
    READING,
    st.tuples(st.just("create"), st.tuples(names, st.integers(0, 3), st.booleans(), st.booleans())),
    st.tuples(st.just("append"), st.none()),
)
REFUSED = st.sampled_from(("", "stale", "conflict", "not found", "invalid"))


class Histories(RuleBasedStateMachine):
    """A store, the model of it, and the model as of the last commit."""

    @initialize(
        exponent=st.sampled_from((0, 1, 1, 3)),
        small=st.booleans(),
        first=st.sets(names),
        dead_letters=st.booleans(),
        kept_s=st.sampled_from((0, 0, 3, 60)),
        base=st.sampled_from(BASES),
        window_ms=st.sampled_from(WINDOWS),
    )
    def open(
        self,
        exponent: int,
        small: bool,
        first: set[str],
        dead_letters: bool,
        kept_s: int,
        base: ops.Settings,
        window_ms: int,
    ) -> None:
        self.patches = contextlib.ExitStack()
        default = Config.__new__.__defaults__
        assert default is not None
        self.patches.callback(setattr, Config.__new__, "__defaults__", default)
        Config.__new__.__defaults__ = (exponent, *default[1:])
        if small:
            for module, constants in SMALL.items():
                for name, value in constants.items():
                    self.patches.enter_context(mock.patch.object(module, name, value))
        self.world = World()
        self.model = Model()
        self.durable = self.model.copy()
        self.receipts: list[tuple[int, int, int]] = []  # all that were ever given: queue, message, delivery
        self.count = 0
        self.world.commit(journal_ops.CreateJournal("j"))
        self.run(ops.SetDedupWindow(window_ms))
        for name in sorted(first | {"orders"}):
            self.run(ops.CreateQueue(name, msgspec.structs.replace(base, filter=START.get(name))))
        if dead_letters and len(self.model.queues) > 1:
            made = sorted(self.model.queues)
            for name, target in zip(made, [*made[1:], made[0]], strict=True):
                self.run(ops.ConfigureQueue(name, ops.Settings(dead_letter=target, dead_letter_retention_s=kept_s)))

    # -- running ------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> Any:
        return self.world.queues

    def pass_time(self, milliseconds: int) -> None:
        self.world.now_ms += milliseconds
        self.world.session = self.world.engine.new_session()

    def settle(self) -> None:
        """What is in memory is durable, unless the clock has done something since the last commit."""
        self.model.sweep({number: queuemodel.held_by(s) for number, s in self.machine.deleted.items()})
        if not self.machine.steps:
            self.durable = self.model.copy()

    def revert(self) -> None:
        """Memory was lost."""
        self.model = self.durable.copy()
        self.settle()

    def run(self, *operations: Operation, fault: str = "") -> list[Any] | None:
        """One transaction: its results, or None if it was refused, as the model says it must."""
        return self.run_group([list(operations)], fault)[0]

    def run_group(self, transactions: list[list[Operation]], fault: str = "") -> list[list[Any] | None]:
        writer = self.world.writer
        requests = [self.world.request(*transactions[0])]
        requests += [self.world.request(*t, answered=requests[0].sequence) for t in transactions[1:]]
        turns = {number: s.turn for number, s in self.machine.by_number.items()}
        writer.fail_before, writer.fail_after = fault == "before", fault == "after"
        tickets = self.world.group(*requests)
        writer.fail_before = writer.fail_after = 0
        outcomes = [ticket.results if ticket.error is None else ticket.error for ticket in tickets]
        if fault == "before" and any(isinstance(outcome, Unavailable) for outcome in outcomes):
            assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
            self.revert()
            return [None] * len(outcomes)
        self.model.turns = turns
        self.model.looked = []
        results = [
            self.compare(operations, outcome, excused=fault == "after")
            for operations, outcome in zip(transactions, outcomes, strict=True)
        ]
        self.settle()
        if fault == "again":
            for request, result in zip(requests, results, strict=True):
                if result is not None and not is_idle(result, self.model.looked):
                    assert self.world.engine.commit(request) == result
        return results

    def compare(self, operations: list[Operation], outcome: Any, *, excused: bool) -> list[Any] | None:
        """Apply a transaction to the model, and compare what it was answered."""
        if not all(isinstance(operation, (journal_ops.Append, journal_ops.CheckHead)) for operation in operations):
            self.model.advance(self.world.now_ms)
        trial = self.model.copy()
        expected: list[Any] | DetentError = []
        try:
            for index, operation in enumerate(operations):
                hint = outcome[index] if isinstance(outcome, list) else None
                expected.append(trial.apply(operation, hint))
        except DetentError as error:
            expected = error
        if isinstance(expected, DetentError):
            assert isinstance(outcome, (type(expected), *((Unavailable,) if excused else ()))), (expected, outcome)
            return None
        if excused and isinstance(outcome, Unavailable) and is_idle(expected, trial.looked):
            return None
        assert outcome == expected, f"{operations} was answered with {outcome!r}"
        self.model = trial
        for result in expected:
            if isinstance(result, ops.ClaimedMessages):
                self.receipts += [
                    (result.queue, message, result.first_delivery + index)
                    for index, message in enumerate(result.messages)
                ]
        return expected

    def tick(self, fault: str = "") -> None:
        """The owner's housekeeping."""
        writer = self.world.writer
        writer.fail_before, writer.fail_after = fault == "before", fault == "after"
        failed = False
        try:
            self.world.engine.tick()
        except Unavailable:
            failed = True
        writer.fail_before = writer.fail_after = 0
        if failed and fault == "before":
            self.revert()
            return
        self.model.advance(self.world.now_ms)
        for queue in self.model.queues.values():
            if queue.cursor is not None and not queue.paused:
                position = self.machine.by_number[queue.number].next_message
                assert position > queue.cursor, "a queue that is behind does not read on"
                self.model.read_on(queue, None if position == LIVE else position)
        self.settle()

    def look(self) -> ops.QueueDescriptions:
        """Changes nothing; but the clock does."""
        self.model.advance(self.world.now_ms)
        described: ops.QueueDescriptions = self.world.commit(ops.DescribeQueues())[0]
        self.model.sweep({number: queuemodel.held_by(s) for number, s in self.machine.deleted.items()})
        return described

    def dump(self) -> dict[str, Any]:
        with self.world.writer.view() as view:
            return queuemodel.dump(self.machine, view)

    # -- operations ---------------------------------------------------------------------------------------------

    def make(self, kind: str, given: Any) -> Operation | None:
        if kind == "publish":
            return self.publish_op(**given)
        if kind == "claim":
            name, count, lease_ms = given
            return ops.Claim(name, count, lease_ms, f"consumer {count}")
        if kind == "create":
            name, number, earliest, exist_ok = given
            return ops.CreateQueue(name, EVERYTHING[number], earliest, exist_ok)
        if kind == "append":
            return journal_ops.Append("j", [b"x"])
        if kind in {"ack", "fail", "extend", "unclaim"}:
            return self.receipt_op(kind, *given)
        return self.reader_op(kind, *given)

    def publish_op(
        self,
        headers: list[dict[str, str]],
        shared: bool,
        keys: list[str | None],
        delay_ms: int,
        retention_s: int,
        uri: bool,
        to: str,
    ) -> ops.Publish:
        count = len(headers)
        if to == "orders" and count > 1:
            headers = [{**each, "queue": to} for each in headers]  # or most of them would be refused
        self.count += count
        bodies = [f"s3://bucket/{self.count - index}".encode() for index in range(count)]
        dedup_keys = (keys + [None] * count)[:count] if keys else None
        return ops.Publish(
            bodies,
            headers[:1] if shared else headers,
            uri,
            delay_ms=delay_ms,
            retention_s=retention_s,
            dedup_keys=dedup_keys,
            to=to,
        )

    def receipt_op(self, kind: str, picks: list[int], lease_ms: int | None) -> Operation | None:
        """Something done with receipts of one queue: mostly ones that are current."""
        if not self.receipts:
            return None
        current = [r for r in self.receipts if self.model.is_current(*r)]
        pool = current if current and picks[0] % 8 else self.receipts[-40:]
        queue = pool[picks[0] % len(pool)][0]
        pool = [receipt for receipt in pool if receipt[0] == queue]
        chosen = list(dict.fromkeys(pool[pick % len(pool)] for pick in picks))
        messages, deliveries = [m for _, m, _ in chosen], [d for _, _, d in chosen]
        if kind == "ack":
            return ops.Ack(queue, messages, deliveries)
        if kind == "unclaim":
            return ops.Unclaim(queue, messages, deliveries)
        if kind == "extend":
            return ops.Extend(queue, messages, deliveries, lease_ms)
        delay_ms = (None, 0, 900, 20_000)[picks[-1] % 4]
        return ops.Fail(queue, messages, deliveries, f"because of {picks[0]}", delay_ms, picks[-1] % 3 == 0)

    def reader_op(
        self, kind: str, name: str, reader: str, shift: int, count: int, bytes_max: int, stale: int
    ) -> Operation:
        """Something that a reader does: mostly where it is, in its own generation."""
        queue = self.model.queues.get(name)
        known = None if queue is None else queue.readers.get(reader)
        if kind == "open":
            return reader_ops.OpenReader(name, reader)
        if kind == "release":
            return reader_ops.ReleaseReader(name, reader)
        if kind == "delete reader":
            return reader_ops.DeleteReader(name, reader)
        acked, generation = (0, 1) if known is None else (known.acked, known.generation - stale)
        at = max(0, acked + shift)
        if kind == "assign":
            return reader_ops.Assign(name, reader, generation, at, count, bytes_max)
        if kind == "ack assigned":
            return reader_ops.AckAssigned(name, reader, generation, at)
        return reader_ops.ReadAssignment(name, reader, generation, at, 0, count)

    def refused_op(self, how: str) -> list[Operation]:
        if how == "stale":
            return [ops.Ack(1, [0], [self.model.next_delivery + 1_000])]
        if how == "conflict":
            return [journal_ops.CheckHead("j", self.model.journal + 1_000)]
        if how == "not found":
            return [ops.Claim("nobody", 1)]
        return [ops.Claim(min(self.model.queues), 0)] if how == "invalid" and self.model.queues else []

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(given=publishes, after=elapsed, fault=faults)
    def publish(self, given: dict[str, Any], after: int, fault: str) -> None:
        self.pass_time(after)
        self.run(self.publish_op(**given), fault=fault)

    @rule(name=names, count=st.integers(1, 12), lease_ms=leases, after=elapsed, fault=faults)
    def claim(self, name: str, count: int, lease_ms: int | None, after: int, fault: str) -> None:
        self.pass_time(after)
        self.run(ops.Claim(name, count, lease_ms, "worker"), fault=fault)

    @rule(count=st.integers(1, 12), lease_ms=leases, fault=faults)
    def claim_what_there_is(self, count: int, lease_ms: int | None, fault: str) -> None:
        name = max(self.model.queues, key=lambda n: len(self.model.queues[n].among(AVAILABLE)), default=None)
        if name is not None:
            self.run(ops.Claim(name, count, lease_ms, "worker"), fault=fault)

    @rule(
        kind=st.sampled_from(("ack", "ack", "fail", "fail", "extend", "unclaim")),
        picks=st.lists(numbers, min_size=1, max_size=5),
        lease_ms=leases,
        after=elapsed,
        fault=faults,
    )
    def use_receipts(self, kind: str, picks: list[int], lease_ms: int | None, after: int, fault: str) -> None:
        operation = self.receipt_op(kind, picks, lease_ms)
        self.pass_time(after)
        if operation is not None:
            self.run(operation, fault=fault)

    @rule(given=READING, after=elapsed, fault=faults)
    def use_reader(self, given: tuple[str, Any], after: int, fault: str) -> None:
        self.pass_time(after)
        operation = self.make(*given)
        assert operation is not None
        self.run(operation, fault=fault)

    @rule(
        reader=st.sampled_from(READERS),
        count=st.integers(1, 12),
        bytes_max=st.sampled_from((0, 0, 30)),
        again=st.booleans(),
        after=elapsed,
        fault=faults,
    )
    def plan(self, reader: str, count: int, bytes_max: int, again: bool, after: int, fault: str) -> None:
        """A query plans its next batch, or finds the one that it planned and did not do."""
        name = max(self.model.queues, key=lambda n: len(self.model.queues[n].among(AVAILABLE)), default=None)
        if name is None:
            return
        self.run(reader_ops.OpenReader(name, reader))
        self.pass_time(after)
        known = self.model.queues[name].readers[reader]
        start = known.acked if again else known.last
        self.run(reader_ops.Assign(name, reader, known.generation, start, count, bytes_max), fault=fault)

    @rule(pick=numbers, after=elapsed, refused=REFUSED, fault=faults)
    def release(self, pick: int, after: int, refused: str, fault: str) -> None:
        """Somebody lets go of a reader that has something."""
        queues = self.model.queues.values()
        held = [(queue.name, name) for queue in queues for name, reader in queue.readers.items() if reader.messages]
        self.pass_time(after)
        if held:
            operation = reader_ops.ReleaseReader(*held[pick % len(held)])
            self.run(operation, *self.refused_op(refused), fault=fault)

    @rule(
        given=publishes,
        count=st.integers(1, 12),
        uses=st.lists(st.one_of(RECEIPTS, RECEIPTS, READING), max_size=5),
        together=st.booleans(),
        after=elapsed,
        refused=REFUSED,
        fault=faults,
    )
    def work(
        self,
        given: dict[str, Any],
        count: int,
        uses: list[tuple[str, Any]],
        together: bool,
        after: int,
        refused: str,
        fault: str,
    ) -> None:
        """Messages come, are claimed, and their receipts are used: in one transaction, or in one for each."""
        self.run(self.publish_op(**given))
        self.claim_what_there_is(count, None, fault)
        self.pass_time(after)
        made = [operation for use in uses if (operation := self.make(*use)) is not None]
        if together and made:
            self.run(*made, *self.refused_op(refused), fault=fault)
            return
        for use in uses:
            operation = self.make(*use)
            if operation is not None:
                self.run(operation)

    @rule(
        steps=st.lists(STEP, min_size=1, max_size=4), refused=REFUSED, after=elapsed, look=st.booleans(), fault=faults
    )
    def transact(self, steps: list[tuple[str, Any]], refused: str, after: int, look: bool, fault: str) -> None:
        """All of it, or nothing at all."""
        operations = [operation for step in steps if (operation := self.make(*step)) is not None]
        operations += self.refused_op(refused)
        if not operations:
            return
        self.pass_time(after)
        if look:
            self.look()
        before = self.dump()
        results = self.run(*operations, fault=fault)
        if look and results is None and not fault:
            assert self.dump() == before

    @rule(
        groups=st.lists(st.lists(STEP, min_size=1, max_size=3), min_size=2, max_size=3),
        refused=REFUSED,
        after=elapsed,
        fault=faults,
    )
    def group(self, groups: list[list[tuple[str, Any]]], refused: str, after: int, fault: str) -> None:
        """Several transactions in one commit."""
        made = [[op for step in steps if (op := self.make(*step)) is not None] for steps in groups]
        made[0] += self.refused_op(refused)
        self.pass_time(after)
        made = [operations for operations in made if operations]
        if made:
            self.run_group(made, fault)

    @rule(after=elapsed, fault=faults)
    def keep_house(self, after: int, fault: str) -> None:
        self.pass_time(after)
        self.tick(fault)

    @rule(flushed=st.booleans(), after=elapsed)
    def crash(self, flushed: bool, after: int) -> None:
        """Memory goes; what was committed is all there again."""
        if flushed:
            self.look()
            self.tick()
        self.look()
        exact = not self.machine.steps
        if not exact:
            self.model = self.durable.copy()
        before = self.dump()
        self.world.reopen()
        self.look()
        if exact:
            assert self.dump() == before
        self.pass_time(after)

    @rule(name=names, number=st.integers(0, 3), paused=st.booleans(), earliest=st.booleans(), fault=faults)
    def create(self, name: str, number: int, paused: bool, earliest: bool, fault: str) -> None:
        given = EVERYTHING[number]
        self.run(ops.CreateQueue(name, msgspec.structs.replace(given, paused=paused), earliest), fault=fault)

    @rule(name=names, change=st.sampled_from(SETTINGS_CHANGES), after=elapsed, fault=faults)
    def configure(self, name: str, change: ops.Settings, after: int, fault: str) -> None:
        self.pass_time(after)
        self.run(ops.ConfigureQueue(name, change), fault=fault)

    @rule(name=names, fault=faults, wanted=st.integers(0, 2))
    def delete(self, name: str, fault: str, wanted: int) -> None:
        if not wanted:
            self.run(ops.DeleteQueue(name), fault=fault)

    @rule(window_ms=st.sampled_from(WINDOWS), fault=faults)
    def set_dedup_window(self, window_ms: int, fault: str) -> None:
        self.run(ops.SetDedupWindow(window_ms), fault=fault)

    @rule(
        name=names,
        to=st.one_of(st.none(), names),
        named=st.one_of(st.none(), st.lists(numbers, max_size=3)),
        text=st.sampled_from((None, None, "true", 'headers.tier == "gold"')),
        fault=faults,
    )
    def redrive(self, name: str, to: str | None, named: list[int] | None, text: str | None, fault: str) -> None:
        queue = self.model.queues.get(name)
        failed = [] if queue is None else sorted(entry.message for entry in queue.among(FAILED))
        messages = None if named is None else [failed[n % len(failed)] if failed and n % 9 else n for n in named]
        result = self.run(ops.Redrive(name, messages, text, to), fault=fault)
        while result is not None and result[0].more and messages is None:
            result = self.run(ops.Redrive(name, messages, text, to, result[0].after))

    @rule(
        name=names,
        available=st.booleans(),
        failed=st.booleans(),
        in_flight=st.booleans(),
        keys=st.booleans(),
        wanted=st.integers(0, 1),
    )
    def purge(self, name: str, available: bool, failed: bool, in_flight: bool, keys: bool, wanted: int) -> None:
        if name not in self.model.queues or not wanted:
            return
        in_flight = in_flight and available
        self.look()
        count, below, more = 0, -1, True
        while more:
            moved = self.world.commit(ops.Purge(name, available, failed, None, below, in_flight, keys))[0]
            count, below, more = count + moved.count, moved.after, moved.more
        states = [AVAILABLE] * available + [FAILED] * failed + [IN_FLIGHT] * in_flight
        assert count == self.model.purge_all(name, *states, keys=keys)
        self.settle()

    @rule(after=elapsed, fault=faults)
    def checkpoint(self, after: int, fault: str) -> None:
        """Exactly what somebody needs is stored."""
        self.pass_time(after)
        for _ in range(400):
            if not self.machine.deleted:
                break
            self.tick()
        assert not self.machine.deleted
        self.look()
        self.world.writer.fail_after = fault == "after"
        self.world.commit(ops.WriteCheckpoint())
        self.world.writer.fail_after = 0
        self.look()
        self.durable = self.model.copy()
        self.check_store()

    def check_store(self) -> None:
        model, needed = self.model, self.model.stored()
        with self.world.writer.view() as view:
            expected = {number: (model.messages[number].kind, model.messages[number].body) for number in needed}
            assert queuemodel.bodies(view) == expected
            logged = {m.message: m for entries in queuemodel.entries(view).values() for m in entries}
            assert not list(view.scan(*records.STATE_LOG.range()))
        for number in needed:
            found, message = logged[number], model.messages[number]
            times = (found.received_ms, found.visible_ms, found.deadline_ms)
            assert times == (message.received_ms, message.visible_ms, message.deadline_ms)
            assert found.headers == message.headers

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def the_machine_is_as_the_model(self) -> None:
        described = self.look()
        model = self.model
        assert [queue.name for queue in described.queues] == sorted(model.queues)
        for queue in described.queues:
            expected = model.describe(queue.name)
            seen = {name: getattr(queue if hasattr(queue, name) else queue.settings, name) for name in expected}
            assert seen == expected, f"{queue.name} is seen as {seen}, and must be {expected}"
            kept = model.done_within(model.queues[queue.name])
            assert len(kept) <= queue.done_kept <= queue.acked
        assert described.unmatched == len(model.unmatched)
        assert described.dedup_window_ms == model.window_ms
        with self.world.writer.view() as view:
            assert queuemodel.contents(self.machine, view) == model.contents()
        own = {message: row[2] for message, row in queuemodel.rows_of(self.machine.own)}
        assert own == {**dict.fromkeys(model.unmatched, 0), **dict.fromkeys(model.unread, 1)}
        queuemodel.check_memory(self.machine)

    @invariant()
    def what_is_assigned_is_read_the_same(self) -> None:
        """By whoever asks, as often as they ask, page by page."""
        self.look()
        for queue in self.model.queues.values():
            described = self.world.commit(reader_ops.DescribeReaders(queue.name))[0]
            assert described.readers == self.model.described(queue)
            for name, reader in queue.readers.items():
                for after in range(0, len(reader.messages), 4):
                    page = reader_ops.ReadAssignment(queue.name, name, reader.generation, reader.last, after, 4)
                    assert self.world.commit(page)[0] == self.model.readassignment(page, None)

    @invariant()
    def messages_are_found_where_they_are(self) -> None:
        self.look()
        model = self.model
        for number in [*list(model.messages)[-3:], *list(model.stored())[:2]]:
            found = self.world.commit(ops.FindMessage(number))[0]
            named = self.world.commit(ops.FindMessage(number, ["orders", "gold"]))[0]
            states = {state.queue: state for state in found.states if state.queue in {"orders", "gold"}}
            assert {state.queue: state for state in named.states} == states
            expected = model.states(number)
            done = [state for state in found.states if state.state == "done"]
            assert {state.queue: state for state in found.states if state.state != "done"} == expected
            held = any(number in queue.entries for queue in model.queues.values())
            stays = held or number in model.unmatched or number in model.unread
            assert found.record == (model.messages[number].record if stays else -1)
            for state_ in done:
                assert (state_.at_ms, state_.attempts) == model.queues[state_.queue].done[number]
            for queue in model.queues.values():
                if number in model.done_within(queue) and number not in queue.entries:
                    assert queue.name in {state_.queue for state_ in done}

    # -- the end ------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "patches"):
            return
        try:
            self.close_cleanly()
            self.forget_everything()
        finally:
            self.patches.close()

    def close_cleanly(self) -> None:
        """A store that was closed has nothing to replay."""
        self.look()
        self.world.engine.close()
        before = queuemodel.dump(self.machine, _Closed(self.world))
        self.world.reopen()
        with self.world.writer.view() as view:
            assert not list(view.scan(*records.STATE_LOG.range()))
        self.look()
        assert self.dump() == before
        self.settle()
        self.the_machine_is_as_the_model()

    def forget_everything(self) -> None:
        """In the end nothing is left of what is over."""
        for queue in list(self.model.queues.values()):
            if queue.paused:
                self.run(ops.ConfigureQueue(queue.name, ops.Settings(paused=False)))
        self.pass_time(30 * 86_400_000)
        for _ in range(1_000):
            due_ms = self.machine.next_due_ms(self.world.now_ms)
            if due_ms is None or due_ms > self.world.now_ms:
                break
            self.tick()
        else:
            raise AssertionError("there is always something to do")
        self.checkpoint(0, "")
        self.the_machine_is_as_the_model()
        with self.world.writer.view() as view:
            assert not list(view.scan(*records.DEDUP_EXPIRY.range()))
            kept = {key for key, (_, expires_ms) in self.model.dedup.items() if expires_ms == FOREVER}
            assert {key[3:].decode() for key, _ in view.scan(*records.DEDUP.range())} == kept
            for number in self.model.deleted:
                assert queuemodel.records_of(view, number) == []
            for queue in self.model.queues.values():
                if queue.done_retention_s:
                    done = list(view.scan(*records.queue_range(records.DONE, queue.number)))
                    assert [key for key, _ in done] == [records.empty_done_key(queue.number)]
                attempts = [
                    records.decode_queue_key(records.ATTEMPTS, key)[1]
                    for key, _ in view.scan(*records.queue_range(records.ATTEMPTS, queue.number))
                ]
                assert set(attempts) == {m for m, entry in queue.entries.items() if entry.history}
            logged = queuemodel.entries(view)
            if len(logged) > 1:
                first = min(logged)
                assert {message.message for message in logged[first]} & self.model.stored()


class _Closed:
    """A view of a store whose writer is closed."""

    def __init__(self, world: World) -> None:
        self._space = world.space

    def get(self, key: bytes) -> bytes | None:
        history = self._space.versions.get(key)
        return history[-1][1] if history else None

    def scan(self, start: bytes, end: bytes | None = None, **_: Any) -> list[tuple[bytes, bytes]]:
        keys = [key for key in self._space.keys if start <= key and (end is None or key < end)]
        return [(key, value) for key in keys if (value := self.get(key)) is not None]


def is_idle(results: list[Any], looked: list[Any]) -> bool:
    """Whether these answers are those of a transaction that did nothing, which is not remembered."""
    return all(
        any(result is one for one in looked)
        or (isinstance(result, ops.ClaimedMessages) and not result.messages)
        or (isinstance(result, ops.QueueCreated) and not result.new)
        or (isinstance(result, ops.Moved) and not result.count)
        for result in results
    )


TestHistories = Histories.TestCase
TestHistories.settings = SETTINGS
