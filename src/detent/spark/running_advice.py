"""What became of a stream, in our words, and what to do about it: with commands that work as they are printed."""

from __future__ import annotations

import re
import shlex
from typing import Final

from detent.errors import NotFound
from detent.spark.advice import completed, release_command, reset_command
from detent.spark.pipeline_stream import Queue, Stream
from detent.spark.running_checkpoint import damage
from detent.spark.running_failure import Failure
from detent.spark.running_prepare import is_local
from detent.store import Store

_TWO_DRIVERS: Final = re.compile(
    r"CONCURRENT_STREAM_LOG_UPDATE|CONCURRENT_QUERY|Multiple streaming queries are concurrently using"
    r"|FileAlreadyExistsException|[Aa]nother (?:run of this |)query with (?:the )?same id"
)
_ADVICE: Final = re.compile(r"`detent (?:queue release|ledger reset) ")


class Advisor:
    """Explains the failures of a pipeline's streams."""

    def __init__(self, store: Store, url: str, checkpoints: str) -> None:
        self._store = store
        self._url = url
        self._checkpoints = checkpoints

    def explained(self, stream: Stream, error: BaseException, failure: Failure) -> Failure:
        """A failure in words that say what to do, where there is something."""
        checkpoint = f"{self._checkpoints}/{stream.full_name}"
        said = str(error)
        if not failure.is_ours and _TWO_DRIVERS.search(said):
            return Failure(
                f"another driver runs this stream, with the checkpoint {checkpoint}: leave one of the two running. "
                "What both have read has taken effect once",
                True,
            )
        broken = "" if failure.is_ours else damage(checkpoint, said)
        if broken:
            return Failure(
                f"the checkpoint of this stream is damaged: {broken}. Put back a copy of {checkpoint} that was made "
                f"while the pipeline was stopped; or start over. {self.start_over(stream)}",
                True,
            )
        reason = completed(failure.reason, self._url)
        if _ADVICE.search(reason):
            reason = f"{reason}. {self.start_over(stream)}"
        return failure._replace(reason=reason)

    def start_over(self, stream: Stream) -> str:
        """How a stream begins anew. It reads again what is there, and writes it again."""
        checkpoint = f"{self._checkpoints}/{stream.full_name}"
        commands = []
        for source in stream.sources:
            if isinstance(source, Queue) and self._has_reader(source.name, stream.full_name):
                commands.append(release_command(self._url, source.name, stream.full_name))
        if self._has_ledger(stream.full_name):
            commands.append(reset_command(self._url, stream.full_name))
        words = f"move the folder {checkpoint} away"
        if is_local(self._checkpoints):
            path = checkpoint.removeprefix("file:")
            commands.append(shlex.join(("mv", path, path + ".old")))
            words = ""
        listed = ", ".join([*(f"`{command}`" for command in commands), *([words] if words else [])])
        return f"To start over, which writes again what is read again: {listed}"

    def _has_reader(self, queue: str, reader: str) -> bool:
        return any(one.name == reader for one in self._store.queue(queue).readers())

    def _has_ledger(self, name: str) -> bool:
        try:
            self._store.ledger(name)
        except NotFound:
            return False
        return True
