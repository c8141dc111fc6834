"""The fixture that gives tests a server of SQS, and what set-ups for other servers of SQS ask for."""

from __future__ import annotations

import threading

import boto3
import httpx
import pytest

from detent.errors import Unavailable
from detent.server.serving import Serving, listen
from detent.testing import SqsEndpoint, serving_sqs
from processes import eventually


def test_fixture_points_every_client_at_its_server(sqs_endpoint: SqsEndpoint) -> None:
    client = boto3.client("sqs")
    url = client.create_queue(QueueName="orders")["QueueUrl"]
    assert url.startswith(sqs_endpoint.url)
    client.send_message(QueueUrl=url, MessageBody="1")
    (message,) = sqs_endpoint.client().receive_message(QueueUrl=url)["Messages"]
    assert message["Body"] == "1"


def test_fixture_begins_without_queues_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with serving_sqs() as endpoint:
        assert "QueueUrls" not in endpoint.client().list_queues()
        endpoint.client().create_queue(QueueName="orders")
    eventually(lambda: threading.active_count() <= before, what="the end of its threads")
    with pytest.raises(httpx.ConnectError):
        httpx.get(endpoint.url)


def test_second_port_answers_the_same_and_health_is_told() -> None:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    listener.close()
    with serving_sqs(Serving(port=0, sqs_port=port)) as endpoint:
        endpoint.client().create_queue(QueueName="orders")
        other = SqsEndpoint(f"http://127.0.0.1:{port}")
        assert [url.rpartition("/")[2] for url in other.client().list_queues()["QueueUrls"]] == ["orders"]
        answer = httpx.get(f"{other.url}/_localstack/health")
        assert (answer.status_code, answer.json()["services"]["sqs"]) == (200, "running")


def test_second_port_that_is_taken_is_refused_and_the_first_one_is_free_again() -> None:
    taken = listen("127.0.0.1", 0)
    first = listen("127.0.0.1", 0)
    port = first.getsockname()[1]
    first.close()
    try:
        serving = Serving(port=port, sqs_port=taken.getsockname()[1])
        with pytest.raises(Unavailable, match="cannot be used"), serving_sqs(serving):
            raise AssertionError("it served")
    finally:
        taken.close()
    listen("127.0.0.1", port).close()
