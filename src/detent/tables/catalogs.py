"""Catalogs of Iceberg tables: a database (SQLite, PostgreSQL), a REST catalog, or what PyIceberg's own file names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from detent.errors import Invalid
from detent.extras import install_command
from detent.sql.databases import open_engine, parse
from detent.sql.transactions import transact
from detent.tables.iceberg_io import io_properties

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.sql import SqlCatalog

CATALOG_NAME: Final = "detent"
"""The name of a catalog in a database, unless its properties say another. It is part of the key of all its rows, so
readers of its tables have to say it."""

CatalogGiven = str | Mapping[str, str]
"""The URL of a database or of a REST catalog, a name of PyIceberg's own configuration, or properties of PyIceberg's."""


def open_catalog(given: CatalogGiven, storage: Mapping[str, str], warehouse: str | None = None) -> Catalog:
    """Open a catalog. Tables without a location of their own are made below
    `warehouse`, if the catalog is a database; others choose for themselves."""
    properties = {**io_properties(storage), **_properties(given)}
    name = properties.pop("name", CATALOG_NAME)
    uri = properties.get("uri", "")
    kind = properties.get("type") or ("rest" if urlsplit(uri).scheme in {"http", "https"} else "sql" if uri else "")
    if kind == "sql":
        return open_sql_catalog(name, {"warehouse": warehouse, **properties} if warehouse else properties)
    load_catalog = _loading()
    try:
        catalog: Catalog = load_catalog(name, **({**properties, "type": kind} if kind else properties))
    except ValueError as error:
        raise Invalid(f"there is no catalog {given!r}: {error}") from error
    return catalog


def _properties(given: CatalogGiven) -> dict[str, str]:
    if isinstance(given, str):
        if not given:
            raise Invalid("a catalog is a URL such as sqlite:////data/catalog.db or https://catalog:8181, or a name")
        return {"uri": given} if "://" in given else {"name": given}
    if not isinstance(given, Mapping):
        raise Invalid(f"a catalog is a URL, a name, or properties of PyIceberg's, not {given!r}")
    return {str(name): str(value) for name, value in given.items()}


def _loading() -> Any:
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        raise missing_iceberg(error) from error
    return load_catalog


def require_iceberg() -> None:
    """`Invalid` without PyIceberg."""
    _loading()


def missing_iceberg(error: Exception) -> Invalid:
    """What to install."""
    return Invalid(f"an Iceberg table needs PyIceberg: {install_command('iceberg')} ({error})")


def open_sql_catalog(name: str, properties: Mapping[str, str], engine: Any = None) -> SqlCatalog:
    """A catalog in a database, by an engine whose commits wait for the disk."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
    except ModuleNotFoundError as error:
        raise missing_iceberg(error) from error
    if engine is None:
        engine = open_engine(parse(properties["uri"], "an Iceberg catalog", "/data/catalog.db"))
    transact(engine, SqlCatalogBaseTable.metadata.create_all)
    uri = engine.url.render_as_string(hide_password=False)
    catalog = SqlCatalog(name, **{**properties, "uri": uri})
    catalog.engine.dispose()
    catalog.engine = engine
    return catalog
