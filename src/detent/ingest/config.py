"""What an ingest is to do, as a TOML file or in Python."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from detent.durations import Duration, milliseconds
from detent.errors import Invalid, NotFound
from detent.ingest.announcements import KINDS
from detent.ingest.identity import check_policy
from detent.ingest.local_state import BatchLimits
from detent.ingest.objects import S3Options
from detent.sizes import size_of
from detent.tables.files import is_local
from detent.tables.options import MergeRule, key_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS: Final = ("json", "csv", "parquet", "text", "binary")
COMMITTERS: Final = ("manifest", "delta", "iceberg")
VARIABLES: Final = {"queue": "DETENT_INGEST_QUEUE", "state": "DETENT_INGEST_STATE"}
"""Variables of the environment that say it instead of the file: these URLs may have a password in them."""

NEW_COLUMNS: Final = ("ignore", "rescue", "add", "fail")

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

_PATTERN: Final = re.compile(r"[{}\[\]*?\\]")
"""What means something in a path that is given to Spark."""

_STORES: Final = ("s3://", "gs://", "az://")
"""How the URLs of tables on object stores begin."""

_MADE: Final = re.compile(r"(.*\S)\s+AS\s+(\w+|`[^`]+`)", re.IGNORECASE | re.DOTALL)
"""A column that an expression makes, such as ``to_date(at) AS day``."""

_ON_STAGED: Final = "it would be applied to the staged files, whose {} are not those of the files"
_ALWAYS_OFF: Final = "it is always off: a file that cannot be read would count as ingested"
_REFUSED_OPTIONS: Final = {
    "pathglobfilter": f"{_ON_STAGED.format('names')}. Announce only what is wanted, or use --match with --backfill",
    "modifiedafter": f"{_ON_STAGED.format('times')}. Announce only what is wanted",
    "modifiedbefore": f"{_ON_STAGED.format('times')}. Announce only what is wanted",
    "recursivefilelookup": "each file is announced by itself, and a backfill looks into subfolders anyway",
    "path": "what is read is what the queue announces",
    "ignorecorruptfiles": _ALWAYS_OFF,
    "ignoremissingfiles": _ALWAYS_OFF,
}
"""Options of Spark's readers that cannot mean here what they say, in small letters, and why."""

Transform = Callable[["DataFrame"], "DataFrame"]


class TableStyle(NamedTuple):
    """How the files of a table are written."""

    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    target_bytes: int = 0
    merge: MergeRule | None = None


