"""Bridges to Kafka in a process that a test kills, and how often each record arrived.

    world = BridgeWorld(broker, f"file:{tmp_path}/store", processes)
    child = world.start("in", "orders", environment={"DETENT_CRASH_AT": "kafka.in.after_commit"})
    world.run_once("in", "orders")
    world.journal_counts("orders")       # body -> how often it is there
    world.topic_counts("out")            # value -> how often readers of committed records see it

A bridge "in" copies the topic of its name into the journal of its name; "out" copies the journal into the topic
`out-NAME`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from detent import crash
from kafkaserver import Broker
from processes import Child, Io, Processes

LEASE = "2s"
PARTITIONS = 2
OUT_POINTS = tuple(sorted(point for point in crash.POINTS if point.startswith("kafka.out.")))
IN_POINTS = tuple(sorted(point for point in crash.POINTS if point.startswith("kafka.in.")))


def declared(direction: str, name: str, brokers: str, **options: Any) -> Any:
    """The bridge of that name."""
    from detent.kafka import FromTopic, ToTopic

    settings = {"brokers": brokers, "batch": 50, "lease": LEASE, **options}
    if direction == "in":
        return FromTopic(name, **{"topic": name, "journal": name, **settings})
    return ToTopic(f"out-{name}", **{"topic": f"out-{name}", "journal": name, **settings})


def bridge_process(
    io: Io, direction: str, name: str, url: str, brokers: str, once: bool, options: dict[str, Any]
) -> None:
    """Run a bridge until it is told to end, and say what becomes of it."""
    import threading

    from detent.errors import DetentError
    from detent.kafka.running import opened

    crash.arm_as_told()
    stopping = threading.Event()
    bridge = declared(direction, name, brokers, **options)

    def tell(status: str, task: str, why: str) -> None:
        io.say("status", status=status, task=task, why=why)

    def run() -> None:
        try:
            with opened(bridge, url, once=once, on_event=tell) as running:
                running.run(stopping)
            io.say("ended", error=None)
        except DetentError as error:
            io.say("ended", error=type(error).__name__, text=str(error))

    worker = threading.Thread(target=run)
    worker.start()
    if not once:
        for _ in io.calls():
            pass
        stopping.set()
    worker.join()


class BridgeWorld:
    """One broker, one store, and bridges between them."""

    def __init__(self, broker: Broker, url: str, processes: Processes) -> None:
        self.broker = broker
        self.url = url
        self._processes = processes

    def start(self, direction: str, name: str, *, once: bool = False, environment: Any = None, **options: Any) -> Child:
        """A process with a bridge, which is declared with these options."""
        return self._processes.start(
            bridge_process,
            environment=environment or {},
            direction=direction,
            name=name,
            url=self.url,
            brokers=self.broker.brokers,
            once=once,
            options=options,
        )

    def run_once(self, direction: str, name: str, **options: Any) -> None:
        """A process that copies what there is, and ends well."""
        child = self.start(direction, name, once=True, **options)
        ended = last_word(child)
        assert ended["error"] is None, ended

    def produce(self, name: str, count: int) -> None:
        """Records 0 to count - 1 in a new topic, by key."""
        self.broker.topic(name, partitions=PARTITIONS)
        self.broker.produce(name, [(b"%d" % (number % 7), b"%d" % number) for number in range(count)])

    def journal_counts(self, name: str) -> Counter[bytes]:
        """How often each body is in a journal."""
        import detent

        with detent.open(self.url) as store:
            return Counter(message.body for message in store.journal(name).read())

    def topic_counts(self, name: str) -> Counter[bytes]:
        """How often readers of committed records see each value."""
        return Counter(message.value() for message in self.broker.read(name, partitions=PARTITIONS))


def last_word(child: Child, *, seconds: float = 90.0) -> dict[str, Any]:
    """What a bridge says when it has ended."""
    while (found := child.next_event(seconds=seconds)) is not None:
        if found["event"] == "ended":
            return found
    raise AssertionError(f"the bridge ended without a word\n{child.errors()}")


def await_status(child: Child, status: str, *, seconds: float = 60.0) -> None:
    """Wait until a shard of a bridge says this of itself."""
    while (found := child.next_event(seconds=seconds)) is not None:
        if found.get("status") == status:
            return
    raise AssertionError(f"the bridge was never {status}\n{child.errors()}")


def each_once(count: int) -> Counter[bytes]:
    """What is there when nothing is lost and nothing doubled."""
    return Counter(b"%d" % number for number in range(count))
