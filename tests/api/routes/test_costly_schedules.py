"""Schedules whose ticks take long to find must cost their author time, and nobody else."""

import asyncio
import inspect
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import asyncpg
import httpx
import pytest

from api.callers import JOB, TARGET, Caller, Callers, is_problem
from engine import AT, stop_clock, until
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.zoned import ZonedTicks
from evertick.runtime import background
from evertick.runtime.background import MAX_PENDING_PER_TENANT
from evertick.usecases.jobs import create_many
from roles.costly import held_thread

CONNECTIONS = 8
"""Of the server in these tests."""

SKIPPED = {"schedule": "31 0 2 * 3 0#2", "timezone": "America/New_York", "dst_gap": "skip"}
"""The clocks jump over every time that it names: a search for one looks at fifty years."""
COSTLIEST_PREVIEW = {"schedule": "R/2026-03-08T02:30:00/P1Y", "timezone": "Africa/Casablanca", "count": 1000}


def _costly(number: int) -> str:
    """Decades of days have to be looked at, to find that it never fires or when."""
    return f"RRULE:FREQ=SECONDLY;INTERVAL={86_399 - number};BYHOUR=2;BYMINUTE=30;BYSECOND=7"


_SEARCHES = (Schedule.__init__, Schedule.next, ZonedTicks.next, ZonedTicks.prev, ZonedTicks.count, ZonedTicks.lost)


@pytest.fixture
def on_the_loop() -> Iterator[list[str]]:
    """Where ticks were looked for in this thread, which the server shares: it answers nobody meanwhile."""
    codes = {inspect.unwrap(search).__code__ for search in _SEARCHES}
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in codes:
            found.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        Schedule("0 12 * * *").next(AT)
        assert len(set(found)) == 3, "they would be noticed"
        found.clear()
        yield found
    finally:
        sys.setprofile(None)


async def until_waiting(tenant_id: int, count: int) -> None:
    async def are_there() -> bool:
        return background.waiting(tenant_id) == count

    await until(are_there)


# Nothing is computed on the event loop


async def test_a_batch_of_costly_recurrences_does_not_freeze_the_server(admin: Caller, on_the_loop: list[str]) -> None:
    answer = await admin.post("/jobs:batch", json=[{**JOB, "schedule": _costly(number)} for number in range(20)])
    assert len(answer.json()) == 20
    assert on_the_loop == []


async def test_a_batch_of_cron_expressions_that_the_clocks_jump_over_does_not_freeze_the_server(
    admin: Caller, on_the_loop: list[str]
) -> None:
    crons = [{**JOB, **SKIPPED, "schedule": f"{second} 0 2 * 3 0#2"} for second in range(25)]
    answer = await admin.post("/jobs:batch", json=crons)
    assert {verdict["status"] for verdict in answer.json()} == {422}
    assert on_the_loop == []


async def test_costly_recurrences_that_are_created_together_do_not_freeze_the_server(
    admin: Caller, on_the_loop: list[str]
) -> None:
    answers = await asyncio.gather(
        *(admin.post("/jobs", json={**JOB, "schedule": _costly(20 + number)}) for number in range(15))
    )
    assert {answer.status_code for answer in answers} <= {201, 422}
    assert on_the_loop == []


async def test_no_route_computes_on_the_loop(admin: Caller, on_the_loop: list[str]) -> None:
    weekly = {**JOB, "schedule": "30 2 * * 0", "timezone": "America/New_York"}
    assert is_problem(await admin.post("/jobs", json={**JOB, **SKIPPED}), 422, "invalid-input")
    job_id = (await admin.post("/jobs", json=weekly)).json()["job_id"]
    named = "/jobs/by-name/weekly"
    answers = [
        await admin.put(named, json=weekly),
        await admin.put(named, json={**weekly, "schedule": "RRULE:FREQ=MONTHLY;BYDAY=-1FR"}),
        await admin.patch(f"/jobs/{job_id}", json={"schedule": "45 2 * * 0"}),
        await admin.patch(f"/jobs/{job_id}", json={"payload": 1}),
        await admin.post(f"/jobs/{job_id}/pause"),
        await admin.post(f"/jobs/{job_id}/resume", json={"missed": "run_all"}),
        await admin.get(f"/jobs/{job_id}/upcoming?count=1000"),
        await admin.post("/schedules/preview", json=_shown(weekly)),
        await admin.post("/schedules/preview", json=_shown(weekly), headers={"Idempotency-Key": "again"}),
        await admin.delete(f"/jobs/{job_id}"),
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200, 200, 200, 200, 200, 204]
    assert on_the_loop == []


