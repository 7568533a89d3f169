"""Schedules whose ticks take long to find must cost their author time, and nobody else."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from api.callers import JOB, Caller, Callers, is_problem
from evertick.domain.schedule.schedule import Schedule
from evertick.usecases import create_many


def _costly(number: int) -> str:
    """Decades of days have to be looked at, to find that it never fires or when."""
    return f"RRULE:FREQ=SECONDLY;INTERVAL={86_399 - number};BYHOUR=2;BYMINUTE=30;BYSECOND=7"


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The threads in which ticks were looked for. The server shares the main one: it answers nobody meanwhile."""
    found: set[str] = set()
    for name in ("__init__", "next"):
        search = getattr(Schedule, name)

        def noted(*given: Any, _search: Callable[..., Any] = search, **named: Any) -> Any:
            found.add(threading.current_thread().name)
            return _search(*given, **named)

        monkeypatch.setattr(Schedule, name, noted)
    return found


def _are_aside(threads: set[str]) -> bool:
    return bool(threads) and all(name.startswith("aside") for name in threads)


async def test_a_batch_of_costly_recurrences_does_not_freeze_the_server(admin: Caller, threads: set[str]) -> None:
    answer = await admin.post("/jobs:batch", json=[{**JOB, "schedule": _costly(number)} for number in range(20)])
    assert len(answer.json()) == 20
    assert _are_aside(threads)


async def test_costly_recurrences_that_are_created_together_do_not_freeze_the_server(
    admin: Caller, threads: set[str]
) -> None:
    answers = await asyncio.gather(
        *(admin.post("/jobs", json={**JOB, "schedule": _costly(20 + number)}) for number in range(15))
    )
    assert {answer.status_code for answer in answers} <= {201, 422}
    assert _are_aside(threads)


async def test_a_long_preview_does_not_freeze_the_server_and_ends(admin: Caller, threads: set[str]) -> None:
    rare = {"schedule": "RRULE:FREQ=MINUTELY;INTERVAL=1439;BYHOUR=2;BYMINUTE=30", "count": 1000}
    answer = await admin.post("/schedules/preview", json=rare)
    assert _are_aside(threads)
    assert 10 < len(answer.json()["upcoming"]) < 100


async def test_a_batch_with_too_many_costly_recurrences_keeps_the_other_lines(
    admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_many, "LONGEST_SECONDS", 1e-9)
    weekly = {**JOB, "schedule": "RRULE:FREQ=WEEKLY;BYDAY=MO"}
    first, second, plain = (await admin.post("/jobs:batch", json=[weekly, weekly, JOB])).json()
    assert [first["status"], plain["status"]] == [201, 201]
    assert second["errors"][0]["pointer"] == "/schedule"
    assert "too costly" in second["errors"][0]["detail"]


async def test_previews_are_limited_as_submissions_are(callers: Callers, connection: asyncpg.Connection) -> None:
    tenant_id = await callers.tenant()
    await connection.execute(
        "UPDATE tenants SET submits_per_second = 1, submit_burst = 1 WHERE tenant_id = $1", tenant_id
    )
    viewer = await callers.make("viewer", tenant_id)
    first, second = [await viewer.post("/schedules/preview", json={"schedule": "@daily"}) for _ in range(2)]
    assert first.status_code == 200
    assert is_problem(second, 429, "over-quota")["quota"] == "submit_rate"
