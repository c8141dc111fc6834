"""`detent serve` and clients that mean it ill, or are cut off: what it refuses before it knows anybody."""

from __future__ import annotations

import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from serveprocess import SERVE, Served


@pytest.fixture
def servers() -> Iterator[list[Served]]:
    started: list[Served] = []
    yield started
    for server in started:
        server.kill()


def answer_of(connection: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_a_page_of_another_name_or_origin_gets_nothing(servers: list[Served]) -> None:
    servers.append(server := Served(SERVE))
    assert httpx.put(f"{server.url}/v1/queues/q", json={}).status_code == 201
    foreign: list[dict[str, str]] = [
        {"host": f"evil.example:{server.port}"},
        {"host": f"evil.example:{server.port}", "origin": f"http://evil.example:{server.port}"},
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "cross-site"},
    ]
    for headers in foreign:
        assert httpx.get(f"{server.url}/v1/queues/q", headers=headers).status_code == 403
        assert httpx.get(f"{server.url}/?Action=ListQueues", headers=headers).status_code == 403
        assert httpx.post(f"{server.url}/v1/sessions", headers=headers).status_code == 403
    for host in (f"localhost:{server.port}", f"127.0.0.1:{server.port}", "[::1]"):
        assert httpx.get(f"{server.url}/v1/queues/q", headers={"host": host}).status_code == 200
    with server.connect() as connection:
        connection.sendall(b"GET /v1/queues/q HTTP/1.0\r\n\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 403 ")


def test_silent_connections_leave_room_for_the_store(tmp_path: Path, servers: list[Served]) -> None:
    """With 80 descriptors, and 75 connections that say nothing."""
    limited = ["sh", "-c", 'ulimit -n 80; exec "$0" "$@"', *SERVE, f"file:{tmp_path / 'data'}"]
    servers.append(server := Served(limited))
    silent: list[socket.socket] = []
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as known:
        assert known.put("/v1/queues/q", json={}).status_code == 201
        silent += (server.connect() for _ in range(75))
        for number in range(50):
            published = known.post("/v1/queues/q/messages", json={"body": str(number)})
            assert published.status_code == 200, published.text
    deadline = time.monotonic() + 30
    while True:
        with server.connect() as newcomer:
            newcomer.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            answer = answer_of(newcomer)
        if answer:
            break
        assert time.monotonic() < deadline
        time.sleep(0.2)
    if not answer.startswith(b"HTTP/1.1 200 "):
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in answer
        assert b"application/problem+json" in answer
    while "connections refused" not in server.log:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for connection in silent:
        connection.close()
    assert server.stop() == 0
    assert "Too many open files" not in server.log


def test_a_head_without_end_is_not_kept(servers: list[Served]) -> None:
    servers.append(server := Served(SERVE))
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ")
        sent = 0
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            while sent < 25 << 20:
                sent += connection.send(b"y" * 65536)
        assert sent < 25 << 20
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_a_half_sent_body_does_not_hold_the_server_when_it_stops(servers: list[Served]) -> None:
    servers.append(server := Served(SERVE))
    head = b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    native = b"POST /v1/transactions HTTP/1.1\r\nhost: localhost\r\n"
    native += b"content-type: application/vnd.detent.transaction+msgpack\r\n"
    with server.connect() as first, server.connect() as second, server.connect() as third:
        first.sendall(head + b'content-length: 1000\r\n\r\n{"body": ')
        second.sendall(native + b"content-length: 1000\r\n\r\n\x91")
        third.sendall(head)
        time.sleep(1)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 5
        for connection in (first, second):
            answer = answer_of(connection)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"shutting down" in answer
        assert answer_of(third) == b""
    assert "Traceback" not in server.log


# -- TLS ----------------------------------------------------------------------------------------------------------


def make_certificate(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """A certificate of its own for this machine, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    return paths


def test_a_server_with_a_certificate_is_ready_when_it_says_so(tmp_path: Path, servers: list[Served]) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    servers.append(server := Served([*SERVE, "--tls-cert", str(certificate), "--tls-key", str(key)]))
    assert server.scheme == "https"
    trusted = ssl.create_default_context(cafile=str(certificate))
    answer = httpx.get(f"https://localhost:{server.port}/readyz", verify=trusted)
    assert answer.status_code == 200
    assert server.stop() == 0


def test_a_certificate_that_cannot_work_is_refused_before_anything_is_promised(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path, "one")
    _, other = make_certificate(tmp_path, "other")
    _, locked = make_certificate(tmp_path, "locked", b"password")
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("this is no certificate")
    expected = {
        (nonsense, key): "PEM",
        (certificate, nonsense): "PEM",
        (certificate, other): "is not the key of",
        (certificate, locked): "is encrypted",
        (certificate, tmp_path / "none"): "there is no file",
    }
    for (cert, private), said in expected.items():
        refused = subprocess.run(
            [*SERVE, "--tls-cert", str(cert), "--tls-key", str(private)],
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip
        assert refused.returncode == 1, refused.stderr
        assert said in refused.stderr
        assert "detent serves" not in refused.stderr
        assert "Traceback" not in refused.stderr
