"""Servers that take turns: what happens to them, and what their clients notice of it.

Real processes on the loopback address, an S3 server behind a proxy for each. In the short form one cluster meets
some of the faults; ``make failover`` repeats them all, and prints how long there was no service.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

pytest.importorskip("slatedb")
pytest.importorskip("obstore")

import detent
import networks
from detent import crash
from detent.cli.serve import REPLACED
from processes import eventually
from s3server import s3_server
from servercluster import SERVING, Clients, Member, Servers, cluster, serving

pytestmark = [pytest.mark.s3, pytest.mark.xdist_group("s3"), pytest.mark.timeout(3600)]

SOAK = os.environ.get("DETENT_SOAK") == "1"
ROUNDS = 10 if SOAK else 1
FAULTS_EACH = 5 if SOAK else 3
"""So many of the faults meet the leader in each round, in any order."""
LINES_ROUNDS = 3
CUT_S = 5.0
LEASE = "2500ms"
"""Long enough for a loaded machine: a shorter one changes hands when a renewal waits for its turn."""


# -- the faults: what happens to the leader, and how it is mended ------------------------------------------------------


def killed(leader: Member) -> None:
    leader.kill()


def stopped(leader: Member) -> None:
    leader.signal(signal.SIGTERM)
    assert leader.wait() == 0


def hung(leader: Member) -> None:
    leader.signal(signal.SIGSTOP)


def cut_off(leader: Member) -> None:
    leader.bucket.is_cut = True


def held_up(leader: Member) -> None:
    leader.bucket.is_held = True


def mended(member: Member) -> None:
    member.bucket.mend()
    if member.process.poll() is None:
        member.signal(signal.SIGCONT)
    else:
        member.start()


FAULTS: dict[str, Callable[[Member], None]] = {
    "stopped by SIGTERM": stopped,
    "killed by kill -9": killed,
    "hung (SIGSTOP, then on)": hung,
    "cut off from the bucket, requests refused": cut_off,
    "cut off from the bucket, requests dropped": held_up,
}


def test_clients_follow_from_server_to_server() -> None:
    gaps: dict[str, list[float]] = {name: [] for name in FAULTS}
    with cluster(3) as servers, Clients(servers.url) as clients:
        faults = [name for _ in range(ROUNDS) for name in random.sample(list(FAULTS), FAULTS_EACH)]
        for name in faults:
            clients.await_acks()
            leader, began = servers.leader(), time.monotonic()
            FAULTS[name](leader)
            servers.leader(other_than=leader)
            clients.await_acks()
            gaps[name].append(clients.gap(began))
            mended(leader)
            eventually(partial(stands_by, leader), what="standing by")
        clients.check()
    print("\n| the leader was | no service, median | worst |\n|---|---|---|")
    for name, found in gaps.items():
        if found:
            print(f"| {name} | {statistics.median(found):.1f} s | {max(found):.1f} s |")


@pytest.mark.skipif(not SOAK, reason="make failover")
@pytest.mark.skipif(not networks.can_be_made(), reason="network namespaces need root and the command ip")
def test_clients_follow_over_a_network_whose_lines_are_cut() -> None:
    """Three servers and the bucket on machines of their own. Lines are cut without a word to either end."""
    gaps: dict[str, list[float]] = {}
    with (
        networks.networks(3) as lan,
        s3_server(lan.store.address, lan.store.wrapper) as s3,
        pytest.MonkeyPatch.context() as patch,
    ):
        url = s3.store_url()
        members = [
            Member(url, LEASE, "--standby", "--no-auth", "--host", one.address, host=one.address, wrapper=one.wrapper)
            for one in lan.machines
        ]
        for name, value in s3.environment.items():
            patch.setenv(name, value)  # a member has named the shared server
        for member in members:
            member.environment = s3.environment
        with serving(url, members) as servers, Clients(servers.url) as clients:

            def machine_of(member: Member) -> networks.Machine:
                return next(one for one in lan.machines if one.address == member.host)

            def cut_between_servers(leader: Member) -> None:
                for one in lan.machines:
                    if one != machine_of(leader):
                        lan.cut(machine_of(leader), one)

            faults: dict[str, tuple[Callable[[Member], None], bool]] = {
                "leader from bucket": (lambda leader: lan.cut(machine_of(leader), lan.store), True),
                "leader from everything": (lambda leader: lan.isolate(machine_of(leader)), True),
                "leader from other servers": (cut_between_servers, False),
                "leader from clients, for 5 s": (lambda leader: lan.cut_from_home(machine_of(leader)), False),
            }
            for name in [name for _ in range(LINES_ROUNDS) for name in random.sample(list(faults), len(faults))]:
                clients.await_acks()
                leader, began = servers.leader(), time.monotonic()
                cut, moves = faults[name]
                cut(leader)
                if moves:
                    servers.leader(other_than=leader)
                    clients.await_acks()
                else:
                    time.sleep(CUT_S)
                    assert servers.leader() is leader, "it has the bucket"
                lan.mend()
                clients.await_acks()
                gaps.setdefault(name, []).append(clients.gap(began))
                if moves:
                    eventually(partial(stands_by, leader), what="standing by")
            clients.check()
    print("\n| the line was cut between | no service, median | worst |\n|---|---|---|")
    for name, found in gaps.items():
        print(f"| {name} | {statistics.median(found):.1f} s | {max(found):.1f} s |")


def test_slow_object_store_keeps_its_owner() -> None:
    """Every request takes a third of a second: slow, and no reason to move."""
    with cluster(2) as servers, Clients(servers.url) as clients:
        leader = servers.leader()
        for member in servers.members:
            member.bucket.delay_s = 0.3
        clients.await_acks(10)
        time.sleep(5 if SOAK else 3)
        clients.await_acks(10)
        assert servers.leader() is leader
        for member in servers.members:
            member.bucket.mend()
            member.bucket.delay_s = 0.0
        clients.check()


# -- one server at a time ------------------------------------------------------------------------------------------


@pytest.fixture
def servers() -> Iterator[Servers]:
    with cluster(2, lease=LEASE) as found:
        yield found


def asked(url: str) -> tuple[int, dict[str, str], dict[str, object]]:
    """The answer to a GET: status, headers, JSON."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), json.load(error)


