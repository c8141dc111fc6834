"""Arrow bytes that others have sent: streams, record batches and files, checked by our own bounds before Arrow reads.

Arrow's readers trust what they are given: lengths and offsets that lie lead them out of the buffers that were sent, to
other memory of the process or to its end. So none of them sees a foreign byte. This package reads the metadata itself
(`flatbuffer`, `framing`, `schema`), checks the columns against the bytes that are there (`columns`), and has Arrow make
arrays over them. What it refuses is `Invalid`; what it reads needs little memory beside the bytes themselves.
"""

from __future__ import annotations

from detent.codec.foreign.batches import read_content, read_stamped
from detent.codec.foreign.files import MessageFile, StreamedFile
from detent.codec.foreign.schema import Column
from detent.codec.foreign.streams import PartsReader, read_stream

__all__ = ["Column", "MessageFile", "PartsReader", "StreamedFile", "read_content", "read_stamped", "read_stream"]
