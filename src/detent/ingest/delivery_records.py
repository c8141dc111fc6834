"""What a delivery comes to: files with their identities, and the records of it that are refused.

Each record of a notification has an outcome of its own. One that is malformed, or names a file that may not be read,
goes to the quarantine; one whose file cannot be looked up now waits; its neighbours are ingested meanwhile. A message
of another shape announces one file, and is understood or not.
"""

from __future__ import annotations

from typing import NamedTuple

from detent.errors import Denied, Invalid, NotFound, Unavailable
from detent.ingest.announcements import Announced, announced
from detent.ingest.config import IngestConfig
from detent.ingest.identity import key_of, malformed, missing, refused, shard_of, version_of
from detent.ingest.objects import FileObjects
from detent.ingest.progress import log
from detent.ingest.shared_state import MESSAGE_SCHEME, FileShard
from detent.transports.contract import Delivery

_WAITING = "waiting"


class Refusal(NamedTuple):
    """A record that is put into quarantine, and why."""

    shard: FileShard
    reason: str


class Understood(NamedTuple):
    """A delivery, by the keys of what it announces."""

    files: dict[bytes, tuple[FileShard, Announced]]
    """What is to be asked for."""

    refusals: dict[bytes, Refusal]
    """What is to be put into quarantine."""

    waiting: frozenset[bytes]
    """What cannot be looked up now. The message cannot be acknowledged, and will be delivered again."""


def understand(delivery: Delivery, queue: str, config: IngestConfig, objects: FileObjects) -> Understood:
    """What a message announces; `Invalid` if it cannot be understood as a whole."""
    name = f"{MESSAGE_SCHEME}{queue}/{delivery.message_id}"
    announcement = announced(delivery.body, kind=config.message, name=name)
    found: dict[bytes, tuple[FileShard, Announced]] = {}
    refusals: dict[bytes, Refusal] = {}
    waiting: set[bytes] = set()
    for bad in announcement.malformed:
        shard = malformed(queue, delivery.message_id, bad.record)
        refusals[shard.key] = Refusal(shard, f"{bad.reason}; the record: {bad.record}")
    for file in announcement.files:
        try:
            shard, known = identified(file, config.identity, objects)
        except Invalid as error:
            if not announcement.is_notification:
                raise
            shard = refused(file, config.identity)
            refusals[shard.key] = Refusal(shard, str(error))
        except Unavailable as error:
            log.warning("the message %s waits: %s", delivery.message_id, error)
            waiting.add(key_of(file.uri, _WAITING))
        else:
            found[shard.key] = shard, known
    return Understood(found, refusals, frozenset(waiting))


def identified(file: Announced, policy: str, objects: FileObjects) -> tuple[FileShard, Announced]:
    """A file with its identity; one that is not there gets one too, so that attempts at it are counted. `Invalid` if it
    may not be read."""
    objects.check_allowed(file)
    if version_of(file, policy) is None or file.size is None:
        try:
            file = objects.look_up(file)
        except (NotFound, Invalid, Denied):
            return missing(file), file
    return shard_of(file, policy), file
