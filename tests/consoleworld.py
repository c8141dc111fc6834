"""The console without a browser: its pages over HTTP, read with a parser, and forms filled in as a browser would.

    with console("memory:") as world:
        page = world.browser().get("/queues/orders")
        page.text("h1"), page.links(), page.form("pause")
        page.send("pause")                                  # as a click on the form's button

A browser has cookies of its own; `world.browser(grants)` has logged in with a key of these grants.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from detent.server.api import Api
from detent.server.app import Part
from detent.server.console import ConsolePart
from detent.server.console.entrance import Entrance
from detent.server.keys import Key, KeyRing, add_key, new_key
from detent.server.series import Series
from detent.server.serving import own_hosts
from httpserver import HttpServer, serve

VOID = {"meta", "link", "input", "img", "br", "hr", "circle", "path", "line", "rect", "polyline", "option", "use"}


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join(" ".join(child if isinstance(child, str) else child.text for child in self.children).split())

    def all(self, tag: str = "") -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                if not tag or child.tag == tag:
                    yield child
                yield from child.all(tag)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("root", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag: str) -> None:
        for at in range(len(self.open) - 1, 0, -1):
            if self.open[at].tag == tag:
                del self.open[at:]
                return

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.open[-1].children.append(data)


class PageOf:
    """A page that a browser shows."""

    def __init__(self, browser: Browser, response: httpx.Response) -> None:
        self.browser = browser
        self.response = response
        self.status = response.status_code
        parser = _Parser()
        parser.feed(response.text)
        self.root = parser.root

    def text(self, tag: str) -> str:
        """The text of the first element of a kind."""
        return next(self.root.all(tag)).text

    def all(self, tag: str) -> list[Element]:
        return list(self.root.all(tag))

    @property
    def words(self) -> str:
        """All that the page says."""
        return self.root.text

    def links(self) -> list[str]:
        return [one.attributes["href"] for one in self.root.all("a") if "href" in one.attributes]

    def forms(self) -> list[Element]:
        return [one for one in self.root.all("form") if one.attributes.get("method") == "post"]

    def buttons(self) -> list[str]:
        """What can be pressed that changes something."""
        return [button.text for form in self.forms() for button in form.all("button")]

    def send(self, button: str, /, *, follow: bool = True, **fields: Any) -> PageOf:
        """Press a button of a form, with some of its fields filled in."""
        for form in self.forms():
            for one in form.all("button"):
                if one.text == button:
                    action = one.attributes.get("formaction") or form.attributes.get("action") or self.path
                    return self.browser.post(action, {**values_of(form), **fields}, follow=follow)
        raise AssertionError(f"no button {button!r} among {self.buttons()}")

    @property
    def path(self) -> str:
        return self.response.url.raw_path.decode()


def values_of(form: Element) -> dict[str, Any]:
    """What a form holds before anything is filled in."""
    found: dict[str, Any] = {}
    for one in form.all("input"):
        kind = one.attributes.get("type", "text")
        if "name" in one.attributes and (kind not in {"checkbox", "radio"} or "checked" in one.attributes):
            found[one.attributes["name"]] = one.attributes.get("value", "")
    for one in form.all("textarea"):
        found[one.attributes["name"]] = one.text
    for one in form.all("select"):
        chosen = [option for option in one.all("option") if "selected" in option.attributes]
        if chosen:
            found[one.attributes["name"]] = chosen[0].attributes.get("value", "")
    return found


class Browser:
    """A browser with cookies of its own, that says of its requests what browsers say."""

    def __init__(self, url: str, path: str) -> None:
        self.url, self.base = url, path
        self.client = httpx.Client(base_url=url, trust_env=False, timeout=60, follow_redirects=False)

    def address(self, path: str) -> str:
        return path if path.startswith(self.base) else self.base + path

    def get(self, path: str = "", follow: bool = True, **headers: str) -> PageOf:
        said = {"sec-fetch-site": "same-origin", "accept": "text/html", **_names(headers)}
        return self._follow(self.client.get(self.address(path), headers=said), follow)

    def post(self, path: str, fields: dict[str, Any], follow: bool = True, **headers: str) -> PageOf:
        said = {"origin": self.url, "sec-fetch-site": "same-origin", **_names(headers)}
        said = {name: value for name, value in said.items() if value}
        return self._follow(self.client.post(self.address(path), data=fields, headers=said), follow)

    def _follow(self, response: httpx.Response, follow: bool) -> PageOf:
        while follow and response.status_code in {303, 307}:
            response = self.client.get(response.headers["location"], headers={"sec-fetch-site": "same-origin"})
        return PageOf(self, response)


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


class Clock:
    """The time of the curves, which a test moves."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class World:
    """A console that runs."""

    server: HttpServer
    entrance: Entrance
    keys: Path | None
    series: Series
    clock: Clock
    browsers: list[Browser] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=count)

    def key(self, grants: Sequence[str], name: str = "") -> Key:
        """A new key, in the file that the server reads."""
        assert self.keys is not None
        made = new_key(name or f"visitor-{next(self.numbers)}", grants, now=datetime.now(UTC))
        add_key(self.keys, made)
        ring = self.entrance._keys
        assert ring is not None
        ring._looked = 0.0  # do not wait for the second in which the file is not looked at again
        return made

    def browser(self, *grants: str, name: str = "") -> Browser:
        """A browser; with grants, one that has logged in."""
        made = Browser(self.server.url, self.entrance.path)
        self.browsers.append(made)
        if grants:
            key = self.key(grants, name)
            done = made.post("/login", {"token": f"{key.id}.{key.secret}", "next": ""}, follow=False)
            assert done.status == 303, done.words
        return made


