"""What a backup is made of: a list with a checksum for each part, written last. `docs/format.md` shows it in full."""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec

from detent.errors import Corrupt

MANIFEST_VERSION: Final = 1
MANIFEST_BYTES_MAX: Final = 1 << 30
"""About ten million parts: far beyond a store that one owner can carry."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""SHA-256: what is stored may have been chosen by a stranger, who must not find two parts with one digest."""


class RecordsPart(msgspec.Struct, frozen=True, array_like=True):
    """Some records, in the order of their keys. `job` is the backup that copied them."""

    digest: _Digest
    job: _Count
    size: _Count
    records: _Count


class ObjectPart(msgspec.Struct, frozen=True, array_like=True):
    """An object of the store: a fragment. `job` is the backup that copied it."""

    name: str
    digest: _Digest
    job: _Count
    size: _Count


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One backup. `store` tells stores apart, `url` is where this one was, `made_ms` when its state was read.
    `format` is that of the store's records. `copied_bytes` were new in this backup."""

    job: _Count
    store: str
    url: str
    made_ms: _Count
    format: _Count
    records: _Count
    record_bytes: _Count
    copied_bytes: _Count
    parts: list[RecordsPart]
    objects: list[ObjectPart]
    version: _Count = MANIFEST_VERSION

    @property
    def object_bytes(self) -> int:
        """What all objects of the store have together."""
        return sum(one.size for one in self.objects)

    def encode(self) -> bytes:
        """As JSON, after its digest."""
        body = _encoder.encode(self)
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    @classmethod
    def decode(cls, data: bytes | memoryview, what: str) -> Manifest:
        """Back from bytes; `Corrupt` if they are something else, or not as they were written."""
        digest, _, body = bytes(data[:MANIFEST_BYTES_MAX]).partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            raise Corrupt(f"{what} does not match its checksum: take another backup of the list")
        try:
            found = _decoder.decode(body)
        except msgspec.DecodeError as error:
            raise Corrupt(f"{what} is not the list of a backup: {error}") from error
        if found.version != MANIFEST_VERSION:
            raise Corrupt(f"{what} has version {found.version}; this release reads version {MANIFEST_VERSION}")
        return found

    def digest(self) -> bytes:
        """What tells this backup from every other one."""
        return hashlib.sha256(self.encode()).digest()


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Manifest)
