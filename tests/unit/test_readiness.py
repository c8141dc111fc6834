"""Readiness: whatever keeps the store from taking transactions, a load balancer is told 503."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from detent.errors import Busy, Corrupt, DetentError, Fenced, LimitExceeded, OutcomeUnknown, StaleReceipt
from detent.server.access import UNKNOWN
from detent.server.app import refusal
from detent.server.http import HttpRequest
from detent.server.metrics import Metrics
from detent.server.operators import READY, Operators


@pytest.mark.parametrize("error", [LimitExceeded, Busy, Fenced, Corrupt, OutcomeUnknown, StaleReceipt, DetentError])
def test_a_store_that_refuses_makes_the_server_not_ready(error: type[DetentError]) -> None:
    class Refusing:
        async def unmatched(self) -> int:
            raise error("a store has at most so many sessions")

    async def receive() -> dict[str, Any]:
        raise AssertionError

    async def main() -> None:
        store: Any = Refusing()
        scope = {"method": "GET", "path": READY, "query_string": b"", "headers": []}
        with pytest.raises(DetentError, match="so many sessions") as caught:
            await Operators(store, Metrics()).answer(HttpRequest(scope, receive), UNKNOWN)
        assert refusal(caught.value).status == 503

    asyncio.run(main())
