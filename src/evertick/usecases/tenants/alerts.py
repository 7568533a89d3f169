"""A tenant's alerts, and the target of its notices.

The target is a job without a schedule, whose runs by hand deliver the notices: janitors make them
(`roles/janitor/alerting`). So a notice is signed, retried, listed and replayed as any other webhook.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from evertick.contract.alerts import (
    Alert,
    AlertStatus,
    AlertTarget,
    AlertTargetRequest,
    Notice,
    NoticeStatus,
    NoticeType,
)
from evertick.contract.job import Job
from evertick.domain.alerts import Condition
from evertick.domain.ids import MAX_ID, Prefix, format_id, format_run_id, parse_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import Outcome
from evertick.store.tenants import alerts
from evertick.store.tenants.alerts import ListedAlert, TargetRow
from evertick.usecases.context import (
    DEFAULT_PER_PAGE,
    Page,
    TenantContext,
    checked_cursor,
    checked_limit,
    job_key,
    page_of,
)
from evertick.usecases.errors import AlertTargetNotFound
from evertick.usecases.jobs import lifecycle, reading
from evertick.usecases.jobs.create import create
from evertick.usecases.runs import requests

NAME = "alert:notices"
"""Of the job that delivers notices."""
_FIELDS: dict[str, Any] = {
    "name": NAME,
    "schedule": "manual",
    "priority": "high",
    "timeout_seconds": 30,
    # About a day in all.
    "max_retries": 30,
    "retry_delay_seconds": 5,
    "retry_max_delay_seconds": 3600,
}


async def list_alerts(
    tenant: TenantContext,
    *,
    status: AlertStatus | None = None,
    condition: Condition | None = None,
    limit: int = DEFAULT_PER_PAGE,
    cursor: str | None = None,
) -> Page[Alert]:
    """The alerts that are open, and those that were closed within the history; newest first."""
    most = checked_limit(limit)
    before = MAX_ID if cursor is None else checked_cursor(cursor, lambda text: parse_id(Prefix.ALERT, text))
    is_open = None if status is None else status is AlertStatus.OPEN
    rows = await alerts.page(
        tenant.pool, tenant.tenant_id, is_open=is_open, condition=condition, before=before, most=most + 1
    )
    return page_of([_alert_of(row) for row in rows], most, lambda alert: alert.alert_id)


async def get_target(tenant: TenantContext) -> AlertTarget:
    """The tenant's alert target, or AlertTargetNotFound."""
    row = await _row(tenant)
    return _target_of(await reading.get(tenant, format_id(Prefix.JOB, row.job_id)), row.conditions)


async def put_target(tenant: TenantContext, given: AlertTargetRequest) -> AlertTarget:
    """Set where notices go, and of which conditions. NameTaken: another job has the name of the notices' job.

    Another URL or other headers make a new job: notices under way to the old one are given up, and what is open is
    told to the new one.
    """
    # Notices go on when their receiver fails: they have retries enough, and no breaker of their own to be told of.
    target = {"type": "http", "url": given.url, "headers": dict(given.headers), "circuit_breaker": False}
    row = await alerts.target(tenant.pool, tenant.tenant_id)
    job = None if row is None else await reading.get(tenant, format_id(Prefix.JOB, row.job_id))
    if job is not None and (job.target.get("url"), job.target.get("headers", {})) != (given.url, dict(given.headers)):
        await lifecycle.delete(tenant, job.job_id)  # its runs keep the target that they began with
        job = None
    if job is None:
        job = await create(tenant, {**_FIELDS, "target": target})
    conditions = sorted({str(condition) for condition in given.conditions})
    await alerts.put_target(tenant.pool, tenant.tenant_id, job_key(job.job_id), conditions)
    return _target_of(job, conditions)


async def remove_target(tenant: TenantContext) -> None:
    """Send no notices any more; those under way that wait for a retry are cancelled."""
    row = await _row(tenant)
    # The job first: a janitor that has it locked may be about to change an alert.
    await lifecycle.delete(tenant, format_id(Prefix.JOB, row.job_id))
    await tenant.in_transaction(lambda connection: alerts.remove_target(connection, tenant.tenant_id))


async def send_test_notice(tenant: TenantContext, notice_id: str) -> str:
    """Send a notice about nothing, and return the id of its run."""
    row = await _row(tenant)
    notice = Notice(notice_id=notice_id, type=NoticeType.TEST, detail="a test of the alert target")
    notice_job, payload = format_id(Prefix.JOB, row.job_id), msgspec.to_builtins(asdict(notice))
    return await requests.trigger(tenant, notice_job, payload, force=True)


async def _row(tenant: TenantContext) -> TargetRow:
    row = await alerts.target(tenant.pool, tenant.tenant_id)
    if row is None:
        raise AlertTargetNotFound
    return row


def _target_of(job: Job, conditions: Sequence[str]) -> AlertTarget:
    target = job.target  # which its owner may have made another one
    return AlertTarget(
        url=target.get("url", ""), headers=target.get("headers", {}), conditions=tuple(conditions), job_id=job.job_id
    )


def _alert_of(row: ListedAlert) -> Alert:
    run_id = None
    if row.notice_job_id is not None and row.notice_at is not None:
        run_id = format_run_id(row.notice_job_id, to_us(row.notice_at))
    return Alert(
        alert_id=format_id(Prefix.ALERT, row.alert_id),
        condition=row.condition,
        subject=row.subject,
        job_id=None if row.job_id is None else format_id(Prefix.JOB, row.job_id),
        job_name=row.job_name,
        status=AlertStatus.OPEN if row.is_open else AlertStatus.CLOSED,
        opened_at=row.opened_at,
        closed_at=row.closed_at,
        close_reason=row.close_reason,
        openings=row.openings,
        detail=row.detail,
        notice_status=None if run_id is None else _notice_status(row),
        notice_run_id=run_id,
    )


def _notice_status(row: ListedAlert) -> NoticeStatus | None:
    if row.is_notice_under_way:
        return NoticeStatus.UNDER_WAY
    if row.notice_result is None and not row.is_notice_withdrawn:
        return None  # the alert is open for longer than history is kept
    return NoticeStatus.DELIVERED if row.notice_result == Outcome.SUCCESS else NoticeStatus.FAILED
