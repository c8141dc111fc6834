"""Settings in a record: pairs of key and value, after the record's fixed fields.

A number or a truth takes 8 bytes, a text its own; labels are an array of texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from detent.codec.values import U32_MAX, ByteReader, ByteWriter
from detent.settings.queue import LabelPairs
from detent.settings.setting import Choice, Flag, Labels, Seconds, Setting, Settings, Text


def write_settings(writer: ByteWriter, settings: Settings, held: Mapping[str, Any], keys: Iterable[str]) -> bytes:
    """The end of a record: these keys of what it holds. Settings that came with a later release are written once they
    are used, so that the one before it goes on reading the records that do without."""
    used = [key for key in keys if not (key in settings.by_key and settings.by_key[key].later) or held[key]]
    pairs = [(key, _bytes_of(held[key])) for key in used]
    return writer.array(pairs, lambda w, pair: w.utf8(pair[0]).var_bytes(pair[1])).finish()


def _bytes_of(value: int | str | bool | LabelPairs) -> bytes:
    if isinstance(value, tuple):
        return ByteWriter().array(value, lambda w, label: w.utf8(label[0]).utf8(label[1])).finish()
    return value.encode() if isinstance(value, str) else int(value).to_bytes(8, "little", signed=True)


def read_pairs(reader: ByteReader) -> list[tuple[str, bytes]]:
    """The end of a record, back: keys, and values in bytes."""
    pairs = reader.array(lambda r: (r.utf8(), r.var_bytes()), element_bytes=6)
    reader.finish()
    return pairs


def read_setting(reader: ByteReader, setting: Setting | None, data: bytes, highest: int | None = None) -> Any:
    """A value of that end; `highest` bounds a number that is not a setting."""
    if isinstance(setting, Labels):
        return _read_labels(data)
    if isinstance(setting, Text | Choice):
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise reader.corrupt("a setting is not UTF-8") from None
    if len(data) != 8:
        raise reader.corrupt(f"a number of {len(data)} bytes")
    number = int.from_bytes(data, "little", signed=True)
    if isinstance(setting, Flag | Seconds):
        highest = 1 if isinstance(setting, Flag) else U32_MAX
    if number < 0 or (highest is not None and number > highest):
        raise reader.corrupt(f"the setting {number} is out of range")
    return bool(number) if isinstance(setting, Flag) else number


def _read_labels(data: bytes) -> LabelPairs:
    reader = ByteReader(data, "labels")
    labels = tuple(reader.array(lambda r: (r.utf8(), r.utf8()), element_bytes=4))
    reader.finish()
    names = [name for name, _ in labels]
    if not labels or names != sorted(set(names)):
        raise reader.corrupt("labels are at least one, and stand in the order of their names, each once")
    return labels
