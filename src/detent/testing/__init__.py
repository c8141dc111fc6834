"""Tests for parts that you write yourself, and tools for tests of your apps.

A tracker, an outbox storage or a queue of your own is right if it passes the suites here, which are classes for pytest:
yours inherits one, says how its parts are made, and pytest finds the tests.

>>> from detent.testing import TrackerSuite
>>> class TestMyTracker(TrackerSuite):
...     def tracker(self):
...         return MyTracker(self.database)

The fixtures `store`, `bus`, `new_bus`, `borrow_bus`, `clock`, `recorded` and `sqs_endpoint` come by themselves, as a
plug-in of pytest.

    plugin.py      the fixtures
    clock.py       the clock of `clock`: it stands still until a test moves it
    recorded.py    `recorded`: what an app has sent, and what became of its messages
    suite.py       what the suites have in common
    trackers.py    the suite for trackers
    outboxes.py    the suite for outbox storages
    transports.py  the suite for queues of other systems
    sqs.py         a server of SQS for a test
    running.py     calls what may be plain or ``async def``
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detent.lazy import attributes

if TYPE_CHECKING:
    from detent.testing.clock import Clock
    from detent.testing.outboxes import OutboxSuite
    from detent.testing.recorded import Recorded, RecordedMessage, RecordedOutcome
    from detent.testing.sqs import SqsEndpoint, serving_sqs
    from detent.testing.trackers import TrackerSuite
    from detent.testing.transports import TransportSuite

_HOME = {
    "Clock": "detent.testing.clock",
    "OutboxSuite": "detent.testing.outboxes",
    "Recorded": "detent.testing.recorded",
    "RecordedMessage": "detent.testing.recorded",
    "RecordedOutcome": "detent.testing.recorded",
    "SqsEndpoint": "detent.testing.sqs",
    "serving_sqs": "detent.testing.sqs",
    "TrackerSuite": "detent.testing.trackers",
    "TransportSuite": "detent.testing.transports",
}

__all__ = [
    "Clock",
    "OutboxSuite",
    "Recorded",
    "RecordedMessage",
    "RecordedOutcome",
    "SqsEndpoint",
    "TrackerSuite",
    "TransportSuite",
    "serving_sqs",
]

if not TYPE_CHECKING:
    __getattr__ = attributes(globals(), _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
