"""Objects in a bucket (S3, Google Cloud Storage, Azure Blob Storage), through obstore.

Credentials and endpoint come from the provider's usual environment (``AWS_ACCESS_KEY_ID``, ``AWS_ENDPOINT_URL``,
``GOOGLE_APPLICATION_CREDENTIALS``, ``AZURE_STORAGE_ACCOUNT_NAME``, …), never from the store's URL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar

from detent import crash
from detent.errors import Exists, Invalid, NotFound, Unavailable
from detent.extras import install_command
from detent.kv.base import ObjectInfo, check_object_name
from detent.kv.urls import OBJECT_STORE_SCHEMES, Location, parse_url

SINGLE_PUT_BYTES = 32 << 20
"""Up to here an object is one conditional PUT, held in memory; past it the input is streamed in parts."""

PART_BYTES = 8 << 20
"""S3 takes at most 10,000 parts: 8 MiB allows objects of 80 GB."""

PARTS_AT_ONCE = 4
"""Bounds the memory of one streamed put to 4 parts, and still fills a network link."""

REQUEST_TIMEOUT = timedelta(seconds=60)
"""One part of 8 MiB at 150 kB/s: slower than that is a broken connection."""

CONNECT_TIMEOUT = timedelta(seconds=5)
RETRIES_MAX = 3
RETRY_TIMEOUT = timedelta(seconds=20)
"""Long enough for a throttled bucket to recover, short enough that a caller learns of an outage."""

ABANDONED_UPLOAD_MS = 24 * 3600 * 1000
"""A staged upload older than a day has no living writer."""

ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
OBJECTS, UPLOADS = "objects/", "uploads/"
_NONE: Final[Mapping[str, str]] = {}

_Result = TypeVar("_Result")
logger = logging.getLogger("detent.kv")


def object_location(url: str) -> Location:
    """Parse the URL of a store on an object store; any other kind of store is `Invalid`."""
    location = parse_url(url)
    if location.scheme not in OBJECT_STORE_SCHEMES:
        raise Invalid(
            f"{url!r} is not on an object store: SlateDB needs s3://BUCKET/PREFIX, gs:// or az://. "
            "Its local file store loses acknowledged data when the power fails; for a local path use file:PATH"
        )
    return location


def missing_extra(package: str) -> Unavailable:
    """The error for an installation without the object-store packages."""
    return Unavailable(
        f"a store on an object store needs the package {package!r}: install it with {install_command('s3')}"
    )


_OF_CLIENT: Final = ("allow_http", "timeout", "connect_timeout", "proxy_url")
_OF_OTHERS: Final = ("s3_allow_unsafe_rename", "s3_locking_provider", "max_retries", "copy_if_not_exists")
"""Options that libraries which share their names with ours take, and that mean nothing here."""

_PREFIXES: Final = re.compile(r"(aws|google|azure)_")


def _split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """Options as libraries for tables name them: those of the bucket, and those of the client."""
    bucket: dict[str, str] = {}
    client: dict[str, Any] = {}
    for name, value in options.items():
        plain = _PREFIXES.sub("", name.lower(), count=1)
        if plain == "allow_http":
            client[plain] = value.lower() in {"1", "true"}
        elif plain in _OF_CLIENT:
            client[plain] = value
        elif plain not in _OF_OTHERS:
            bucket[name.lower()] = value
    return bucket, client


def open_bucket(location: Location, options: Mapping[str, str] = _NONE, *, once_within: timedelta | None = None) -> Any:
    """An obstore store rooted at the location's prefix, with bounded retries; options come before the environment's.
    With `once_within` a request is made once, and has failed after so long. Makes no request yet."""
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise missing_extra("obstore") from error
    config, client = _split_options(options)
    common: dict[str, Any] = {
        "prefix": location.path or None,
        "config": config or None,
        "client_options": {
            "timeout": once_within or REQUEST_TIMEOUT,
            "connect_timeout": min(once_within or CONNECT_TIMEOUT, CONNECT_TIMEOUT),
            # Naming any client option makes obstore forget this one of the environment.
            "allow_http": os.environ.get(ALLOW_HTTP[location.scheme], "").lower() in {"1", "true"},
            **client,
        },
        "retry_config": {"max_retries": 0 if once_within else RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT},
    }
    kinds = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    if location.scheme == "s3":
        # S3 itself copies over anything; this makes a copy fail when the target exists.
        common["copy_if_not_exists"] = "multipart"
    return translated(location.bucket, lambda: kinds[location.scheme](location.bucket, **common))


class BucketObjects:
    """Immutable objects of one prefix of a bucket, below ``objects/`` unless `root` is another folder, or none.

    `put` never replaces an object, also when two processes write the same name at the same moment: one of them gets
    `Exists`. When the connection breaks after the bucket has stored the object and before it has answered, the retry
    finds the name taken and raises `Exists` too; names that are used once (such as UUIDs) make that harmless.
    """

    local = False

    def __init__(self, bucket: Any, root: str = OBJECTS) -> None:
        self._bucket = bucket
        self._root = root

    def check(self) -> None:
        """One request that finds out whether the bucket can be reached. `NotFound` when it does not exist."""
        import obstore

        def first_page() -> None:
            for _ in obstore.list(self._bucket, prefix=self._root or None, chunk_size=1):
                break

        translated("the bucket", first_page)

    async def refused_write(self, path: str) -> str | None:
        """Why the bucket takes no objects from these credentials; None if it does, or if it does not answer."""
        import obstore
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        try:
            await obstore.put_async(self._bucket, path, b"", use_multipart=False)
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            return (
                f"the object store refused to write the object {path!r} below the store's prefix; give the credentials "
                f"in the environment the right to put objects there: {_first_line(error)}"
            )
        except Exception as error:  # noqa: BLE001 - anything else may pass, and its own caller hears of it
            logger.debug("the object %s could not be written: %s", path, error)
        return None

    def put(self, name: str, chunks: Iterable[bytes | memoryview]) -> int:
        """Store a new object. Small input is one request; large input is streamed in parts, never held whole."""
        import obstore

        check_object_name(name)
        crash.point("kv.object.before_write")
        head, rest = _split(chunks)
        if rest is None:
            data = b"".join(head)
            crash.point("kv.object.before_rename")
            translated(
                name, lambda: obstore.put(self._bucket, self._root + name, data, mode="create", use_multipart=False)
            )
            size = len(data)
        else:
            size = self._stream(name, head, rest)
        crash.point("kv.object.after_rename")
        crash.point("kv.object.after_sync")
        return size

    def _stream(self, name: str, head: list[bytes], rest: Iterator[bytes | memoryview]) -> int:
        """Upload in parts under a name of our own, then copy: a multipart upload cannot refuse a taken name."""
        import obstore

        staged = f"{UPLOADS}{uuid.uuid4().hex}"
        counted = _Counted(head, rest)
        try:
            translated(
                name,
                lambda: obstore.put(
                    self._bucket,
                    staged,
                    iter(counted),
                    use_multipart=True,
                    chunk_size=PART_BYTES,
                    max_concurrency=PARTS_AT_ONCE,
                ),
            )
            crash.point("kv.object.before_rename")
            translated(name, lambda: obstore.copy(self._bucket, staged, self._root + name, overwrite=False))
        finally:
            self._remove(staged)
        return counted.size

    def get(self, name: str, start: int = 0, length: int | None = None) -> memoryview:
        """The object's bytes, or those of a range; a range past the end is cut, as a slice is."""
        import obstore

        check_object_name(name)
        if start < 0 or (length is not None and length < 0):
            raise Invalid("a range starts at 0 or later and has no negative length")
        if start or length is not None:
            size = self.size(name)
            if size is None:
                raise NotFound(f"there is no object {name!r}")
            length = max(0, size - start if length is None else min(length, size - start))
            if not length:
                return memoryview(b"")
            found = translated(
                name, lambda: obstore.get_range(self._bucket, self._root + name, start=start, length=length)
            )
        else:
            found = translated(name, lambda: obstore.get(self._bucket, self._root + name).bytes())
        return memoryview(found)

    def size(self, name: str) -> int | None:
        """The object's size, or None when there is no such object."""
        check_object_name(name)
        return self.size_at(self._root + name)

    def exists(self, path: str) -> bool:
        """Whether there is anything at a path below the store's prefix."""
        return self.size_at(path) is not None

    def size_at(self, path: str) -> int | None:
        """The same of a path below the store's prefix."""
        import obstore

        try:
            return int(translated(path, lambda: obstore.head(self._bucket, path))["size"])
        except NotFound:
            return None

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Objects whose names start with `prefix` (any characters, not only whole path parts)."""
        if "/" in prefix:
            check_object_name(prefix.rpartition("/")[0])
        for path, size, modified_ms in self.stored(self._root + prefix):
            yield ObjectInfo(path.removeprefix(self._root), size, modified_ms)

    def stored(self, prefix: str, after: str | None = None) -> Iterator[tuple[str, int, int]]:
        """Path, size and time of everything below the store's prefix that starts with `prefix`, after a path."""
        import obstore

        folder = prefix.rpartition("/")[0]
        pages = iter(obstore.list(self._bucket, prefix=folder or None, offset=after))
        while True:
            page = translated(prefix, lambda: next(pages, None))
            if page is None:
                return
            for entry in page:
                if entry["path"].startswith(prefix):
                    yield entry["path"], entry["size"], int(entry["last_modified"].timestamp() * 1000)

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""
        check_object_name(name)
        self._remove(self._root + name)
        crash.point("kv.object.after_delete")

    def _remove(self, path: str) -> None:
        import obstore

        try:
            translated(path, lambda: obstore.delete(self._bucket, path))
        except NotFound:
            return  # some providers report a missing object, S3 does not

    def put_whole(self, path: str, data: memoryview) -> None:
        """Put an object at a path of its own, below the store's prefix. In parts there is no condition, and the object
        appears with the request that ends the upload."""
        import obstore

        is_single = data.nbytes <= SINGLE_PUT_BYTES
        how: dict[str, Any] = {"mode": "create"} if is_single else {"max_concurrency": PARTS_AT_ONCE}
        shared = obstore.Bytes(data)  # a view would be taken for an iterator
        translated(path, lambda: obstore.put(self._bucket, path, shared, use_multipart=not is_single, **how))

    def get_whole(self, path: str) -> memoryview:
        """The bytes of the object at a path."""
        import obstore

        return memoryview(translated(path, lambda: obstore.get(self._bucket, path).bytes()))

    def remove_all(self, paths: Sequence[str]) -> None:
        """Remove the objects at paths, many in a request."""
        import obstore

        with contextlib.suppress(NotFound):  # some providers report a missing object, S3 does not
            translated("objects", lambda: obstore.delete(self._bucket, [*paths]))

    def remove_abandoned(self, now_ms: int) -> int:
        """Delete staged uploads whose writer must be dead. Returns how many."""
        oldest = now_ms - ABANDONED_UPLOAD_MS
        abandoned = [path for path, _, modified_ms in self.stored(UPLOADS) if modified_ms < oldest]
        for path in abandoned:
            self._remove(path)
        return len(abandoned)


