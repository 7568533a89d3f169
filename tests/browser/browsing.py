"""Chromium, and pages of it that are logged in."""

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, expect

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_numbers = itertools.count(1)
PATIENCE_MS = 120_000
"""On a machine of any speed: reaching it means that something hangs."""
_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def launch(playwright: Playwright) -> Browser:
    assert CHROMIUM is not None
    expect.set_options(timeout=PATIENCE_MS)
    return playwright.chromium.launch(executable_path=CHROMIUM, args=_FLAGS, timeout=PATIENCE_MS)


class Tab:
    """A page, and what went wrong in it: errors in the console, violations of the policy, failed scripts."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.faults: list[str] = []
        self.expected: list[str] = []
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def open(self, path: str) -> None:
        self.page.goto(self.address + path, wait_until="load")

    def log_in(self, key: str) -> None:
        self.open("/login")
        self.page.get_by_label("API key").fill(key)
        self.page.get_by_role("button", name="Log in").click()

    def expect(self, text: str) -> None:
        """A message in the console that is no fault here, such as that of a page that is not there."""
        self.expected.append(text)

    def check(self) -> None:
        assert [fault for fault in self.faults if not any(text in fault for text in self.expected)] == []

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.faults.append(f"{message.type}: {message.text} ({message.location.get('url')})")


@contextmanager
def tab(browser: Browser, address: str, **options: Any) -> Iterator[Tab]:
    """A new tab with cookies of its own. At its end, nothing may have gone wrong in it."""
    # Each as if from another address: attempts to log in are limited by address.
    headers = {"X-Forwarded-For": f"10.0.{next(_numbers)}.1"}
    context: BrowserContext = browser.new_context(extra_http_headers=headers, **options)
    context.set_default_timeout(PATIENCE_MS)
    try:
        opened = Tab(context.new_page(), address)
        yield opened
        opened.check()
    finally:
        context.close()
