"""Delta tables whose columns follow the rows: columns that are added, and types that become wider.

A column is added by a commit to the log. A wider type needs all files anew: the library has no widening that other
readers know, so the table is rewritten, in one commit that replaces its files and its schema. That is work for the
driver, as large as the table, and done once for each column that was too narrow.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from detent.errors import Unavailable
from detent.tables.delta import DeltaPlace, add_of_task, deltalake_module
from detent.tables.delta_schema import check_columns
from detent.tables.files import FilePlan, schema_bytes, write_files
from detent.tables.widening import wider

if TYPE_CHECKING:
    from deltalake import DeltaTable

ATTEMPTS: Final = 5

Field = dict[str, Any]


def fit_delta(
    place: DeltaPlace, view: DeltaTable, wanted: Any, *, evolve: bool, attempts: int = ATTEMPTS
) -> DeltaTable:
    """A view of the table that holds rows of a schema; `Invalid` if they do not fit. With `evolve` the table gets what
    it lacks, and rows may lack what it has."""
    rows: list[Field] = json.loads(wanted.to_json())["fields"]
    for _ in range(attempts):
        have: list[Field] = json.loads(view.schema().to_json())["fields"]
        if not evolve:
            check_columns(have, rows, place.uri)
            return view
        fields = _evolved(have, rows, place.uri)
        if fields == have:
            return view
        try:
            _change(place, view, have, fields)
        except deltalake_module().exceptions.DeltaError as error:
            failure = error  # another writer may have done it, or have added rows meanwhile
        else:
            return place.open()
        view = place.open()
    raise Unavailable(f"the columns of {place} could not be changed: others wrote to it all the time") from failure


def _evolved(have: list[Field], rows: list[Field], uri: str) -> list[Field]:
    """The columns that hold both the table's values and the rows'."""
    given = {field["name"]: field for field in rows}
    fields = [{**one, "type": wider(one["type"], given.get(one["name"], one)["type"]) or one["type"]} for one in have]
    there = {one["name"].lower() for one in have}
    fields += [one for one in rows if one["name"].lower() not in there]
    types = {one["name"]: one["type"] for one in fields}
    # What rows are narrower in is cast by tasks; all else has to be the same.
    seen = [{**one, "type": wider(types.get(one["name"], one["type"]), one["type"]) or one["type"]} for one in rows]
    missing = [one for one in fields if one["name"] not in given]
    check_columns(fields, seen + missing, uri)
    return fields


def _change(place: DeltaPlace, view: DeltaTable, have: list[Field], fields: list[Field]) -> None:
    delta = deltalake_module()
    since = view.version()
    if fields[: len(have)] == have:
        view.alter.add_columns([delta.Field.from_json(json.dumps(one)) for one in fields[len(have) :]])
    else:
        schema = delta.Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
        _rewrite(place, view, schema)
    place.sync(since)


def _rewrite(place: DeltaPlace, view: DeltaTable, schema: Any) -> None:
    """Replace all files by such of another schema. Nothing may come in between: what another writer adds meanwhile
    would keep the narrower type."""
    delta = deltalake_module()
    partitions = view.metadata().partition_columns
    plan = FilePlan(place.uri, dict(place.storage), schema_bytes(pa.schema(schema.to_arrow())), tuple(partitions))
    files = write_files(plan, view.to_pyarrow_dataset().to_batches())
    alone = delta.CommitProperties(max_commit_retries=0, custom_metadata={"detent.reason": "wider types"})
    adds = [add_of_task(file) for file in files]
    view.create_write_transaction(adds, "overwrite", schema, partitions, commit_properties=alone)
