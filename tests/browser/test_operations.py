"""What operators and admins do in the dashboard: runs, dead letters, keys, tenants."""

import re

from playwright.sync_api import Route, expect

from browser.browsing import Tab
from browser.conftest import OpenTab
from browser.live_server import LiveServer

QUEUE = "operations"


def _triggered(live: LiveServer, name: str) -> str:
    """A run that waits for a worker."""
    with live.client(live.key("editor")) as api:
        target = {"type": "worker", "queue": QUEUE, "handler": "act"}
        job = {"name": name, "schedule": "manual", "target": target, "max_retries": 0}
        job_id = api.post("/jobs", json=job).raise_for_status().json()["job_id"]
        run: str = api.post(f"/jobs/{job_id}/trigger", json={}).raise_for_status().json()["run_id"]
        return run


def _failed(live: LiveServer, name: str, error: str) -> str:
    """A run that is a dead letter."""
    run_id = _triggered(live, name)
    _finish(live, {run_id}, {"result": "failed", "error": error})
    return run_id


def _finish(live: LiveServer, run_ids: set[str], outcome: dict[str, str]) -> None:
    """Run what is ready, until one of these runs is among it; what other tests left ready succeeds."""
    with live.client(live.key("worker")) as worker:
        lease = {"worker_id": "w-operations", "max": 10, "wait_seconds": 20}
        while True:
            attempts = worker.post(f"/queues/{QUEUE}/lease", json=lease).raise_for_status().json()["attempts"]
            outcomes = [
                {"token": each["token"], **(outcome if each["run_id"] in run_ids else {"result": "success"})}
                for each in attempts
            ]
            worker.post("/outcomes", json={"worker_id": "w-operations", "outcomes": outcomes}).raise_for_status()
            if run_ids & {each["run_id"] for each in attempts}:
                return


def test_a_run_is_cancelled_and_says_why_it_waited(live: LiveServer, open_tab: OpenTab) -> None:
    run_id = _triggered(live, "to be cancelled")
    operator = open_tab("operator")
    operator.open(f"/runs/{run_id}")
    expect(operator.page.get_by_role("heading", name="Run of to be cancelled")).to_be_visible()
    operator.page.get_by_role("button", name="Cancel", exact=True).first.click()
    operator.page.get_by_role("button", name="Cancel the run").click()
    expect(operator.page.get_by_text("Cancelled.")).to_be_visible()
    expect(operator.page.locator("#run-detail .badge").first).to_have_text("cancelled")
    expect(operator.page.get_by_role("button", name="Replay")).to_be_visible()


def test_two_browsers_see_a_change_that_one_of_them_makes(live: LiveServer, open_tab: OpenTab) -> None:
    run_id = _triggered(live, "watched by two")
    operator, viewer = open_tab("operator"), open_tab("viewer")
    for tab in (operator, viewer):
        tab.open(f"/runs/{run_id}")
        expect(tab.page.locator("#run-detail .badge").first).to_have_text("pending")
    operator.page.get_by_role("button", name="Cancel", exact=True).first.click()
    operator.page.get_by_role("button", name="Cancel the run").click()
    for tab in (operator, viewer):
        expect(tab.page.locator("#run-detail .badge").first).to_have_text("cancelled")


def test_a_run_is_cancelled_without_the_script(live: LiveServer, open_tab: OpenTab) -> None:
    run_id = _triggered(live, "cancelled without a script")
    operator = open_tab("operator", java_script_enabled=False)
    operator.open(f"/runs/{run_id}")
    dialog = operator.page.locator("#cancel-run")
    expect(dialog).to_be_hidden()
    operator.page.get_by_role("button", name="Cancel", exact=True).first.click()
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    expect(dialog).to_be_hidden()
    operator.page.get_by_role("button", name="Cancel", exact=True).first.click()
    dialog.get_by_role("button", name="Cancel the run").click()
    expect(operator.page.get_by_text("Cancelled.")).to_be_visible()


