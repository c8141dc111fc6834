"""The console in a real browser: nothing foreign runs, no page is wider than a phone, no barrier is serious, and pages
follow the store.

With DETENT_SCREENSHOTS=FOLDER the pictures of the documentation are made there (`make screenshots`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import zygote
from browserworld import barriers, chromium, needs_browser
from consoleworld import World, console, fill_hostile, hostile_pages
from detent.queue import Outgoing
from detent.shard import operations as shards
from serveprocess import READY
from servers import free_port

pytestmark = [needs_browser, pytest.mark.xdist_group("browser")]

PAGES = (
    "", "/queues", "/queues/orders", "/queues/orders?state=failed", "/queues/orders/publish", "/queues/orders/purge",
    "/messages/0", "/messages/1?view=hex", "/journals", "/journals/web", "/journals/web/3", "/journals/web/append",
    "/running", "/running/totals", "/graphs/shop", "/schedules", "/schedules/shop%2Freport",
    "/schedules/shop%2Freport/delete", "/ledgers", "/store", "/settings", "/nothing",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as made:
        yield made


async def fill(world: World) -> None:
    """A shop with a bit of everything, that has been open for a while."""
    store = world.server.store
    for name in ("mails", "invoices/eu", "returns"):
        await store.queue(name).create()
    await store.queue("orders").create(max_attempts=3, description="What customers have ordered")
    orders = [
        Outgoing(b'{"id": %d, "cents": 1200, "items": ["hat", "scarf"]}' % at, {"tier": "gold" if at % 3 else "silver"})
        for at in range(40)
    ]
    await store.queue("orders").publish_many(orders)
    claimed = await store.queue("orders").claim(6, consumer="worker-2 on host-1")
    await claimed[0].fail("TimeoutError: the bank did not answer", final=True)
    await claimed[1].fail("ValueError: no such tier", final=True)
    await claimed[2].ack()
    await store.queue("mails").publish(b"hello")
    await store.queue("mails").pause()
    for at in range(120):
        await store.queue("orders").publish_many([b'{"id": 100}'] * (12 + at % 9 * (at % 7)))
        done = await store.queue("orders").claim(18 + at % 23)
        await store.queue("orders").ack(done)
        world.clock.now_s += 5
        await world.series.look()
    await store.schedule("shop/sweep", every="15m", queue="returns", body=b"sweep", paused=True)
    await store.schedule(
        "shop/report", cron="0 6 * * mon-fri", tz="Europe/Paris", queue="mails", headers={"kind": "daily"}
    )
    events = [(b'{"visit": %d}' % at, b"user-%d" % (at % 7), {"tier": "gold"}) for at in range(60)]
    await store.journal("web").append_many(events)
    await store.journal("totals").append(b"1")
    for name, reads, writes, error in (
        ("graph/shop/total", "web", "totals", ""),
        ("graph/shop/check", "web", "rejected", "ValueError: no such tier"),
        ("graph/shop/export", "totals", "exported", ""),
        ("totals", "web", "totals", ""),
    ):
        await store.commit([shards.RegisterConsumer(name, 1, [reads], "key")])
        await store.commit([shards.Heartbeat(name, "host-1/4711", 600_000, "detent run shop.py")])
        await store.commit([shards.LeaseShard(name, 0, "host-1/4711", 600_000)])
        status = "failed" if error else "running"
        await store.commit([shards.ReportShard(name, 0, 0, status, error, {reads: 1}, {writes: 1})])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with console(f"file:{tmp_path_factory.mktemp('shop')}/store") as world:
        world.server.run(fill(world))
        yield world


class Watch:
    """What a page complains of."""

    def __init__(self, page: Any) -> None:
        self.found: list[str] = []
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("dialog", lambda dialog: self.found.append(f"dialog {dialog.message}"))

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"} and "404" not in text and "400" not in text and "403" not in text:
            self.found.append(text)


def opened(browser: Any, world: World, width: int = 1280, scheme: str = "light") -> tuple[Any, Watch]:
    page = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=scheme).new_page()
    page.set_default_timeout(15_000)
    return page, Watch(page)


WIDE = ("", "/queues/orders?state=failed", "/messages/0", "/journals/web", "/graphs/shop",
        "/schedules/shop%2Freport", "/settings")  # fmt: skip
"""Pages that are looked at in light colours, too: each element of a page is on one of them."""


@pytest.mark.parametrize(("width", "scheme", "pages"), [(1280, "light", WIDE), (360, "dark", PAGES)])
def test_no_page_breaks_its_policy_scrolls_sideways_or_keeps_people_out(
    browser: Any, shop: World, width: int, scheme: str, pages: tuple[str, ...]
) -> None:
    page, watch = opened(browser, shop, width, scheme)
    for path in pages:
        page.goto(f"{shop.server.url}/console{path}", wait_until="load")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        assert barriers(page) == [], path
    assert watch.found == []
    page.context.close()


def test_no_hostile_text_runs_on_any_page(browser: Any, tmp_path: Path) -> None:
    with console(f"file:{tmp_path}/store") as world:
        names = world.server.run(fill_hostile(world.server.store))["consumers"]
        page, watch = opened(browser, world, 360)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for path in hostile_pages(names):
            page.goto(f"{world.server.url}/console{path}", wait_until="load")
            assert page.evaluate("window.ran") is None, path
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        assert watch.found == []
        assert [url for url in asked if not url.startswith(f"{world.server.url}/console")] == []
        page.context.close()


def test_page_follows_the_store_and_keeps_the_focus(browser: Any, shop: World) -> None:
    page, watch = opened(browser, shop)
    page.goto(f"{shop.server.url}/console/queues")
    page.wait_for_selector("[data-pulse=on]")
    link = page.get_by_role("link", name="returns")
    link.focus()
    shop.server.run(shop.server.store.queue("returns").publish_many([b"x"] * 17))
    page.wait_for_selector("tr:has-text('returns') td:text-is('17')")
    assert page.evaluate("document.activeElement.textContent") == "returns"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type("invoices")
    page.keyboard.press("Enter")
    page.locator("p", has_text="1 of 1 queues").wait_for()
    assert watch.found == []
    page.context.close()


def test_change_by_buttons_alone(browser: Any, shop: World) -> None:
    page, watch = opened(browser, shop, 360)
    page.goto(f"{shop.server.url}/console/queues/returns")
    page.get_by_role("button", name="Pause").click()
    page.locator(".notice", has_text="gives out nothing").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.locator(".notice", has_text="goes on").wait_for()
    page.get_by_role("link", name="Publish…").click()
    page.get_by_label("Body").fill('{"by": "hand"}')
    page.get_by_role("button", name="Publish to returns").click()
    page.locator(".notice", has_text="is published").wait_for()
    assert watch.found == []
    page.context.close()


def test_page_waits_for_a_server_that_comes_back(browser: Any, tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "detent.cli", "serve", f"file:{tmp_path}/store", "--port", str(port)]

    def start() -> Any:
        process = zygote.Forked(command, stderr=subprocess.PIPE, text=True)
        assert any(READY.search(line) for line in process.stderr)
        return process

    process = start()
    page = browser.new_context().new_page()
    page.set_default_timeout(30_000)
    try:
        page.goto(f"http://127.0.0.1:{port}/console")
        page.wait_for_selector("[data-pulse=on]")
        process.kill()
        process.communicate()
        page.wait_for_selector("[data-pulse=off]")
        assert page.locator("h1").inner_text() == "Overview"
        process = start()
        page.wait_for_selector("[data-pulse=on]")
    finally:
        page.context.close()
        process.terminate()
        process.communicate()


SHOTS = (
    ("overview", "", 1280, 860, "light"),
    ("queue", "/queues/orders", 1280, 860, "light"),
    ("message", "/messages/0", 1280, 900, "light"),
    ("graph", "/graphs/shop", 1280, 460, "dark"),
    ("phone", "/queues/orders", 390, 800, "dark"),
)


def test_pictures_of_the_documentation_can_be_made(browser: Any, shop: World, tmp_path: Path) -> None:
    folder = Path(os.environ.get("DETENT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    for name, path, width, height, scheme in SHOTS if "DETENT_SCREENSHOTS" in os.environ else SHOTS[:1]:
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        page = context.new_page()
        page.goto(f"{shop.server.url}/console{path}", wait_until="load")
        page.screenshot(path=folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000
        context.close()
