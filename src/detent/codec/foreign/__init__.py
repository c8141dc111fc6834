"""Arrow bytes that others have sent: streams, record batches and files, checked by our own bounds before Arrow reads.

Arrow's readers trust what they are given: lengths and offsets that lie lead them out of the buffers that were sent, to
other memory of the process or to its end. So none of them sees a foreign byte. What this package refuses is `Invalid`;
what it reads needs little memory beside the bytes themselves.

    streams.py     a schema and its record batches, whole in memory or as they come
    batches.py     single record batches, as an append brings them
    files.py       fragments: read at random by their footer, or checked while they come in
    framing.py     where a message ends, what it is, and which bytes are its body
    flatbuffer.py  the metadata, read without trust
    schema.py      what columns there are; foreign schemas become our own types
    columns.py     buffers and offsets against the bytes that are there; then Arrow makes arrays over them
"""

from __future__ import annotations

from detent.codec.foreign.batches import read_content, read_stamped
from detent.codec.foreign.files import MessageFile, StreamedFile
from detent.codec.foreign.schema import Column
from detent.codec.foreign.streams import PartsReader, read_stream

__all__ = ["Column", "MessageFile", "PartsReader", "StreamedFile", "read_content", "read_stamped", "read_stream"]
