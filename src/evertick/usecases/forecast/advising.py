"""The smear advisor: which of a tenant's jobs should get jitter, and what that does to the highest minute of a day."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from evertick.contract.forecast import ForecastAdvice, RuleShare
from evertick.domain.forecast.advice import MAX_SMEARED, Advice, Unsmeared, advise_in_steps, reason_against
from evertick.domain.forecast.peaks import Share, shares
from evertick.domain.forecast.sampling import FEW_JOBS
from evertick.domain.forecast.smearing import smeared, smeared_counts, spread_evenly
from evertick.domain.ids import PARTITIONS
from evertick.domain.limits import SMEAR_JITTERS_S
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.domain.stable_hash import jitter_offset
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.store.jobs import smears
from evertick.store.jobs.forecast import ForecastFilter, SampleJob
from evertick.store.jobs.smears import Candidates
from evertick.store.tenants import tenants
from evertick.usecases.context import TenantContext
from evertick.usecases.forecast.counting import Counted
from evertick.usecases.forecast.rule_shares import sample_names, share_of

MAX_EXACT = 100_000
"""Jobs whose offsets are computed one by one. More of them spread evenly."""
SAMPLED_JOBS = 5_000
"""Of more jobs, so many are looked at for how many have opted out."""
_STEP_JOBS = 1_000
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _After:
    """The minutes after an advice, how many jobs it changes, and how many have opted out."""

    counts: list[int]
    jobs: int
    opted_out: int
    is_estimate: bool


async def advice_of(tenant: TenantContext, counted: Counted, wanted: ForecastFilter) -> ForecastAdvice:
    """The advice for a forecast of a day in minutes, of the jobs that it was counted from."""
    advice = await background.run_steps(
        tenant.tenant_id, advise_in_steps(counted.loads, counted.counts, counted.horizon, MAX_SMEARED)
    )
    peak = max(counted.counts)
    place = counted.counts.index(peak)
    left = await background.run_steps(
        tenant.tenant_id, _left_alone(counted, place, SMEAR_JITTERS_S[0] if advice is None else advice.jitter_s)
    )
    if advice is None:
        return _no_advice(counted, peak, left)
    after = await _after(tenant, counted, advice, wanted)
    peak_after = max(after.counts)
    return ForecastAdvice(
        text=(
            f"Give {after.jobs:,} jobs jitter_seconds: {advice.jitter_s}, and the highest minute of the next 24 hours"
            f" falls from {peak:,} to {peak_after:,} firings."
        ),
        jitter_seconds=advice.jitter_s,
        jobs=after.jobs,
        rules=tuple(_advised(counted, advice, place, await sample_names(tenant, counted, advice.keys))),
        peak_before=peak,
        peak_before_at=counted.at(place),
        peak_after=peak_after,
        peak_after_at=counted.at(after.counts.index(peak_after)),
        left_alone=left | ({str(Unsmeared.OPTED_OUT): after.opted_out} if after.opted_out else {}),
        is_estimate=counted.is_estimate or after.is_estimate,
    )


async def candidates(tenant: TenantContext, wanted: ForecastFilter, rule_ids: Sequence[int]) -> list[Candidates]:
    """The tenant's active jobs of these rules, up to as many as one smear may have."""
    if await tenants.count_jobs(tenant.pool, tenant.tenant_id, FEW_JOBS + 1) > FEW_JOBS:
        return await smears.candidates_of_many(tenant.pool, wanted, rule_ids, MAX_SMEARED)
    return await smears.candidates(tenant.pool, wanted, rule_ids, MAX_SMEARED, range(PARTITIONS))


async def _after(tenant: TenantContext, counted: Counted, advice: Advice, wanted: ForecastFilter) -> _After:
    if counted.partitions < PARTITIONS or advice.jobs > MAX_EXACT:
        partitions = max(1, min(counted.partitions, PARTITIONS * SAMPLED_JOBS // max(advice.jobs, 1)))
        seen = await smears.candidates(tenant.pool, wanted, advice.keys, MAX_SMEARED, range(partitions))
        return await background.run(tenant.tenant_id, lambda: _after_evenly(counted, advice, seen))
    if counted.jobs > FEW_JOBS:
        found = await smears.candidates_of_many(tenant.pool, wanted, advice.keys, MAX_SMEARED)
    else:
        found = await smears.candidates(tenant.pool, wanted, advice.keys, MAX_SMEARED, range(PARTITIONS))
    return await background.run_steps(tenant.tenant_id, _after_exactly(counted, advice, found))


def _after_evenly(counted: Counted, advice: Advice, seen: Sequence[Candidates]) -> _After:
    """As if the offsets were spread evenly, and as many opted out of all jobs as of those that were looked at."""
    willing = {each.rule_id: len(each.job_ids) / (len(each.job_ids) + each.opted_out) for each in seen}
    moved = [(load, part * willing.get(load.key, 1.0)) for load, part in advice.moved]
    counts = [round(count) for count in spread_evenly(counted.counts, moved, advice.jitter_s)]
    jobs = sum(round(load.jobs * part) for load, part in moved)
    return _After(counts, jobs, advice.jobs - jobs, is_estimate=True)


def _after_exactly(counted: Counted, advice: Advice, found: Sequence[Candidates]) -> Steps[_After]:
    """With the offsets that the jobs will have. A rule without a job that may be smeared stays as it is."""
    loads, window = dict(counted.loads), timedelta(seconds=advice.jitter_s)
    changes = []
    for each in found:
        offsets: Tally[int] = Tally()
        for number, job_id in enumerate(each.job_ids):
            if number % _STEP_JOBS == 0:
                yield
            offsets[jitter_offset(job_id, window) // _MICROSECOND // SECOND_US] += 1
        before = loads[each.rule_id]
        changes.append((before, smeared(before, offsets, to_us(each.fire_at))))
    counts = yield from smeared_counts(counted.counts, changes, counted.horizon)
    jobs, opted_out = sum(len(each.job_ids) for each in found), sum(each.opted_out for each in found)
    return _After(counts, jobs, opted_out, is_estimate=False)


def _no_advice(counted: Counted, peak: int, left: dict[str, int]) -> ForecastAdvice:
    at = counted.at(counted.counts.index(peak)) if peak else None
    text = (
        f"The highest minute of the next 24 hours has {peak:,} firings, and no jitter of up to an hour would lower it."
        if peak
        else "Nothing fires within the next 24 hours."
    )
    return ForecastAdvice(
        text=text,
        jitter_seconds=None,
        jobs=0,
        rules=(),
        peak_before=peak,
        peak_before_at=at,
        peak_after=peak,
        peak_after_at=at,
        left_alone=left,
        is_estimate=counted.is_estimate,
    )


def _left_alone(counted: Counted, place: int, jitter_s: int) -> Steps[dict[str, int]]:
    """The firings in a bucket of jobs that must not get the jitter, by reason."""
    found: Tally[str] = Tally()
    for key, load in counted.loads:
        yield
        if (reason := reason_against(load.rule, jitter_s)) is not None:
            for share in shares([(key, load)], counted.horizon, place, 1):
                found[str(reason)] += share.firings
    return dict(found)


def _advised(counted: Counted, advice: Advice, place: int, names: Mapping[int, Sequence[SampleJob]]) -> list[RuleShare]:
    loads = dict(counted.loads)
    return [share_of(Share(load.key, load.firings.get(place, 0)), loads[load.key], names) for load, _ in advice.moved]