def _shown(job: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name != "target"}


async def test_ticks_that_a_pause_swallowed_are_counted_in_the_background(
    admin: Caller, connection: asyncpg.Connection, on_the_loop: list[str]
) -> None:
    resumed, deleted, edited = [
        (await admin.create(schedule="30 2 * * *", timezone="America/New_York"))["job_id"] for _ in range(3)
    ]
    for job_id in (resumed, deleted, edited):
        await admin.post(f"/jobs/{job_id}/pause")
    await connection.execute("UPDATE timers SET fire_at = fire_at - interval '300 days'")
    assert (await admin.post(f"/jobs/{resumed}/resume", json={"missed": "skip"})).status_code == 200
    assert (await admin.delete(f"/jobs/{deleted}")).status_code == 204
    assert (await admin.patch(f"/jobs/{edited}", json={"schedule": "0 5 * * *"})).status_code == 200
    for job_id in (resumed, edited):
        gaps = [run for run in (await admin.get(f"/jobs/{job_id}/runs")).json() if run["status"] == "skipped"]
        assert sum(gap["count"] for gap in gaps if gap["reason"] == "paused") == 300
    assert on_the_loop == []


async def test_a_long_preview_does_not_freeze_the_server_and_ends(admin: Caller, on_the_loop: list[str]) -> None:
    rare = {"schedule": "RRULE:FREQ=MINUTELY;INTERVAL=1439;BYHOUR=2;BYMINUTE=30", "count": 1000}
    answer = await admin.post("/schedules/preview", json=rare)
    assert on_the_loop == []
    assert 10 < len(answer.json()["upcoming"]) < 100


# Nobody waits for another tenant's computations


async def test_previews_whose_clients_hung_up_leave_nothing_to_compute(callers: Callers) -> None:
    tenant_id = await callers.tenant()
    viewer = await callers.make("viewer", tenant_id)
    async with held_thread():
        asking = [
            asyncio.create_task(viewer.post("/schedules/preview", json=COSTLIEST_PREVIEW))
            for _ in range(MAX_PENDING_PER_TENANT)
        ]
        await until_waiting(tenant_id, MAX_PENDING_PER_TENANT)
        for task in asking:
            task.cancel()  # which closes its connection
        await asyncio.gather(*asking, return_exceptions=True)
        await until_waiting(tenant_id, 0)


