"""The server killed with kill -9 under boto3's clients: what was answered stays true."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from processes import eventually
from sqsserver import PATIENT, SqsServer

MESSAGES = 150
PRODUCERS = 2
CONSUMERS = 3
KILLS = 4
VISIBILITY_S = 6
CERTAIN_S = 3.0
"""A delete that was answered so soon after the receive was made under the lease, however slow the machine is."""


class Record:
    """What clients were told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.sent: dict[str, str] = {}
        self.received: set[str] = set()
        self.deleted: set[str] = set()
        self.came_back: set[str] = set()
        self.stop = threading.Event()


def persist(call: Any, record: Record) -> Any:
    """Call until it is answered; None if the test is over first."""
    while not record.stop.is_set():
        try:
            return call()
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                raise
        except BotoCoreError:
            time.sleep(0.02)
    return None


def produce(server: SqsServer, url: str, numbers: range, record: Record) -> None:
    sqs = server.client(config=PATIENT)
    for number in numbers:
        sent = persist(lambda number=number: sqs.send_message(QueueUrl=url, MessageBody=str(number)), record)
        if sent is not None:
            with record.lock:
                record.sent[str(number)] = sent.get("MessageId", "")  # "": cut off behind its head by a kill


def consume(server: SqsServer, url: str, record: Record) -> None:
    sqs = server.client(config=PATIENT)
    while not record.stop.is_set():
        with record.lock:
            gone = set(record.deleted)
        began = time.monotonic()
        options = {"MaxNumberOfMessages": 5, "WaitTimeSeconds": 1, "VisibilityTimeout": VISIBILITY_S}
        answer = persist(lambda options=options: sqs.receive_message(QueueUrl=url, **options), record) or {}
        for message in answer.get("Messages", []):
            with record.lock:
                record.received.add(message["Body"])
                if message["MessageId"] in gone:
                    record.came_back.add(message["MessageId"])
            try:
                handle = message["ReceiptHandle"]
                done = persist(lambda handle=handle: sqs.delete_message(QueueUrl=url, ReceiptHandle=handle), record)
            except ClientError:
                continue  # the visibility ended while the server was away: it comes again
            if done is not None and time.monotonic() - began < CERTAIN_S:
                with record.lock:
                    record.deleted.add(message["MessageId"])


def test_nothing_answered_is_lost_and_nothing_deleted_comes_back(tmp_path: Path) -> None:
    server = SqsServer(tmp_path / "store")
    record = Record()
    try:
        server.start()
        url = server.client(config=PATIENT).create_queue(QueueName="orders")["QueueUrl"]
        each = MESSAGES // PRODUCERS
        threads = [
            threading.Thread(target=produce, args=(server, url, range(first, first + each), record), daemon=True)
            for first in range(0, MESSAGES, each)
        ]
        threads += [threading.Thread(target=consume, args=(server, url, record), daemon=True) for _ in range(CONSUMERS)]
        for thread in threads:
            thread.start()
        for number in range(1, KILLS + 1):
            eventually(lambda number=number: len(record.sent) >= number * MESSAGES // (KILLS + 2), seconds=120)
            server.kill()
            server.start()
        everything = {str(number) for number in range(MESSAGES)}
        eventually(lambda: set(record.sent) == everything, seconds=120, what="every message sent")
        eventually(lambda: record.received >= everything, seconds=120, what="every message received")
        sqs = server.client(config=PATIENT)

        def left() -> int:
            attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
            return sum(int(attributes[name]) for name in names)

        eventually(lambda: not left(), seconds=120, what="an empty queue")
    finally:
        record.stop.set()
        server.stop()
    for thread in threads:
        thread.join(60)
    assert record.deleted, "no delete was certain: this test has said nothing"
    assert not record.came_back


def test_what_an_sdk_repeats_over_kills_is_sent_once(tmp_path: Path) -> None:
    server = SqsServer(tmp_path / "store")
    stubborn = Config(retries={"mode": "standard", "max_attempts": 30}, read_timeout=60)
    sent: list[str] = []
    failures: list[BaseException] = []

    def produce_with_retries(url: str, numbers: range) -> None:
        sqs = server.client(config=stubborn)
        try:
            for number in numbers:
                # Of an answer that a kill cut off behind its head botocore makes an empty one: it was sent all the same
                answer = sqs.send_message(QueueUrl=url, MessageBody=str(number))
                sent.append(answer.get("MessageId", f"cut off: {number}"))
        except (BotoCoreError, ClientError) as error:
            failures.append(error)

    try:
        server.start()
        attributes = {"DetentDedupRetries": "true"}
        url = server.client().create_queue(QueueName="orders", Attributes=attributes)["QueueUrl"]
        threads = [
            threading.Thread(target=produce_with_retries, args=(url, range(first, first + 100)), daemon=True)
            for first in (0, 100, 200)
        ]
        for thread in threads:
            thread.start()
        for number in range(1, KILLS + 1):
            eventually(lambda number=number: failures or len(sent) >= number * 50, seconds=120)
            server.kill()
            server.start()
        for thread in threads:
            thread.join(120)
        assert not failures
        assert len(set(sent)) == 300
        found = server.client().get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        assert found["ApproximateNumberOfMessages"] == "300"
    finally:
        server.stop()


def test_a_move_task_that_dies_leaves_every_message_in_one_queue(tmp_path: Path) -> None:
    server = SqsServer(tmp_path / "store")
    count = 300
    try:
        server.start()
        sqs = server.client(config=PATIENT)
        urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for name in ("source", "destination")]
        for first in range(0, count, 10):
            entries = [{"Id": str(number), "MessageBody": str(number)} for number in range(first, first + 10)]
            sqs.send_message_batch(QueueUrl=urls[0], Entries=entries)

        def attributes(url: str) -> dict[str, str]:
            found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            return found

        def held(url: str) -> int:
            found = attributes(url)
            return sum(int(found[f"ApproximateNumberOfMessages{name}"]) for name in ("", "NotVisible", "Delayed"))

        arns = [attributes(url)["QueueArn"] for url in urls]
        for _ in range(3):
            before = held(urls[1])
            sqs.start_message_move_task(SourceArn=arns[0], DestinationArn=arns[1], MaxNumberOfMessagesPerSecond=20)
            eventually(lambda before=before: held(urls[1]) > before, what="messages moved")
            server.kill()
            server.start()
            assert held(urls[0]) + held(urls[1]) == count
    finally:
        server.stop()
