"""A key that is revoked while its holder waits: what waits gets nothing more, whatever it speaks."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
from botocore.exceptions import ClientError

from detent.server.keys import add_key, new_key, remove_key
from processes import PATIENCE_S
from serveprocess import SERVE, Served

WAIT_S = 15


@pytest.fixture
def door(tmp_path: Path) -> Iterator[tuple[Served, Path, Any, Any]]:
    """A server, its file of keys, and in it somebody's key and the one that will be revoked."""
    path = tmp_path / "keys.json"
    now = datetime.now(UTC)
    admin, weak = new_key("admin", ["admin:*:*"], now=now), new_key("weak", ["consume:queue:*"], now=now)
    for key in (admin, weak):
        add_key(path, key)
    served = Served([*SERVE, "--keys", str(path)])
    try:
        yield served, path, admin, weak
    finally:
        served.kill()


def token(key: Any) -> dict[str, str]:
    return {"authorization": f"Bearer {key.id}.{key.secret}"}


def waits(ask: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Ask in a thread; what came of it is in the list afterwards."""
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(ask()))
    thread.start()
    return thread, outcome


def revoke_then_publish(served: Served, path: Path, admin: Any, weak: Any) -> None:
    time.sleep(0.5)
    remove_key(path, weak.id)
    time.sleep(2)  # servers look at the file once a second
    sent = httpx.post(f"{served.url}/v1/queues/q/messages", json={"body": "x"}, headers=token(admin))
    assert sent.status_code == 200, sent.text


def prepare(served: Served, admin: Any) -> None:
    made = httpx.put(f"{served.url}/v1/queues/q", json={}, headers=token(admin))
    assert made.status_code == 201, made.text


def untouched(served: Served, admin: Any) -> bool:
    found = httpx.get(f"{served.url}/v1/queues/q", headers=token(admin)).json()
    return (found["available"], found["in_flight"]) == (1, 0)


def test_a_claim_that_waits(door: tuple[Served, Path, Any, Any]) -> None:
    served, path, admin, weak = door
    prepare(served, admin)
    ask = {"count": 1, "wait": f"{WAIT_S}s"}
    url = f"{served.url}/v1/queues/q/claim"
    thread, outcome = waits(lambda: httpx.post(url, json=ask, headers=token(weak), timeout=PATIENCE_S))
    revoke_then_publish(served, path, admin, weak)
    thread.join(PATIENCE_S)
    assert outcome[0].status_code == 401
    assert untouched(served, admin)


def test_a_receive_that_waits(door: tuple[Served, Path, Any, Any]) -> None:
    served, path, admin, weak = door
    prepare(served, admin)
    client = boto3.client(
        "sqs", endpoint_url=served.url, region_name="us-east-1", aws_access_key_id=weak.id,
        aws_secret_access_key=weak.secret,
    )  # fmt: skip
    queue = client.get_queue_url(QueueName="q")["QueueUrl"]

    def receive() -> Any:
        try:
            return client.receive_message(QueueUrl=queue, WaitTimeSeconds=WAIT_S)
        except ClientError as error:
            return error.response["Error"]["Code"]

    thread, outcome = waits(receive)
    revoke_then_publish(served, path, admin, weak)
    thread.join(PATIENCE_S)
    assert isinstance(outcome[0], str), outcome[0]
    assert untouched(served, admin)


def test_the_command_ends_it_too(door: tuple[Served, Path, Any, Any]) -> None:
    served, path, admin, weak = door
    prepare(served, admin)
    command = [sys.executable, "-m", "detent.cli", "token", "revoke", weak.id, "--keys", str(path), "--yes"]
    subprocess.run(command, check=True, capture_output=True)
    time.sleep(2)
    assert httpx.get(f"{served.url}/v1/queues/q", headers=token(weak)).status_code == 401
