"""`QueueCoordinator`: a message from the queue, through Spark, into the table, and back to the queue as done.

Three threads use it: one receives (`poll`), one keeps what was received (`keep`), one runs batches (`run_batch`). What
they share is the local state, under one lock that is held for no question to a queue or a database.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from detent import crash, spans
from detent.errors import Denied, DetentError, Fenced, Invalid, NotFound, ShardsLost, Unavailable
from detent.ingest.announcements import Announced
from detent.ingest.committer import BatchOutput, TableCommitter
from detent.ingest.config import IngestConfig
from detent.ingest.delivery_records import Refusal, identified, understand
from detent.ingest.identity import MISSING, REFUSED, announced_of
from detent.ingest.local_state import DEATHS_MAX, HeldFile, HeldMessage, QueueLocalState, VisibilitySchedule, next_batch
from detent.ingest.objects import FileObjects, Superseded
from detent.ingest.progress import Counters, log
from detent.ingest.shared_state import FileShard, Opened, QueueSharedState
from detent.ingest.staging import FilesFailed
from detent.transports.contract import Delivery, MessageQueue

if TYPE_CHECKING:
    from detent.ingest.job import Job

RECEIVE_MAX: Final = 1_000
"""Messages that are asked for at once, and then opened in one step."""

RECEIVE_DATA_MAX: Final = 50
"""The same where messages are the data, and held in memory."""

CLOCKS_APART_MS: Final = 3_600_000
"""How far the clock that dates files may be ahead of the database's."""


@dataclass
class _AskedFile:
    """A file that is about to be asked for, and the messages that want it."""

    shard: FileShard
    file: Announced
    messages: list[HeldMessage] = field(default_factory=list)


@dataclass
class _RefusedRecord:
    """A record that is about to be put into quarantine, and the messages that wait for that."""

    refusal: Refusal
    messages: list[HeldMessage] = field(default_factory=list)


