"""What the demo says in words: what is started, what is killed and why that is hard, and what the numbers mean."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from typing import Final

from detent.demo.check import Verdict
from detent.demo.meter import DemoCounts
from detent.demo.plan import CLERK, DRIVER, OWNER, PRODUCER_ROLES, PRODUCERS, ROLES, RUSH_SHARE, WORKER, DemoPlan

WIDTH: Final = 80

TASKS: Final = {
    OWNER: "holds the store open, and commits for the others",
    DRIVER: "Spark: splits orders, and fills the Delta table",
    f"{PRODUCERS} producers": "append orders to the journal orders",
    CLERK: f"publishes one order in {RUSH_SHARE} to the queue rush",
    WORKER: "claims rush orders, and appends them to orders",
}

_PRODUCER: Final = "producer"
_HARD: Final = {
    OWNER: "it may die in the middle of a commit: its successor must find all that was acknowledged, and no half of "
    "a transaction",
    DRIVER: "a batch may be written and not yet noted as done: Spark writes it again, and that must change nothing",
    _PRODUCER: "it cannot tell whether its last transaction was committed: its successor must neither skip orders nor "
    "place them again",
    CLERK: "it keeps no notes: its successor publishes every order again, and the queue must drop all that it has had",
    WORKER: "it dies with orders in its hands: they must come again when their lease ends, and be appended once",
}
"""Why it is hard to lose and to double nothing when one of them is killed."""


def kind_of(role: str) -> str:
    """What a process is: all producers are of one kind."""
    return _PRODUCER if role in PRODUCER_ROLES else role


def named(role: str) -> str:
    """A process in a sentence."""
    return role if role in PRODUCER_ROLES else f"the {role}"


def opening(plan: DemoPlan) -> str:
    """What is going to happen."""
    tasks = "\n".join(f"  {name:<11}  {task}" for name, task in TASKS.items())
    return (
        f"{plan.messages:,} orders go from producers through Spark into a Delta table.\n"
        f"Meanwhile processes are killed: {plan.kills} times, and started again at once.\n"
        "A store is made, with the journals orders, paid and rejected and the\n"
        f"queue rush. Then {len(ROLES)} processes start:\n{tasks}\n"
        "Spark takes a while to start; orders come in meanwhile. An order is\n"
        "placed if it is in the journal orders, checked if it is in the journal\n"
        "paid or rejected, and stored if it is in the Delta table."
    )


def killed(role: str, number: int, kills: int, *, is_first: bool) -> str:
    """A kill, and for the first one of its kind why it is hard."""
    text = f"kill {number} of {kills}: kill -9 for {named(role)}"
    return f"{text}\n{textwrap.fill(_HARD[kind_of(role)], WIDTH - 10)}" if is_first else text


def crashed(role: str, plan: DemoPlan) -> str:
    """A process has ended that was not killed."""
    return f"{named(role)} failed without a kill, and is started again; its log is in\n{plan.logs}"


def gave_up(seconds: float, plan: DemoPlan) -> str:
    """A run that ends before all orders have arrived."""
    return f"no order has moved for {seconds:.0f} s, so the run gives up; the logs are in\n{plan.logs}"


def progress(plan: DemoPlan, counts: DemoCounts, *, is_quiet: bool = False) -> str:
    """How far a run is, in a line; and that nothing has changed, if it is quiet."""
    text = f"{counts.placed:,} of {plan.messages:,} placed, {counts.split:,} checked, {counts.stored:,} stored"
    return f"{text}\nnothing has changed for a while, as when Spark starts" if is_quiet else text


RELEASED: Final = "all kills are done: the last tenth of the orders was held back until\nnow, and is placed"
PLACED: Final = "all orders are placed, and Spark has to catch up"
COUNTING: Final = (
    "all processes are stopped; another one, which shares no code with\n"
    "them, looks for each order in the journals and in the table"
)

COLUMNS_EXPLAINED: Final = (
    "STRANGE: not an order of this run. WRONG: with another amount. DISORDERED: placed before an older order of the "
    "same producer."
)


def meaning(verdict: Verdict, roles: list[str], *, is_finished: bool = True) -> Iterator[str]:
    """The numbers of a run, each with what it means. `roles` are those who were killed."""
    lost = "each order is in every place where it belongs" if not verdict.lost else "orders are missing somewhere"
    if not is_finished:
        lost = (
            "orders had not arrived when the run gave up. That does not say that they are lost: those in the journal "
            "orders wait for Spark"
        )
    doubled = "orders are somewhere more than once"
    if not verdict.duplicated:
        doubled = f"no order is anywhere twice{', although work was repeated after kills' if roles else ''}"
    names = ", ".join(f"{kind} {count}" for kind, count in Counter(map(kind_of, roles)).items())
    killed = f"processes ended at once, and started again: {names}" if roles else "no process was killed"
    for name, number, text in (
        ("lost" if is_finished else "missing", verdict.lost, lost),
        ("duplicated", verdict.duplicated, doubled),
        ("kills", len(roles), killed),
    ):
        head = f"{name:<11} {number:<4} "
        yield textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
