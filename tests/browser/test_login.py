"""Logging in and out, and what is refused on the way."""

import httpx
from playwright.sync_api import expect

from browser.conftest import OpenTab
from browser.live_server import LiveServer
from evertick.usecases.tenants import sessions


def test_a_key_opens_the_dashboard_and_logging_out_closes_it(live: LiveServer, open_tab: OpenTab) -> None:
    tab = open_tab(None)
    tab.open("/jobs?status=paused")
    expect(tab.page).to_have_url(f"{live.address}/login?next=%2Fjobs%3Fstatus%3Dpaused")
    tab.page.get_by_label("API key").fill(live.key("viewer"))
    tab.page.get_by_role("button", name="Log in").click()
    expect(tab.page.get_by_role("heading", name="Jobs", level=1)).to_be_visible()
    expect(tab.page).to_have_url(f"{live.address}/jobs?status=paused")
    (cookie,) = tab.page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("evertick_session", True, "Lax")
    tab.page.get_by_role("button", name="Log out").click()
    tab.open("/")
    expect(tab.page.get_by_label("API key")).to_be_visible()


def test_a_wrong_key_is_refused_at_its_field(open_tab: OpenTab) -> None:
    tab = open_tab(None)
    tab.expect("401")
    tab.log_in("evt_wrong")
    expect(tab.page.get_by_role("alert")).to_contain_text("not valid")


def test_a_worker_has_no_dashboard(live: LiveServer, open_tab: OpenTab) -> None:
    tab = open_tab(None)
    tab.expect("403")
    tab.log_in(live.key("worker"))
    expect(tab.page.get_by_role("alert")).to_contain_text("cannot use the dashboard")


def test_an_expired_session_leads_to_the_login_and_back(live: LiveServer, open_tab: OpenTab) -> None:
    tab = open_tab("viewer")
    live.execute("DELETE FROM evertick.sessions")
    live.forget_sessions()
    tab.open("/jobs")
    expect(tab.page.get_by_text("Your session has ended")).to_be_visible()


def test_what_a_role_may_not_do_is_not_offered(open_tab: OpenTab) -> None:
    expect(open_tab("viewer").page.get_by_role("link", name="Settings")).to_have_count(0)
    expect(open_tab("admin").page.get_by_role("link", name="Settings")).to_have_count(1)


def test_a_login_link_works_once(live: LiveServer, open_tab: OpenTab) -> None:
    live.key("admin")
    token = live.run(sessions.make_link(live.pool, 1))
    tab = open_tab(None)
    tab.open(f"/login/link?token={token}")
    expect(tab.page.get_by_role("heading", name="Overview")).to_be_visible()
    second = open_tab(None)
    second.expect("404")
    second.open(f"/login/link?token={token}")
    expect(second.page.get_by_text("this link was used already")).to_be_visible()
    tab.open("/settings/audit-log")
    expect(tab.page.get_by_role("row").filter(has_text="use login link")).to_have_count(1)


def test_forms_of_other_sites_are_refused(live: LiveServer) -> None:
    form = {"api_key": live.key("viewer")}
    with httpx.Client(base_url=live.address, trust_env=False, timeout=120) as client:
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}, {}):
            assert client.post("/login", data=form, headers=headers).status_code == 403
        assert client.post("/login", data=form, headers={"Origin": live.address}).status_code == 303
        answer = client.post("/logout", data={"csrf_token": "0" * 64}, headers={"Origin": live.address})
        assert answer.status_code == 403
        assert client.get("/").status_code == 200


def test_a_session_ends_with_its_key(live: LiveServer) -> None:
    with (
        httpx.Client(base_url=live.address, trust_env=False, timeout=120) as client,
        live.client(live.key("admin")) as api,
    ):
        made = api.post("/api-keys", json={"role": "viewer"}).json()
        client.post("/login", data={"api_key": made["api_key"]}, headers={"Origin": live.address})
        assert client.get("/jobs").status_code == 200
        api.delete(f"/api-keys/{made['key_id']}").raise_for_status()
        assert client.get("/jobs").status_code == 303


def test_the_cookie_of_a_session_is_no_key_of_the_api(live: LiveServer) -> None:
    with httpx.Client(base_url=live.address, trust_env=False, timeout=120) as client:
        client.post("/login", data={"api_key": live.key("viewer")}, headers={"Origin": live.address})
        assert client.get("/api/v1/jobs").status_code == 401


def test_attempts_to_log_in_are_limited_by_address(live: LiveServer) -> None:
    headers = {"Origin": live.address, "X-Forwarded-For": "192.0.2.7"}
    with httpx.Client(base_url=live.address, headers=headers, trust_env=False, timeout=120) as client:
        statuses = [client.post("/login", data={"api_key": "evt_wrong"}).status_code for _ in range(30)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
