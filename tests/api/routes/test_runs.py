from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from api.callers import Caller, Callers, is_problem, pointers
from api.processes import served
from engine import stop_clock, until

pytestmark = pytest.mark.usefixtures("scheduler")


async def _dead(admin: Caller, **fields: Any) -> str:
    """A run that has died, its id."""
    await admin.create(schedule="now", max_retries=0, **fields)
    (attempt,) = await admin.lease()
    await admin.record({"token": attempt["token"], "result": "failed", "error": "boom"})
    run_id: str = attempt["run_id"]
    return run_id


async def _leased(admin: Caller, count: int) -> set[str]:
    """Runs as they come, until there are so many."""
    came: set[str] = set()
    while len(came) < count:
        attempts = await admin.lease()
        assert attempts, "nothing more came"
        came |= {attempt["run_id"] for attempt in attempts}
    return came


async def test_a_run_is_listed_as_the_contract_shows_it(admin: Caller) -> None:
    job = await admin.create(schedule="now")
    (attempt,) = await admin.lease()
    await admin.record({"token": attempt["token"], "result": "success"})
    (run,) = (await admin.get(f"/jobs/{job['job_id']}/runs")).json()
    assert list(run) == [
        "run_id", "job_id", "scheduled_at", "started_at", "finished_at", "duration_ms", "status", "attempt",
        "reason", "spec_version", "worker_id", "result_code", "error", "waiting_for", "name", "handler", "queue",
        "waiting",
        "progress",
    ]  # fmt: skip
    assert (run["status"], run["reason"], run["attempt"], run["spec_version"]) == ("success", "tick", 1, 1)
    assert run["scheduled_at"] == job["next_run_at"]
    assert (await admin.get("/runs")).json() == [run]


async def test_a_trigger_says_what_became_of_it(admin: Caller) -> None:
    async def job_with_open_run(policy: str) -> tuple[str, str]:
        path = f"/jobs/{(await admin.create(concurrent_policy=policy))['job_id']}/trigger"
        return path, (await admin.post(path)).json()["run_id"]

    path, first = await job_with_open_run("SKIP")
    problem = is_problem(await admin.post(path), 409, "wrong-state")
    assert problem["run_id"] == first
    assert (await admin.post(path, json={"force": True})).status_code == 202
    path, first = await job_with_open_run("QUEUE")
    queued = await admin.post(path)
    assert (queued.status_code, queued.json()["waiting"]) == (202, f"queued behind {first}")
    path, first = await job_with_open_run("REPLACE")
    assert (await admin.post(path)).status_code == 202
    assert (await admin.get(f"/runs/{first}")).json()["status"] == "cancelled"


async def test_runs_are_filtered_by_status_and_time(admin: Caller) -> None:
    run_id = await _dead(admin)
    run = (await admin.get(f"/runs/{run_id}")).json()

    async def found(query: str) -> list[str]:
        return [run["run_id"] for run in (await admin.get(f"/runs?{query}")).json()]

    assert await found("status=dead") == [run_id]
    assert await found("status=success") == []
    assert await found("from=2001-01-01T00:00:00Z") == [run_id]
    assert await found("to=2001-01-01T00:00:00%2B01:00") == []
    assert await found(f"from={run['scheduled_at']}") == [run_id]
    assert pointers(await admin.get("/runs?from=2001-01-01T00:00:00")) == ["/from"]
    assert pointers(await admin.get("/runs?from_at=2001-01-01T00:00:00Z")) == ["/from_at"]


async def test_gaps_stand_where_their_ticks_would(admin: Caller, connection: asyncpg.Connection) -> None:
    job = await admin.create(schedule="* * * * *")
    await admin.post(f"/jobs/{job['job_id']}/pause")
    await connection.execute("UPDATE timers SET fire_at = date_trunc('minute', clock_at()) - interval '3 minutes'")
    await admin.post(f"/jobs/{job['job_id']}/resume", json={"missed": "skip"})
    (gap,) = (await admin.get(f"/jobs/{job['job_id']}/runs?status=skipped")).json()
    assert (gap["run_id"], gap["status"], gap["reason"]) == (None, "skipped", "paused")
    assert gap["count"] in {4, 5}
    assert gap["scheduled_at"] < gap["until"]
    assert (await admin.get(f"/jobs/{job['job_id']}/runs?status=missed")).json() == []


async def test_a_cancelled_run_cannot_be_cancelled_again(admin: Caller) -> None:
    await admin.create(schedule="now")
    (attempt,) = await admin.lease()
    answer = await admin.post(f"/runs/{attempt['run_id']}/cancel", json={})
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    is_problem(await admin.post(f"/runs/{attempt['run_id']}/cancel"), 409, "wrong-state")


