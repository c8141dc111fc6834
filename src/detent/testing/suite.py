"""What the suites have in common: objects of the subclass are made before each test, and closed after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from detent.testing.running import SuiteCalls


class Suite:
    """Tests of something that a subclass makes."""

    run: SuiteCalls

    def restart(self) -> None:
        """Go on with new objects, as a new process does."""
        raise NotImplementedError

    def close(self) -> Any:
        """Close what you made. It may be ``async def``."""

    @pytest.fixture(autouse=True)
    def _runner(self, request: pytest.FixtureRequest) -> Iterator[None]:
        for name in request.fixturenames:  # those of the subclass first: they make the storage
            if name not in ("_runner", "request"):
                request.getfixturevalue(name)
        self.run = SuiteCalls()
        try:
            self.restart()
            yield
        finally:
            self.run.call(self.close)
            self.run.close()
