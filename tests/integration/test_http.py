"""A store behind a server: tokens, certificates, lines that break, answers that do not fit, and bodies from nowhere."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

import detent
from detent import Store
from detent.cli import run
from detent.errors import (
    Busy,
    Corrupt,
    Denied,
    Exists,
    Invalid,
    NotFound,
    OutcomeUnknown,
    ProducerTaken,
    StaleReceipt,
    Unavailable,
)
from detent.journal.fragments import new_fragment_id, object_name
from detent.journal.operations import AppendStamped
from detent.journal.reader import JournalReader
from detent.queue.operations import Publish
from detent.remote import contents, served_objects, wire
from detent.server.native import NativePart
from remoteserver import HttpServer, serving
from servers import free_port

FRAGMENT = object_name(new_fragment_id(1, b"0123456789"))
J = "/v1/native/journals"


class Faults:
    """A road between clients and the application on which things happen, as told."""

    def __init__(self) -> None:
        self.lost_answers = 0
        self.busy: list[int] = []
        self.busy_type = wire.PROBLEM_TYPE.encode()
        self.cuts: list[int] = []
        self.requests: list[str] = []
        self.while_lost: Callable[[], None] = lambda: None

    def __call__(self, app: Any) -> Any:
        async def serve(scope: Any, receive: Any, send: Any) -> None:
            self.requests.append(f"{scope['method']} {scope['path']}")
            if scope["path"] == "/v1/transactions" and self.busy:
                await self._refuse(self.busy.pop(), send)
            elif scope["method"] in {"POST", "PUT"} and self.lost_answers and scope["path"] != "/v1/sessions":
                self.lost_answers -= 1
                await app(scope, receive, self._nowhere)
                await asyncio.to_thread(self.while_lost)
                raise ConnectionResetError("as told")
            elif "committed" in scope["path"] and self.cuts:
                await app(scope, receive, self._cut(send, self.cuts.pop()))
            else:
                await app(scope, receive, send)

        return serve

    async def _refuse(self, status: int, send: Any) -> None:
        headers = [(b"retry-after", b"0"), (b"content-type", self.busy_type)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": wire.encode_problem(Busy("later"))[1]})

    @staticmethod
    async def _nowhere(message: Any) -> None:
        del message

    @staticmethod
    def _cut(send: Any, left: int) -> Any:
        async def cut(message: Any) -> None:
            nonlocal left
            body = message.get("body", b"")[:left]
            left -= len(body)
            await send({**message, "body": body} if "body" in message else message)
            if left <= 0:
                raise ConnectionResetError("as told")

        return cut


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def server(tmp_path: Path, faults: Faults) -> Iterator[HttpServer]:
    with serving(f"file:{tmp_path / 'store'}", middle=faults) as started:
        yield started


@pytest.fixture
def store(server: HttpServer) -> Iterator[Store]:
    with detent.open(server.url) as opened:
        yield opened


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[HttpServer]:
    with serving(f"file:{tmp_path / 'store'}", guarded=True) as started:
        yield started


# -- who may ------------------------------------------------------------------------------------------------------


class TestTokens:
    @pytest.mark.parametrize("token", [None, "wrong"])
    def test_without_a_token_that_the_server_knows_nothing_opens(
        self, guarded: HttpServer, monkeypatch: pytest.MonkeyPatch, token: str | None
    ) -> None:
        monkeypatch.delenv("DETENT_TOKEN", raising=False)
        if token is not None:
            monkeypatch.setenv("DETENT_TOKEN", token)
        for role in ("auto", "client", "reader"):
            with pytest.raises(Denied, match="DETENT_TOKEN"):
                detent.open(guarded.url, role=role)  # type: ignore[arg-type]

        async def scenario() -> None:
            with pytest.raises(Denied, match="DETENT_TOKEN"):
                await detent.open_async(guarded.url)

        asyncio.run(scenario())

    def test_a_token_allows_what_it_allows(self, guarded: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DETENT_TOKEN", "all")
        with detent.open(guarded.url) as store:
            store.queue("orders").create()
            store.queue("others").create()
        monkeypatch.setenv("DETENT_TOKEN", "orders")
        with detent.open(guarded.url) as store:
            orders = store.queue("orders")
            orders.publish_many([b"1", b"2"])
            one, two = orders.claim(2)
            one.ack()
            two.extend("1m")
            two.fail("no", final=True)
            assert [failed.body for failed in orders.failed()] == [b"2"]
            for call in (
                lambda: store.queue("others").publish(b"no"),
                lambda: store.queue("others").claim(),
                lambda: store.publish(b"no"),
                orders.delete,
                orders.purge,
                orders.redrive,
                store.queues,
                store.journals,
                store.size_bytes,
                lambda: store.message(0),
                lambda: store.journal("j").append(b"no"),
                lambda: store.journal("j").info(),
                lambda: store.journal("j").wait(0, timeout="1s"),
                lambda: store.queue("others").wait("1s"),
                lambda: store.journal("j").write_fragment(pa.table({"body": [b"no"]})),
                lambda: store.objects.get(FRAGMENT),
            ):
                with pytest.raises(Denied):
                    call()
        assert guarded.store is not None
        assert guarded.store.queue("orders").info().failed == 1
        assert guarded.store.queue("others").info().total_routed == 0

    def test_a_receipt_is_worth_nothing_to_whoever_may_not_consume(
        self, guarded: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert guarded.store is not None
        queue = guarded.store.queue("secret")
        queue.create()
        queue.publish(b"x")
        (message,) = queue.claim()
        monkeypatch.setenv("DETENT_TOKEN", "orders")
        with detent.open(guarded.url) as store:
            with pytest.raises(StaleReceipt):
                store.queue("orders").ack([message.receipt])
            with pytest.raises(StaleReceipt), store.transaction() as t:
                t.extend(message.receipt)
        message.ack()

    def test_an_address_in_the_headers_is_no_way_around(
        self, guarded: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The client library does not send such a thing; others may."""
        assert guarded.store is not None
        guarded.store.queue("orders").create(filter="true")
        guarded.store.queue("others").create()
        monkeypatch.setenv("DETENT_TOKEN", "orders")
        with detent.open(guarded.url) as store:
            with pytest.raises(Denied, match="others"):
                store.commit([Publish([b"x"], [{"queue": "others"}], to="orders")])
            store.commit([Publish([b"x"], [{"queue": "orders"}], to="orders")])
        assert guarded.store.queue("others").info().total_routed == 0

    def test_a_publisher_is_safe_from_others_who_may_publish_to_its_journal(
        self, guarded: HttpServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DETENT_TOKEN", "journals")
        with detent.open(guarded.url) as store, detent.open(guarded.url) as other:
            publisher = store.publisher()
            publisher.publish("j", [b"one"])
            publisher.publish_uncommitted("j", [b"two"])
            (intent,) = publisher.build_ack_intents()
            for flags in (0, 1, 2):
                stolen = AppendStamped("j", [b"x"], None, None, intent.producer, [intent.clock + 160], [flags])
                with pytest.raises(ProducerTaken):
                    other.commit([stolen])
            other.publisher().acknowledge([detent.AckIntent.from_bytes(intent.to_bytes())])
            assert [message.body for message in store.journal("j").read()] == [b"one", b"two"]

    def test_reads_need_the_right_on_their_journal(self, guarded: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DETENT_TOKEN", "journals")
        with detent.open(guarded.url) as store:
            for name in ("j", "k"):
                store.journal(name).append(b"x")
            assert [message.body for message in store.journal("j").read()] == [b"x"]
            k = store.journal("k")
            for call in (lambda: list(k.read()), lambda: list(k.read(isolation="uncommitted")), k.next_offset):
                with pytest.raises(Denied):
                    call()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "detent test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = serialization.PrivateFormat.PKCS8
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()))
    return paths


