from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from api.callers import JOB, ON_SHARED_SERVER, TARGET, Caller, Callers, is_problem, pointers

WEEKLY: dict[str, Any] = {
    "name": "send-weekly-report",
    "schedule": "0 9 * * 1",
    "timezone": "America/New_York",
    "target": {
        "type": "http",
        "url": "https://example.com/hooks/report",
        "method": "POST",
        "headers": {"X-Team": "growth"},
    },
    "payload": {"report_type": "weekly"},
    "idempotency_key_template": "report-{{week}}",
    "max_retries": 3,
    "retry_backoff": "exponential",
    "missed_window": "RUN_ONCE",
    "timeout_seconds": 120,
}
DEFAULTS: dict[str, Any] = {
    "timezone": "UTC",
    "dst_gap": "catch_up",
    "dst_overlap": "first",
    "start_at": None,
    "end_at": None,
    "payload": None,
    "idempotency_key_template": "{{job_id}}:{{fire_at_unix}}",
    "max_retries": 3,
    "retry_backoff": "exponential",
    "retry_delay_seconds": 10,
    "retry_max_delay_seconds": 3600,
    "timeout_seconds": 300,
    "missed_window": "RUN_ONCE",
    "misfire_grace_seconds": 3600,
    "max_missed": 100,
    "concurrent_policy": "SKIP",
    "max_concurrent": 1,
    "jitter_seconds": 0,
    "priority": "normal",
    "labels": {},
    "retain_seconds": 86400,
}


async def test_the_contracts_example_is_created_as_it_says(admin: Caller) -> None:
    answer = await admin.post("/jobs", json=WEEKLY)
    job = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/api/v1/jobs/{job['job_id']}"
    assert answer.headers["etag"] == '"1"'
    assert job["job_id"].startswith("job_")
    assert (job["status"], job["spec_version"]) == ("active", 1)
    assert {name: job[name] for name in WEEKLY} == WEEKLY
    next_run_at = datetime.fromisoformat(job["next_run_at"])
    assert job["next_run_at"].endswith("Z")
    assert next_run_at.weekday() == 0
    assert next_run_at.hour in {13, 14}


async def test_every_field_is_answered_with_its_value_in_force(admin: Caller) -> None:
    job = await admin.create()
    assert {name: job[name] for name in DEFAULTS} == DEFAULTS
    assert job["name"] == f"send_invoice-{job['job_id'].removeprefix('job_')}"
    assert (await admin.get(f"/jobs/{job['job_id']}")).json() == job


async def test_instants_are_answered_in_utc(admin: Caller) -> None:
    job = await admin.create(start_at="2030-01-01T02:00:00+02:00", end_at="2031-01-01T00:00:00Z")
    assert (job["start_at"], job["end_at"]) == ("2030-01-01T00:00:00Z", "2031-01-01T00:00:00Z")


async def test_integers_beyond_64_bits_come_back_as_they_went_in(admin: Caller) -> None:
    job = await admin.create(payload={"large": 2**100})
    assert (await admin.get(f"/jobs/{job['job_id']}")).json()["payload"] == {"large": 2**100}


async def test_all_faults_of_a_job_are_told_at_once(admin: Caller) -> None:
    answer = await admin.post("/jobs", json={"schedule": "0 0 30 2 *", "max_retries": -1, "shedule": 1})
    assert set(pointers(answer)) == {"/schedule", "/max_retries", "/shedule", "/target"}


@ON_SHARED_SERVER
@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"schedule": "0 0 30 2 *"}, "/schedule"),
        ({"schedule": "2001-01-01T00:00:00Z"}, "/schedule"),
        ({"timezone": "Mars/Olympus"}, "/timezone"),
        ({"end_at": "2001-01-01T00:00:00Z", "start_at": "2002-01-01T00:00:00Z"}, "/end_at"),
        ({"timeout_seconds": 0}, "/timeout_seconds"),
        ({"name": ""}, "/name"),
        ({"name": "x" * 256}, "/name"),
        ({"payload": "x" * 65_535}, "/payload"),
        ({"retry_delay_seconds": 60, "retry_max_delay_seconds": 59}, "/retry_max_delay_seconds"),
        ({"target": {"type": "carrier pigeon"}}, "/target/type"),
        ({"target": {"type": "http", "url": "ftp://example.com"}}, "/target/url"),
        ({"nonsense": 1}, "/nonsense"),
    ],
)
async def test_what_a_job_may_not_say_is_refused_where_it_stands(
    shared_admin: Caller, fields: dict[str, Any], pointer: str
) -> None:
    assert pointers(await shared_admin.post("/jobs", json={**JOB, **fields})) == [pointer]


