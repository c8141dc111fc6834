"""Backups: a store's state at one commit, copied while it is used, and made into a store again.

    taken = take_backup("file:./data", "s3://bucket/backups/data")
    restore("s3://bucket/backups/data", "file:./restored")

A backup shares with the ones before it what has not changed. In the order in which things happen:

    place.py       where backups are kept: numbers of jobs, lists, parts, objects
    records.py     records in parts, which end where their keys say
    copying.py     taking a backup
    manifest.py    the list that makes it one
    removal.py     removing old ones, beside others that copy
    restoring.py   making a store from one
    identity.py    what a restored store has of its own, so that clients of the old one are refused
"""

from __future__ import annotations

from detent.backup.copying import Taken, take_backup
from detent.backup.manifest import Manifest
from detent.backup.place import BackupPlace, KeptBackup
from detent.backup.removal import Removed, remove
from detent.backup.restoring import RestoredStore, restore

__all__ = [
    "BackupPlace",
    "KeptBackup",
    "Manifest",
    "Removed",
    "RestoredStore",
    "Taken",
    "remove",
    "restore",
    "take_backup",
]
