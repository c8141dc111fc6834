"""Who may do what: the scopes of a caller on queues, journals, ledgers and consumers."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, get_args

from detent.errors import Denied
from detent.remote.rights import EVERYTHING as EVERYTHING
from detent.remote.rights import Kind as Kind
from detent.remote.rights import Right as Right
from detent.remote.rights import includes

RIGHTS: Final[tuple[Right, ...]] = get_args(Right)
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Grant:
    """A right on the queues, journals, ledgers or consumers whose names match a pattern (``*`` and ``?``, as in a
    shell). The right `admin` includes all others, and `consume` includes `read`; the kind ``*`` means
    all of them, and the metrics."""

    right: str
    kind: str
    pattern: str

    def allows(self, right: str, kind: str, name: str) -> bool:
        """Whether it covers this."""
        return (
            includes(self.right, right)
            and self.kind in {kind, EVERYTHING}
            and (self.pattern == EVERYTHING or fnmatchcase(name, self.pattern.replace("[", "[[]")))
        )


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, as far as the server knows."""

    name: str
    grants: tuple[Grant, ...]
    key: str = ""
    """The id of the key by which it is known; two keys may have the same name."""

    def may(self, right: Right, kind: Kind, name: str) -> bool:
        """Whether the caller has a right on a queue, journal, ledger or consumer."""
        return any(grant.allows(right, kind, name) for grant in self.grants)

    def require(self, right: Right, kind: Kind, name: str) -> None:
        """`Denied` unless the caller has the right."""
        if not self.may(right, kind, name):
            raise Denied(f"{self.name} may not {right} on the {kind} {name!r}")

    def require_everywhere(self, right: Right) -> None:
        """`Denied` unless the caller has the right on everything there is: what concerns the whole store."""
        if not any(includes(g.right, right) and g.kind == g.pattern == EVERYTHING for g in self.grants):
            raise Denied(f"{self.name} may not {right} on the whole store")


UNCHECKED: Final = Caller("anybody", (Grant("admin", EVERYTHING, EVERYTHING),))
"""The caller of a server without credentials: it listens on the loopback address, or was told to."""

UNKNOWN: Final = Caller("nobody", ())
"""The caller of what needs no right at all."""
