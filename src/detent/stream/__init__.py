"""What consumers and processors stand on: a place in a journal, a record behind a fence, a membership with leases.

A processor is a consumer of one shard (docs/decisions/0024), and a tailer keeps its place as one does.

    following.py   a place in a journal: read on or back from it, loudly when messages are gone
    bell.py        waiting for several journals at once: each rings the same bell when it has grown
    record.py      what a shard keeps in a store: bytes that only its newest owner replaces
    opening.py     a consumer or a graph with its stores open, and a loop for its coroutines
    membership.py  a member of a consumer: it takes shards, renews their leases, and gives them back;
                   members that die on the same machine are noticed
    told.py        what a task without shards says of itself, kept by the store's owner while it runs
    sharing.py     the rules by which every member decides which shards it takes, from the same table

Without a consumer or a graph:

    tailer.py      reading a journal message by message, with a place that can be kept
    appender.py    writing so that a second write of the same adds nothing
    kept_place.py  where these two keep their places
"""
