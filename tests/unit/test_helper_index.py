"""The index of test helpers names each of them, and none that is gone."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_index_names_every_helper_and_no_other() -> None:
    helpers = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if not path.name.startswith("test_") and path != TESTS / "contract" / "conftest.py"
    }
    lines = [line for line in (TESTS / "README.md").read_text().splitlines() if ".py`" in line]
    assert {name for line in lines for name in re.findall(r"`([\w/]+\.py)`", line)} == helpers
