"""SQL databases that Detent keeps something in: SQLite for one machine, PostgreSQL for many.

What all parts that keep something there have in common; what they keep stands with each of them:

    dialects.py   what the two call the same thing, and what their errors mean; without any driver
    databases.py  engines whose commits wait for the disk, and transactions that are tried again; on SQLAlchemy
"""
