"""An error shows what its reader may read: a key that may only publish learns nothing of what is stored from one."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

import detent
from detent import AsyncStore
from detent.engine import Operation, Request
from detent.errors import AlreadyEntered, Conflict
from detent.journal import operations as journals
from detent.ledger import operations as ledgers
from detent.queue import operations as queues
from detent.remote import wire
from detent.server.api import Api
from detent.server.app import ServerApplication
from detent.server.keys import KeyRing, new_key
from detent.server.native import NativePart
from detent.server.sqs.part import SqsPart

SECRET = "not-for-you"
LONG = "x" * 200


async def _filled(store: AsyncStore) -> None:
    await store.journal("j").set_registers({"r": SECRET})
    await store.commit([ledgers.EnterLedger("l", SECRET, 5, "")])
    await store.queue("orders").create()
    await store.queue(f"{SECRET}-queue").create(filter='"vip" in headers', group_header="vip")


def asked(grants: list[str], method: str, path: str, body: Any) -> httpx.Response:
    """One request to a server with something in it, by a key with these grants."""

    async def main() -> httpx.Response:
        async with detent.open_async("memory:") as store:
            await _filled(store)
            key = new_key("k", grants, now=datetime.now(UTC))
            app = ServerApplication([NativePart(store), Api(store), SqsPart(store)], keys=KeyRing([key]))
            headers = {"authorization": f"Bearer {key.id}.{key.secret}", "host": "localhost"}
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
                if isinstance(body, Operation):
                    session = bytes.fromhex((await client.post("/v1/sessions")).json()["session"])
                    data = wire.encode_requests([Request(session, 0, 0, [body])])
                    return await client.post(path, content=data, headers={"content-type": wire.TRANSACTION_TYPE})
                if path == "/":
                    target = {"x-amz-target": f"AmazonSQS.{method}", "content-type": "application/x-amz-json-1.0"}
                    return await client.post("/", content=json.dumps(body), headers=target)
                return await client.request(method, path, json=body)

    return asyncio.run(main())


TRANSACTION = "/v1/transaction"
NATIVE = "/v1/transactions"
_ATTRIBUTE = {"vip": {"DataType": "String", "StringValue": LONG}}
_SQS_QUEUE = "http://localhost/000000000000/orders"

CASES = {
    "a register, by a check": (
        ["publish:journal:j"], ["consume:journal:j"],
        "POST", TRANSACTION, {"operations": [{"op": "check_registers", "journal": "j", "expect": {"r": "guess"}}]},
    ),
    "a register, by setting another": (
        ["publish:journal:j"], ["consume:journal:j"],
        "PATCH", "/v1/journals/j/registers", {"set": {"s": "1"}, "expect": {"r": "guess"}},
    ),
    "a register, in what setting answers": (
        ["publish:journal:j"], ["consume:journal:j"], "PATCH", "/v1/journals/j/registers", {"set": {"s": "1"}},
    ),
    "a register, in the journal": (["publish:journal:j"], ["consume:journal:j"], "GET", "/v1/journals/j", None),
    "a register, in the list": (["publish:journal:j"], ["consume:journal:j"], "GET", "/v1/journals", None),
    "a register, natively": (
        ["publish:journal:j"], ["consume:journal:j"], "POST", NATIVE, journals.CheckRegisters("j", {"r": "guess"}),
    ),
    "the query of a ledger": (
        ["publish:ledger:l"], ["consume:ledger:l"],
        "POST", TRANSACTION, {"operations": [{"op": "enter_ledger", "ledger": "l", "batch": 6, "query": "mine"}]},
    ),
    "the query of a ledger, natively": (
        ["publish:ledger:l"], ["consume:ledger:l"], "POST", NATIVE, ledgers.EnterLedger("l", "mine", 6, ""),
    ),
    "another queue's name, by its group": (
        ["publish:queue:orders"], [f"consume:queue:{SECRET}-queue"],
        "POST", "/v1/queues/orders/messages", {"body": "x", "headers": {"vip": LONG}},
    ),
    "another queue's name, natively": (
        ["publish:queue:orders"], [f"consume:queue:{SECRET}-queue"],
        "POST", NATIVE, queues.Publish([b"x"], [{"queue": "orders", "vip": LONG}], to="orders"),
    ),
    "another queue's name, through SQS": (
        ["publish:queue:orders"], [f"consume:queue:{SECRET}-queue"],
        "SendMessage", "/", {"QueueUrl": _SQS_QUEUE, "MessageBody": "x", "MessageAttributes": _ATTRIBUTE},
    ),
    "another queue's name, through a batch of SQS": (
        ["publish:queue:orders"], [f"consume:queue:{SECRET}-queue"],
        "SendMessageBatch", "/",
        {"QueueUrl": _SQS_QUEUE, "Entries": [{"Id": "a", "MessageBody": "x", "MessageAttributes": _ATTRIBUTE}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_only_who_may_consume_is_told_what_is_stored(case: str) -> None:
    writes, reads, method, path, body = CASES[case]
    refused = asked(writes, method, path, body)
    assert refused.status_code != 403, refused.text
    assert SECRET not in refused.text
    assert SECRET in asked(writes + reads, method, path, body).text


def test_whoever_has_the_store_itself_is_told_all_of_it() -> None:
    with detent.open("memory:") as store:
        store.journal("j").set_registers({"r": SECRET})
        with pytest.raises(Conflict, match=SECRET):
            store.journal("j").set_registers({"s": "1"}, expect={"r": "guess"})


def test_a_batch_that_was_entered_is_answered_as_that() -> None:
    """Its number is what who enters it has to know, and is told to who may do no more than that."""
    data = asked(["publish:ledger:l"], "POST", NATIVE, ledgers.EnterLedger("l", SECRET, 4, "")).content
    (outcome,) = wire.decode_answers(data, 1)
    assert isinstance(outcome, AlreadyEntered)
    assert outcome.batch == 5
