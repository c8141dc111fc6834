"""Graphs in a process of their own, for tests that kill it.

Every graph keeps its progress in the store `a` of a folder; with `far` it writes to the stores `b` and `c` beside it.
Messages are numbers. Each function first writes down which inputs it was given under which key, and then looks whether
it is to die: a file says at which input, and is removed first, so that the next one lives.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import detent
from detent.processor import Graph, Out, Polled, Step
from processes import Io

LEASE = "500ms"
"""As short as it may be: heirs of a process that stands still wait for its end."""

TRAIL = "trail"
EFFECTS = "effects"

Order = dict[str, Any]


def url_of(folder: Path, store: str = "") -> str:
    """The stores of a folder; "" is the graph's own."""
    return f"file:{folder / (store or 'a')}"


def write_line(path: Path, *words: str) -> None:
    """One line, whole, whatever happens next."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, (" ".join(words) + "\n").encode())
    finally:
        os.close(descriptor)


def enter(folder: Path, step: Step) -> None:
    """What each function does first."""
    inputs = ",".join(f"{message.journal}#{message.offset}" for message in step.inputs)
    write_line(folder / TRAIL, step.processor, step.key, inputs)
    order = folder / f"die-{step.processor}"
    if order.exists() and order.read_text() in {"", *inputs.split(",")}:
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def die_at(folder: Path, processor: str, at: str = "") -> None:
    """Have a function end its process when it is given the message JOURNAL#OFFSET, or any."""
    (folder / f"die-{processor}").write_text(at)


def new_graph(folder: Path, name: str, *, stores: Sequence[str] = (), **options: Any) -> Graph:
    """A graph of the folder's stores."""
    others = {one: url_of(folder, one) for one in stores}
    return Graph(name, store=url_of(folder), stores=others, lease=LEASE, **options)


# -- the graphs ---------------------------------------------------------------------------------------------------


def sorting(
    folder: Path,
    *,
    far: bool = False,
    errors: str | None = "",
    stores: Sequence[str] | None = None,
    extra: bool = False,
    batch: int = 1,
    name: str = "sort",
    formerly: str | None = None,
    delivery: Any = None,
) -> Graph:
    """Of each three numbers the first goes out, the second is dropped, and the third fails."""
    at = "@b" if far else ""
    errors = f"failed{at}" if errors == "" else errors
    graph = new_graph(folder, "sorting", stores=stores if stores is not None else ["b"] if far else [], errors=errors)
    graph.source("in")
    outputs = [f"out{at}", *([f"extra{at}"] if extra else [])]
    options = {"batch": batch, "name": name, "formerly": formerly, "delivery": delivery}

    @graph.stream(input="in", outputs=outputs, **options)
    def sort(number: int, step: Step) -> Any:
        enter(folder, step)
        if number % 3 == 2:
            raise ValueError(f"{number} does not please")
        if number % 3 == 1:
            return None
        return Out(number, to=outputs[0])

    return graph


def joining(folder: Path, *, far: bool = False, inputs: Sequence[str] = ("left", "right"), batch: int = 1) -> Graph:
    """One message of each input becomes a list."""
    graph = new_graph(folder, "joining", stores=["b"] if far else [])
    for one in inputs:
        graph.source(one)

    @graph.stream(join=list(inputs), output="pairs@b" if far else "pairs", batch=batch)
    def pair(*numbers: int, step: Step) -> list[int]:
        enter(folder, step)
        return list(numbers)

    return graph


def choosing(
    folder: Path,
    *,
    far: bool = False,
    inputs: Sequence[str] = ("high", "low"),
    batch: int = 1,
    delivery: Any = None,
) -> Graph:
    """Messages of several journals in one."""
    graph = new_graph(folder, "choosing", stores=["b"] if far else [])
    for one in inputs:
        graph.source(one)

    @graph.stream(any_of=list(inputs), output="merged@b" if far else "merged", batch=batch, delivery=delivery)
    def merge(number: int, step: Step) -> list[Any]:
        enter(folder, step)
        if batch > 1:  # it does not say which of its messages this one is
            return ["", number]
        return [step.inputs[0].journal, number]

    return graph


def forking(folder: Path, *, far: bool = False) -> Graph:
    """Each number goes to one journal, the odd ones to another, too."""
    near, all_of_them, odd = ("near", "all@b", "odd@c") if far else ("near", "all", "odd")
    graph = new_graph(folder, "forking", stores=["b", "c"] if far else [])
    graph.source("in")

    @graph.stream(input="in", outputs={"near": near, "all": all_of_them, "odd": odd})
    def spread(number: int, step: Step) -> dict[str, Any]:
        enter(folder, step)
        return {"near": number, "all": number, "odd": number if number % 2 else None}

    return graph


def sinking(folder: Path, *, far: bool = False, whole: bool = False, types: str = "") -> Graph:
    """Effects outside: lines of a file, each with its key."""
    journal = "in@b" if far else "in"
    graph = new_graph(folder, "sinking", stores=["b"] if far else [])
    graph.source("in", output=journal)

    if whole:

        @graph.sink(name="take", input=journal, whole=True, batch=4, types=types or ())
        def take_all(numbers: list[int], step: Step) -> None:
            enter(folder, step)
            write_line(folder / EFFECTS, step.key, ",".join(map(str, numbers)))

    else:

        @graph.sink(input=journal, types=types or ())
        def take(number: int, step: Step) -> None:
            enter(folder, step)
            write_line(folder / EFFECTS, step.key, str(number))

    return graph


