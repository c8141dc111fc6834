"""Machines as network namespaces of this one: a bridge, an address each, and lines between two that are cut.

with networks(3) as lan:                       # needs root and the command `ip`
    lan.machines[0].wrapper                    # what starts a process there: ip netns exec NAME
    lan.cut(lan.machines[0], lan.store)        # packets between these two are lost, and no process is told
    lan.mend()
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

NOWHERE = "02:00:00:00:00:01"
"""An address of no machine: what is sent there is lost on the bridge."""


def can_be_made() -> bool:
    """Whether this process may make network namespaces."""
    return os.geteuid() == 0 and shutil.which("ip") is not None


@dataclass(frozen=True)
class Machine:
    name: str
    address: str

    @property
    def wrapper(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]


@dataclass
class Networks:
    """This test's own machine, the one with the object store, and the servers'."""

    bridge: str
    home: str
    store: Machine
    machines: list[Machine]
    _cuts: list[list[str]] = field(default_factory=list)

    def cut(self, one: Machine, other: Machine) -> None:
        """Lose all packets between two machines from now on."""
        for here, there in ((one, other), (other, one)):
            self._lose([*here.wrapper, "ip", "neigh"], there.address, "eth0")

    def cut_from_home(self, one: Machine) -> None:
        """The same between a machine and the clients."""
        self._lose([*one.wrapper, "ip", "neigh"], self.home, "eth0")
        self._lose(["ip", "neigh"], one.address, self.bridge)

    def isolate(self, one: Machine) -> None:
        """The machine's line is pulled."""
        _run([*one.wrapper, "ip", "link", "set", "eth0", "down"])
        self._cuts.append([*one.wrapper, "ip", "link", "set", "eth0", "up"])

    def _lose(self, neighbours: list[str], address: str, device: str) -> None:
        _run([*neighbours, "replace", address, "lladdr", NOWHERE, "dev", device, "nud", "permanent"])
        self._cuts.append([*neighbours, "del", address, "dev", device])

    def mend(self) -> None:
        """All lines are whole again."""
        while self._cuts:
            _run(self._cuts.pop())


@contextmanager
def networks(size: int) -> Iterator[Networks]:
    """So many machines, beside one for the object store."""
    number = os.getpid() % 200
    bridge, net = f"dtbr{number}", f"10.77.{number}"
    machines = [Machine(f"dt{number}-{place}", f"{net}.{place + 2}") for place in range(size + 1)]
    _run(["ip", "link", "add", bridge, "type", "bridge"])
    try:
        _run(["ip", "addr", "add", f"{net}.1/24", "dev", bridge])
        _run(["ip", "link", "set", bridge, "up"])
        for machine in machines:
            outside = f"v{machine.name}"
            _run(["ip", "netns", "add", machine.name])
            _run(["ip", "link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", machine.name])
            _run(["ip", "link", "set", outside, "master", bridge, "up"])
            _run([*machine.wrapper, "ip", "addr", "add", f"{machine.address}/24", "dev", "eth0"])
            for device in ("lo", "eth0"):
                _run([*machine.wrapper, "ip", "link", "set", device, "up"])
        yield Networks(bridge, f"{net}.1", machines[0], machines[1:])
    finally:
        for machine in machines:
            with suppress(subprocess.CalledProcessError):
                _run(["ip", "netns", "del", machine.name])
        _run(["ip", "link", "del", bridge])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
