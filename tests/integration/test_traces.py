"""One trace from a publish to its effect, over two processes: what each part does is a child of what it handles."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import detent
from busworld import Books, Invoiced, OrderPlaced, app
from detent import spans
from detent.bus import Context
from detent.consumer import Consumer
from detent.processor import Graph
from detent.queue import AsyncWorker, Worker
from detent.server.api import Api
from detent.server.sqs import SqsPart
from httpserver import serve
from processes import Io, Processes, eventually
from smallgraphs import ran

TRACE = "0af7651916cd43dd8448eb211c80319c"
ASKED = f"00-{TRACE}-b7ad6b7169203331-01"

Span = dict[str, Any]


def by_name(found: list[Span], name: str) -> Span:
    (one,) = [span for span in found if span["name"] == name]
    return one


def is_child(span: Span, of: Span) -> bool:
    return (span["trace"], span["parent"]) == (of["trace"], of["id"])


# -- the two processes --------------------------------------------------------------------------------------------


def producer(io: Io, url: str, part: str) -> None:
    """Sends the first message of a chain."""
    from spanrecorder import recorded

    spans_so_far = recorded()
    with detent.open(url) as store:
        if part in {"queue", "failing", "async", "with"}:
            store.queue("orders").create(exist_ok=True, max_attempts=1)
            store.queue("mails").create(exist_ok=True)
            store.queue("orders").publish(b"1")
        elif part == "outbox":
            store.queue("billing").create()
            with app(store, "shop") as shop:
                shop.send(OrderPlaced(1), to="billing")
        else:
            store.journal("events").append(b'{"n": 1}')
        io.say("sent", spans=spans_so_far())
        io.hear()


def worker(io: Io, url: str, part: str) -> None:
    """Handles it, and says what its spans were and what it has written."""
    from spanrecorder import recorded

    spans_so_far = recorded()
    with detent.open(url) as store:
        written = {"queue": _work, "failing": _fail, "async": _work_async, "with": _use, "consumer": _consume,
                   "processor": _process, "batch": _process_batch, "outbox": _bus}[part](store)  # fmt: skip
        io.say("handled", spans=spans_so_far(), written=written)
        io.hear()


def _work(store: detent.Store) -> dict[str, Any]:
    def handle(message: detent.Delivery) -> None:
        with message:  # as one would without a worker: it is the same span
            store.queue("mails").publish(b"mail")
            store.journal("done").append(b"done")
            with store.transaction() as transaction:
                transaction.publish(b"together", queue="mails")
                transaction.append("done", b"together")
        one.stop()

    one = Worker(store.queue("orders"), handle)
    one.run()
    mails = [message.headers[spans.PARENT] for message in store.queue("mails").claim(2)]
    return {"mails": mails, "done": [message.headers[spans.PARENT] for message in store.journal("done").read()]}


def _fail(store: detent.Store) -> dict[str, Any]:
    def handle(message: detent.Delivery) -> None:
        one.stop()
        raise ValueError("no")

    one = Worker(store.queue("orders"), handle)
    one.run()
    return {}


def _work_async(store: detent.Store) -> dict[str, Any]:
    async def main() -> None:
        async with detent.open_async(store.url) as own:

            async def handle(message: detent.AsyncDelivery) -> None:
                await own.journal("done").append_many([b"1", b"2"])
                one.stop()

            one = AsyncWorker(own.queue("orders"), handle)
            await one.run()

    asyncio.run(main())
    return {"done": [message.headers[spans.PARENT] for message in store.journal("done").read()]}


def _use(store: detent.Store) -> dict[str, Any]:
    for message in store.queue("orders").claim(1):
        with message:
            store.queue("mails").publish_many([b"1", b"2"])
    return {"mails": [message.headers[spans.PARENT] for message in store.queue("mails").claim(2)]}


def _consume(store: detent.Store) -> dict[str, Any]:
    totals = Consumer("totals", store=store.url, read="events")

    @totals.consume
    def count(message: Any, state: Any, publish: Any) -> None:
        publish("totals", message.body)

    totals.run(once=True)
    return {"totals": [message.headers[spans.PARENT] for message in store.journal("totals").read()]}


def _process(store: detent.Store) -> dict[str, Any]:
    graph = Graph("g")
    graph.source("events")

    @graph.stream(input="events", output="doubled")
    def double(one: Any) -> Any:
        return {"n": one["n"] * 2}

    ran(graph, store)
    return {"doubled": [message.headers[spans.PARENT] for message in store.journal("doubled").read()]}


def _process_batch(store: detent.Store) -> dict[str, Any]:
    store.journal("events").append(b'{"n": 2}')
    graph = Graph("g")
    graph.source("events")

    @graph.stream(input="events", output="sums", batch=2, whole=True)
    def add(both: list[Any]) -> Any:
        return {"n": sum(one["n"] for one in both)}

    ran(graph, store)
    return {"sums": [message.headers[spans.PARENT] for message in store.journal("sums").read()]}


def _bus(store: detent.Store) -> dict[str, Any]:
    books = Books(f"sqlite:///{Path(store.url.removeprefix('file:')) / 'books.db'}")
    packed: list[str] = []
    with app(store, "billing", **books.options()) as billing, app(store, "packing") as packing:
        billing.handler(OrderPlaced)(lambda order: billing.send(Invoiced(order.number), to="packing"))

        def pack(invoiced: Invoiced, context: Context) -> None:
            packed.append(context.headers[spans.PARENT])

        packing.handler(Invoiced)(pack)
        packing.start()
        billing.start()
        eventually(lambda: packed)
    books.close()
    return {"packed": packed}


@pytest.fixture
def chain(tmp_path: Path, processes: Processes, request: pytest.FixtureRequest) -> Any:
    """The spans of both processes, and what the second one has written."""
    url, part = f"file:{tmp_path / 'store'}", request.param
    first = processes.start(producer, url=url, part=part)
    sent = first.expect("sent")["spans"]
    second = processes.start(worker, url=url, part=part)
    found = second.expect("handled")
    return sent, found["spans"], found["written"]


def parent_of(span: Span) -> str:
    return f"00-{span['trace']}-{span['id']}-{span['flags']}"


def over(*parts: str) -> Any:
    return pytest.mark.parametrize("chain", parts, indirect=True)


# -- the tests ----------------------------------------------------------------------------------------------------


@over("queue")
def test_worker_goes_on_with_the_trace_of_its_message_and_so_does_what_it_sends(chain: Any) -> None:
    sent, handled, written = chain
    publish, process = by_name(sent, "publish orders"), by_name(handled, "process orders")
    assert (publish["kind"], process["kind"]) == ("PRODUCER", "CONSUMER")
    assert is_child(process, publish)
    mail, done = by_name(handled, "publish mails"), by_name(handled, "append done")
    assert is_child(mail, process)
    assert is_child(done, process)
    assert written["mails"] == [parent_of(mail), parent_of(process)]  # a transaction has no span of its own
    assert written["done"] == [parent_of(done), parent_of(process)]


@over("queue")
def test_spans_follow_the_conventions_for_messaging(chain: Any) -> None:
    sent, handled, _ = chain
    assert by_name(sent, "publish orders")["about"] == {
        "messaging.system": "detent",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
    }
    assert by_name(handled, "process orders")["about"] == {
        "messaging.system": "detent",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.message.id": "0",
    }


@over("failing")
def test_failed_attempt_is_an_error_of_its_span(chain: Any) -> None:
    _, handled, _ = chain
    process = by_name(handled, "process orders")
    assert (process["status"], process["about"]["error.type"]) == ("ERROR", "ValueError")


@over("async")
def test_worker_of_asyncio_goes_on_with_the_trace(chain: Any) -> None:
    sent, handled, written = chain
    process, append = by_name(handled, "process orders"), by_name(handled, "append done")
    assert is_child(process, by_name(sent, "publish orders"))
    assert is_child(append, process)
    assert append["about"]["messaging.batch.message_count"] == 2
    assert written["done"] == [parent_of(append)] * 2


@over("with")
def test_block_of_a_claimed_message_is_the_span_of_handling_it(chain: Any) -> None:
    sent, handled, written = chain
    process, publish = by_name(handled, "process orders"), by_name(handled, "publish mails")
    assert is_child(process, by_name(sent, "publish orders"))
    assert is_child(publish, process)
    assert written["mails"] == [parent_of(publish)] * 2


@over("consumer")
def test_consumer_goes_on_with_the_trace_of_each_message(chain: Any) -> None:
    sent, handled, written = chain
    process = by_name(handled, "process events")
    assert is_child(process, by_name(sent, "append events"))
    assert process["about"]["messaging.consumer.group.name"] == "totals"
    assert process["about"]["messaging.message.id"] == "events#0"
    assert written["totals"] == [parent_of(process)]


@over("processor")
def test_processor_goes_on_with_the_trace_of_its_input(chain: Any) -> None:
    sent, handled, written = chain
    process = by_name(handled, "process events")
    assert is_child(process, by_name(sent, "append events"))
    assert process["about"]["messaging.consumer.group.name"] == "g/double"
    assert written["doubled"] == [parent_of(process)]


@over("batch")
def test_batch_is_linked_with_the_traces_of_its_messages(chain: Any) -> None:
    sent, handled, written = chain
    first, second = by_name(sent, "append events"), by_name(handled, "append events")
    process = by_name(handled, "process events")
    assert process["parent"] is None
    assert set(process["links"]) == {first["id"], second["id"]}
    assert process["about"]["messaging.batch.message_count"] == 2
    assert written["sums"] == [parent_of(process)]


@over("outbox")
def test_message_of_an_outbox_goes_on_with_the_trace_of_its_handler(chain: Any) -> None:
    sent, handled, written = chain
    send, process = by_name(sent, "send billing"), by_name(handled, "process billing")
    assert is_child(process, send)
    assert process["about"]["messaging.consumer.group.name"] == "billing"
    created = by_name(handled, "send packing")
    assert is_child(created, process)
    assert created["about"]["messaging.operation.type"] == "create"
    (forwarded,) = [span for span in handled if span["name"].startswith("forward ")]
    assert is_child(forwarded, created)
    assert written["packed"] == [parent_of(created)]
    assert is_child(by_name(handled, "process packing"), created)


def served(io: Io) -> None:
    """A server with spans answers a request that has a trace."""
    from detent.server.app import ServerApplication
    from detent.server.tracing import find_tracing
    from spanrecorder import recorded

    spans_so_far = recorded()

    async def main() -> None:
        async with detent.open_async("memory:") as store:
            await store.queue("q").create()
            app = ServerApplication([Api(store)], tracing=find_tracing())
            headers = [(b"content-type", b"application/json"), (b"host", b"x"), (b"traceparent", ASKED.encode())]
            scope = {"type": "http", "method": "POST", "path": "/v1/queues/q/messages", "raw_path": b"", "client": None,
                     "query_string": b"", "headers": headers}  # fmt: skip

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b'{"body": "a"}'}

            async def send(message: dict[str, Any]) -> None:
                assert message.get("status", 201) < 300

            await app(scope, receive, send)
            (message,) = await store.queue("q").claim()
            io.say("done", spans=spans_so_far(), header=message.headers[spans.PARENT])

    asyncio.run(main())


def test_message_of_a_request_goes_on_with_the_span_of_the_server(processes: Processes) -> None:
    found = processes.start(served).expect("done")
    (server,) = [span for span in found["spans"] if span["kind"] == "SERVER"]
    (publish,) = [span for span in found["spans"] if span["kind"] == "PRODUCER"]
    assert (server["trace"], server["parent"]) == (TRACE, ASKED.split("-")[2])
    assert is_child(publish, server)
    assert found["header"] == parent_of(publish)


def batches(io: Io, folder: str) -> None:
    """A batch of Spark's in `once`, without Java, and a batch of ingest, whose two announcements have traces."""
    import pyarrow as pa
    from pyspark.sql.types import LongType, StructField, StructType

    from detent.spark import once, opened, to_journal
    from ingestfakes import World
    from spanrecorder import recorded
    from sparkframes import Frame

    spans_so_far = recorded()
    with detent.open(f"file:{folder}/store") as store:
        rows = [pa.RecordBatch.from_pydict({"id": [1, 2]})]
        batch: Any = Frame(StructType([StructField("id", LongType())]), rows, query="query", run="run")
        once(store, "paid", to_journal("paid"))(batch, 7)
        opened.close_all()
    world = World(Path(folder))
    world.bucket.put("a", "a")
    world.bucket.put("b", "b")
    real = world.queue.receive

    def receive(*limits: Any) -> list[Any]:
        found = real(*limits)
        return [replace(one, headers={spans.PARENT: ASKED.replace("b7", f"b{at}")}) for at, one in enumerate(found)]

    world.queue.receive = receive  # type: ignore[method-assign]
    world.tell("a", "b")
    world.tell("b")
    world.pipeline().work()
    world.engine.dispose()
    io.say("done", spans=spans_so_far())


