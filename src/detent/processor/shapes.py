"""What a processor looks like, and whether it may go on from what one of its name has left."""

from __future__ import annotations

from detent.errors import Conflict
from detent.processor.declaration import Processor
from detent.processor.place import Place
from detent.processor.records import Shape


def shape_of(processor: Processor, errors: Place | None, delivery: str) -> Shape:
    """The shape of a processor as it is declared, with the journal of its errors and its delivery."""
    return Shape(
        processor.kind,
        processor.mode,
        [str(place) for place in processor.inputs],
        written_by(processor),
        "" if errors is None else str(errors),
        delivery,
        processor.whole,
    )


def written_by(processor: Processor) -> list[str]:
    """The outputs of a processor, in one order whatever they are called."""
    return sorted(str(place) for place in processor.outputs.values())


def reads(shape: Shape) -> tuple[str, list[str]]:
    """What a processor reads, and how. The inputs of an any-of are known by their names, whatever their order; those of
    a join are also the parameters of its function."""
    return shape.mode, sorted(shape.inputs) if shape.mode == "any" else shape.inputs


def check_same_inputs(name: str, old: Shape, new: Shape) -> None:
    """`Conflict` unless a processor reads what it has read, in sets that can have the same keys. Everything else about
    it may change."""
    is_whole_now = new.whole and not old.whole
    if old.kind == new.kind and reads(old) == reads(new) and not is_whole_now:
        return
    own = name.partition("/")[2]
    raise Conflict(
        f"{name} was a {described(old)}, and is a {described(new)} now. Declare it as it was; or let it go on so, "
        f"each input from where it was and new ones from their start: migrate=[{own!r}], or --migrate {own}; or give "
        "it another name, to begin anew. If there are two graphs of that name, one of them needs another"
    )


def described(shape: Shape) -> str:
    """In words."""
    reads = {"one": "of", "zip": "that joins", "any": "of any of", "none": ""}.get(shape.mode, shape.mode)
    whole = ", in whole batches" if shape.whole else ""
    return f"{shape.kind} {reads} {', '.join(shape.inputs)}".strip() + whole
