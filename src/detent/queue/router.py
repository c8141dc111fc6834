"""Which queues a message goes to: those that stand at the end of the log and whose filter says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from detent.queue.filters import Filter, addressed_queue
from detent.queue.settings import PRIORITY_HEADER, group_of, priority_of
from detent.queue.state import QueueState

Target = tuple[QueueState, int, bytes | None]
"""A queue, and the priority and the group that a message has there."""


class Router:
    """Queues with the default filter are found by the name that a message's `queue` header gives; only the filters of
    the others are asked."""

    def __init__(self) -> None:
        self._addressed: dict[str, list[QueueState]] = {}
        self._filtered: list[QueueState] = []
        self._names: dict[int, str | None] = {}  # by number, under which name a queue is addressed
        self.group_headers: dict[int, str] = {}  # by number, of the queues that have groups
        self._priority_headers: dict[int, str] = {}  # by number
        self.priority_headers = Counter({PRIORITY_HEADER: 1})  # in how many queues; the usual one always counts

    def add(self, state: QueueState) -> None:
        """A queue takes part in publishes from now on, with the filter that it has now."""
        self.remove(state)
        if state.config.group_header:
            self.group_headers[state.number] = state.config.group_header
        self._priority_headers[state.number] = state.config.priority_header
        self.priority_headers[state.config.priority_header] += 1
        name = self._names[state.number] = addressed_queue(state.config.filter)
        if name is None:
            self._filtered.append(state)
        else:
            self._addressed.setdefault(name, []).append(state)

    def remove(self, state: QueueState) -> None:
        """A queue takes part no longer."""
        if state.number not in self._names:
            return
        name = self._names.pop(state.number)
        self.group_headers.pop(state.number, None)
        header = self._priority_headers.pop(state.number)
        self.priority_headers[header] -= 1
        if not self.priority_headers[header]:
            del self.priority_headers[header]
        if name is None:
            self._filtered.remove(state)
            return
        self._addressed[name].remove(state)
        if not self._addressed[name]:
            del self._addressed[name]

    def targets(self, headers: dict[str, str]) -> Sequence[Target]:
        """Where a message with these headers goes."""
        name = headers.get("queue")
        found = [] if name is None else self._addressed.get(name, [])
        if self._filtered:
            found = [*found, *(state for state in self._filtered if filter_of(state).matches(headers))]
        return [(state, priority_of(state.config, headers), group_of(state.config, headers)) for state in found]


def filter_of(state: QueueState) -> Filter:
    """A queue's filter, compiled when it is first asked."""
    if state.filter is None or state.filter.text != state.config.filter:
        state.filter = Filter(state.config.filter)
    return state.filter
