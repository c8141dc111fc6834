"""Programs that know nothing of Detent, pointed at it by AWS_ENDPOINT_URL_SQS: the command line, Celery, a consumer."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from processes import PATIENCE_S, eventually
from sqsserver import PATIENT, SqsServer, running


def needs(module: str, package: str) -> pytest.MarkDecorator:
    """Skips a test where a package is missing; the extra `dev` has them all."""
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{package} is not installed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SqsServer]:
    with running(tmp_path / "store") as started:
        yield started


def empty(sqs: Any, url: str) -> bool:
    """Whether nothing is in a queue, in any state."""
    attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    names = ("", "NotVisible", "Delayed")
    return all(attributes[f"ApproximateNumberOfMessages{name}"] == "0" for name in names)


@needs("awscli", "awscli")
def test_the_aws_command_line_works_unchanged(server: SqsServer) -> None:
    def aws(*arguments: str) -> Any:
        # Version 1 of the command line has a table of SQS's hosts that it prefers to AWS_ENDPOINT_URL_SQS.
        where = ["--endpoint-url", server.url, "--output", "json"]
        command = [sys.executable, "-m", "awscli", "sqs", *arguments, *where]
        done = subprocess.run(
            command, env=server.environment(), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else {}

    url = aws("create-queue", "--queue-name", "orders", "--attributes", "VisibilityTimeout=60")["QueueUrl"]
    assert aws("list-queues")["QueueUrls"] == [url]
    attribute = '{"tier": {"DataType": "String", "StringValue": "gold"}}'
    sent = aws(
        "send-message", "--queue-url", url, "--message-body", "from the shell", "--message-attributes", attribute
    )
    received = aws(
        "receive-message", "--queue-url", url, "--attribute-names", "All", "--message-attribute-names", "All"
    )
    (message,) = received["Messages"]
    assert message["MessageId"] == sent["MessageId"]
    assert message["Body"] == "from the shell"
    assert message["MessageAttributes"] == json.loads(attribute)
    aws(
        "change-message-visibility",
        "--queue-url",
        url,
        "--receipt-handle",
        message["ReceiptHandle"],
        "--visibility-timeout",
        "90",
    )
    aws("delete-message", "--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    attributes = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
    assert attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
    aws("purge-queue", "--queue-url", url)
    aws("delete-queue", "--queue-url", url)
    assert aws("list-queues") == {}


CELERY_TASKS = """
import os, pathlib
from celery import Celery

app = Celery("tasks", broker="sqs://")
app.conf.update(
    task_default_queue="celery-tasks",
    broker_transport_options={"region": "us-east-1", "wait_time_seconds": 1, "polling_interval": 0.1},
    task_acks_late=True,
    worker_prefetch_multiplier=1,
)
done = pathlib.Path(os.environ["DONE"])

@app.task
def add(first, second):
    with (done / f"{first}-{second}").open("a") as out:
        out.write(f"{first + second}\\n")

@app.task(bind=True, max_retries=3)
def fail_once(self, number):
    if self.request.retries == 0:
        raise self.retry(countdown=1)
    (done / f"retried-{number}").write_text(str(self.request.retries))
"""

CELERY_SEND = """
import tasks
for number in range(20):
    tasks.add.delay(number, 1)
