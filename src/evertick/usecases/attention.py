"""What of a tenant needs attention, and what comes next: for the command line and pages. Each look is cheap, however
many jobs there are.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.contract.alerts import AlertStatus
from evertick.contract.server import Attention, Need, NeedKind, NeedLevel, NextTick
from evertick.domain.alerts import Condition
from evertick.domain.ids import Prefix, format_id
from evertick.store.tenants import overview, tenants
from evertick.store.tenants.overview import AttentionRow
from evertick.usecases.context import TenantContext
from evertick.usecases.tenants import alerts

MAX_COUNTED = 1_000
MAX_ALERTS = 100
MAX_PER_PARTITION = 10_000
LATE = timedelta(seconds=5)
"""A timer that is due for longer is late: schedulers are busy, or there is none."""
NEXT_TICKS = 10

_OF_ALERTS = {
    Condition.NO_SUCCESS: (
        NeedKind.NO_SUCCESS,
        "job without success for too long",
        "jobs without success for too long",
    ),
    Condition.FAILURES: (NeedKind.FAILURES, "job failing again and again", "jobs failing again and again"),
    Condition.LATE: (NeedKind.LATE, "late job", "late jobs"),
    Condition.RUNNING_LONG: (NeedKind.RUNNING_LONG, "job running too long", "jobs running too long"),
    Condition.CATCH_UP: (NeedKind.CATCH_UP, *2 * ("catch-up running: many timers are overdue",)),
    Condition.QUOTA: (NeedKind.QUOTA, "quota nearly used up", "quotas nearly used up"),
}


class Late(NamedTuple):
    """How many timers are overdue, and for how long the oldest is."""

    timers: int
    oldest: timedelta


class CurrentNeeds(NamedTuple):
    """What needs attention at an instant."""

    now_at: datetime
    needs: tuple[Need, ...]


async def attention(tenant: TenantContext) -> Attention:
    """What needs attention, the worst first, and the next timers."""
    found = await current(tenant)
    coming = await tenants.upcoming(tenant.pool, tenant.tenant_id, NEXT_TICKS)
    return Attention(
        now=found.now_at,
        needs=found.needs,
        next=tuple(
            NextTick(
                job_id=format_id(Prefix.JOB, timer.job_id),
                name=timer.name,
                queue=timer.queue,
                scheduled_at=timer.fire_at,
                due_at=timer.due_at,
            )
            for timer in coming
        ),
    )


async def current(tenant: TenantContext) -> CurrentNeeds:
    """What needs attention, the worst first."""
    row = await overview.attention(tenant.pool, tenant.tenant_id, MAX_COUNTED)
    oldest = await tenants.oldest_due(tenant.pool, tenant.tenant_id, MAX_PER_PARTITION)
    late = None
    if oldest is not None and oldest.now_at - oldest.due_at > LATE:
        overdue = await tenants.count_due(tenant.pool, tenant.tenant_id, MAX_COUNTED)
        late = Late(max(overdue, 1), oldest.now_at - oldest.due_at)
    opened = await alerts.list_alerts(tenant, status=AlertStatus.OPEN, limit=MAX_ALERTS)
    conditions = Counter(Condition(alert.condition) for alert in opened.items)
    return CurrentNeeds(row.now_at, tuple(needs(row, late, conditions)))


def needs(row: AttentionRow, late: Late | None, alerts_of: Counter[Condition]) -> Iterator[Need]:
    """What needs attention, by how bad it is."""
    if row.letters:
        text = f"{_of(row.letters, 'dead letter')}, of {row.jobs:,} {_of(row.jobs, 'job')}"
        yield Need(kind=NeedKind.DEAD_LETTERS, level=NeedLevel.BAD, count=row.letters, text=text)
    if row.circuits:
        text = f"{_of(row.circuits, 'host')} with an open breaker"
        yield Need(kind=NeedKind.OPEN_BREAKERS, level=NeedLevel.BAD, count=row.circuits, text=text)
    if row.paused:
        text = f"{_of(row.paused, 'job')} that Evertick paused"
        yield Need(kind=NeedKind.PAUSED_BY_ITSELF, level=NeedLevel.BAD, count=row.paused, text=text)
    if late is not None:
        text = f"{_of(late.timers, 'timer')} overdue, the oldest for {late.oldest.total_seconds():,.0f} s"
        yield Need(kind=NeedKind.OVERDUE, level=NeedLevel.WARN, count=late.timers, text=text)
    for condition, (kind, one, many) in _OF_ALERTS.items():
        if count := alerts_of[condition]:
            yield Need(kind=kind, level=NeedLevel.WARN, count=count, text=one if count == 1 else many)
    if row.replays:
        yield Need(
            kind=NeedKind.REPLAYS,
            level=NeedLevel.INFO,
            count=row.replays,
            text=f"{_of(row.replays, 'replay')} under way",
        )


def _of(count: int, noun: str) -> str:
    return noun if count == 1 else f"{noun}s"
