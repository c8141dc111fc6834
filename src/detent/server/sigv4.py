"""Signatures of SQS clients (AWS Signature Version 4): the request is taken apart as the client has, and signed again.

Nothing here depends on where the server believes to be: the region is whatever the client says, the service is sqs.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from urllib.parse import quote

from detent.server.access import Caller
from detent.server.http import HttpRequest
from detent.server.keys import KeyRing, Unauthenticated

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "sqs"

SKEW: Final = timedelta(minutes=15)
"""How far a client's clock may be off. A signed request that was overheard can be sent again for so long."""

MISMATCH: Final = "the signature does not match: check the access key and the secret key"
"""Said of an unknown key as of a wrong secret: the answer does not tell which of both it was."""

_AUTHORIZATION: Final = re.compile(
    rf"{ALGORITHM} +Credential=([A-Za-z0-9_]{{1,128}})/(\d{{8}})/([a-z0-9-]{{1,64}})/([a-z0-9-]{{1,64}})/aws4_request"
    r", *SignedHeaders=([a-z0-9;_-]{1,2048}), *Signature=([0-9a-f]{64})"
)
_SPACES: Final = re.compile(r" +")


class SignatureClaim(NamedTuple):
    """What the header `Authorization` says."""

    key: str
    date: str
    region: str
    service: str
    signed: list[str]
    signature: str

    @property
    def scope(self) -> str:
        """What the signature is good for."""
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def is_signed(request: HttpRequest) -> bool:
    """Whether the request carries a signature of this kind."""
    return request.headers.get("authorization", "").startswith(ALGORITHM)


def caller_of(request: HttpRequest, body: bytes, ring: KeyRing, now: datetime) -> Caller:
    """Who has signed a request; `Unauthenticated` unless the server knows the signer."""
    return verify(request, claim_of(request, ring, now), body, ring)


def claim_of(request: HttpRequest, ring: KeyRing, now: datetime) -> SignatureClaim:
    """What a request claims, as far as that can be true: of a key that is known, of this time, over headers that are
    there. It takes no body, so a stranger's is not read; whether the signature is right, `verify` says."""
    claim = _claim(request)
    time = _time(request)
    if abs(now - time) > SKEW or claim.date != time.strftime("%Y%m%d"):
        raise Unauthenticated("the signature is of another time: is this machine's clock right?")
    if any(name not in request.headers for name in claim.signed):
        raise Unauthenticated("the signature covers a header that is not there")
    if ring.find(claim.key) is None:
        raise Unauthenticated(MISMATCH)
    return claim


def verify(request: HttpRequest, claim: SignatureClaim, body: bytes, ring: KeyRing) -> Caller:
    """Who has signed a request with this body. The key is looked up once more: while the body came, it may have been
    revoked."""
    key = ring.find(claim.key)
    if key is None:
        raise Unauthenticated(MISMATCH)
    expected = signature(key.secret, claim, _time(request), canonical(request, claim.signed, body))
    if not hmac.compare_digest(expected, claim.signature):
        raise Unauthenticated(MISMATCH)
    return ring.caller(key)


def _claim(request: HttpRequest) -> SignatureClaim:
    found = _AUTHORIZATION.fullmatch(request.headers.get("authorization", ""))
    if found is None:
        raise Unauthenticated("the header Authorization is not a signature of AWS Signature Version 4")
    key, date, region, service, signed, given = found.groups()
    claim = SignatureClaim(key, date, region, service, signed.split(";"), given)
    if service != SERVICE:
        raise Unauthenticated(f"the request is signed for {service}, not for {SERVICE}")
    # Whatever says what is asked must be signed: else a read that was overheard could be sent again as a deletion.
    meant = {name for name in request.headers if name.startswith("x-amz-")} | {"host", "x-amz-date"}
    if meant - set(claim.signed) or sorted(set(claim.signed)) != claim.signed:
        raise Unauthenticated("the signature must cover the header host and all x-amz- headers, each once and in order")
    return claim


def _time(request: HttpRequest) -> datetime:
    try:
        return datetime.strptime(request.headers.get("x-amz-date", ""), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise Unauthenticated("the header x-amz-date is missing or no time") from error


def canonical(request: HttpRequest, signed: list[str], body: bytes) -> str:
    """The request as it is signed: all that could change its meaning, in one form."""
    headers = "".join(f"{name}:{_SPACES.sub(' ', request.headers[name].strip())}\n" for name in signed)
    path = quote(request.raw_path.decode("latin-1") or "/", safe="/~")
    digest = hashlib.sha256(body).hexdigest()
    return "\n".join((request.method, path, _query(request.raw_query), headers, ";".join(signed), digest))


def _query(raw: bytes) -> str:
    """The query's fields in order. They are encoded already; how, the client has decided before it signed."""
    if not raw:
        return ""
    pairs = [field.partition("=") for field in raw.decode("latin-1").split("&")]
    return "&".join(sorted(f"{name}={value}" for name, _, value in pairs))


def signature(secret: str, claim: SignatureClaim, time: datetime, canonical_request: str) -> str:
    """The signature that a holder of the secret would give."""
    digest = hashlib.sha256(canonical_request.encode("latin-1")).hexdigest()
    text = "\n".join((ALGORITHM, time.strftime("%Y%m%dT%H%M%SZ"), claim.scope, digest))
    key = f"AWS4{secret}".encode()
    for part in (claim.date, claim.region, claim.service, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
