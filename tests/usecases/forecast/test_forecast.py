"""Forecasts of jobs in a real database, at half a minute after noon."""

from datetime import timedelta

import pytest

from evertick.contract.forecast import Forecast, ForecastHorizon
from evertick.domain.forecast.horizon import MINUTE_US, horizon_of
from evertick.domain.forecast.sampling import Sample, relative_error
from evertick.domain.ids import PARTITIONS
from evertick.domain.schedule.instants import from_us, to_us
from evertick.runtime import background
from evertick.usecases.context import TenantContext
from evertick.usecases.forecast import counting
from evertick.usecases.forecast.counting import Counted, count_timers, read_sample
from evertick.usecases.forecast.reading import ForecastWish, filter_of, forecast
from evertick.usecases.jobs import lifecycle
from evertick.usecases.jobs.create import create
from usecases.world import MINUTE, NOON, WORKER, World, at


async def of_day(tenant: TenantContext, **wish: object) -> Forecast:
    return await forecast(tenant, ForecastWish(**wish))  # type: ignore[arg-type]


def minutes(found: Forecast) -> dict[int, int]:
    """Firings by minutes after noon."""
    return {number: count for number, count in enumerate(found.counts) if count}


async def add(tenant: TenantContext, schedule: str, **fields: object) -> str:
    return (await create(tenant, {"schedule": schedule, "target": WORKER, **fields})).job_id


async def test_each_minute_has_the_firings_of_all_rules(tenant: TenantContext) -> None:
    for _ in range(3):
        await add(tenant, "0 13 * * *")
    await add(tenant, "0 9 * * *", timezone="America/New_York")
    await add(tenant, "*/30 * * * *")
    found = await of_day(tenant)
    assert (found.from_at, found.to_at, found.bucket_seconds) == (NOON, NOON + timedelta(days=1), 60)
    assert found.counts[60] >= 4
    assert sum(found.counts) == found.total == 3 + 1 + 47
    assert (found.peak, found.peak_at) == (found.counts[60], NOON + 60 * MINUTE)
    assert (found.counted_jobs, found.uncounted_jobs, found.is_estimate) == (5, 0, False)


async def test_a_month_is_counted_in_hours(tenant: TenantContext) -> None:
    await add(tenant, "0 13 * * *")
    await add(tenant, "every 1h")
    found = await of_day(tenant, horizon=ForecastHorizon.MONTH)
    assert (len(found.counts), found.bucket_seconds) == (720, 3600)
    assert found.total == 30 + 719
    assert found.counts[1] == 2


async def test_paused_jobs_do_not_fire_and_deleted_ones_neither(tenant: TenantContext) -> None:
    await lifecycle.pause(tenant, await add(tenant, "0 13 * * *"), None)
    await lifecycle.delete(tenant, await add(tenant, "0 13 * * *"))
    found = await of_day(tenant)
    assert (found.total, found.counted_jobs, found.peak_at) == (0, 0, None)


async def test_one_offs_count_once_in_their_minute_and_what_is_due_already_now(
    world: World, tenant: TenantContext
) -> None:
    await add(tenant, (NOON + 90 * MINUTE).isoformat())
    await add(tenant, "in 40s")
    await world.set_clock(at(2, 0))
    assert minutes(await of_day(tenant)) == {0: 1, 88: 1}


async def test_windows_cut_a_schedule_off(tenant: TenantContext) -> None:
    await add(tenant, "0 * * * *", start_at=NOON + 150 * MINUTE, end_at=NOON + 300 * MINUTE)
    assert minutes(await of_day(tenant)) == {180: 1, 240: 1, 300: 1}


async def test_jitter_moves_each_job_to_its_own_minute(world: World, tenant: TenantContext) -> None:
    for _ in range(40):
        await add(tenant, "0 13 * * *", jitter_seconds=600)
    due = await world.connection.fetch("SELECT due_at FROM timers")
    expected: dict[int, int] = {}
    for (due_at,) in due:
        minute = (due_at - NOON) // MINUTE
        expected[minute] = expected.get(minute, 0) + 1
    found = await of_day(tenant)
    assert minutes(found) == expected
    assert len(expected) > 5


async def test_the_hottest_minute_says_which_jobs_make_it(tenant: TenantContext) -> None:
    for number in range(3):
        await add(tenant, "0 15 * * *", name=f"report-{number}")
    await add(tenant, "0 * * * *", name="hourly")
    await add(tenant, (NOON + 180 * MINUTE).isoformat(), name="once")
    hot = (await of_day(tenant, hottest=1)).hottest[0]
    assert (hot.at, hot.firings) == (NOON + 180 * MINUTE, 5)
    assert next((rule.schedule, rule.jobs, rule.firings) for rule in hot.rules) == ("0 15 * * *", 3, 3)
    assert {name for rule in hot.rules for name in rule.job_names} >= {"report-0", "report-2", "hourly", "once"}


