"""A test world with shorter words for what queues do."""

from __future__ import annotations

from typing import Any

import queuemodel
from detent.queue import operations as ops
from world import World


class Queues(World):
    """A world with shorter words for what queues do."""

    def create(self, name: str = "q", *, earliest: bool = False, **settings: Any) -> int:
        return self.commit(ops.CreateQueue(name, ops.Settings(**settings), earliest))[0].queue

    def publish(self, count: int = 1, queue: str = "q", **options: Any) -> list[int]:
        headers = options.pop("headers", [{"queue": queue}])
        bodies = [f"body {index}".encode() for index in range(count)]
        result = self.commit(ops.Publish(bodies, headers, **options))[0]
        return list(range(result.first, result.first + result.count))

    def urgent(self, *priorities: int, queue: str = "q") -> list[int]:
        """One message of each of these priorities, in one publish."""
        headers = [{"queue": queue, "priority": str(priority)} for priority in priorities]
        return self.publish(len(priorities), headers=headers)

    def claim(self, count: int = 1, queue: str = "q", **options: Any) -> ops.ClaimedMessages:
        return self.commit(ops.Claim(queue, count, **options))[0]

    def about(self, queue: str = "q") -> ops.QueueDescription:
        return self.commit(ops.DescribeQueues(queue))[0].queues[0]

    def state(self, message: int, queue: str = "q") -> ops.MessageState | None:
        found = self.commit(ops.FindMessage(message))[0].states
        return next((state for state in found if state.queue == queue), None)

    def stored_bodies(self) -> dict[int, bytes]:
        """What is stored after a checkpoint."""
        self.commit(ops.WriteCheckpoint())
        with self.writer.view() as view:
            return {message: body[1] for message, body in queuemodel.bodies(view).items()}

    def later(self, milliseconds: int) -> None:
        """Time passes, and nobody looks."""
        self.now_ms += milliseconds
        self.session = self.engine.new_session()

    def ticks(self) -> int:
        """Housekeeping until there is none left; how many steps that took."""
        for count in range(1_000):
            due_ms = self.engine.next_due_ms()
            if due_ms is None or due_ms > self.now_ms:
                return count
            self.engine.tick()
        raise AssertionError("there is always something to do")

    def memory(self) -> dict[str, Any]:
        """All that the machine remembers, once it has seen the clock."""
        self.commit(ops.DescribeQueues())
        queuemodel.check_memory(self.queues)
        with self.writer.view() as view:
            return queuemodel.dump(self.queues, view)

    def survives(self) -> None:
        """A crash at this moment loses nothing: the state log leads to what memory had, once what time did is in it."""
        self.engine.tick()
        before = self.memory()
        self.reopen()
        assert self.memory() == before

    def records(self, prefix: Any) -> list[bytes]:
        with self.writer.view() as view:
            return [key for key, _ in view.scan(*prefix.range())]


def used(kind: type[Any], claimed: ops.ClaimedMessages, *indexes: int, **options: Any) -> Any:
    """An operation with some of the receipts of a claim; with all of them, if none is named."""
    chosen = indexes or range(len(claimed.messages))
    messages = [claimed.messages[index] for index in chosen]
    return kind(claimed.queue, messages, [claimed.first_delivery + index for index in chosen], **options)