async def test_a_finished_run_is_replayed_as_a_new_one_and_an_open_one_is_not(admin: Caller) -> None:
    await admin.create(schedule="now", payload={"n": 7})
    (attempt,) = await admin.lease()
    is_problem(await admin.post(f"/runs/{attempt['run_id']}/replay"), 409, "wrong-state")
    await admin.record({"token": attempt["token"], "result": "success"})
    answer = await admin.post(f"/runs/{attempt['run_id']}/replay")
    assert (answer.status_code, answer.json()["reason"]) == (202, "replay")
    assert answer.headers["location"] == f"/api/v1/runs/{answer.json()['run_id']}"
    (again,) = await admin.lease()
    assert (again["run_id"], again["payload"]) == (answer.json()["run_id"], {"n": 7})
    assert again["idempotency_key"] == attempt["idempotency_key"]


async def test_a_dead_letter_is_listed_replayed_and_gone(admin: Caller) -> None:
    run_id = await _dead(admin)
    (letter,) = (await admin.get("/dead-letters")).json()
    assert (letter["run_id"], letter["error"], letter["attempt"]) == (run_id, "boom", 1)
    answer = await admin.post(f"/dead-letters/{run_id}/replay")
    assert (answer.status_code, answer.json()["reason"]) == (202, "replay")
    assert (await admin.get("/dead-letters")).json() == []
    is_problem(await admin.post(f"/dead-letters/{run_id}/replay"), 404, "not-found")


async def test_a_dismissed_dead_letter_leaves_its_run_in_the_history(admin: Caller) -> None:
    run_id = await _dead(admin)
    assert (await admin.delete(f"/dead-letters/{run_id}")).status_code == 204
    assert (await admin.get("/dead-letters")).json() == []
    assert (await admin.get(f"/runs/{run_id}")).json()["status"] == "dead"
    is_problem(await admin.delete(f"/dead-letters/{run_id}"), 404, "not-found")


async def test_dead_letters_are_replayed_by_filter_each_at_its_turn(admin: Caller) -> None:
    for number in range(3):
        await _dead(admin, name=f"job {number}")
    kept, *others = (await admin.get("/dead-letters")).json()
    answer = await admin.post(
        "/dead-letters:replay", json={"filter": {"died_before": kept["died_at"]}, "rate_per_second": 1}
    )
    replaying = answer.json()
    assert (answer.status_code, replaying["replayed"], replaying["has_more"]) == (202, 2, False)
    assert [letter["run_id"] for letter in (await admin.get("/dead-letters")).json()] == [kept["run_id"]]
    assert await _leased(admin, len(others)) == set(replaying["run_ids"])
    runs = [(await admin.get(f"/runs/{run_id}")).json() for run_id in replaying["run_ids"]]
    first, last = (datetime.fromisoformat(run["attempts"][0]["due_at"]) for run in runs)
    assert timedelta(seconds=0.5) < last - first <= timedelta(seconds=1)
    assert last == datetime.fromisoformat(replaying["last_due_at"])


async def test_a_replay_goes_on_when_the_server_is_killed_that_was_asked_for_it(
    admin: Caller, database_url: str, tmp_path: Path
) -> None:
    for number in range(3):
        await _dead(admin, name=f"job {number}")
    assert admin.key is not None
    with served(database_url, tmp_path / "log") as process:
        asking = Caller(process.address, admin.key)
        answer = await asking.post("/dead-letters:replay", json={"rate_per_second": 2})
        process.kill()
        await asking.aclose()
    assert await _leased(admin, 3) == set(answer.json()["run_ids"])


async def test_without_a_filter_all_dead_letters_are_replayed(admin: Caller) -> None:
    for number in range(2):
        await _dead(admin, name=f"job {number}")
    answer = await admin.post("/dead-letters:replay", json={})
    assert (answer.json()["replayed"], len(answer.json()["run_ids"])) == (2, 2)
    assert (await admin.get("/dead-letters")).json() == []
    assert (await admin.post("/dead-letters:replay", json={})).json()["last_due_at"] is None


