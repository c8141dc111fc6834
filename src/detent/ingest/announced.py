"""What a message of a queue announces: files, or the data itself."""

from __future__ import annotations

from typing import NamedTuple


class Announced(NamedTuple):
    """A file that is to be ingested, with what its announcement says of it; empty or None is not said.

    `uri` is the file as it is called everywhere (``s3://bucket/key``, ``file:///path``), decoded. Of data that came in
    the message itself, `data` has the bytes and `uri` is a name made of the queue and the message.
    """

    uri: str
    size: int | None = None
    etag: str = ""
    version: str = ""
    sequencer: str = ""
    data: bytes | None = None
    modified_ms: int | None = None


class Malformed(NamedTuple):
    """A record of a notification that cannot be understood: why, and the record itself, as JSON."""

    reason: str
    record: str


class Announcement(NamedTuple):
    """What a message announces: its files, each of them once, and the records that are malformed."""

    files: list[Announced]
    malformed: list[Malformed]

    is_notification: bool = False
    """Whether it is a list of records, each of which has an outcome of its own."""
