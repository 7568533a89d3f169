"""Every page: accessible in light and dark, inert with hostile texts, usable by keyboard."""

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from browser.browsing import Tab
from browser.conftest import OpenTab
from browser.live_server import LiveServer
from browser.pages import HOSTILE, paths


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible(live: LiveServer, open_tab: OpenTab, scheme: str) -> None:
    tab = open_tab(None, color_scheme=scheme)
    tab.expect("404")
    for path in ("/login", *paths(live).values()):
        if path != "/login" and tab.page.url.endswith("/login"):
            tab = _logged_in(open_tab, scheme)
        tab.open(path)
        found = Axe().run(tab.page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"


def _logged_in(open_tab: OpenTab, scheme: str) -> Tab:
    tab = open_tab("admin", color_scheme=scheme)
    tab.expect("404")
    return tab


def test_no_page_is_wider_than_a_phone(live: LiveServer, open_tab: OpenTab) -> None:
    tab = open_tab("admin", viewport={"width": 390, "height": 844})
    tab.expect("404")
    wide = []
    for name, path in paths(live).items():
        tab.open(path)
        if tab.page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
        # Rows become lines of text there; only a heat map is scrolled.
        tables = tab.page.locator(".table-scroll:not(.wide-heat)")
        if any(tables.evaluate_all("(all) => all.map((each) => each.scrollWidth > each.clientWidth)")):
            wide.append(f"a table of {name}")
    assert wide == []


def test_hostile_texts_do_nothing(live: LiveServer, admin: Tab) -> None:
    admin.expect("404")
    for path in (*paths(live).values(), "/jobs?q=%3Cscript%3Edocument.title%3D1%3C%2Fscript%3E"):
        admin.open(path)
        assert "hacked" not in admin.page.title()
        assert admin.page.locator("main script, main img[onerror], main [onmouseover], main [onload]").count() == 0
    admin.open("/jobs")
    for name in HOSTILE:
        expect(admin.page.get_by_role("link", name=name, exact=True)).to_be_visible()


def test_the_overview_is_live(live: LiveServer, viewer: Tab) -> None:
    letters = viewer.page.locator(".need").first
    before = letters.inner_text()
    live.execute(
        """INSERT INTO evertick.dead_letters
                  (job_id, fire_at, tenant_id, lane_id, seq, died_at, spec_version, attempt, reason)
           SELECT job_id, fire_at - interval '1 day', tenant_id, lane_id, seq, died_at, spec_version, attempt, reason
             FROM evertick.dead_letters LIMIT 1"""
    )
    expect(letters).not_to_have_text(before)


def test_the_first_step_is_taught_until_there_is_a_job(live: LiveServer, open_tab: OpenTab) -> None:
    with live.client(live.key("admin")) as api:
        key = api.post("/tenants", json={"name": "beginners"}).raise_for_status().json()["api_key"]
    tab = open_tab(None)
    tab.log_in(key)
    expect(tab.page.get_by_role("heading", name="No jobs yet")).to_be_visible()
    tab.open("/jobs?sort=next_run")
    expect(tab.page.get_by_role("heading", name="Nothing is planned")).to_be_visible()
    tab.open("/")
    with live.client(key) as api:
        target = {"type": "worker", "handler": "hello"}
        api.post("/jobs", json={"name": "first", "schedule": "manual", "target": target}).raise_for_status()
    expect(tab.page.get_by_role("heading", name="No jobs yet")).to_have_count(0)  # live
    expect(tab.page.get_by_role("heading", name="Runs per minute")).to_be_visible()
    tab.open("/jobs?sort=next_run")  # it is not the case that there are no jobs
    expect(tab.page.get_by_role("heading", name="Nothing is planned")).to_be_visible()


def test_jobs_are_found_as_one_types_and_the_address_keeps_it(viewer: Tab) -> None:
    viewer.open("/jobs")
    viewer.page.keyboard.press("/")
    viewer.page.keyboard.type("billing/inv")
    rows = viewer.page.locator("[data-rows] tr")
    expect(rows).to_have_count(2)
    expect(viewer.page).to_have_url(f"{viewer.address}/jobs?q=billing%2Finv")
    viewer.page.reload()
    expect(rows).to_have_count(2)
    viewer.open("/jobs?q=team:billing&status=paused")
    expect(rows).to_have_count(1)
    viewer.open("/jobs?handler=digest&sort=next_run")
    expect(rows.first).to_contain_text("digest")
    viewer.open("/jobs?target_host=hooks.data.example.com")
    expect(rows.first).to_contain_text("hooks.data.example.com")


def test_pages_of_jobs_follow_each_other(live: LiveServer, viewer: Tab) -> None:
    with live.client(live.key("viewer")) as api:
        listed = api.get("/jobs", params={"limit": 200}).raise_for_status().json()
    # A job that fires meanwhile comes again when they are sorted by their next run.
    slow = {"30 2 * * *", "0 9 * * 1", "0 0 1 1 *"}
    seldom = {job["name"] for job in listed if job["schedule"] in slow and job["status"] == "active"}
    assert len(seldom) >= 15
    for sort in ("created", "name", "next_run"):
        viewer.open(f"/jobs?sort={sort}&limit=15")
        names: list[str] = []
        while True:
            names += viewer.page.locator("[data-rows] .name > a").all_inner_texts()
            following = viewer.page.get_by_role("link", name="Next page")
            if not following.count():
                break
            following.click()
        assert len(set(names)) >= 40, sort
        once = [name for name in names if sort != "next_run" or name in seldom]
        assert len(once) == len(set(once)), sort
        assert seldom <= set(names), sort


def test_the_keyboard_moves_through_rows_and_pages_and_shows_its_help(viewer: Tab) -> None:
    viewer.open("/jobs")
    viewer.page.keyboard.press("j")
    viewer.page.keyboard.press("j")
    second = viewer.page.locator("[data-rows] tr").nth(1).locator(".name a")
    expect(second).to_be_focused()
    viewer.page.keyboard.press("?")
    expect(viewer.page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    viewer.page.keyboard.press("Escape")
    viewer.page.keyboard.press("g")
    viewer.page.keyboard.press("o")
    expect(viewer.page.get_by_role("heading", name="Overview")).to_be_visible()
    viewer.open("/runs")
    viewer.page.keyboard.press("/")
    expect(viewer.page.get_by_label("Status")).to_be_focused()


def test_the_chosen_theme_stays(viewer: Tab) -> None:
    viewer.page.get_by_role("button", name="Change between light and dark").click()
    viewer.open("/jobs")
    expect(viewer.page.locator("html")).to_have_attribute("data-theme", "dark")


def test_pages_work_below_a_prefix_behind_a_proxy(live: LiveServer) -> None:
    headers = {"X-Forwarded-Prefix": "/ops/evertick", "X-Forwarded-Proto": "https", "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=live.address, headers=headers, trust_env=False, timeout=120) as client:
        page = client.get("/login")
        answer = client.post("/login", data={"api_key": live.key("viewer"), "next": "/jobs"})
        # A client that could name what is removed would pass the rules of a proxy for paths.
        below = client.get("/ops/evertick/login")
    assert 'href="/ops/evertick/assets/' in page.text
    assert 'action="/ops/evertick/login"' in page.text
    assert answer.headers["location"] == "/ops/evertick/jobs"
    assert "; Path=/ops/evertick; " in answer.headers["set-cookie"]
    assert answer.headers["set-cookie"].endswith("; Secure")
    assert below.status_code == 404


def test_the_api_names_places_below_the_prefix(live: LiveServer) -> None:
    with live.client(live.key("editor")) as api:
        api.headers["X-Forwarded-Prefix"] = "/ops/evertick"
        job = {"name": "below a prefix", "schedule": "manual", "target": {"type": "worker", "handler": "h"}}
        answers = [api.post("/jobs", json=job, headers={"Idempotency-Key": "prefixed"}) for _ in range(2)]
        link = api.get("/jobs", params={"limit": 1}).headers["link"]
    job_id = answers[0].json()["job_id"]
    assert [answer.headers["location"] for answer in answers] == [f"/ops/evertick/api/v1/jobs/{job_id}"] * 2
    assert link.startswith("</ops/evertick/api/v1/jobs?")
