"""One server with data and one browser for all tests of a process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_network

import pytest
from playwright.sync_api import Browser, sync_playwright

import postgres
from browser.browsing import CHROMIUM, Tab, launch, tab
from browser.live_server import LiveServer, live_server
from browser.pages import fill
from evertick.config.settings import Settings

OpenTab = Callable[..., Tab]


@pytest.fixture(scope="module")
def live(postgres_servers: postgres.Servers) -> Iterator[LiveServer]:
    """A server with real jobs and runs, for one module: it is in this process, and so are its metrics, which tests of
    other modules count.
    """
    with live_server(
        postgres_servers.get(postgres.EMBEDDED), Settings(port=0, trusted_proxies=(ip_network("127.0.0.1/32"),))
    ) as server:
        fill(server)
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For one module: while it is there, Playwright's event loop runs, and tests of other modules cannot have one."""
    if CHROMIUM is None:
        pytest.skip("THE DASHBOARD WAS NOT TESTED: there is no chromium on PATH (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        launched = launch(playwright)
        yield launched
        launched.close()


@pytest.fixture
def open_tab(live: LiveServer, browser: Browser) -> Iterator[OpenTab]:
    """Opens tabs: logged in with a new key of a role, or without."""
    with ExitStack() as stack:

        def open_new(role: str | None = "viewer", **options: object) -> Tab:
            opened = stack.enter_context(tab(browser, live.address, **options))
            if role is not None:
                opened.log_in(live.key(role))
                opened.page.locator("#navigation").wait_for(state="attached")
            return opened

        yield open_new


@pytest.fixture
def viewer(open_tab: OpenTab) -> Tab:
    return open_tab("viewer")


@pytest.fixture
def admin(open_tab: OpenTab) -> Tab:
    return open_tab("admin")
