"""Draws pages in light, in dark and as on a phone: `python tests/browser/screenshots.py DIRECTORY [PAGE ...]`."""

import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import expect, sync_playwright

import postgres
from browser.browsing import launch, tab
from browser.history import add_history
from browser.live_server import live_server
from browser.pages import ORDINARY, fill, paths
from evertick.config.settings import Settings

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1360, "height": 672}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1360, "height": 672}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}


def draw(folder: Path, names: Collection[str] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="evertick-screenshots-"))
    root.chmod(0o711)
    servers = postgres.Servers(root)
    try:
        with live_server(servers.get(postgres.EMBEDDED), Settings(port=0)) as server, sync_playwright() as playwright:
            fill(server, texts=ORDINARY)
            add_history(server)
            browser = launch(playwright)
            for look, options in LOOKS.items():
                with tab(browser, server.address, **options) as opened:
                    opened.expect("404")
                    opened.open("/login")
                    opened.page.screenshot(path=folder / f"login-{look}.png", full_page=True)
                    opened.log_in(server.key("admin"))
                    opened.page.locator("#navigation").wait_for(state="attached")
                    for name, path in paths(server).items():
                        if names and name not in names:
                            continue
                        opened.open(path)
                        # What is counted bit by bit, on a machine that is busy.
                        expect(opened.page.locator(".unknown, [aria-busy]")).to_have_count(0, timeout=60_000)
                        opened.page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
            browser.close()
    finally:
        servers.stop()
        postgres.remove(root)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), sys.argv[2:])
