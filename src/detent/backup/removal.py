"""Old backups are removed, and what no other backup needs, without a lock.

Other processes may copy meanwhile, and any of them may have stood still for days. These rules keep all of them apart:

1. A removal takes a number, like a backup. It gives up the backups with lower numbers that have not ended: their list
   is there, or can never be written any more. Then it decides what no list needs.
2. It writes down what it will delete, and looks for jobs with higher numbers after that. If there are any it deletes
   nothing. A backup takes its number before it looks at what is there, and leaves out what a removal has written down;
   so one of the two always sees the other.
3. What is copied has the number of its job in its name. A name that was deleted is never written again.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from detent import crash
from detent.backup.place import BACKUPS, JOBS, OBJECTS, PARTS, REMOVAL, REMOVALS, BackupPlace, names_of
from detent.errors import Invalid


class Removed(NamedTuple):
    """What a removal did. With `waits` it did nothing, because that job may be copying."""

    backups: list[int]
    files: int
    bytes: int
    waits: int | None


def remove(place: BackupPlace, keep: int) -> Removed:
    """Remove all backups but the newest ones, and what nothing needs any more."""
    if keep < 1:
        raise Invalid(f"keep at least one backup, not {keep}")
    job = place.begin(REMOVAL)
    ended = {*place.numbers()}
    for other, begun in place.jobs().items():
        if other < job and other not in ended and place.copies(other):
            if place.may_live(other, begun):
                return Removed([], 0, 0, other)
            place.give_up(other)
    manifests = place.manifests()
    old = [one.job for one in manifests[:-keep]]
    needed = {name for one in manifests[-keep:] for name in names_of(one)}
    there = (one for folder in (PARTS, OBJECTS) for one in place.objects.list(folder))
    unused = {one.name: one.size for one in there if one.name not in needed}
    place.objects.put(f"{REMOVALS}{job:020}", [msgspec.json.encode([*unused])])
    crash.point("backup.removal.after_note")
    later = next((other for other in place.jobs() if other > job), None)
    if later is not None:
        place.objects.delete(f"{REMOVALS}{job:020}")
        return Removed([], 0, 0, later)
    for number in old:
        place.objects.delete(f"{JOBS}{number:020}")  # first: a job without a list would count as one at work
        place.objects.delete(f"{BACKUPS}{number:020}")
    crash.point("backup.removal.after_lists")
    for name in unused:
        place.objects.delete(name)
    crash.point("backup.removal.after_files")
    _tidy(place, job)
    return Removed(old, len(unused), sum(unused.values()), None)


def _tidy(place: BackupPlace, job: int) -> None:
    """Remove what is left of earlier jobs, but for the notes that they were given up. This removal's own number stays,
    so that it is never given again."""
    for name in [one.name for one in place.objects.list(JOBS)]:
        if int(name.rpartition("/")[2]) < job:
            place.objects.delete(name)
    for name in [one.name for one in place.objects.list(REMOVALS)]:
        if int(name.rpartition("/")[2]) <= job:
            place.objects.delete(name)