@contextlib.contextmanager
def console(url: str = "memory:", keys: Path | None = None, **options: Any) -> Iterator[World]:
    """A console over a store; with a file of keys it wants a login."""
    ring = None
    if keys is not None:
        add_key(keys, new_key("first", ["read:queue:none"], now=datetime.now(UTC)))
        ring = KeyRing(path=keys)
    entrance = Entrance(keys=ring, hosts=None if ring else own_hosts("127.0.0.1"), **options)

    clock = Clock()
    curves: list[Series] = []

    def parts(store: Any) -> list[Part]:
        curves.append(Series(store, clock=clock))
        api = Api(store, series=curves[0])
        return [ConsolePart(store, api, entrance, place="file:./data"), api]

    with serve(url, parts, ring) as server:
        world = World(server, entrance, keys, curves[0], clock)
        try:
            yield world
        finally:
            for browser in world.browsers:
                browser.client.close()


HOSTILE = (
    "<script>window.ran=1</script>",
    '"><img src=x onerror="window.ran=1">',
    "'-window.ran=1-'",
    "javascript:window.ran=1",
    "{{7717*7717}}${7717*7717}<%= 7717*7717 %>",
    "</pre></table></svg><svg onload=window.ran=1>",
    "\u202egnp.exe\u202c\u2066",
    "<a href='data:text/html,<script>window.ran=1</script>'>x</a>",
    '" hx-get="/v1/queues" hx-trigger="load" hx-on:load="window.ran=1',
)
"""What a page has to show, and never to run. NUL and other control characters are in bodies."""


async def fill_hostile(store: Any) -> dict[str, Any]:
    """Put hostile headers, bodies, reasons, consumers and names into a store; where they are."""
    from detent.queue import Outgoing
    from detent.shard import operations as shards

    queue = store.queue("hostile")
    await queue.create(max_attempts=1, description=HOSTILE[0], labels={"x": HOSTILE[1]})
    await queue.publish_many(
        [Outgoing(f"{text}\x00\x1b[31m".encode(), {f"h{at}": text}) for at, text in enumerate(HOSTILE)]
    )
    await queue.publish(Outgoing(b"", uri=HOSTILE[3]))
    for text, message in zip(HOSTILE, await queue.claim(len(HOSTILE), consumer=HOSTILE[1]), strict=False):
        await message.fail(text)
    entries = [(text.encode(), text.encode(), {f"h{at}": text}) for at, text in enumerate(HOSTILE)]
    await store.journal("hostile").append_many(entries)
    await store.journal("hostile").set_registers({"author": HOSTILE[0]})
    names = ["graph/<b>shop</b>/<i>x</i>", *(text for text in HOSTILE if text.isprintable())]
    for name in names:
        await store.commit([shards.RegisterConsumer(name, 1, ["hostile"], "key")])
        await store.commit([shards.Heartbeat(name, "m-1", 60_000, HOSTILE[1])])
        await store.commit([shards.LeaseShard(name, 0, "m-1", 60_000)])
        await store.commit([shards.ReportShard(name, 0, 0, "failed", HOSTILE[0], {"hostile": 1})])
    pins = [text for text in HOSTILE if text.isprintable()]
    for name in pins:
        await store.pin(name, {"hostile": 1})
    for at, text in enumerate(HOSTILE):
        said = {"body": text.encode(), "headers": {f"h{at}": text}, "key": text.encode()}
        await store.schedule(f"hostile-{at}", every="1d", journal="hostile", paused=True, **said)
    return {"consumers": names}


def hostile_pages(names: list[str]) -> list[str]:
    """The pages that show what `fill_hostile` has made."""
    from urllib.parse import quote

    return [
        "", "/queues", f"/queues?contains={quote(HOSTILE[1])}", "/queues/hostile", "/queues/hostile?state=failed",
        f"/queues/hostile?filter={quote(HOSTILE[1])}", "/queues/hostile/redrive", "/queues/hostile/purge?state=failed",
        *(f"/messages/{number}" for number in range(len(HOSTILE) + 1)), f"/messages/{quote(HOSTILE[1], safe='')}",
        "/messages/0?view=text", "/messages/0?view=hex", "/journals", "/journals/hostile",
        *(f"/journals/hostile/{number}" for number in range(len(HOSTILE))),
        f"/journals/hostile?text={quote(HOSTILE[0])}", "/running", "/graphs/" + quote("<b>shop</b>", safe=""),
        *(f"/running/{quote(name, safe='')}" for name in names), "/ledgers", "/store", "/settings",
        "/schedules", *(f"/schedules/hostile-{at}" for at in range(len(HOSTILE))), "/schedules/hostile-0?view=hex",
        f"/nothing/{quote(HOSTILE[1], safe='')}", f"/find?q={quote(HOSTILE[1])}",
    ]  # fmt: skip
