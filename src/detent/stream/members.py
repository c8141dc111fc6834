"""What members of consumers call themselves, so that others on the same machine can tell whether one has died."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Final

_HOST_LETTERS: Final = 40
_BOOT_LETTERS: Final = 8
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def _host() -> str:
    """The machine; or the container, which may share the machine's name and does not see the processes of others. Names
    are given more than once, and each machine counts its containers anew: what tells it from all others is the number
    that its kernel drew when it started."""
    try:
        space = os.stat("/proc/self/ns/pid").st_ino
        boot = BOOT_ID.read_text().strip().replace("-", "")[:_BOOT_LETTERS]
    except OSError:  # there is none, or nobody may look
        space, boot = 0, ""
    return f"{socket.gethostname()[:_HOST_LETTERS]}.{boot}{space:x}"


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
