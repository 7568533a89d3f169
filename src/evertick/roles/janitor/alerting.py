"""Looks for alerts and sends their notices.

Duty: opens an alert when a rule of a job or a condition of a tenant holds, closes it when it does not any more, and has
each change told to the tenant's alert target.

Invariants: a tenant has one alert for a condition and a subject. A notice is a run by hand of the target's job, made in
the transaction that notes it: it is signed, retried and kept as any run is, so no change goes untold after a crash. The
next notice of an alert waits until the one before is over, so they come in order. A paused job has no open alerts but
that the fuse paused it. It waits for no user: a notice whose job is locked is made a moment later.

Steps: every ten seconds it goes through the jobs that have rules or open alerts, and through the tenants with a target,
a page in each transaction, and makes the notices that are due. The row of a look in `alert_looks` is locked meanwhile,
so that one janitor does it, and says where the next page begins. A walk that takes long is followed by a longer pause.

Crash: the transaction was committed or not, and another janitor goes on. Slow database: walks are less frequent.
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from evertick.contract.alerts import Notice, NoticeType
from evertick.domain.alerts import (
    OF_JOBS,
    OF_TENANTS,
    AlertKey,
    CloseReason,
    Condition,
    JobFacts,
    JobRules,
    TenantFacts,
    breaches,
    is_to_note,
    openings_after,
    tenant_breaches,
)
from evertick.domain.ids import Prefix, format_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import RunReason
from evertick.roles.janitor.batch_size import BatchSize
from evertick.runtime.logs import job_fields, tenant_fields
from evertick.runtime.loop import Loop
from evertick.store.database import Pool, Session
from evertick.store.jobs import runs
from evertick.store.jobs.runs import RequestedRun
from evertick.store.tenants import alerts
from evertick.store.tenants.alerts import AlertRow, JobFactsRow, Look, NewAlert, TakenLook, TenantFactsRow, UntoldAlert

logger = logging.getLogger("evertick.janitor")

EVERY = timedelta(seconds=10)
PAUSE_SHARE = 4
"""The pause after a walk is so many times as long as the walk: looking must not become the load."""
MAX_PAUSE = timedelta(minutes=5)
JOBS_PER_PAGE = 100
TENANTS_PER_PAGE = 20
NOTICES_PER_TENANT = 20
NOTICES_PER_BATCH = 100
NOTICES_UNDER_WAY = 100
"""While so many notices of a tenant are not delivered, it gets no others: what comes and goes meanwhile needs none."""
MAX_PAGES = 100
"""Pages in one step: the loop stops only between two steps."""
_PAUSED, _DELETED = "paused", "deleted"


class _Rules(msgspec.Struct):
    """The alert rules in a job's stored specification."""

    must_succeed_within: Any = None
    alert_after_failures: int | None = None
    alert_if_late_seconds: float | None = None
    alert_if_running_seconds: Any = None


_decoder = msgspec.json.Decoder(_Rules)


class _Found(NamedTuple):
    """What holds now: the reasons to open alerts, by key, and of which job they are."""

    details: dict[AlertKey, str]
    job_ids: dict[AlertKey, int]


