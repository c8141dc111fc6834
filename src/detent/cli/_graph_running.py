"""Running a graph for `detent graph run`: until it is told to stop, or until nothing is left to do."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from detent.cli._graph_views import COUNTED, JsonView, LineView, Notice, Seen, Tally, View, fields_of, logs, view_of
from detent.cli._output import note, print_table, progress_bar
from detent.errors import DetentError, Invalid, Unavailable
from detent.runtime.signals import stop_on_signals

if TYPE_CHECKING:
    from detent.processor.graph import Graph
    from detent.processor.live_graph import LiveGraph

LOOK_S: Final = 0.2
"""How often a command that runs looks whether it is to stop, and how far it is."""

SHOW_CURSOR: Final = "\x1b[?25h"
"""A progress bar hides it."""

INTERRUPTED: Final = 128 + signal.SIGINT


def run(graph: Graph, url: str, names: Sequence[str], migrate: Sequence[str], *, verbose: bool, as_json: bool) -> None:
    """Run processors until Ctrl-C or SIGTERM, which let the steps under way end. The second one does not wait."""
    stopping = threading.Event()
    view = view_of(graph.name, as_json=as_json)
    tally = Tally(view, names)
    with (
        stop_on_signals(stopping, lambda: _end_now(INTERRUPTED, view)),
        view,
        logs(view, verbose=verbose, as_json=as_json),
        graph.open(url, on_event=tally.see) as live,
    ):
        before = tally.look(live)
        live.start(only=names, migrate=migrate)
        view.tell(_started(graph, url, names))
        while not stopping.wait(LOOK_S):
            _show(view, live, tally)
        view.tell(Notice("stopping", text="stopping: steps under way are waited for; Ctrl-C does not wait"))
        live.stop()
        tally.stopped()
        now = tally.look(live)
        view.end(now, _since(before, now))


def _started(graph: Graph, url: str, names: Sequence[str]) -> Notice:
    text = f"started {graph.name} on {url}: {', '.join(names)}"
    return Notice("started", text=text, fields={"graph": graph.name, "store": url, "processors": list(names)})


def _show(view: View, live: LiveGraph, tally: Tally) -> None:
    try:
        view.show(live, tally)
    except BrokenPipeError:
        raise
    except (Unavailable, OSError) as error:  # the thread that renews the leases says so: this is a look only
        logging.getLogger("detent.cli").info("the processors cannot be seen now: %s", error)


def _since(before: Sequence[Seen], now: Sequence[Seen]) -> list[Seen]:
    """What has become of input sets in between."""
    return [
        replace(one, **{name: getattr(one, name) - getattr(then, name) for name in COUNTED})
        for then, one in zip(before, now, strict=True)
    ]


def _end_now(code: int, view: View) -> None:
    """End without waiting for threads in which functions hang. What they were at comes again."""
    view.__exit__(None, None, None)
    if sys.__stderr__ is not None and sys.__stderr__.isatty():
        sys.__stderr__.write(SHOW_CURSOR)
    for stream in (sys.stdout, sys.stderr):
        with suppress(RuntimeError):  # a signal has come while it was written to
            stream.flush()
    os._exit(code)


# -- once -----------------------------------------------------------------------------------------------------------


def run_once(
    graph: Graph, url: str, names: Sequence[str], migrate: Sequence[str], *, verbose: bool, as_json: bool
) -> None:
    """Run processors until none has anything left to do; raises what made one fail."""
    stopping = threading.Event()
    with progress_bar(f"running {graph.name}", hidden=as_json) as move:
        view: View = JsonView() if as_json else LineView()  # made here: the bar moves up what is printed under it
        tally = Tally(view, names, silent=("running", "failed"))
        with (
            stop_on_signals(stopping, lambda: _end_now(INTERRUPTED, view)),
            logs(view, verbose=verbose, as_json=as_json),
            graph.open(url, on_event=tally.see) as live,
        ):
            before = tally.look(live)
            live.start(only=names, migrate=migrate)
            with _moving(move, live, tally, sum(one.done for one in before)):
                problem = _settled(live, tally, stopping)
            live.stop()
            seen = _since(before, tally.look(live))
    _print_summary(graph, seen, problem, view)
    if problem is not None:
        raise problem


def _settled(live: LiveGraph, tally: Tally, stopping: threading.Event) -> DetentError | None:
    """Wait until nothing is left, also of what another process has taken on. What went wrong, if something did."""
    try:
        live.finish(stopping)
    except Exception as error:  # noqa: BLE001 - of the user's function, which is told, and raised
        return _problem(live, tally, error)
    return None


def _problem(live: LiveGraph, tally: Tally, error: BaseException) -> DetentError:
    """Which processor failed, of what, and what that means."""
    from detent.processor.plan import errors_of
    from detent.processor.task import told

    failed = [name for name in tally.restarts if live.local_error(name) is error]
    if not failed:
        return error if isinstance(error, DetentError) else Invalid(f"{type(error).__name__}: {error}")
    one = live.graph.processor(failed[0])
    dropped = (one.delivery or live.graph.delivery) == "at-most-once"
    then = "its input counts as done" if dropped else "nothing came of that input, and the next run begins with it"
    has_journal = errors_of(one, live.graph.errors) is not None
    hint = "; with errors='...' it would be written to a journal, and passed by"
    if has_journal or one.kind == "source" or isinstance(error, DetentError):
        hint = ""  # it is not the message that is wrong
    return Invalid(f"the processor {one.name!r} failed: {told(error)}; {then}{hint}")


@contextmanager
def _moving(move: Callable[[int, int | None], None], live: LiveGraph, tally: Tally, before: int) -> Iterator[None]:
    """Move the progress bar meanwhile, if it is shown: what was done, of that and what is left."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(LOOK_S):
            try:
                seen = tally.look(live)
            except (Unavailable, OSError) as error:  # a look only
                logging.getLogger("detent.cli").info("the processors cannot be seen now: %s", error)
                continue
            done = sum(one.done for one in seen) - before
            move(done, done + sum(one.left for one in seen))

    if not sys.stderr.isatty():
        yield
        return
    thread = threading.Thread(target=follow, name="detent-graph-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _print_summary(graph: Graph, seen: Sequence[Seen], problem: DetentError | None, view: View) -> None:
    from detent.processor.plan import errors_of

    columns = [*COUNTED, "lag"]
    if isinstance(view, JsonView):
        said = None if problem is None else str(problem)
        listed = [{name: fields[name] for name in ("processor", *columns)} for fields in fields_of(seen)]
        view.say({"event": "summary", "graph": graph.name, "processors": listed, "problem": said})
        return
    print_table(["processor", *columns], [[one.processor, *(str(getattr(one, c)) for c in columns)] for one in seen])
    failed = {str(errors_of(graph.processor(one.processor), graph.errors)) for one in seen if one.errors}
    if failed:
        note(f"what failed is in {' and '.join(sorted(failed))}: `detent journal read` shows it")
