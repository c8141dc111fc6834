"""Delta and Iceberg tables: their files, their commits, and the marks that say which batches are in them.

Sinks of Spark (`detent.spark.once_delta`) and ingest (`detent.ingest.commit_delta`, `commit_iceberg`) stand on it. It
knows Spark's types by what they say of themselves, and imports neither Spark nor ingest.

    files.py             Parquet files that no table names yet: written by tasks, synced
    statistics.py        what a commit says of a file, by its footer
    orphans.py           folders of batches, and what is left behind in them
    marks.py             the mark of a batch: which one a table has last, and what it was made from
    delta.py             a Delta table: opened, made, changed by one commit
    delta_log.py         its log on the disk: many transaction ids at a time, synced
    delta_schema.py      which columns it can hold, and whether rows fit
    merge.py             rows that replace those of the same key
    iceberg.py           an Iceberg table with its catalog in a database: made, widened, appended to
    iceberg_metadata.py  its metadata files: which it needs, and which it can forget
    iceberg_schema.py    which columns it can hold, and whether rows fit
"""
