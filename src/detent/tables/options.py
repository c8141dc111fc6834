"""What a sink of a table can be told, and how rows replace others: checked where it is said, without a library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from detent.errors import Invalid

APPEND, UPDATE, COMPLETE = "append", "update", "complete"
"""Spark's output modes."""

OVERWRITE: Final = "overwrite"
"""The mode of a sink whose batches replace the table."""

Columns = Iterable[str] | str | None


class MergeRule(NamedTuple):
    """How rows replace others: by which columns, and which of two with the same key counts."""

    keys: tuple[str, ...]
    newest_by: str = ""
    """The column whose greater value counts; empty: the row that comes later."""


@dataclass(frozen=True)
class TableOptions:
    """What the sinks of tables have in common."""

    mode: str | None = None
    merge_on: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    storage: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """How the object store is reached; there may be secrets among it."""

    evolve: bool = False
    sort_by: tuple[str, ...] = ()
    file_bytes: int = 0
    compact_after: int = 0

    @classmethod
    def checked(
        cls,
        *,
        mode: str | None = None,
        merge_on: Iterable[str] | None = None,
        partition_by: Columns = None,
        storage_options: Mapping[str, str] | None = None,
        evolve: bool = False,
        sort_by: Columns = None,
        file_bytes: int = 0,
        compact_after: int = 0,
    ) -> TableOptions:
        """The arguments of a sink; `Invalid` for those that do not go together."""
        keys = key_columns(merge_on)
        if mode not in {None, APPEND, OVERWRITE}:
            raise Invalid(f"the mode of a table is append or overwrite, not {mode!r}")
        if mode is not None and keys:
            raise Invalid("merge_on says how rows come into the table: leave mode out")
        if file_bytes < 0:
            raise Invalid(f"file_bytes is how much becomes a file, before it is compressed, not {file_bytes}")
        if compact_after < 0:
            raise Invalid(f"compact_after is how many small files are too many, not {compact_after}")
        storage = dict(storage_options or {})
        if not all(isinstance(part, str) for entry in storage.items() for part in entry):
            raise Invalid('storage_options are names and texts, such as {"aws_region": "eu-central-1"}')
        partitions, order = _names("partition_by", partition_by), _names("sort_by", sort_by)
        return cls(mode, keys, partitions, storage, evolve, order, file_bytes, compact_after)

    @property
    def rule(self) -> MergeRule:
        """How rows replace others; of a batch the row that comes later counts."""
        return MergeRule(self.merge_on)

    def check_mode(self, mode: str, table: str) -> None:
        """Refuse an output mode of Spark's whose rows would be kept wrongly."""
        check_mode(mode, self.merge_on, self.mode, table)


def _names(what: str, columns: Columns) -> tuple[str, ...]:
    found = (columns,) if isinstance(columns, str) else tuple(columns or ())
    if not all(isinstance(column, str) and column for column in found):
        raise Invalid(f'{what} is a list of columns such as ["day"], not {columns!r}')
    return found


def key_columns(merge_on: Iterable[str] | None) -> tuple[str, ...]:
    """The argument `merge_on`, checked; empty for none."""
    if merge_on is None:
        return ()
    columns = () if isinstance(merge_on, str) else tuple(merge_on)
    if not columns or not all(isinstance(column, str) and column for column in columns):
        raise Invalid(f'merge_on is a list of the columns that name a row, such as ["id"], not {merge_on!r}')
    if len(set(columns)) != len(columns):
        raise Invalid(f"merge_on names a column twice: {', '.join(columns)}")
    return columns


def check_mode(mode: str, merge_on: tuple[str, ...], write_mode: str | None, place: str) -> None:
    """Refuse an output mode that would leave the wrong rows in a table: rows of update mode replace earlier ones, those
    of complete mode all of them."""
    if mode == UPDATE and not merge_on:
        raise Invalid(
            f"rows of a stream in update mode replace earlier ones, and {place} would get them as further rows: say "
            'which columns name a row, with merge_on=["id"]'
        )
    if mode == COMPLETE and write_mode == APPEND:
        raise Invalid(
            f"a stream in complete mode writes its whole result with each batch, and {place} would get all rows again: "
            'leave mode="append" out, and each batch replaces the rows'
        )
