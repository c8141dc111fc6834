"""Whether Spark's Java still runs under a pipeline, and how it ended."""

from __future__ import annotations

import signal
import subprocess
from typing import Any, Final

from detent.errors import Unavailable

END_S: Final = 5.0
"""How long a Java that hung up may take to be gone."""


class JavaWatch:
    """Watches the Java of this process, if the process has started it."""

    def __init__(self, process: Any = None) -> None:
        self._process: subprocess.Popen[bytes] | None = process

    @classmethod
    def of_spark(cls) -> JavaWatch:
        """The Java of the session that runs."""
        from pyspark import SparkContext

        return cls(getattr(SparkContext._gateway, "proc", None))

    def ended(self, wait_s: float = 0.0) -> str:
        """How it ended; empty while it runs."""
        if self._process is None:
            return ""
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return ""
        return f"was ended by {_signal(-code)}" if code < 0 else f"ended with exit code {code}"

    def check(self) -> None:
        """`Unavailable`, with what to do, if it has ended. Called after an error of the connection to it."""
        how = self.ended(END_S)
        if how and self._process is not None:
            raise Unavailable(
                f"Spark's Java (process {self._process.pid}) {how}, and all streams with it. Start the pipeline again: "
                "each goes on where it was, and nothing takes effect twice. If memory ran out (`dmesg` names processes "
                "that were killed for it), give Java more with --memory 4g, or run fewer tasks at once with --cores 1; "
                "--verbose shows Java's own log"
            )


def _signal(number: int) -> str:
    try:
        return f"the signal {signal.Signals(number).name}"
    except ValueError:
        return f"the signal {number}"