class QueueCoordinator:
    """One pipeline."""

    def __init__(
        self,
        config: IngestConfig,
        queue: MessageQueue,
        shared: QueueSharedState,
        committer: TableCommitter,
        objects: FileObjects,
        job: Job,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._queue = queue
        self.shared = shared
        self.committer = committer
        self.objects = objects
        self._job = job
        self._clock = clock
        self._lock = threading.Lock()
        self._batches = 0
        self._touched_at = clock()
        self._strangers: set[bytes] = set()
        most = RECEIVE_DATA_MAX if config.message == "data" else RECEIVE_MAX
        self.receive_limit = min(most, 2 * config.limits.files)
        self.local = QueueLocalState()
        self.counters = Counters()
        self.schedule = VisibilitySchedule(config.visibility_s, config.commit_timeout_s, queue.visibility_max_s)

    # -- receiving ---------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether it makes sense to receive more: what waits here too long cannot be done by others."""
        limits = self._config.limits
        with self._lock:
            sizes = [file.shard.size for file in self.local.ready()]
        return len(sizes) < 2 * limits.files and sum(sizes) < 2 * limits.bytes

    def poll(self, wait_s: float) -> int:
        """Receive messages and ask for their files; how many messages came."""
        asked_at = self._clock()
        deliveries = self._queue.receive(self.receive_limit, wait_s, self.schedule.receive_s)
        if not deliveries:
            return 0
        crash.point("ingest.after_receive")
        self.counters.received += len(deliveries)
        deadline = asked_at + self.schedule.receive_s
        asked: dict[bytes, _AskedFile] = {}
        refused: dict[bytes, _RefusedRecord] = {}
        for delivery in deliveries:
            self._take_in(delivery, deadline, asked, refused)
        self._refuse(refused)
        self._ask(asked)
        self.acknowledge()
        return len(deliveries)

    def _take_in(
        self, delivery: Delivery, deadline: float, asked: dict[bytes, _AskedFile], refused: dict[bytes, _RefusedRecord]
    ) -> None:
        """Note what of a message has to be asked for, and what has to be refused."""
        try:
            understood = understand(delivery, self._queue.name, self._config, self.objects)
        except Invalid as error:
            self.counters.unreadable += 1
            log.warning("the message %s is not understood: %s", delivery.message_id, error)
            return
        files, refusals = understood.files, understood.refusals
        message = HeldMessage(delivery, deadline, {*files, *refusals, *understood.waiting})
        with self._lock:
            wanted = self.local.receive(message)
        for key in wanted & files.keys():
            shard, file = files[key]
            asked.setdefault(key, _AskedFile(shard, file)).messages.append(message)
        for key in wanted & refusals.keys():
            refused.setdefault(key, _RefusedRecord(refusals[key])).messages.append(message)
        self.counters.duplicates += len(files.keys() - wanted)

    def _refuse(self, refused: dict[bytes, _RefusedRecord]) -> None:
        """Put records into quarantine that nothing can be made of. Their messages go on with their other records."""
        if not refused:
            return
        new = self.shared.set_aside({one.refusal.shard: one.refusal.reason for one in refused.values()})
        crash.point("ingest.after_refusal")
        for shard, reason in new.items():
            log.error("%s is in quarantine: %s", shard.uri, reason)
        self.counters.quarantined += len(new)
        with self._lock:
            for key, one in refused.items():
                self.local.complete([key], one.messages)

    def _identified(self, file: Announced) -> tuple[FileShard, Announced]:
        return identified(file, self._config.identity, self.objects)

    def announce(self, files: Iterable[Announced], forgotten_to: Callable[[], int] = lambda: 0) -> None:
        """Ask for files that no message announced. `forgotten_to` says, after they were asked for, up to which time of
        change it is not known any more whether a file was ingested: new ones among those are left alone."""
        asked: dict[bytes, _AskedFile] = {}
        for file in files:
            try:
                shard, found = self._identified(file)
            except Invalid as error:
                log.warning("left out: %s", error)
                continue
            with self._lock:
                is_known = shard.key in self.local or self.local.is_completed(shard.key)
            if not is_known:
                asked[shard.key] = _AskedFile(shard, found)
        self.shared.epoch.require_current()  # after a reset, what is known here is not known any more
        self._ask(asked, forgotten_to)

    def adopt(self, limit: int) -> int:
        """Ask for files that were put back, or that a pipeline died over; how many there were."""
        asked: dict[bytes, _AskedFile] = {}
        came: list[FileShard] = []
        for shard in self.shared.left_behind(limit):
            found, file = shard, announced_of(shard)
            if shard.version in {MISSING, REFUSED}:
                try:
                    found, file = self._identified(Announced(shard.uri))
                except Invalid:  # its sequencer is not known any more, or it may still not be read
                    file = Announced(shard.uri)
                except Unavailable as error:
                    log.warning("%s waits: %s", shard.uri, error)
                    continue
                if found != shard:
                    came.append(shard)
            with self._lock:
                if found.key not in self.local:
                    asked[found.key] = _AskedFile(found, file)
        self._ask(asked)
        self.shared.finish(came, reason="it came later")  # only now: until the other is there, this row is all we have
        return len(asked)

    def _ask(self, asked: dict[bytes, _AskedFile], forgotten_to: Callable[[], int] = lambda: 0) -> None:
        if not asked:
            return
        opened = self.shared.open(one.shard for one in asked.values())
        too_old = self._too_old(asked, opened, forgotten_to())
        granted = [asked[key].shard for key in opened.granted if key not in too_old]
        done = self.committer.finished(granted)
        if done:  # the table has them, though the rows did not say so
            self.shared.finish(shard for shard in granted if shard.key in done)
        now = self._clock()
        with self._lock:
            for shard in granted:
                if shard.key not in done:
                    one, deaths = asked[shard.key], opened.granted[shard.key].deaths
                    self.local.grant(shard, one.file, one.messages, now, deaths)
            for key in opened.finished | done:
                self.local.complete([key], asked[key].messages)
        self.counters.duplicates += len(opened.finished | done)
        self.counters.held += len(opened.held)
        self._put_aside_deadly()

    def _too_old(self, asked: dict[bytes, _AskedFile], opened: Opened, horizon: int) -> set[bytes]:
        """Files that no pipeline asked for as far as the rows go back, and that are older than the rows."""
        found = {
            key
            for key, grant in opened.granted.items()
            if grant.is_new and horizon and (asked[key].file.modified_ms or 0) <= horizon + CLOCKS_APART_MS
        }
        self.shared.forget(found)
        self.counters.too_old += len(found)
        return found

    def _put_aside_deadly(self) -> None:
        """Put files into quarantine over which pipeline after pipeline died: the last ones had nothing else to do."""
        with self._lock:
            deadly = [file for file in self.local.ready() if file.deaths >= DEATHS_MAX]
        for file in deadly:
            reason = f"{file.deaths} pipelines died while they read it, the last ones with this file alone"
            self.shared.fail(file.shard.key, reason, 0, attempts_max=0)
            self.counters.quarantined += 1
            log.error("%s is in quarantine: %s", file.shard.uri, reason)
            self._complete([file.shard.key])

    # -- keeping -----------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Extend what is about to be given to others, and say that this pipeline is alive."""
        if self._clock() - self._touched_at >= self._config.grace_s / 6:
            self._touched_at = self._clock()
            self._touch()  # first: a queue that does not answer must not cost us the files
        with self._lock:
            due = self.schedule.due(self.local.messages(), self._clock())
        self._extend(due, self.schedule.extension_s)
        self._drop_abandoned()

    def _extend(self, messages: Sequence[HeldMessage], seconds: float) -> None:
        if not messages:
            return
        asked_at = self._clock()
        failed = {delivery.receipt for delivery in self._queue.extend([one.delivery for one in messages], seconds)}
        with self._lock:
            for message in messages:
                if message.delivery.receipt in failed:
                    message.is_lost = True
                    self.counters.unextended += 1
                else:
                    message.deadline = max(message.deadline, asked_at + seconds)

    def _touch(self) -> None:
        with self._lock:
            ready = {file.shard.key for file in self.local.ready()}
        ours = self.shared.touch()
        lost = ready - ours
        with self._lock:
            lost = {key for key in lost if key in self.local and self.local.file(key).stage == "ready"}
            self.local.drop(lost)
            strangers = {key for key in ours if key not in self.local}
        self.counters.lost += len(lost)
        # One that was just opened is not known here so far; one that is still not known the next time was forgotten.
        self.shared.release(strangers & self._strangers)
        self._strangers = strangers - self._strangers

    def _drop_abandoned(self) -> None:
        """A file whose messages were lost is not begun: the pipeline that has them now will want it."""
        with self._lock:
            keys = [file.shard.key for file in self.local.ready() if file.is_abandoned]
            self.local.drop(keys)
        self.shared.release(keys)

    def acknowledge(self) -> None:
        """Tell the queue what is done for good: in the table that there is, and not in one from before a reset."""
        with self._lock:
            messages = self.local.acknowledgeable()
        if not messages:
            return
        deliveries = [message.delivery for message in messages]
        try:
            self.shared.epoch.require_current()
        except Fenced:
            self._queue.give_back(deliveries)
            raise
        crash.point("ingest.before_ack")
        failed = self._queue.acknowledge(deliveries)
        crash.point("ingest.after_ack")
        self.counters.acknowledged += len(messages) - len(failed)

    # -- batches -----------------------------------------------------------------------------------------------------

    def next_batch(self, *, is_draining: bool) -> list[HeldFile]:
        """The files of the next batch, which are being read from now on; none while it is worth waiting for more."""
        with self._lock:
            files = next_batch(self.local.ready(), self._config.limits, self._clock(), is_draining=is_draining)
            self.local.start(file.shard.key for file in files)
        return files

    def run_batch(self, files: Sequence[HeldFile]) -> None:
        """Commit what can be committed of these files. What cannot is let go of, or put into quarantine. When Spark has
        ended over them, the caller knows whether they are to blame, and tells `stop`."""
        from detent.ingest.job import SparkEnded

        try:
            with self._span_of(files):
                self._run_batch(files)
        except SparkEnded:
            raise
        except BaseException:
            # Not at once: whatever it was, it would be the same.
            self._let_go(files, self._config.retry_delay_s)
            raise

    def _span_of(self, files: Sequence[HeldFile]) -> AbstractContextManager[Any]:
        """The batch in the traces of the messages that announced its files."""
        messages = dict.fromkeys(message for file in files for message in file.messages)
        carriers = (message.delivery.headers for message in messages)
        more = {"detent.ingest.files": len(files)}
        return spans.processing(self._queue.name, carriers, group=self._config.name, count=len(files), more=more)

    def _run_batch(self, files: Sequence[HeldFile]) -> None:
        from detent.ingest.job import BatchFailed

        crash.point("ingest.after_open")
        files = self._still_ours(files)
        while files:
            try:
                output = self._job.run(self._name(), files)
            except FilesFailed as error:
                files = self._without_failed(files, error)
                continue
            except BatchFailed as error:
                self._divide(files, error.suspects, error.reason)
                return
            files = self._publish(files, output)

    def _name(self) -> str:
        self._batches += 1
        return f"{self.shared.token}-{self._batches:06d}"

    def _still_ours(self, files: Sequence[HeldFile]) -> list[HeldFile]:
        return self._without_lost(files, self.shared.begin(file.shard.key for file in files))

    def _without_lost(self, files: Sequence[HeldFile], lost: frozenset[bytes]) -> list[HeldFile]:
        with self._lock:
            self.local.drop(file.shard.key for file in files if file.shard.key in lost)
        self.counters.lost += len(lost)
        return [file for file in files if file.shard.key not in lost]

    def _publish(self, files: Sequence[HeldFile], output: BatchOutput) -> list[HeldFile]:
        """Commit; the files that are left to do, when others have taken some."""
        keys = [file.shard.key for file in files]
        committed = set(keys)
        with self._lock:
            self.local.written(keys)
            ending = {m for file in files for m in file.messages if m.waits_for <= committed}
            messages = self.schedule.last(ending, self._clock())
            for message in messages:
                message.is_last_extended = True
        self._extend(messages, self.schedule.last_s)
        crash.point("ingest.before_publish")
        self._require_current(output)
        try:
            self.committer.publish([file.shard for file in files], output)
        except ShardsLost as error:
            self.committer.drop(output.folder)
            with self._lock:
                self.local.reread(keys)
                for message in messages:
                    message.is_last_extended = False
            return self._without_lost(files, error.shards)
        crash.point("ingest.after_publish")
        self._committed(keys, output)
        return []

    def _require_current(self, output: BatchOutput) -> None:
        """`Fenced` after a reset; then nothing is left of the output in the folder, which may be a new table's."""
        try:
            self.shared.epoch.require_current()
        except Fenced:
            self.committer.drop(output.folder)
            raise

    def _committed(self, keys: Sequence[bytes], output: BatchOutput) -> None:
        record = output.record(len(keys))
        with self._lock:
            self.local.complete(keys)
        self.counters.batches += 1
        self.counters.files += len(keys)
        self.counters.rows += record.rows
        self.counters.bytes += record.bytes
        self.acknowledge()

    # -- failures ----------------------------------------------------------------------------------------------------

    def _divide(self, files: Sequence[HeldFile], suspects: Sequence[HeldFile], reason: str) -> None:
        """Run the parts of a batch that failed, to find out whose fault it is: one bad file hurts no other."""
        if len(files) == 1:
            self._job.check_working()
            self._failed(files[0], Invalid(reason))
            return
        named = {file.shard.key for file in suspects}
        parts: list[Sequence[HeldFile]] = [[file] for file in files if file.shard.key in named]
        others = [file for file in files if file.shard.key not in named]
        if not parts:
            half = len(others) // 2
            parts, others = [others[:half]], others[half:]
        for number, part in enumerate([others, *parts]):
            try:
                self.run_batch(part)
            except BaseException:
                for later in [others, *parts][number + 1 :]:
                    self._let_go(later)
                raise

    def _without_failed(self, files: Sequence[HeldFile], error: FilesFailed) -> list[HeldFile]:
        refused = [reason for reason in error.reasons.values() if isinstance(reason, Denied)]
        if len(refused) == len(files) > 1:
            raise Unavailable(f"none of {len(files)} files may be read, such as: {refused[0]}")  # it is our credentials
        for file in files:
            if file.shard.key in error.reasons:
                self._failed(file, error.reasons[file.shard.key])
        return [file for file in files if file.shard.key not in error.reasons]

    def _failed(self, file: HeldFile, reason: DetentError) -> None:
        """Let go of a file that failed: for a while, for good if it was the last attempt, or as done if it is gone."""
        key = file.shard.key
        if isinstance(reason, Superseded):
            self.counters.superseded += 1
            self._follow(file)
            return
        self.counters.failures += 1
        delay_s = self._config.retry_delay_s
        # What may be had later says nothing about the file; and data that only the queue has is for its own rule.
        is_counted = not isinstance(reason, Unavailable) and file.announced.data is None
        attempts = self._config.attempts if is_counted else None
        if self.shared.fail(key, str(reason), round(delay_s * 1000), attempts):
            self.counters.quarantined += 1
            log.error("%s is in quarantine: %s", file.shard.uri, reason)
            self._complete([key])
            return
        log.warning("%s failed, and is tried again: %s", file.shard.uri, reason)
        with self._lock:
            messages = self.local.drop([key])
        self._give_back(messages, delay_s)

    def _follow(self, file: HeldFile) -> None:
        """Ask for what a file is now, with the messages that announced it: no other may. What it was is forgotten,
        because it may be that again, and was not ingested."""
        old = file.shard.key
        asked: dict[bytes, _AskedFile] = {}
        with suppress(NotFound, Invalid, Denied):
            found, announced = self._identified(self.objects.look_up(Announced(file.shard.uri)))
            asked[found.key] = _AskedFile(found, announced)
        self.shared.forget([old])
        with self._lock:
            messages = self.local.drop([old])
            for key, one in asked.items():
                for message in messages:
                    message.waits_for.add(key)
                if key in self.local:
                    self.local.grant(one.shard, one.file, messages, self._clock())
                else:
                    one.messages += messages
            known = {key for key in asked if key in self.local}
            if old not in asked:  # else it is again what it was, and its messages go on waiting for it
                self.local.release(old, messages)
        self._ask({key: one for key, one in asked.items() if key not in known})
        self.acknowledge()

    def _complete(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            self.local.complete(keys)
        self.acknowledge()

    def _let_go(self, files: Iterable[HeldFile], delay_s: float = 0.0) -> None:
        keys = [file.shard.key for file in files]
        with self._lock:
            keys = [key for key in keys if key in self.local]
            messages = self.local.drop(keys)
        self.shared.release(keys)
        self._give_back(messages, delay_s)

    def _give_back(self, messages: Iterable[HeldMessage], seconds: float) -> None:
        """Let the queue deliver messages again, unless another file of theirs is still being worked on."""
        with self._lock:
            used = {id(message) for message in self.local.messages()}
        free = [message for message in messages if id(message) not in used and not message.is_lost]
        untouched = [message.delivery for message in free if not message.is_begun and not seconds]
        if untouched:
            self._queue.give_back(untouched)
        begun = [message.delivery for message in free if message.is_begun or seconds]
        if begun:
            self._queue.extend(begun, seconds)

    def stop(self, *, is_death: bool = False) -> None:
        """Let go of everything, so that others can have it at once. If this end `is_death`, each file that was being
        read may have caused it, and that is counted."""
        files = self.local.files()
        if is_death:
            self.shared.release((file.shard.key for file in files if file.stage != "ready"), is_death=True)
        self._let_go(files)
        self.acknowledge()