@dataclass(frozen=True, kw_only=True)
class IngestConfig:
    """What an ingest is to do. Only `name`, `queue` and `table` have to be said.

    `queue` is a URL (``sqs:NAME``, ``detent:file:./data#files``, ``redis://host/0#stream``,
    ``pubsub:NAME?project=P``, ``MODULE:CLASS:NAME`` for a class of yours) and `message` what its
    messages look like (auto, s3, sns, eventbridge, uri, data). `table` is a folder, `committer` its kind:
    "manifest" (Parquet files and a list of them in the database), "delta" or "iceberg". `state` is the database that
    all pipelines of this ingest share. Relative paths, also in these URLs, begin in `folder`.

    On an object store (``s3://bucket/orders``) it is the same; `catalog` is that of an Iceberg table, if not the
    database of the `state`. `partition_by` are columns, or expressions such as ``to_date(at) AS day``; the rows of each
    file are sorted by `sort_by`, and a file gets about `file_size` of rows before they are packed.

    With `merge_on`, the columns of a key, a row replaces the one with its key, unless that one is newer by the column
    `newest_by` (or an expression such as ``_metadata.file_modification_time AS changed``). Delta and Iceberg only.

    `allow` are the beginnings that the names of files may have (``s3://bucket/orders/``, ``/landing/``), as they are
    and not percent-encoded; if there are none, a sender to the queue chooses among all that can be read.

    `format` and `options` are those of Spark's readers. With a `schema`, such as "id BIGINT, name STRING", columns that
    files have and it has not are ignored, unless `new_columns` says otherwise; without one it is inferred from the
    first batch and kept, and columns that come later are added. `rescued_column` holds lines that do not fit; "" makes
    such a line the failure of its file. `metadata` adds a column `_metadata` that says where a row came from.
    `transform` is a function from DataFrame to DataFrame, or "file.py:function".

    A file is tried `attempts` times, `retry_delay` apart, before it is put into quarantine. Files that were ingested
    are remembered for `window`, which has to be longer than the queue keeps messages; if `window_files` is not 0 and
    there are more, the oldest of those go earlier that the queue cannot have any more. A message is kept from others
    for `visibility` and the `commit_timeout`, again and again until its files are committed. A pipeline that says
    nothing for twice the `commit_timeout` is taken for dead.
    """

    name: str
    queue: str
    table: str
    committer: str = "manifest"
    iceberg_table: str = ""
    catalog: str = ""
    partition_by: Sequence[str] = ()
    sort_by: Sequence[str] = ()
    merge_on: Sequence[str] = ()
    newest_by: str = ""
    file_size: int | str = 0
    state: str = ""
    message: str = "auto"
    allow: Sequence[str] = ()
    identity: str = "etag"
    format: str = "json"
    schema: str = ""
    new_columns: str = ""
    rescued_column: str = "_rescued_data"
    metadata: bool = False
    transform: str | Transform | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    staging: str = ""
    batch_files: int = 10_000
    batch_bytes: int | str = "1GiB"
    batch_age: Duration = "10s"
    visibility: Duration = "120s"
    commit_timeout: Duration = "60s"
    attempts: int = 3
    retry_delay: Duration = "10s"
    window: Duration = "15d"
    window_files: int = 0
    prune_interval: Duration = "60s"
    orphan_age: Duration = "1d"
    spark: Mapping[str, str] = field(default_factory=dict)
    s3: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    """Where relative paths begin: the folder of the file that this was read from."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", _allowed(self.allow))
        _check(self)

    def check_place(self) -> None:
        """`Invalid` if something is where the table's folder is to be."""
        if not is_local(self.location):
            return
        place = Path(self.location)
        if place.exists() and not place.is_dir():
            raise Invalid(f"the table {place} is a file: name a folder")

    # -- what follows from it ----------------------------------------------------------------------------------------

    def path(self, text: str) -> str:
        """A path of this configuration as an absolute one."""
        return os.path.abspath(Path(self.folder) / text)

    @property
    def location(self) -> str:
        """The folder of the table, or its URL."""
        if self.table.startswith(_STORES):
            return self.table.rstrip("/")
        return self.path(self.table.removeprefix("file://"))

    @property
    def table_storage(self) -> dict[str, str]:
        """How the table's bucket is reached, beside what the environment says."""
        if not self.location.startswith("s3://"):
            return {}
        options = {"aws_region": self.s3.get("region", ""), "aws_endpoint_url": self.s3.get("endpoint", "")}
        if options["aws_endpoint_url"].startswith("http://"):
            options["aws_allow_http"] = "true"
        return {name: value for name, value in options.items() if value}

    @property
    def style(self) -> TableStyle:
        """How the files of the table are written."""
        size = size_of(self.file_size) if self.file_size else 0
        columns = tuple(column for column, _ in map(parted, self.partition_by))
        rule = MergeRule(tuple(self.merge_on), parted(self.newest_by)[0]) if self.merge_on else None
        return TableStyle(columns, tuple(self.sort_by), size, rule)

    @property
    def queue_url(self) -> str:
        """The queue, with an absolute path if it is one of a Detent store in a folder, or of a class in a file."""
        scheme, _, rest = self.queue.partition(":")
        if scheme.endswith(".py"):
            return f"{self.path(scheme)}:{rest}"
        store, mark, queue = rest.rpartition("#")
        if scheme.lower() != "detent" or not store:
            return self.queue
        kind, colon, path = store.partition(":")
        if not colon or "/" in kind:
            path = store  # no URL, but a plain path
        elif kind == "file":
            path = unquote(re.sub(r"^//(?=\.\.?(/|$))", "", path))
            if not path or path.startswith("/"):
                return self.queue
        else:
            return self.queue
        return f"{scheme}:file:{self.path(path).replace('%', '%25')}{mark}{queue}"

    @property
    def state_url(self) -> str:
        """The database of the shards."""
        if not self.state:
            return f"sqlite:///{self.path(f'{self.name}.ingest.db')}"
        prefix, _, path = self.state.partition("sqlite:///")
        if not prefix and path and not path.startswith(("/", ":", "file:")):
            return f"sqlite:///{self.path(path)}"
        return self.state

    @property
    def staging_folder(self) -> Path:
        """Where files lie while Spark reads them: beside the table, unless said."""
        if self.staging:
            return Path(self.path(self.staging))
        return Path(f"{self.location if is_local(self.location) else self.path(self.name)}.staging")

    @property
    def limits(self) -> BatchLimits:
        """How large batches get."""
        return BatchLimits(self.batch_files, size_of(self.batch_bytes), milliseconds(self.batch_age) / 1000)

    @property
    def commit_timeout_s(self) -> float:
        """How long a commit may take, and a quarter of how long a pipeline may be silent, in both directions."""
        return milliseconds(self.commit_timeout) / 1000

    @property
    def visibility_s(self) -> float:
        """How long a message is kept from others at first, besides the time for a commit."""
        return milliseconds(self.visibility) / 1000

    @property
    def retry_delay_s(self) -> float:
        """How long a file that failed is left alone."""
        return milliseconds(self.retry_delay) / 1000

    @property
    def orphan_age_s(self) -> float:
        """After how long what was never committed is deleted."""
        return milliseconds(self.orphan_age) / 1000

    @property
    def grace_s(self) -> float:
        """After how long a pipeline that says nothing is taken for dead."""
        return 2 * self.commit_timeout_s

    @property
    def window_s(self) -> float:
        """How long finished files are remembered."""
        return milliseconds(self.window) / 1000

    @property
    def evolution(self) -> str:
        """What happens to columns that the schema does not have."""
        return self.new_columns or ("ignore" if self.schema else "add")

    @property
    def s3_options(self) -> S3Options:
        """How S3 is reached."""
        return S3Options(**self.s3)

    @classmethod
    def read(cls, path: str | Path, **changes: Any) -> IngestConfig:
        """The configuration in a TOML file, with some of it said otherwise."""
        file = Path(path)
        try:
            document = tomllib.loads(file.read_text())
        except (FileNotFoundError, IsADirectoryError):
            raise NotFound(f"there is no file {file}: write one, as `detent ingest --help` shows") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise Invalid(f"{file} is not TOML: {error}") from error
        batch = document.pop("batch", {})
        if not isinstance(batch, dict):
            raise Invalid(f"[batch] of {file} is a section with files, bytes and age")
        known = {one.name for one in fields(cls)} - {"folder"}
        unknown = sorted(document.keys() - (known - _IN_BATCH.keys()))
        unknown += sorted(f"[batch] {name}" for name in batch if f"batch_{name}" not in _IN_BATCH)
        if unknown:
            raise Invalid(
                f"{file} says {', '.join(unknown)}, which is nothing that an ingest knows: "
                f"{_meant(unknown, known)}it knows {_known(known)}"
            )
        document |= {f"batch_{name}": value for name, value in batch.items()}
        missing = sorted({"name", "queue", "table"} - document.keys() - _said().keys())
        if missing:
            raise Invalid(f"{file} does not say {', '.join(missing)}")
        return cls(**{**document, "folder": str(file.absolute().parent), **_said(), **changes})


