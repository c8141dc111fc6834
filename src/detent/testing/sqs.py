"""A server of SQS for a test: a real one, over a store in memory, in a thread of the test's process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from detent.extras import install_command
from detent.runtime.loop import loop_in_thread
from detent.testing.running import PATIENCE_S

if TYPE_CHECKING:
    from detent.server.serving import Serving

REGION: Final = "us-east-1"


class SqsEndpoint:
    """Where the server listens, and what a client needs to know of it."""

    def __init__(self, url: str) -> None:
        self.url = url

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that send clients of SQS here. They need not be changed: boto3, the `aws` command line and the
        other SDKs read them."""
        return {
            "AWS_ENDPOINT_URL_SQS": self.url,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, **options: Any) -> Any:
        """A client of boto3."""
        try:
            import boto3
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"a client of SQS needs boto3: {install_command('sqs')}") from error
        keys = {"region_name": REGION, "aws_access_key_id": "any", "aws_secret_access_key": "any"}
        return boto3.client("sqs", endpoint_url=self.url, **{**keys, **options})


@contextmanager
def serving_sqs(serving: Serving | None = None) -> Iterator[SqsEndpoint]:
    """A server until the end of the block: over a store in memory, on a free port, or as told."""
    import asyncio

    from detent.server.serving import Serving
    from detent.server.turns import listening

    with loop_in_thread() as loop:
        server = listening(serving or Serving(port=0))
        address, _ = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(PATIENCE_S)
        try:
            yield SqsEndpoint(address)
        finally:
            asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(PATIENCE_S)
