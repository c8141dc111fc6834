"""What an owner's answer means to its client: content, or the error that it stands for."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec

from detent.engine import MALFORMED
from detent.errors import Busy, Corrupt, Denied, DetentError, NotOwner, OutcomeUnknown, Unavailable
from detent.remote import wire
from detent.remote.address import Address

BUSY_RETRY_S: Final = 0.1
"""When a transaction is sent again that found the engine full: that passes quickly."""

RETRY_S_MAX: Final = 10.0
"""The longest that a client waits because a server says so."""


class Disconnected(Unavailable):
    """The connection broke: whether the request was applied is unknown until it is sent again under its name."""

    sure = False
    """Whether it is known that nothing was done with the request."""


class Elsewhere(Disconnected):
    """This server does not own the store, and did nothing; `leader` does, if it is known."""

    sure = True

    def __init__(self, message: str, leader: str = "") -> None:
        super().__init__(message, leader)  # copies are made from what is given here
        self.message = message
        self.leader = leader

    def __str__(self) -> str:
        return self.message


class Overloaded(Disconnected):
    """The server has no time, and says when to send the request again. `sure` says whether those are the owner's own
    words: then nothing was done with the request. Something on the way to it cannot know that."""

    def __init__(self, message: str, retry_s: float = 1.0, sure: bool = True) -> None:
        super().__init__(message, retry_s, sure)  # copies are made from what is given here
        self.message = message
        self.retry_s = retry_s
        self.sure = sure

    def __str__(self) -> str:
        return self.message


def check(status: int, headers: Mapping[str, str], content: bytes) -> None:
    """Raise what an answer that is no success stands for."""
    if 200 <= status < 300:
        return
    is_problem = headers.get("content-type") == wire.PROBLEM_TYPE and bool(content)
    problem = wire.decode_problem(content) if is_problem else None
    if isinstance(problem, NotOwner):
        raise Elsewhere(str(problem), problem.leader)
    if status in {401, 403}:
        raise Denied(_denial(status, content, is_problem))
    if status in {429, 503} and "retry-after" in headers:
        why = f"status {status}" if problem is None else str(problem)
        raise Overloaded(f"the store's owner is busy: {why}", _retry_s(headers["retry-after"]), is_problem)
    if problem is None:
        # Not the owner's own words: its server is going down, or something else answers in its place.
        raise Disconnected(f"the store's owner answered with status {status}")
    raise problem


def check_response(response: httpx.Response) -> None:
    """The same for an answer that came through httpx. Its body has been read."""
    check(response.status_code, response.headers, response.content)


def _denial(status: int, content: bytes, is_problem: bool) -> str:
    if is_problem and status == 403:
        return str(wire.decode_problem(content))
    return (
        f"the server refuses these credentials (status {status}): put a token that it knows into "
        "DETENT_TOKEN, or the name of a file with one into DETENT_TOKEN_FILE"
    )


def _retry_s(text: str) -> float:
    """What a Retry-After header says; a date, which servers may also send, counts as a second."""
    return min(float(text), RETRY_S_MAX) if text.isascii() and text.isdigit() and len(text) < 10 else 1.0


def content_of(response: httpx.Response) -> bytes:
    """The content of an answer that is a success."""
    check_response(response)
    return response.content


def broken(error: Exception) -> Unavailable:
    """What it means that no answer came, and why."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):  # trying again would not help
            return Unavailable(
                f"the server's certificate is not trusted ({cause.verify_message}): if it should be, name a file with "
                "the certificates that vouch for it in DETENT_CA_FILE"
            )
        cause = cause.__cause__ or cause.__context__
    return Disconnected(f"the store's owner does not answer: {type(error).__name__} {error}")


def outcomes_of(content: bytes, count: int, address: Address) -> list[list[Any] | DetentError]:
    """What became of each transaction. In the owner's process a caller who finds the engine full waits until there is
    room; one who comes through a server waits here."""
    outcomes = wire.decode_answers(content, count)
    if address.has_files:
        return outcomes
    return [_asked_again(one) if isinstance(one, DetentError) else one for one in outcomes]


def _asked_again(error: DetentError) -> DetentError:
    """What makes a client send a transaction again, under its name: to the same owner, or to the next one."""
    if isinstance(error, Busy):
        return Overloaded(str(error), BUSY_RETRY_S)
    if isinstance(error, NotOwner):
        return Elsewhere(str(error), error.leader)
    return Disconnected(str(error)) if isinstance(error, OutcomeUnknown) else error


def decoded(content: bytes, kind: Any) -> Any:
    """An answer in JSON; `Corrupt` if it is none: something else answers in the owner's place."""
    try:
        return msgspec.json.decode(content, type=kind)
    except MALFORMED as error:
        raise Corrupt(f"the owner's answer cannot be read: {error}") from error
