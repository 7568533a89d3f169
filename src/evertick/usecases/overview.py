"""The overview of a tenant: what fired in the last hour and what is planned for the next, minute by minute; and what
needs attention.

A minute that is over for a while does not change. So it is read once and kept, and each look reads the latest minutes
only. The first look reads backwards from now until its time is up; what is left is read by the next one.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from evertick.contract.server import Need
from evertick.domain.rule import from_canonical
from evertick.domain.schedule.instants import SECOND_US, from_us, to_us
from evertick.domain.schedule.ticks import Ticks
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.store.engine import lanes
from evertick.store.tenants import overview
from evertick.store.tenants.overview import MinuteRow, PlannedRow
from evertick.usecases import attention
from evertick.usecases.context import TenantContext

MINUTES = 60
"""Shown of the past, and of the future."""
MINUTE_US = 60 * SECOND_US
SETTLED_MINUTES = 5
"""A minute that ended so long ago is not read again: hardly any run takes longer."""
STRETCH_MINUTES = 5
"""Read with one statement."""
READ_SECONDS = 0.1
"""After which a look reads no further back."""
MAX_PER_LANE = 10_000
MAX_PLANNED_PER_LANE = 500
MAX_RULES = 200
MAX_ROWS = MINUTES * MAX_RULES
MAX_JITTER_MINUTES = 60
"""Of jobs with more jitter, only the next tick is planned."""
MAX_TENANTS_KEPT = 1_000
PLAN_SECONDS = 15.0
FRESH_SECONDS = 1.0
TIMES_AS_LONG = 10
"""An overview is kept for so many times as long as it took: one that is open takes a tenth of a core at most."""
MAX_FRESH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Past:
    """A minute that was: what was fired in it, and what became of that. `is_partial`: there was more."""

    at: datetime
    succeeded: int
    failed: int
    other: int
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """A minute to come: how many runs it will have, as far as timers and rules say now. `is_partial`: or more."""

    at: datetime
    runs: int
    is_partial: bool = False


@dataclass(frozen=True, slots=True)
class Overview:
    """`past` has a None for a minute that was not read yet."""

    now_at: datetime
    past: tuple[Past | None, ...]
    planned: tuple[Planned, ...]
    needs: tuple[Need, ...]


class _Plan(NamedTuple):
    """How many runs each minute will have; `is_partial`: or more."""

    runs: dict[int, int]
    is_partial: bool


@dataclass(slots=True)
class _Kept:
    minutes: dict[int, MinuteRow] = field(default_factory=dict)
    plan: "_Plan" = field(default_factory=lambda: _Plan({}, is_partial=False))
    planned_until: float = 0.0
    overview: Overview | None = None
    fresh_until: float = 0.0


class Overviews:
    """The overviews of tenants, with what is kept between looks."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}

    async def get(self, tenant: TenantContext) -> Overview:
        """The overview, computed at most once in a while, however many pages show it."""
        kept = self._of(tenant.tenant_id)
        if kept.overview is None or time.monotonic() >= kept.fresh_until:
            began = time.monotonic()
            kept.overview = await self._look(tenant, kept)
            took = time.monotonic() - began
            kept.fresh_until = began + took + max(FRESH_SECONDS, min(TIMES_AS_LONG * took, MAX_FRESH_SECONDS))
        return kept.overview

    async def _look(self, tenant: TenantContext, kept: _Kept) -> Overview:
        now_at, needs = await attention.current(tenant)
        now = to_us(now_at) // MINUTE_US
        await _read_past(tenant, kept, now)
        if time.monotonic() >= kept.planned_until:
            kept.plan = await _plan(tenant, now)
            kept.planned_until = time.monotonic() + PLAN_SECONDS
        return Overview(
            now_at,
            tuple(_past(minute, kept.minutes.get(minute)) for minute in range(now - MINUTES + 1, now + 1)),
            tuple(
                Planned(_at(now + ahead), kept.plan.runs.get(now + ahead, 0), kept.plan.is_partial)
                for ahead in range(1, MINUTES + 1)
            ),
            needs,
        )

    def _of(self, tenant_id: int) -> _Kept:
        if tenant_id not in self._kept and len(self._kept) >= MAX_TENANTS_KEPT:
            self._kept.clear()
        return self._kept.setdefault(tenant_id, _Kept())


