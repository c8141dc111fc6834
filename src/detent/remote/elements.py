"""How many values a MessagePack request holds, counted before it is taken apart.

A value of one byte becomes an object of up to some hundred: a body of 160 MiB would fill any memory, long before its
transactions are found to be too large. Where lists and maps begin they say how long they are, and to pass over what is
in them costs nothing, so a request is counted by its operations and by the lists and maps that those hold.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from detent.engine.operation import OPERATIONS_MAX
from detent.errors import LimitExceeded

SMALL_BYTES: Final = 4 << 10
"""A transaction of no more bytes than this needs no counting: all that fit into a request become a few hundred
megabytes at most."""

LIST_MAX: Final = 1 << 20
"""In one list or map of an operation; no operation takes more."""

ELEMENTS_MAX: Final = 6 << 20
"""In the lists and maps of one HTTP request, whose transactions are decoded together: room for the largest append of
messages with ids, keys and headers. In memory that is up to 1.5 GB, if all of them are maps."""

OPERATION_ELEMENTS: Final = 8
"""What an operation counts by itself."""

_FIELDS_MAX: Final = 32
_WIDTHS: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}

_Operations = Annotated[list[msgspec.Raw], msgspec.Meta(max_length=2 * OPERATIONS_MAX)]
_Shape = msgspec.defstruct(
    "Shape",
    [("session", msgspec.Raw), ("sequence", msgspec.Raw), ("answered", msgspec.Raw), ("operations", _Operations)],
    array_like=True,
)
_shape_decoder: Final[msgspec.msgpack.Decoder[Any]] = msgspec.msgpack.Decoder(_Shape)
_fields_decoder = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_FIELDS_MAX)])


class Elements:
    """What the transactions of one HTTP request hold together."""

    def __init__(self) -> None:
        self._left = ELEMENTS_MAX

    def take(self, transaction: msgspec.Raw) -> None:
        """Count a transaction; `LimitExceeded` if it is too much, msgspec's errors if it is none."""
        if memoryview(transaction).nbytes <= SMALL_BYTES:
            return
        count = 0
        for operation in _shape_decoder.decode(transaction).operations:
            count += OPERATION_ELEMENTS
            for field in _fields_decoder.decode(operation):
                size = _length(memoryview(field))
                if size > LIST_MAX:
                    raise LimitExceeded(f"an operation has lists of at most {LIST_MAX} values, not {size}")
                count += size
        if count > self._left:
            raise LimitExceeded(f"one request holds at most {ELEMENTS_MAX} values: send its transactions apart")
        self._left -= count


def _length(value: memoryview) -> int:
    """How long a list or map is; 0 for anything else."""
    first = value[0]
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    width = _WIDTHS.get(first)
    return 0 if width is None else int.from_bytes(value[1 : 1 + width], "big")