def totalling(folder: Path, *, far: bool = False, batch: int = 4) -> Graph:
    """A whole batch becomes one message."""
    graph = new_graph(folder, "totalling", stores=["b"] if far else [])
    graph.source("in")

    @graph.stream(input="in", output="totals@b" if far else "totals", whole=True, batch=batch)
    def total(numbers: list[int], step: Step) -> list[int]:
        enter(folder, step)
        return numbers

    return graph


def sharing(folder: Path, *, far: bool = False) -> Graph:
    """Two processors that write one journal."""
    out = "out@b" if far else "out"
    graph = new_graph(folder, "sharing", stores=["b"] if far else [])
    for one in ("one", "two"):
        graph.source(one)

        @graph.stream(name=f"from-{one}", input=one, output=out)
        def copy(number: int, step: Step) -> list[Any]:
            enter(folder, step)
            return [step.inputs[0].journal, number]

    return graph


def polling(folder: Path, *, far: bool = False, count: int = 6) -> Graph:
    """A source that is asked for numbers, two at a time."""
    graph = new_graph(folder, "polling", stores=["b"] if far else [])

    def count_up(cursor: int | None, step: Step) -> Polled:
        enter(folder, step)
        at = cursor or 0
        return Polled(list(range(at, min(at + 2, count))), min(at + 2, count))

    graph.source("counted", poll=count_up, output="counted@b" if far else "counted", every="10s")
    return graph


NOISE = 5
FAILING = 11
"""Of so many orders one is none, and one cannot be done."""


def storming(folder: Path, *, far: bool = True) -> Graph:
    """Twelve processors with everything that there is: orders are filtered, checked, routed, worked on in two ways and
    brought together again; events are labelled, joined with themselves, copied, archived elsewhere and entered in a
    book outside."""
    assert far
    graph = new_graph(folder, "storming", stores=["b"], errors="failed")
    graph.source("orders")
    graph.source("events")

    @graph.stream(input="orders", output="kept", types="order", batch=60)
    def keep(order: Order, step: Step) -> Any:
        enter(folder, step)
        return order

    @graph.stream(input="kept", output="valid", batch=40)
    def examine(order: Order, step: Step) -> Any:
        enter(folder, step)
        if order["id"] % FAILING == 5:
            raise ValueError("no order")
        return order

    @graph.stream(input="valid", outputs={"small": "small", "big": "big", "audit": "audit@b"}, batch=40)
    def route(order: Order, step: Step) -> dict[str, Any]:
        enter(folder, step)
        number = order["id"]
        return {"big" if number % 2 else "small": order, "audit": number if number % 3 == 0 else None}

    @graph.stream(input="small", output="priced", parallel=3, batch=30)
    def price(order: Order, step: Step) -> Any:
        enter(folder, step)
        return {**order, "how": "priced"}

    @graph.stream(input="big", output="weighed", batch=30)
    def weigh(order: Order, step: Step) -> Iterator[Any]:
        enter(folder, step)
        yield {**order, "how": "weighed"}

    @graph.stream(any_of=["priced", "weighed"], output="merged", batch=40)
    def merge(order: Order, step: Step) -> Any:
        enter(folder, step)
        return order

    @graph.stream(input="merged", output="totals", whole=True, batch=25)
    def total(orders: list[Order], step: Step) -> list[int]:
        enter(folder, step)
        return [order["id"] for order in orders]

    _storm_of_events(graph, folder)
    return graph


def _storm_of_events(graph: Graph, folder: Path) -> None:
    @graph.stream(input="events", output="labelled", batch=70)
    def label(event: int, step: Step) -> list[Any]:
        enter(folder, step)
        return ["label", event]

    @graph.stream(join=["labelled", "events"], output="paired", batch=50)
    def pair(label: list[Any], event: int, step: Step) -> list[int]:
        enter(folder, step)
        return [label[1], event]

    @graph.stream(input="paired", outputs=["left", "right"], batch=60)
    def spread(both: list[int], step: Step) -> dict[str, int]:
        enter(folder, step)
        return {"left": both[0], "right": both[1]}

    @graph.stream(input="left", output="archived@b", batch=50)
    def archive(event: int, step: Step) -> int:
        enter(folder, step)
        return event

    @graph.sink(input="right", batch=50)
    def book(event: int, step: Step) -> None:
        enter(folder, step)
        write_line(folder / EFFECTS, step.key, str(event))


GRAPHS: dict[str, Callable[..., Graph]] = {
    "sorting": sorting,
    "joining": joining,
    "choosing": choosing,
    "forking": forking,
    "sinking": sinking,
    "totalling": totalling,
    "sharing": sharing,
    "polling": polling,
    "storming": storming,
}


# -- the processes ------------------------------------------------------------------------------------------------


def runs(
    io: Io,
    graph: str,
    folder: str,
    options: dict[str, Any],
    only: list[str] | None = None,
    migrate: Sequence[str] = (),
) -> None:
    """A graph until nothing is left to do."""
    GRAPHS[graph](Path(folder), **options).run(once=True, only=only, migrate=migrate)
    io.say("done")
    os._exit(0)  # all is closed, and an interpreter takes its time to end


def serves(io: Io, graph: str, folder: str, options: dict[str, Any], role: str = "auto") -> None:
    """A graph until the test says end; tells what happens to its processors."""
    made = GRAPHS[graph](Path(folder), **options)

    def tell(what: str, processor: str, more: str) -> None:
        io.say(what, processor=processor, more=more)

    with detent.open(url_of(Path(folder)), role=role) as store, made.open(store, on_event=tell) as live:  # type: ignore[arg-type]
        live.start()
        io.say("started")
        for _ in io.calls():
            pass
    os._exit(0)
