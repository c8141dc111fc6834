"""Where announced files are: looking one up, fetching it, listing what is under a prefix.

Spark from pip reads local files only, so that objects are fetched to a folder first. That also pins what is read: an
object is asked for by its etag or version, and one that was written over meanwhile is noticed. Local files are copied
there as well: what was checked is then what is read, however often Spark reads it.
"""

from __future__ import annotations

import os
import stat as modes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from detent.errors import Denied, DetentError, Invalid, NotFound, Unavailable
from detent.extras import install_command
from detent.ingest import local_files
from detent.ingest.announcements import Announced, object_uri, path_uri
from detent.ingest.identity import version_of
from detent.ingest.progress import log

FETCH_BYTES: Final = 1 << 20
"""What is read from an object at a time."""

TIMEOUT_S: Final = 30
CONNECTIONS_MAX: Final = 32

_MISSING: Final = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NoSuchVersion", "NotFound"})
_REFUSED: Final = frozenset({"403", "405", "AccessDenied", "InvalidObjectState", "MethodNotAllowed"})
"""Of one object among others these are for good: a missing one that may not be listed, one in an archive."""

_CHANGED: Final = frozenset({"412", "PreconditionFailed"})


_PAST_END: Final = frozenset({"416", "InvalidRange", "RequestedRangeNotSatisfiable"})


class ObjectPart(NamedTuple):
    """What one request brought: bytes, the size of all of the object, and when that was written."""

    data: bytes
    size: int
    modified_ms: int


class Superseded(DetentError):
    """The file was written over since it was announced; what is there now is announced by itself."""


def is_local(uri: str) -> bool:
    """Whether a file is on this machine's disks."""
    return uri.startswith("file:")


def path_of(uri: str) -> Path:
    """The path of a local file. Names are decoded when they are announced."""
    return Path(uri.removeprefix("file://"))


@dataclass(frozen=True)
class S3Options:
    """How S3 is reached, where the environment does not say."""

    region: str | None = None
    endpoint: str | None = None