class _Counted:
    """Chunks in order, with their total size."""

    def __init__(self, head: list[bytes], rest: Iterator[bytes | memoryview]) -> None:
        self._head = head
        self._rest = rest
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._head:
            self.size += len(chunk)
            yield chunk
        for more in self._rest:
            self.size += len(more)
            yield bytes(more)


def _split(chunks: Iterable[bytes | memoryview]) -> tuple[list[bytes], Iterator[bytes | memoryview] | None]:
    """The first chunks, up to the limit of a single put, and what follows (None: nothing)."""
    head: list[bytes] = []
    size = 0
    remaining = iter(chunks)
    for chunk in remaining:
        head.append(bytes(chunk))
        size += len(chunk)
        if size > SINGLE_PUT_BYTES:
            return head, remaining
    return head, None


def translated(what: str, call: Callable[[], _Result]) -> _Result:
    """Run an obstore call; its exceptions become ours."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        return call()
    except AlreadyExistsError as error:
        raise Exists(f"there is an object {what!r} already") from error
    except FileExistsError as error:
        raise Exists(f"there is an object {what!r} already") from error
    except FileNotFoundError as error:
        raise NotFound(f"there is no {what!r} in the bucket, or no such bucket: {_first_line(error)}") from error
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise Unavailable(f"the object store refused {what!r}: check the credentials in the environment") from error
    except (BaseError, OSError) as error:
        if "NoSuchBucket" in str(error):
            raise NotFound(f"the bucket does not exist: {_first_line(error)}") from error
        raise Unavailable(f"the object store did not answer for {what!r}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """obstore appends a debug dump of many lines; the first one says what happened."""
    return str(error).partition("\n")[0]
