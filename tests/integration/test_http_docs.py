"""The examples of docs/http.md do what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from detent.server.api import Api
from httpserver import serve

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
SECONDS = 120


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="the examples need curl and jq")
def test_every_example_of_the_page_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 6
    script = "set -euo pipefail\n" + "\n".join(blocks)
    with serve(f"file:{tmp_path / 'store'}", lambda store: [Api(store)]) as server:
        done = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, "DETENT": server.url},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert '{"queue":"orders","state":"done"}' in done.stdout
        assert '{"messages":[],"next":2}' in done.stdout
        assert '["AlreadyEntered",7]' in done.stdout
        info = server.client.get("/v1/queues/mails").json()
        assert (info["done"], info["in_flight"]) == (1, 0)
        assert (tmp_path / "audit.arrows").stat().st_size
