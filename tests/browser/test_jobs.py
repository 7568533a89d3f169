"""Jobs by the dashboard: made, watched, paused, resumed, edited, triggered and deleted; and by the keyboard alone."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.browsing import Tab
from browser.conftest import OpenTab
from browser.live_server import LiveServer
from browser.pages import HOSTILE


@pytest.fixture
def editor(open_tab: OpenTab) -> Tab:
    return open_tab("editor")


def made(live: LiveServer, **fields: object) -> str:
    """The id of a new job that fires by its schedule."""
    target = {"type": "worker", "queue": "by-hand", "handler": "work"}
    with live.client(live.key("admin")) as api:
        answer = api.post("/jobs", json={"schedule": "manual", "target": target, **fields})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["job_id"])


def field(page: Page, name: str) -> Locator:
    return page.locator(f"[id='field-{name}']")


def press(page: Page, label: str, submit: str | None = None) -> None:
    """Press a button that asks first, and confirm."""
    page.get_by_role("button", name=label, exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name=submit or label, exact=True).click()


def test_a_job_is_made_by_the_form_which_says_what_it_means_and_the_job_fires(editor: Tab) -> None:
    page = editor.page
    editor.open("/jobs")
    page.get_by_role("link", name="New job").click()
    field(page, "name").fill("form/every-second")
    field(page, "schedule").fill("30 2 * * *")
    field(page, "timezone").fill("America/New_York")
    preview = page.locator("#preview")
    expect(preview).to_contain_text("At 02:30 every day, America/New_York time")
    expect(preview).to_contain_text("1 run a day")
    expect(preview).to_contain_text("does not exist on Sunday")
    expect(preview.locator(".ticks tbody tr")).to_have_count(10)
    field(page, "schedule").fill("every 10s")
    expect(preview).to_contain_text("8,640 runs a day")
    field(page, "schedule").fill("every 1s")
    page.get_by_role("radio", name="Worker").check()
    field(page, "target.worker.handler").fill("work")
    expect(preview).to_contain_text('"handler": "work"')
    page.get_by_role("radio", name="Python").check()
    expect(preview.locator("pre:visible")).to_contain_text("client.jobs.create(")
    page.get_by_role("button", name="Create job").click()
    expect(page.get_by_role("heading", name="form/every-second", level=1)).to_be_visible()
    expect(page.locator("[data-rows] tr").first).to_contain_text("tick")
    press(page, "Delete")
    expect(page.get_by_role("status")).to_contain_text("Deleted form/every-second")


def test_what_is_wrong_is_said_at_its_field_and_nothing_typed_is_lost(editor: Tab) -> None:
    editor.expect("422")
    page = editor.page
    editor.open("/jobs/new")
    field(page, "name").fill("form/wrong")
    field(page, "schedule").fill("61 * * * *")
    field(page, "target.http.url").fill("ftp://example.com")
    field(page, "payload").fill('{"kept": "text"}')
    page.get_by_text("Retries and timeout").click()
    field(page, "max_retries").fill("many")
    page.get_by_role("button", name="Create job").click()
    expect(page.get_by_role("alert")).to_contain_text("things need a change")
    expect(page.locator("[id='note-schedule']")).to_contain_text("61")
    expect(page.locator("[id='note-target.http.url']")).to_contain_text("http")
    expect(page.locator("#note-max_retries")).to_contain_text("must be a number")
    expect(field(page, "max_retries")).to_be_visible()
    expect(field(page, "payload")).to_have_value('{"kept": "text"}')
    field(page, "payload").fill("{")
    page.get_by_role("button", name="Create job").click()
    expect(page.locator("#note-payload")).to_contain_text("is not JSON")
    expect(page.locator("[id='note-schedule']")).to_contain_text("61")  # what can be read is checked as well


def test_a_job_is_paused_with_a_reason_and_resumed_with_a_choice_that_says_how_many_runs_it_starts(
    live: LiveServer, open_tab: OpenTab
) -> None:
    tab, other = open_tab("operator"), open_tab("viewer")
    job_id = made(live, name="form/paused", schedule="0 0 * * *")  # a day hardly ends while the test runs
    for each in (tab, other):
        each.open(f"/jobs/{job_id}")
    page = tab.page
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_label("Reason").fill("the bank is closed")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_text("the bank is closed")).to_be_visible()
    expect(other.page.get_by_text("the bank is closed")).to_be_visible()  # live
    live.execute(
        "UPDATE evertick.timers SET fire_at = date_trunc('day', now(), 'UTC') - interval '4 days' WHERE job_id ="
        " (SELECT job_id FROM evertick.jobs WHERE name = 'form/paused')"
    )
    tab.open(f"/jobs/{job_id}")
    page.get_by_role("button", name="Resume", exact=True).click()
    choices = page.get_by_role("dialog").locator(".choice")
    expect(choices.nth(0)).to_contain_text("starts 0 runs, leaves 5 ticks out")
    expect(choices.nth(1)).to_contain_text("starts 1 run, leaves 4 ticks out")
    expect(choices.nth(2)).to_contain_text("starts 5 runs")
    choices.nth(1).click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.locator(".badge", has_text="active")).to_be_visible()
    expect(page.locator("[data-rows] tr", has_text="catch up")).to_have_count(1)
    expect(page.locator("[data-rows] tr", has_text="the job was paused")).to_contain_text("4 ticks")


def test_an_edit_changes_what_was_changed_and_the_page_shows_the_difference(live: LiveServer, editor: Tab) -> None:
    editor.expect("412")
    job_id = made(live, name="form/edited", schedule="0 9 * * *", payload={"a": 1}, labels={"team": "billing"})
    page = editor.page
    editor.open(f"/jobs/{job_id}")
    page.get_by_role("link", name="Edit").click()
    expect(field(page, "schedule")).to_have_value("0 9 * * *")
    field(page, "schedule").fill("0 10 * * *")
    page.get_by_text("Retries and timeout").click()
    field(page, "max_retries").fill("7")
    page.get_by_role("button", name="Save").click()
    changes = page.locator(".versions li").first
    expect(changes).to_contain_text(re.compile(r"schedule\s+0 9 \* \* \*\s+→\s+0 10 \* \* \*"))
    expect(changes).to_contain_text(re.compile(r"max_retries\s+default\s+→\s+7"))
    expect(changes).to_contain_text("by key_")
    with live.client(live.key("admin")) as api:
        job = api.get(f"/jobs/{job_id}").json()
        assert (job["max_retries"], job["payload"], job["labels"]) == (7, {"a": 1}, {"team": "billing"})
        editor.open(f"/jobs/{job_id}/edit")
        api.patch(f"/jobs/{job_id}", json={"max_retries": 1}).raise_for_status()
    field(page, "schedule").fill("0 11 * * *")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert")).to_contain_text("version")
    expect(field(page, "schedule")).to_have_value("0 11 * * *")


def test_a_trigger_takes_a_payload_and_says_what_is_wrong_with_it(live: LiveServer, open_tab: OpenTab) -> None:
    tab = open_tab("operator")
    tab.expect("422")
    job_id = made(live, name="form/triggered", payload={"size": 1})
    tab.open(f"/jobs/{job_id}")
    page = tab.page
    page.get_by_role("button", name="Trigger", exact=True).click()
    expect(page.locator("#trigger-payload")).to_have_value(re.compile('"size": 1'))
    page.locator("#trigger-payload").fill('{"size": 2')
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("alert")).to_contain_text("is not JSON")
    field(page, "payload").fill('{"size": 2}')
    page.get_by_role("button", name="Run now").click()
    expect(page.locator("[data-rows] tr", has_text="manual")).to_have_count(1)
    with live.client(live.key("worker")) as worker:
        leased = worker.post("/queues/by-hand/lease", json={"worker_id": "w2", "max": 50}).json()["attempts"]
        assert {"size": 2} in [attempt["payload"] for attempt in leased if attempt["job_id"] == job_id]
        outcomes = [{"token": attempt["token"], "result": "success"} for attempt in leased]
        worker.post("/outcomes", json={"worker_id": "w2", "outcomes": outcomes}).raise_for_status()
    expect(page.locator("[data-rows] tr", has_text="manual")).to_contain_text("success")  # live


def test_many_jobs_are_changed_after_a_question_with_their_number(live: LiveServer, editor: Tab) -> None:
    for number in range(3):
        made(live, name=f"many/{number}", schedule="0 0 1 1 *")
    page = editor.page
    editor.open("/jobs?q=many/")
    expect(page.get_by_role("button", name="Pause")).to_be_disabled()
    page.get_by_label("Select many/0").check()
    page.get_by_label("Select many/1").check()
    expect(page.get_by_text("2 selected:")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Reason").fill("together")
    page.get_by_role("button", name="Pause 2 jobs").click()
    expect(page.get_by_role("status")).to_contain_text("2 jobs paused.")
    editor.open("/jobs?q=many/&status=paused")
    expect(page.locator("[data-rows] tr")).to_have_count(2)
    editor.open("/jobs?q=many/")
    page.get_by_label("all that match").check()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Delete 3 jobs")).to_be_visible()
    page.get_by_role("button", name="Delete 3 jobs").click()
    expect(page.get_by_role("status")).to_contain_text("3 jobs deleted.")
    editor.open("/jobs?q=many/")
    expect(page.get_by_text("No job fits")).to_be_visible()


def test_a_viewer_is_offered_nothing_that_changes_a_job_and_refused_it(live: LiveServer, viewer: Tab) -> None:
    viewer.expect("403")
    page = viewer.page
    job_id = made(live)
    viewer.open(f"/jobs/{job_id}")
    expect(page.get_by_role("heading", level=1)).to_have_text(job_id.replace("job_", "work-"))
    for name in ("Trigger", "Pause", "Resume", "Delete"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)
    expect(page.get_by_role("link", name="Edit")).to_have_count(0)
    viewer.open("/jobs")
    expect(page.get_by_role("link", name="New job")).to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)
    for path in ("/jobs/new", f"/jobs/{job_id}/edit", "/jobs/bulk?action=delete&all=true"):
        viewer.open(path)
        expect(page.get_by_text("this needs the role")).to_be_visible()


def test_hostile_texts_are_inert_in_the_form_and_on_a_jobs_page(editor: Tab) -> None:
    page = editor.page
    for number, text in enumerate(HOSTILE):
        editor.open("/jobs/new")
        field(page, "name").fill(f"{text} {number}")
        field(page, "schedule").fill("manual")
        page.get_by_role("radio", name="Worker").check()
        field(page, "target.worker.handler").fill(re.sub(r"\s", "", text))
        field(page, "payload").fill(f'["{text.replace(chr(34), "")}"]')
        expect(page.locator("#code-json")).to_contain_text(f'{number}"')
        page.get_by_role("button", name="Create job").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{text} {number}")
        assert "hacked" not in page.title().split("·")[-1]
        assert page.locator("main script, main img, main [onmouseover], main [onload]").count() == 0
        press(page, "Delete")


def test_the_keyboard_alone_makes_and_selects_jobs(editor: Tab) -> None:
    page = editor.page
    editor.open("/jobs/new")
    expect(field(page, "name")).to_be_focused()
    page.keyboard.type("keyboard/only")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("manual")
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("work")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="keyboard/only", level=1)).to_be_visible()
    editor.open("/jobs?q=keyboard/only")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.get_by_text("1 selected:")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="keyboard/only", level=1)).to_be_visible()