def test_dead_letters_of_one_error_are_replayed_together_and_their_progress_is_shown(
    live: LiveServer, open_tab: OpenTab
) -> None:
    _failed(live, "replayed by group", "Traceback\nTimeoutError: <b>the mail server slept</b>")
    operator = open_tab("operator")
    operator.open("/dead-letters")
    group = operator.page.get_by_role("row").filter(has_text="replayed by group").first
    expect(group).to_contain_text("TimeoutError: <b>the mail server slept</b>")
    group.get_by_role("button", name="Replay").click()
    operator.page.locator("dialog[open]").get_by_role("button", name="Start the replay").click()
    expect(operator.page.get_by_text("The replay has started.")).to_be_visible()
    replay = operator.page.locator("#replays li").first
    expect(replay).to_contain_text("done")  # live: nothing is loaded again
    expect(replay).to_contain_text("1 replayed, 10 per second")
    expect(operator.page.locator("#results tr", has_text="replayed by group")).to_have_count(0)


def test_dead_letters_are_filtered_as_one_types_and_those_that_fit_are_replayed(
    live: LiveServer, open_tab: OpenTab
) -> None:
    _failed(live, "full disk one", "OSError: no space left on device")
    _failed(live, "full disk two", "OSError: no space left on device")
    _failed(live, "another error", "KeyError: 'amount'")
    operator = open_tab("operator")
    operator.open("/dead-letters")
    rows = operator.page.locator("#letters tbody tr")
    operator.page.keyboard.press("/")
    operator.page.keyboard.type("SPACE LEFT")
    expect(operator.page).to_have_url(re.compile(r"\?error=SPACE"))
    expect(rows.filter(has_text="another error")).to_have_count(0)
    expect(rows.filter(has_text="full disk")).to_have_count(2)
    operator.page.get_by_role("button", name="Replay these").click()
    operator.page.get_by_role("dialog").get_by_label("Runs per second").fill("2")
    operator.page.get_by_role("dialog").get_by_role("button", name="Start the replay").click()
    replay = operator.page.locator("#replays li").first
    expect(replay).to_contain_text("error “SPACE LEFT”")
    expect(replay).to_contain_text("2 replayed, 2 per second")
    expect(replay).to_contain_text("done")
    operator.open("/dead-letters?error=SPACE+LEFT")
    expect(operator.page.get_by_text("No dead letter fits")).to_be_visible()
    operator.open("/dead-letters?error=amount")
    expect(rows.filter(has_text="another error")).to_have_count(1)


def test_a_replay_that_ends_while_a_filter_is_fetched_leaves_the_filter(live: LiveServer, open_tab: OpenTab) -> None:
    _failed(live, "filtered meanwhile", "LookupError: no such parcel")
    _failed(live, "replayed meanwhile", "BlockingIOError: try again")
    operator = open_tab("operator")
    operator.open("/dead-letters")
    held: list[Route] = []
    is_holding = True

    def hold(route: Route) -> None:
        held.append(route) if is_holding else route.continue_()

    operator.page.route(re.compile("error=parcel"), hold)
    with operator.page.expect_request(re.compile("error=parcel")):
        operator.page.locator("#filter-error").fill("parcel")
    replay = {"filter": {"error": "BlockingIOError"}, "background": True}
    with live.client(live.key("operator")) as api:
        api.post("/dead-letters:replay", json=replay).raise_for_status()
    expect(operator.page.locator("#replays li").first).to_contain_text("BlockingIOError")  # live
    is_holding = False
    for route in held:
        route.continue_()
    expect(operator.page).to_have_url(re.compile(r"\?error=parcel"))
    expect(operator.page.locator("#letters tbody tr")).to_have_count(1)


def test_a_run_shows_each_leg_of_its_way(live: LiveServer, viewer: Tab) -> None:
    run_id = _triggered(live, "on its way")
    viewer.open(f"/runs/{run_id}")
    legs = viewer.page.get_by_role("list", name="The way of attempt 1").get_by_role("listitem")
    expect(legs).to_have_count(3)
    _finish(live, {run_id}, {"result": "success", "started_at": "2020-01-01T00:00:00Z"})
    expect(legs).to_have_count(5)  # live
    texts = ["nominal to due", "due to fired", "fired to leased", "leased to started", "started to finished"]
    for leg, text in zip(legs.all(), texts, strict=True):
        expect(leg).to_contain_text(text)


