"""What is settled before a pipeline runs: that what it names is there, and that no stream begins under another name or
on another input. `store_place` has said where the store is."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from detent.errors import Denied, Fenced, NotFound
from detent.ledger.operations import StreamDescription
from detent.spark.pipeline import journals_read, journals_written, queues_used
from detent.spark.pipeline_stream import Custom, JournalEnd, Output, QueueEnd, Source, Stream, TableEnd
from detent.store import Store


def prepare(store: Store, streams: list[Stream]) -> Iterator[str]:
    """Create journals that are missing, and say so where no stream writes them. Queues have to be there: a queue has
    settings, which a pipeline cannot guess."""
    _check_queues(store, queues_used(streams))
    known = set(store.journals())
    written = journals_written(streams)
    for name in dict.fromkeys([*written, *journals_read(streams)]):
        if name not in known:
            store.journal(name).create(exist_ok=True)
            if name not in written:
                yield f"the journal {name} was not there, and no stream here writes it: it was created, empty"


def _check_queues(store: Store, names: Iterable[str]) -> None:
    for name in names:
        try:
            store.queue(name).info()
        except NotFound as error:
            raise NotFound(
                f"there is no queue {name!r}, which the pipeline uses: create it with `detent queue create {store.url} "
                f"{name}`"
            ) from error


# -- a stream under another name, or on another input: found by what the store knows of its streams -------------------
#
# The ledger knows a stream by its name and by the query of its checkpoint. A stream that was renamed has neither, and
# would read everything again into the same output. A journal or queue that was deleted and made anew has the old name,
# and a checkpoint says how far the old one was read. So each stream is kept with what it reads and writes, and the
# numbers that tell these from others of the same name.

Ends = dict[str, int]
"""What a stream reads or writes, each with the number that it has now; 0 where there is none."""


def settle(store: Store, every: list[Stream], running: list[Stream], migrate: Collection[str]) -> Iterator[str]:
    """Compare the streams that are to run with what the store knows, and let it know them. `every` stream of the
    pipeline has its name still; those named in `migrate` are new on purpose, and are taken at their word as long as
    none of their batches has taken effect. Yields what the user should know."""
    try:
        known = {one.name: one for one in store.declared_streams()}
    except Denied as error:
        yield f"whether a stream was renamed, or an input made anew, is not checked: {error}"
        return
    names = {stream.full_name for stream in every}
    gone = [one for one in known.values() if one.name not in names]
    for stream in running:
        reads, writes = places_read(store, stream), places_written(store, stream)
        before = known.get(stream.full_name)
        is_new = stream.name in migrate and not _entries(store, stream.full_name)
        if before is not None and not is_new:
            _check_inputs(store, stream, before, reads)
        elif before is None and stream.name not in migrate and _entries(store, stream.full_name) is None:
            _check_name(store, stream, reads, writes, gone)
        store.declare_stream(stream.full_name, reads, writes)


def _check_inputs(store: Store, stream: Stream, before: StreamDescription, reads: Ends) -> None:
    """`Fenced` if an input is another one of the same name."""
    for place, number in reads.items():
        if before.reads.get(place, number) != number:
            raise Fenced(
                f"the {place}, which the stream {before.name} reads, was deleted and made anew: the checkpoint says "
                "how far the old one was read, and the new one would be read from its middle. To read it from its "
                f"beginning, delete the checkpoint of {before.name}, and start the stream once with `detent run ... "
                f"--migrate {stream.name}` if none of its batches has taken effect; if some have, say "
                f"`{_reset(store, before.name)}`"
            )


def _check_name(store: Store, stream: Stream, reads: Ends, writes: Ends, gone: list[StreamDescription]) -> None:
    """`Fenced` if a stream that is new does what one did whose name the pipeline does not have."""
    for one in gone:
        read, written = _shared(reads, one.reads), _shared(writes, one.writes)
        if read and written:
            raise Fenced(
                f"the stream {stream.full_name} is new, and it reads the {read} and writes the {written}, as the "
                f"stream {one.name} has done, which this pipeline does not have: it would write everything again. If "
                f"it is that stream, let it keep its name: {_naming(stream, one.name)}. If it is another one, or is to "
                f"start over, say so once with `detent run ... --migrate {stream.name}`, or forget the old one with "
                f"`{_reset(store, one.name)}`"
            )


def _shared(some: Ends, others: Ends) -> str | None:
    """A place that is in both, and is the same one."""
    return next((place for place, number in some.items() if others.get(place) == number), None)


def _naming(stream: Stream, old: str) -> str:
    """How the declaration says the old name."""
    pipeline, _, name = old.partition("/")
    return f'Pipeline("{pipeline}")' if name == stream.name else f'@pipeline.stream(..., name="{name}")'


def _reset(store: Store, name: str) -> str:
    return shlex.join(("detent", "ledger", "reset", store.url, name, "--yes"))


def _entries(store: Store, name: str) -> int | None:
    """How many batches of a stream have taken effect; None unless it has run before, under an earlier release, or was
    reset on purpose."""
    try:
        return store.ledger(name).entries
    except NotFound:
        return None


# -- places ---------------------------------------------------------------------------------------------------------


def places_read(store: Store, stream: Stream) -> Ends:
    """What a stream reads."""
    return {_place(source): _number(store, source) for source in stream.sources}


def places_written(store: Store, stream: Stream) -> Ends:
    """What a stream writes. Its quarantine has its own name, and says nothing."""
    return {_place(output): _number(store, output) for output in stream.outputs}


def _place(one: Source | Output) -> str:
    if isinstance(one, TableEnd):
        is_path = one.catalog is None and "://" not in one.path
        return f"table {Path(one.path).absolute() if is_path else one.path}"
    if isinstance(one, Custom):
        return f"sink {getattr(one.sink, 'place', None) or one}"
    return f"journal {one}" if isinstance(one, JournalEnd) else str(one)


def _number(store: Store, one: Source | Output) -> int:
    """What tells a place from another one of the same name."""
    if isinstance(one, QueueEnd):
        return store.queue(one.name).info().number
    if isinstance(one, JournalEnd):
        return 0 if one.is_pattern else store.reader.number(one.name) or 0
    if isinstance(one, TableEnd):
        return _digest(None if one.catalog is None else repr(one.catalog))
    return _digest(getattr(getattr(one.sink, "place", None), "within", None))


def _digest(within: object) -> int:
    """What a sink's database or catalog is kept as, whose URL may have a password; 0 for none."""
    if not isinstance(within, str):
        return 0
    return int.from_bytes(hashlib.blake2b(within.encode(), digest_size=8).digest(), "big") >> 2
