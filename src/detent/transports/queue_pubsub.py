"""A topic of Google Pub/Sub and its subscription as a queue.

Pub/Sub knows a delivery by its ack id, and the time that it stays away from others as the ack deadline. A message is
pulled with the deadline of the subscription; the one that was asked for is set right after. A subscription without
exactly-once delivery takes an old ack id without a word, and may deliver a message twice within its deadline: the rest
of Detent is made for that.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from detent.errors import Denied, DetentError, Invalid, LimitExceeded, NotFound, Unavailable
from detent.transports.contract import Delivery, NewMessage

if TYPE_CHECKING:
    from google.pubsub_v1 import PublisherClient, SubscriberClient

DEADLINE_S_MAX: Final = 600
"""The longest ack deadline that Pub/Sub allows."""

PULL_MAX: Final = 1_000
SETTLE_MAX: Final = 1_000
"""Messages of one call. A request for more ack ids is over the limit of 512 KiB."""

SEND_MAX: Final = 1_000
SEND_BYTES_MAX: Final = 9 << 20
"""Messages and bytes of one call, of which Pub/Sub takes 10 MB."""

HEADERS_MAX: Final = 100
HEADER_NAME_BYTES_MAX: Final = 256
HEADER_BYTES_MAX: Final = 1_024
"""What Pub/Sub takes as attributes of a message."""

RESERVED: Final = "goog"
"""How no attribute begins."""

WAIT_S_MIN: Final = 1.0
"""Pub/Sub may answer nothing at once although there is something, so a receive that does not wait waits so long."""

WAIT_S_MAX: Final = 30.0
CALL_S: Final = 5.0
"""How long an answer may take, of what has a deadline and is better tried again."""

SEND_S: Final = 30.0
CREATED_DEADLINE_S: Final = 60
"""The ack deadline of a subscription that is made here: it only holds between a pull and what sets another one."""

_ONCE: Final[Any] = {"timeout": CALL_S, "retry": None}
_SENT: Final[Any] = {"timeout": SEND_S, "retry": None}
"""The client by itself tries for a minute and longer. Callers here try again, and know for how long it makes sense."""

_ID: Final = re.compile(r"[A-Za-z][A-Za-z0-9._~+%-]{2,254}")
_PROJECT_VARIABLES: Final = ("GOOGLE_CLOUD_PROJECT", "PUBSUB_PROJECT_ID")


class PubSubQueue:
    """A topic of Pub/Sub, read through the subscription of the same name, or another one.

    `project` is that of the environment unless it is said. `endpoint` is HOST:PORT of an emulator without TLS, as
    PUBSUB_EMULATOR_HOST is; else the client finds Google and its credentials as it does by itself.

    Attempts are counted by subscriptions with a dead-letter policy only.
    """

    def __init__(
        self, name: str, *, project: str | None = None, subscription: str | None = None, endpoint: str | None = None
    ) -> None:
        for one in (name, subscription or name):
            if not _ID.fullmatch(one) or one.startswith(RESERVED):
                raise Invalid(
                    f"{one!r:.200} is not a name in Pub/Sub, which has 3 to 255 ASCII letters, digits and any of "
                    f". _ ~ + % -, and begins with a letter, but not with {RESERVED!r}"
                )
        _check_package()
        project = project or next(filter(None, map(os.environ.get, _PROJECT_VARIABLES)), None)
        if not project:
            raise Invalid(f"Pub/Sub needs a project: write pubsub:{name}?project=PROJECT, or set GOOGLE_CLOUD_PROJECT")
        self.name: Final = f"{project}/{name}"
        self.visibility_max_s: Final = float(DEADLINE_S_MAX)
        self._topic = f"projects/{project}/topics/{name}"
        self._subscription = f"projects/{project}/subscriptions/{subscription or name}"
        self._endpoint = endpoint or os.environ.get("PUBSUB_EMULATOR_HOST")
        self._making = threading.Lock()
        self._subscriber: SubscriberClient | None = None
        self._publisher: PublisherClient | None = None

    def __repr__(self) -> str:
        return f"PubSubQueue({self.name!r})"

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait_s: float, visibility_s: float) -> Sequence[Delivery]:
        """Pull up to `limit` messages."""
        end = time.monotonic() + min(max(wait_s, WAIT_S_MIN), WAIT_S_MAX)
        while True:
            found = self._pull(min(limit, PULL_MAX), end - time.monotonic())
            if found:
                self._set_deadline([delivery.receipt for delivery in found], _seconds(visibility_s))
                return found
            if end - time.monotonic() <= 0:
                return []

    def _pull(self, limit: int, wait_s: float) -> list[Delivery]:
        """What comes in time; an answer that does not is that there is nothing."""
        from google.api_core.exceptions import Cancelled, DeadlineExceeded

        request = {"subscription": self._subscription, "max_messages": limit}
        try:
            with self._errors(passing=(DeadlineExceeded, Cancelled)):
                answer = self._reader().pull(request=request, timeout=max(wait_s, 0.05), retry=None)
        except (DeadlineExceeded, Cancelled):  # the server may say the second of the same
            return []
        return list(map(_delivery, answer.received_messages))

    def extend(self, deliveries: Sequence[Delivery], visibility_s: float) -> Sequence[Delivery]:
        """Set deadlines; the deliveries for which that failed, as far as the subscription says so."""
        return self._settle(deliveries, lambda ids: self._set_deadline(ids, _seconds(visibility_s)))

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let others have them; a dead-letter policy goes on counting."""
        self.extend(deliveries, 0)

    def acknowledge(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Delete messages; those that were not, as far as the subscription says so."""
        return self._settle(deliveries, self._acknowledge)

    def _acknowledge(self, ids: Sequence[str]) -> None:
        with self._errors():
            self._reader().acknowledge(subscription=self._subscription, ack_ids=ids, **_ONCE)

    def _set_deadline(self, ids: Sequence[str], seconds: int) -> None:
        with self._errors():
            self._reader().modify_ack_deadline(
                subscription=self._subscription, ack_ids=ids, ack_deadline_seconds=seconds, **_ONCE
            )

    @staticmethod
    def _settle(deliveries: Sequence[Delivery], call: Callable[[Sequence[str]], None]) -> list[Delivery]:
        failed: list[Delivery] = []
        for at in range(0, len(deliveries), SETTLE_MAX):
            batch = deliveries[at : at + SETTLE_MAX]
            try:
                call([delivery.receipt for delivery in batch])
            except DetentError as error:
                refused = _refused_ids(error)
                failed += [one for one in batch if refused is None or one.receipt in refused]
        return failed

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, messages: Sequence[NewMessage]) -> Mapping[int, DetentError]:
        """Publish messages; a call that fails is of no message, and so all of it is told."""
        found = {at: error for at, message in enumerate(messages) if (error := _refusal(message)) is not None}
        batch: list[int] = []
        size = 0
        for at, message in enumerate(messages):
            if at in found:
                continue
            weight = _weight(message)
            if batch and (len(batch) == SEND_MAX or size + weight > SEND_BYTES_MAX):
                self._publish([messages[place] for place in batch])
                batch, size = [], 0
            batch.append(at)
            size += weight
        if batch:
            self._publish([messages[place] for place in batch])
        return found

    def _publish(self, messages: Sequence[NewMessage]) -> None:
        sent = [{"data": message.body, "attributes": dict(message.headers)} for message in messages]
        with self._errors():
            self._writer().publish(topic=self._topic, messages=sent, **_SENT)

    # -- the queue itself ---------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the topic and the subscription, unless they are there."""
        from google.api_core.exceptions import AlreadyExists

        with contextlib.suppress(AlreadyExists), self._errors(passing=(AlreadyExists,)):
            self._writer().create_topic(name=self._topic, **_SENT)
        wanted = {
            "name": self._subscription,
            "topic": self._topic,
            "ack_deadline_seconds": CREATED_DEADLINE_S,
            "expiration_policy": {},  # or Google deletes it when it was not used for a month, with what is in it
        }
        with contextlib.suppress(AlreadyExists), self._errors(passing=(AlreadyExists,)):
            self._reader().create_subscription(request=wanted, **_SENT)

    def retention_s(self) -> float | None:
        """How long the subscription keeps a message."""
        with self._errors():
            found = self._reader().get_subscription(subscription=self._subscription, **_ONCE)
        kept_s = float(found.message_retention_duration.total_seconds())
        return kept_s or None

    def close(self) -> None:
        """Close connections."""
        with self._making:
            subscriber, self._subscriber = self._subscriber, None
            publisher, self._publisher = self._publisher, None
        for client in (subscriber, publisher):
            if client is not None:
                client.transport.close()

    # -- clients ------------------------------------------------------------------------------------------------

    def _reader(self) -> SubscriberClient:
        with self._making:
            if self._subscriber is None:
                self._subscriber = _client("Subscriber", self._endpoint)
            return self._subscriber

    def _writer(self) -> PublisherClient:
        with self._making:
            if self._publisher is None:
                self._publisher = _client("Publisher", self._endpoint)
            return self._publisher

    @contextlib.contextmanager
    def _errors(self, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        from google.api_core import exceptions as google
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except passing:
            raise
        except google.NotFound as error:
            raise NotFound(
                f"Pub/Sub has no {self._topic}, or no {self._subscription}: make them, or check the names and the "
                "project"
            ) from error
        except (google.PermissionDenied, google.Unauthenticated) as error:
            raise Denied(f"Pub/Sub does not allow that on {self.name!r}: {error.message}") from error
        except google.InvalidArgument as error:
            raise Invalid(f"Pub/Sub refuses a request for {self.name!r}: {error.message}") from error
        except google.GoogleAPICallError as error:
            raise Unavailable(f"Pub/Sub does not answer for {self.name!r}: {error.message}") from error
        except (google.RetryError, GoogleAuthError) as error:
            raise Unavailable(f"Pub/Sub does not answer for {self.name!r}: {error}") from error


def _check_package() -> None:
    """`Invalid` without Google's client, which is imported when it is used: that takes a second."""
    try:
        found = find_spec("google.pubsub_v1")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Invalid("a queue of Pub/Sub needs the package google-cloud-pubsub: pip install 'detent[pubsub]'")


def _client(kind: str, endpoint: str | None) -> Any:
    import grpc
    from google import pubsub_v1
    from google.auth.exceptions import GoogleAuthError
    from google.pubsub_v1.services import publisher, subscriber

    module = publisher if kind == "Publisher" else subscriber
    cls = getattr(pubsub_v1, f"{kind}Client")
    if endpoint is not None:
        transport = getattr(module.transports, f"{kind}GrpcTransport")
        channel = grpc.insecure_channel(endpoint, options=[("grpc.max_receive_message_length", -1)])
        return cls(transport=transport(channel=channel))
    try:
        return cls()
    except GoogleAuthError as error:
        raise Denied(f"there are no credentials of Google: {error}") from error


def _delivery(received: Any) -> Delivery:
    message = received.message
    return Delivery(
        message.message_id, received.ack_id, message.data, received.delivery_attempt, dict(message.attributes)
    )


def _seconds(given: float) -> int:
    """Whole seconds, rounded up: away for a little longer is better than delivered twice."""
    return min(max(math.ceil(given), 0), DEADLINE_S_MAX)


def _refused_ids(error: DetentError) -> set[str] | None:
    """The ack ids that a subscription with exactly-once delivery names in its error; None if it names none, so that
    nothing is known of any."""
    metadata = getattr(error.__cause__, "metadata", None) or {}
    return {ack_id for ack_id, why in metadata.items() if "FAILURE" in why} or None


def _weight(message: NewMessage) -> int:
    return len(message.body) + sum(len(name.encode()) + len(value.encode()) for name, value in message.headers.items())


def _refusal(message: NewMessage) -> DetentError | None:
    """Why Pub/Sub can take no such message."""
    if len(message.headers) > HEADERS_MAX:
        return LimitExceeded(f"Pub/Sub takes {HEADERS_MAX} headers, not {len(message.headers)}")
    for name, value in message.headers.items():
        try:
            sizes = len(name.encode()), len(value.encode())
        except UnicodeEncodeError:
            return Invalid(f"the header {name!r:.200} cannot be encoded")
        if not name or name.startswith(RESERVED):
            return Invalid(
                f"{name!r} is not a header for Pub/Sub, whose name is not empty, and does not begin with {RESERVED!r}"
            )
        if sizes[0] > HEADER_NAME_BYTES_MAX or sizes[1] > HEADER_BYTES_MAX:
            return LimitExceeded(
                f"the header {name!r:.200} has {sizes[1]} bytes: Pub/Sub takes {HEADER_BYTES_MAX}, and "
                f"{HEADER_NAME_BYTES_MAX} of a name"
            )
    if _weight(message) > SEND_BYTES_MAX:
        return LimitExceeded(f"a message of {_weight(message)} bytes is over the limit of {SEND_BYTES_MAX}")
    if not message.body and not message.headers:
        return Invalid("Pub/Sub takes no message without a body and without headers")
    return None
