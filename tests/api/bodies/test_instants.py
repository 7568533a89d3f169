"""Instants that no calendar holds, and clocks that are off."""

from collections.abc import Iterator
from datetime import datetime

import pytest

from api.callers import Caller, pointers

pytestmark = pytest.mark.usefixtures("scheduler")

BEFORE_ALL = "0001-01-01T00:00:00+14:00"
AFTER_ALL = "9999-12-31T23:59:59-14:00"


@pytest.mark.parametrize("at", [BEFORE_ALL, AFTER_ALL])
async def test_an_outcome_from_beyond_the_calendar_leaves_the_history_readable(admin: Caller, at: str) -> None:
    job = await admin.create(schedule="now")
    (attempt,) = await admin.lease()
    outcome = {"token": attempt["token"], "result": "success", "started_at": at, "finished_at": at}
    assert (await admin.record(outcome))["recorded"] == 1
    for path in (f"/runs/{attempt['run_id']}", "/runs", f"/jobs/{job['job_id']}/runs"):
        assert (await admin.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("started_at", "finished_at"),
    [
        ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ("2090-01-01T00:00:00Z", "2000-01-01T00:00:00Z"),
        (BEFORE_ALL, AFTER_ALL),
    ],
)
async def test_a_run_never_began_before_it_was_fired_nor_ended_before_it_began(
    admin: Caller, started_at: str, finished_at: str
) -> None:
    await admin.create(schedule="now")
    (attempt,) = await admin.lease()
    await admin.record(
        {"token": attempt["token"], "result": "success", "started_at": started_at, "finished_at": finished_at}
    )
    run = (await admin.get(f"/runs/{attempt['run_id']}")).json()
    scheduled, began, ended = (
        datetime.fromisoformat(run[name]) for name in ("scheduled_at", "started_at", "finished_at")
    )
    assert scheduled <= began <= ended
    assert run["duration_ms"] >= 0


def _edges() -> Iterator[tuple[str, str]]:
    for at in (BEFORE_ALL, AFTER_ALL):
        encoded = at.replace("+", "%2B")
        yield from ((f"/runs?{name}={encoded}", f"/{name}") for name in ("from", "to"))


@pytest.mark.parametrize(("path", "pointer"), [*_edges()])
async def test_a_query_beyond_the_calendar_is_refused_and_not_an_error_of_ours(
    admin: Caller, path: str, pointer: str
) -> None:
    assert pointers(await admin.get(path)) == [pointer]


@pytest.mark.parametrize("at", [BEFORE_ALL, AFTER_ALL])
async def test_a_body_beyond_the_calendar_is_refused_and_not_an_error_of_ours(admin: Caller, at: str) -> None:
    key = {"role": "viewer", "expires_at": at}
    assert pointers(await admin.post("/api-keys", json=key)) == ["/expires_at"]
    letters = {"filter": {"died_from": at, "died_before": at}}
    assert pointers(await admin.post("/dead-letters:replay", json=letters)) == [
        "/filter/died_from",
        "/filter/died_before",
    ]


async def test_a_preview_with_an_endless_jitter_is_refused_and_not_an_error_of_ours(admin: Caller) -> None:
    preview = {"schedule": "@daily", "jitter_seconds": 1e300}
    assert pointers(await admin.post("/schedules/preview", json=preview)) == ["/jitter_seconds"]
