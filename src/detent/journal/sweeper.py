"""Deletes fragments that nobody adopted, and those whose messages are gone.

First the horizon is raised, durably: from then on no fragment begun before it can be adopted. Only then is it safe to
delete what is older and has no record; a writer that comes late is refused instead of finding its file gone.
"""

from __future__ import annotations

import logging
from typing import Final

from detent import crash
from detent.codec import journal as records
from detent.codec.journal import Fragment
from detent.engine import Engine, Request
from detent.journal import fragments
from detent.journal.operations import RaiseHorizon
from detent.kv import Reader

GRACE_MS: Final = 24 * 3600 * 1000
"""How long a writer may take from beginning a fragment to adopting it."""

logger = logging.getLogger("detent.journal")


def sweep(engine: Engine, reader: Reader, grace_ms: int | None = None) -> int:
    """Delete orphaned fragments older than the grace period. Returns how many."""
    now_ms = engine.now_ms() + min(0, engine.time.difference_ms)  # by both clocks: writers have gone by the wall clock
    horizon_ms = now_ms - (GRACE_MS if grace_ms is None else grace_ms)
    if horizon_ms <= 0:
        return 0
    engine.commit(Request(engine.new_session(), 0, 0, [RaiseHorizon(horizon_ms)]))
    crash.point("journal.sweep.after_horizon")
    deleted = 0
    for found in reader.objects.list(fragments.DIRECTORY):
        fragment = fragments.fragment_of(found.name)
        if fragment is None or fragments.created_ms(fragment) >= horizon_ms:
            continue
        with reader.view() as view:
            stored = view.get(records.FRAGMENT.key(fragment))
            if stored is not None and Fragment.decode(stored).journal:
                continue
        reader.objects.delete(found.name)
        deleted += 1
        crash.point("journal.sweep.after_delete")
    reader.objects.remove_abandoned(now_ms)
    if deleted:
        logger.info("swept %d orphaned fragments", deleted)
    return deleted
