"""SendMessage and SendMessageBatch, through boto3 and as bare requests, against moto's server."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from bench.harness import Plan, Row, Size, ratio_at_least
from bench.place import Place
from bench.server import peers
from bench.server.load import rate_of
from bench.server.native import BODY
from bench.server.suite import SUITE
from bench.server.wire import Connection, http_answer, http_request

BATCH = 10
IN_FLIGHT = 20


def _client(port: int) -> Any:
    import boto3

    return boto3.client(
        "sqs", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id="bench",
        aws_secret_access_key="bench",
    )  # fmt: skip


class Side:
    """One server that speaks SQS."""

    def __init__(self, port: int, *, make_queue: bool = True) -> None:
        self._port = port
        self._make_queue = make_queue
        self._client = _client(port)
        self._rounds = itertools.count()
        self._entries = [{"Id": str(number), "MessageBody": BODY} for number in range(BATCH)]

    def _new_queue(self) -> str:
        """A queue for each round: moto takes the longer for a message the more of them a queue holds."""
        name = f"bench-{next(self._rounds)}"
        if not self._make_queue:
            return f"http://127.0.0.1:{self._port}/000000000000/{name}"
        url: str = self._client.create_queue(QueueName=name)["QueueUrl"]
        return url

    def sent_through_boto(self, calls: int) -> float:
        """Messages a second, one after another."""
        send = {"QueueUrl": self._new_queue(), "MessageBody": BODY}
        return self._boto(calls, lambda: self._client.send_message(**send))

    def measure(self, calls: int) -> dict[str, float]:
        """Messages a second, each way of sending them."""
        self._url = self._new_queue()
        send = {"QueueUrl": self._url, "MessageBody": BODY}
        batch = {"QueueUrl": self._url, "Entries": self._entries}
        return {
            "boto-one": self._boto(calls, lambda: self._client.send_message(**send)),
            "boto-batch": BATCH * self._boto(calls // 2, lambda: self._client.send_message_batch(**batch)),
            "raw-one": self._raw("SendMessage", send, 1, calls * 2),
            "raw-many": self._raw("SendMessage", send, IN_FLIGHT, calls * 2),
            "raw-batch": BATCH * self._raw("SendMessageBatch", batch, IN_FLIGHT, calls),
        }

    def _boto(self, calls: int, call: Callable[[], object]) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return calls / (time.perf_counter() - began)

    def _raw(self, action: str, body: dict[str, Any], connections: int, calls: int) -> float:
        headers = {
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": f"AmazonSQS.{action}",
            "authorization": "AWS4-HMAC-SHA256 Credential=bench/20260101/us-east-1/sqs/aws4_request, "
            "SignedHeaders=host;x-amz-date, Signature=" + "0" * 64,
            "x-amz-date": "20260101T000000Z",
        }
        request = http_request("POST", "/", msgspec.json.encode(body), headers)

        async def work() -> float:
            opened = [await Connection.open("127.0.0.1", self._port, http_answer) for _ in range(connections)]
            rate = await rate_of([lambda one=one: one.call(request) for one in opened], calls)
            for one in opened:
                one.close()
            return rate

        return asyncio.run(work())


@SUITE.measurement("sqs")
@contextmanager
def sqs(place: Place, size: Size) -> Iterator[Plan]:
    calls = size.of(60, 40)
    with ExitStack() as stack:
        directory = stack.enter_context(place.fresh())
        ours = Side(stack.enter_context(peers.detent(directory)).port)
        moto = Side(stack.enter_context(peers.moto(directory)).port)

        def measure(side: Side) -> Callable[[], Mapping[str, float]]:
            return lambda: side.measure(calls)

        ways = {
            "boto-one": "SendMessage through boto3, one after another",
            "boto-batch": "SendMessageBatch of 10 through boto3",
            "raw-one": "SendMessage as a bare request, one after another",
            "raw-many": f"SendMessage as bare requests, {IN_FLIGHT} in flight",
            "raw-batch": f"SendMessageBatch of 10 as bare requests, {IN_FLIGHT} in flight",
        }
        bar = ratio_at_least(10, "at least 10 x moto")
        note = "ours is durable, moto's is in memory; boto3 itself takes a good part of the first two"
        rows = [Row(f"{text}, 1 KiB", "msg/s", f"ours.{way}", bar, f"moto.{way}", note) for way, text in ways.items()]
        yield Plan({"ours": measure(ours), "moto": measure(moto)}, rows)
