"""SQL databases that Detent keeps something in: SQLite for one machine, PostgreSQL for many.

What all parts that keep something there have in common; what they keep stands with each of them:

    dialects.py      what the two call the same thing, and what their errors mean
    tables.py        names of tables, and in which schema they are
    port.py          statements in text, on whatever connection a program brings

On SQLAlchemy:

    databases.py     engines whose commits wait for the disk, opened once in each process
    transactions.py  tried again when others came in the way; ended by their owner only; a COMMIT without an answer
    rows.py          marks, high-water rows, the database's time
"""
