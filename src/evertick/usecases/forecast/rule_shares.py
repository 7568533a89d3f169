"""What a rule adds to a bucket of a forecast, as API, command line and pages show it."""

from collections.abc import Iterable, Mapping, Sequence

from evertick.contract.forecast import RuleShare
from evertick.domain.forecast.horizon import RuleLoad
from evertick.domain.forecast.peaks import Share
from evertick.domain.schedule.instants import SECOND_US
from evertick.store.jobs import forecast
from evertick.store.jobs.forecast import SampleJob
from evertick.usecases.context import TenantContext
from evertick.usecases.forecast.counting import TIMERS, Counted

_OTHER_TIMERS = "retries and requested runs"


async def sample_names(tenant: TenantContext, counted: Counted, keys: Iterable[int]) -> dict[int, list[SampleJob]]:
    """Some jobs of each rule, by name."""
    wanted = set(keys)
    job_ids = {job_id for key in wanted for job_id in counted.samples.get(key, ())}
    by_id = {job.job_id: job for job in await forecast.sample_jobs(tenant.pool, job_ids)}
    return {key: [by_id[job_id] for job_id in counted.samples.get(key, ()) if job_id in by_id] for key in wanted}


def share_of(share: Share, load: RuleLoad, names: Mapping[int, Sequence[SampleJob]]) -> RuleShare:
    jobs = names.get(share.key, ())
    is_rule = share.key != TIMERS
    return RuleShare(
        rule_id=rule_text(share.key) if is_rule else None,
        schedule=(jobs[0].schedule or "") if is_rule and jobs else _OTHER_TIMERS,
        timezone=jobs[0].timezone if is_rule and jobs else None,
        jitter_seconds=load.rule.jitter_us / SECOND_US,
        jobs=load.jobs,
        firings=share.firings,
        job_names=tuple(job.name for job in jobs),
    )


def rule_text(rule_id: int) -> str:
    """A rule's id as the API shows it."""
    return f"{rule_id:016x}"
