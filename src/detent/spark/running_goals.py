"""How far a run that ends reads: to where its inputs were when it began, and all that the pipeline makes of that.

Without that a producer that goes on would keep the run going on too. What streams of the pipeline write is read to
where it ended when its writer had come to its own goal; so a circle ends when its messages do.
"""

from __future__ import annotations

from detent.spark.pipeline_stream import Journal, Queue, Stream
from detent.spark.running_state import StreamState, names_of, waiting_in
from detent.store import Store


class Goals:
    """For each journal an offset to be reached, for each queue a number of messages that its reader has had by then."""

    def __init__(self, store: Store, states: list[StreamState]) -> None:
        self._store = store
        self._states = states
        self._written = [target for state in states for target in state.stream.targets]
        self._offsets: dict[str, int] = {}
        self._taken: dict[str, int] = {}
        for state in states:
            for source in state.stream.sources:
                self._raise(source)

    def ends(self, stream: Stream) -> dict[str, int]:
        """Where a stream stops reading its journals, those apart that the pipeline writes."""
        journals = [source for source in stream.sources if isinstance(source, Journal)]
        names = {name for journal in journals for name in self._offsets if journal.reads(Journal(name))}
        return {name: self._offsets[name] for name in sorted(names) if Journal(name) not in self._written}

    def moved(self, stream: Stream) -> None:
        """A stream has written: its readers read that too."""
        for target in stream.targets:
            if isinstance(target, Journal | Queue):
                self._raise(target)

    def left(self, state: StreamState) -> int:
        """How many messages a stream is short of its goals. Before Spark has said where it is, that is unknown: 0."""
        if not state.is_read:
            return 0
        journals = [source for source in state.stream.sources if isinstance(source, Journal)]
        names = [name for name in self._offsets if any(one.reads(Journal(name)) for one in journals)]
        short = sum(self._short(state, name) for name in names)
        for source in state.stream.sources:
            if isinstance(source, Queue):
                still = self._taken[source.name] - state.taken.get(source.name, 0)
                short += max(0, min(still, waiting_in(self._store, source.name)))
        return short

    def _short(self, state: StreamState, name: str) -> int:
        if self._store.reader.number(name) is None:
            return 0
        first, end = self._store.reader.extent(name)
        return max(0, min(end, self._offsets[name]) - max(first, state.offsets.get(name, 0)))

    def _raise(self, end: Journal | Queue) -> None:
        if isinstance(end, Queue):
            taken = max((state.taken.get(end.name, 0) for state in self._states), default=0)
            self._taken[end.name] = taken + waiting_in(self._store, end.name)
            return
        for name in names_of(self._store, [end]):
            if self._store.reader.number(name) is not None:
                self._offsets[name] = self._store.reader.extent(name)[1]
