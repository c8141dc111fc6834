"""Named places where a test kills the process.

Every protocol calls :func:`point` before and after each durable step. In normal use that is one comparison. With
``DETENT_CRASH_AT=name`` (or ``name:3`` for the third time it is reached) the process ends there as by ``kill -9``:
no handler runs, no buffer is flushed. With ``DETENT_STOP_AT`` it stands still there instead, until a test lets it go
on: so a test makes a zombie. The names are listed here so that a test can visit all of them.
"""

from __future__ import annotations

import os
import signal

POINTS: frozenset[str] = frozenset(
    {
        "kv.open.before_epoch",
        "kv.open.after_epoch",
        "kv.open.after_fold",
        "kv.log.after_create",
        "kv.log.after_write",
        "kv.log.after_sync",
        "kv.fold.before_sync",
        "kv.fold.after_sync",
        "kv.close.after_fold",
        "kv.abandon.after_rename",
        "kv.upgrade.before_begin",
        "kv.upgrade.after_begin",
        "kv.upgrade.before_chunk",
        "kv.upgrade.after_chunk",
        "kv.upgrade.before_end",
        "kv.upgrade.after_end",
        "kv.restore.before_mark",
        "kv.restore.after_mark",
        "kv.restore.before_end",
        "kv.restore.after_end",
        "kv.compact.after_copy",
        "kv.compact.after_rename",
        "backup.after_job",
        "backup.after_state",
        "backup.after_part",
        "backup.after_object",
        "backup.before_manifest",
        "backup.after_manifest",
        "backup.removal.after_note",
        "backup.removal.after_lists",
        "backup.removal.after_files",
        "restore.after_object",
        "restore.after_records",
        "restore.before_life",
        "restore.after_life",
        "kv.commit.before_sync",
        "kv.commit.after_sync",
        "kv.object.before_write",
        "kv.object.before_rename",
        "kv.object.after_rename",
        "kv.object.after_sync",
        "kv.object.after_delete",
        "engine.group.before_commit",
        "engine.group.after_commit",
        "engine.group.before_answer",
        "owner.after_lock",
        "owner.after_load",
        "owner.after_socket",
        "lease.before_take",
        "lease.after_take",
        "lease.before_announce",
        "lease.after_announce",
        "lease.before_renew",
        "lease.after_renew",
        "lease.before_release",
        "lease.after_release",
        "journal.sweep.after_horizon",
        "queue.checkpoint.before_write",
        "queue.checkpoint.after_write",
        "journal.sweep.after_delete",
        "schedule.before_commit",
        "schedule.after_commit",
        "state.sql.after_fence",
        "state.sql.after_restore",
        "state.sql.before_commit",
        "state.sql.after_commit",
        "spark.plan.before_step",
        "spark.plan.after_step",
        "spark.sink.after_fragment",
        "spark.sink.before_commit",
        "spark.sink.after_commit",
        "spark.once.after_stage",
        "tables.after_file",
        "spark.once.table_before_commit",
        "spark.once.table_after_commit",
        "spark.once.sql_before_commit",
        "spark.once.sql_after_commit",
        "spark.once.before_commit",
        "spark.once.after_commit",
        "spark.split.before_stage",
        "spark.split.after_stage",
        "spark.split.before_part",
        "spark.split.after_part",
        "ingest.after_receive",
        "ingest.after_refusal",
        "ingest.after_open",
        "ingest.after_read",
        "ingest.after_write",
        "ingest.before_publish",
        "ingest.delta_after_create",
        "ingest.after_prepare",
        "ingest.after_table_commit",
        "ingest.after_finish",
        "ingest.after_publish",
        "ingest.before_ack",
        "ingest.after_ack",
        "consumer.after_lease",
        "consumer.after_restore",
        "consumer.after_recover",
        "consumer.before_append",
        "consumer.after_append",
        "consumer.before_commit",
        "consumer.after_commit",
        "consumer.before_ack",
        "consumer.after_ack",
        "bus.before_track",
        "bus.after_track",
        "bus.before_handler",
        "bus.after_handler",
        "bus.before_save",
        "bus.after_save",
        "bus.before_commit",
        "bus.after_commit",
        "bus.before_send",
        "bus.after_send",
        "bus.before_ack",
        "bus.after_ack",
        "bus.after_claim",
        "bus.before_forward",
        "bus.after_forward",
        "bus.before_mark_sent",
        "bus.after_mark_sent",
        "processor.after_fence",
        "processor.after_mark",
        "processor.before_record",
        "processor.after_record",
        "processor.before_choice",
        "processor.after_choice",
        "processor.after_read",
        "processor.before_pass",
        "processor.after_pass",
        "processor.after_function",
        "processor.before_commit",
        "processor.after_commit",
        "processor.before_output",
        "processor.after_output",
        "processor.file.before_lock",
        "processor.file.before_intent",
        "processor.file.after_intent",
        "processor.file.after_append",
        "processor.file.after_sync",
        "processor.file.after_cut",
        "processor.file.before_rename",
        "processor.renaming.after_marks",
        "processor.renaming.after_record",
        "processor.file.after_rename",
        "kafka.in.after_fence",
        "kafka.in.after_place",
        "kafka.in.before_commit",
        "kafka.in.after_commit",
        "kafka.out.after_fence",
        "kafka.out.after_init",
        "kafka.out.after_place",
        "kafka.out.after_mark",
        "kafka.out.before_mark",
        "kafka.out.before_commit",
        "kafka.out.after_commit",
        "kafka.out.after_note",
        "state.recorded.before_handoff",
        "state.recorded.after_handoff",
        "state.recorded.after_snapshot",
        "state.recorded.before_rename",
    }
)

_armed: str | None = None
_countdown = 0
_signal = signal.SIGKILL


def arm(spec: str | None, *, stop: bool = False) -> None:
    """Arm one point (``"name"`` or ``"name:count"``), or none: an empty variable is one that is not set."""
    global _armed, _countdown, _signal
    _signal = signal.SIGSTOP if stop else signal.SIGKILL
    if not spec:
        _armed = None
        return
    name, _, count = spec.partition(":")
    if name not in POINTS:
        raise ValueError(f"no crash point is called {name!r}")
    _armed, _countdown = name, int(count or 1)


def point(name: str) -> None:
    """End the process here when a test asked for it."""
    if _armed is None:
        return
    _reached(name)


def _reached(name: str) -> None:
    global _countdown
    assert name in POINTS, name
    if name != _armed:
        return
    _countdown -= 1
    if _countdown == 0:
        os.kill(os.getpid(), _signal)


def arm_as_told() -> None:
    """Arm what the environment names."""
    stop = os.environ.get("DETENT_STOP_AT")
    arm(stop or os.environ.get("DETENT_CRASH_AT"), stop=bool(stop))


arm_as_told()
