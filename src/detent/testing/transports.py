"""What a queue of another system has to do to carry messages, as tests."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar

import pytest

from detent.errors import DetentError, Invalid, LimitExceeded, NotFound, Unavailable
from detent.runtime import thread
from detent.testing.running import PATIENCE_S
from detent.testing.suite import Suite
from detent.transports.checked import CheckedQueue
from detent.transports.contract import Delivery, MessageQueue, NewMessage

LONG_S = 60.0
"""A lease that does not end within a test."""

SEEN_S = 10.0
"""How long a receive waits for what must come."""

TEXTS = ("a", ' {"key": "grüße/日本/🚀"}\n', "\ufffd\u00a0\u2028", "x" * 200_000)


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


class TransportSuite(Suite):
    """Tests of a `detent.transports.MessageQueue`, and of a `SendingQueue` if yours has `send`.

    >>> class TestMyQueue(TransportSuite):
    ...     @pytest.fixture(autouse=True)
    ...     def _server(self, my_server):
    ...         self.name = my_server.new_queue()
    ...     def queue(self):
    ...         return MyQueue(self.name)

    `queue` is called several times in a test, and answers new objects on the same queue, which is empty when the test
    begins, as an ``autouse`` fixture of yours sees to. All that they answer is checked as Detent checks it.

    Flags say what a system cannot do. Those that are False cost something, which the documentation names.
    """

    short_s: ClassVar[float] = 1.0
    """A lease that tests wait for; shorter if your queue counts in smaller steps."""

    is_strict: ClassVar[bool] = True
    """Whether a delivery counts no more once its message is delivered again, and a message is with one reader only."""

    extend_tells: ClassVar[bool] = True
    """Whether `extend` says of each old delivery, and of each message that is gone, that it did nothing."""

    acknowledge_tells: ClassVar[bool] = True
    """Whether `acknowledge` says so."""

    counts_attempts: ClassVar[bool] = True
    """Whether `attempts` says how often a message was delivered; else it is 0."""

    body_bytes_max: ClassVar[int | None] = None
    """The largest body that `send` takes, if it is not too large for a test."""

    # -- what you say -------------------------------------------------------------------------------------------

    def queue(self) -> MessageQueue:
        """A new object on the queue of this test, as another process would have its own."""
        raise NotImplementedError

    def put(self, sent: Sequence[str], headers: Mapping[str, str]) -> None:
        """Have messages in the queue. With `send` there is nothing to say here."""
        queue = self.opened(self.queue())
        assert self.can_send, "a queue that has no send() needs a put() here, which fills it by other means"
        assert queue.send([NewMessage(f"id-{at}", body.encode(), headers) for at, body in enumerate(sent)]) == {}

    def missing_queue(self) -> MessageQueue | None:
        """One on a queue that is not there; None if that cannot be."""
        return None

    def unreachable_queue(self) -> MessageQueue | None:
        """One whose server does not answer; None if that cannot be. A password in its URL is ``hush``."""
        return None

    def make_anew(self) -> bool:
        """Delete the queue of this test and make it again; whether that can be."""
        return False

    # -- how it is run ------------------------------------------------------------------------------------------

    @pytest.fixture(autouse=True)
    def _objects(self) -> Iterator[None]:
        with ExitStack() as self._closing:
            yield

    def restart(self) -> None:
        """Go on with new objects, as a new process does."""
        self.mine = self.another()

    def another(self) -> CheckedQueue:
        """An object of another process."""
        return self.opened(self.queue())

    def opened(self, queue: MessageQueue) -> CheckedQueue:
        """The same queue, checked, and closed at the end of the test."""
        checked = CheckedQueue(queue)
        self._closing.callback(checked.close)
        self.can_send = callable(getattr(queue, "send", None))
        return checked

    def fill(self, *sent: str, headers: Mapping[str, str] | None = None) -> None:
        """Have messages in the queue."""
        self.put(sent, headers or {})

    def one(self, queue: MessageQueue, lease_s: float = LONG_S) -> Delivery:
        """The one message that comes."""
        found = queue.receive(1, SEEN_S, lease_s)
        assert len(found) == 1, "a message that is there, or whose lease is over, did not come"
        return found[0]

    def end_of_lease(self) -> None:
        """Wait until a short lease is over, as clocks of whole seconds see it too."""
        time.sleep(self.short_s + 0.1)

    def attempts(self, delivery: Delivery, wanted: int) -> None:
        """A delivery says how often its message was delivered, if the queue can say it."""
        assert delivery.attempts == (wanted if self.counts_attempts else 0)

    def all_of(self, count: int, limit: int) -> list[Delivery]:
        """As many messages as there are, in calls of `limit`, each once."""
        found: dict[str, Delivery] = {}
        deadline = time.monotonic() + PATIENCE_S
        came = 0
        while len(found) < count and time.monotonic() < deadline:
            for delivery in self.mine.receive(limit, 1, LONG_S):
                came += 1
                found[delivery.message_id] = delivery
        assert came == len(found) or not self.is_strict, "a message came twice within its lease"
        return list(found.values())

    def needs_send(self) -> None:
        """Skip a test of what sends."""
        if not self.can_send:
            pytest.skip("this queue has no send(), so the bus cannot use it")

    # -- leases -------------------------------------------------------------------------------------------------

    def test_a_message_stays_away_and_comes_again(self) -> None:
        self.fill("one")
        other = self.another()
        first = self.one(self.mine, self.short_s)
        assert other.receive(10, 0, LONG_S) == [], "a message came while it was under a lease"
        assert self.mine.receive(10, 0, LONG_S) == [], "a message came while it was under a lease"
        second = self.one(other)  # a receive that waits gets it when the lease is over
        assert (first.body, second.body) == (b"one", b"one")
        assert first.message_id == second.message_id, "a message has the same id at each delivery"
        self.attempts(first, 1)
        self.attempts(second, 2)
        assert other.acknowledge([second]) == []

    def test_the_same_reader_gets_it_again(self) -> None:
        self.fill("one")
        first = self.one(self.mine, self.short_s)
        second = self.one(self.mine)
        assert first.receipt != second.receipt or not self.is_strict, "each delivery has a receipt of its own"
        if self.is_strict and self.extend_tells:
            assert self.mine.extend([first], LONG_S) == [first]
        assert self.mine.extend([second], LONG_S) == []

    def test_extending_keeps_a_message_away(self) -> None:
        self.fill("one")
        held = self.one(self.mine, self.short_s)
        assert self.mine.extend([held], LONG_S) == []
        self.end_of_lease()
        assert self.another().receive(10, 0, LONG_S) == [], "a message came though its lease was extended"
        assert self.mine.extend([held], self.short_s) == []  # and less than before is possible, too
        self.attempts(self.one(self.another()), 2)

    def test_a_delivery_that_is_over_is_not_extended(self) -> None:
        self.fill("one", "two")
        stale, kept = self.all_of(2, 2)
        self.mine.extend([stale], 0)
        other = self.another()
        current = self.one(other)
        assert current.message_id == stale.message_id
        if self.is_strict and self.extend_tells:
            assert self.mine.extend([stale, kept], LONG_S) == [stale]
            assert self.mine.extend([stale], 0) == [stale]
        if self.is_strict:
            assert other.receive(10, 0, LONG_S) == []
        assert other.extend([current], LONG_S) == []

    def test_a_message_that_is_gone_is_not_extended(self) -> None:
        self.fill("one", "two")
        gone, kept = self.all_of(2, 2)
        assert self.mine.acknowledge([gone]) == []
        failed = self.mine.extend([gone, kept], LONG_S)
        assert failed == ([gone] if self.extend_tells else [])

    def test_extending_by_nothing_gives_back(self) -> None:
        self.fill("one")
        assert self.mine.extend([self.one(self.mine)], 0) == []
        self.attempts(self.one(self.another()), 2)

    def test_messages_that_were_not_begun_are_given_back(self) -> None:
        self.fill("one")
        self.mine.give_back([self.one(self.mine)])
        self.mine.give_back([])
        held = self.one(self.another())
        assert held.attempts in (1, 2) or not self.counts_attempts
        assert self.mine.receive(10, 0, LONG_S) == []

    def test_a_lease_beyond_the_longest_is_cut(self) -> None:
        self.fill("one")
        held = self.one(self.mine, 10 * self.mine.visibility_max_s)
        self.mine.extend([held], 10 * self.mine.visibility_max_s)
        assert self.another().receive(1, 0, LONG_S) == []

    # -- settling -----------------------------------------------------------------------------------------------

    def test_an_acknowledged_message_never_comes_again(self) -> None:
        self.fill("one", "two")
        found: list[Delivery] = []
        while len(found) < 2:
            found += self.mine.receive(2, SEEN_S, self.short_s)
            assert self.mine.acknowledge(found) == [] or not self.acknowledge_tells
        self.end_of_lease()
        assert self.another().receive(10, 0, LONG_S) == [], "a message came though it was acknowledged"

    def test_an_old_receipt_does_no_harm(self) -> None:
        self.fill("one", "two")
        stale, kept = self.all_of(2, 2)
        self.mine.extend([stale], 0)
        other = self.another()
        current = self.one(other)
        failed = self.mine.acknowledge([stale, kept])
        assert kept not in failed, "one old receipt kept another message from being acknowledged"
        if self.acknowledge_tells:
            assert failed == [stale]
        if self.is_strict:
            assert other.acknowledge([current]) == []
        other.acknowledge([current, stale])
        self.mine.acknowledge([stale, kept])
        assert other.receive(10, 0, LONG_S) == []

    def test_attempts_are_counted(self) -> None:
        self.fill("one")
        for attempts in range(1, 4):
            held = self.one(self.mine)
            self.attempts(held, attempts)
            self.mine.extend([held], 0)

    # -- messages -----------------------------------------------------------------------------------------------

    def test_bodies_and_headers_come_as_they_were(self) -> None:
        for text in TEXTS:
            self.fill(text, headers={"kind": "s3", "of": 'it\'s "quoted"'})
            held = self.one(self.mine)
            assert held.body == text.encode()
            assert {name: held.headers.get(name) for name in ("kind", "of")} == {"kind": "s3", "of": 'it\'s "quoted"'}
            self.mine.acknowledge([held])

    def test_many_messages_all_come(self) -> None:
        wanted = [f"s3://bucket/{number}" for number in range(100)]
        self.fill(*wanted)
        found = self.all_of(100, limit=33)
        assert sorted(bodies(found)) == sorted(text.encode() for text in wanted)
        assert len({delivery.message_id for delivery in found}) == 100, "two messages have the same id"
        assert self.mine.extend(found, LONG_S) == []
        assert self.mine.acknowledge(found[:55]) == []
        failed = self.mine.acknowledge(found)
        assert {one.receipt for one in failed} <= {one.receipt for one in found[:55]}
        assert self.another().receive(10, 0, LONG_S) == []

    def test_messages_with_equal_bodies_have_ids_of_their_own(self) -> None:
        self.fill("same", "same")
        assert len({delivery.message_id for delivery in self.all_of(2, 2)}) == 2

    def test_a_queue_made_anew_repeats_no_id(self) -> None:
        self.fill("one")
        first = self.one(self.mine).message_id
        time.sleep(0.01)  # ids that are made of a clock of milliseconds go on
        if not self.make_anew():
            pytest.skip("this queue cannot be made anew here: make_anew() says so")
        self.fill("other")
        assert self.one(self.another()).message_id != first, "another message got an id that was used: it is lost"

    def test_readers_share_a_queue(self) -> None:
        self.fill(*map(str, range(60)))
        readers = [self.another(), self.another()] * 2  # two objects, each in two threads
        with thread.pool("detent-testing", 4) as threads:
            found = [body for drained in threads.map(self._drained, readers) for body in drained]
        assert set(found) == {str(number).encode() for number in range(60)}
        assert len(found) == 60 or not self.is_strict, "a message came twice within its lease"

    @staticmethod
    def _drained(queue: MessageQueue) -> list[bytes]:
        found: list[bytes] = []
        while came := queue.receive(7, 0, LONG_S):
            queue.acknowledge(came)
            found += bodies(came)
        return found

    def test_waiting_ends_when_something_comes(self) -> None:
        def fill_soon() -> None:
            time.sleep(0.3)
            self.fill("one")

        filling = thread.start("detent-testing", fill_soon)
        assert bodies(self.mine.receive(10, PATIENCE_S, LONG_S)) == [b"one"]
        filling.join()

    def test_waiting_ends_when_nothing_comes(self) -> None:
        assert self.mine.receive(10, 0, LONG_S) == []
        assert self.mine.receive(10, 1, LONG_S) == []

    # -- what is known of it, and what goes wrong ------------------------------------------------------------------

    def test_what_is_known_of_the_queue(self) -> None:
        assert self.mine.name == self.another().name, "all processes have the same name for the queue"
        assert self.mine.retention_s() == self.another().retention_s()
        assert math.isfinite(self.mine.visibility_max_s)
        assert self.mine.extend([], LONG_S) == []
        assert self.mine.acknowledge([]) == []

    def test_a_server_that_does_not_answer_is_unavailable(self) -> None:
        given = self.unreachable_queue()
        if given is None:
            pytest.skip("there is no server: unreachable_queue() says so")
        self.fill("one")
        held = self.one(self.mine)
        silent = self.opened(given)
        with pytest.raises(Unavailable) as caught:
            silent.receive(10, 0, LONG_S)
        assert "hush" not in str(caught.value), "an error repeats a password"
        assert silent.extend([held], LONG_S) == [held], "a lease counts as extended that was not"
        assert silent.extend([held], 0) == [held]
        assert silent.acknowledge([held]) == [held], "a message counts as acknowledged that was not"

    def test_a_missing_queue_is_not_found(self) -> None:
        given = self.missing_queue()
        if given is None:
            pytest.skip("no queue is missing: missing_queue() says so")
        missing = self.opened(given)
        for ask in (missing.retention_s, lambda: missing.receive(1, 0, LONG_S)):
            with pytest.raises(NotFound):
                ask()
        if self.can_send:
            with pytest.raises(NotFound):
                self._raised(missing.send([NewMessage("1", b"x")]))

    # -- sending ------------------------------------------------------------------------------------------------

    @staticmethod
    def _raised(errors: Mapping[int, DetentError]) -> None:
        for error in errors.values():
            raise error

    def test_sent_messages_outlast_the_sender(self) -> None:
        self.needs_send()
        sender = CheckedQueue(self.queue())
        try:
            assert sender.send([]) == {}
            assert sender.send([NewMessage("1", bytes(range(256)), {"detent-id": "1"}), NewMessage("2", b"{}")]) == {}
        finally:
            sender.close()
        found = self.all_of(2, 2)
        assert sorted(bodies(found)) == sorted([bytes(range(256)), b"{}"])
        assert {"detent-id": "1"} in [one.headers for one in found]

    def test_one_message_that_is_too_large_holds_up_no_other(self) -> None:
        self.needs_send()
        if self.body_bytes_max is None:
            pytest.skip("body_bytes_max is not said")
        large = NewMessage("2", b"x" * (self.body_bytes_max + 1))
        errors = self.mine.send([NewMessage("1", b"1"), large, NewMessage("3", b"3")])
        assert list(errors) == [1]
        assert isinstance(errors[1], Invalid | LimitExceeded), "an outbox would try it again for ever"
        assert sorted(bodies(self.all_of(2, 2))) == [b"1", b"3"]

    def test_a_queue_that_makes_itself_does_so_once(self) -> None:
        if not callable(getattr(self.queue(), "create", None)):
            pytest.skip("this queue has no create(): people make it")
        self.fill("one")
        self.mine.create()
        assert self.one(self.mine).body == b"one", "create() emptied a queue that was there"
