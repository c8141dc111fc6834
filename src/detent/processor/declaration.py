"""Processors as they are declared: sources, streams and sinks, each a value that can be checked before it runs."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeVar

from detent import names
from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.stream.following import Start

NAME_MAX: Final = 80
"""Of a graph and of a processor: both are in the name of the processor's record, and in the header of each output."""

INPUTS_MAX: Final = 64
OUTPUTS_MAX: Final = 64
"""A processor waits for each input, and one with so many is better cut into several."""

BATCH_MAX: Final = 10_000
"""Input sets in one step: all of them are in memory, and in one transaction."""

EVERY_MS_MIN: Final = 1
"""A source that is asked without a pause would be all that its process does."""

PARALLEL_MAX: Final = 256
RETRIES_MAX: Final = 1_000

Kind = Literal["source", "stream", "sink"]
Mode = Literal["none", "one", "zip", "any"]
Delivery = Literal["exactly-once", "at-most-once"]
Function = TypeVar("Function", bound=Callable[..., Any])

DELIVERIES: Final = ("exactly-once", "at-most-once")


class JournalPlace(NamedTuple):
    """A journal, and the name that the graph has for its store; "" is the graph's own."""

    journal: str
    store: str = ""

    def __str__(self) -> str:
        return f"{self.journal}@{self.store}" if self.store else self.journal


def place(text: str) -> JournalPlace:
    """From ``orders`` or ``orders@archive``."""
    if not isinstance(text, str):
        raise Invalid(f"a journal is named by text such as 'orders' or 'orders@archive', not by {text!r}")
    journal, at, store = text.partition("@")
    names.check_name(journal, "journal")
    if at:
        names.check_name(store, "store")
    return JournalPlace(journal, store)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """A source, a stream or a sink. Made by `source`, `stream` and `sink`, or by a graph's decorators."""

    name: str
    kind: Kind
    function: Callable[..., Any] | None
    mode: Mode
    inputs: tuple[JournalPlace, ...]
    outputs: Mapping[str, JournalPlace]
    """By the names that the function knows them by."""
    errors: JournalPlace | None = None
    types: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    delivery: Delivery | None = None
    """None: as the graph says."""
    batch: int = 1
    whole: bool = False
    """Whether the function takes the batch as a list, instead of being called for each input set."""
    parallel: int = 1
    retries: int = 0
    retry_pause_ms: int = 0
    start: Start = "earliest"
    every_ms: int = 0
    formerly: str | None = None
    errors_off: bool = False
    """Whether the graph's error journal is not for this one."""

    @property
    def is_async(self) -> bool:
        """Whether it needs an event loop."""
        return _is(inspect.iscoroutinefunction, self.function)

    @property
    def is_generator(self) -> bool:
        """Whether its function yields what it answers."""
        return _is(inspect.isgeneratorfunction, self.function)

    @property
    def own_inputs(self) -> list[str]:
        """The journals that it reads in the graph's own store."""
        return [one.journal for one in self.inputs if not one.store]

    @property
    def runs(self) -> bool:
        """Whether there is anything to run: a source that is only written to is a journal."""
        return self.function is not None


def source(
    name: str,
    function: Callable[..., Any] | None = None,
    *,
    output: str | None = None,
    every: Duration = "1s",
    formerly: str | None = None,
) -> Processor:
    """A journal that messages come in by: written by `send`, by appenders, by any program.

    With a function it is asked every so often: the function gets what it answered last as its `cursor` (None at first),
    and answers ``Polled(values, cursor)``. Values and cursor are committed together, so none is lost or repeated.
    """
    every_ms = milliseconds(every)
    if every_ms < EVERY_MS_MIN:
        raise Invalid(f"the source {name!r} is asked every {EVERY_MS_MIN} ms at most, not every {every}")
    return Processor(
        name=_name(name),
        kind="source",
        function=None if function is None else _function(function, name),
        mode="none",
        inputs=(),
        outputs={name if output is None else output: place(name if output is None else output)},
        every_ms=every_ms,
        formerly=None if formerly is None else _name(formerly),
        errors_off=True,
    )


def stream(
    name: str,
    function: Callable[..., Any],
    *,
    input: str | None = None,
    join: Sequence[str] | None = None,
    any_of: Sequence[str] | None = None,
    output: str | None = None,
    outputs: Sequence[str] | Mapping[str, str] | None = None,
    **options: Any,
) -> Processor:
    """Messages in, messages out. Options: see `Graph.stream`."""
    found = _outputs(name, output, outputs)
    if not found:
        raise Invalid(f"the stream {name!r} has no output: say output='...', or make it a sink")
    return _processor(name, "stream", function, _inputs(name, input, join, any_of), found, **options)


def sink(
    name: str,
    function: Callable[..., Any],
    *,
    input: str | None = None,
    join: Sequence[str] | None = None,
    any_of: Sequence[str] | None = None,
    **options: Any,
) -> Processor:
    """Messages in, effects outside. Options: see `Graph.sink`."""
    return _processor(name, "sink", function, _inputs(name, input, join, any_of), {}, **options)