async def test_filters_choose_jobs_as_they_do_in_lists(tenant: TenantContext) -> None:
    await add(tenant, "0 15 * * *", labels={"team": "billing"})
    await add(tenant, "0 16 * * *", target=WORKER | {"queue": "other"})
    assert minutes(await of_day(tenant, labels={"team": "billing"})) == {180: 1}
    assert minutes(await of_day(tenant, queue="other")) == {240: 1}
    assert minutes(await of_day(tenant, queue="none")) == {}


async def test_only_all_tenants_together_include_those_of_others(world: World, tenant: TenantContext) -> None:
    await world.connection.execute("INSERT INTO tenants (tenant_id, name) VALUES (2, 'other')")
    await add(world.tenant(2), "0 15 * * *")
    await add(tenant, "0 15 * * *")
    assert (await of_day(tenant)).total == 1
    assert (await of_day(tenant, all_tenants=True)).total == 2


async def test_a_horizon_may_lie_ahead_and_is_not_too_fine(tenant: TenantContext) -> None:
    await add(tenant, "every 5m")
    ahead = {"from_at": NOON + timedelta(days=3), "to_at": NOON + timedelta(days=3, hours=2)}
    assert (await of_day(tenant, **ahead, bucket_seconds=3600)).counts == (12, 12)
    long = await of_day(tenant, to_at=NOON + timedelta(days=40), bucket_seconds=60)
    assert (long.bucket_seconds, len(long.counts), long.counts[1]) == (1200, 2880, 4)
    assert len((await of_day(tenant, to_at=NOON - timedelta(days=1))).counts) == 1
    furthest = await of_day(tenant, from_at=NOON.replace(year=9999), to_at=NOON.replace(year=9999))
    assert furthest.from_at.year == 9899, "the last that leaves room in the calendar"


async def add_all_kinds(tenant: TenantContext) -> None:
    """Ticks with and without jitter, of rules that jobs share, and timers that fire once."""
    for schedule in ("0 13 * * *", "0 13 * * *", "*/7 * * * *", "30 5 14 * * *", (NOON + 90 * MINUTE).isoformat()):
        for jitter_seconds in (0, 0, 900, 900, 900):
            await add(tenant, schedule, jitter_seconds=jitter_seconds if schedule != "*/7 * * * *" else 0)


async def test_reading_all_timers_counts_what_reading_by_index_does(
    tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add_all_kinds(tenant)
    await add(tenant, "0 13 * * *", target=WORKER | {"queue": "other"})
    by_index = [await of_day(tenant, queue=queue) for queue in (None, "other")]
    monkeypatch.setattr(counting, "FEW_JOBS", 0)
    assert [await of_day(tenant, queue=queue) for queue in (None, "other")] == by_index


async def sampled(tenant: TenantContext, sample: Sample) -> Counted:
    """A forecast of the next day that reads so much."""
    horizon = horizon_of(to_us(NOON), to_us(NOON + timedelta(days=1)), MINUTE_US, to_us(NOON))
    wanted = filter_of(tenant.tenant_id, {}, None)
    timers = await read_sample(tenant.pool, wanted, from_us(horizon.to_us), tenant.tenant_id, sample, is_many=False)
    return await background.run_steps(tenant.tenant_id, count_timers(timers, horizon))


async def test_jitter_in_minutes_counts_the_same_where_ticks_are_at_one_second(tenant: TenantContext) -> None:
    await add_all_kinds(tenant)
    for _ in range(60):
        await add(tenant, "0 13 * * *", jitter_seconds=900)
    by_second, in_minutes = [await sampled(tenant, Sample(PARTITIONS, by_second=each)) for each in (True, False)]
    assert (in_minutes.counts, in_minutes.is_estimate) == (by_second.counts, False)
    await add(tenant, "every 90s", jitter_seconds=30)
    assert (await sampled(tenant, Sample(PARTITIONS, by_second=False))).is_estimate


async def test_a_sample_is_told_and_scaled_up(tenant: TenantContext) -> None:
    for _ in range(200):
        await add(tenant, "0 13 * * *")
    found = await sampled(tenant, Sample(128, by_second=True))
    assert (found.is_estimate, relative_error(max(found.counts), found.partitions) > 0) == (True, True)
    assert 140 < max(found.counts) < 260
    assert max(found.counts) % 2 == 0
