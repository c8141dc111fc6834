"""Which journals a pattern means, and that the package's own are left out wherever patterns are taken."""

from __future__ import annotations

import pytest

from detent import patterns
from detent.bus import replies
from detent.consumer.application import Source
from detent.consumer.sources import shard_journals
from detent.spark.pipeline_stream import JournalEnd
from detent.state.base import ShardName
from detent.state.recovery_log import log_name

OWN = [f"{patterns.SPARK_PARTS}0123abcd", f"{replies.JOURNAL}shop", log_name(ShardName("a/words", 12))]
LISTED = [*OWN, "a/words/recovery/notes", "a/words/in", "orders", "recovery/1", "spark-partsx"]


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("*", LISTED[3:]),
        ("[!x]*", LISTED[3:]),
        ("a/*", LISTED[3:5]),
        ("s*", LISTED[-1:]),
        ("spark-parts/*", OWN[:1]),
        ("detent.replies/s?op", OWN[1:2]),
        ("a/words/recovery/*", [OWN[2], LISTED[3]]),
        ("orders", ["orders"]),
        (OWN[2], [OWN[2]]),
        ("ORDERS*", []),
    ],
)
def test_pattern_means_internal_journals_only_when_it_begins_as_they_do(pattern: str, meant: list[str]) -> None:
    assert patterns.matching(pattern, LISTED) == meant
    assert [name for name in LISTED if JournalEnd(pattern).reads(JournalEnd(name))] == meant
    assert shard_journals([Source(pattern)], LISTED) == meant


def test_internal_journals_are_those_that_the_package_names() -> None:
    assert [name for name in LISTED if patterns.is_internal(name)] == OWN