def test_a_certificate_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that nobody vouches for is refused; with it in DETENT_CA_FILE it is as good as any."""
    cert, key = certificate(tmp_path)
    with serving(f"file:{tmp_path / 'store'}", ssl_certfile=str(cert), ssl_keyfile=str(key)) as server:
        monkeypatch.delenv("DETENT_CA_FILE", raising=False)
        for role in ("auto", "reader"):
            with pytest.raises(Unavailable, match="DETENT_CA_FILE"):
                detent.open(server.url, role=role)  # type: ignore[arg-type]
        monkeypatch.setenv("DETENT_CA_FILE", str(cert))
        with detent.open(server.url) as store:
            store.journal("j").append(b"x")
            assert [message.body for message in store.journal("j").read()] == [b"x"]

        async def scenario() -> None:
            async with detent.open_async(server.url) as store:
                await store.journal("j").append(b"y")
                assert [message.body async for message in store.journal("j").read()] == [b"x", b"y"]

        asyncio.run(scenario())
        with pytest.raises(Unavailable), detent.open(server.url.replace("https", "http"), timeout="100ms"):
            pass


# -- lines that break -----------------------------------------------------------------------------------------------


class TestBrokenLines:
    @pytest.mark.parametrize("role", ["auto", "reader"])
    def test_a_server_that_is_not_there_is_an_error_that_says_what_to_do(self, role: Any) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        with pytest.raises(Unavailable, match=rf"no Detent server answers at {url}.*start it"):
            detent.open(url, role=role, timeout="100ms")

    def test_something_else_that_answers_there(self) -> None:
        async def other(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
            await send({"type": "http.response.body", "body": b"<html>hello</html>"})

        with (
            serving("memory:", middle=lambda _: other) as stranger,
            pytest.raises(Corrupt, match="cannot be read"),
        ):
            detent.open(stranger.url, timeout="1s")

    def test_a_server_that_goes_away(self, tmp_path: Path) -> None:
        with serving(f"file:{tmp_path / 'store'}") as server:
            store = detent.open(server.url, timeout="300ms")
            store.journal("j").append(b"x")
        with store:
            with pytest.raises(Unavailable, match="start it"):
                store.journal("j").append(b"y")
            for call in (store.journals, lambda: list(store.journal("j").read(0, 1)), store.size_bytes):
                with pytest.raises(Unavailable, match=store.url):
                    call()

    def test_a_transaction_whose_answer_is_lost_is_answered_again_and_not_repeated(
        self, store: Store, faults: Faults
    ) -> None:
        queue = store.queue("q")
        queue.create()
        for number in range(3):
            faults.lost_answers = 2
            assert queue.publish(b"%d" % number).message == number
            faults.lost_answers = 1
            assert store.journal("j").append(b"%d" % number).offset == number
        faults.lost_answers = 2
        messages = queue.claim(10)
        assert [message.body for message in messages] == [b"0", b"1", b"2"], "with their contents"
        assert {message.attempts for message in messages} == {1}
        faults.lost_answers = 1
        queue.ack(messages)
        assert queue.info().total_acked == 3

    def test_the_same_for_asyncio(self, server: HttpServer, faults: Faults) -> None:
        async def scenario() -> None:
            async with detent.open_async(server.url) as store:
                await store.queue("q").create()
                faults.lost_answers = 3
                results = await asyncio.gather(*(store.queue("q").publish(b"x") for _ in range(50)))
                assert sorted(result.message for result in results) == list(range(50))
                faults.lost_answers = 2
                assert len(await store.queue("q").claim(100)) == 50

        asyncio.run(scenario())

    def test_a_retry_after_the_lease_is_over_gives_what_is_still_there(self, store: Store, faults: Faults) -> None:
        """The first answer is lost, and before the second the message is somebody else's, who finishes it."""
        queue = store.queue("q")
        queue.create(backoff="0s", done_retention="0s")
        queue.publish(b"x")

        def finish() -> None:
            with detent.open(store.url) as other:
                (message,) = other.queue("q").claim(wait="20s")
                message.ack()
                other.queue("checkpoint").create()

        faults.lost_answers, faults.while_lost = 1, finish
        assert queue.claim(lease="1ms") == []

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_busy_server_is_asked_again(self, server: HttpServer, store: Store, faults: Faults, status: int) -> None:
        faults.busy = [status] * 3
        assert store.journal("j").append(b"x").offset == 0
        assert faults.busy == []

        async def scenario() -> None:
            async with detent.open_async(server.url) as other:
                faults.busy = [status] * 3
                assert (await other.journal("j").append(b"x")).offset == 1

        asyncio.run(scenario())

    def test_one_that_stays_busy(self, server: HttpServer, faults: Faults) -> None:
        with detent.open(server.url, timeout="200ms") as store:
            faults.busy = [429] * 100_000
            with pytest.raises(Busy, match="nothing was changed"):
                store.journal("j").append(b"x")
            faults.busy = []
            assert store.journal("j").next_offset() == 0

    def test_a_busy_stranger_on_the_way_does_not_know_what_was_applied(
        self, server: HttpServer, faults: Faults
    ) -> None:
        """Only the owner's own words are taken for a promise that nothing was changed."""
        faults.busy_type = b"text/plain"
        with detent.open(server.url, timeout="200ms") as store:
            store.journal("j").append(b"0")
            faults.busy = [503] * 100_000
            with pytest.raises(OutcomeUnknown):
                store.journal("j").append(b"1")

    def test_an_answer_that_is_lost_for_good(self, server: HttpServer, faults: Faults) -> None:
        with detent.open(server.url, timeout="200ms") as store:
            store.journal("j").append(b"0")
            faults.lost_answers = 100_000
            with pytest.raises(OutcomeUnknown):
                store.journal("j").append(b"1")
            faults.lost_answers = 0
            assert [message.body for message in store.journal("j").read()] == [b"0", b"1"]

    def test_a_full_engine_is_waited_for(self, store: Store, server: HttpServer, monkeypatch: Any) -> None:
        assert server.store is not None
        owner: Any = server.store._connection.current
        submit, refusals = owner.engine.submit, [1] * 3

        def sometimes(*arguments: Any) -> None:
            if refusals:
                refusals.pop()
                raise Busy("full")
            submit(*arguments)

        monkeypatch.setattr(owner.engine, "submit", sometimes)
        assert store.journal("j").append(b"x").offset == 0
        assert refusals == []