def stands_by(member: Member) -> bool:
    return asked(f"{member.url}/healthz")[2].get("status") == "standby"


def test_standby_says_that_it_lives_is_not_ready_and_where_the_leader_is(servers: Servers) -> None:
    leader = servers.leader()
    standby = next(member for member in servers.members if member is not leader)
    eventually(lambda: asked(f"{standby.url}/healthz")[2].get("leader") == leader.url, what="the leader's address")
    assert asked(f"{standby.url}/healthz")[0] == 200
    for path in ("/readyz", "/v1/queues", "/v1/status", "/metrics"):
        status, headers, body = asked(standby.url + path)
        assert (status, headers["detent-leader"], headers["retry-after"]) == (503, leader.url, "1"), path
        assert (body["error"], body["details"]) == ("NotOwner", {"leader": leader.url}), path
    assert asked(f"{leader.url}/readyz")[0] == 200
    with detent.open(standby.url) as store:
        assert store.journal("j").append(b"x").offset == 0, "the leader was found through the standby"


def test_sqs_client_of_a_standby_gets_through_when_that_serves(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows one name, and tries again after each 503."""
    boto3 = pytest.importorskip("boto3")
    from botocore.config import Config

    leader = servers.leader()
    standby = next(member for member in servers.members if member is not leader)
    with detent.open(servers.url) as store:
        store.queue("q").create()
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    config = Config(retries={"total_max_attempts": 10, "mode": "standard"})
    sqs = boto3.client("sqs", endpoint_url=standby.url, config=config)
    with closing(sqs):
        leader.kill()
        sqs.send_message(QueueUrl=f"{standby.url}/000000000000/q", MessageBody="once")
    with detent.open(standby.url) as store:
        assert [message.body for message in store.queue("q").claim(10)] == [b"once"]


def test_owner_that_cannot_renew_its_lease_stops_answering() -> None:
    """Before another one may serve: it must not answer from what it remembers. It goes on if none has come."""
    with cluster(1) as servers:
        leader = servers.leader()
        leader.bucket.is_cut = True
        eventually(lambda: asked(f"{leader.url}/v1/status")[0] == 503, what="a refusal")
        status, _, body = asked(f"{leader.url}/readyz")
        assert status == 503
        assert "could not be renewed" in str(body["message"])
        assert asked(f"{leader.url}/healthz")[0] == 200
        leader.bucket.mend()
        with detent.open(servers.url, timeout="60s") as store:
            store.journal("j").append(b"x")


def test_server_without_standby_ends_with_its_own_code_when_it_is_replaced() -> None:
    with cluster(1, lease=LEASE) as servers:
        first = servers.members[0]
        alone = Member(servers.store_url, LEASE, "--force")
        try:
            alone.start(SERVING)
            with detent.open(alone.url) as store:
                store.journal("j").append(b"x")
            eventually(lambda: asked(f"{first.url}/healthz")[2].get("leader") == alone.url, what="standing by")
            with detent.open(servers.store_url, force=True) as store:
                assert store.is_owner
                store.journal("j").append(b"y")
                assert alone.wait() == REPLACED
            assert "has taken over" in alone.log
            assert "--standby" in alone.log
        finally:
            alone.close()


def test_server_is_refused_a_store_that_another_one_serves() -> None:
    with cluster(1, lease=LEASE) as servers:
        second = Member(servers.store_url, LEASE)
        try:
            second.start(None)
            assert second.wait() == 1
            assert servers.members[0].url in second.log
            assert "--standby waits for it" in second.log
        finally:
            second.close()


# -- crash points --------------------------------------------------------------------------------------------------

TAKING = ("lease.before_take", "lease.after_take", "kv.open.before_epoch", "kv.open.after_epoch",
          "lease.before_announce", "lease.after_announce")  # fmt: skip
RENEWING = ("lease.before_renew:3", "lease.after_renew:3")
RELEASING = ("lease.before_release", "lease.after_release")


def test_every_point_of_the_lease_is_visited() -> None:
    visited = {point.partition(":")[0] for point in (*TAKING, *RENEWING, *RELEASING)}
    assert {point for point in crash.POINTS if point.startswith("lease.")} <= visited


def test_server_killed_at_any_point_of_its_lease_is_replaced() -> None:
    """Each time the one that takes the store, holds it or gives it back dies there, and another one serves all that
    was acknowledged."""
    with cluster(2, lease=LEASE) as servers, detent.open(servers.url, timeout="60s") as store:
        journal = store.journal("j")
        for number, point in enumerate((*TAKING, *RENEWING, *RELEASING)):
            leader = servers.leader()
            standby = next(member for member in servers.members if member is not leader)
            journal.append(b"%d" % number)
            standby.kill()
            standby.start(DETENT_CRASH_AT=point)
            leader.kill()
            if point in RELEASING:
                standby.await_line(SERVING)
                standby.signal(signal.SIGTERM)
            assert standby.wait() == -signal.SIGKILL, point
            leader.start()
            standby.start()
        servers.leader()
        assert [message.body for message in journal.read()] == [b"%d" % number for number in range(10)]