def test_batches_of_spark_and_of_ingest_have_a_span(tmp_path: Path, processes: Processes) -> None:
    found = processes.start(batches, folder=str(tmp_path), with_spark=True).expect("done")["spans"]
    batch = by_name(found, "batch paid")
    assert (batch["kind"], batch["about"]["detent.batch"]) == ("CONSUMER", 7)
    ingest = by_name(found, "process landing")
    assert set(ingest["links"]) == {ASKED.replace("b7", f"b{at}").split("-")[2] for at in range(2)}
    assert len(ingest["links"]) == 2
    assert ingest["about"]["messaging.batch.message_count"] == 2


def test_server_without_spans_hands_the_trace_of_a_request_to_its_messages() -> None:
    with serve("memory:", lambda store: [Api(store)]) as server:
        client = server.client
        client.headers["traceparent"] = ASKED
        client.put("/v1/queues/q", json={}).raise_for_status()
        client.post("/v1/queues/q/messages", json={"body": "a"}).raise_for_status()
        own = {"traceparent": ASKED.replace("b7", "00")}
        client.post("/v1/queues/q/messages", json={"body": "b", "headers": own}).raise_for_status()
        client.post("/v1/journals/j/messages", json=[{"body": "a"}, {"body": "b"}]).raise_for_status()
        client.headers["traceparent"] = "nonsense"
        client.post("/v1/queues/q/messages", json={"body": "c"}).raise_for_status()
        claimed = client.post("/v1/queues/q/claim", json={"count": 3}).json()["messages"]
        read = client.get("/v1/journals/j/messages").json()["messages"]
    assert [one["headers"].get("traceparent") for one in claimed] == [ASKED, own["traceparent"], None]
    assert [one["headers"]["traceparent"] for one in read] == [ASKED, ASKED]


