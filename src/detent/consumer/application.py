"""What a consumer is declared with: which journals it reads, what it does with a message, where its state is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

from detent import names, patterns
from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.journal import Message
from detent.journal import calls as journal_calls
from detent.shard.operations import SHARDS_MAX
from detent.state.base import State
from detent.state.engine import EngineState
from detent.stream.following import Start
from detent.stream.opening import LEASE, lease_ms

NAME_MAX: Final = 150
"""A consumer's name begins the names of its recovery logs."""

STANDBYS_MAX: Final = 8

MAX_TRANSACTION: Final = "1s"
MIN_TRANSACTION: Final = "0s"
OUTPUT_DEADLINE: Final = "14d"
"""How long what a transaction has published may wait for its acknowledgement: a shard that is down for a week, and then
some, has lost nothing."""

Partition = Literal["journal", "key"]
Function = TypeVar("Function", bound=Callable[..., Any])


class Publish(Protocol):
    """What `consume` gets as `publish`: the message is part of the transaction."""

    def __call__(
        self,
        journal: str,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        store: str = "",
    ) -> None: ...


class Application(Protocol):
    """An application as a class. Both methods may be ``async def``; `finalize` may be left out."""

    def consume(self, message: Message, state: Any, publish: Publish) -> Any: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A journal to read, or all whose names match a pattern such as ``orders/*``: recovery logs and other journals of
    Detent's own only if the pattern begins as their names do.

    `start` says where a shard begins that has no checkpoint: "earliest", "latest", or an offset. `raw` reads the stored
    rows from the earliest on and sequences them itself, instead of following the journal's committed index; the
    messages are the same.
    """

    journal: str
    start: Start = "earliest"
    raw: bool = False

    def __post_init__(self) -> None:
        if not self.is_pattern:
            names.check_name(self.journal, "journal")
        if self.start not in {"earliest", "latest"} and (not isinstance(self.start, int) or self.start < 0):
            raise Invalid(f"start is 'earliest', 'latest' or an offset, not {self.start!r}")
        if self.raw and self.start != "earliest":
            raise Invalid(
                "a raw source starts at 'earliest': it has positions, not offsets, and from the middle of a journal on "
                "it would see transactions without their beginning"
            )

    @property
    def is_pattern(self) -> bool:
        """Whether it names more than one journal."""
        return patterns.is_pattern(self.journal)

    def matches(self, journal: str) -> bool:
        """Whether a journal is meant."""
        return patterns.matches(self.journal, journal)


class Declaration:
    """A consumer as it was declared. `Consumer` adds how it is run, and says what each part means."""

    def __init__(
        self,
        name: str,
        *,
        read: str | Source | Iterable[str | Source],
        store: str | None = None,
        state: State | None = None,
        application: Application | None = None,
        shards: int = 1,
        partition: Partition = "journal",
        outputs: Mapping[str, str] | None = None,
        min_transaction: Duration = MIN_TRANSACTION,
        max_transaction: Duration = MAX_TRANSACTION,
        standbys: int = 0,
        lease: Duration = LEASE,
        output_deadline: Duration = OUTPUT_DEADLINE,
    ) -> None:
        names.check_name(name, "consumer")
        if len(name) > NAME_MAX:
            raise Invalid(f"a consumer's name has at most {NAME_MAX} letters, not {len(name)}")
        self.name = name
        self.store = store
        self.state = EngineState() if state is None else state
        if not isinstance(self.state, State):
            raise Invalid("state is EngineState(), SqlState(url) or RecordedState(folder)")
        self.sources = _sources(read)
        self.shards = checked_number(shards, 1, SHARDS_MAX, "shards")
        self.standbys = checked_number(standbys, 0, STANDBYS_MAX, "standbys")
        if partition not in {"journal", "key"}:
            raise Invalid(f"partition is 'journal' or 'key', not {partition!r}")
        self.partition: Partition = partition
        self.outputs = dict(outputs or {})
        for output in self.outputs:
            names.check_name(output, "output")
        self.min_s = milliseconds(min_transaction) / 1000
        self.max_s = milliseconds(max_transaction) / 1000
        if not self.max_s > 0 or self.min_s > self.max_s:
            raise Invalid(f"max_transaction ({max_transaction}) is above 0, and not below min_transaction")
        self.lease_ms = lease_ms(lease)
        journal_calls.publisher_deadline(output_deadline)
        self.output_deadline = output_deadline
        self._consume: Callable[..., Any] | None = None
        self._finalize: Callable[..., Any] | None = None
        if application is not None:
            self.consume(application.consume)
            if (finalize := getattr(application, "finalize", None)) is not None:
                self.finalize(finalize)

    def consume(self, function: Function) -> Function:
        """Decorator of the function that takes (message, state, publish). It may be ``async def``."""
        if self._consume is not None:
            raise Invalid(f"the consumer {self.name!r} has a consume function already")
        _check_function(function, "consume")
        self._consume = function
        return function

    def finalize(self, function: Function) -> Function:
        """Decorator of the function that takes the transaction, once, after its last message."""
        if self._finalize is not None:
            raise Invalid(f"the consumer {self.name!r} has a finalize function already")
        _check_function(function, "finalize")
        self._finalize = function
        return function

    @property
    def consume_function(self) -> Callable[..., Any]:
        """What is done with a message."""
        if self._consume is None:
            raise Invalid(f"the consumer {self.name!r} consumes nothing: decorate a function with @app.consume")
        return self._consume

    @property
    def finalize_function(self) -> Callable[..., Any] | None:
        """What is done at the end of a transaction, if anything."""
        return self._finalize

    @property
    def is_async(self) -> bool:
        """Whether some function is ``async def`` and needs an event loop."""
        return any(inspect.iscoroutinefunction(one) for one in (self._consume, self._finalize))

    def source_of(self, journal: str) -> Source:
        """The source that a journal belongs to: the first one that names it."""
        return next(source for source in self.sources if source.matches(journal))


def _check_function(function: Any, what: str) -> None:
    """Refuse what would do nothing when it is called."""
    if not callable(function):
        raise Invalid(f"{what} is a function, not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid(f"the {what} function has a `yield` in it, so that calling it does nothing: publish() instead")


def _sources(read: str | Source | Iterable[str | Source]) -> tuple[Source, ...]:
    listed = [read] if isinstance(read, str | Source) else list(read)
    sources = tuple(Source(one) if isinstance(one, str) else one for one in listed)
    if not sources or not all(isinstance(one, Source) for one in sources):
        raise Invalid("read names at least one journal: 'orders', ['orders', 'payments/*'] or Source(...)")
    plain = [one.journal for one in sources]
    if len(set(plain)) != len(plain):
        raise Invalid(f"each journal is read once: {', '.join(plain)}")
    return sources


def checked_number(value: Any, low: int, high: int, what: str) -> int:
    """A number within limits."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Invalid(f"{what}: a number from {low} to {high}, not {value!r}")
    return value
