"""JSON without losses: infinity and NaN, for which JSON has no number, are an error and not null."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AnySet
from typing import Any, Final

import msgspec

from detent.errors import Invalid

_TRACES: Final = (b"null", b'nan"', b'inf"')
"""What msgspec writes for such a number: null for a value, its name for a key. Without these there was none."""

_encode: Final = msgspec.json.Encoder().encode


def encode_json(value: Any, encode: Callable[[Any], bytes] = _encode) -> bytes:
    """A value as JSON by an encoder of msgspec; `Invalid` says where in the value a number is infinite or NaN."""
    raw = encode(value)
    if any(trace in raw for trace in _TRACES):
        refuse_infinite(value)
    return raw


def refuse_infinite(value: Any) -> None:
    """`Invalid` if a value has a number in it that is infinite or NaN."""
    waiting = [("", value)]
    while waiting:
        where, part = waiting.pop()
        if isinstance(part, float):
            if not math.isfinite(part):
                raise Invalid(f"{part} is not a number of JSON{f' (at {where})' if where else ''}: send None, or text")
        else:
            waiting.extend((f"{where}{step}", inner) for step, inner in _parts(part))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f" key {key!r}", key
            yield f"[{key!r}]", inner
    elif isinstance(value, list | tuple):
        yield from ((f"[{at}]", inner) for at, inner in enumerate(value))
    elif isinstance(value, AnySet):
        yield from (("{}", inner) for inner in value)
    else:
        yield from ((f".{name}", getattr(value, name, None)) for name in _fields(value))


def _fields(value: Any) -> tuple[str, ...]:
    """The fields of a struct, a dataclass or a class of attrs; none for anything else."""
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    return tuple(field.name for field in getattr(type(value), "__attrs_attrs__", ()))
