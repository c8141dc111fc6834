"""A queue of Amazon SQS, or of a server that speaks like it, as the queue that announces files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from detent.errors import Invalid, NotFound, Unavailable
from detent.runtime import thread
from detent.sqs_client import (
    BATCH_MAX,
    CALLS_AT_ONCE,
    RECEIVE_TIMEOUT_S,
    VISIBILITY_S_MAX,
    WAIT_S_MAX,
    ask,
    new_client,
    place_of,
    seconds,
)
from detent.transports.contract import Delivery


class SqsQueue:
    """A queue of SQS by its URL, or by its name in the region and account of the credentials.

    `client` is a boto3 client of your own, which stays open; without one a client is made from the environment as boto3
    does it, for `region` and `endpoint` if they are given, or as the queue's URL says. SQS counts in whole seconds:
    times are rounded up.
    """

    def __init__(
        self, url_or_name: str, *, client: Any = None, region: str | None = None, endpoint: str | None = None
    ) -> None:
        self.name: Final = _name_of(url_or_name)
        self.visibility_max_s: Final = float(VISIBILITY_S_MAX)
        self._given = url_or_name
        self._url = url_or_name if "://" in url_or_name else None
        self._finding = threading.Lock()
        self._own_client = client is None
        place = _place_of(url_or_name, region, endpoint)
        self._receiver = new_client(*place, timeout_s=RECEIVE_TIMEOUT_S) if client is None else client
        self._client = new_client(*place) if client is None else client
        # Threads of their own: an extension that stands behind receives which hang would come too late.
        self._receiving = thread.pool("detent-sqs-receive", CALLS_AT_ONCE)
        self._settling = thread.pool("detent-sqs-settle", CALLS_AT_ONCE)

    def __repr__(self) -> str:
        return f"SqsQueue({self.name!r})"

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Delivery]:
        """Up to `limit` messages. The first ten are waited for; when there are as many, the others are asked for side
        by side, until one answer is short, which is how a queue says that it has no more."""
        request = {
            "VisibilityTimeout": seconds(visibility_s, VISIBILITY_S_MAX),
            "MessageAttributeNames": ["All"],
            "MessageSystemAttributeNames": ["ApproximateReceiveCount"],
        }
        wait = seconds(wait_s, WAIT_S_MAX)
        found = self._receive({**request, "WaitTimeSeconds": wait}, min(limit, BATCH_MAX))
        full = len(found) == BATCH_MAX
        while full and len(found) < limit:
            sizes = [min(BATCH_MAX, limit - at) for at in range(len(found), limit, BATCH_MAX)][:CALLS_AT_ONCE]
            answers = list(self._receiving.map(lambda size: self._receive_more(request, size), sizes))
            full = [len(answer) for answer in answers] == sizes
            found += [delivery for answer in answers for delivery in answer]
        return found

    def _receive(self, request: dict[str, Any], count: int) -> list[Delivery]:
        answer = self._ask(self._receiver.receive_message, MaxNumberOfMessages=count, **request)
        return [_delivery(message) for message in answer.get("Messages") or ()]

    def _receive_more(self, request: dict[str, Any], count: int) -> list[Delivery]:
        """Nothing if the queue does not answer now: what came before is not to be lost for that."""
        try:
            return self._receive({**request, "WaitTimeSeconds": 0}, count)
        except (Unavailable, NotFound):
            return []

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> Sequence[Delivery]:
        """Keep messages invisible for longer; those for which that failed."""
        hidden_s = seconds(visibility_s, VISIBILITY_S_MAX)
        return self._settle(self._client.change_message_visibility_batch, deliveries, VisibilityTimeout=hidden_s)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let others have them; SQS goes on counting."""
        self.extend(deliveries, 0)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Delete messages; those that were not."""
        return self._settle(self._client.delete_message_batch, deliveries)

    def _settle(self, call: Callable[..., Any], deliveries: Sequence[Delivery], **each: Any) -> list[Delivery]:
        batches = [deliveries[at : at + BATCH_MAX] for at in range(0, len(deliveries), BATCH_MAX)]
        if len(batches) == 1:
            return self._settle_batch(call, batches[0], each)
        answers = self._settling.map(lambda batch: self._settle_batch(call, batch, each), batches)
        return [delivery for failed in answers for delivery in failed]

    def _settle_batch(
        self, call: Callable[..., Any], batch: Sequence[Delivery], each: dict[str, Any]
    ) -> list[Delivery]:
        """Those of a batch that the queue does not say it did."""
        entries = [{"Id": str(at), "ReceiptHandle": held.receipt, **each} for at, held in enumerate(batch)]
        try:
            answer = self._ask(call, Entries=entries)
        except (Unavailable, NotFound):
            return list(batch)
        done = {entry["Id"] for entry in answer.get("Successful") or ()}
        return [delivery for at, delivery in enumerate(batch) if str(at) not in done]

    def retention_s(self) -> float | None:
        """How long the queue keeps a message."""
        answer = self._ask(self._client.get_queue_attributes, AttributeNames=["MessageRetentionPeriod"])
        period = (answer.get("Attributes") or {}).get("MessageRetentionPeriod")
        return None if period is None else float(period)

    def close(self) -> None:
        """Let go of connections, and of threads once their calls are over."""
        for threads in (self._receiving, self._settling):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._own_client:
            self._receiver.close()
            self._client.close()

    def _ask(self, call: Callable[..., Any], **request: Any) -> dict[str, Any]:
        return self._answer(call, QueueUrl=self._url or self._find(), **request)

    def _find(self) -> str:
        """The URL of a queue that was named. It stays the same, and is asked for once."""
        with self._finding:
            if self._url is None:
                self._url = self._answer(self._client.get_queue_url, QueueName=self._given)["QueueUrl"]
            return self._url

    def _answer(self, call: Callable[..., Any], **request: Any) -> dict[str, Any]:
        return ask(call, self.name, request)


def _name_of(url_or_name: str) -> str:
    name = urlsplit(url_or_name).path.rpartition("/")[2] if "://" in url_or_name else url_or_name
    if not name or "/" in name:
        raise Invalid("name a queue of SQS, or give its URL, such as https://sqs.eu-west-1.amazonaws.com/123/orders")
    return name


def _place_of(url_or_name: str, region: str | None, endpoint: str | None) -> tuple[str | None, str | None]:
    """The region and the endpoint, from a queue's URL where they are not given."""
    if "://" not in url_or_name or endpoint is not None:
        return region, endpoint
    said, endpoint = place_of(url_or_name)
    return region or said, endpoint


def _delivery(message: dict[str, Any]) -> Delivery:
    attributes = message.get("MessageAttributes") or {}
    return Delivery(
        message["MessageId"],
        message["ReceiptHandle"],
        message["Body"].encode(errors="surrogatepass"),  # half a character is for whoever parses it to refuse
        int((message.get("Attributes") or {}).get("ApproximateReceiveCount", 0)),
        {name: value["StringValue"] for name, value in attributes.items() if "StringValue" in value},
    )