# -- reads --------------------------------------------------------------------------------------------------------


class TestReads:
    @pytest.fixture
    def journal(self, store: Store) -> detent.Journal:
        journal = store.journal("j")
        for start in range(0, 3000, 500):
            journal.append_many([b"%d" % number * 100 for number in range(start, start + 500)])
        return journal

    @pytest.mark.parametrize("isolation", ["committed", "uncommitted"])
    def test_a_read_goes_on_where_its_line_broke(self, journal: detent.Journal, faults: Faults, isolation: Any) -> None:
        faults.cuts = [1, 100_000, 300_000, 700_000]
        found = list(journal.read(isolation=isolation))
        assert [message.body for message in found] == [b"%d" % number * 100 for number in range(3000)]
        assert faults.cuts == []
        assert sum("committed" in request for request in faults.requests) == 5

    def test_an_error_in_the_middle_is_the_reader_s_own(
        self, journal: detent.Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        committed = JournalReader.committed

        def breaking(self: JournalReader, *args: Any, **options: Any) -> Iterator[Any]:
            if type(self) is not JournalReader:
                yield from committed(self, *args, **options)
                return
            for number, one in enumerate(committed(self, *args, **options)):
                if number == 3:
                    raise Corrupt("a block does not match its checksum")
                yield one

        monkeypatch.setattr(JournalReader, "committed", breaking)
        found: list[bytes] = []
        with pytest.raises(Corrupt, match="checksum"):
            found.extend(message.body for message in journal.read())
        assert 0 < len(found) < 3000

    def test_a_journal_that_is_made_anew_while_the_line_is_down(
        self, journal: detent.Journal, faults: Faults, store: Store, server: HttpServer
    ) -> None:
        faults.cuts = [300_000]  # in the second batch
        reading = journal.read_batches()
        assert next(reading).num_rows == 500
        assert server.store is not None
        server.store.journal("j").delete()
        server.store.journal("j").append_many([b"other"] * 3000)
        with pytest.raises(NotFound):
            list(reading)

    def test_a_stream_that_says_it_is_whole_and_is_not(
        self, journal: detent.Journal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However it comes about: fewer messages than asked for are an error, never a short read."""
        committed = JournalReader.committed
        monkeypatch.setattr(
            "detent.remote.served_journals.JournalReader.committed",
            lambda self, name, start, end, journal=None: committed(self, name, start, end - 1, journal=journal),
        )
        with pytest.raises(Corrupt, match="before 3000"):
            list(journal._store.reader.committed("j", 0, 3000))

    def test_many_reads_at_once_that_nobody_finishes_leave_room_for_calls(self, journal: detent.Journal) -> None:
        readings = [journal.read_batches() for _ in range(40)]
        for reading in readings:
            next(reading)
        assert journal.append(b"x").offset == 3000
        assert sum(batch.num_rows for batch in readings[0]) > 0
        del readings

    def test_a_reader_follows_and_never_writes(self, server: HttpServer, store: Store) -> None:
        with detent.open(server.url, role="reader") as reader:
            tail = reader.journal("j").tail(0, timeout="20s")
            writer = threading.Timer(0.05, lambda: store.journal("j").append(b"x"))
            writer.start()
            assert next(tail).body == b"x"
            writer.join()
            for call in (
                lambda: reader.journal("j").append(b"no"),
                lambda: reader.queue("q").create(),
                lambda: reader.queue("q").wait("1s"),
                reader.queues,
            ):
                with pytest.raises(Invalid, match="reader"):
                    call()

        async def scenario() -> None:
            async with detent.open_async(server.url, role="reader") as reader:
                async for message in reader.journal("j").tail(0, timeout="20s"):
                    assert message.body == b"x"
                    break
                with pytest.raises(Invalid, match="reader"):
                    await reader.journal("j").append(b"no")

        asyncio.run(scenario())

    def test_a_server_needs_a_store_of_its_own(self, server: HttpServer, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with detent.open_async(f"file:{tmp_path / 'store'}") as client:
                with pytest.raises(Invalid, match="another process owns"):
                    NativePart(client)

        asyncio.run(scenario())

    def test_what_only_the_owner_does(self, store: Store) -> None:
        assert not store.is_owner
        assert store.epoch >= 1
        assert store.size_bytes() > 0
        for call in (store.sweep, store.owner_app, store.objects.list, lambda: store.objects.delete(FRAGMENT)):
            with pytest.raises(Invalid):
                call()


# -- contents -----------------------------------------------------------------------------------------------------


class TestContents:
    @pytest.fixture(autouse=True)
    def _little_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(contents, "ANSWER_CONTENT_BYTES_MAX", 10_000)

    def test_a_claim_that_does_not_fit_comes_in_parts(self, store: Store, faults: Faults) -> None:
        queue = store.queue("q")
        queue.create()
        sent = [bytes([number]) * 1000 * (number % 30) for number in range(100)]
        for body in sent:
            queue.publish(body, headers={"size": str(len(body))})
        faults.requests.clear()
        messages = queue.claim(100)
        assert [message.body for message in messages] == sent
        assert [message.headers["size"] for message in messages] == [str(len(body)) for body in sent]
        assert faults.requests.count("POST /v1/transactions") > 50
        queue.ack(messages)

        async def scenario() -> None:
            queue.publish_many(sent)
            async with detent.open_async(store.url) as other:
                found = await other.queue("q").claim(100)
                assert [message.body for message in found] == sent

        asyncio.run(scenario())

    def test_the_histories_of_dead_letters_come_in_parts_as_well(self, store: Store, faults: Faults) -> None:
        queue, dead = store.queue("q"), store.queue("dead")
        dead.create()
        queue.create(dead_letter="dead", max_attempts=1)
        queue.publish_many([b"x"] * 20)
        for message in queue.claim(20):
            message.fail("r" * 4_000)
        faults.requests.clear()
        letters = dead.claim(20)
        assert [letter.dead_letters[0].reason for letter in letters] == ["r" * 4_000] * 20
        assert faults.requests.count("POST /v1/transactions") == 10, "two of them find room in an answer"

    def test_what_is_no_longer_held_is_left_out(self, store: Store, server: HttpServer, faults: Faults) -> None:
        """Between two parts the queue is purged of its leases: what has not come is somebody else's."""
        queue = store.queue("q")
        queue.create()
        for _ in range(3):
            queue.publish(b"x" * 9000)
        commit = store.commit

        def commit_and_lose(operations: list[Any]) -> list[Any]:
            if type(operations[0]).__name__ == "ReadHeld":
                assert server.store is not None
                server.store.queue("q").delete()
            return commit(operations)

        store.commit = commit_and_lose  # type: ignore[method-assign]
        assert [message.id for message in queue.claim(3)] == [0]

    def test_failed_messages_and_a_search(self, store: Store) -> None:
        queue = store.queue("q")
        queue.create()
        sent = [bytes([number]) * 4000 for number in range(20)]
        for body in sent:
            queue.publish(body)
        for message in queue.claim(20):
            message.fail("no", final=True)
        assert [failed.body for failed in queue.failed()] == sent
        threads = [threading.Thread(target=store.message, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for number in range(20):
            assert store.message(number).body == sent[number]
        for thread in threads:
            thread.join()
        with pytest.raises(NotFound):
            store.message(1000)

        async def scenario() -> None:
            async with detent.open_async(store.url) as other:
                assert [failed.body async for failed in other.queue("q").failed()] == sent
                found = await asyncio.gather(*(other.message(number) for number in range(20)))
                assert [message.body for message in found] == sent

        asyncio.run(scenario())

    def test_uris(self, store: Store) -> None:
        store.queue("q").create()
        store.queue("q").publish(detent.Outgoing(uri="s3://bucket/key"))
        assert store.message(0).uri == "s3://bucket/key"
        (message,) = store.queue("q").claim()
        assert (message.uri, message.body) == ("s3://bucket/key", b"")


# -- fragments ----------------------------------------------------------------------------------------------------


class TestObjects:
    def test_written_read_and_measured(self, store: Store, server: HttpServer) -> None:
        data = bytes(range(256)) * 20_000
        assert store.objects.put(FRAGMENT, [data[:1000], memoryview(data)[1000:]]) == len(data)
        assert store.objects.size(FRAGMENT) == len(data)
        assert store.objects.get(FRAGMENT) == data
        assert store.objects.get(FRAGMENT, 5, 10) == data[5:15]
        assert server.store is not None
        assert server.store.objects.get(FRAGMENT) == data
        with pytest.raises(Exists):
            store.objects.put(FRAGMENT, [data])
        missing = object_name(new_fragment_id(1, b"9876543210"))
        assert store.objects.size(missing) is None
        with pytest.raises(NotFound):
            store.objects.get(missing)

    def test_one_whose_answer_is_lost_is_there_once(self, store: Store, faults: Faults) -> None:
        faults.lost_answers = 1
        assert store.objects.put(FRAGMENT, [b"x" * 5000]) == 5000
        faults.lost_answers = 1
        with pytest.raises(Exists):
            store.objects.put(FRAGMENT, [b"y" * 5000])
        assert store.objects.get(FRAGMENT) == b"x" * 5000

    @pytest.mark.parametrize("name", ["x", "../../etc/passwd", "fragments/ab/x.arrow", "/etc/passwd", "fragments/", ""])
    def test_nothing_but_fragments(self, store: Store, server: HttpServer, name: str) -> None:
        for call in (lambda: store.objects.put(name, [b"x"]), lambda: store.objects.get(name)):
            with pytest.raises((Invalid, NotFound)):
                call()
        with httpx.Client(base_url=server.url) as http:
            answer = http.put("/v1/native/objects/" + name.replace("/", "%2F"), content=b"x")
            assert answer.status_code == 400
        assert server.store is not None
        assert list(server.store.objects.list()) == []

    def test_one_that_is_too_large(self, store: Store, server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(served_objects, "OBJECT_BYTES_MAX", 1000)
        with pytest.raises(detent.LimitExceeded):
            store.objects.put(FRAGMENT, [b"x" * 1001])
        with httpx.Client(base_url=server.url) as http:  # in chunks, with no length said before
            parts = (b"x" * 100 for _ in range(11))
            assert http.put(f"/v1/native/objects/{FRAGMENT}", content=parts).status_code == 413
        assert server.store is not None
        assert list(server.store.objects.list()) == []

    def test_more_at_once_than_there_are_threads_for(self, store: Store) -> None:
        names = [object_name(new_fragment_id(number, b"0123456789")) for number in range(30)]
        threads = [threading.Thread(target=store.objects.put, args=(name, [b"x" * 200_000])) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [store.objects.size(name) for name in names] == [200_000] * 30


# -- bodies from nowhere ------------------------------------------------------------------------------------------


class TestHostile:
    @pytest.mark.parametrize(
        "body",
        [
            b"", b"\xc1", b"\x90", b"nonsense", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000, msgspec.msgpack.encode([1]),
            msgspec.msgpack.encode([[b"", 0, 0, []]]), msgspec.msgpack.encode([[b"s" * 16, 0, 0, [["Reap", 1]]]]),
            msgspec.msgpack.encode([[b"s" * 16, -1, 0, [["Claim", "q"]]]]),
            msgspec.msgpack.encode([[b"s" * 16, 0, 0, [["ReadHeld", 1, [0], []]]]]),
            msgspec.msgpack.encode([[b"s" * 16, 0, 0, [["ReadHeld", 1, [], []]]]]),
            msgspec.msgpack.encode([[b"s" * 16, 0, 0, [["ReadHeld", 1, [0] * 10_001, [0] * 10_001]]]]),
            msgspec.msgpack.encode([[b"s" * 16, 0, 0, [["ReadHeld", 99, [1 << 62], [1 << 62]]]]]),
            msgspec.msgpack.encode([[b"s" * 16, 0, 0, [["FindMessage", 1 << 62]]]]),
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("query", ["", "?contents=1", "?contents=1&contents=1", "?contents=%FF", "?" + "a=1&" * 50])
    def test_transactions(self, store: Store, server: HttpServer, body: bytes, query: str) -> None:
        with httpx.Client(base_url=server.url) as http:
            kind = {"content-type": wire.TRANSACTION_TYPE}
            answer = http.post("/v1/transactions" + query, content=body, headers=kind)
        if answer.status_code == 200:
            (outcome,) = wire.decode_answers(answer.content, 1)
            assert not isinstance(outcome, list) or not outcome[0].contents
        else:
            assert answer.status_code in {400, 413}
            assert answer.headers["content-type"] == wire.PROBLEM_TYPE
        assert store.journal("j").append(b"x").offset == 0, "the server goes on"

    @pytest.mark.parametrize(
        "path",
        [
            "/v1/native/journals", "/v1/native/journals?prefix=a&prefix=b", f"{J}/info", f"{J}/info?journal=",
            f"{J}/extents", f"{J}/extents?prefix=a&prefix=b",
            f"{J}/info?journal=a%00b", f"{J}/info?journal=../x", f"{J}/info?journal=none", f"{J}/nothing?journal=j",
            f"{J}/offset-at?journal=j", f"{J}/offset-at?journal=j&time_ms=x", f"{J}/committed?journal=j",
            f"{J}/committed?journal=j&start=0", f"{J}/committed?journal=j&start=0&end=2",
            f"{J}/committed?journal=j&start=1&end=0", f"{J}/committed?journal=j&start=-1&end=1",
            f"{J}/committed?journal=j&start=0&end=1&number=77", f"{J}/committed?journal=j&start=²&end=1",
            f"{J}/committed?journal=j&start=0&end=99999999999999999999",
            f"{J}/committed?journal=j&start=0&end={'9' * 5000}", f"{J}/uncommitted?journal=j&start=7",
            f"{J}/uncommitted?journal=j&start=-1", f"{J}/info?journal={'x' * 20_000}", "/v1/native/", "/v1/queues/q",
            "/",
            "/v1/native/wait/journal?journal=j&offset=0", "/v1/native/wait/journal?journal=&offset=0&timeout_ms=1",
            f"/v1/native/objects/{FRAGMENT}?start=-1",
        ],
    )  # fmt: skip
    def test_reads(self, store: Store, server: HttpServer, path: str) -> None:
        store.journal("j").append(b"x")
        with httpx.Client(base_url=server.url) as http:
            answer = http.get(path)
            assert answer.status_code in {400, 404, 413}, answer.text
            assert set(answer.json()) == {"error", "message"}
            for method in ("POST", "DELETE", "PATCH"):
                assert http.request(method, path).status_code in {400, 404, 413}
        assert [message.body for message in store.journal("j").read()] == [b"x"], "the server goes on"


# -- the command line -----------------------------------------------------------------------------------------------


def test_the_command_line_takes_a_server_for_a_store(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str, code: int = 0) -> str:
        assert run(list(words)) == code
        return "".join(capsys.readouterr())

    told("queue", "create", store.url, "q")
    told("queue", "publish", store.url, "q", "hello")
    assert "hello" in told("queue", "claim", store.url, "q")
    assert "hello" in told("message", "show", store.url, "0")
    told("journal", "append", store.url, "j", "--body", "x")
    assert told("journal", "read", store.url, "j") == "x\n"
    assert "epoch" in told("store", "info", store.url)
    assert "file:PATH" in told("store", "verify", store.url, code=1)
