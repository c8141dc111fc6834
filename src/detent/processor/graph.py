"""`Graph`: sources, streams and sinks, declared in plain Python, checked before they start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, overload

from detent.durations import Duration
from detent.errors import Invalid
from detent.processor import declaration, live_graph
from detent.processor.declaration import Function, Processor
from detent.processor.drawing import drawn
from detent.processor.live_graph import LiveGraph
from detent.processor.plan import GraphPlan

if TYPE_CHECKING:
    from detent.store import Store


class Graph(GraphPlan):
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

    # -- declaring ----------------------------------------------------------------------------------------------

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

        It is open to all writers: `LiveGraph.send`, an appender, another program. With `poll`, a function of a cursor
        that answers ``Polled(values, cursor)``, the graph asks for messages itself, and again every so often where
        there were none.
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

    @overload
    def draw(self) -> str: ...

    @overload
    def draw(self, kind: Literal["text", "mermaid"]) -> str: ...

    def draw(self, kind: Literal["text", "mermaid"] = "text") -> str:
        """The graph as text, or for Mermaid."""
        self.check()
        return drawn(self, kind)

    # -- running ------------------------------------------------------------------------------------------------

    @contextmanager
    def open(self, store: str | Store | None = None, **options: Any) -> Iterator[LiveGraph]:
        """The graph with its stores open: to start, send, read, look and reset. `store` is another URL than the
        graph's own, or a store that is open."""
        with live_graph.opened(self, store, **options) as live:
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
        elsewhere. `detent run module:graph` does the same."""
        live_graph.run(self, store, once=once, only=only, migrate=migrate)
