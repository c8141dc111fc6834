"""Where an SQS is, by a URL of it: every form of host that AWS has, and those of others."""

from __future__ import annotations

import pytest

from detent.transports.sqs_client import new_client, place_of


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.eu-west-1.amazonaws.com", "eu-west-1"),
        ("sqs.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("sqs.eusc-de-east-1.amazonaws.eu", "eusc-de-east-1"),
        ("sqs.us-iso-east-1.c2s.ic.gov", "us-iso-east-1"),
        ("SQS.EU-WEST-1.AMAZONAWS.COM", "eu-west-1"),
        ("queue.amazonaws.com", "us-east-1"),
        ("us-west-2.queue.amazonaws.com", "us-west-2"),
        ("cn-north-1.queue.amazonaws.com.cn", "cn-north-1"),
    ],
)
def test_region_is_found_and_the_endpoint_is_left_to_the_client(host: str, region: str) -> None:
    assert place_of(f"https://{host}/123456789012/orders") == (region, None)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs-fips.us-east-2.amazonaws.com", "us-east-2"),
        ("sqs-fips.us-gov-east-1.api.aws", "us-gov-east-1"),
        ("sqs.eu-central-1.api.aws", "eu-central-1"),
        ("sqs.cn-northwest-1.api.amazonwebservices.com.cn", "cn-northwest-1"),
        ("vpce-0a1b-2c3d.sqs.us-east-1.vpce.amazonaws.com", "us-east-1"),
        ("vpce-0a1b-2c3d-us-east-1a.sqs.us-east-1.vpce.amazonaws.com", "us-east-1"),
    ],
)
def test_region_of_a_chosen_host_is_found_and_the_host_is_kept(host: str, region: str) -> None:
    assert place_of(f"https://{host}/123456789012/orders") == (region, f"https://{host}")


@pytest.mark.parametrize(
    "host", ["localhost:4566", "sqs.eu-west-1.localhost", "sqs.eu-west-1.amazonaws.com.example.com", "api.aws"]
)
def test_host_of_another_server_says_no_region(host: str) -> None:
    assert place_of(f"http://{host}/000000000000/orders") == (None, f"http://{host}")


def test_region_of_an_endpoint_goes_before_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    client = new_client(None, "https://sqs-fips.us-east-2.amazonaws.com")
    assert (client.meta.region_name, client.meta.endpoint_url) == (
        "us-east-2",
        "https://sqs-fips.us-east-2.amazonaws.com",
    )
    client.close()