def test_a_run_of_a_webhook_shows_the_request_without_its_secrets(live: LiveServer, viewer: Tab) -> None:
    with live.client(live.key("editor")) as api:
        target = {"type": "http", "url": "https://hooks.example.com/x", "headers": {"X-Team": "growth"}}
        job = {"name": "r\u00e9sum\u00e9", "schedule": "manual", "target": target}
        job_id = api.post("/jobs", json=job).raise_for_status().json()["job_id"]
        run_id = api.post(f"/jobs/{job_id}/trigger", json={}).raise_for_status().json()["run_id"]
    viewer.open(f"/runs/{run_id}")
    sent = viewer.page.locator("pre[aria-label=Request]")
    expect(sent).to_contain_text("POST https://hooks.example.com/x")  # live
    for line in (
        "X-Team: growth",
        "Content-Type: application/json",
        f"Evertick-Run-Id: {run_id}",
        "Evertick-Attempt: 1",
        "Evertick-Job-Name: r%C3%A9sum%C3%A9",
        "webhook-signature: \u2026",
        "Evertick-Signature: \u2026",
    ):
        expect(sent).to_contain_text(line)


def test_what_needs_attention_leads_to_the_alerts_behind_it(live: LiveServer, viewer: Tab) -> None:
    _triggered(live, "always late")
    live.execute(
        "INSERT INTO evertick.alerts (alert_id, tenant_id, job_id, opened_at, openings, is_open, is_told_open,"
        " notice_job_id, condition, subject, detail)"
        " SELECT 77, 1, job_id, now(), 2, true, false, job_id, 'late', 'job', 'started 90 s late'"
        " FROM evertick.jobs WHERE name = 'always late'"
    )
    viewer.open("/")
    viewer.page.get_by_role("link", name=re.compile("late jobs?$")).click()
    row = viewer.page.get_by_role("row").filter(has_text="always late")
    expect(row).to_contain_text("started 90 s late")
    expect(viewer.page.locator("[data-rows] tr", has_text="3 runs failed in a row")).to_have_count(0)
    row.get_by_role("link", name="always late").click()
    expect(viewer.page.get_by_role("heading", name="always late", level=1)).to_be_visible()


def test_rates_of_nodes_are_shown_to_their_operators_alone(live: LiveServer, open_tab: OpenTab) -> None:
    admin, viewer = open_tab("admin"), open_tab("viewer")
    for tab in (admin, viewer):
        tab.open("/cluster")
    head = admin.page.get_by_role("columnheader", name="Fires per second")
    expect(head).to_be_visible()
    assert viewer.page.get_by_role("columnheader", name="Fires per second").count() == 0
    rate = admin.page.get_by_role("row").filter(has_text="test").first.get_by_role("cell").nth(3)
    expect(rate).to_have_text(re.compile(r"[0-9]"))


def test_jobs_whose_latest_run_failed_come_first_when_sorted_by_it(live: LiveServer) -> None:
    names = ["failed first", "failed next", "failed before"]
    for name in names:
        _failed(live, name, "ValueError: no address")
    with live.client(live.key("operator")) as api:

        def listed(**query: str) -> list[str]:
            params = {"sort": "last_status", "name_prefix": "failed", **query}
            return [job["name"] for job in api.get("/jobs", params=params).raise_for_status().json()]

        assert listed() == names[::-1]
        (first, _) = listed(limit="2")
        link = api.get("/jobs", params={"sort": "last_status", "limit": "1"}).links["next"]["url"]
        assert first == names[-1]
        assert api.get(link.removeprefix("/api/v1")).json()[0]["name"] == names[1]
        job_id = api.get("/jobs", params={"name_prefix": names[1]}).json()[0]["job_id"]
        api.post(f"/jobs/{job_id}/trigger", json={"force": True}).raise_for_status()
        run_ids = {run["run_id"] for run in api.get(f"/jobs/{job_id}/runs").json()}
        assert len(run_ids) == 2
        _finish(live, run_ids, {"result": "success"})
        assert listed() == [names[2], names[0]]


