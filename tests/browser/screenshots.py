"""Draws pages in light, in dark and as on a phone: `python tests/browser/screenshots.py DIRECTORY [PAGE ...]`.

Without arguments it draws the pictures of the documentation, in `docs/images`.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, FloatRect, expect, sync_playwright

import postgres
from browser.browsing import Tab, launch, tab
from browser.history import add_history
from browser.live_server import LiveServer, live_server
from browser.pages import ORDINARY, fill, paths
from evertick.config.settings import Settings
from evertick.runtime.smearing import smear_batch

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1360, "height": 672}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1360, "height": 672}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "device_scale_factor": 2},
}
IMAGES = Path(__file__).parents[2] / "docs" / "images"
DOCUMENTED = {("overview", "light"): None, ("job", "dark"): 860, ("forecast", "light"): 1260}
"""The pages and looks that the documentation shows, and how much of them, from the top."""
HERDS = {"0 2 * * *": 60, "30 5 * * *": 45}
"""Schedules, and how many jobs have each."""


class Scene(NamedTuple):
    """A page, and what is clicked on it where it can be: the button of the menu is on phones alone."""

    path: str
    clicked: str


SCENES = {
    "menu": Scene("/", ".menu-button"),
    "keyboard": Scene("/", "[data-help]"),
    "job-trigger": Scene("/jobs/{job}", "[data-confirm=trigger]"),
    "job-resume": Scene("/jobs/{paused}", "[data-confirm=resume]"),
    "dead-letters-replay": Scene("/dead-letters", "[data-confirm=replay-all]"),
    "forecast-apply": Scene("/forecast?label=tier:nightly", "[data-confirm=apply-advice]"),
}
CHANGED = {"dead-letters-replaying": "/dead-letters", "forecast-smeared": "/forecast?label=tier:nightly"}
"""Pages while a replay goes on, and after an advice was applied: drawn last, for other pages show these too."""


class Picture(NamedTuple):
    """Where a picture goes, and its height; None: all of the page."""

    file: Path
    height: int | None = None


Wanted = Callable[[str, str], Picture | None]
"""The picture of a page and a look; None: nobody wants it."""


def draw(wanted: Wanted) -> None:
    with _server() as server, sync_playwright() as playwright:
        browser = launch(playwright)
        for look in LOOKS:
            with _tab(browser, server, look, wanted) as opened:
                for name, path in paths(server).items():
                    _draw(opened, path, wanted(name, look))
                for name, scene in SCENES.items():
                    _draw(opened, scene.path.format(**server.ids), wanted(name, look), scene.clicked)
        if any(wanted(name, look) for name in CHANGED for look in LOOKS):
            _change(server)
            for look in LOOKS:
                with _tab(browser, server, look, lambda *_: None) as opened:
                    for name, path in CHANGED.items():
                        _draw(opened, path, wanted(name, look))
        browser.close()


@contextmanager
def _server() -> Iterator[LiveServer]:
    """A server with a past, and jobs that all fire at one time."""
    root = Path(tempfile.mkdtemp(prefix="evertick-screenshots-"))
    root.chmod(0o711)
    servers = postgres.Servers(root)
    try:
        with live_server(servers.get(postgres.EMBEDDED), Settings(port=0)) as server:
            fill(server, jobs=80, texts=ORDINARY, triggers=1)
            add_history(server)
            target = {"type": "worker", "queue": "nightly", "handler": "export"}
            job = {"target": target, "labels": {"tier": "nightly"}}
            schedules = [schedule for schedule, jobs in HERDS.items() for _ in range(jobs)]
            herd = [
                {**job, "name": f"nightly/export-{number:03}", "schedule": schedule}
                for number, schedule in enumerate(schedules)
            ]
            with server.client(server.key("editor")) as api:
                api.post("/jobs:batch", json=herd).raise_for_status()
            yield server
    finally:
        servers.stop()
        postgres.remove(root)


def _change(server: LiveServer) -> None:
    """Begin a slow replay, and apply the advice."""
    with server.client(server.key("editor")) as api:
        query = {"label": "tier:nightly"}
        advice = api.get("/forecast/advice", params=query).raise_for_status().json()
        rules = [rule["rule_id"] for rule in advice["rules"]]
        wish = {"rules": rules, "jitter_seconds": advice["jitter_seconds"], "label": [query["label"]]}
        api.post("/forecast/advice:apply", json=wish).raise_for_status()
        while server.run(smear_batch(server.pool)) is not None:
            pass
        api.post("/dead-letters:replay", json={"rate_per_second": 0.2, "background": True}).raise_for_status()


@contextmanager
def _tab(browser: Browser, server: LiveServer, look: str, wanted: Wanted) -> Iterator[Tab]:
    """An admin's, after a picture of the login."""
    with tab(browser, server.address, **LOOKS[look]) as opened:
        opened.expect("404")
        _draw(opened, "/login", wanted("login", look))
        opened.log_in(server.key("admin"))
        opened.page.locator("#navigation").wait_for(state="attached")
        yield opened


def _draw(opened: Tab, path: str, picture: Picture | None, clicked: str = "") -> None:
    if picture is None:
        return
    opened.open(path)
    # What is counted bit by bit, on a machine that is busy.
    expect(opened.page.locator(".unknown, [aria-busy]")).to_have_count(0, timeout=60_000)
    if clicked:
        button = opened.page.locator(clicked).first
        if not button.is_visible():
            return
        button.click()
    top: FloatRect | None = None
    if picture.height is not None and opened.page.viewport_size is not None:
        top = {"x": 0, "y": 0, "width": opened.page.viewport_size["width"], "height": picture.height}
    opened.page.screenshot(path=picture.file, full_page=not clicked, clip=top)


def _wanted(arguments: list[str]) -> Wanted:
    if not arguments:
        return _documented
    folder, names = Path(arguments[0]), arguments[1:]
    folder.mkdir(parents=True, exist_ok=True)
    return lambda name, look: Picture(folder / f"{name}-{look}.png") if not names or name in names else None


def _documented(name: str, look: str) -> Picture | None:
    return Picture(IMAGES / f"{name}.png", DOCUMENTED[name, look]) if (name, look) in DOCUMENTED else None


if __name__ == "__main__":
    draw(_wanted(sys.argv[1:]))