def test_messages_carry_nothing_where_there_are_no_spans() -> None:
    with detent.open("memory:") as store:
        store.queue("q").create()
        store.queue("q").publish(b"1")
        store.journal("j").append(b"1")
        (message,) = store.queue("q").claim()
        assert spans.PARENT not in message.headers
        assert store.journal("j").read().__next__().headers == {}


def test_sqs_endpoint_hands_the_trace_of_a_request_to_its_messages() -> None:
    with serve("memory:", lambda store: [SqsPart(store)]) as server:

        def ask(verb: str, **fields: Any) -> Any:
            headers = {"content-type": "application/x-amz-json-1.0", "x-amz-target": f"AmazonSQS.{verb}"}
            answer = server.client.post("/", json=fields, headers={**headers, "traceparent": ASKED})
            return answer.raise_for_status().json()

        queue = ask("CreateQueue", QueueName="q")["QueueUrl"]
        ask("SendMessage", QueueUrl=queue, MessageBody="a")
        own = {"traceparent": {"DataType": "String", "StringValue": ASKED.replace("b7", "00")}}
        ask("SendMessage", QueueUrl=queue, MessageBody="b", MessageAttributes=own)
        found = ask("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    by_body = {one["Body"]: one["MessageAttributes"]["traceparent"]["StringValue"] for one in found["Messages"]}
    assert by_body == {"a": ASKED, "b": own["traceparent"]["StringValue"]}


def no_spans(io: Io, url: str) -> None:
    """Publishes and handles without a word of OpenTelemetry."""
    import sys

    with detent.open(url) as store:
        store.queue("q").create()
        store.queue("q").publish(b"1")
        for message in store.queue("q").claim():
            with message:
                store.journal("j").append(b"1")
    io.say("done", imported=sorted(name for name in sys.modules if name.startswith("opentelemetry")))


def test_opentelemetry_is_not_imported_where_the_program_does_not(tmp_path: Path, processes: Processes) -> None:
    child = processes.start(no_spans, url=f"file:{tmp_path / 'store'}")
    assert child.expect("done")["imported"] == []
