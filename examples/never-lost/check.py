"""Compares the history in the database, where every tick is a run or a gap, with the logs of the demo."""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

from evertick import App
from evertick.contract.annotations import MAX_PER_PAGE
from evertick.contract.runs import Gap, Run, RunOrGap
from evertick.domain.states import FINAL_RUNS, RunStatus
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import RunNotFound
from evertick.usecases.jobs import reading as jobs
from evertick.usecases.runs import reading as runs

SECOND = timedelta(seconds=1)


def check(app: App, ran: Path, promised: Path) -> int:
    """Print the result. The exit code is 1 if anything was lost."""
    return asyncio.run(_check(app, [words[0] for words in lines(ran)], lines(promised)))


async def _check(app: App, ran: list[str], promised: list[list[str]]) -> int:
    async with app:
        tenant = (await app.connection()).tenant
        entries = await history(tenant, "tick")
        one_offs = [await state_of(tenant, run_id, job_id) for run_id, _, job_id, *_ in promised]
    ticks = [entry for entry in entries if isinstance(entry, Run)]
    gaps = [entry for entry in entries if isinstance(entry, Gap)]
    if not ticks:
        print("Nothing has run yet.")
        return 0
    started = ticks + [each for each in one_offs if isinstance(each, Run)]
    ended = [run for run in started if run.status in FINAL_RUNS]
    waiting = one_offs.count(RunStatus.PENDING)
    missing = unaccounted(ticks, gaps)
    lost = one_offs.count(None)
    undone = {run.run_id for run in ended} - set(ran)
    repeated = sum(times - 1 for times in Counter(ran).values())

    first, last = ticks[-1].scheduled_at, ticks[0].scheduled_at
    print(f"ticks       {(last - first) // SECOND + 1}, one each second from {first:%H:%M:%S} to {last:%H:%M:%S}")
    print(f"runs        {len(ticks)}, of which {sum(run.reason == 'catch_up' for run in ticks)} caught up after a kill")
    print(f"gaps        {sum(gap.count for gap in gaps)} ticks that did not run, recorded as gaps")
    print(f"one-offs    {len(promised)} promised, {waiting} of them in the future")
    print(f"unfinished  {len(started) - len(ended)} runs that continue at the next start")
    print(f"duplicates  {repeated} runs that were killed before their outcome was recorded, and repeated")
    print(f"lost        {len(missing)} ticks, {lost} one-offs, {len(undone)} runs")
    return 1 if missing or lost or undone else 0


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


async def history(tenant: TenantContext, name: str) -> list[RunOrGap]:
    """All runs and gaps of a job, the newest first."""
    job = await jobs.get_by_name(tenant, name)
    found: list[RunOrGap] = []
    cursor: str | None = None
    while True:
        page = await runs.job_runs(tenant, job.job_id, limit=MAX_PER_PAGE, cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


async def state_of(tenant: TenantContext, run_id: str, job_id: str) -> Run | RunStatus | None:
    """The run of a one-off job, PENDING before its fire time, None if it was lost."""
    try:
        return (await runs.get_run(tenant, run_id)).run
    except RunNotFound:
        job = await jobs.get(tenant, job_id)
        return RunStatus.PENDING if job.next_run_at else None


def unaccounted(ticks: list[Run], gaps: list[Gap]) -> list[datetime]:
    """The seconds from the first tick to the last for which there is neither a run nor a gap."""
    known = {run.scheduled_at for run in ticks}
    known |= {gap.scheduled_at + n * SECOND for gap in gaps for n in range(gap.count)}
    first, last = ticks[-1].scheduled_at, ticks[0].scheduled_at
    return [at for n in range((last - first) // SECOND) if (at := first + n * SECOND) not in known]