def _at(minute: int) -> datetime:
    return from_us(minute * MINUTE_US)


def _past(minute: int, row: MinuteRow | None) -> Past | None:
    if row is None:
        return None
    return Past(_at(minute), row.succeeded, row.failed, row.fired - row.succeeded - row.failed, row.is_cut)


async def _read_past(tenant: TenantContext, kept: _Kept, now: int) -> None:
    """Read the minutes that may have changed, then those that are missing, newest first, while there is time."""
    began, oldest = time.monotonic(), now - MINUTES + 1
    for minute in [minute for minute in kept.minutes if minute < oldest]:
        del kept.minutes[minute]
    high = now
    while high >= oldest and time.monotonic() < began + READ_SECONDS:
        low = max(high - STRETCH_MINUTES + 1, oldest)
        is_settled = high <= now - SETTLED_MINUTES
        if not (is_settled and all(minute in kept.minutes for minute in range(low, high + 1))):
            await _read_stretch(tenant, kept, low, high)
        high = low - 1


async def _read_stretch(tenant: TenantContext, kept: _Kept, low: int, high: int) -> None:
    found = await overview.minutes(
        tenant.pool,
        tenant.tenant_id,
        from_us=low * MINUTE_US,
        until_us=(high + 1) * MINUTE_US,
        most_per_lane=MAX_PER_LANE,
    )
    # The newest of a lane are read, so that any minute may lack some.
    is_cut = any(row.is_cut for row in found)
    kept.minutes |= {minute: MinuteRow(minute, 0, 0, 0, 0, is_cut) for minute in range(low, high + 1)}
    kept.minutes |= {row.minute: row._replace(is_cut=is_cut) for row in found}


async def _plan(tenant: TenantContext, now: int) -> _Plan:
    """How many runs each of the next minutes will have: timers, and the ticks of their rules that follow them."""
    until = now + MINUTES + 1
    rows = await overview.planned(
        tenant.pool,
        tenant.tenant_id,
        from_at=await lanes.clock(tenant.pool),
        until_at=_at(until),
        most_per_lane=MAX_PLANNED_PER_LANE,
        most_rows=MAX_ROWS,
    )
    rule_ids = list(dict.fromkeys(row.rule_id for row in rows if row.is_tick))
    texts = await overview.rules(tenant.pool, rule_ids[:MAX_RULES])
    runs = await background.run_steps(tenant.tenant_id, _planned_runs(rows, texts, until))
    is_partial = any(row.is_cut or row.minute - row.fire_minute > MAX_JITTER_MINUTES for row in rows)
    return _Plan(runs, is_partial or len(rule_ids) > MAX_RULES or len(rows) >= MAX_ROWS)


def _planned_runs(rows: list[PlannedRow], texts: Mapping[int, str], until: int) -> Steps[dict[int, int]]:
    runs: dict[int, int] = {}
    rules: dict[int, Ticks] = {}
    following: dict[int, dict[int, int]] = {}  # by rule: ticks after a minute
    for row in rows:
        runs[row.minute] = runs.get(row.minute, 0) + row.timers
        text = texts.get(row.rule_id) if row.is_tick else None
        if text is None:
            continue
        if row.rule_id not in rules:
            rules[row.rule_id] = from_canonical(text).ticks()
            following[row.rule_id] = _ticks_by_minute(rules[row.rule_id], until)
            yield
        # A timer holds one tick. The others of its minute and of later ones follow, each as much later by its jitter.
        offset = row.minute - row.fire_minute
        for minute, ticks in following[row.rule_id].items():
            if minute >= row.fire_minute and offset <= MAX_JITTER_MINUTES:
                extra = ticks - 1 if minute == row.fire_minute else ticks
                runs[minute + offset] = runs.get(minute + offset, 0) + max(extra, 0) * row.timers
    return runs


def _ticks_by_minute(ticks: Ticks, until: int) -> dict[int, int]:
    """How many ticks each minute has, for those that have any: of the hour, and as long before it as jitter delays."""
    found: dict[int, int] = {}
    minute = until - MINUTES - MAX_JITTER_MINUTES
    while minute < until:
        at = ticks.next(minute * MINUTE_US - 1)
        if at is None or at // MINUTE_US >= until:
            break
        minute = at // MINUTE_US
        found[minute] = ticks.count(minute * MINUTE_US, (minute + 1) * MINUTE_US)
        minute += 1
    return found
