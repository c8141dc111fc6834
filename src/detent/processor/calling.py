"""Running input sets through a processor's function: filtered, tried again, in parallel; what comes of them."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec

from detent import spans
from detent.errors import Busy, Corrupt, Fenced, Invalid, Unavailable
from detent.journal import Message
from detent.processor.declaration import JournalPlace, Processor
from detent.processor.function import Function
from detent.processor.inputs import Set, Singles
from detent.processor.outcome import (
    ERROR_TYPE,
    STEP_BYTES_MAX,
    TOPICS,
    TYPE,
    AnswerWriter,
    StepOutcome,
    Written,
    encoded,
    error_body,
)
from detent.processor.provenance import HEADER, named_inputs, origin_of, origins_of
from detent.processor.step import Polled, Step
from detent.runtime import thread
from detent.runtime.backoff import Backoff

RETRY_PAUSE_S_MAX: Final = 30.0

CURSOR_BYTES_MAX: Final = 1 << 20
"""It is written with every answer of its source."""

LOT: Final = 8
"""Input sets a thread that are run before what came of them is looked at."""

NOT_OUTPUTS: Final = (Unavailable, Busy, Fenced, Corrupt)
"""Failures that are not an output: what the message needs is away or broken, or this process was replaced. It is tried
again, under the same key, by the process that runs the processor then."""


def noted(error: Exception, note: str) -> Exception:
    """The error, with a note on it, once."""
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def _seen(passing: Any, *, whole: bool) -> list[Message]:
    """The messages that a function got to see, of which an output inherits its key."""
    sets = passing if whole else [passing]
    return [message for one in sets for message in one if message is not None]


def _ran(answer: Any) -> Written:
    """Nothing is written; `Invalid` if nothing was done either: a call of an async function answers a coroutine."""
    if inspect.iscoroutine(answer) or inspect.isgenerator(answer):
        answer.close()
        raise Invalid(
            f"the function answered {answer!r}, which is not run: declare it as `async def`, or do the work in it"
        )
    return []


class FunctionCalls:
    """Runs input sets through a function, and gathers what comes of them."""

    def __init__(
        self,
        graph: str,
        processor: Processor,
        errors: JournalPlace | None,
        system: Any,
        run_coroutine: Callable[[Any], Any] | None = None,
        *,
        drops: bool = False,
    ) -> None:
        """`drops` says that input sets which fail for good give nothing, and those behind them are run all the same."""
        self._graph = graph
        self._processor = processor
        self._errors = errors
        self._system = system
        self._function = Function(processor, run_coroutine)
        self._name = f"{graph}/{processor.name}"
        self._writer = AnswerWriter(self._name, processor.outputs)
        self.filters = bool(processor.types or processor.topics)
        """Whether some messages are none of its business."""
        self._is_plain = self._function.is_plain and not self.filters and self._writer.only is not None
        self.identity = ""
        """Which processor it is, once that is known."""
        self._drops = drops
        self._caught = BaseException if drops else Exception
        """What a function may raise without ending the step. Who drops messages drops one whatever it raised."""
        self._dropped: list[BaseException] = []
        self._left: dict[int, StepOutcome] = {}
        """What came of input sets that were run, and had no room in their step, by number."""
        self._ending = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        if processor.parallel > 1:
            self._pool = thread.pool(f"detent-{processor.name}", processor.parallel)

    def stop(self) -> None:
        """Rest no longer before another try. For any thread."""
        self._ending.set()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    # -- filters ------------------------------------------------------------------------------------------------

    def passing(self, one: Set) -> Set | None:
        """An input set with None in the place of messages that are filtered; None if nothing is left."""
        kept = tuple(message if self._passes(message) else None for message in one)
        return kept if any(message is not None for message in kept) else None  # type: ignore[return-value]

    def _passes(self, message: Message) -> bool:
        types, topics = self._processor.types, self._processor.topics
        if types and message.headers.get(TYPE) not in types:
            return False
        return not topics or not topics.isdisjoint(message.headers.get(TOPICS, "").split(","))

    # -- one input set ------------------------------------------------------------------------------------------

    def _step(self, messages: Sequence[Message], series: str, number: int, floor: int, attempt: int) -> Step:
        name, system = self._processor.name, self._system
        return Step(self._graph, name, series, number, floor, messages, system, attempt, self.identity)

    def _call(
        self, one: Any, messages: Sequence[Message], series: str, number: int, floor: int, attempt: int
    ) -> Written:
        key = f"{series}-{number}"
        if spans.tracer() is None:
            return self._answered(one, messages, key, series, number, floor, attempt)
        where = " ".join(sorted({message.journal for message in messages}))
        carriers = (message.headers for message in messages)
        group = f"{self._graph}/{self._processor.name}"
        with spans.processing(where, carriers, group=group, message=key, count=len(messages)):
            return self._answered(one, messages, key, series, number, floor, attempt)

    def _answered(
        self, one: Any, messages: Sequence[Message], key: str, series: str, number: int, floor: int, attempt: int
    ) -> Written:
        function = self._function
        step = self._step(messages, series, number, floor, attempt) if function.wants_step else None
        answer = function.call(one, step)
        if not self._processor.outputs and not function.yields:
            return _ran(answer)  # what a sink answers is of no use otherwise
        seen = messages if not self.filters else _seen(one, whole=function.whole)
        write = self._writer.many if function.yields else self._writer.written
        return write(answer, key, messages, seen)

    def _tried(
        self,
        one: Any,
        messages: Sequence[Message],
        series: str,
        number: int,
        floor: int,
        failure: BaseException | None = None,
    ) -> tuple[Written, bool]:
        """What comes of an input set, and whether it is an error; raises what there is no journal for. `failure` is
        how the first try ended, if there was one."""
        attempt = 1
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        while True:
            if failure is None:
                try:
                    return self._call(one, messages, series, number, floor, attempt), False
                except Exception as error:  # noqa: BLE001 - tried again, written or raised
                    failure = error
            if attempt > self._processor.retries:
                break
            if self._ending.wait(self._pause_s(attempt)) and not self._drops:
                raise failure  # told to stop: the next run tries these inputs again, under their key
            attempt += 1
            failure = None
        if self._errors is None or isinstance(failure, NOT_OUTPUTS):
            raise noted(failure, f"{self._name} was at {named_inputs(messages)}, under the key {series}-{number}")
        key = f"{series}-{number}"
        body = error_body(self._name, key, failure, messages, attempt)
        headers = {HEADER: self._writer.stamp(key, messages), TYPE: ERROR_TYPE}
        return [(self._errors, body, messages[0].key, headers)], True

    def _pause_s(self, failures: int) -> float:
        first_s = self._processor.retry_pause_ms / 1000
        return Backoff(first_s, max(first_s, RETRY_PAUSE_S_MAX)).pause_s(failures)

    def poll(self, series: str, number: int, cursor: bytes) -> tuple[StepOutcome, bytes]:
        """What a source has to say, and its next cursor."""
        function = self._function
        step = self._step((), series, number, number, 1) if function.wants_step else None
        answer = function.ask(msgspec.json.decode(cursor), step)
        if not isinstance(answer, Polled):
            raise Invalid(f"the source {self._name} answers Polled(values, cursor), not {type(answer).__name__}")
        if isinstance(answer.values, str | bytes | Mapping):
            raise Invalid(f"Polled takes a list of values, not {type(answer.values).__name__}: each is a message")
        outcome = StepOutcome()
        key = f"{series}-{number}"
        outcome.gave(self._writer.many(answer.values, key, ()))
        if isinstance(answer.cursor, bytes | bytearray | memoryview):
            raise Invalid("a cursor is kept as JSON, which has no bytes: make it a text, such as with .hex()")
        after = encoded(answer.cursor)
        if len(after) > CURSOR_BYTES_MAX:
            raise Invalid(f"a cursor of {len(after)} bytes is over the limit of {CURSOR_BYTES_MAX}")
        return outcome, after

    # -- a step -------------------------------------------------------------------------------------------------

    def run(self, sets: Sequence[Set], series: str, first: int) -> tuple[StepOutcome, BaseException | None]:
        """Run input sets in order. Ends at the first that fails for good: answers what came of those before, and the
        error. (Where such are dropped, it goes on, and answers the first error in the end.)"""
        outcome = StepOutcome()
        self._dropped = []
        if self._function.whole:
            run = self._run_whole
        elif self._pool is not None and (len(sets) > 1 or self._left):
            run = self._run_parallel
        else:
            is_plain = self._is_plain and spans.tracer() is None  # a span is around one call, so they are made singly
            run = self._run_plain if is_plain else self._run_each
        try:
            error = run(sets, series, first, outcome)
        except BaseException as stopped:
            if isinstance(stopped, Exception):
                raise
            error = stopped  # it ends programs: the runner raises it, after it has kept what came before
        return outcome, error or next(iter(self._dropped), None)

    def _run_each(self, sets: Sequence[Set], series: str, first: int, outcome: StepOutcome) -> BaseException | None:
        for number, one in enumerate(sets, first):
            error = self._run_one(one, series, number, first, outcome)
            if error is not None:
                return error
            if outcome.bytes > STEP_BYTES_MAX:
                break
        return None

    def _failed(self, error: BaseException, outcome: StepOutcome, sets: int = 1) -> BaseException | None:
        """Input sets that failed for good: an end, or nothing."""
        if not self._drops:
            return error
        self._dropped.append(error)
        outcome.nothing(sets)
        return None

    def _run_plain(self, sets: Sequence[Set], series: str, first: int, outcome: StepOutcome) -> BaseException | None:
        """The most usual kind of function, in the fewest steps: one input, one output, and nothing asked for. It does
        what `_run_one` does, for half the price of a message."""
        called, decode = self._function.called, self._function.decode
        call: Callable[[Any], Any] = called if decode is None else lambda raw: called(decode(raw))
        only, stamp = self._writer.only, self._writer.begun_stamp(series)
        assert only is not None
        out = outcome.to(only)
        columns = zip(*_columns(sets, self._function.takes_message), strict=True)
        for number, (taken, key, origin) in enumerate(columns, first):
            try:
                answer = call(taken)
                # A dictionary is the most usual answer: with one output it is one message.
                body = answer if type(answer) is bytes else encoded(answer) if type(answer) is dict else None
            except self._caught as failure:
                error = self._run_one(sets[number - first], series, number, first, outcome, failure)
                if error is not None:
                    return error
                if outcome.bytes > STEP_BYTES_MAX:
                    break
                continue
            if body is not None and (size := len(body) + len(key or b"")) < STEP_BYTES_MAX:
                outcome.outputs += 1
                outcome.bytes += size
                out.bodies.append(body)
                out.keys.append(key)
                out.tags.append(f"{stamp}{number} {origin}")
            elif answer is None:
                outcome.nils += 1
            else:
                error = self._run_one(sets[number - first], series, number, first, outcome, answer=answer)
                if error is not None:
                    return error
            if outcome.bytes > STEP_BYTES_MAX:
                break
        return None

    def _run_one(
        self,
        one: Set,
        series: str,
        number: int,
        floor: int,
        outcome: StepOutcome,
        failure: BaseException | None = None,
        answer: Any = None,
    ) -> BaseException | None:
        """One input set; `failure` or `answer` is what its first call has come to, if there was one."""
        passing = self.passing(one) if self.filters else one
        if passing is None:
            outcome.nothing()
            return None
        try:
            if answer is not None:
                try:
                    outcome.gave(self._writer.written(answer, f"{series}-{number}", one))
                    return None
                except Exception as error:  # noqa: BLE001 - an answer that cannot be written is a failure
                    failure = error
            written, is_error = self._tried(passing, one, series, number, floor, failure)
        except self._caught as error:  # the runner raises it, after it has kept what came before
            return self._failed(error, outcome)
        outcome.gave(written, is_error=is_error)
        return None

    def _run_whole(self, sets: Sequence[Set], series: str, first: int, outcome: StepOutcome) -> BaseException | None:
        passing = [found for one in sets if (found := self.passing(one) if self.filters else one) is not None]
        if not passing:
            outcome.nothing(len(sets))
            return None
        messages = [message for one in sets for message in one]
        try:
            written, is_error = self._tried(passing, messages, series, first, first)
        except self._caught as error:  # the runner raises it
            return self._failed(error, outcome, len(sets))
        rest = StepOutcome()
        rest.gave(written, is_error=is_error)
        outcome.outgoing = rest.outgoing
        outcome.nils = len(sets) - len(passing) if rest.outputs or rest.errors else len(sets)
        outcome.outputs = len(passing) if rest.outputs else 0
        outcome.errors = len(passing) if rest.errors else 0
        return None

    def _run_parallel(self, sets: Sequence[Set], series: str, first: int, outcome: StepOutcome) -> BaseException | None:
        """Some input sets after the others, so that little is in memory; of each lot, what comes of them in the order
        of the input. What was run and has no room any more is kept for the next step: it is not run again."""
        left, self._left = self._left, {}
        lot = self._processor.parallel * LOT
        for start in range(0, len(sets), lot):
            parts = self._run_lanes(sets[start : start + lot], series, first + start, first, left)
            for index, (part, error) in enumerate(parts):
                if outcome.bytes > STEP_BYTES_MAX:
                    rest = enumerate(parts[index:], first + start + index)
                    self._left = {number: one for number, (one, wrong) in rest if wrong is None and one.sets}
                    return None
                if error is not None:
                    return error
                _add(outcome, part)
            if outcome.bytes > STEP_BYTES_MAX:
                break
        return None

    def _run_lanes(
        self, sets: Sequence[Set], series: str, first: int, floor: int, left: Mapping[int, StepOutcome]
    ) -> list[tuple[StepOutcome, BaseException | None]]:
        """Input sets of different keys at once, those of one key in order. Those behind a failure in their lane have to
        wait for it, and are empty."""
        lanes: dict[Any, list[int]] = {}
        for index, one in enumerate(sets):
            key = next((message.key for message in one if message.key is not None), None)
            lanes.setdefault(index if key is None else key, []).append(index)
        parts: list[tuple[StepOutcome, BaseException | None]] = [(StepOutcome(), None) for _ in sets]

        def lane(indexes: list[int]) -> None:
            for index in indexes:
                known = left.get(first + index)
                part = StepOutcome() if known is None else known
                error = None if known else self._run_one(sets[index], series, first + index, floor, part)
                parts[index] = (part, error)
                if error is not None:
                    return

        assert self._pool is not None
        for done in [self._pool.submit(lane, indexes) for indexes in lanes.values()]:
            done.result()
        return parts


def _columns(sets: Sequence[Set], as_messages: bool) -> tuple[Sequence[Any], list[bytes | None], list[str]]:
    """Of input sets of one message each: what a plain function takes, their keys, and what outputs say of them."""
    if isinstance(sets, Singles):
        rows = sets.rows
        return rows.messages if as_messages else rows.bodies, rows.keys, origins_of(rows)
    messages = [one[0] for one in sets]
    taken = messages if as_messages else [message.body for message in messages]
    return taken, [message.key for message in messages], [origin_of(message) for message in messages]


def _add(outcome: StepOutcome, part: StepOutcome) -> None:
    for place, out in part.outgoing.items():
        outcome_out = outcome.outgoing.setdefault(place, out)
        if outcome_out is not out:
            outcome_out.bodies += out.bodies
            outcome_out.keys += out.keys
            outcome_out.tags += out.tags
    outcome.bytes += part.bytes
    outcome.outputs += part.outputs
    outcome.errors += part.errors
    outcome.nils += part.nils
