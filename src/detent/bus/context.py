"""What is known about the message that is being handled."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from detent.bus import envelope as wire
from detent.bus.envelope import Incoming
from detent.bus.sending import Sending, Uncommitted
from detent.errors import Invalid

_IDS: Final = uuid.UUID("6f2d1c1e-3f0b-5c53-9a5e-6b1c1f0a7d11")
"""The space of ids that are made from other ids."""


class Context(Uncommitted):
    """A message that is being handled. Handlers get it by a parameter called `context`, or of this type."""

    def __init__(self, bus: Sending, incoming: Incoming, message_id: str, message: Any) -> None:
        super().__init__(bus)
        self.message = message
        self.message_id = message_id
        self.headers: dict[str, str] = incoming.headers
        self.repeated = False
        """Whether the message was handled before. Only where repeated messages are handled at all."""
        self._incoming = incoming
        self._sent: Counter[tuple[str, str]] = Counter()

    def __repr__(self) -> str:
        return f"Context({self.bus.name!r}, {type(self.message).__name__}, {self.message_id!r})"

    @property
    def attempts(self) -> int:
        """How often the message was delivered, with this time."""
        return self._incoming.attempts

    @property
    def fencing_token(self) -> int | None:
        """Higher at each delivery: a system outside can refuse a write whose token is lower than one that it has seen.
        None on transports that have no such number."""
        return self._incoming.fencing_token

    @property
    def lost(self) -> bool:
        """Whether the lease was found gone: another worker has the message, or will, and what this handler does will
        not be committed. Long ones look at it now and then."""
        return self._incoming.lost

    @property
    def effect_key(self) -> str:
        """The same at each attempt of this app at this message, and at no other. Give it to what cannot take part in
        the transaction, such as a payment service, as the key by which it recognises what it has done."""
        return f"{self.bus.name}:{self.message_id}"

    @property
    def correlation_id(self) -> str:
        """What started it all: the id of the first message in a chain. (A header that is no id is not passed on.)"""
        given = self.headers.get(wire.CORRELATION, "")
        return given if wire.is_id(given) else self.message_id

    def new_id(self, to: str, type_name: str) -> str:
        """The same at each attempt for the nth message of a kind to an address, so that what is sent again is seen to
        be the same, also where an attempt leaves out others."""
        with self._lock:
            self._sent[to, type_name] += 1
            nth = self._sent[to, type_name]
        return str(uuid.uuid5(_IDS, "\0".join([self.bus.name, self.message_id, to, type_name, str(nth)])))

    def correlation(self) -> dict[str, str]:
        return {wire.CORRELATION: self.correlation_id, wire.CAUSATION: self.message_id}

    def reply(self, message: Any, *, headers: Mapping[str, str] | None = None) -> str:
        """Answer the sender of a request, with the commit. What a handler returns is a reply, too."""
        to = self.headers.get(wire.REPLY_TO, "")
        if not self.wants_reply:
            raise Invalid("no reply is waited for: the message was not sent with request()")
        answers = {**(headers or {}), wire.IN_REPLY_TO: self.message_id}
        with self._joined():
            return self.bus._dispatch(message, wire.address(wire.REPLY, to), None, answers, None)

    @property
    def wants_reply(self) -> bool:
        """Whether the sender waits for a reply. A header that names no sender is taken for none."""
        return wire.is_id(self.headers.get(wire.REPLY_TO))
