"""Schedules before they happen: previews of any, upcoming fire times of a job's."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from evertick.api.idempotency import in_flight, one_try
from evertick.api.operations import Call, Section, Shown
from evertick.api.problems import Kind
from evertick.api.responses import Answer, ok
from evertick.api.shapes import PreviewRequest, UpcomingQuery
from evertick.domain.access import KeyRole
from evertick.domain.admission import Request
from evertick.domain.job.spec import DEFAULT_TIMEZONE
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.preview import Preview, Row
from evertick.usecases import jobs, previews
from evertick.usecases.context import Tenant
from evertick.usecases.engine_status import clock
from evertick.usecases.previews import Wanted

section = Section("Schedules")

DEFAULT_COUNT = 10


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _rows(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [
        {
            "fire_at": _utc(row.fire_at),
            "due_at": _utc(row.due_at),
            "local": row.local.isoformat(),
            "notes": list(row.notes),
        }
        for row in rows
    ]


def _shape(preview: Preview) -> dict[str, Any]:
    return {
        "schedule": preview.schedule.text,
        "timezone": preview.schedule.timezone,
        "tzdb": preview.tzdb_version,
        "description": preview.description,
        "upcoming": _rows(preview.rows),
        "dst_notes": [
            {
                "at": _utc(lost.at),
                "ticks": lost.ticks,
                "first_local": lost.first_local.isoformat(),
                "last_local": lost.last_local.isoformat(),
                "note": lost.note,
            }
            for lost in preview.lost
        ],
        "warnings": [
            {"code": finding.code, "severity": finding.severity, "message": finding.message}
            for finding in preview.findings
        ],
    }


@section.operation(
    "GET",
    "/jobs/{job_id}/upcoming",
    KeyRole.VIEWER,
    answers={200: Shown("Upcoming", "The next fire times; none while it is paused or after its last.")},
    problems=(Kind.NOT_FOUND, Kind.OVER_QUOTA),
    is_computed=True,
)
async def list_upcoming(call: Call, job_id: str, query: UpcomingQuery) -> Answer:
    """List a job's next fire times."""
    async with call.services.slot_for(KeyRole.VIEWER, call.tenant.tenant_id):
        job = await jobs.get(call.tenant, job_id)
    found = await call.while_waited_for(previews.upcoming(call.tenant, job, query.count))
    return ok(_rows(found))


@section.operation(
    "POST",
    "/schedules/preview",
    KeyRole.VIEWER,
    answers={200: Shown("Preview", "What the schedule would do.")},
    body="PreviewRequest",
    is_change=False,
    is_computed=True,
    cost=lambda _: Request(),
)
async def preview_schedule(call: Call, body: PreviewRequest) -> Answer:
    """Preview a schedule.

    Upcoming fire and due times, a description in plain English, what daylight saving does to it, warnings.
    """
    wanted = Wanted(
        schedule=body.schedule,
        timezone=body.timezone or DEFAULT_TIMEZONE,
        dst_gap=body.dst_gap or DstGap.CATCH_UP,
        dst_overlap=body.dst_overlap or DstOverlap.FIRST,
        start_at=body.start_at,
        end_at=body.end_at,
        jitter=timedelta(seconds=body.jitter_seconds or 0),
        after=body.after or await _now(call),
    )
    found = previews.preview(call.tenant, wanted, body.count or DEFAULT_COUNT)
    answered = ok(_shape(await call.while_waited_for(found)))

    async def told(_: Tenant) -> Answer:
        return answered

    if call.asked is None:
        return answered
    # Only now: a key that comes with the request is claimed in a transaction, whose connection must not wait.
    async with call.services.slot_for(KeyRole.VIEWER, call.tenant.tenant_id):
        kept = await one_try(call, told)
    if kept is None:
        raise in_flight()
    return kept


async def _now(call: Call) -> datetime:
    async with call.services.slot_for(KeyRole.VIEWER, call.tenant.tenant_id):
        return await clock(call.tenant.pool)
