"""Any history of clients, their retries and the owner's restarts: each answer is the first, each effect happens once.

Clients number their transactions as the library does, and receive their answers whenever they like. Whatever they sent
they may send again, alone or beside others, before and after a crash, a failed commit, or one that failed too late. A
model of a few lines says what each transaction must have been answered, whenever that is asked. With DETENT_SOAK=1
there are many more histories.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from detent.engine import Done, Operation, Request
from detent.engine.sessions import ANSWERS
from detent.errors import Conflict, Fenced, Unavailable
from detent.journal import operations as ops
from detent.remote import ClientSession
from world import World

EXAMPLES = settings(
    max_examples=3_000 if os.environ.get("DETENT_SOAK") else 150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
CLIENTS = 3
KINDS = ("one", "one", "packed", "both", "refused")


class Sent(NamedTuple):
    """A transaction that a client has sent at least once."""

    client: int
    request: Request
    kind: str
    body: bytes


class Group(NamedTuple):
    """What meets in one commit: new transactions (client, kind) and old ones, by number from the newest.

    `received` says whether the clients get these answers at once. `fault` is what becomes of the commit.
    """

    new: list[tuple[int, str]]
    again: list[int]
    again_first: bool
    received: bool
    fault: str


GROUPS = st.builds(
    Group,
    st.lists(st.tuples(st.integers(0, CLIENTS - 1), st.sampled_from(KINDS)), max_size=3),
    st.lists(st.integers(0, 8), max_size=2),
    st.booleans(),
    st.booleans(),
    st.sampled_from(("", "", "", "before", "after", "crash")),
)
STEPS = st.one_of(GROUPS, GROUPS, st.sampled_from(["restart", "receive", "keep house"]))


def operations(kind: str, body: bytes) -> list[Operation]:
    if kind == "packed":
        return [ops.AppendPacked("a", body * 3, len(body).to_bytes(4, "little") * 3)]
    if kind == "both":
        registers = ops.UpdateRegisters("a", {"last": body.decode()})
        return [ops.Append("a", [body]), registers, ops.Append("b", [body])]
    if kind == "refused":
        return [ops.Append("a", [body]), ops.CheckHead("b", 1_000_000)]
    return [ops.Append("a", [body])]


class Model:
    """What the journals hold, what each transaction was answered, and below which sequence a client needs no answer."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = {"a": [], "b": []}
        self.last: bytes | None = None
        self.answers: dict[bytes, list[Any]] = {}  # by the body, which no two transactions share
        self.floors = [0] * CLIENTS

    def expected(self, sent: Sent) -> list[Any] | type[Exception]:
        """The answer that a transaction must get now. If it is a new one, it is applied."""
        if sent.body in self.answers:
            return self.answers[sent.body]
        if sent.request.sequence < self.floors[sent.client]:
            return Fenced
        if sent.kind == "refused":
            return Conflict
        self.floors[sent.client] = max(self.floors[sent.client], sent.request.answered)
        rows = 3 if sent.kind == "packed" else 1
        answer: list[Any] = [self._append("a", [sent.body] * rows)]
        if sent.kind == "both":
            self.last = sent.body
            answer += [Done(), self._append("b", [sent.body])]
        self.answers[sent.body] = answer
        return answer

    def _append(self, journal: str, bodies: list[bytes]) -> ops.Appended:
        end, rows = len(self.bodies[journal]), len(bodies)
        self.bodies[journal] += bodies
        return ops.Appended(end, rows, end, rows)

    def has_received(self, sent: Sent) -> bool:
        """Whether its client has said that it needs the answer no more, so that the owner may have forgotten it."""
        return sent.request.sequence < self.floors[sent.client]


class History:
    """The steps of one example."""

    def __init__(self) -> None:
        self.world = World()
        self.model = Model()
        self.clients = [ClientSession() for _ in range(CLIENTS)]
        for client in self.clients:
            client.open(self.world.engine.new_session())
        self.sent: list[Sent] = []

    def begin(self, client: int, kind: str) -> Sent:
        body = b"%d/%d" % (client, len(self.sent))
        request = self.clients[client].begin(operations(kind, body))
        assert request is not None
        self.sent.append(Sent(client, request, kind, body))
        return self.sent[-1]

    def run(self, step: Group | str) -> None:
        if isinstance(step, Group):
            self.commit(step)
        elif step == "restart":
            self.world.reopen()
        elif step == "receive":
            for sent in self.sent:
                self.clients[sent.client].end(sent.request)
        else:
            self.world.pass_time(1000)  # far from an hour: nobody expires

    def commit(self, group: Group) -> None:
        again = [self.sent[-1 - number] for number in group.again if number < len(self.sent)]
        new = [self.begin(*one) for one in group.new]
        together = again + new if group.again_first else new + again
        writer = self.world.writer
        writer.fail_before, writer.fail_after = group.fault == "before", group.fault == "after"
        tickets = self.world.group(*(sent.request for sent in together))
        writer.fail_before = writer.fail_after = 0
        outcomes = [ticket.results if ticket.error is None else ticket.error for ticket in tickets]
        self.check(together, outcomes, group.fault)
        if group.fault == "crash":
            self.world.reopen()
        elif group.received:
            for sent in together:
                self.clients[sent.client].end(sent.request)

    def check(self, together: list[Sent], outcomes: list[Any], fault: str = "") -> None:
        """Compare what the transactions of a group were answered with what the model says."""
        compared = []
        for sent, outcome in zip(together, outcomes, strict=True):
            if fault == "before" and isinstance(outcome, Unavailable):
                continue  # it says that nothing was applied, and the model believes it
            compared.append((sent, outcome, self.model.expected(sent)))
        for sent, outcome, expected in compared:
            # A failed commit takes refusals along: they may rest on what is gone.
            excuses: list[type[Exception]] = [Unavailable] if fault == "after" else []
            if isinstance(expected, type):
                assert isinstance(outcome, (expected, *excuses)), f"{sent} was answered with {outcome!r}"
            elif not (self.model.has_received(sent) and isinstance(outcome, (Fenced, *excuses))):
                assert outcome == expected, f"{sent} was answered with {outcome!r}"

    def check_all(self) -> None:
        """Everything that was decided is sent once more, and nothing comes of it."""
        for sent in self.sent:
            if sent.body in self.model.answers or sent.kind == "refused":
                (ticket,) = self.world.group(sent.request)
                self.check([sent], [ticket.results if ticket.error is None else ticket.error])
        assert {name: self.world.bodies(name) for name in self.world.reader.names()} == {
            name: bodies for name, bodies in self.model.bodies.items() if bodies
        }
        if self.model.last is not None:
            assert self.world.reader.info("a").registers == {"last": self.model.last.decode()}

    def check_forgetting(self) -> None:
        """Once each client has all its answers, no more is stored than the last of each."""
        self.run("receive")
        for client in range(CLIENTS):
            self.commit(Group([(client, "one")], [], False, True, ""))
        self.run("keep house")
        with self.world.writer.view() as view:
            assert len(list(view.scan(*ANSWERS.range()))) == CLIENTS


@EXAMPLES
@example([Group([(1, "one")], [], False, False, "before"), Group([(1, "one")], [], False, False, ""),
          Group([], [1], False, False, "")])  # fmt: skip  # sent again after a later one was applied
@given(st.lists(STEPS, max_size=20))
def test_each_answer_is_the_first_one_and_each_effect_happens_once(steps: list[Group | str]) -> None:
    history = History()
    for step in steps:
        history.run(step)
    history.check_all()
    history.world.reopen()
    history.check_all()
    history.check_forgetting()
    history.check_all()
