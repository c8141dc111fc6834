"""The SQS endpoint without a network: the part over a store in memory, for tests that ask it directly."""

from __future__ import annotations

import asyncio
import json
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import detent
from detent.server.access import UNCHECKED, Caller
from detent.server.http import HttpRequest, Response
from detent.server.sqs import SqsPart
from processes import PATIENCE_S

T = TypeVar("T")
XMLNS = "{http://queue.amazonaws.com/doc/2012-11-05/}"
URL = "http://localhost/000000000000/orders"


class Endpoint:
    """The part over a store in memory, asked without a network."""

    def __init__(self, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._options = options
        self.store: Any = None
        self.part: Any = None

    def __enter__(self) -> Endpoint:
        async def start() -> None:
            self.store = await detent.open_async("memory:")
            self.part = SqsPart(self.store, **self._options)

        self._runner.run(start())
        self.call("CreateQueue", {"QueueName": "orders"})
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self.part.close())
        self._runner.run(self.store.close())
        self._runner.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop that the part runs in."""
        return self._runner.run(work)

    def raw(
        self,
        body: bytes,
        headers: dict[str, str],
        *,
        method: str = "POST",
        path: str = "/",
        query: bytes = b"",
        caller: Caller = UNCHECKED,
    ) -> Response:
        """Send bytes."""
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        request = HttpRequest(scope, receive)
        assert self.part.owns(request)
        return self._runner.run(self.part.answer(request, caller))

    def json(self, action: str, body: bytes, caller: Caller = UNCHECKED) -> Response:
        """Send bytes in the JSON protocol."""
        headers = {
            "x-amz-target": f"AmazonSQS.{action}",
            "content-type": "application/x-amz-json-1.0",
            "host": "localhost",
        }
        return self.raw(body, headers, caller=caller)

    def form(self, body: bytes, **options: Any) -> Response:
        """Send bytes in the Query protocol."""
        return self.raw(body, {"content-type": "application/x-www-form-urlencoded", "host": "localhost"}, **options)

    def call(self, action: str, fields: dict[str, Any], caller: Caller = UNCHECKED) -> dict[str, Any]:
        """An action that works."""
        response = self.json(action, json.dumps(fields).encode(), caller)
        assert response.status == 200, response.body
        assert isinstance(response.body, bytes)
        return json.loads(response.body) if response.body else {}

    def refused(self, action: str, fields: dict[str, Any], caller: Caller = UNCHECKED) -> str:
        """An action that does not work; the older code of its error."""
        response = self.json(action, json.dumps(fields).encode(), caller)
        assert response.status != 200, response.body
        return json_error(response)[2]

    def create(self, name: str, **attributes: str) -> str:
        """A new queue; its URL."""
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        return str(self.call("CreateQueue", {"QueueName": name, "Attributes": attributes})["QueueUrl"])

    def receive(self, url: str, count: int = 10, **options: Any) -> list[dict[str, Any]]:
        """What can be received now."""
        fields = {"QueueUrl": url, "MaxNumberOfMessages": count, "AttributeNames": ["All"], **options}
        found: list[dict[str, Any]] = self.call("ReceiveMessage", fields).get("Messages", [])
        return found

    def attributes(self, url: str) -> dict[str, str]:
        """A queue's attributes."""
        fields = {"QueueUrl": url, "AttributeNames": ["All", "DetentAll"]}
        found: dict[str, str] = self.call("GetQueueAttributes", fields)["Attributes"]
        return found

    def eventually(self, check: Callable[[], T]) -> T:
        """What `check` answers, once that is true; the loop runs meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := check()):
            assert time.monotonic() < deadline, "it did not come in time"
            self.run(asyncio.sleep(0.01))
        return found

    def contents(self) -> Any:
        """What is in the store."""
        attributes = self.call("GetQueueAttributes", {"QueueUrl": URL, "AttributeNames": ["All"]})
        return self.call("ListQueues", {}), attributes


def json_error(response: Response) -> tuple[int, str, str]:
    """Status, name and older code of an error in JSON."""
    assert isinstance(response.body, bytes)
    assert response.type == "application/x-amz-json-1.0"
    body = json.loads(response.body)
    assert set(body) == {"__type", "message"}
    code, _, side = response.headers["x-amzn-query-error"].partition(";")
    assert side == ("Sender" if response.status < 500 else "Receiver")
    return response.status, body["__type"].partition("#")[2], code


def xml_error(response: Response) -> tuple[int, str]:
    """Status and code of an error in XML."""
    assert isinstance(response.body, bytes)
    assert response.type == "text/xml"
    root = ET.fromstring(response.body)
    if root.tag == "UnknownOperationException":  # all that SQS says of a form without an action
        return response.status, root.tag
    assert root.tag == XMLNS + "ErrorResponse"
    assert root.findtext(f"{XMLNS}Error/{XMLNS}Type") == ("Sender" if response.status < 500 else "Receiver")
    assert root.findtext(f"{XMLNS}RequestId")
    assert root.findtext(f"{XMLNS}Error/{XMLNS}Message")
    return response.status, root.findtext(f"{XMLNS}Error/{XMLNS}Code") or ""
