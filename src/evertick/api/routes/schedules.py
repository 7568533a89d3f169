"""Schedules before they happen: previews of any, upcoming fire times of a job's."""

from collections.abc import Iterable
from datetime import UTC, datetime

from evertick.api.idempotency import act_once
from evertick.api.messages import AuthenticatedRequest, Response, ok
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.problems import Kind
from evertick.contract.jobs import DstNote, Preview, PreviewRequest, Upcoming, UpcomingQuery, Warned
from evertick.domain.access import KeyRole
from evertick.domain.admission import AdmissionRequest
from evertick.domain.schedule import preview as schedule_preview
from evertick.domain.schedule.preview import PreviewRow
from evertick.store.engine import lanes
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs import previews, reading

routes = Routes("Schedules")


def _utc(at: datetime) -> datetime:
    return at.astimezone(UTC)


def _rows(rows: Iterable[PreviewRow]) -> tuple[Upcoming, ...]:
    return tuple(
        Upcoming(fire_at=_utc(row.fire_at), due_at=_utc(row.due_at), local=row.local.isoformat(), notes=row.notes)
        for row in rows
    )


def _shown(preview: schedule_preview.SchedulePreview) -> Preview:
    return Preview(
        schedule=preview.schedule.text,
        timezone=preview.schedule.timezone,
        tzdb=preview.tzdb_version,
        description=preview.description,
        upcoming=_rows(preview.rows),
        dst_notes=tuple(
            DstNote(
                at=_utc(lost.at),
                ticks=lost.ticks,
                first_local=lost.first_local.isoformat(),
                last_local=lost.last_local.isoformat(),
                note=lost.note,
            )
            for lost in preview.lost
        ),
        warnings=tuple(
            Warned(code=finding.code, severity=finding.severity, message=finding.message)
            for finding in preview.findings
        ),
    )


@routes.operation(
    "GET",
    "/jobs/{job_id}/upcoming",
    KeyRole.VIEWER,
    ResponseSpec(list[Upcoming], "The next fire times; none while it is paused or after its last."),
    problems=(Kind.OVER_QUOTA,),
    mode=HandlerMode.COMPUTATION,
)
async def list_upcoming(request: AuthenticatedRequest, job_id: str, query: UpcomingQuery) -> Response:
    """List a job's next fire times."""
    async with request.services.slot_for(KeyRole.VIEWER, request.tenant.tenant_id):
        job = await reading.get(request.tenant, job_id)
    found = await request.cancel_on_disconnect(previews.upcoming(request.tenant, job, query.count))
    return ok(_rows(found))


@routes.operation(
    "POST",
    "/schedules/preview",
    KeyRole.VIEWER,
    ResponseSpec(Preview, "What the schedule would do."),
    mode=HandlerMode.COMPUTATION,
    cost=AdmissionRequest(),
)
async def preview_schedule(request: AuthenticatedRequest, body: PreviewRequest) -> Response:
    """Preview a schedule.

    Upcoming fire and due times, a description in plain English, what daylight saving does to it, warnings.
    """
    after = body.after
    if after is None:
        async with request.services.slot_for(KeyRole.VIEWER, request.tenant.tenant_id):
            after = await lanes.clock(request.tenant.pool)
    found = await request.cancel_on_disconnect(previews.preview(request.tenant, body, after))
    response = ok(_shown(found))

    async def keep(_: TenantContext) -> Response:
        return response

    if request.idempotency is None:
        return response
    # Only now: its key is claimed in a transaction, and no connection may wait while something is computed.
    async with request.services.slot_for(KeyRole.VIEWER, request.tenant.tenant_id):
        return await act_once(request.tenant, request.idempotency, keep)
