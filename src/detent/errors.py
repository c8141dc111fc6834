"""Every exception Detent raises.

    DetentError
    ├── Invalid          the input is wrong; nothing was changed
    │   └── ClockAhead       messages whose clock is far ahead of the owner's
    ├── NotFound         what was named does not exist
    ├── Exists           what should be new is already there
    ├── Conflict         a check failed; nothing of the transaction was applied
    │   ├── AlreadyEntered   this batch took effect before; there is nothing to do
    │   ├── RollBackHeld     a checkpoint has promised the messages that would be rolled back
    │   └── OtherInput       a batch of this number took effect before, made from another input
    ├── Fenced           this owner, author, producer or query was replaced
    │   ├── SessionExpired   this client was silent for too long; what it had sent before cannot be told any more
    │   ├── ProducerTaken    messages under a producer that belongs to another publisher, or that another one uses
    │   ├── ClockBehind      messages whose clock is at or below the floor that forgotten producers have left
    │   └── ShardsLost       other pipelines took files that this one was to commit
    ├── Restored         the store was restored from a backup, and what is known here is of the time after it
    ├── StaleReceipt     the lease behind this receipt has moved on
    ├── Corrupt          stored bytes fail their checksum or their format
    ├── Unavailable      not now; the same call may succeed later
    │   ├── NotOwner         the server that was asked does not own the store now; another one may
    │   └── OutcomeUnknown   no answer came in time: it may or may not have been applied
    ├── Denied           a server does not allow this to the caller
    └── LimitExceeded    a named limit was reached; nothing was changed
        └── Busy             too much waits already; the same call may succeed in a moment

Each one says what happened and, where there is something to do, what to do.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self


class Withheld(NamedTuple):
    """What an error quotes is for those alone who have the right `consume` on `name`; others are told `instead`."""

    kind: str
    name: str
    instead: str


class DetentError(Exception):
    """The base of all of Detent's exceptions."""

    details: ClassVar[tuple[str, ...]] = ()
    """What an error carries besides its message: fields that are also arguments of its constructor."""

    withheld: Withheld | None = None
    """Set where the message quotes what is stored. A server heeds it, as far as it knows who asks."""

    def quoting(self, kind: str, name: str, instead: str) -> Self:
        """This error, whose message quotes something that is stored under a name."""
        self.withheld = Withheld(kind, name, instead)
        return self


class _Detailed(Exception):
    """What an error with `details` is as well: they are given after the message, in order or by name."""

    details: ClassVar[tuple[str, ...]]

    def __init__(self, message: str, *values: Any, **named: Any) -> None:
        self.message = message
        given = {**dict(zip(self.details, values, strict=False)), **named}
        for name in self.details:
            setattr(self, name, given.pop(name, getattr(type(self), name)))
        if given or len(values) > len(self.details):
            raise TypeError(f"{type(self).__name__} has the details {', '.join(self.details)}")
        super().__init__(message, *(getattr(self, name) for name in self.details))  # copies are made from these

    def __str__(self) -> str:
        return self.message


class Invalid(DetentError, ValueError):
    """The input is malformed, of the wrong type or out of range. Nothing was changed."""


class ClockAhead(_Detailed, Invalid):
    """These messages have clocks further ahead of the owner's, `owner`, than it takes. Nothing was changed. Set the
    clock of the machine that publishes, or that of the owner."""

    details = ("owner",)
    owner: int = 0


class NotFound(DetentError, LookupError):
    """The store, journal, offset or fragment that was named does not exist."""


class Exists(DetentError):
    """What was to be created exists already. Nothing was changed."""


class Conflict(DetentError):
    """A check of the transaction failed. Nothing of the transaction was applied."""


class AlreadyEntered(_Detailed, Conflict):
    """This batch of a ledger was entered before, with all that belongs to it. Nothing of the transaction was applied,
    and nothing has to be: take it as done. `batch` is the highest one that the ledger `name` has."""

    details = ("name", "batch")
    name: str = ""
    batch: int = -1


class RollBackHeld(_Detailed, Conflict):
    """An acknowledgement would roll back pending messages which the checkpoint in the journal `holder` has promised to
    acknowledge. Nothing was changed."""

    details = ("holder",)
    holder: str = ""


class OtherInput(_Detailed, Conflict):
    """A batch of this number took effect before, and this one is made from another input, or from one that cannot be
    compared any more. Nothing was changed, and this batch has not taken effect. `batch` is its number, `name` the
    ledger's, the table's or the row's that has the other one."""

    details = ("name", "batch")
    name: str = ""
    batch: int = -1


class Fenced(DetentError):
    """This owner, author, producer or session was replaced by a newer one. Stop, and open again."""


class SessionExpired(Fenced):
    """This session was idle for too long and is forgotten. Nothing of this request was applied."""


class ProducerTaken(Fenced):
    """These messages name a producer that was not given to their sender; or it was, and another process publishes under
    it too, so that some of them would be taken for duplicates. Nothing was changed. Start over with a new publisher."""


class ClockBehind(_Detailed, Fenced):
    """The journal `journal` has forgotten producers, and these messages have clocks at or below `floor`, the highest
    clock that any of them had: they may be old duplicates. Nothing was changed. A clock above the floor is taken."""

    details = ("journal", "floor")
    journal: str = ""
    floor: int = 0


class ShardsLost(Fenced):
    """Other pipelines took, finished or removed some of the files that this commit was about. Nothing was committed;
    `shards` names the lost ones, and a commit without them may succeed."""

    def __init__(self, message: str, shards: frozenset[bytes] = frozenset()) -> None:
        super().__init__(message, shards)  # copies are made from what is given here
        self.message = message
        self.shards = shards

    def __str__(self) -> str:
        return self.message


class Restored(DetentError):
    """The store was restored from a backup. What this caller remembers, or what its checkpoint says, is of the store as
    it was before: it may be ahead of what is there now. Nothing was changed. A process starts anew; a checkpoint that
    is ahead has to be restored too, or reset."""


class StaleReceipt(DetentError):
    """The delivery behind this receipt is no longer the current one. Nothing was changed."""


class Corrupt(DetentError):
    """Stored bytes do not match their checksum or their format."""


class Unavailable(DetentError):
    """The store cannot answer now, and nothing was applied; retry later."""


class NotOwner(_Detailed, Unavailable):
    """The server that was asked does not own the store now: it stands by for another one, or was replaced. Nothing was
    applied. `leader` is the URL of the server that owns the store, as far as this one knows; Detent's clients go there
    by themselves."""

    details = ("leader",)
    leader: str = ""


class OutcomeUnknown(Unavailable):
    """No answer came in time. The transaction may or may not have been applied; the same may be true later on."""


class LimitExceeded(DetentError):
    """A named limit was reached. Nothing was changed."""


class Busy(LimitExceeded):
    """Too many calls wait already. Nothing was changed; ask again in a moment."""


class Denied(DetentError):
    """The server does not know these credentials, or they do not allow this. Nothing was changed."""


BY_NAME: dict[str, type[DetentError]] = {
    error.__name__: error
    for error in (
        DetentError,
        Invalid,
        ClockAhead,
        NotFound,
        Exists,
        Conflict,
        AlreadyEntered,
        OtherInput,
        Fenced,
        SessionExpired,
        Restored,
        ProducerTaken,
        RollBackHeld,
        ClockBehind,
        ShardsLost,
        StaleReceipt,
        Corrupt,
        Unavailable,
        NotOwner,
        OutcomeUnknown,
        LimitExceeded,
        Busy,
        Denied,
    )
}
"""How an error's name on the wire becomes the same exception on the other side."""
