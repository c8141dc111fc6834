"""`Graph`: sources, streams and sinks, declared in plain Python, checked before they start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from detent import names
from detent.durations import Duration, milliseconds
from detent.errors import Invalid
from detent.processor import declaration
from detent.processor.checks import check_graph, in_order
from detent.processor.declaration import DELIVERIES, NAME_MAX, Delivery, Function, Processor
from detent.processor.place import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from detent.processor.live import LiveGraph
    from detent.store import Store

LEASE: Final = "10s"
LEASE_MS_MIN: Final = 500
"""A lease is renewed several times before it runs out; a shorter one would be all that its holder does."""


class Graph:
    """Processors that read journals and write others, each message taking effect exactly once.

    >>> graph = Graph("shop", store="file:./data", errors="failed")
    >>> orders = graph.source("orders")
    >>> @graph.stream(input="orders", output="totals")
    ... def total(order):
    ...     return {"order": order["id"], "total": order["price"] * order["count"]}
    >>> @graph.sink(input="totals")
    ... def show(total, step):
    ...     print(step.key, total)

    `store` is where its journals and its progress are; `stores` names others, of which a processor reads and writes
    journals as ``orders@archive``. `errors` is the journal for input sets whose function failed; without one, a
    processor that fails rests, and tries again. `system` is handed to every function that asks for its `step`.
    `delivery` is "exactly-once", or "at-most-once" for processors that would rather drop a message than see it twice.
    `processors` are declared ones, for those who do not like decorators. `lease` is how long a process that vanished on
    another machine keeps its processors.
    """

    def __init__(
        self,
        name: str,
        *,
        store: str | None = None,
        stores: Mapping[str, str] | None = None,
        processors: Iterable[Processor] = (),
        errors: str | None = None,
        system: Any = None,
        delivery: Delivery = "exactly-once",
        lease: Duration = LEASE,
    ) -> None:
        names.check_name(name, "graph")
        if "/" in name or len(name) > NAME_MAX:
            raise Invalid(f"a graph's name has up to {NAME_MAX} letters and no '/', not {name!r}")
        if delivery not in DELIVERIES:
            raise Invalid(f"delivery is {' or '.join(map(repr, DELIVERIES))}, not {delivery!r}")
        self.name = name
        self.store = store
        self.stores = dict(stores or {})
        for other in self.stores:
            names.check_name(other, "store")
        self.errors = None if errors is None else place(errors)
        self.system = system
        self.delivery: Delivery = delivery
        self.lease_ms = milliseconds(lease)
        if self.lease_ms < LEASE_MS_MIN:
            raise Invalid(f"a lease lasts at least {LEASE_MS_MIN} ms, not {lease}")
        self.processors: list[Processor] = []
        for processor in processors:
            self.add(processor)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.processors)} processors)"

    # -- declaring ----------------------------------------------------------------------------------------------

    def add(self, processor: Processor) -> Processor:
        """Add a processor that was declared with `source`, `stream` or `sink` of `detent.processor`."""
        if not isinstance(processor, Processor):
            raise Invalid(f"a processor is made by source(...), stream(...) or sink(...), not {processor!r}")
        if any(one.name == processor.name for one in self.processors):
            raise Invalid(f"{processor.name!r} is declared twice: each processor has a name of its own")
        self.processors.append(processor)
        return processor

    def source(
        self,
        name: str,
        *,
        poll: Callable[..., Any] | None = None,
        output: str | None = None,
        every: Duration = "1s",
        formerly: str | None = None,
    ) -> str:
        """Declare a journal that messages come in by. Answers its name.

        Anybody may write it: `LiveGraph.send`, an appender, another program. With `poll`, a function of a cursor that
        answers ``Polled(values, cursor)``, the graph asks for messages itself, whenever it has none every so often.
        """
        self.add(declaration.source(name, poll, output=output, every=every, formerly=formerly))
        return name if output is None else output

    def poll(
        self, *, name: str | None = None, output: str | None = None, every: Duration = "1s", formerly: str | None = None
    ) -> Callable[[Function], Function]:
        """Decorator of a function of a cursor that answers ``Polled(values, cursor)``: a source by its name that the
        graph asks for messages. See `source`."""

        def decorate(function: Function) -> Function:
            own = name or function.__name__
            self.source(own, poll=function, output=output, every=every, formerly=formerly)
            return function

        return decorate

    def stream(self, *function: Any, **options: Any) -> Callable[[Function], Function]:
        """Decorator of a function from messages to messages; its name is the processor's, unless `name` is given.

        Inputs, one of: `input` a journal; `join` several, one message of each at a time; `any_of` several, a message
        of one of them at a time. Outputs: `output` a journal, or `outputs` several, of which the function answers a
        dictionary, without those that get nothing.

        A parameter gets its message as JSON, or as what it is annotated with: a class of yours, `bytes`, or `Message`.
        One that is called `step` gets the `Step`. The answer is None, bytes, anything that becomes JSON, an `Out`, or a
        list of `Out`; a function that yields answers several.

        `types` and `topics` let only messages pass that have one of them. `errors` is another journal for failures than
        the graph's, or False for none. `retries` says how often a function that failed is tried again at once. `batch`
        is how many input sets one commit holds; with `whole` the function gets them as lists. `parallel` runs input
        sets of different keys at the same time, each key in order. `delivery` is another one than the graph's. `start`
        is "earliest", "latest" or an offset, for inputs that were never read. `formerly` is the name that the processor
        had before, whose progress it takes over.
        """
        return self._decorator(declaration.stream, function, options)

    def sink(self, *function: Any, **options: Any) -> Callable[[Function], Function]:
        """Decorator of a function that has its effects outside. It is called at least once, always with the same
        ``step.key``: see `SqlSink`, `ObjectSink`, `HttpSink` and `FileSink` for effects that happen exactly once.

        Options are those of `stream`, without outputs.
        """
        return self._decorator(declaration.sink, function, options)

    def _decorator(
        self, declare: Callable[..., Processor], given: tuple[Any, ...], options: dict[str, Any]
    ) -> Callable[[Function], Function]:
        if given:
            kind = declare.__name__
            raise Invalid(f"write @graph.{kind}(input='...'), or graph.add({kind}('name', function, input='...'))")
        name = options.pop("name", None)

        def decorate(function: Function) -> Function:
            own = name or getattr(function, "__name__", None)
            if own is None:
                raise Invalid(f"{function!r} has no name: give name='...'")
            declaration.check_options(own, declare, options)
            self.add(declare(own, function, **options))
            return function

        return decorate

    # -- looking ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """`Invalid`, with all that is wrong, unless this is a graph that can run."""
        from detent.processor.function import Function as Called

        if not self.processors:
            raise Invalid(f"the graph {self.name!r} has no processors: declare one with @graph.stream(...)")
        check_graph(self.processors, self.errors, self.stores)
        for processor in self.processors:
            if processor.runs:
                Called(processor, None)  # refuses functions with other parameters

    def in_order(self) -> list[Processor]:
        """The processors, each after those that write what it reads."""
        return in_order(self.processors, self.errors)

    def processor(self, name: str) -> Processor:
        """The processor of that name."""
        for one in self.processors:
            if one.name == name:
                return one
        listed = ", ".join(one.name for one in self.processors)
        raise Invalid(f"the graph {self.name!r} has no processor {name!r}: it has {listed or 'none'}")

    @overload
    def draw(self) -> str: ...

    @overload
    def draw(self, kind: Literal["text", "mermaid"]) -> str: ...

    def draw(self, kind: Literal["text", "mermaid"] = "text") -> str:
        """The graph as text, or for Mermaid."""
        from detent.processor.drawing import drawn

        self.check()
        return drawn(self, kind)

    # -- running ------------------------------------------------------------------------------------------------

    @contextmanager
    def open(self, store: str | Store | None = None, **options: Any) -> Iterator[LiveGraph]:
        """The graph with its stores open: to start, send, read, look and reset. `store` is another URL than the
        graph's own, or a store that is open."""
        from detent.processor.live import opened

        with opened(self, store, **options) as live:
            yield live

    def run(
        self,
        store: str | Store | None = None,
        *,
        once: bool = False,
        only: Sequence[str] | None = None,
        migrate: Sequence[str] = (),
    ) -> None:
        """Run the processors in threads of this process, until SIGTERM or Ctrl-C; with `once`, until nothing is left to
        do; raises then what made a processor fail several times in a row. `only` names some of them: others may run
        elsewhere. `detent graph run module:graph` does the same."""
        from detent.processor.live import run

        run(self, store, once=once, only=only, migrate=migrate)
