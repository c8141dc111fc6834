"""`detent console`: a console in a process of its own, over a store that another process owns, or that none does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

import detent
import zygote


def start(*arguments: str) -> Any:
    return zygote.Forked(
        [sys.executable, "-m", "detent.cli", "console", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def test_link_opens_one_session_over_a_store_that_another_process_owns(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/store"
    with detent.open(url) as store:
        store.queue("orders").create()
        store.queue("orders").publish(b"x")
        process = start(url)
        link = process.stdout.readline().strip()
        with httpx.Client(follow_redirects=True, timeout=30, trust_env=False) as browser:
            assert "orders" in browser.get(link).text
            assert "1 of 1 queues" in browser.get(link.partition("/enter/")[0] + "/queues").text
        assert store.is_owner
        with httpx.Client(follow_redirects=True, timeout=30, trust_env=False) as second:
            assert second.get(link).status_code == 403
            assert "Log in" in second.get(link.partition("/enter/")[0]).text
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_store_without_an_owner_is_owned_only_if_that_is_said(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/store"
    with detent.open(url) as store:
        store.queue("mails").create()
    refused = start(url)
    _, said = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "--own" in said
    process = start(url, "--own")
    link = process.stdout.readline().strip()
    with httpx.Client(follow_redirects=True, timeout=30, trust_env=False) as browser:
        assert "mails" in browser.get(link).text
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
