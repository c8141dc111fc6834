"""The log of ingestion. Names of files come from others, so whatever they hold, a record of it is one line."""

from __future__ import annotations

import logging
from typing import Final

log: Final = logging.getLogger("detent.ingest")


class _OneLine(logging.Filter):
    """Writes out what is not printable: a line break in a key would be a line of the log that others wrote."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if not text.isprintable():
            shown = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
            record.msg, record.args = "".join(shown), None
        return True


log.addFilter(_OneLine())