def test_jobs_sorted_by_dead_letters_show_the_numbers_they_are_sorted_by(live: LiveServer, viewer: Tab) -> None:
    first = _failed(live, "died twice", "ValueError: no address")
    _failed(live, "died once", "ValueError: no address")
    with live.client(live.key("operator")) as api:
        job_id = api.get(f"/runs/{first}").raise_for_status().json()["job_id"]
        second = api.post(f"/jobs/{job_id}/trigger", json={}).raise_for_status().json()["run_id"]
        _finish(live, {second}, {"result": "failed", "error": "ValueError: no address"})
        again = api.post(f"/jobs/{job_id}/trigger", json={}).raise_for_status().json()["run_id"]
        _finish(live, {again}, {"result": "success"})
    viewer.open("/jobs?limit=200")
    viewer.page.get_by_role("columnheader", name="Dead letters").get_by_role("link").click()
    expect(viewer.page.get_by_role("columnheader", name="Dead letters (sorted)")).to_be_visible()
    numbers = [int(text) for text in viewer.page.locator("td[data-label='Dead letters']").all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True)
    row = viewer.page.locator("[data-rows] tr", has_text="died twice")
    expect(row.locator("td[data-label='Failures in a row']")).to_be_empty()
    row.get_by_role("link", name="2", exact=True).click()
    expect(viewer.page.get_by_role("heading", name="Of died twice")).to_be_visible()


def test_a_dead_letter_is_dismissed_or_replayed_alone(live: LiveServer, open_tab: OpenTab) -> None:
    _failed(live, "dismissed", "ValueError: no address")
    run_id = _failed(live, "replayed alone", "ValueError: no address")
    operator = open_tab("operator")
    operator.open("/dead-letters")
    single = operator.page.locator("#letters").get_by_role("row")
    single.filter(has_text="dismissed").get_by_role("button", name="Dismiss").click()
    operator.page.locator("dialog[open]").get_by_role("button", name="Dismiss").click()
    expect(operator.page.get_by_text("Dismissed. The run stays in the history.")).to_be_visible()
    expect(single.filter(has_text="dismissed")).to_have_count(0)
    single.filter(has_text="replayed alone").get_by_role("button", name="Replay").click()
    operator.page.wait_for_url(re.compile(r"/runs/run_"))
    assert run_id not in operator.page.url


def test_a_viewer_is_offered_no_change_and_admins_pages_are_refused(viewer: Tab) -> None:
    viewer.expect("403")
    for path in ("/runs", "/dead-letters", "/cluster"):
        viewer.open(path)
        assert viewer.page.locator("main form[method=post]").count() == 0
    assert viewer.page.get_by_role("link", name="Settings").count() == 0
    viewer.open("/settings")
    expect(viewer.page.locator("main")).to_contain_text("admin")


def test_a_key_is_shown_once_and_revoked(admin: Tab) -> None:
    admin.open("/settings")
    admin.page.get_by_label("Name").fill("wall display")
    admin.page.get_by_role("button", name="Create a key").click()
    secret = admin.page.locator("#new-key").inner_text()
    assert re.fullmatch(r"evt_\w{28}", secret)
    admin.open("/settings?limit=200")  # the oldest come first, and each tab has a key
    assert secret not in admin.page.content()
    row = admin.page.get_by_role("row").filter(has_text="wall display")
    row.get_by_role("button", name="Revoke").click()
    with admin.page.expect_navigation():
        admin.page.locator("dialog[open]").get_by_role("button", name="Revoke").click()
    admin.open("/settings?limit=200")
    expect(row.locator(".badge")).to_have_text("revoked")
    admin.open("/settings/audit-log")
    expect(admin.page.get_by_role("row").filter(has_text="revoke key").first).to_be_visible()


def test_a_tenant_is_created_and_its_quotas_are_changed(admin: Tab) -> None:
    admin.expect("422")
    admin.open("/settings/tenants")
    admin.page.get_by_label("Name").fill("second team")
    admin.page.get_by_role("button", name="Create a tenant").click()
    expect(admin.page.locator("#new-key")).to_contain_text("evt_")
    admin.page.get_by_role("link", name="second team").click()
    admin.page.get_by_label("Weight").fill("7")
    admin.page.get_by_role("button", name="Save").click()
    expect(admin.page.get_by_text("Saved.")).to_be_visible()
    expect(admin.page.get_by_label("Weight")).to_have_value("7")
    admin.page.get_by_label("Weight").fill("100000")
    admin.page.get_by_role("button", name="Save").click()
    expect(admin.page.locator("#note-weight[role=alert]")).to_be_visible()
    expect(admin.page.get_by_label("Weight")).to_have_value("100000")
