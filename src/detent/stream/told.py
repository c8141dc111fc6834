"""What a task of another process says of itself: its reports, kept by the owner of its store while it runs.

A consumer and a graph are known to their store by their shards. A task that the store knows nothing of, such as a
pipeline of Spark, is a consumer ``KIND/NAME/PART`` there for each of its parts, without journals. The process that runs
it is a member, which says again and again how the part is, as a shard's member does; when it says nothing any more, it
has ended. Nothing is written for that, except once for each part that is new.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from detent.errors import Denied, DetentError, NotFound
from detent.runtime.report import Report, State, Trouble
from detent.shard import operations as ops
from detent.store import Store
from detent.stream.membership import new_member

EVERY_S: Final = 2.0
TTL_MS: Final = 15_000
"""A process that says nothing for so long has ended: a busy one may be late by a few turns."""

ERROR_CHARACTERS_MAX: Final = 300

logger = logging.getLogger("detent.tasks")


class ToldReports:
    """Has the store of a task know how its parts are, while it runs in this process. A store that does not take this
    is not the task's trouble: it goes on, and cannot be seen from elsewhere."""

    def __init__(self, store: Store, task: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._task = task
        self._clock = clock
        self._member = new_member()
        self._known: set[str] = set()
        self._due = -math.inf
        self._count = 0

    def tell(self, parts: Sequence[Report]) -> None:
        """How they are now; heard every few seconds."""
        if self._clock() < self._due:
            return
        self._due = self._clock() + EVERY_S
        self._count += 1
        names = [f"{self._task}/{part.name}" for part in parts]
        new = [name for name in names if name not in self._known]
        is_said = self._commit(
            [
                *(ops.RegisterConsumer(name, 1, []) for name in new),
                *(
                    ops.Heartbeat(name, self._member, TTL_MS, told_of(part, self._count))
                    for name, part in zip(names, parts, strict=True)
                ),
            ]
        )
        self._known.update(names if is_said else ())

    def close(self) -> None:
        """The task has ended: it leaves."""
        if self._known:
            self._commit([ops.ReleaseShards(name, self._member) for name in sorted(self._known)])

    def _commit(self, operations: list[Any]) -> bool:
        try:
            self._store.commit(operations)
        except DetentError as error:
            logger.info("%s cannot be seen from elsewhere now: %s", self._task, error)
            self._known.clear()  # the store may be another one by now
            if isinstance(error, Denied):
                self._due = math.inf
            return False
        return True


def told_of(part: Report, count: int) -> str:
    """A report as a member's text, which is short: what is too long for it is left out. `count` says that it is new."""
    said = part.as_json()
    error = part.error[:ERROR_CHARACTERS_MAX]
    kept = {**{name: said[name] for name in ("state", "progress", "lag", "restarts")}, "error": error, "count": count}
    for more in ({"about": said["about"]}, {}):
        text = json.dumps({**kept, **more}, separators=(",", ":"))
        if len(text) <= ops.INFO_BYTES_MAX:
            return text
    return json.dumps({"state": said["state"], "count": count})


class ToldReport(NamedTuple):
    """What was said of a part last, by which member, and how often it has said something; no member if none runs it."""

    report: Report
    member: str = ""
    times: int = 0

    def is_new(self, before: ToldReport | None, again: int) -> bool:
        """Whether it was said so often again since another time."""
        is_same = before is not None and before.member == self.member
        return bool(self.member) and self.times >= again + (before.times if before is not None and is_same else 0)


def heard_of(text: str, kind: str, name: str, member: str = "") -> ToldReport:
    """The report that a text holds. It was written by another process, perhaps of another release: what it does not
    have, or has in another form, is not known."""
    said: dict[str, Any] = {}
    with suppress(ValueError):
        found = json.loads(text)
        said = found if isinstance(found, dict) else {}
    state, error, lag, count = (said.get(key) for key in ("state", "error", "lag", "count"))
    report = Report(
        kind,
        name,
        State(state) if state in list(State) else State.UNKNOWN,
        {str(key): value for key, value in _mapping(said, "progress").items() if isinstance(value, int)},
        lag if isinstance(lag, int) else None,
        Trouble(error) if isinstance(error, str) and error else None,
        about={str(key): str(value) for key, value in _mapping(said, "about").items()},
    )
    return ToldReport(report, member, count if isinstance(count, int) else 0)


def _mapping(said: dict[str, Any], name: str) -> dict[Any, Any]:
    found = said.get(name)
    return found if isinstance(found, dict) else {}


def heard_reports(store: Store, task: str, kind: str) -> dict[str, ToldReport]:
    """The parts of a task by their names, as the process that runs them said last; those that no process runs are
    stopped."""
    found = {}
    for info in store.consumers(f"{task}/"):
        name = info.name.removeprefix(f"{task}/")
        last = max(info.members, key=lambda one: one.expires, default=None)
        stopped = ToldReport(Report(kind, name, State.STOPPED))
        found[name] = stopped if last is None else heard_of(last.info, kind, name, last.member)
    return found


def forget_reports(store: Store, task: str) -> None:
    """Delete what was kept for them."""
    for info in store.consumers(f"{task}/"):
        with suppress(NotFound):
            store.consumer(info.name).delete(force=True)
