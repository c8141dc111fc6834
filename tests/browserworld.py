"""Chromium for tests of the console, by Playwright; `needs_browser` says what is missing.

    with chromium() as browser:
        page = browser.new_context(viewport={"width": 360, "height": 740}).new_page()

Playwright drives the Chromium of the machine (`apt-get install chromium`), so nothing is downloaded. Its loop runs in
the thread that opens it: open it for a module, and use no asyncio in that thread meanwhile.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")

AXE = Path(__file__).parent / "vendored" / "axe.min.js"
"""What looks for barriers on a page; see vendored.json beside it."""


def find_chromium() -> str | None:
    """The browser of this machine."""
    return os.environ.get("DETENT_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def missing() -> str:
    """What keeps browser tests from running here; nothing, if they can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: pip install playwright"
    return "" if find_chromium() else "Chromium is not installed: apt-get install chromium"


needs_browser = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window, for the time of a block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # The sandbox needs rights that a container seldom gives; these pages are the test's own.
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def barriers(page: Any) -> list[str]:
    """What axe finds on a page that keeps people out: findings that are serious or worse."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:150] for node in one['nodes'][:3]]}"
        for one in found["violations"]
        if one["impact"] in {"serious", "critical"}
    ]
