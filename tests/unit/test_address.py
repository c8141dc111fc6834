"""Server URLs, and the tokens and certificates that the environment gives for them."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import detent
from detent.remote.address import Address, read_token, server_address


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://localhost:8080", "http://localhost:8080"), ("http://localhost:8080/", "http://localhost:8080"),
        ("https://example.org", "https://example.org"), ("HTTPS://Example.ORG:1", "https://example.org:1"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)  # fmt: skip
def test_servers(url: str, base: str) -> None:
    assert server_address(url) == Address(url=base)


@pytest.mark.parametrize("url", ["memory:", "file:./http://x", "s3://b/x", "httpx://x", "", "localhost:80"])
def test_stores_that_are_no_servers(url: str) -> None:
    assert server_address(url) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://", "http:", "http:///x", "http://h/path", "http://h?x=1", "http://h#x", "http://h?", "http://h:x",
        "http://h:99999", "http://h ost", "http://h\nx", "http://[::1", "http://hö", "http://" + "h" * 5000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("role", ["auto", "reader"])
def test_what_is_no_server_is_refused(url: str, role: str) -> None:
    with pytest.raises(detent.Invalid):
        detent.open(url, role=role)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["http://me:secret@h", "https://me@h:80", "http://:secret@h"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(detent.Invalid, match="DETENT_TOKEN") as refused:
        detent.open(url)
    assert "secret" not in str(refused.value)


def test_force_is_for_owners_on_this_machine() -> None:
    with pytest.raises(detent.Invalid, match="force"):
        detent.open("http://localhost:1", force=True)


def test_tokens_come_from_the_environment_or_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DETENT_TOKEN", "DETENT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert read_token() is None
    assert sent(Address(url="https://h")) is None
    (tmp_path / "token").write_text("from-a-file\n")
    monkeypatch.setenv("DETENT_TOKEN_FILE", str(tmp_path / "token"))
    assert read_token() == "from-a-file"
    monkeypatch.setenv("DETENT_TOKEN", "given")
    assert sent(Address(url="https://h")) == "Bearer given"
    assert sent(Address("/a/socket")) is None, "the owner's socket needs none"


def test_a_token_file_that_is_replaced_counts_from_the_next_request_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("DETENT_TOKEN", raising=False)
    monkeypatch.setenv("DETENT_TOKEN_FILE", str(tmp_path / "token"))
    (tmp_path / "token").write_text("old")
    auth = Address(url="https://h").auth()
    assert next(auth.sync_auth_flow(httpx.Request("GET", "https://h"))).headers["authorization"] == "Bearer old"
    (tmp_path / "token").write_text("new")
    assert next(auth.sync_auth_flow(httpx.Request("GET", "https://h"))).headers["authorization"] == "Bearer new"


def sent(address: Address) -> str | None:
    """What a request to this address says about who sends it."""
    found: str | None = next(address.auth().sync_auth_flow(httpx.Request("GET", "https://h"))).headers.get(
        "authorization"
    )
    return found


@pytest.mark.parametrize("token", ["two words", "a\nb", "ü", "x" * 10_000, "a\x7fb"])
def test_what_is_no_token_never_becomes_a_header(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("DETENT_TOKEN", token)
    with pytest.raises(detent.Invalid, match="no token") as refused:
        detent.open("http://localhost:1")
    assert token not in str(refused.value)


def test_a_token_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DETENT_TOKEN", raising=False)
    monkeypatch.setenv("DETENT_TOKEN_FILE", str(tmp_path / "none"))
    with pytest.raises(detent.Invalid, match="DETENT_TOKEN_FILE"):
        detent.open("http://localhost:1")


def test_a_token_on_an_open_road_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DETENT_TOKEN", "given")
    for url in ("https://h", "http://localhost", "http://127.0.0.1:80", "http://[::1]:80"):
        Address(url=url).auth()
    assert caplog.messages == []
    Address(url="http://example.org").auth()
    assert "unencrypted" in caplog.text
    assert "given" not in caplog.text


def test_a_file_without_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    for path in (tmp_path / "ca.pem", tmp_path / "none"):
        monkeypatch.setenv("DETENT_CA_FILE", str(path))
        with pytest.raises(detent.Invalid, match="DETENT_CA_FILE"):
            detent.open("https://localhost:1")
