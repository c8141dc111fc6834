"""`detent serve`, `detent token` and `detent doctor`, as a person uses them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import zygote

READY = re.compile(r"detent serves (\S+).* at (\S+), to (.*);")


class Served:
    """A server process."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = zygote.Forked(
            [sys.executable, "-m", "detent.cli", "serve", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stderr is not None
        self.lines: list[str] = []
        for line in self.process.stderr:
            self.lines.append(line)
            if found := READY.search(line):
                self.store, self.address, self.who = found.groups()
                return
        raise AssertionError("".join(self.lines))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.address + path, timeout=10, **options)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=30)
        return self.process.returncode, "".join(self.lines) + rest


@pytest.fixture
def servers() -> Iterator[list[Served]]:
    started: list[Served] = []
    yield started
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def detent_cli(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return zygote.run(
        [sys.executable, "-m", "detent.cli", *arguments],
        timeout=60,
        text=True,
        env={**os.environ, **(environment or {})},
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_starts_in_memory_and_stops_when_it_is_told(servers: list[Served], number: int) -> None:
    server = Served()
    servers.append(server)
    assert (server.store, server.who) == ("memory:", "every client that can reach it")
    assert server.get("/healthz").status_code == server.get("/readyz").status_code == 200
    assert "detent_commit_seconds" in server.get("/metrics").text
    code, said = server.stop(number)
    assert code == 0, said
    assert "stopped" in said


def test_a_path_is_a_store_on_disk_that_stays(tmp_path: Path, servers: list[Served]) -> None:
    path = str(tmp_path / "data")
    server = Served(path)
    servers.append(server)
    assert server.store == f"file:{path}"
    assert server.stop()[0] == 0
    assert (tmp_path / "data" / "data.mdb").exists()
    assert not list((tmp_path / "data").glob("commits-*")), "closed, not killed"


def test_logs_are_json_lines_on_demand(servers: list[Served]) -> None:
    server = Served("--log-format", "json")
    servers.append(server)
    server.get("/v1/queues?secret=value")
    _, said = server.stop()
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    (request,) = [line for line in lines if line["message"] == "request"]
    assert (request["method"], request["path"], request["status"]) == ("GET", "/v1/queues", 400)
    assert "secret" not in said


def test_off_the_loopback_address_it_wants_keys(tmp_path: Path) -> None:
    refused = detent_cli("serve", "--host", "0.0.0.0", "--port", "0")
    assert (refused.returncode, "detent token create" in refused.stderr) == (1, True)
    assert detent_cli("serve", "--keys", str(tmp_path / "none")).returncode == 1
    assert detent_cli("serve", "--no-auth", "--keys", "x").returncode == 2
    assert detent_cli("serve", "http://127.0.0.1:1").returncode == 2


@pytest.mark.parametrize("variable", ["DETENT_KEYS", "DETENT_KEYS_FILE"])
def test_keys_that_would_be_ignored_are_said_so(variable: str) -> None:
    refused = detent_cli("serve", "--no-auth", "--port", "0", environment={variable: '{"keys": []}'})
    assert (refused.returncode, f"unset {variable}" in refused.stderr) == (2, True)


def test_serve_takes_its_store_from_the_command_line_alone(tmp_path: Path, servers: list[Served]) -> None:
    elsewhere = {"DETENT_URL": f"file:{tmp_path / 'elsewhere'}"}
    server = Served(environment=elsewhere)
    servers.append(server)
    assert server.store == "memory:"
    named = Served("--url", str(tmp_path / "100%25"), environment={"DETENT_URL": server.address})
    servers.append(named)
    assert named.store == f"file:{tmp_path}/100%2525"
    assert (tmp_path / "100%25" / "data.mdb").exists()
    assert not (tmp_path / "elsewhere").exists()
    assert detent_cli("serve", "./a", "--url", "./b").returncode == 2
    assert detent_cli("serve", "HTTP://127.0.0.1:1").returncode == 2
    assert "DETENT_URL is not read here" in " ".join(detent_cli("serve", "--help").stdout.split())


def test_a_port_that_is_taken_is_said_so(servers: list[Served]) -> None:
    server = Served()
    servers.append(server)
    port = server.address.rsplit(":", 1)[1]
    refused = detent_cli("serve", "--port", port)
    assert (refused.returncode, "--port" in refused.stderr) == (1, True)


def test_a_store_that_somebody_owns_is_not_served_twice(tmp_path: Path, servers: list[Served]) -> None:
    url = f"file:{tmp_path / 'data'}"
    servers.append(Served(url))
    refused = detent_cli("serve", url, "--port", "0")
    assert (refused.returncode, "another process owns" in refused.stderr) == (1, True)


def test_keys_are_made_used_listed_and_revoked(tmp_path: Path, servers: list[Served]) -> None:
    keys = str(tmp_path / "keys.json")
    made = detent_cli("token", "create", "operator", "--preset", "metrics", "--keys", keys, "--json")
    assert made.returncode == 0, made.stderr
    token = json.loads(made.stdout)["token"]
    server = Served("--keys", keys, "--host", "0.0.0.0")
    servers.append(server)
    server.address = server.address.replace("0.0.0.0", "127.0.0.1")
    assert server.who == "the holders of 1 key"
    assert server.get("/metrics").status_code == 401
    headers = {"Authorization": f"Bearer {token}"}
    assert server.get("/metrics", headers=headers).status_code == 200
    assert server.get("/v1/queues/q", headers=headers).status_code == 403
    listed = detent_cli("token", "ls", "--keys", keys)
    assert "operator" in listed.stdout
    assert token.split(".")[1] not in listed.stdout
    assert detent_cli("token", "revoke", "operator", "--keys", keys).returncode == 2, "a script has to say --yes"
    assert detent_cli("token", "revoke", "operator", "--yes", "--keys", keys).returncode == 0
    for _ in range(100):
        if server.get("/metrics", headers=headers).status_code == 401:
            break
        signal.sigtimedwait([], 0.1)
    else:
        raise AssertionError("a revoked key still counts")
    assert "secret" not in server.stop()[1].lower()


def test_tokens_tell_what_they_are_for(tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    assert detent_cli("token", "create", "x", "--keys", keys).returncode == 2
    assert "RIGHT:KIND:PATTERN" in detent_cli("token", "create", "x", "--grant", "all", "--keys", keys).stderr
    made = detent_cli("token", "create", "x", "--grant", "publish:queue:a", "--expires", "1d", environment={
        "DETENT_KEYS_FILE": keys})  # fmt: skip
    assert re.search(r"^DETENT_TOKEN=DT\w{18}\.\S{40}$", made.stdout, re.MULTILINE)
    assert "AWS_SECRET_ACCESS_KEY=" in made.stdout


def test_a_file_of_keys_where_there_can_be_none(tmp_path: Path) -> None:
    path = str(tmp_path / "nowhere" / "keys.json")
    for verb in (("create", "x", "--grant", "publish:queue:a"), ("revoke", "x", "--yes"), ("ls",)):
        refused = detent_cli("token", *verb, "--keys", path)
        assert refused.returncode == 1
        assert re.fullmatch(r"error: there is no (folder|file of keys) .*nowhere.*\n", refused.stderr)


def test_the_doctor_finds_what_is_wrong(tmp_path: Path, servers: list[Served]) -> None:
    healthy = detent_cli("doctor", "--json")
    assert healthy.returncode == 0, healthy.stdout
    assert all(finding["state"] != "wrong" for finding in json.loads(healthy.stdout))
    slip = detent_cli("doctor", environment={"DETENT_ULR": "file:x", "DETENT_CRASH_AT": ""})
    assert "DETENT_ULR" in slip.stdout
    missing = detent_cli("doctor", f"file:{tmp_path / 'none'}")
    assert (missing.returncode, "there is no folder" in missing.stdout) == (1, True)
    keys = tmp_path / "keys.json"
    detent_cli("token", "create", "root", "--grant", "admin:*:*", "--keys", str(keys))
    assert "for ever" in detent_cli("doctor", "--keys", str(keys)).stdout
    keys.chmod(0o644)
    loose = detent_cli("doctor", "--keys", str(keys))
    assert (loose.returncode, "chmod 600" in loose.stdout) == (1, True)
    gone = detent_cli("doctor", "http://127.0.0.1:9")
    assert (gone.returncode, "does not answer" in gone.stdout) == (1, True)
    server = Served(f"file:{tmp_path / 'data'}")
    servers.append(server)
    fine = detent_cli("doctor", server.address)
    assert (fine.returncode, "is ready" in fine.stdout) == (0, True)
    owned = detent_cli("doctor", f"file:{tmp_path / 'data'}")
    assert (owned.returncode, f"process {server.process.pid} owns" in owned.stdout) == (0, True)


POLLS = {
    "the JSON API": ("POST", "/v1/queues/q/claim", {"content-type": "application/json"}, b'{"wait": "50s"}'),
    "SQS": (
        "POST",
        "/",
        {"content-type": "application/x-amz-json-1.0", "x-amz-target": "AmazonSQS.ReceiveMessage"},
        b'{"QueueUrl": "http://localhost/000000000000/q", "WaitTimeSeconds": 20}',
    ),
    "Detent's own protocol": ("GET", "/v1/native/wait/queue?queue=q&timeout_ms=50000", {}, b""),
}


@pytest.mark.parametrize("how", POLLS)
def test_whoever_waits_when_the_server_stops_is_answered(servers: list[Served], how: str) -> None:
    """With nothing, and at once: not after its wait, and not by a connection that breaks."""
    server = Served()
    servers.append(server)
    method, path, headers, body = POLLS[how]
    created = httpx.put(server.address + "/v1/queues/q", json={}, timeout=10)
    assert created.status_code == 201, created.text
    answers: list[httpx.Response] = []

    def poll() -> None:
        answers.append(httpx.request(method, server.address + path, headers=headers, content=body, timeout=45))

    waiting = threading.Thread(target=poll)
    waiting.start()
    while "detent_http" not in server.get("/metrics").text:
        time.sleep(0.05)
    time.sleep(0.5)
    assert not answers, answers[0].text
    code, said = server.stop()
    waiting.join()
    assert code == 0, said
    assert answers[0].status_code == 200, answers[0].text
