"""`detent doctor` and listing commands against servers: with TLS, with tokens, and with slips of the pen."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from acceptance.test_cli_serve import Served, detent_cli

UNSET = {"DETENT_URL": "", "DETENT_TOKEN": "", "DETENT_TOKEN_FILE": "", "DETENT_CA_FILE": ""}


@pytest.fixture
def servers() -> Iterator[list[Served]]:
    started: list[Served] = []
    yield started
    for server in started:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def doctor(*arguments: str, **environment: str) -> tuple[int, str]:
    done = detent_cli("doctor", *arguments, environment={**UNSET, **environment})
    assert "Error" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def made_token(keys: Path, name: str, grant: str) -> str:
    made = detent_cli("token", "create", name, "--grant", grant, "--keys", str(keys), "--json")
    token: str = json.loads(made.stdout)["token"]
    return token


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


def test_certificates_are_those_that_clients_trust(tmp_path: Path, servers: list[Served]) -> None:
    certificate, key = make_certificate(tmp_path)
    server = Served("--tls-cert", str(certificate), "--tls-key", str(key))
    servers.append(server)
    assert server.address.startswith("https://")
    code, said = doctor(server.address, DETENT_CA_FILE=str(certificate))
    assert (code, "is ready" in said, "answers calls without a token" in said) == (0, True, True), said
    code, said = doctor(server.address)
    assert (code, "does not answer" in said, "DETENT_CA_FILE" in said) == (1, True, True)
    code, said = doctor(server.address, DETENT_CA_FILE=str(key))
    assert (code, "holds no certificates" in said) == (1, True)
    code, said = doctor(server.address.replace("https", "http"))
    assert (code, "does not answer" in said) == (1, True)


def test_https_where_there_is_none(servers: list[Served]) -> None:
    server = Served()
    servers.append(server)
    code, said = doctor(server.address.replace("http", "https"))
    assert (code, "its URL begins with http://" in said) == (1, True)


def test_tokens_are_tried(tmp_path: Path, servers: list[Served]) -> None:
    keys, file = tmp_path / "keys.json", tmp_path / "token"
    token = made_token(keys, "reader", "consume:queue:a")
    server = Served("--keys", str(keys))
    servers.append(server)
    assert doctor(server.address, DETENT_TOKEN=token)[0] == 0
    assert "answers calls with this token" in doctor(server.address, DETENT_TOKEN=token)[1]
    code, said = doctor(server.address, DETENT_TOKEN="bad.token")
    assert (code, "refuses the token in DETENT_TOKEN:" in said, "detent token create" in said) == (1, True, True)
    file.write_text("bad.token\n")
    environment = {**UNSET, "DETENT_TOKEN_FILE": str(file)}
    del environment["DETENT_TOKEN"]
    said = detent_cli("doctor", server.address, environment=environment).stdout
    assert "refuses the token in DETENT_TOKEN_FILE" in said
    code, said = doctor(server.address)
    assert (code, "wants a token, and there is none" in said, "put one into DETENT_TOKEN" in said) == (1, True, True)
    code, said = doctor(server.address, DETENT_TOKEN="no token")
    assert (code, "is no token" in said) == (1, True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://[::1", "is no server's URL"),
        ("http://127.0.0.1:99999", "is no server's URL"),
        ("http://user:secret@127.0.0.1", "holds no credentials"),
        ("http://", "is no server's URL"),
        ("https:///x", "is no server's URL"),
        ("HTTP://127.0.0.1:9", "does not answer"),
    ],
)
def test_urls_that_lead_nowhere(url: str, expected: str) -> None:
    for code, said in (doctor(url), doctor("--url", url), doctor(DETENT_URL=url)):
        assert (code, expected in said, "secret" in said) == (1, True, False), said


def test_the_scheme_may_be_in_capitals(servers: list[Served]) -> None:
    server = Served()
    servers.append(server)
    code, said = doctor(server.address.replace("http", "HTTP"))
    assert (code, "is ready" in said) == (0, True), said


def test_who_may_not_list_is_told_what_to_do(tmp_path: Path, servers: list[Served]) -> None:
    keys = tmp_path / "keys.json"
    admin, some = made_token(keys, "root", "admin:*:*"), made_token(keys, "some", "consume:queue:a*")
    server = Served("--keys", str(keys))
    servers.append(server)
    known = {**UNSET, "DETENT_URL": server.address}
    assert detent_cli("queue", "create", "a1", environment={**known, "DETENT_TOKEN": admin}).returncode == 0
    for noun, verb in (("queue", "ls"), ("queue", "stats"), ("journal", "ls")):
        refused = detent_cli(noun, verb, environment={**known, "DETENT_TOKEN": some})
        assert refused.returncode == 1
        assert f"`detent {noun} info NAME`" in refused.stderr
        assert f"GET /v1/{noun}s" in refused.stderr
        assert "consume:*:*" in refused.stderr
        wrong = detent_cli(noun, verb, environment={**known, "DETENT_TOKEN": "bad.token"})
        assert (wrong.returncode, "DETENT_TOKEN" in wrong.stderr, "info NAME" in wrong.stderr) == (1, True, False)
    assert "a1" in detent_cli("queue", "stats", "a1", environment={**known, "DETENT_TOKEN": some}).stdout
