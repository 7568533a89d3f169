"""The forecast in the browser: the advice is applied, the forecast changes, and it is undone."""

import re

from playwright.sync_api import expect

from browser.browsing import Tab
from browser.conftest import OpenTab
from browser.live_server import LiveServer
from evertick.runtime.smearing import smear_batch

JOBS = 120


def test_the_advice_lowers_the_forecast_and_is_undone(live: LiveServer, open_tab: OpenTab) -> None:
    target = {"type": "worker", "queue": "herd", "handler": "act"}
    herd = [{"name": f"herd-{n:03}", "schedule": "17 3 * * *", "target": target} for n in range(JOBS)]
    with live.client(live.key("editor")) as api:
        api.post("/jobs:batch", json=[{**job, "labels": {"herd": "yes"}} for job in herd]).raise_for_status()
    editor = open_tab("editor")
    editor.open("/forecast?label=herd:yes")
    assert _peak(editor) == JOBS
    editor.page.get_by_role("button", name=f"Apply to {JOBS} jobs").click()
    editor.page.get_by_role("button", name="Apply", exact=True).click()
    expect(editor.page.get_by_text(f"{JOBS} jobs get jitter_seconds:")).to_be_visible()
    _work_off(live)
    editor.open("/forecast?label=herd:yes")
    assert _peak(editor) < JOBS / 2
    editor.page.get_by_role("button", name="Undo").first.click()
    expect(editor.page.get_by_text("The jitter is taken back.")).to_be_visible()
    _work_off(live)
    editor.open("/forecast?label=herd:yes")
    assert _peak(editor) == JOBS


def test_a_viewer_sees_the_advice_and_cannot_apply_it(viewer: Tab) -> None:
    viewer.open("/forecast")
    expect(viewer.page.get_by_role("heading", name="Smear advisor")).to_be_visible()
    assert viewer.page.locator("main form[method=post]").count() == 0


def _peak(tab: Tab) -> int:
    tile = tab.page.locator(".tile").filter(has_text="Highest minute").locator("dd").first
    return int(re.sub(r"\D", "", tile.inner_text()))


def _work_off(live: LiveServer) -> None:
    """As a janitor does."""
    while live.run(smear_batch(live.pool)) is not None:
        pass