def _said() -> dict[str, str]:
    """What the environment says."""
    return {name: os.environ[variable] for name, variable in VARIABLES.items() if os.environ.get(variable)}


_IN_BATCH: Final = {"batch_files": "[batch] files", "batch_bytes": "[batch] bytes", "batch_age": "[batch] age"}
"""What the keys of the section [batch] are called in Python, and in a file."""


def _shown(name: str) -> str:
    """A key as people write it."""
    return _IN_BATCH.get(name, name)


def _known(names: set[str]) -> str:
    return f"{', '.join(sorted(names - _IN_BATCH.keys()))}, and [batch] with files, bytes and age"


def _meant(unknown: Iterable[str], known: Iterable[str]) -> str:
    """The keys that are written almost like these, as a question."""
    names = {name: _shown(name) for name in known} | {
        name.removeprefix("batch_"): _IN_BATCH[name] for name in _IN_BATCH
    }
    found: list[str] = []
    for one in unknown:
        bare = one.removeprefix("[batch] ").lower()
        for name in difflib.get_close_matches(bare, names, n=1):
            is_misplaced = one.startswith("[batch] ") and names[name] == bare
            found.append(f"{bare}, which has to stand before the first section" if is_misplaced else names[name])
    return f"did you mean {' or '.join(dict.fromkeys(found))}? " if found else ""


_CHOICES: Final = {"committer": COMMITTERS, "format": FORMATS, "message": KINDS, "new_columns": ("", *NEW_COLUMNS)}
_DURATIONS: Final = (
    "batch_age",
    "visibility",
    "commit_timeout",
    "retry_delay",
    "window",
    "prune_interval",
    "orphan_age",
)


