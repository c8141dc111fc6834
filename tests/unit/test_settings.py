"""What is said once of a setting agrees with the forms in which settings are held."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from detent.cli.journal import create as create_journal
from detent.cli.queue import configure as configure_queue
from detent.cli.queue import create as create_queue
from detent.codec.journal import Listing
from detent.codec.queue import Config
from detent.journal import JournalInfo
from detent.journal import operations as journal_ops
from detent.queue import QueueInfo
from detent.queue import operations as queue_ops
from detent.server.models_journals import JournalDescription
from detent.server.models_queues import QueueDescription
from detent.settings.journal import JOURNAL, ConfiguredJournal, JournalSettings, StoredJournal
from detent.settings.queue import QUEUE, ConfiguredQueue, QueueSettings, StoredQueue
from detent.settings.setting import Settings
from detent.spark.table_columns import columns_of

KINDS = [
    pytest.param(QUEUE, QueueSettings, StoredQueue, id="queue"),
    pytest.param(JOURNAL, JournalSettings, StoredJournal, id="journal"),
]


@pytest.mark.parametrize(("settings", "given", "stored"), KINDS)
def test_every_setting_is_given_and_stored(settings: Settings, given: Any, stored: Any) -> None:
    assert list(settings.by_name) == list(get_type_hints(given))
    assert set(settings.by_key) <= set(stored._fields)
    later = {setting.key for setting in settings if setting.later}
    assert not any(stored._field_defaults[key] for key in later)


def test_every_setting_is_shown() -> None:
    queue = [field.name for field in fields(ConfiguredQueue)][3:]
    assert queue == [setting.shown_as for setting in QUEUE]
    journal = list(ConfiguredJournal.__struct_fields__)[3:]
    assert journal == [setting.shown_as for setting in JOURNAL]
    assert issubclass(QueueInfo, ConfiguredQueue)
    assert issubclass(JournalInfo, ConfiguredJournal)


def test_operations_have_every_setting_in_the_order_of_the_wire() -> None:
    """What an older client sends is an array: its places stay, and new settings come at the end."""
    assert queue_ops.Settings.__struct_fields__ == tuple(QUEUE.by_key)
    assert journal_ops.CreateJournal.__struct_fields__[:6] == (
        "journal",
        "retention_ms",
        "retention_bytes",
        "span_deadline_ms",
        "producer_horizon_ms",
        "exist_ok",
    )
    assert set(journal_ops.CreateJournal.__struct_fields__) == {"journal", "exist_ok", *JOURNAL.by_key}
    assert journal_ops.ConfigureJournal.__struct_fields__ == ("journal", *JOURNAL.by_key)


def test_records_commands_answers_and_columns_have_every_setting() -> None:
    assert Config._fields == StoredQueue._fields
    assert Listing._fields == StoredJournal._fields
    for command, settings in ((create_queue, QUEUE), (configure_queue, QUEUE), (create_journal, JOURNAL)):
        assert set(settings.by_name) <= {option.name for option in command.params}
    assert {setting.shown_as for setting in QUEUE} <= set(QueueDescription.__struct_fields__)
    assert set(JOURNAL.by_name) <= set(JournalDescription.__struct_fields__)
    assert list(columns_of(JOURNAL)) == [setting.ms_name for setting in JOURNAL]