async def test_a_payload_of_64_kb_is_the_largest(admin: Caller) -> None:
    assert (await admin.create(payload="x" * 65_534))["payload"] == "x" * 65_534


async def test_two_jobs_cannot_have_one_name(admin: Caller) -> None:
    await admin.create(name="one")
    problem = is_problem(await admin.post("/jobs", json={**JOB, "name": "one"}), 409, "name-taken")
    assert problem["errors"][0]["pointer"] == "/name"


async def test_a_patch_changes_what_it_names_and_counts_a_version(admin: Caller) -> None:
    job = await admin.create(max_retries=7, labels={"team": "growth"})
    answer = await admin.patch(f"/jobs/{job['job_id']}", json={"schedule": "0 10 * * 1", "max_retries": None})
    assert answer.status_code == 200
    assert answer.headers["etag"] == '"2"'
    changed = answer.json()
    assert (changed["schedule"], changed["max_retries"], changed["labels"]) == ("0 10 * * 1", 3, {"team": "growth"})
    assert changed["spec_version"] == 2


@pytest.mark.parametrize("method", ["PATCH", "DELETE"])
async def test_a_stale_version_is_not_acted_on(admin: Caller, method: str) -> None:
    path = f"/jobs/{(await admin.create())['job_id']}"
    etag = (await admin.get(path)).headers["etag"]
    assert (await admin.patch(path, json={"max_retries": 5}, headers={"If-Match": etag})).status_code == 200
    body = {"max_retries": 6} if method == "PATCH" else None
    refused = await admin.request(method, path, headers={"If-Match": etag}, json=body)
    is_problem(refused, 412, "version-conflict")
    assert (await admin.get(path)).json()["max_retries"] == 5
    assert (await admin.request(method, path, headers={"If-Match": '"2"'}, json=body)).status_code in {200, 204}


@ON_SHARED_SERVER
@pytest.mark.parametrize("if_match", ["1", '"1', 'x "1"', '"1" "2"', ",", ""])
async def test_an_if_match_that_cannot_be_read_is_refused(shared_admin: Caller, if_match: str) -> None:
    path = f"/jobs/{(await shared_admin.create())['job_id']}"
    is_problem(await shared_admin.delete(path, headers={"If-Match": if_match}), 400, "malformed")
    assert (await shared_admin.get(path)).status_code == 200


@ON_SHARED_SERVER
@pytest.mark.parametrize("if_match", ['W/"1"', '"x"', '""', '"99999999999999999999999"', '"2" , "3"'])
async def test_what_is_no_version_matches_none(shared_admin: Caller, if_match: str) -> None:
    path = f"/jobs/{(await shared_admin.create())['job_id']}"
    problem = is_problem(await shared_admin.delete(path, headers={"If-Match": if_match}), 412, "version-conflict")
    assert " not 0" not in problem["detail"]


async def test_any_version_is_a_star(admin: Caller) -> None:
    path = f"/jobs/{(await admin.create())['job_id']}"
    assert (await admin.delete(path, headers={"If-Match": "*"})).status_code == 204