tasks.fail_once.delay(1)
tasks.add.apply_async((100, 1), countdown=1)
"""


@needs("celery", "celery[sqs]")
def test_celery_runs_real_tasks_over_the_broker(server: SqsServer, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(CELERY_TASKS)
    done = tmp_path / "done"
    done.mkdir()
    environment = {**server.environment(), "DONE": str(done), "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", CELERY_SEND], env=environment, cwd=tmp_path, timeout=120, check=True)
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "prefork", "-c", "2", "-l", "warning"]
    wanted = {*(f"{number}-1" for number in range(20)), "100-1", "retried-1"}
    log = tmp_path / "worker.log"
    with (
        log.open("w") as out,
        subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=out, stderr=out) as worker,
    ):
        try:
            eventually(lambda: wanted <= {path.name for path in done.iterdir()}, seconds=120, what="every task")
            sqs = server.client(config=PATIENT)
            url = sqs.get_queue_url(QueueName="celery-tasks")["QueueUrl"]
            eventually(lambda: empty(sqs, url), what="an empty queue")
        finally:
            worker.terminate()
            worker.wait(PATIENCE_S)
    counted = {path.name: path.read_text().splitlines() for path in done.iterdir()}
    assert counted == {**{f"{number}-1": [str(number + 1)] for number in (*range(20), 100)}, "retried-1": ["1"]}


@needs("aws_sqs_consumer", "aws-sqs-consumer")
@pytest.mark.parametrize("batch_size", [1, 10])
def test_a_consumer_library_handles_every_message_once(server: SqsServer, batch_size: int) -> None:
    from aws_sqs_consumer import Consumer

    sqs = server.client(config=PATIENT)
    url = sqs.create_queue(QueueName="consumed")["QueueUrl"]
    for number in range(30):
        attribute = {"number": {"DataType": "Number", "StringValue": str(number)}}
        sqs.send_message(QueueUrl=url, MessageBody=str(number), MessageAttributes=attribute)
    seen: list[tuple[str, str]] = []

    class Counting(Consumer):  # type: ignore[misc]
        def handle_message(self, message: Any) -> None:
            seen.append((message.Body, message.MessageAttributes["number"].StringValue))

        def handle_message_batch(self, messages: list[Any]) -> None:
            for message in messages:
                self.handle_message(message)

    consumer = Counting(
        queue_url=url,
        sqs_client=server.client(config=PATIENT),
        region="us-east-1",
        attribute_names=["All"],
        message_attribute_names=["All"],
        batch_size=batch_size,
        wait_time_seconds=1,
    )
    thread = threading.Thread(target=consumer.start, daemon=True)
    thread.start()
    eventually(lambda: len(seen) >= 30 and empty(sqs, url))
    consumer.stop()
    thread.join(PATIENCE_S)
    assert sorted(seen, key=lambda pair: int(pair[0])) == [(str(number), str(number)) for number in range(30)]


# -- the SDK for JavaScript -----------------------------------------------------------------------------------------

JS_SDK = "@aws-sdk/client-sqs@3.1169.0"

JS_PROGRAM = """
import * as sdk from "@aws-sdk/client-sqs";
const client = new sdk.SQSClient({ maxAttempts: 1 });
const call = (name, input) => client.send(new sdk[`${name}Command`](input));
const Attributes = { FifoQueue: "True", ContentBasedDeduplication: "TRUE" };
const { QueueUrl } = await call("CreateQueue", { QueueName: "orders.fifo", Attributes });
const Entries = ["1", "2", "1"].map((group, index) => ({
  Id: `${index}`, MessageBody: `body ${index}`, MessageGroupId: group,
  MessageAttributes: { kind: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255]) } },
}));
const sent = await call("SendMessageBatch", { QueueUrl, Entries });
const taken = await call("ReceiveMessage", {
  QueueUrl, MaxNumberOfMessages: 10, MessageAttributeNames: ["All"], MessageSystemAttributeNames: ["All"],
});
const first = taken.Messages[0];
await call("ChangeMessageVisibility", { QueueUrl, ReceiptHandle: first.ReceiptHandle, VisibilityTimeout: 0 });
const again = await call("ReceiveMessage", { QueueUrl });
for (const message of [...again.Messages, ...taken.Messages.slice(1)]) {
  await call("DeleteMessage", { QueueUrl, ReceiptHandle: message.ReceiptHandle });
}
const left = await call("GetQueueAttributes", { QueueUrl, AttributeNames: ["All"] });
const refused = await call("GetQueueUrl", { QueueName: "none" }).catch((error) => error);
console.log(JSON.stringify({
  sent: sent.Successful.length,
  bodies: taken.Messages.map((message) => message.Body),
  binary: [...first.MessageAttributes.kind.BinaryValue],
  again: again.Messages.map((message) => [message.Body, message.MessageId === first.MessageId]),
  left: left.Attributes.ApproximateNumberOfMessages,
  refused: [refused.name, refused instanceof sdk.QueueDoesNotExist, refused.message],
}));
"""


def js_sdk() -> Path:
    """The folder of the SDK, fetched once from npm into the user's cache; skips the test where that cannot be."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "detent-tests"
    place = cache / JS_SDK.replace("/", "-").replace("@", "")
    if not place.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fetched = Path(tempfile.mkdtemp(dir=cache))
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(fetched), JS_SDK]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        if done.returncode:
            shutil.rmtree(fetched)
            pytest.skip(f"npm does not give {JS_SDK}: {done.stderr.strip()[-300:]}")
        try:
            fetched.rename(place)  # whole, or not at all
        except OSError:
            shutil.rmtree(fetched)  # another process was first
    return place


def test_the_sdk_for_javascript_works_unchanged(server: SqsServer, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(js_sdk() / "node_modules")
    (tmp_path / "program.mjs").write_text(JS_PROGRAM)
    environment = {**server.environment(), "AWS_REGION": "us-east-1"}
    done = subprocess.run(
        ["node", "--preserve-symlinks", "--preserve-symlinks-main", "program.mjs"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "sent": 3,
        "bodies": ["body 0", "body 2", "body 1"],
        "binary": [0, 255],
        "again": [["body 0", True]],
        "left": "0",
        "refused": ["QueueDoesNotExist", True, "The specified queue does not exist."],
    }
