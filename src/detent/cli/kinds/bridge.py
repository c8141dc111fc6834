"""Bridges: a topic of Kafka into a store, a journal out to a topic."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from detent.cli._common import open_for_writing
from detent.cli._output import line_text, print_fields, print_json
from detent.cli._views import Look, TaskNotice, TaskView, line_of
from detent.cli.kinds.kind import Found, Given, KnownTask, ReadyTask, TaskKind, VerbOptions, store_of
from detent.errors import Invalid, NotFound
from detent.runtime.report import Report

if TYPE_CHECKING:
    from detent.kafka import Bridge
    from detent.kafka.looking import StoredBridge
    from detent.store import Store


class BridgeKind(TaskKind):
    """The kind."""

    noun = "bridge"
    home = "detent.kafka"
    usual = "bridge"
    example = "shop.py:orders or shop.bridges:orders"
    lines = (
        'from detent.kafka import FromTopic; orders = FromTopic("orders", store="file:./data", '
        'brokers="127.0.0.1:9092", topic="orders", journal="orders")'
    )

    def classes(self) -> tuple[type, ...]:
        """Of bridges in both directions."""
        from detent.kafka import FromTopic, ToTopic

        return (FromTopic, ToTopic)

    def ready(self, found: Sequence[Found], given: Given) -> list[ReadyTask]:
        """One task a bridge."""
        return [ReadyBridge(one.what, given) for one in found]

    @contextmanager
    def declared(self, found: Any, given: Given) -> Iterator[KnownTask]:
        """A bridge of a file, in its store."""
        from detent.kafka.looking import StoredBridge

        url = _store_of(found, given.get("url"))
        with open_for_writing(url, force=bool(given.get("force"))) as store:
            yield KnownBridge(store, found.name, StoredBridge(store, found.consumer, found), is_declared=True)

    def stored(self, store: Store) -> Iterator[KnownTask]:
        """All bridges of a store."""
        from detent.kafka.looking import PREFIX, StoredBridge

        for info in store.consumers(PREFIX):
            name = info.name.removeprefix(PREFIX)
            yield KnownBridge(store, name, StoredBridge(store, info.name), is_declared=False)

    def known(self, store: Store, name: str) -> KnownTask | None:
        """The bridge of this name."""
        from detent.kafka.looking import PREFIX, StoredBridge

        found = StoredBridge(store, f"{PREFIX}{name}")
        try:
            found.describe()
        except NotFound:
            return None
        return KnownBridge(store, name, found, is_declared=False)


def _store_of(bridge: Bridge, given: str | None) -> str:
    return store_of("bridge", type(bridge).__name__, bridge.name, bridge.store, given)


class ReadyBridge(ReadyTask):
    """A bridge that is about to run in this process."""

    kind = "bridge"
    tells_of_log = True

    def __init__(self, bridge: Bridge, given: Given) -> None:
        super().__init__()
        self._bridge = bridge
        if given["accept"]:
            bridge.accept_also(given["accept"])
        self.name = bridge.name
        self.url = _store_of(bridge, given["url"])
        self.urls = [self.url]

    def check(self, *, as_json: bool) -> None:
        """From where and to where."""
        source, target = self._bridge.ends()
        fields = {"bridge": self.name, "from": source, "to": target, "store": self.url}
        fields["brokers"] = self._bridge.cluster().brokers
        print_json(fields) if as_json else print_fields(fields)

    def is_told(self, logged: logging.LogRecord) -> bool:
        """Of a shard that failed, or of what is left out."""
        return logged.name in {"detent.kafka", "detent.runtime"} and logged.levelno >= logging.WARNING

    def run(self, view: TaskView) -> int:
        """Copy until `stop`."""
        return self._run(view, once=False)

    def run_once(self, view: TaskView) -> int:
        """Copy what there is."""
        return self._run(view, once=True)

    def _run(self, view: TaskView, *, once: bool) -> int:
        from detent.kafka.running import opened

        source, target = self._bridge.ends()
        about = {"bridge": self.name, "from": source, "to": target}

        def tell(status: str, shard: str, why: str) -> None:
            text = f"{shard}: {status}{f': {why}' if why else ''}"
            view.tell(TaskNotice(status, text, {"bridge": self.name, "shard": shard, "text": why}))

        view.tell(TaskNotice("starting", f"{self.name}: from {source} to {target}", about))
        with opened(self._bridge, self.url, once=once, on_event=tell) as running:
            look = Look(self.title, lambda: [running.report()], lambda: running.report().as_json())
            running.run(self.stopping, look=lambda: view.show(look))
            last = running.report()
        view.tell(TaskNotice("summary", f"{self.name}: {line_of(last)}", {**about, **last.progress, "lag": last.lag}))
        return 0


class KnownBridge(KnownTask):
    """A bridge, as its store knows it. Its file says where Kafka is."""

    kind = "bridge"
    instead: ClassVar[Mapping[str, str]] = {}

    def __init__(self, store: Store, name: str, known: StoredBridge, *, is_declared: bool) -> None:
        self._handle = store.consumer(f"bridge/{name}")
        self._known = known
        self._is_declared = is_declared
        self.name = name

    def report(self) -> Report:
        """How far it is."""
        return self._known.report()

    def pause(self) -> None:
        """Its processes rest after the transaction under way."""
        self._handle.pause()

    def resume(self) -> None:
        """They go on."""
        self._handle.resume()

    def reset_consequence(self, wanted: VerbOptions) -> str:
        """What comes twice, or never."""
        from detent.kafka.looking import checked

        self._known.describe()
        if checked(wanted.to) == "earliest":
            return f"copies all that there is once more: what the bridge {line_text(self.name)} has copied comes twice"
        return f"leaves out what the bridge {line_text(self.name)} has not copied yet"

    def reset(self, wanted: VerbOptions) -> dict[str, Any]:
        """Begin again."""
        return self._known.reset(wanted.to)

    def remove_consequence(self, wanted: VerbOptions) -> str:
        """What is forgotten."""
        del wanted
        self._known.describe()
        return f"forgets how far the bridge {line_text(self.name)} is; what it has copied stays"

    def remove(self, wanted: VerbOptions) -> dict[str, Any]:
        """Forget its places."""
        self._handle.delete(force=wanted.while_running)
        return {}

    def left(self) -> int | None:
        """How much waits for it. Of a topic, Kafka has to be asked."""
        lag = self._known.lag()
        if lag is None and not self._is_declared:
            raise Invalid(f"the store does not know where Kafka is: give the file that declares the bridge {self.name}")
        return lag