def _check(config: IngestConfig) -> None:
    """Refuse what cannot be meant, before anything is touched."""
    for one in fields(config):
        value, kind = getattr(config, one.name), str(one.type)
        if kind == "str" and not isinstance(value, str):
            raise Invalid(f"{_shown(one.name)} is a text, not {value!r}")
        if kind == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise Invalid(f"{_shown(one.name)} is a number, not {value!r}")
        if kind.startswith("Mapping") and not _is_texts(value):
            raise Invalid(f"{one.name} is a section of names and texts: put values in quotes")
        if kind == "bool" and not isinstance(value, bool):
            raise Invalid(f"{one.name} is true or false, not {value!r}")
    if not _NAME.fullmatch(config.name):
        raise Invalid(
            f"a name is letters, digits and _.- and begins with a letter or digit, which {config.name!r} is not"
        )
    for name, choices in _CHOICES.items():
        if getattr(config, name) not in choices:
            raise Invalid(f"{name} is one of {', '.join(filter(None, choices))}, not {getattr(config, name)!r}")
    check_policy(config.identity)
    _check_amounts(config)
    if not config.queue or not config.table:
        raise Invalid("an ingest needs a queue and a table")
    if "://" in config.table and not config.table.startswith(("file://", *_STORES)):
        raise Invalid(f"the table is a folder, or at {', '.join(_STORES)}, and not {config.table}")
    _check_columns(config)
    _check_options(config.options)
    if found := _PATTERN.search(str(config.staging_folder)):
        raise Invalid(
            f"the staging folder {config.staging_folder} has a {found[0]} in it, which Spark takes for a pattern: "
            "set `staging` to a folder without any of {}[]*?\\"
        )
    unknown = config.s3.keys() - {"region", "endpoint"}
    if unknown:
        raise Invalid(
            f"[s3] knows region and endpoint, not {', '.join(sorted(unknown))}; keys are taken from the environment"
        )


def _check_amounts(config: IngestConfig) -> None:
    """Durations, sizes and counts."""
    for name in _DURATIONS:
        try:
            milliseconds(getattr(config, name))
        except Invalid as error:
            why = str(error).partition(": write")[0]
            raise Invalid(f"{_shown(name)}: {why}: write '15d', '30s'") from None
    try:
        size = size_of(config.batch_bytes)
    except Invalid as error:
        raise Invalid(f"{_shown('batch_bytes')}: {error}") from None
    if min(config.batch_files, config.attempts) < 1 or size < 1:
        raise Invalid("a batch has a file and a byte at least, and a file is tried once at least")
    if config.commit_timeout_s <= 0 or not milliseconds(config.visibility):
        raise Invalid("commit_timeout and visibility are longer than nothing: a minute or two are usual")


def parted(text: str) -> tuple[str, str]:
    """A column that the table is partitioned by, and the expression that makes it; empty for a column of the rows."""
    match = _MADE.fullmatch(text.strip())
    return (match[2].strip("`"), match[1].strip()) if match else (text.strip().strip("`"), "")


def _check_columns(config: IngestConfig) -> None:
    for name in ("partition_by", "sort_by"):
        value = getattr(config, name)
        if isinstance(value, str) or not all(isinstance(one, str) and one.strip() for one in value):
            raise Invalid(f'{name} is a list of columns, such as ["day"], not {value!r}')
        object.__setattr__(config, name, tuple(value))
    _check_merge(config)
    columns = config.style.partition_by
    if len(set(columns)) != len(columns):
        raise Invalid(f"partition_by names a column twice: {', '.join(columns)}")
    if config.catalog and config.committer != "iceberg":
        raise Invalid('a catalog is for Iceberg tables: leave it out, or set committer = "iceberg"')


def _check_merge(config: IngestConfig) -> None:
    keys = config.merge_on
    object.__setattr__(config, "merge_on", key_columns(keys) if keys else ())
    if bool(keys) != bool(config.newest_by):
        raise Invalid(
            "merge_on and newest_by go together: files come in no order, so a column has to say which of two rows with "
            'one key counts, such as newest_by = "updated_at"'
        )
    if keys and config.committer == "manifest":
        raise Invalid('rows of a manifest table cannot be replaced: for merge_on set committer = "delta" or "iceberg"')


def _check_options(options: Mapping[str, str]) -> None:
    for name in options:
        why = _REFUSED_OPTIONS.get(name.lower())
        if why is not None:
            raise Invalid(f"leave {name} out of [options]: {why}")


def _allowed(prefixes: object) -> tuple[str, ...]:
    """What names of files may begin with, as files are called."""
    if isinstance(prefixes, str) or not isinstance(prefixes, Sequence):
        raise Invalid('allow is a list of texts, such as ["s3://bucket/orders/", "/landing/"]')
    return tuple(map(_allowed_prefix, prefixes))


def _allowed_prefix(prefix: object) -> str:
    if isinstance(prefix, str) and prefix.startswith("s3://"):
        is_bucket = prefix != "s3://" and prefix.count("/") == 2
        return f"{prefix}/" if is_bucket else prefix  # a bucket alone: or it would allow bucket-2 as well
    if not isinstance(prefix, str) or not prefix.startswith(("file:///", "/")):
        raise Invalid(
            f"allow has beginnings such as s3://bucket/orders/, file:///landing/ or /landing/, not {prefix!r}"
        )
    *folders, last = prefix.removeprefix("file://").split("/")
    if ".." in (*folders, last):
        raise Invalid(f"allow has {prefix!r}: write the path without '..'")
    parts = [part for part in folders if part not in {"", "."}]
    return "/".join(["file://", *parts, "" if last == "." else last])


def _is_texts(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(text, str) for name, text in value.items()
    )
