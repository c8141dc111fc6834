"""A server that does not own its store, because another one does: what it answers, and how it waits for its turn."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Final

from detent.errors import DetentError, NotOwner
from detent.kv import open_reader
from detent.remote import Sight, StoreClaim, leader_of, server_address
from detent.server.access import Caller
from detent.server.app import HEALTH, refusal
from detent.server.http import HttpRequest, Response

DIAL_S: Final = 0.5
"""How long the leader may take to let a standby in."""

logger = logging.getLogger("detent.server")


class StandbyPart:
    """Answers everything with where the store's owner is. Load balancers see that this server lives and is not
    ready."""

    name = "standby"

    def __init__(self, url: str) -> None:
        self._url = url
        self.leader = ""
        self.why = "this server stands by"
        self.has_ended = False

    def owns(self, request: HttpRequest) -> bool:
        """All of them."""
        del request
        return True

    async def answer(self, request: HttpRequest, caller: Caller) -> Response:
        """Say that the process lives, or which server to ask."""
        del caller
        if request.path == HEALTH and not self.has_ended:
            return Response.json({"status": "standby", "leader": self.leader})
        where = f"ask {self.leader}" if self.leader else "no server is known to own the store now, try again"
        raise NotOwner(f"{self.why}: {where}", self.leader)

    async def close(self) -> None:
        """Nothing waits here."""

    def refuse(self, request: HttpRequest, error: DetentError) -> Response:
        """In Detent's own form, with the leader in a header."""
        del request
        return refusal(error)

    def end(self, why: str, leader: str) -> None:
        """This server owns the store no more, and is about to end."""
        self.why, self.leader, self.has_ended = why, leader, True


class Waiting:
    """Waits until the store's lease is free, or its holder is seen to be gone."""

    def __init__(self, claim: StoreClaim, part: StandbyPart) -> None:
        self._claim = claim
        self._part = part
        self._answered = ""
        """The holder that has let this server in before: when it refuses now, it is not there any more."""

    async def warm_up(self) -> None:
        """Read the store once, so that its library is loaded, and its object store connected, when the turn comes: that
        is half of the time that opening takes in a new process."""
        try:
            await asyncio.to_thread(lambda: open_reader(self._claim.url).close())
        except DetentError as error:  # there may be no store yet
            logger.info("the store cannot be read yet: %s", error)

    async def turn(self) -> None:
        """Return when this server may take the lease."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                sight = await asyncio.to_thread(self._claim.look)
            except DetentError as error:
                logger.warning("the lease cannot be read, and is looked for again: %s", error)
            else:
                self._part.leader = leader_of(sight)
                if sight.is_free or await self._is_gone(sight):
                    return
            await asyncio.sleep(max(0.0, began + self._claim.look_s - clock()))

    async def _is_gone(self, sight: Sight) -> bool:
        """Whether the leader's port is closed, though it was open before and the leader has not said that it stops.
        That may be wrong, where a firewall comes up: the store's fence makes it safe."""
        leader, note = leader_of(sight), sight.note
        if note is None or not leader:
            return False
        is_open = await asyncio.to_thread(_is_open, leader)
        if is_open:
            self._answered = note.holder
        if is_open is not False or self._answered != note.holder:
            return False
        logger.warning("%s, the leader of %s, refuses connections", leader, self._claim.url)
        self._claim.give_up_on(note.holder)
        return True


def _is_open(leader: str) -> bool | None:
    """Whether a server takes connections; None if it does not say."""
    address = server_address(leader)
    assert address is not None
    try:
        socket.create_connection(address.endpoint, timeout=DIAL_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True
