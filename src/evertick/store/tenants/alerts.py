"""Alerts and the targets of their notices. Called by the janitor, by the fuse of schedulers, and by the use cases."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from evertick.domain.alerts import (
    LETTERS_WITHIN,
    LONG_DUE,
    MANY_DUE,
    NEAR_END,
    USUAL_OF,
    AlertKey,
    AlertState,
    CloseReason,
    Condition,
)
from evertick.store import statements
from evertick.store.database import Session
from evertick.store.statements import Connection, columns

MAX_ATTEMPTS = 1000
"""Newest attempts of a job among which its last success and its failures are looked for."""
MAX_TIMED = 100
"""Newest attempts of a job among which the usual duration is looked for."""
MAX_OPEN = 100
"""Runs of a job that are looked at for how long they run."""
MAX_LETTERS = 1000
MAX_HOSTS = 100
"""Failing hosts of a tenant that have alerts."""
MAX_OF_TENANT = 10_000
MAX_COUNTED = 10_000


class Look(StrEnum):
    """What one janitor at a time looks after."""

    JOBS = "jobs"
    TENANTS = "tenants"
    NOTICES = "notices"


class TakenLook(NamedTuple):
    """A look that this transaction has locked. At `after_id` 0 it begins."""

    after_id: int
    began_at: datetime
    now_at: datetime


class JobFactsRow(NamedTuple):
    """A job that may have alerts; `spec` is JSON."""

    job_id: int
    tenant_id: int
    name: str
    status: str
    is_finished: bool
    since_at: datetime
    spec: str
    success_at: datetime | None
    noted_success_at: datetime | None
    failures: int
    waits_since_at: datetime | None
    seconds_late: float | None
    running_since_at: datetime | None
    now_at: datetime


class Duration(NamedTuple):
    job_id: int
    seconds: float


class TenantFactsRow(NamedTuple):
    tenant_id: int
    conditions: list[str]
    letters: int
    due: int
    jobs: int
    jobs_quota: int
    stored_bytes: int
    storage_quota_bytes: int


class FailingHost(NamedTuple):
    tenant_id: int
    host: str
    last_error: str | None


class AlertRow(NamedTuple):
    """An alert, and whether it is open."""

    alert_id: int
    tenant_id: int
    condition: str
    subject: str
    job_id: int | None
    is_open: bool
    opened_at: datetime
    closed_at: datetime | None
    openings: int

    @property
    def key(self) -> AlertKey:
        return AlertKey(self.tenant_id, self.condition, self.subject)

    @property
    def state(self) -> AlertState:
        return AlertState(self.is_open, self.opened_at, self.closed_at, self.openings)


class NewAlert(NamedTuple):
    """An alert to open."""

    tenant_id: int
    job_id: int | None
    openings: int
    condition: str
    subject: str
    detail: str


class UntoldAlert(NamedTuple):
    """An alert that opened or closed since its last notice, and the job whose runs are notices."""

    alert_id: int
    tenant_id: int
    job_id: int | None
    opened_at: datetime
    closed_at: datetime | None
    openings: int
    is_open: bool
    condition: str
    subject: str
    detail: str
    close_reason: str | None
    notice_job_id: int
    job_name: str | None


class ListedAlert(NamedTuple):
    """An alert as its tenant sees it, with the state of its last notice."""

    alert_id: int
    job_id: int | None
    opened_at: datetime
    closed_at: datetime | None
    openings: int
    is_open: bool
    condition: str
    subject: str
    detail: str
    close_reason: str | None
    notice_job_id: int | None
    notice_at: datetime | None
    job_name: str | None
    is_notice_under_way: bool
    is_notice_withdrawn: bool
    notice_result: str | None


class TargetRow(NamedTuple):
    job_id: int
    conditions: list[str]


class AlertCounts(NamedTuple):
    """How many alerts are open, and how many have a notice that could not be delivered."""

    open: int
    failed: int


_SQL = statements.load("alerts")
_TAKE_LOOK = _SQL["take_look"].rows(TakenLook)
_WATCHED_JOBS = _SQL["watched_jobs"].values(int)
_JOB_FACTS = _SQL["job_facts"].rows(JobFactsRow)
_DURATIONS = _SQL["durations"].rows(Duration)
_TENANT_FACTS = _SQL["tenant_facts"].rows(TenantFactsRow)
_FAILING_HOSTS = _SQL["failing_hosts"].rows(FailingHost)
_OF_JOBS = _SQL["of_jobs"].rows(AlertRow)
_OF_TENANTS = _SQL["of_tenants"].rows(AlertRow)
_UNTOLD = _SQL["untold"].rows(UntoldAlert)
_LOCK_TARGETS = _SQL["lock_targets"].values(int)
_PAGE = _SQL["page"].rows(ListedAlert)
_TARGET = _SQL["target"].rows(TargetRow)
_COUNT = _SQL["count"].rows(AlertCounts)


async def take_look(connection: Session, look: Look) -> TakenLook | None:
    """Lock a look until the transaction ends. None: another process has it, or there is nothing to do yet."""
    return await _TAKE_LOOK.one_or_none(connection, look=look)


async def end_look(connection: Session, look: Look, *, after_id: int, began_at: datetime, next_at: datetime) -> None:
    await _SQL["end_look"].execute(connection, look=look, after_id=after_id, began_at=began_at, next_at=next_at)


async def watched_jobs(connection: Connection, *, after_id: int, most: int) -> list[int]:
    """The next jobs that have alert rules or an open alert."""
    return await _WATCHED_JOBS.all(connection, after_id=after_id, most=most)


async def job_facts(connection: Connection, job_ids: Sequence[int]) -> list[JobFactsRow]:
    """What the rules of jobs are judged by."""
    return await _JOB_FACTS.all(connection, job_ids=job_ids, most_attempts=MAX_ATTEMPTS, most_open=MAX_OPEN)


async def note_successes(connection: Session, successes: Sequence[tuple[int, datetime]]) -> None:
    """Remember when jobs succeeded; those that others have locked are left out."""
    if successes:
        await _SQL["note_successes"].execute(connection, **columns(("job_ids", "success_ats"), successes))


async def durations(connection: Connection, job_ids: Sequence[int]) -> list[Duration]:
    """How long the newest successes of jobs took, newest first."""
    return await _DURATIONS.all(connection, job_ids=job_ids, most_attempts=MAX_TIMED, most=USUAL_OF)


async def tenant_facts(connection: Connection, *, after_id: int, most: int) -> list[TenantFactsRow]:
    """What the conditions of the next tenants with an alert target are judged by."""
    return await _TENANT_FACTS.all(
        connection,
        after_id=after_id,
        most=most,
        letters_seconds=LETTERS_WITHIN.total_seconds(),
        most_letters=MAX_LETTERS,
        due_seconds=LONG_DUE.total_seconds(),
        most_due=MANY_DUE,
        near_end=NEAR_END,
    )


async def failing_hosts(connection: Connection, tenant_ids: Sequence[int]) -> list[FailingHost]:
    return await _FAILING_HOSTS.all(connection, tenant_ids=tenant_ids, most_each=MAX_HOSTS)


async def of_jobs(connection: Connection, job_ids: Sequence[int]) -> list[AlertRow]:
    return await _OF_JOBS.all(connection, job_ids=job_ids, most_each=len(Condition))


async def of_tenants(connection: Connection, tenant_ids: Sequence[int]) -> list[AlertRow]:
    """The alerts of tenants that are about no job."""
    return await _OF_TENANTS.all(connection, tenant_ids=tenant_ids, most_each=MAX_OF_TENANT)


async def open_all(connection: Connection, new: Sequence[NewAlert]) -> None:
    """Open alerts. One that is open already stays as it is."""
    names = ("tenant_ids", "job_ids", "openings", "conditions", "subjects", "details")
    if new:
        await _SQL["open"].execute(connection, **columns(names, new))


async def close_all(connection: Connection, closed: Sequence[tuple[int, CloseReason]]) -> None:
    """Close alerts, by id."""
    if closed:
        reasons = [str(reason) for _, reason in closed]
        await _SQL["close"].execute(connection, alert_ids=[alert_id for alert_id, _ in closed], reasons=reasons)


async def untold(connection: Connection, *, most_of_tenant: int, most_under_way: int, most: int) -> list[UntoldAlert]:
    """Alerts for which a notice is to be sent now; none of tenants with so many notices under way."""
    return await _UNTOLD.all(connection, most_of_tenant=most_of_tenant, most_under_way=most_under_way, most=most)


async def lock_targets(connection: Session, job_ids: Sequence[int]) -> list[int]:
    """Lock jobs of targets until the transaction ends, but those that others have locked and those that are deleted."""
    return await _LOCK_TARGETS.all(connection, job_ids=job_ids)


async def tell(connection: Connection, alert: UntoldAlert, notice_at: datetime) -> None:
    """Note the run that tells of an alert as it is."""
    await _SQL["tell"].execute(
        connection,
        alert_id=alert.alert_id,
        is_open=alert.is_open,
        notice_job_id=alert.notice_job_id,
        notice_at=notice_at,
    )


async def page(  # noqa: PLR0913 - two filters and a position
    connection: Connection,
    tenant_id: int,
    *,
    is_open: bool | None,
    condition: Condition | None = None,
    before: int,
    most: int,
) -> list[ListedAlert]:
    """A tenant's alerts, newest first."""
    return await _PAGE.all(
        connection, tenant_id=tenant_id, is_open=is_open, condition=condition, before=before, most=most
    )


async def target(connection: Connection, tenant_id: int) -> TargetRow | None:
    return await _TARGET.one_or_none(connection, tenant_id=tenant_id)


async def put_target(connection: Connection, tenant_id: int, job_id: int, conditions: Sequence[str]) -> None:
    """Set a tenant's target. With another job than before, what is open is told again."""
    await _SQL["put_target"].execute(connection, tenant_id=tenant_id, job_id=job_id, conditions=conditions)


async def remove_target(connection: Session, tenant_id: int) -> None:
    """In a transaction: remove a tenant's target, and close what is open about the tenant itself."""
    await _SQL["remove_target"].execute(connection, tenant_id=tenant_id)
    await _SQL["close_of_tenant"].execute(connection, tenant_id=tenant_id, reason=str(CloseReason.RULE_REMOVED))


async def count(connection: Connection) -> AlertCounts:
    """Of all tenants, each counted up to a limit."""
    return await _COUNT.one(connection, most=MAX_COUNTED)
