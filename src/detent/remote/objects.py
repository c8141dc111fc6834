"""What stands in the place of a store's files for those who reach it through a server: fragments travel by HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

import httpx
import xxhash

from detent.errors import Exists, Invalid
from detent.kv import ObjectInfo, Objects, View
from detent.kv.base import check_object_name, check_object_range
from detent.kv.stored import OnDamage
from detent.remote.answers import Disconnected, check_response, decoded
from detent.remote.client import ANSWER_S, RemoteOwner, timeout_of
from detent.remote.line import OwnerLine
from detent.remote.served_objects import PART_BYTES, PATH, SIZE_HEADER

UPLOAD_ANSWER_S: Final = 300.0
"""How long a server may take to make a gigabyte durable."""


class RemoteObjects:
    """The objects of a store that is behind a server. They are durable when `put` returns, as everywhere."""

    local = False

    def __init__(self, line: OwnerLine) -> None:
        self._line = line

    def put(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Store a new object; it is durable when this returns. Returns its size. `Exists` if the name is taken."""
        check_object_name(name)
        parts = [memoryview(chunk).cast("B") for chunk in chunks]
        patience = self._line.patience()
        broken = False
        while True:
            owner = patience.owner()
            try:
                return _put(owner, name, parts)
            except Exists:
                if not broken or not self._is_ours(name, parts):
                    raise
                return sum(map(len, parts))  # the try that broke had written it
            except Disconnected as error:
                broken = True
                patience.spend(owner, error)

    def _is_ours(self, name: str, parts: list[memoryview]) -> bool:
        ours = xxhash.xxh3_64()
        for part in parts:
            ours.update(part)
        return bool(xxhash.xxh3_64_intdigest(self.get(name)) == ours.intdigest())

    def get(self, name: str, start: int = 0, length: int | None = None) -> memoryview:
        """The object's bytes (or a part). `NotFound` when there is no such object."""
        check_object_name(name)
        check_object_range(start, length)
        fields: dict[str, Any] = {"start": start} if length is None else {"start": start, "length": length}
        return memoryview(self._line.run(lambda owner, time: _get(owner, name, fields, time)))

    def size(self, name: str) -> int | None:
        """The object's size, or None when there is no such object."""
        check_object_name(name)
        return self._line.run(lambda owner, time: _size(owner, name, time))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Refused: only the owner lists objects."""
        del prefix
        return _refuse("listed")

    def delete(self, name: str) -> None:
        """Refused: only the owner deletes objects, when nothing names them any more."""
        del name
        _refuse("deleted")

    def remove_abandoned(self, now_ms: int) -> int:
        """Refused: only the owner deletes objects, when nothing names them any more."""
        del now_ms
        return _refuse("deleted")


def _refuse(what: str) -> NoReturn:
    raise Invalid(f"objects are {what} by the store's owner alone, not through a server")


def _put(owner: RemoteOwner, name: str, parts: Iterable[memoryview]) -> int:
    pieces = [part[start : start + PART_BYTES] for part in parts for start in range(0, len(part), PART_BYTES)]
    headers = {"content-length": str(sum(map(len, pieces)))}
    content = (bytes(piece) for piece in pieces)
    timeout = timeout_of(ANSWER_S)
    timeout.read = UPLOAD_ANSWER_S
    answer = owner.call("PUT", PATH + name, content=content, headers=headers, timeout=timeout)
    return int(decoded(answer, dict[str, int]).get("size", -1))


def _get(owner: RemoteOwner, name: str, fields: dict[str, Any], time: httpx.Timeout) -> bytes:
    with owner.stream("GET", PATH + name, params=fields, timeout=time) as response:
        data = b"".join(response.iter_bytes())
        if response.headers.get(SIZE_HEADER) != str(len(data)):
            raise Disconnected(f"{len(data)} bytes of {name} came where there are {response.headers.get(SIZE_HEADER)}")
        return data


def _size(owner: RemoteOwner, name: str, time: httpx.Timeout) -> int | None:
    response = owner.ask("HEAD", PATH + name, timeout=time)
    if response.status_code == 404:
        return None
    check_response(response)
    size = response.headers.get(SIZE_HEADER, "")
    if not size.isdigit():
        raise Disconnected(f"the store's owner does not say how large {name} is")
    return int(size)


class RemoteReader:
    """What a store has in the place of a reader of its files."""

    view_bytes = 1 << 20

    def __init__(self, line: OwnerLine) -> None:
        self._line = line
        self.objects: Objects = RemoteObjects(line)

    def view(self, *, large: bool = False, on_damage: OnDamage | None = None) -> AbstractContextManager[View]:  # noqa: ARG002
        """Refused: there are no files here."""
        raise Invalid("the files of a store behind a server can be read only where they are")

    def size_bytes(self) -> int:
        """Roughly what the keys and values occupy."""
        answer = self._line.run(lambda owner, time: owner.call("GET", "/v1/native/size", timeout=time))
        found: int = decoded(answer, int)
        return found

    def close(self) -> None:
        """There is nothing to release: the connection is the store's."""
