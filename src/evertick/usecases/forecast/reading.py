"""The forecast of a tenant, or of all, and the advice for it: as API, command line and pages show them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.contract.forecast import Forecast, ForecastAdvice, ForecastHorizon, HotBucket
from evertick.domain.forecast.horizon import Horizon, horizon_of
from evertick.domain.forecast.peaks import Share, hottest, shares
from evertick.domain.forecast.sampling import relative_error
from evertick.domain.schedule.instants import SECOND_US, duration_us, from_us as instant, to_us
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.store.engine import lanes
from evertick.store.jobs.forecast import ForecastFilter
from evertick.usecases.context import TenantContext
from evertick.usecases.forecast.advising import advice_of
from evertick.usecases.forecast.counting import Counted, count, count_timers, read
from evertick.usecases.forecast.rule_shares import sample_names, share_of

MAX_EXPLAINING = 300
"""Rules that are asked for their part in a bucket."""
MAX_SHARES = 8
"""Rules that explain a bucket."""
_LENGTHS = {
    ForecastHorizon.DAY: (timedelta(hours=24), timedelta(minutes=1)),
    ForecastHorizon.MONTH: (timedelta(days=30), timedelta(hours=1)),
}


@dataclass(frozen=True, slots=True)
class ForecastWish:
    """What to forecast: how far ahead in which buckets, of which jobs, and how many of the fullest to explain."""

    horizon: ForecastHorizon = ForecastHorizon.DAY
    from_at: datetime | None = None
    to_at: datetime | None = None
    bucket_seconds: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    queue: str | None = None
    hottest: int = 10
    all_tenants: bool = False


class _Explained(NamedTuple):
    place: int
    shares: list[Share]


async def forecast(tenant: TenantContext, wish: ForecastWish) -> Forecast:
    """How many firings each bucket will have, and which rules make the fullest."""
    return await _forecast_of(tenant, await _counted(tenant, wish), wish.hottest)


async def forecast_and_advice(tenant: TenantContext, wish: ForecastWish) -> tuple[Forecast, ForecastAdvice]:
    """Both. The advisor looks at the minutes of a day, whatever was asked for: timers are read once for both, if at all
    the same jobs are meant.
    """
    if wish.all_tenants:
        return await forecast(tenant, wish), await advise(tenant, wish.labels, wish.queue)
    wanted = _filter(tenant, wish)
    now_at = await lanes.clock(tenant.pool)
    asked, day = _horizon(wish, now_at), _horizon(ForecastWish(), now_at)
    timers = await read(tenant.pool, wanted, instant(max(asked.to_us, day.to_us)), tenant.tenant_id)
    counted = await background.run_steps(tenant.tenant_id, count_timers(timers, asked))
    advised = counted
    if asked != day:
        advised = await background.run_steps(tenant.tenant_id, count_timers(timers, day))
    return await _forecast_of(tenant, counted, wish.hottest), await advice_of(tenant, advised, wanted)


async def advise(tenant: TenantContext, labels: Mapping[str, str], queue: str | None) -> ForecastAdvice:
    """Which of the tenant's jobs should get jitter, so that the highest minute of the next 24 hours is lower."""
    wish = ForecastWish(labels=labels, queue=queue)
    return await advice_of(tenant, await _counted(tenant, wish), _filter(tenant, wish))


async def _counted(tenant: TenantContext, wish: ForecastWish) -> Counted:
    horizon = _horizon(wish, await lanes.clock(tenant.pool))
    return await count(tenant.pool, _filter(tenant, wish), horizon, tenant.tenant_id)


async def _forecast_of(tenant: TenantContext, counted: Counted, hottest_buckets: int) -> Forecast:
    explained = await background.run_steps(tenant.tenant_id, _explain(counted, hottest_buckets))
    names = await sample_names(tenant, counted, (share.key for each in explained for share in each.shares))
    loads = dict(counted.loads)
    peak = max(counted.counts)
    return Forecast(
        now=instant(counted.horizon.now_us),
        from_at=counted.at(0),
        to_at=counted.at(len(counted.counts)),
        bucket_seconds=counted.horizon.bucket_us // SECOND_US,
        counts=tuple(counted.counts),
        total=sum(counted.counts),
        peak=peak,
        peak_at=counted.at(counted.counts.index(peak)) if peak else None,
        counted_jobs=counted.jobs,
        uncounted_jobs=counted.uncounted,
        is_estimate=counted.is_estimate,
        relative_error=round(relative_error(peak, counted.partitions), 4),
        hottest=tuple(
            HotBucket(
                at=counted.at(each.place),
                firings=counted.counts[each.place],
                rules=tuple(share_of(share, loads[share.key], names) for share in each.shares),
            )
            for each in explained
        ),
    )


def labels_of(texts: Sequence[str]) -> dict[str, str]:
    """Labels that are given as `key:value`. A key has one value: of a key with two, no job has both."""
    pairs = {(key, value) for key, _, value in (text.partition(":") for text in texts)}
    if len(dict(pairs)) < len(pairs):
        return {"": ""}  # which no job has
    return dict(pairs)


def filter_of(tenant_id: int | None, labels: Mapping[str, str], queue: str | None) -> ForecastFilter:
    return ForecastFilter(tenant_id, json.dumps(dict(labels)), queue)


def _filter(tenant: TenantContext, wish: ForecastWish) -> ForecastFilter:
    return filter_of(None if wish.all_tenants else tenant.tenant_id, wish.labels, wish.queue)


def _explain(counted: Counted, most: int) -> Steps[list[_Explained]]:
    explained: list[_Explained] = []
    # The timers that are not of ticks are the last.
    heaviest = [*counted.loads[:MAX_EXPLAINING], *counted.loads[MAX_EXPLAINING:][-1:]]
    for place in hottest(counted.counts, most):
        explained.append(_Explained(place, shares(heaviest, counted.horizon, place, MAX_SHARES)))
        yield
    return explained


def _horizon(wish: ForecastWish, now_at: datetime) -> Horizon:
    length, bucket = _LENGTHS[wish.horizon]
    bucket_us = duration_us(bucket) if wish.bucket_seconds is None else wish.bucket_seconds * SECOND_US
    from_us = to_us(wish.from_at or now_at)
    # From the beginning of the bucket on, so that it has as many buckets as the length says.
    end_us = from_us // bucket_us * bucket_us + duration_us(length) if wish.to_at is None else to_us(wish.to_at)
    return horizon_of(from_us, end_us, bucket_us, to_us(now_at))