async def test_a_replay_of_many_draws_from_the_rate_at_which_its_tenant_may_submit(
    admin: Caller, callers: Callers, connection: asyncpg.Connection
) -> None:
    for number in range(4):
        await _dead(admin, name=f"job {number}")
    # One for the request itself, and two for what it replays.
    await connection.execute("UPDATE tenants SET submits_per_second = 1, submit_burst = 3 WHERE tenant_id = 1")
    operator = await callers.make("operator")
    await stop_clock(connection)
    answer = (await operator.post("/dead-letters:replay", json={})).json()
    assert (answer["replayed"], answer["has_more"]) == (2, True)
    assert len((await operator.get("/dead-letters")).json()) == 2
    (rest,) = (await operator.get("/replays")).json()
    assert (rest["replay_id"], rest["status"]) == (answer["replay_id"], "running")


@pytest.mark.parametrize("table", ["timers", "audit_log"])
async def test_a_replay_that_was_undone_because_of_others_draws_from_the_rate_once(
    table: str, admin: Caller, callers: Callers, connection: asyncpg.Connection
) -> None:
    for number in range(4):
        await _dead(admin, name=f"job {number}")
    await connection.execute("UPDATE tenants SET submits_per_second = 1, submit_burst = 3 WHERE tenant_id = 1")
    operator = await callers.make("operator")
    await stop_clock(connection)
    await connection.execute(
        f"""
        CREATE SEQUENCE tries;
        CREATE FUNCTION undone_once() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('tries') = 1 THEN
                RAISE EXCEPTION 'deadlock detected' USING ERRCODE = 'deadlock_detected';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER undone_once BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION undone_once();
        """
    )
    answer = (await operator.post("/dead-letters:replay", json={})).json()
    assert (answer["replayed"], answer["has_more"]) == (2, True)
    assert await connection.fetchval("SELECT last_value FROM tries") > 1


async def test_a_replay_in_the_background_is_shown_and_cancelled(admin: Caller, callers: Callers) -> None:
    await _dead(admin, labels={"team": "growth"})
    await _dead(admin)
    wanted = {"filter": {"error": "BOOM", "label": "team:growth"}, "rate_per_second": 5, "background": True}
    answer = await admin.post("/dead-letters:replay", json=wanted)
    replay_id = answer.json()["replay_id"]
    assert answer.status_code == 202
    assert answer.json() == {
        "replayed": 0, "run_ids": [], "last_due_at": None, "has_more": True, "replay_id": replay_id
    }  # fmt: skip
    shown = (await admin.get(f"/replays/{replay_id}")).json()
    assert (shown["status"], shown["replayed"], shown["remaining"], shown["rate_per_second"]) == ("running", 0, 1, 5)
    assert (shown["filter"]["error"], shown["filter"]["label"], shown["filter"]["job_id"]) == (
        "BOOM",
        "team:growth",
        None,
    )
    assert shown["created_by"].startswith("key_")
    viewer = await callers.make("viewer")
    is_problem(await viewer.post(f"/replays/{replay_id}/cancel"), 403, "forbidden")
    assert (await admin.post(f"/replays/{replay_id}/cancel")).json()["status"] == "cancelled"
    is_problem(await admin.post(f"/replays/{replay_id}/cancel"), 409, "wrong-state")
    is_problem(await admin.get("/replays/rpl_0000000000000"), 404, "not-found")
    changes = (await admin.get("/audit-log")).json()
    assert [(entry["action"], entry["subject"]) for entry in changes[:2]] == [
        ("cancel_replay", replay_id),
        ("replay_dead_letters", replay_id),
    ]


async def test_the_growth_of_dead_letters_is_counted(admin: Caller) -> None:
    async def recorded() -> float:
        page = (await admin.get(str(admin.base_url).removesuffix("/api/v1/") + "/metrics")).text
        (line,) = [line for line in page.splitlines() if line.startswith("evertick_dead_letters_recorded_total ")]
        return float(line.split()[1])

    before = await recorded()
    await _dead(admin)

    async def is_counted() -> bool:
        return await recorded() == before + 1

    await until(is_counted)  # the page is at most a second old


async def test_pages_of_runs_follow_their_links(admin: Caller) -> None:
    job = await admin.create(schedule="manual")
    made = []
    for _ in range(5):
        made.append((await admin.post(f"/jobs/{job['job_id']}/trigger")).json()["run_id"])
        (attempt,) = await admin.lease()
        await admin.record({"token": attempt["token"], "result": "success"})
    address = str(admin.base_url).removesuffix("/api/v1/")
    for path in ("/api/v1/runs?limit=2", f"/api/v1/jobs/{job['job_id']}/runs?limit=2"):
        seen, following = [], path
        while following:
            answer = await admin.get(address + following)
            seen += [run["run_id"] for run in answer.json()]
            following = answer.links["next"]["url"] if "next" in answer.links else ""
        assert seen == made[::-1]