class FileObjects:
    """The files and objects of a source."""

    def __init__(self, policy: str, options: S3Options | None = None, allow: Sequence[str] = ()) -> None:
        self._policy = policy
        self._allow = tuple(allow)
        self._options = options or S3Options()
        self._lock = threading.Lock()
        self._client: Any = None

    def check_allowed(self, file: Announced) -> None:
        """`Invalid` for a file that is somewhere else than this ingest may read."""
        scheme = file.uri.partition(":")[0]
        if file.data is not None:
            return
        if scheme not in {"file", "s3"}:  # without the rest, which may have a signature in it
            raise Invalid(f"files are read from s3: and file:, and not from {scheme}:")
        if scheme == "file":
            self._place_of(file)
        else:
            self._check_prefix(file.uri, file)

    def _check_prefix(self, uri: str, file: Announced) -> None:
        if self._allow and not any(uri.startswith(prefix) for prefix in self._allow):
            raise Invalid(f"{file.uri} is under none of the places that `allow` names")

    def _place_of(self, file: Announced) -> str:
        """Where a local file is once links were followed; `Invalid` if that is not allowed. It is to be opened without
        following links: then a link that is put in its way after this check leads nowhere."""
        place = os.path.realpath(path_of(file.uri))
        self._check_prefix(f"file://{place}", file)
        return place

    def look_up(self, file: Announced) -> Announced:
        """The file with its size and etag; `NotFound` if it is not there."""
        if is_local(file.uri):
            return self._look_up_local(file)
        bucket, key = _bucket_and_key(file.uri)
        found = self._call(file, lambda s3: s3.head_object(Bucket=bucket, Key=key, **self._version(file)))
        return file._replace(
            size=found["ContentLength"],
            etag=found["ETag"].strip('"'),
            version=file.version or found.get("VersionId", ""),
        )

    def _look_up_local(self, file: Announced) -> Announced:
        with _explained_local(file):
            status = local_files.status_of(self._place_of(file))
        return file._replace(size=status.st_size, etag=local_files.etag_of(status))

    def fetch(self, file: Announced, to: Path) -> None:
        """Put a copy of a file where Spark can read it."""
        if file.data is not None:
            to.write_bytes(file.data)
            return
        self.check_allowed(file)  # what is allowed may have changed since its message was received
        self._check_known(file)
        if is_local(file.uri):
            self._copy(file, to)
        else:
            self._download(file, to)

    def _copy(self, file: Announced, to: Path) -> None:
        """`Superseded` if a local file is not what was announced any more. One that is written to while it is copied is
        tried again, as one that has just come: by then it is what was announced, or is not."""
        with _explained_local(file), local_files.opened(self._place_of(file)) as descriptor:
            if self._policy != "uri" and local_files.etag_of(os.fstat(descriptor)) != file.etag:
                raise Superseded(f"{file.uri} was written over since it was announced")
            if not local_files.copy(descriptor, to):
                raise Unavailable(f"{file.uri} was written to while it was read")

    def _check_known(self, file: Announced) -> None:
        """A file that was missing when it was announced has no identity; if it has come since, it will get one, and
        must not be read without."""
        if self._policy == "sequencer" and not file.sequencer:
            raise NotFound(f"{file.uri} was missing; if it has come since, S3 announces it with a sequencer")
        if file.size is None or version_of(file, self._policy) is None:
            self.look_up(file)
            raise Unavailable(f"{file.uri} was missing until now")

    def _download(self, file: Announced, to: Path) -> None:
        bucket, key = _bucket_and_key(file.uri)
        exactly = self._version(file)
        if not exactly and self._policy != "uri" and file.etag:
            exactly = {"IfMatch": f'"{file.etag}"'}

        def download(s3: Any) -> None:
            body = s3.get_object(Bucket=bucket, Key=key, **exactly)["Body"]
            with to.open("wb") as target:
                for some in body.iter_chunks(FETCH_BYTES):
                    target.write(some)

        self._call(file, download)

    def read(self, file: Announced, start: int, length: int) -> ObjectPart:
        """A part of an object, of the writing that was announced or seen: `Superseded` if it is not that any more. What
        is behind the object's end is left out."""
        bucket, key = _bucket_and_key(file.uri)

        def ask(s3: Any) -> ObjectPart:
            span = f"bytes={start}-{start + length - 1}"
            answer = s3.get_object(Bucket=bucket, Key=key, Range=span, **self._version(file), **_only_if(file))
            if file.etag and answer["ETag"].strip('"') != file.etag:  # not all servers honour the condition
                raise Superseded(f"{file.uri} was written over since it was announced")
            modified_ms = round(answer["LastModified"].timestamp() * 1000)
            size = str(answer.get("ContentRange", "")).rpartition("/")[2]
            if not size.isdigit():
                raise Unavailable(f"{file.uri} cannot be read in parts: the server gave no range of it")
            return ObjectPart(answer["Body"].read(), int(size), modified_ms)

        part: ObjectPart = self._call(file, ask, past_end=ObjectPart(b"", start, 0))
        return part

    def pinned(self, file: Announced) -> Announced:
        """An object with what tells this writing of it from the next; `Superseded` if it is not what was announced."""
        self.check_allowed(file)
        self._check_known(file)
        if self._policy != "uri" and (file.etag or self._version(file)):
            return file
        return self.look_up(file)  # a name alone tells nothing of a writing: it is the one that is seen now

    def check_there(self, file: Announced) -> None:
        """`Superseded`, `NotFound` or `Denied` if an object cannot be read as it was announced."""
        bucket, key = _bucket_and_key(file.uri)
        self._call(file, lambda s3: s3.head_object(Bucket=bucket, Key=key, **self._version(file), **_only_if(file)))

    def _version(self, file: Announced) -> dict[str, str]:
        is_versioned = (version_of(file, self._policy) or "").startswith("version:")
        return {"VersionId": file.version} if is_versioned else {}

    def list(self, prefix: str, match: str | None = None) -> Iterator[Announced]:
        """All files under a prefix, as their announcements would say, but hidden ones (`_name` and `.name`), which
        writers use for what is not finished; of those, the ones whose names match a pattern."""
        if self._policy == "sequencer":
            raise Invalid("a listing has no sequencers: backfill needs the identity etag, version or uri")
        found = self._list_s3(prefix) if prefix.startswith("s3://") else _list_local(prefix)
        return (file for file in found if match is None or fnmatchcase(file.uri.rpartition("/")[2], match))

    def _list_s3(self, prefix: str) -> Iterator[Announced]:
        bucket, _, start = prefix.removeprefix("s3://").partition("/")
        where = {"Bucket": bucket, "Prefix": start}
        kind, entries = "list_objects_v2", "Contents"
        if self._policy == "version":
            kind, entries = "list_object_versions", "Versions"
        pages = self._call(Announced(prefix), lambda s3: s3.get_paginator(kind).paginate(**where))
        for page in _reachable(iter(pages), prefix):
            for entry in page.get(entries, ()):
                if not entry["Key"].endswith("/") and not _is_hidden(entry["Key"].removeprefix(start)):
                    try:
                        uri = object_uri(bucket, entry["Key"])
                    except Invalid as error:
                        log.warning("left out: %s", error)
                        continue
                    yield Announced(
                        uri,
                        entry["Size"],
                        entry["ETag"].strip('"'),
                        entry.get("VersionId", ""),
                        modified_ms=round(entry["LastModified"].timestamp() * 1000),
                    )

    def _call(self, file: Announced, call: Callable[[Any], Any], past_end: ObjectPart | None = None) -> Any:
        s3 = self._s3()
        import botocore.exceptions

        try:
            return call(s3)
        except botocore.exceptions.ClientError as error:
            if past_end is not None and _code_of(error) in _PAST_END:
                return past_end
            raise _explained(error, file) from error
        except (botocore.exceptions.ParamValidationError, ValueError) as error:
            raise Invalid(f"{file.uri} cannot be asked for: {error}") from error
        except (botocore.exceptions.BotoCoreError, OSError) as error:
            raise Unavailable(f"{file.uri} cannot be had: {error}") from error

    def _s3(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = _client(self._options)
            return self._client

    def close(self) -> None:
        """Let go of connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()


def _client(options: S3Options) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise Invalid(f"files on S3 need the package boto3: {install_command('sqs')}") from error
    config = Config(
        connect_timeout=TIMEOUT_S,
        read_timeout=TIMEOUT_S,
        max_pool_connections=CONNECTIONS_MAX,
        retries={"max_attempts": 5, "mode": "standard"},
    )
    return boto3.client("s3", region_name=options.region, endpoint_url=options.endpoint, config=config)


@contextmanager
def _explained_local(file: Announced) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{file.uri} was announced, and is not there") from None
    except PermissionError as error:
        raise Denied(f"{file.uri} may not be read: {error}") from error
    except OSError as error:
        raise Unavailable(f"{file.uri} cannot be read: {error}") from error


def _only_if(file: Announced) -> dict[str, str]:
    return {"IfMatch": f'"{file.etag}"'} if file.etag else {}


def _code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _explained(error: Any, file: Announced) -> DetentError:
    code = _code_of(error)
    if code in _MISSING:
        return NotFound(f"{file.uri} was announced, and is not there")
    if code in _REFUSED:
        return Denied(f"{file.uri} may not be read: {error}")
    if code in _CHANGED:
        return Superseded(f"{file.uri} was written over since it was announced")
    return Unavailable(f"{file.uri} cannot be had: {error}")


def _reachable(pages: Iterator[Any], prefix: str) -> Iterator[Any]:
    import botocore.exceptions

    while True:
        try:
            page = next(pages)
        except StopIteration:
            return
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            raise Unavailable(f"{prefix} cannot be listed: {error}") from error
        yield page


def _bucket_and_key(uri: str) -> tuple[str, str]:
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme not in {"s3", "s3a", "s3n"} or not bucket or not key:
        raise Invalid(f"{uri} is neither a local file nor an object of S3: files are read from file: and s3:")
    return bucket, key


def _is_hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _list_local(prefix: str) -> Iterator[Announced]:
    root = (path_of(prefix) if is_local(prefix) else Path(prefix)).absolute()
    if not root.is_dir():
        raise NotFound(f"{root} is not a folder: a backfill takes a folder, or a prefix such as s3://bucket/orders/")
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not _is_hidden(name))
        for name in sorted(name for name in files if not _is_hidden(name)):
            path = Path(folder) / name
            try:
                status = path.stat()
                uri = path_uri(str(path))
            except FileNotFoundError:
                continue  # it went while we looked, or is a link to nothing
            except (OSError, Invalid) as error:
                log.warning("%r is left out: %s", str(path), error)
                continue
            if modes.S_ISREG(status.st_mode):
                modified_ms = status.st_mtime_ns // 1_000_000
                yield Announced(uri, status.st_size, local_files.etag_of(status), modified_ms=modified_ms)