def _processor(
    name: str,
    kind: Kind,
    function: Callable[..., Any],
    inputs: tuple[Mode, tuple[JournalPlace, ...]],
    outputs: Mapping[str, JournalPlace],
    *,
    types: str | Iterable[str] = (),
    topics: str | Iterable[str] = (),
    errors: str | bool | None = None,
    delivery: Delivery | None = None,
    batch: int = 1,
    whole: bool = False,
    parallel: int = 1,
    retries: int = 0,
    retry_pause: Duration = "100ms",
    start: Start = "earliest",
    formerly: str | None = None,
) -> Processor:
    if delivery is not None and delivery not in DELIVERIES:
        raise Invalid(f"delivery is {' or '.join(map(repr, DELIVERIES))}, not {delivery!r}")
    if start not in {"earliest", "latest"} and (not isinstance(start, int) or isinstance(start, bool) or start < 0):
        raise Invalid(f"start is 'earliest', 'latest' or an offset, not {start!r}")
    if errors is True or not (errors is None or errors is False or isinstance(errors, str)):
        raise Invalid(f"errors names a journal, or is False where failures are not to be written: not {errors!r}")
    parallel = _number(parallel, 1, PARALLEL_MAX, f"parallel of {name!r}")
    batch = _number(batch, 1, BATCH_MAX, f"batch of {name!r}")
    if whole and parallel > 1:
        raise Invalid(f"{name!r} takes its batch whole, so there is nothing to run in parallel")
    return Processor(
        name=_name(name),
        kind=kind,
        function=_function(function, name),
        mode=inputs[0],
        inputs=inputs[1],
        outputs=outputs,
        errors=place(errors) if isinstance(errors, str) else None,
        errors_off=errors is False,
        types=_texts(types, "types"),
        topics=_texts(topics, "topics"),
        delivery=delivery,
        batch=max(batch, parallel),
        whole=bool(whole),
        parallel=parallel,
        retries=_number(retries, 0, RETRIES_MAX, f"retries of {name!r}"),
        retry_pause_ms=milliseconds(retry_pause),
        start=start,
        formerly=None if formerly is None else _name(formerly),
    )


def _name(name: Any) -> str:
    if name == "<lambda>":
        raise Invalid("a lambda has no name: give name='...'")
    if isinstance(name, str) and ("/" in name or len(name) > NAME_MAX):
        raise Invalid(f"a processor's name has up to {NAME_MAX} letters and no '/', not {name!r}")
    names.check_name(name, "processor")
    return str(name)


def check_options(name: str, declare: Callable[..., Processor], options: Mapping[str, Any]) -> None:
    """`Invalid`, with what was meant, for options that there are not."""
    known = [*inspect.signature(declare).parameters, *inspect.signature(_processor).parameters]
    allowed = [one for one in known if one not in {"name", "kind", "function", "inputs", "options"}]
    allowed = [one for one in allowed if declare is not sink or one != "outputs"]
    for option in options:
        if option not in allowed:
            near = difflib.get_close_matches(option, allowed, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(dict.fromkeys(allowed))}"
            raise Invalid(f"{name!r} has no option {option!r}: {hint}")


def _function(function: Any, name: str) -> Callable[..., Any]:
    if not callable(function):
        hint = ": decorate one with its .sink" if callable(getattr(function, "sink", None)) else ""
        raise Invalid(f"the processor {name!r} needs a function, not {type(function).__name__}{hint}")
    if _is(inspect.isasyncgenfunction, function):
        raise Invalid(f"{name!r} is an async generator: return a list of Out from an async function instead")
    return function  # type: ignore[no-any-return]


def _is(kind: Callable[[Any], bool], function: Any) -> bool:
    """Whether a function is of a kind, or an object that is called like one."""
    return kind(function) or kind(getattr(type(function), "__call__", None))  # noqa: B004 - not whether, but what


def _inputs(name: str, one: Any, join: Any, any_of: Any) -> tuple[Mode, tuple[JournalPlace, ...]]:
    given = [what for what in (one, join, any_of) if what is not None]
    if len(given) != 1:
        raise Invalid(f"the processor {name!r} has one of input='...', join=[...] and any_of=[...]")
    if one is not None:
        return "one", (place(one),)
    places = tuple(place(text) for text in _listed(given[0], "join" if join is not None else "any_of"))
    if not 2 <= len(places) <= INPUTS_MAX or len(set(places)) != len(places):
        what = "join" if join is not None else "any_of"
        raise Invalid(
            f"{what} of {name!r} names 2 to {INPUTS_MAX} different journals, not {', '.join(map(str, places))}"
        )
    return ("zip" if join is not None else "any"), places


def _outputs(name: str, one: Any, many: Any) -> dict[str, JournalPlace]:
    if one is not None and many is not None:
        raise Invalid(f"{name!r} has output='...' or outputs=[...], not both")
    if one is not None:
        return {one: place(one)}
    if many is None:
        return {}
    pairs = list(many.items()) if isinstance(many, Mapping) else [(text, text) for text in _listed(many, "outputs")]
    places = {binding: place(text) for binding, text in pairs}
    if len(set(places.values())) != len(pairs) or len(places) > OUTPUTS_MAX:
        raise Invalid(f"{name!r} has up to {OUTPUTS_MAX} outputs, each a different journal")
    return places


def _texts(value: str | Iterable[str], what: str) -> frozenset[str]:
    found = _listed(value, what)
    if not all(isinstance(text, str) and text and "," not in text for text in found):
        raise Invalid(f"{what} are texts without commas, not {value!r}")
    return frozenset(found)


def _listed(value: Any, what: str) -> list[Any]:
    """One text, or several."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Iterable):
        raise Invalid(f"{what} are a list of texts, not {value!r}")
    return list(value)


def _number(value: Any, low: int, high: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Invalid(f"{what} is a number from {low} to {high}, not {value!r}")
    return value
