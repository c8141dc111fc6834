"""What members of consumers call themselves, so that others on the same machine can tell whether one has died."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Final

_HOST_LETTERS: Final = 40


def _host() -> str:
    """The machine; or the container, which may share the machine's name and does not see the processes of others."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
    except OSError:  # there is none, or nobody may look
        space = 0
    return f"{socket.gethostname()[:_HOST_LETTERS]}.{space:x}"


def new_member() -> str:
    """A name for this process: the machine, the process, and something random."""
    return f"{_host()}-{os.getpid()}-{secrets.token_hex(4)}"


def has_died(member: str) -> bool:
    """Whether a member was a process of this machine that is not there any more. False where nobody can tell.

    It only spares waiting for the end of a lease: what keeps two from working is the fence.
    """
    host, _, rest = member.rpartition("-")[0].rpartition("-")
    if host != _host() or not rest.isdigit():
        return False
    try:
        os.kill(int(rest), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