async def test_a_deleted_job_is_gone_and_its_name_free(admin: Caller) -> None:
    job = await admin.create(name="short-lived")
    answer = await admin.delete(f"/jobs/{job['job_id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    is_problem(await admin.get(f"/jobs/{job['job_id']}"), 404, "not-found")
    is_problem(await admin.delete(f"/jobs/{job['job_id']}"), 404, "not-found")
    await admin.create(name="short-lived")


async def test_put_creates_then_replaces_and_an_equal_spec_changes_nothing(admin: Caller) -> None:
    first = await admin.put("/jobs/by-name/nightly", json=JOB)
    assert (first.status_code, first.json()["name"]) == (201, "nightly")
    assert first.headers["location"] == f"/api/v1/jobs/{first.json()['job_id']}"
    again = await admin.put("/jobs/by-name/nightly", json={**JOB, "name": "nightly"})
    assert (again.status_code, again.json()) == (200, first.json())
    changed = await admin.put("/jobs/by-name/nightly", json={**JOB, "max_retries": 9})
    assert (changed.status_code, changed.json()["spec_version"]) == (200, 2)
    dropped = await admin.put("/jobs/by-name/nightly", json=JOB)
    assert dropped.json()["max_retries"] == 3


@ON_SHARED_SERVER
@pytest.mark.parametrize("name", ["a/b", "50% off?", "ünïcode", "by-name/x", "a%2Fb", "x" * 255])
async def test_any_name_that_a_path_can_carry_is_put_and_found(shared_admin: Caller, name: str) -> None:
    path = f"/jobs/by-name/{quote(name, safe='')}"
    answer = await shared_admin.put(path, json=JOB)
    assert (answer.status_code, answer.json()["name"]) == (201, name)
    found = await shared_admin.get(path)
    assert (found.status_code, found.json()) == (200, answer.json())
    assert found.headers["etag"] == answer.headers["etag"]


@pytest.mark.parametrize("name", ["other", "theirs", "a%00b", "%FF", "x" * 300])
async def test_a_name_that_the_tenant_has_no_job_of_is_not_found(admin: Caller, callers: Callers, name: str) -> None:
    await (await callers.make("editor", await callers.tenant())).create(name="theirs")
    await admin.create(name="mine")
    is_problem(await admin.get(f"/jobs/by-name/{name}"), 404, "not-found")


@ON_SHARED_SERVER
@pytest.mark.parametrize("name", ["other", 5, [], {}])
async def test_put_refuses_another_name_than_the_paths(shared_admin: Caller, name: object) -> None:
    assert pointers(await shared_admin.put("/jobs/by-name/nightly", json={**JOB, "name": name})) == ["/name"]


async def test_put_honours_if_match(admin: Caller) -> None:
    is_problem(await admin.put("/jobs/by-name/nightly", json=JOB, headers={"If-Match": '"1"'}), 412, "version-conflict")
    await admin.put("/jobs/by-name/nightly", json=JOB)
    changed = {**JOB, "max_retries": 1}
    is_problem(
        await admin.put("/jobs/by-name/nightly", json=changed, headers={"If-Match": '"2"'}), 412, "version-conflict"
    )
    answer = await admin.put("/jobs/by-name/nightly", json=changed, headers={"If-Match": '"1"'})
    assert answer.status_code == 200


async def test_a_paused_job_says_so_and_resumes(admin: Caller) -> None:
    job = await admin.create()
    paused = (await admin.post(f"/jobs/{job['job_id']}/pause", json={"reason": "holidays"})).json()
    assert (paused["status"], paused["pause_reason"], paused["next_run_at"]) == ("paused", "holidays", None)
    resumed = (await admin.post(f"/jobs/{job['job_id']}/resume", json={"missed": "run_once"})).json()
    assert (resumed["status"], resumed["next_run_at"]) == ("active", job["next_run_at"])


async def test_who_has_nothing_to_say_need_not_send_a_body(admin: Caller) -> None:
    job = await admin.create()
    for verb, status in (("pause", 200), ("resume", 200), ("trigger", 202)):
        assert (await admin.post(f"/jobs/{job['job_id']}/{verb}")).status_code == status


async def test_a_trigger_gives_a_run_of_its_own_and_leaves_the_tick_alone(admin: Caller) -> None:
    job = await admin.create(payload={"n": 1})
    answer = await admin.post(f"/jobs/{job['job_id']}/trigger", json={"payload": {"n": 2}})
    run = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v1/runs/{run['run_id']}"
    assert (run["status"], run["reason"], run["job_id"]) == ("pending", "manual", job["job_id"])
    assert (await admin.get(f"/jobs/{job['job_id']}")).json()["next_run_at"] == job["next_run_at"]


async def test_upcoming_fire_times_start_with_the_next(admin: Caller) -> None:
    job = await admin.create(schedule="every 1h")
    upcoming = (await admin.get(f"/jobs/{job['job_id']}/upcoming", params={"count": 3})).json()
    first = datetime.fromisoformat(job["next_run_at"])
    assert [datetime.fromisoformat(row["fire_at"]) for row in upcoming] == [
        first + n * timedelta(hours=1) for n in range(3)
    ]


async def test_a_one_off_has_one_upcoming_fire_time_and_a_paused_job_none(admin: Caller) -> None:
    job = await admin.create(schedule="in 1h")
    (only,) = (await admin.get(f"/jobs/{job['job_id']}/upcoming")).json()
    assert only["fire_at"] == job["next_run_at"]
    await admin.post(f"/jobs/{job['job_id']}/pause")
    assert (await admin.get(f"/jobs/{job['job_id']}/upcoming")).json() == []


async def test_jobs_are_listed_by_each_filter(admin: Caller) -> None:
    red = await admin.create(name="red-1", labels={"team": "growth", "env": "live"})
    blue = await admin.create(name="blue-1", labels={"team": "growth"}, target={**TARGET, "queue": "mail"})
    await admin.post(f"/jobs/{blue['job_id']}/pause")

    async def names(query: str) -> list[str]:
        return [job["name"] for job in (await admin.get(f"/jobs?{query}")).json()]

    assert await names("") == ["red-1", "blue-1"]
    assert await names("status=paused") == ["blue-1"]
    assert await names("label=team:growth&label=env:live") == ["red-1"]
    assert await names("label=env:live&label=env:live") == ["red-1"]
    assert await names("label=env:test&label=env:live") == [], "all of them must be there"
    assert await names("name_prefix=blue") == ["blue-1"]
    assert await names("queue=mail") == ["blue-1"]
    assert await names("name_prefix=null") == []
    assert red["labels"] == {"team": "growth", "env": "live"}


async def test_pages_follow_their_links_and_writes_between_them_move_nothing(admin: Caller) -> None:
    made = [(await admin.create(labels={"of": "this"}))["job_id"] for _ in range(5)]
    await admin.create()
    seen: list[str] = []
    path = "/api/v1/jobs?limit=2&label=of%3Athis"
    while path:
        answer = await admin.get(f"{str(admin.base_url).removesuffix('/api/v1/')}{path}")
        seen += [job["job_id"] for job in answer.json()]
        path = answer.links["next"]["url"] if "next" in answer.links else ""
        if len(seen) == 2:
            await admin.delete(f"/jobs/{made[0]}")
    assert seen == made


async def test_a_preview_tells_times_words_daylight_saving_and_warnings(admin: Caller) -> None:
    wanted = {
        "schedule": "30 2 * * *",
        "timezone": "America/New_York",
        "dst_gap": "skip",
        "after": "2026-03-07T12:00:00Z",
        "count": 2,
    }
    preview = (await admin.post("/schedules/preview", json=wanted)).json()
    assert [row["fire_at"] for row in preview["upcoming"]] == ["2026-03-09T06:30:00Z", "2026-03-10T06:30:00Z"]
    assert preview["upcoming"][0]["due_at"] == "2026-03-09T06:30:00Z"
    assert preview["description"] == "At 02:30 every day, America/New_York time"
    assert [note["ticks"] for note in preview["dst_notes"]] == [1]
    assert preview["warnings"]


async def test_a_preview_of_what_never_fires_is_refused(admin: Caller) -> None:
    assert pointers(await admin.post("/schedules/preview", json={"schedule": "0 0 30 2 *"})) == ["/schedule"]


async def test_times_are_those_of_the_database(admin: Caller) -> None:
    job = await admin.create(schedule="now")
    assert abs(datetime.fromisoformat(job["created_at"]) - datetime.now(UTC)) < timedelta(minutes=1)
