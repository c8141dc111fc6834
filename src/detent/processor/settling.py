"""Whether a graph has done all that there is to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from detent.durations import Duration, milliseconds
from detent.errors import Busy, DetentError, Unavailable
from detent.processor.inputs import is_other
from detent.processor.records import ProcessorRecord
from detent.processor.status import given_to
from detent.processor.task import SupervisedProcessor
from detent.stream.membership import has_died
from detent.stream.record import FencedRecord

if TYPE_CHECKING:
    from detent.store import Store

LOOK_S: Final = 0.02
"""How often a caller that waits for a graph looks again."""


AWAY: Final = (Unavailable, Busy, ConnectionError, TimeoutError)
"""Failures that say themselves that they may pass."""

AWAY_TRIES: Final = 8
"""Failures of that kind in a row after which a processor is given up. It rests for 12.7 s in between, all in all."""

FUNCTION_TRIES: Final = 4
"""The same for what a function raises that says nothing: a library's error of the network, or a mistake. It rests for
0.7 s, since a mistake does not pass."""


class RestartPatience:
    """Waits for processors that may get on when they start over. `dropping` names those that drop what they failed at:
    there is nothing to wait for."""

    def __init__(self, dropping: Collection[str] = ()) -> None:
        self._dropping = dropping
        self._since: dict[str, tuple[int, int]] = {}

    def is_over(self, life: SupervisedProcessor, error: BaseException) -> bool:
        """Whether a processor has failed too often, with no step in between."""
        steps = 0 if life.task.record is None else life.task.record.totals.steps
        known, restarts = self._since.get(life.processor.name, (-1, 0))
        if known != steps:
            restarts = life.restarts - 1
            self._since[life.processor.name] = steps, restarts
        return life.processor.name in self._dropping or life.restarts - restarts >= _tries(error)


def _tries(error: BaseException) -> int:
    if isinstance(error, AWAY):
        return AWAY_TRIES
    return 1 if isinstance(error, DetentError) else FUNCTION_TRIES


def settle(
    lives: Iterable[SupervisedProcessor],
    stores: Mapping[str, Store],
    timeout: Duration | None,
    stopping: threading.Event | None,
    patience: RestartPatience | None = None,
) -> None:
    """Return when no processor has anything to do, also those that other processes run. Raises what made one of this
    process fail, with `patience` only if it fails again and again; `Unavailable` when one of another process does, and
    after the timeout."""
    lives = list(lives)
    deadline = None if timeout is None else time.monotonic() + milliseconds(timeout) / 1000
    while not _has_settled(lives, stores):
        for life in lives:
            if (failure := _failure(life, patience)) is not None:
                raise failure
        if stopping is not None and stopping.is_set():
            return
        if deadline is not None and time.monotonic() > deadline:
            busy = [life.processor.name for life in lives if not _is_idle(life, stores)]
            raise Unavailable(f"not settled within {timeout}: {', '.join(busy) or 'none'} still at work")
        time.sleep(LOOK_S)


def _has_settled(lives: list[SupervisedProcessor], stores: Mapping[str, Store]) -> bool:
    """Whether all stood still with nothing before them, at one moment: their steps are counted before and after."""
    before = [_steps(life) for life in lives]
    return all(_is_idle(life, stores) for life in lives) and [_steps(life) for life in lives] == before


def _failure(life: SupervisedProcessor, patience: RestartPatience | None) -> BaseException | None:
    """Why a processor does not get on, as its process or the store tells."""
    if not life.is_alive and not life.is_stopping:
        return Unavailable(f"{life.processor.name} does not run any more, although it was not stopped: start it again")
    if life.status not in {"standby", "paused"}:
        error = life.error if life.status == "failed" else None
        is_waited_for = error is not None and patience is not None and not patience.is_over(life, error)
        return None if is_waited_for else error
    found = life.task.stored.describe()
    if found is not None and found.paused:
        return Unavailable(f"{life.processor.name} is paused: detent resume {life.task.consumer}")
    said = None if found is None else found.states[0]
    if said is None or said.status != "failed" or not said.holder or has_died(said.holder):
        return None  # it is free, so that this process gets it soon
    return Unavailable(f"{life.processor.name} fails in the process that runs it, {said.holder}: {said.error}")


def _steps(life: SupervisedProcessor) -> tuple[int, int]:
    record = _record(life)
    return life.restarts, 0 if record is None else record.totals.steps


def _record(life: SupervisedProcessor) -> ProcessorRecord | None:
    """What is durable of a processor, wherever it runs."""
    runner = life.task.runner
    if life.status != "standby":
        return None if runner is None else runner.record
    found = life.task.stored.find().checkpoint
    return None if found is None else ProcessorRecord.decode(found)


def _owes(life: SupervisedProcessor, record: ProcessorRecord, stores: Mapping[str, Store]) -> bool:
    """Whether another process has still to give something to another store."""
    if life.status != "standby" or record.attempt is None:
        return False
    end = record.attempt.end
    owed = {one.store for one in record.attempt.owed if one.store in stores}
    return any(given_to(FencedRecord(stores[name], life.task.consumer)) < end for name in owed)


def _is_idle(life: SupervisedProcessor, stores: Mapping[str, Store]) -> bool:
    """Whether a processor has no complete input set before it, and none in hand."""
    if not life.is_alive:
        return life.is_stopping
    record, runner = _record(life), life.task.runner
    if record is None or record.snapshot.chosen or _owes(life, record, stores):
        return False
    if life.status != "standby" and (runner is None or runner.is_stopping or not runner.is_waiting):
        return False
    processor, snapshot = life.processor, record.snapshot
    found = {one: stores[one.store].reader.whereabouts(one.journal) for one in processor.inputs}
    for one, there in found.items():
        known, at = snapshot.journals.get(str(one)), snapshot.positions.get(str(one), 0)
        if is_other(stores[one.store].reader, one.journal, there, known, at):
            return False  # it fails as soon as it looks
    ahead = [
        there is not None and there.next_offset > snapshot.positions.get(str(one), 0) for one, there in found.items()
    ]
    return not (all(ahead) if processor.mode == "zip" else any(ahead)) or processor.mode == "none"
