"""A real SQS endpoint for tests: a server process of its own on a free port of the loopback address, over a store."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.session
import httpx
from botocore.config import Config
from botocore.loaders import Loader

from processes import PATIENCE_S
from servers import free_port, stop

KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"


class SqsServer:
    """A server process. It can be killed, and started again on the same port and store."""

    def __init__(self, store: Path, port: int | None = None) -> None:
        self.store = store
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [sys.executable, __file__, f"file:{self.store}", str(self.port)]
        self._process = subprocess.Popen(command, start_new_session=True)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert self._process.poll() is None, "the server ended by itself"
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"{self.url}/?Action=ListQueues", timeout=PATIENCE_S)
                return
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.02)

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it, at the end of a test."""
        if self._process is not None:
            stop(self._process)

    def client(self, **options: Any) -> Any:
        """A boto3 client of it."""
        return boto3.client("sqs", endpoint_url=self.url, **{**KEYS, **options})

    def older_client(self, folder: Path, **options: Any) -> Any:
        """A client of a botocore from before the JSON protocol, whose model is written into a folder."""
        model = older_model(Loader().load_service_model("sqs", "service-2"))
        (folder / "sqs" / "2012-11-05").mkdir(parents=True)
        (folder / "sqs" / "2012-11-05" / "service-2.json").write_text(json.dumps(model))
        session = botocore.session.Session()
        session.register_component("data_loader", Loader(extra_search_paths=[str(folder)]))
        return session.create_client("sqs", endpoint_url=self.url, **{**KEYS, **options})

    def environment(self) -> dict[str, str]:
        """What makes an unchanged client talk to it."""
        return {
            **os.environ,
            "AWS_ENDPOINT_URL_SQS": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


LISTS = {
    "AttributeNameList": "AttributeName",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "MessageList": "Message",
    "TagKeyList": "TagKey",
    "BatchResultErrorEntryList": "BatchResultErrorEntry",
    "ListMessageMoveTasksResultEntryList": "ListMessageMoveTasksResultEntry",
}
MAPS = {
    "QueueAttributeMap": ("Attribute", "Name"),
    "MessageSystemAttributeMap": ("Attribute", "Name"),
    "MessageBodyAttributeMap": ("MessageAttribute", "Name"),
    "MessageBodySystemAttributeMap": ("MessageSystemAttribute", "Name"),
    "TagMap": ("Tag", "Key"),
}


def older_model(model: dict[str, Any]) -> dict[str, Any]:
    """The service's model as it was before the JSON protocol: where names differ in forms and XML, it says so."""
    metadata = model["metadata"]
    metadata.update(protocol="query", protocols=["query"], xmlNamespace=NAMESPACE)
    for name in ("awsQueryCompatible", "jsonVersion", "targetPrefix"):
        metadata.pop(name, None)
    for name, operation in model["operations"].items():
        if "output" in operation:
            operation["output"]["resultWrapper"] = f"{name}Result"
    for name, shape in model["shapes"].items():
        if shape["type"] == "list":
            element = LISTS.get(name) or (name.removesuffix("List") if name.endswith("EntryList") else None)
            if element:
                shape["member"]["locationName"] = element
        elif shape["type"] == "map":
            shape["key"]["locationName"], shape["value"]["locationName"] = MAPS[name][1], "Value"
        elif shape["type"] == "structure":
            for member in shape["members"].values():
                if member["shape"] in MAPS:
                    member["locationName"] = MAPS[member["shape"]][0]
    return model


@contextlib.contextmanager
def running(store: Path) -> Iterator[SqsServer]:
    """A server that runs until the end of the block."""
    server = SqsServer(store)
    try:
        server.start()
        yield server
    finally:
        server.stop()


PATIENT = Config(retries={"max_attempts": 0}, read_timeout=60)
"""A client that tries once, and waits for the answer."""


async def serve(store_url: str, port: int) -> None:
    """The server process."""
    import uvicorn

    import detent
    from detent.server.app import ServerApplication
    from detent.server.sqs import SqsPart

    async with detent.open_async(store_url) as store:
        part = SqsPart(store)
        config = uvicorn.Config(ServerApplication([part]), host="127.0.0.1", port=port, log_level="warning")
        await uvicorn.Server(config).serve()
        await part.close()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
