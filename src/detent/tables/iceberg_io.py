"""Files of Iceberg tables, for PyIceberg: whole and durable, in folders and on object stores, by one set of options.

PyIceberg's own way to a bucket completes an upload that was broken off, and has options of other names. Here a file is
there as a whole or not at all, and is read as a whole: metadata is small, and data files are as large as a task holds.
Credentials that a catalog hands out with a table (``s3.access-key-id``) come before the options that the user gave, and
those before the environment.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.typedef import EMPTY_DICT, Properties

from detent.errors import NotFound
from detent.kv.wholefiles import WholeFiles, open_whole_files

OPTION: Final = "detent.storage."
"""What the user's options begin with among the properties of a catalog."""

IMPLEMENTATION: Final = "detent.tables.iceberg_io.WholeFileIO"

_HANDED_OUT: Final = {
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.endpoint": "aws_endpoint_url",
    "s3.region": "aws_region",
    "adls.account-name": "azure_storage_account_name",
    "adls.account-key": "azure_storage_account_key",
    "adls.sas-token": "azure_storage_sas_key",
    "gcs.service-account-file": "google_service_account",
}
"""What catalogs call options of a bucket."""


def io_properties(storage: Mapping[str, str]) -> dict[str, str]:
    """The properties of a catalog whose tables are read and written here, with the user's options."""
    return {"py-io-impl": IMPLEMENTATION, **{f"{OPTION}{name}": value for name, value in storage.items()}}


def storage_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """The options for a table's bucket, by the properties that the catalog handed out."""
    given = {name.removeprefix(OPTION): str(value) for name, value in properties.items() if name.startswith(OPTION)}
    handed = {ours: str(properties[theirs]) for theirs, ours in _HANDED_OUT.items() if properties.get(theirs)}
    if str(properties.get("s3.endpoint", "")).startswith("http://"):
        handed["aws_allow_http"] = "true"
    return {**given, **handed}


class WholeFileIO(FileIO):
    """PyIceberg's way to files."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        self._storage = storage_of(properties)
        self._opened: dict[str, WholeFiles] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": {}}

    def find(self, location: str) -> tuple[WholeFiles, str]:
        """Where a file is, and its name there."""
        parts = urlsplit(location)
        if parts.scheme in {"", "file"}:
            # Folders down from the table's survive a power failure with the file.
            folders = (unquote(parts.path) if parts.scheme else location).split("/")
            root, name = "/".join(folders[:-2]) or "/", "/".join(folders[-2:])
        else:
            root, name = f"{parts.scheme}://{parts.netloc}", location.split("://", 1)[1].partition("/")[2]
        if root not in self._opened:
            self._opened[root] = open_whole_files(root, self._storage)
        return self._opened[root], name

    def new_input(self, location: str) -> InputFile:
        return _Input(location, *self.find(location))

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, *self.find(location))

    def delete(self, location: str | InputFile | OutputFile) -> None:
        files, name = self.find(location if isinstance(location, str) else location.location)
        files.delete([name])


class _Input(InputFile):
    def __init__(self, location: str, files: WholeFiles, name: str) -> None:
        super().__init__(location)
        self._files = files
        self._name = name

    def __len__(self) -> int:
        size = self._files.size(self._name)
        if size is None:
            raise FileNotFoundError(self.location)
        return size

    def exists(self) -> bool:
        return self._files.size(self._name) is not None

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002
        try:
            stream: InputStream = pa.BufferReader(pa.py_buffer(self._files.get(self._name)))
        except NotFound as error:
            raise FileNotFoundError(self.location) from error
        return stream


class _Output(OutputFile):
    def __init__(self, location: str, files: WholeFiles, name: str) -> None:
        super().__init__(location)
        self._files = files
        self._name = name

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self._files.size(self._name) is not None

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._files, self._name)

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002  names are used once
        return _Writing(self._files, self._name)


class _Writing:
    """A file that is put when it is closed. One that is dropped, or whose writer failed, is not."""

    def __init__(self, files: WholeFiles, name: str) -> None:
        self._files = files
        self._name = name
        self._buffer = io.BytesIO()

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            self._buffer.close()

    @property
    def closed(self) -> bool:
        return self._buffer.closed

    def write(self, data: bytes) -> int:
        return self._buffer.write(data)

    def tell(self) -> int:
        return self._buffer.tell()

    def close(self) -> None:
        if not self._buffer.closed:
            data = self._buffer.getvalue()
            self._buffer.close()
            self._files.put(self._name, data)