async def test_a_batch_whose_client_hung_up_leaves_nothing_to_compute(callers: Callers) -> None:
    tenant_id = await callers.tenant()
    editor = await callers.make("editor", tenant_id)
    async with held_thread():
        task = asyncio.create_task(editor.post("/jobs:batch", json=[{**JOB, **SKIPPED}] * 25))
        await until_waiting(tenant_id, 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until_waiting(tenant_id, 0)


async def test_a_tenant_is_served_before_anothers_many_costly_questions(callers: Callers) -> None:
    hostile_id, other_id = await callers.tenant(), await callers.tenant()
    hostile, other = await callers.make("editor", hostile_id), await callers.make("editor", other_id)
    answered: list[str] = []

    async def ask(who: str, asking: Any) -> httpx.Response:
        answer: httpx.Response = await asking
        answered.append(who)
        return answer

    async with held_thread():
        batch = [{**JOB, **SKIPPED}] * 25
        attack = [ask("hostile", hostile.post("/schedules/preview", json=COSTLIEST_PREVIEW)) for _ in range(40)]
        attack += [ask("hostile", hostile.post("/jobs:batch", json=batch)) for _ in range(10)]
        attacking = [asyncio.create_task(each) for each in attack]
        await until_waiting(hostile_id, 50)
        created = asyncio.create_task(ask("created", other.post("/jobs", json=JOB)))
        previewed = asyncio.create_task(ask("previewed", other.post("/schedules/preview", json={"schedule": "@daily"})))
        await until_waiting(other_id, 2)
    assert (await previewed).status_code == 200
    assert answered.index("previewed") <= 2
    assert (await created).status_code == 201
    assert background.waiting(hostile_id)
    for task in attacking:
        task.cancel()
    await asyncio.gather(*attacking, return_exceptions=True)
    await until_waiting(hostile_id, 0)


async def test_no_connection_of_the_database_waits_for_a_computation(callers: Callers) -> None:
    hostile_id = await callers.tenant()
    hostile, other = await callers.make("editor", hostile_id), await callers.make("viewer", await callers.tenant())
    paused, edited, shown = [(await hostile.create())["job_id"] for _ in range(3)]
    await hostile.post(f"/jobs/{paused}/pause")
    async with held_thread():
        asking = [
            asyncio.create_task(each)
            for number in range(CONNECTIONS)
            for each in (
                hostile.put(f"/jobs/by-name/{number}", json=JOB),
                hostile.patch(f"/jobs/{edited}", json={"schedule": f"{number} 2 * * *"}),
                hostile.post(
                    "/schedules/preview", json={"schedule": "@daily"}, headers={"Idempotency-Key": f"{number}"}
                ),
                hostile.post(f"/jobs/{paused}/resume"),
                hostile.get(f"/jobs/{shown}/upcoming"),
            )
        ]
        await until_waiting(hostile_id, len(asking))
        assert (await other.get("/jobs")).status_code == 200
    assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200, 201}


async def test_a_tenant_with_too_much_to_compute_is_told_to_wait(callers: Callers) -> None:
    tenant_id = await callers.tenant()
    editor = await callers.make("editor", tenant_id)
    async with held_thread():
        waiting = [asyncio.create_task(background.run(tenant_id, int)) for _ in range(MAX_PENDING_PER_TENANT)]
        await until_waiting(tenant_id, MAX_PENDING_PER_TENANT)
        refused = [
            await editor.post("/schedules/preview", json={"schedule": "@daily"}),
            await editor.post("/jobs", json=JOB),
            await editor.put("/jobs/by-name/x", json=JOB),
            await editor.post("/jobs:batch", json=[JOB]),
        ]
        fine = await editor.post("/jobs", json={**JOB, "schedule": "every 5m"})
    await asyncio.gather(*waiting)
    for answer in refused:
        assert is_problem(answer, 429, "over-quota")["quota"] == "computations"
        assert int(answer.headers["retry-after"]) >= 1
    assert fine.status_code == 201


# Budgets


async def test_a_batch_with_too_many_costly_schedules_keeps_the_other_lines(
    admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_many, "BATCH_STEPS", 1)
    weekly = {**JOB, "schedule": "RRULE:FREQ=WEEKLY;BYDAY=MO"}
    plain = {"schedule": "every 5m", "target": TARGET}
    first, second, third = (await admin.post("/jobs:batch", json=[weekly, JOB, plain])).json()
    assert [first["status"], third["status"]] == [201, 201]
    assert second["errors"][0]["pointer"] == "/schedule"
    assert "too costly" in second["errors"][0]["detail"]


async def test_previews_are_limited_as_submissions_are(callers: Callers, connection: asyncpg.Connection) -> None:
    tenant_id = await callers.tenant()
    await connection.execute(
        "UPDATE tenants SET submits_per_second = 1, submit_burst = 1 WHERE tenant_id = $1", tenant_id
    )
    viewer = await callers.make("viewer", tenant_id)
    await stop_clock(connection)
    first, second = [await viewer.post("/schedules/preview", json={"schedule": "@daily"}) for _ in range(2)]
    assert first.status_code == 200
    assert is_problem(second, 429, "over-quota")["quota"] == "submit_rate"
