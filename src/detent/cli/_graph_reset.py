"""What `detent graph reset` says before it does something, and does then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from detent.cli._common import confirm, count_text
from detent.cli._output import note, print_json
from detent.errors import Invalid, NotFound

if TYPE_CHECKING:
    from datetime import datetime

    from detent.processor.declaration import Processor
    from detent.processor.live_graph import LiveGraph
    from detent.processor.place import Place
    from detent.processor.status import ProcessorStatus


def wanted(
    live: LiveGraph, processor: Processor, to: str, time: datetime | None, inputs: Sequence[str]
) -> dict[str, int]:
    """The offsets that a processor is to go on at, by input."""
    if not processor.inputs:
        then = "--forget has it asked from its beginning" if processor.runs else "it is a journal that others write"
        raise Invalid(f"the source {processor.name!r} reads nothing: {then}")
    if inputs:
        return dict(_pair(text, processor) for text in inputs)
    if to not in {"earliest", "latest"} and not _is_number(to):
        raise click.UsageError(
            f"{to!r} is no place in a journal: write 'earliest', 'latest' or an offset; a time is --time"
        )
    return {str(place): _offset(live, place, to, time) for place in processor.inputs}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _pair(text: str, processor: Processor) -> tuple[str, int]:
    journal, _, offset = text.rpartition("=")
    if not journal or not _is_number(offset):
        raise click.UsageError(f"an input is JOURNAL=OFFSET, not {text!r}")
    if journal not in map(str, processor.inputs):
        listed = ", ".join(map(str, processor.inputs))
        raise Invalid(f"{processor.name!r} does not read {journal!r}: it reads {listed}")
    return journal, int(offset)


def _offset(live: LiveGraph, place: Place, to: str, time: datetime | None) -> int:
    store = live.stores[place.store]
    found = store.reader.whereabouts(place.journal)
    first, end = (0, 0) if found is None else found[1:3]
    if time is not None:
        return first if found is None else store.journal(place.journal).offset_at(time)
    if not _is_number(to):
        return end if to == "latest" else first
    if not first <= int(to) <= end:
        raise NotFound(f"{str(place)!r} has the offsets from {first} to {end}, and not {to}")
    return int(to)


def reset(
    live: LiveGraph,
    name: str,
    offsets: dict[str, int],
    to: str | int | dict[str, int],
    time: datetime | None,
    *,
    yes: bool,
    as_json: bool,
) -> None:
    """Say what would become of the messages between, ask, and move the processor: to where "latest" is by then."""
    known = _known(live, name)
    if known is not None:
        for line in _consequences(known, offsets):
            note(line)
        what = f"moves {name}, whose deliveries have new keys from there on"
        confirm(f"This {what}. Go on?", what, yes=yes)
    moved = live.reset(name, to, time=time)
    if as_json:
        print_json({"processor": name, "offsets": moved})
    else:
        places = " and ".join(f"offset {offset} of {journal}" for journal, offset in moved.items())
        click.echo(f"{name} goes on at {places}")


def _known(live: LiveGraph, name: str) -> ProcessorStatus | None:
    """What is known of a processor; None if it never ran."""
    return next((one for one in live.status() if one.name == name and one.status != "new"), None)


def _consequences(known: ProcessorStatus, offsets: dict[str, int]) -> Iterator[str]:
    """What a reset does to the messages between."""
    for one in known.inputs:
        to = offsets.get(one.journal, one.position)
        if to < one.position:
            then = f"goes from offset {one.position} to {to}: {count_text(one.position - to)} processed again"
        elif to > one.position:
            then = f"goes from offset {one.position} to {to}: {count_text(to - one.position)} skipped for ever"
        else:
            then = f"stays at offset {to}"
        yield f"{one.journal} {then}"


def forget(live: LiveGraph, name: str, *, yes: bool, as_json: bool) -> None:
    """Say what is known of a processor, ask, and delete it."""
    known = _known(live, name)
    if known is None:
        listed = ", ".join(one.name for one in live.status() if one.status != "new")
        raise NotFound(f"there is no progress of {name!r} to forget: there is that of {listed or 'no processor'}")
    for one in known.inputs:
        note(f"{one.journal} was read up to offset {one.position}")
    what = f"deletes the progress of {name}: if it runs again it begins anew, and its deliveries have new keys"
    confirm(f"This {what}. Go on?", what, yes=yes)
    live.forget(name)
    if as_json:
        print_json({"processor": name, "forgotten": True})
    else:
        click.echo(f"forgot {name}")
