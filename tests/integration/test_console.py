"""The console's pages, as a browser without a script uses them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consoleworld import Browser, World, console, fill_hostile, hostile_pages
from detent.processor import provenance
from detent.queue import Outgoing
from detent.server.console import live
from detent.server.console.assets import FOLDER
from detent.server.console.render import TEMPLATES
from detent.server.console.wording import NOTHING
from detent.server.keys import remove_key
from processes import eventually


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with console() as made:
        yield made


@pytest.fixture
def browser(world: World) -> Browser:
    """A browser, and a store without queues."""

    async def empty() -> None:
        for queue in await world.server.store.queues():
            await world.server.store.queue(queue.name).delete()

    world.server.run(empty())
    return world.browser()


def filled(world: World, name: str = "orders", count: int = 3, **settings: Any) -> None:
    async def fill() -> None:
        await world.server.store.queue(name).create(**settings)
        await world.server.store.queue(name).publish_many([Outgoing(b'{"id": %d}' % at) for at in range(count)])

    if count:
        world.server.run(fill())
    else:
        world.server.run(world.server.store.queue(name).create(**settings))


def failed(world: World, name: str, count: int, reason: str = "TimeoutError: bank") -> None:
    async def fail() -> None:
        for one in await world.server.store.queue(name).claim(count, consumer="w-1"):
            await one.fail(reason, final=True)

    world.server.run(fail())


# -- pages ----------------------------------------------------------------------------------------------------------


def test_overview_of_a_new_store_says_how_to_publish(browser: Browser) -> None:
    page = browser.get()
    assert page.status == 200
    assert "detent queue create" in page.words
    assert "Nothing. Checked at" in page.words


def test_first_page_of_the_server_leads_to_the_console(browser: Browser) -> None:
    led = browser.client.get("/", headers={"accept": "text/html,*/*"})
    assert (led.status_code, led.headers["location"]) == (307, "/console")
    assert browser.client.get("/", headers={"accept": "*/*"}).status_code == 404


def test_overview_says_what_failed_and_what_is_paused(world: World, browser: Browser) -> None:
    filled(world)
    failed(world, "orders", 1)
    filled(world, "mails")
    world.server.run(world.server.store.queue("mails").pause())
    page = browser.get()
    assert "Failed messages orders 1 message gave up" in page.words
    assert "Paused mails 3 messages in it" in page.words


def test_list_is_sorted_and_cut_by_the_store(world: World, browser: Browser) -> None:
    for at in range(60):
        filled(world, f"q{at:02}", at % 4)
    page = browser.get("/queues?sort=available")
    rows = page.all("tr")[1:]
    assert len(rows) == 50
    assert rows[0].text.startswith("q03 3")
    more = next(link for link in page.links() if "after=" in link)
    rest = browser.get(more).all("tr")[1:]
    assert len(rest) == 10
    assert "1 of 1 queues" in browser.get("/queues?contains=Q07").words


def test_queue_page_shows_counts_settings_and_messages_of_a_state(world: World, browser: Browser) -> None:
    filled(world, lease="45s", description="what customers order")
    failed(world, "orders", 1)
    page = browser.get("/queues/orders")
    assert "what customers order" in page.words
    assert "lease 45s" in page.words
    only = browser.get("/queues/orders?state=failed")
    assert "TimeoutError: bank" in only.words
    assert '{"id": 1}' not in only.words


def test_filter_with_a_slip_of_the_pen_is_said_on_the_page(world: World, browser: Browser) -> None:
    filled(world)
    page = browser.get("/queues/orders?filter=headers.tier+%3D%3D%3D+1")
    assert page.status == 200
    assert any(one.attributes.get("role") == "alert" for one in page.all("p"))


def test_looking_at_pages_changes_nothing(world: World, browser: Browser) -> None:
    filled(world)
    failed(world, "orders", 1)
    before = world.server.run(world.server.store.queue("orders").info())
    for path in ("", "/queues", "/queues/orders", "/queues/orders?state=available", "/messages/0", "/messages/0/body",
                 "/queues/orders/redrive", "/queues/orders/purge", "/queues/orders/publish"):  # fmt: skip
        assert browser.get(path).status in {200, 404}
    assert world.server.run(world.server.store.queue("orders").info()) == before


def test_message_page_tells_its_attempts_and_its_dead_letters(world: World, browser: Browser) -> None:
    filled(world, "dead", 0)
    filled(world, "orders", 1, dead_letter="dead")
    failed(world, "orders", 1, "no such customer")
    number = world.server.run(world.server.store.queue("dead").peek()).messages[0].message
    page = browser.get(f"/messages/{number}")
    assert "orders gave it up" in page.words
    assert "no such customer" in page.words
    assert "w-1" in page.words


@pytest.mark.parametrize(
    ("body", "view", "shown"),
    [
        (b'{"a": 1.10, "a": 12345678901234567890}', "json", '"a": 1.10, "a": 12345678901234567890'),
        (b"plain words", "text", "plain words"),
        (b"\x00\xff", "hex", "00000000 00 ff"),
        (b"[" * 100_000, "text", "[["),
        (b'{"a": "\xe2\x80\xae<b>"}', "json", "\\u202e<b>"),
    ],
)
def test_body_is_shown_as_what_it_is(world: World, browser: Browser, body: bytes, view: str, shown: str) -> None:
    filled(world, "q", 0)
    number = world.server.run(world.server.store.queue("q").publish(body)).message
    page = browser.get(f"/messages/{number}")
    tabs = [one for one in page.all("a") if "view=" in one.attributes["href"]]
    assert [one.text.lower() for one in tabs if "aria-current" in one.attributes] == [view]
    assert shown in page.text("pre")
    saved = browser.client.get(f"/console/messages/{number}/body")
    assert saved.content == body
    assert saved.headers["content-type"] == "application/octet-stream"
    assert saved.headers["content-disposition"].startswith("attachment")


def test_address_of_a_payload_is_text_and_no_link(world: World, browser: Browser) -> None:
    filled(world, "q", 0)
    number = world.server.run(world.server.store.queue("q").publish(Outgoing(b"", uri="javascript:alert(1)"))).message
    page = browser.get(f"/messages/{number}")
    assert page.text("pre") == "javascript:alert(1)"
    assert not any("javascript" in link for link in page.links())


def test_message_that_is_gone_is_said_so(browser: Browser) -> None:
    page = browser.get("/messages/123456")
    assert page.status == 404
    assert "there is no message 123456" in page.words


# -- changes --------------------------------------------------------------------------------------------------------


def test_publish_pause_and_resume_by_their_forms(world: World, browser: Browser) -> None:
    filled(world, "q", 0)
    done = browser.get("/queues/q/publish").send("Publish to q", body="hello\r\nworld", headers="tier: gold")
    assert "is published" in done.words
    assert "tier gold" in done.words
    found = world.server.run(world.server.store.queue("q").peek()).messages
    assert found[0].body == b"hello\nworld"
    assert "gives out nothing" in browser.get("/queues/q").send("Pause").words
    assert world.server.run(world.server.store.queue("q").info()).paused
    browser.get("/queues/q").send("Resume")
    assert not world.server.run(world.server.store.queue("q").info()).paused


def test_redrive_says_how_many_and_shows_some_first(world: World, browser: Browser) -> None:
    filled(world, "q", 5)
    failed(world, "q", 4)
    page = browser.get("/queues/q/redrive")
    assert page.text("h1") == "Try 4 failed messages again?"
    assert len(page.all("tr")) == 3
    assert "4 messages can be claimed again" in page.send("Redrive 4").words
    assert world.server.run(world.server.store.queue("q").info()).available == 5


def test_chosen_messages_alone_are_redriven_or_purged(world: World, browser: Browser) -> None:
    filled(world, "q", 4)
    failed(world, "q", 4)
    page = browser.get("/queues/q?state=failed")
    boxes = [one.attributes["value"] for one in page.all("input") if one.attributes.get("name") == "message"]
    page.send("Redrive the chosen", message=boxes[:1])
    browser.get("/queues/q?state=failed").send("Purge the chosen", message=boxes[1:3])
    info = world.server.run(world.server.store.queue("q").info())
    assert (info.available, info.failed, info.total_purged) == (1, 1, 2)


def test_form_that_is_sent_twice_acts_once(world: World, browser: Browser) -> None:
    filled(world, "q", 0)
    page = browser.get("/queues/q/publish")
    first = page.send("Publish to q", body="once", follow=False)
    second = page.send("Publish to q", body="once", follow=False)
    assert first.response.headers["location"] == second.response.headers["location"]
    assert world.server.run(world.server.store.queue("q").info()).available == 1


def test_refused_change_says_why(world: World, browser: Browser) -> None:
    filled(world, "q", 0)
    page = browser.get("/queues/q/publish").send("Publish to q", headers="no colon")
    assert page.status == 400
    assert "name: value" in page.words


@pytest.mark.parametrize("missing", ["csrf", "origin", "foreign"])
def test_change_needs_proof_and_its_own_origin(world: World, browser: Browser, missing: str) -> None:
    filled(world, "q", 0)
    page = browser.get("/queues/q")
    fields = {"csrf": "" if missing == "csrf" else page.forms()[0].children[0].attributes["value"], "to": "paused"}  # type: ignore[union-attr]
    headers = {"csrf": {}, "origin": {"origin": "", "sec_fetch_site": ""}, "foreign": {"origin": "http://evil.test"}}
    done = browser.post("/queues/q/pause", fields, **headers[missing])
    assert done.status == 403
    assert not world.server.run(world.server.store.queue("q").info()).paused
    assert browser.get("/queues/q/pause").status == 400


# -- browsers -------------------------------------------------------------------------------------------------------


def test_every_answer_forbids_scripts_and_frames_from_elsewhere(browser: Browser) -> None:
    for path in ("", "/queues", "/nothing", "/settings"):
        policy = browser.get(path).response.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy


def test_no_template_has_a_script_a_style_or_a_way_around_escaping() -> None:
    for path in TEMPLATES.iterdir():
        text = path.read_text()
        for part in ("|safe", "style=", "<style", "onclick", "hx-on", "javascript:", "autoescape"):
            assert part not in text, (path.name, part)
        assert text.count("<script") == text.count("<script src="), path.name


def test_vendored_files_are_the_ones_that_are_named() -> None:
    for folder in (FOLDER, Path(__file__).parents[1] / "vendored"):
        for one in json.loads((folder / "vendored.json").read_text()):
            assert hashlib.sha256((folder / one["file"]).read_bytes()).hexdigest() == one["sha256"]
            assert one["licence"]
            assert one["version"]


def test_zone_and_colours_are_kept_in_the_browser(world: World, browser: Browser) -> None:
    browser.get("/settings").send("Keep", zone="Asia/Kathmandu", theme="dark")
    page = browser.get()
    assert page.all("html")[0].attributes["data-theme"] == "dark"
    assert "+05:45" in page.text("footer")
    assert browser.get("/settings").send("Keep", zone="Nowhere/Land").status == 400


def test_foreign_names_and_origins_are_refused(browser: Browser) -> None:
    assert browser.get("", host="evil.test").status == 403
    assert browser.get("", sec_fetch_site="cross-site").status == 403
    led = browser.get("", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")
    assert led.status == 200


# -- keys -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    keys: Path = tmp_path_factory.mktemp("keys") / "keys.json"
    with console(keys=keys) as made:
        filled(made, "orders", 3)
        failed(made, "orders", 1)
        filled(made, "secret", 2)
        yield made


def test_login_leads_to_the_page_that_was_meant_and_nowhere_else(guarded: World) -> None:
    key = guarded.key(["admin:*:*"])
    token = f"{key.id}.{key.secret}"
    browser = guarded.browser()
    form = browser.get("/queues/orders?state=failed")
    assert form.text("h1") == "Log in"
    assert form.send("Log in", token=token).text("h1") == "orders"
    for wrong in ("//evil.test", "https://evil.test/console", "/console/../v1", "/console/%2e%2E/v1", "/console\\..",
                  "/consolex", "/console/\r\nset-cookie: a=b"):  # fmt: skip
        led = guarded.browser().post("/login", {"token": token, "next": wrong}, follow=False)
        assert led.response.headers["location"] == "/console", wrong


def test_cookie_holds_no_token_and_opens_nothing_but_the_console(guarded: World) -> None:
    key = guarded.key(["admin:*:*"])
    browser = guarded.browser()
    done = browser.post("/login", {"token": f"{key.id}.{key.secret}", "next": ""}, follow=False)
    cookie = done.response.headers["set-cookie"]
    assert key.secret not in cookie
    for part in ("HttpOnly", "SameSite=Strict", "Path=/console"):
        assert part in cookie
    sent = {"cookie": cookie.partition(";")[0], "host": "127.0.0.1"}
    assert browser.client.get("/v1/queues", headers=sent).status_code == 401
    assert key.secret not in browser.get("").response.text


def test_link_from_elsewhere_is_loaded_again_from_here(guarded: World) -> None:
    browser = guarded.browser("read:*:*")
    bare = guarded.browser()
    page = bare.get("/queues", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document")
    assert page.status == 200
    assert any("url=/console/queues" in one.attributes.get("content", "") for one in page.all("meta"))
    assert browser.get("/queues").text("h1") == "Queues"


def test_reader_sees_no_button_and_is_refused_without_one(guarded: World) -> None:
    reader = guarded.browser("read:*:*")
    for path in ("", "/queues", "/queues/orders", "/queues/orders?state=failed", "/messages/0"):
        page = reader.get(path)
        assert [button for button in page.buttons() if "visitor" not in button] == []
    csrf = reader.get("").forms()[0].children[0].attributes["value"]  # type: ignore[union-attr]
    for path in ("publish", "pause", "redrive", "purge"):
        done = reader.post(f"/queues/orders/{path}", {"csrf": csrf, "to": "paused", "state": "failed", "body": "x"})
        assert done.status == 403, path


def test_key_for_some_queues_sees_no_others(guarded: World) -> None:
    visitor = guarded.browser("read:queue:orders*")
    assert "secret" not in visitor.get("").words
    assert "secret" not in visitor.get("/queues").words
    assert visitor.get("/queues/secret").status == 403
    assert visitor.get("/messages/4").status == 404
    assert visitor.get("/messages/0").status == 200


def test_revoked_key_ends_its_session(guarded: World) -> None:
    browser = guarded.browser("read:*:*", name="short")
    assert browser.get("/queues").text("h1") == "Queues"
    assert guarded.keys is not None
    remove_key(guarded.keys, "short")
    ring = guarded.entrance._keys
    assert ring is not None
    ring._looked = 0.0
    assert browser.get("/queues").text("h1") == "Log in"


def test_logging_out_ends_the_session(guarded: World) -> None:
    browser = guarded.browser("read:*:*", name="leaver")
    kept = dict(browser.client.cookies)
    browser.get("").send("leaver ⏻")
    browser.client.cookies.update(kept)
    assert browser.get("/queues").text("h1") == "Log in"


def test_wrong_tokens_are_tried_five_times_a_minute(guarded: World) -> None:
    browser = guarded.browser()
    statuses = [browser.post("/login", {"token": "x.y", "next": ""}).status for _ in range(6)]
    assert statuses == [403] * 5 + [429]
    guarded.entrance._wrong.clear()


# -- journals, and what runs ----------------------------------------------------------------------------------------


def journal(world: World, name: str, count: int) -> None:
    async def fill() -> None:
        entries = [(b'{"visit": %d}' % at, b"user-%d" % at, {"tier": "gold"} if at % 2 else {}) for at in range(count)]
        await world.server.store.journal(name).append_many(entries)

    world.server.run(fill())


def test_journal_shows_its_newest_messages_and_leads_to_older_ones(world: World, browser: Browser) -> None:
    journal(world, "web", 120)
    page = browser.get("/journals/web")
    assert "From offset" in page.words
    assert any(link.endswith("/journals/web/119") for link in page.links())
    older = browser.get(next(link for link in page.links() if "from=20" in link))
    assert any(link.endswith("/journals/web/20") for link in older.links())
    entry = browser.get("/journals/web/7")
    assert '"visit": 7' in entry.text("pre")
    assert browser.get("/journals").words.count("web 120") == 1


def test_search_in_a_journal_says_how_far_it_looked(world: World, browser: Browser) -> None:
    journal(world, "searched", 120)
    page = browser.get("/journals/searched?text=VISIT%22%3A+11&filter=headers.tier+%3D%3D+%22gold%22")
    assert "6 found among the 120 messages from offset 0 on, up to the end of the journal" in page.words
    page = browser.get("/journals/searched?text=nothing&from=100")
    assert "0 found among the 20 messages from offset 100" in page.words
    assert browser.get("/journals/searched?filter=%3D%3D").status == 200


def test_journal_is_read_from_a_time_in_the_browsers_zone(world: World, browser: Browser) -> None:
    journal(world, "timed", 3)
    assert any(link.endswith("/timed/0") for link in browser.get("/journals/timed?at=2020-01-01").links())
    assert "No message is there yet" in browser.get("/journals/timed?at=2999-01-01").words
    assert "a time is written as" in browser.get("/journals/timed?at=yesterday").words


def test_append_and_trim_by_their_forms(world: World, browser: Browser) -> None:
    journal(world, "forms", 3)
    done = browser.get("/journals/forms/append").send("Append to forms", body="new", key="k", headers="a: b")
    assert "Appended at offset 3" in done.words
    assert "now begins at offset 2" in browser.get("/journals/forms").send("Forget them for good", before="2").words


def consumer(world: World, name: str, reads: str, error: str = "") -> None:
    from detent.shard import operations as shards

    async def make() -> None:
        store = world.server.store
        await store.commit([shards.RegisterConsumer(name, 1, [reads], "key")])
        await store.commit([shards.Heartbeat(name, "m-1", 60_000)])
        await store.commit([shards.LeaseShard(name, 0, "m-1", 60_000)])
        status = "failed" if error else "running"
        written = {f"{name}-out": 1}
        await store.commit([shards.ReportShard(name, 0, 0, status, error, {reads: 1}, written)])

    world.server.run(make())


def test_running_shows_lag_and_errors_and_steers(world: World, browser: Browser) -> None:
    journal(world, "steered", 5)
    consumer(world, "totals", "steered")
    page = browser.get("/running")
    assert "totals consumer running 1 4 steered" in page.words
    assert "totals consumer running 4" in browser.get("/journals/steered").words
    paused = browser.get("/running/totals").send("Pause")
    assert "rests once it has finished" in paused.words
    assert world.server.run(world.server.store.consumer("totals").info()).paused
    browser.get("/running/totals").send("Resume")
    done = browser.get("/running/totals").send("Read again from there", journal="steered", offset="0")
    assert "reads steered from offset 0 on" in done.words
    assert world.server.run(world.server.store.consumer("totals").info()).shards[0].resets == {"steered": 0}


def test_graph_is_drawn_with_its_state_and_has_the_same_facts_in_a_table(world: World, browser: Browser) -> None:
    journal(world, "drawn", 5)
    consumer(world, "graph/shop/check", "drawn", "ValueError: <b>no tier</b>")
    assert "shop failed 1 4" in browser.get("/running").words
    page = browser.get("/graphs/shop")
    picture = page.all("svg")[0]
    links = {link.attributes["href"] for link in picture.all("a")}
    assert links >= {"/console/running/graph%2Fshop%2Fcheck", "/console/journals/drawn"}
    assert "failed, 4 behind" in picture.text
    assert "ValueError: <b>no tier</b>" in page.words
    assert "Processor fails graph/shop/check" in browser.get().words
    assert browser.get("/graphs/none").words.count("no processor of this graph") == 1


def test_schedules_are_shown_steered_and_deleted(world: World, browser: Browser, guarded: World) -> None:
    assert "detent schedule create" in browser.get("/schedules").words
    filled(world, "reports", 0)

    async def make() -> None:
        store = world.server.store
        await store.schedule(
            "a/report", cron="0 6 * * *", tz="Europe/Paris", queue="reports", headers={"x": "<b>y</b>"}
        )
        await store.schedule("beat", every="1h", journal="timed", body=b'{"a": 1}', key=b"k", missed="all", paused=True)

    world.server.run(make())
    listed = browser.get("/schedules")
    assert "a/report 0 6 * * * Europe/Paris queue reports running in" in listed.words
    assert f"beat every 1h journal timed paused {NOTHING} {NOTHING} 0 0" in listed.words
    page = browser.get("/schedules/a%2Freport")
    assert len(page.all("li")) >= 8
    assert "<b>y</b>" in page.words
    assert "was asked for: it is published once" in page.send("Run now").words
    assert "has no ticks until it is resumed" in browser.get("/schedules/a%2Freport").send("Pause").words
    assert world.server.run(world.server.store.find_schedule("a/report")).paused
    assert "first tick after now" in browser.get("/schedules/a%2Freport").send("Resume").words
    assert '{ "a": 1 }' in browser.get("/schedules/beat").words
    assert "is deleted" in browser.get("/schedules/beat/delete").send("Delete").words
    assert browser.get("/schedules/beat").status == 404
    guarded.server.run(guarded.server.store.schedule("s", every="1h", journal="j"))
    looks = guarded.browser("read:schedule:*").get("/schedules/s")
    assert (looks.status, [one for one in looks.buttons() if one in {"Pause", "Run now"}]) == (200, [])
    assert guarded.browser("read:queue:*").get("/schedules/s").status == 403


def test_schedule_that_cannot_publish_needs_attention(world: World, browser: Browser) -> None:
    filled(world, "gone", 0)

    async def break_it() -> None:
        store = world.server.store
        await store.schedule("broken", every="1h", queue="gone")
        await store.queue("gone").delete()
        await store.run_schedule("broken")

    world.server.run(break_it())
    eventually(lambda: "Schedule fails broken" in browser.get().words, what="the schedule that cannot publish")
    page = browser.get("/schedules/broken")
    assert "It cannot publish : NotFound: there is no queue 'gone'" in page.words
    assert "trouble" in browser.get("/schedules").words
    world.server.run(world.server.store.delete_schedule("broken"))


def test_store_ledgers_and_keys_have_their_pages(world: World, browser: Browser, guarded: World) -> None:
    assert "Epoch" in browser.get("/store").words
    assert "No ledger" in browser.get("/ledgers").words
    world.server.run(world.server.store.pin("stream", {"drawn": 1}))
    assert "stream" in browser.get("/ledgers").words
    admin = guarded.browser("admin:*:*", name="boss")
    keys = admin.get("/keys")
    assert "boss" in keys.words
    assert not any(key.secret in keys.response.text for key in guarded.entrance.listed_keys())
    assert guarded.browser("read:*:*").get("/keys").status == 403
    assert guarded.browser("read:queue:orders*").get("/store").status == 403


def test_curves_follow_the_counters_and_begin_with_a_gap(world: World, browser: Browser) -> None:
    from detent.server.series import SPANS, Series

    now = [1000.0]
    series = Series(world.server.store, clock=lambda: now[0])
    filled(world, "curved", 0)

    async def publish(count: int) -> None:
        await world.server.store.queue("curved").publish_many([b"x"] * count)
        now[0] += 5
        await series.look()

    world.server.run(series.look())
    for count in (10, 20, 30):
        world.server.run(publish(count))
    found = series.of("curved", "15m")
    assert found is not None
    assert found["published"][-2:] == [2.0, 4.0]
    assert found["published"][0] is None
    assert len(found["published"]) == SPANS["15m"].points
    now[0] += 600
    world.server.run(publish(1))
    later = series.of("curved", "15m")
    assert later is not None
    assert later["published"][-100:-1] == [None] * 99
    assert series.of("nothing", "15m") is None


def test_store_that_takes_no_commits_is_said_first_on_every_page(world: World, browser: Browser) -> None:
    from dataclasses import replace

    part: Any = world.server.parts[0]
    part._console = replace(part._console, trouble=lambda: "the disk is gone")
    try:
        for path in ("", "/queues", "/nothing"):
            assert "takes no commits. the disk is gone" in browser.get(path).words
    finally:
        part._console = replace(part._console, trouble=str)


# -- hostile contents -----------------------------------------------------------------------------------------------


def test_hostile_names_headers_reasons_and_bodies_are_text_on_every_page(tmp_path: Path) -> None:
    with console(f"file:{tmp_path}/store") as world:
        browser = world.browser()
        names = world.server.run(fill_hostile(world.server.store))["consumers"]
        for path in hostile_pages(names):
            page = browser.get(path)
            assert page.status in {200, 400, 403, 404}, path
            for element in page.root.all():
                for name, value in element.attributes.items():
                    assert not name.startswith(("on", "hx-on")), (path, element)
                    if name in {"href", "src", "action", "formaction"}:
                        assert value.startswith(("/console", "#")), (path, value)
            assert all("src" in one.attributes for one in page.all("script")), path
            assert "59552089" not in page.words, path
            assert "\u202e" not in page.response.text, path
            (image,) = page.all("img")
            assert image.attributes["src"].startswith("/console/static/mark.svg"), path
        download = browser.client.get("/console/messages/0/body")
        assert download.headers["content-type"] == "application/octet-stream"
        assert download.headers["x-content-type-options"] == "nosniff"


def test_journey_leads_back_and_on_and_the_graph_is_drawn_with_what_it_wrote(world: World, browser: Browser) -> None:
    async def make() -> None:
        store = world.server.store
        await store.journal("numbers").append(b"21")
        made = f"{provenance.VERSION} shop/double key-1 0 numbers#0"
        await store.journal("doubled").append(b"42", headers={provenance.HEADER: made})

    world.server.run(make())
    consumer(world, "graph/shop/double", "numbers")
    first = browser.get("/journals/numbers/0")
    assert "doubled 0 shop/double" in first.words
    assert "which were all" in first.words
    second = browser.get("/journals/doubled/0")
    assert any(link.endswith("/journals/numbers/0") for link in second.links())
    assert "doubled 0, this one shop/double" in second.words
    picture = browser.get("/graphs/shop").all("svg")[0]
    assert any(link.attributes["href"] == "/console/journals/doubled" for link in picture.all("a"))


# -- the bell -------------------------------------------------------------------------------------------------------


def rings(browser: Browser, change: Any) -> list[str]:
    """What a stream says, from the first word after a change on, up to `changed` or its end."""
    said = []
    with browser.client.stream("GET", "/console/live") as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        for line in stream.iter_lines():
            if line.startswith("retry"):
                time.sleep(1.5)  # the first look has been taken then
                change()
            elif line:
                said.append(line)
            if line == "data: changed":
                break
    return said


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PING_S", 0.3)
    monkeypatch.setattr(live, "LOOK_S", 0.2)


@pytest.mark.usefixtures("quick_pings")
def test_bell_rings_for_queues_journals_and_consumers_and_says_nothing_of_them(world: World, browser: Browser) -> None:
    filled(world, "rung", 1)
    for change in (
        lambda: world.server.run(world.server.store.queue("rung").publish(b"x")),
        lambda: journal(world, "rung", 1),
        lambda: consumer(world, "rung", "rung", "ValueError: secret"),
    ):
        said = rings(browser, change)
        assert said[-1] == "data: changed"
        assert set(said) <= {"data: same", "data: changed"}


@pytest.mark.usefixtures("quick_pings")
def test_bell_does_not_ring_for_what_a_key_may_not_see_and_ends_with_the_key(guarded: World) -> None:
    browser = guarded.browser("read:queue:orders*", name="listener")

    def end() -> None:
        guarded.server.run(guarded.server.store.queue("secret").publish(b"x"))
        time.sleep(1)
        assert guarded.keys is not None
        remove_key(guarded.keys, "listener")

    assert set(rings(browser, end)) == {"data: same"}


def test_change_leaves_a_line_that_says_who_what_and_how_many(guarded: World, caplog: pytest.LogCaptureFixture) -> None:
    filled(guarded, "audited", 2)
    failed(guarded, "audited", 2)
    with caplog.at_level("INFO", logger="detent.server.console"):
        guarded.browser("admin:*:*", name="keeper").get("/queues/audited/redrive").send("Redrive 2")
    (line,) = [record.__dict__ for record in caplog.records if record.getMessage() == "a change"]
    assert (line["caller"], line["change"], line["outcome"]) == ("keeper", "queues/audited/redrive", "done")
    assert line["said"] == "2 messages can be claimed again in audited."
