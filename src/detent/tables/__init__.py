"""Delta and Iceberg tables: their files, their commits, and the marks that say which batches are in them.

Sinks of Spark (`detent.spark.once_delta`) and ingest (`detent.ingest.commit_delta`, `commit_iceberg`) stand on it. It
knows Spark's types by what they say of themselves, and imports neither Spark nor ingest.

    files.py             Parquet files that no table names yet: written by tasks to a folder or an object store
    statistics.py        what a commit says of a file, by its footer
    orphans.py           folders of batches, and what is left behind in them
    marks.py             the mark of a batch: which one a table has last, and what it was made from
    delta.py             a Delta table: opened, made, changed by one commit
    delta_log.py         its log on the disk: many transaction ids at a time, synced
    delta_schema.py      which columns it can hold, and whether rows fit
    delta_evolution.py   its columns follow the rows: added, and made wider
    widening.py          types that hold the values of others
    options.py           what a sink of a table can be told, checked without a library
    scans.py             tables of both formats, read by tasks: which files, and the rows of each
    iceberg_merge.py     rows that replace those of the same key in an Iceberg table
    maintenance.py       small files become large ones, and what no reader needs is deleted
    merge.py             rows that replace those of the same key
    iceberg_table.py     an Iceberg table in any catalog, at any place: made, widened, changed by a commit with marks
    catalogs.py          catalogs: a database, REST, or what PyIceberg's own configuration names
    iceberg_io.py        the files of Iceberg tables for PyIceberg, by the options that Delta tables take, too
    iceberg.py           an Iceberg table in a folder that moves in one transaction with other rows of its database
    iceberg_metadata.py  its metadata files: which it needs, and which it can forget
    iceberg_schema.py    which columns it can hold, and whether rows fit
"""