class Alerting:
    """Looks for alerts on the janitor's pool, on one connection."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._jobs = BatchSize(JOBS_PER_PAGE, most=JOBS_PER_PAGE)
        self._tenants = BatchSize(TENANTS_PER_PAGE, most=TENANTS_PER_PAGE)
        self._loop = Loop("alert", self.step)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()

    async def step(self) -> float:
        """Look at what is due, and say after how many seconds more may be."""
        for _ in range(MAX_PAGES):
            if not any([await self.look_at_jobs(), await self.look_at_tenants(), await self.send_notices()]):
                return EVERY.total_seconds() / 2
        return 0

    async def look_at_jobs(self) -> bool:
        """One page of the walk through jobs. False: the walk is over, another janitor is at it, or it is not due.

        A page that takes too long is undone, and tried again with fewer jobs.
        """
        return await self._jobs.run(self._look_at_jobs, is_full=bool)

    async def _look_at_jobs(self, most: int) -> bool:
        async with self._pool.acquire() as connection, connection.transaction():
            look = await alerts.take_look(connection, Look.JOBS)
            if look is None:
                return False
            job_ids = await alerts.watched_jobs(connection, after_id=look.after_id, most=most)
            if job_ids:
                rows = await alerts.job_facts(connection, job_ids)
                await self._apply_to_jobs(connection, rows, await alerts.of_jobs(connection, job_ids))
            return await _turn_page(connection, Look.JOBS, look, job_ids, most)

    async def look_at_tenants(self) -> bool:
        """One page of the walk through tenants with an alert target; as `look_at_jobs`."""
        return await self._tenants.run(self._look_at_tenants, is_full=bool)

    async def _look_at_tenants(self, most: int) -> bool:
        async with self._pool.acquire() as connection, connection.transaction():
            look = await alerts.take_look(connection, Look.TENANTS)
            if look is None:
                return False
            rows = await alerts.tenant_facts(connection, after_id=look.after_id, most=most)
            tenant_ids = [row.tenant_id for row in rows]
            if rows:
                hosts: dict[int, dict[str, str | None]] = defaultdict(dict)
                for tenant_id, host, error in await alerts.failing_hosts(connection, tenant_ids):
                    hosts[tenant_id][host] = error
                found = _Found({}, {})
                for row in rows:
                    facts = _tenant_facts(row, hosts[row.tenant_id])
                    for (condition, subject), detail in tenant_breaches(row.conditions, facts).items():
                        found.details[AlertKey(row.tenant_id, condition, subject)] = detail
                wanted = {(row.tenant_id, name) for row in rows for name in row.conditions}
                known = await alerts.of_tenants(connection, tenant_ids)
                reasons = {
                    alert.key: CloseReason.RECOVERED
                    if (alert.tenant_id, alert.condition) in wanted
                    else CloseReason.RULE_REMOVED
                    for alert in known
                    if alert.condition in OF_TENANTS
                }
                await _apply(connection, found, known, reasons, look.now_at)
            return await _turn_page(connection, Look.TENANTS, look, tenant_ids, most)

    async def send_notices(self) -> bool:
        """Make a batch of the notices that are due. False: none is left, or another janitor is at it."""
        async with self._pool.acquire() as connection, connection.transaction():
            if await alerts.take_look(connection, Look.NOTICES) is None:
                return False
            untold = await alerts.untold(
                connection,
                most_of_tenant=NOTICES_PER_TENANT,
                most_under_way=NOTICES_UNDER_WAY,
                most=NOTICES_PER_BATCH,
            )
            free = set(await alerts.lock_targets(connection, sorted({alert.notice_job_id for alert in untold})))
            sent = [await _send(connection, alert) for alert in untold if alert.notice_job_id in free]
            return any(sent)

    async def _apply_to_jobs(self, connection: Session, rows: Sequence[JobFactsRow], known: Sequence[AlertRow]) -> None:
        rules = {row.job_id: _rules_of(row.spec) for row in rows}
        timed = [row.job_id for row in rows if rules[row.job_id].is_running_twice and row.running_since_at is not None]
        durations: dict[int, list[float]] = defaultdict(list)
        for job_id, seconds in await alerts.durations(connection, timed) if timed else ():
            durations[job_id].append(seconds)
        found = _Found({}, {})
        for row in rows:
            if row.status in {_PAUSED, _DELETED}:
                continue
            subject = format_id(Prefix.JOB, row.job_id)
            facts = _job_facts(row, durations[row.job_id])
            for condition, detail in breaches(rules[row.job_id], facts).items():
                key = AlertKey(row.tenant_id, condition, subject)
                found.details[key] = detail
                found.job_ids[key] = row.job_id
        by_id = {row.job_id: row for row in rows}
        reasons = {
            alert.key: reason
            for alert in known
            if alert.job_id is not None
            and (reason := _close_reason(alert, by_id.get(alert.job_id), rules.get(alert.job_id))) is not None
        }
        if rows or known:
            await _apply(connection, found, known, reasons, rows[0].now_at if rows else None)
        noted = [
            (row.job_id, row.success_at)
            for row in rows
            if row.success_at is not None and is_to_note(rules[row.job_id], row.success_at, row.noted_success_at)
        ]
        await alerts.note_successes(connection, noted)


def _close_reason(alert: AlertRow, row: JobFactsRow | None, rules: JobRules | None) -> CloseReason | None:
    """Why an alert of a job is closed, if nothing found now keeps it open. None: it stays."""
    if row is None or rules is None or row.status == _DELETED:
        return CloseReason.DELETED
    if alert.condition == Condition.FUSE:
        return None if row.status == _PAUSED else CloseReason.RECOVERED
    if row.status == _PAUSED:
        return CloseReason.PAUSED
    if alert.condition in OF_JOBS and alert.condition not in rules.conditions:
        return CloseReason.RULE_REMOVED
    return CloseReason.RECOVERED


async def _apply(
    connection: Session,
    found: _Found,
    known: Iterable[AlertRow],
    reasons: Mapping[AlertKey, CloseReason],
    now_at: datetime | None,
) -> None:
    """Open what was found and is not open, and close what is open, was not found, and has a reason to close."""
    by_key = {alert.key: alert for alert in known}
    new = []
    for key, detail in found.details.items():
        alert = by_key.get(key)
        openings = None if now_at is None else openings_after(alert and alert.state, now_at)
        if openings is not None:
            new.append(NewAlert(key.tenant_id, found.job_ids.get(key), openings, key.condition, key.subject, detail))
    gone = [
        (alert.alert_id, reasons[key])
        for key, alert in by_key.items()
        if alert.is_open and key not in found.details and key in reasons
    ]
    await alerts.open_all(connection, new)
    await alerts.close_all(connection, gone)
    for each in new:
        fields = tenant_fields(each.tenant_id) | ({} if each.job_id is None else job_fields(each.job_id))
        logger.info("alert %s opened", f"{each.condition} {each.subject}".rstrip(), extra=fields)


async def _turn_page(connection: Session, look: Look, taken: TakenLook, ids: Sequence[int], most: int) -> bool:
    """Note where the walk goes on, or when the next one begins. False: it is over."""
    began_at = taken.now_at if taken.after_id == 0 else taken.began_at
    is_over = len(ids) < most
    next_at = taken.now_at
    if is_over:
        next_at += min(max(EVERY, PAUSE_SHARE * (taken.now_at - began_at)), MAX_PAUSE)
    after_id = 0 if is_over else ids[-1]
    await alerts.end_look(connection, look, after_id=after_id, began_at=began_at, next_at=next_at)
    return not is_over


async def _send(connection: Session, alert: UntoldAlert) -> bool:
    payload = msgspec.json.encode(notice_of(alert)).decode()
    notice = RequestedRun(RunReason.MANUAL, None, has_payload=True, payload=payload)
    notice_at = await runs.request(connection, alert.notice_job_id, notice)
    if notice_at is None:  # no instant was free: a moment later one is
        return False
    await alerts.tell(connection, alert, notice_at)
    return True


def notice_of(alert: UntoldAlert) -> Notice:
    kind = NoticeType.OPENED if alert.is_open else NoticeType.CLOSED
    alert_id = format_id(Prefix.ALERT, alert.alert_id)
    return Notice(
        notice_id=f"{alert_id}:{to_us(alert.closed_at or alert.opened_at)}",
        type=kind,
        alert_id=alert_id,
        condition=alert.condition,
        subject=alert.subject,
        job_id=None if alert.job_id is None else format_id(Prefix.JOB, alert.job_id),
        job_name=alert.job_name,
        opened_at=alert.opened_at,
        closed_at=alert.closed_at,
        close_reason=alert.close_reason,
        openings=alert.openings,
        detail=alert.detail,
    )


def _rules_of(spec: str) -> JobRules:
    try:
        rules = _decoder.decode(spec)
    except msgspec.DecodeError:  # of another release: the others on its page must not wait for it
        return JobRules()
    return JobRules.of(
        rules.must_succeed_within,
        rules.alert_after_failures,
        rules.alert_if_late_seconds,
        rules.alert_if_running_seconds,
    )


def _job_facts(row: JobFactsRow, durations: Sequence[float]) -> JobFacts:
    return JobFacts(
        now_at=row.now_at,
        since_at=row.since_at,
        is_finished=row.is_finished,
        success_at=row.success_at,
        failures=row.failures,
        waits_since_at=row.waits_since_at,
        started_late=None if row.seconds_late is None else timedelta(seconds=row.seconds_late),
        running_since_at=row.running_since_at,
        durations=durations,
    )


def _tenant_facts(row: TenantFactsRow, hosts: Mapping[str, str | None]) -> TenantFacts:
    quotas = {
        "jobs": (row.jobs, row.jobs_quota),
        "storage_bytes": (row.stored_bytes, row.storage_quota_bytes),
    }
    return TenantFacts(row.letters, row.due, hosts, quotas)
