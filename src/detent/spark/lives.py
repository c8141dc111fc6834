"""A store that is restored from a backup begins a new life, and a stream's checkpoint may be ahead of it.

Spark's offsets of journals then say of which life they are, beside the journals: a stream that comes back knows whether
its place was read before the restore, however far the journals have grown since. In a store that was never restored
they say nothing.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from detent.errors import Restored
from detent.spark.extents import extents_of
from detent.spark.ranges import LIFE, Offsets, ordered, without_life

if TYPE_CHECKING:
    from detent.journal import JournalReader
    from detent.spark.journal_reading import JournalReadSettings

logger = logging.getLogger("detent.spark")


class StoreLife:
    """The life of the store that a stream reads."""

    def __init__(self, settings: JournalReadSettings) -> None:
        self._settings = settings
        self._compared: deque[Any] = deque(maxlen=2)  # where a batch begins and ends

    @property
    def _reader(self) -> JournalReader:
        return extents_of(self._settings.asked_url, raw=self._settings.raw).reader

    @cached_property
    def _restored_ms(self) -> int:
        return self._reader.restored_ms()

    def mark(self, offsets: Offsets) -> Offsets:
        """An offset as Spark gets it."""
        return ordered({**offsets, LIFE: self._restored_ms}) if self._restored_ms else offsets

    def journals_of(self, offset: Mapping[str, int]) -> Offsets:
        """The journals of an offset that Spark's log has. `Restored` if one of them was read, or planned, further than
        what was restored since."""
        journals, known_ms = without_life(offset), offset.get(LIFE, 0)
        if known_ms != self._restored_ms and offset not in self._compared:
            self._compare(journals, known_ms)
            self._compared.append(offset)
        return journals

    def _compare(self, journals: Offsets, known_ms: int) -> None:
        reader = self._reader
        for name, at in journals.items():
            try:
                if at and reader.number(name) is not None:
                    reader.info(name).require_restored(known_ms, at, raw=self._settings.raw)
            except Restored as error:
                if self._settings.fail_on_loss:
                    raise
                logger.warning("%s; going on at the offset where it was (failOnDataLoss is false)", error)
