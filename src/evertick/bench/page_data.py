"""What pages show in their measurement: many jobs, created as the API does, and a history that SQL writes."""

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.bench.testbed import Testbed
from evertick.bench.workload import Fields
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.domain.schedule.instants import to_us
from evertick.store import statements
from evertick.store.maintenance import ledgers
from evertick.usecases.jobs import lifecycle

QUEUES = 8
HANDLERS = 20
HOSTS = 50
TEAMS = 40
RULES = 1_000
FIRST_AFTER = timedelta(minutes=45)
"""So long after the start of loading nothing is due: no scheduler runs."""
_CHUNK = 50_000
_SLOW_SECONDS = 3600
_SQL = statements.load("pages", "evertick.bench")
_JOBS = _SQL["jobs"].values(int)


class History(NamedTuple):
    """How much each job ran, over how many days. `busy_runs`: those of one job beside its others."""

    runs_per_job: int
    busy_runs: int
    days: int


class PageData(NamedTuple):
    """What the addresses of pages name: some jobs with a run of each, and one with many runs; by their public ids."""

    jobs: Sequence[str]
    runs: Sequence[str]
    busy: str
    paused: str


async def write_page_data(testbed: Testbed, jobs: int, history: History, samples: int, seed: int) -> PageData:
    """Create jobs and write their history, unless an earlier measurement has left as many."""
    now_at = await testbed.now()
    ids = await _ids(testbed)
    if len(ids) < jobs:
        wanted = _page_jobs(jobs - len(ids), now_at, seed)
        await testbed.load(wanted, jobs - len(ids), "creating jobs")
        ids = await _ids(testbed)
        await _write_history(testbed, ids, history, now_at)
        await lifecycle.pause(testbed.tenant, format_id(Prefix.JOB, ids[-1]), "measured")
    chosen = [ids[place * len(ids) // samples] for place in range(min(samples, len(ids)))]
    busy = ids[len(ids) // 2]
    await _SQL["age"].execute(testbed.pool, job_ids=[*chosen, busy], created_at=now_at - timedelta(days=history.days))
    latest = await _LATEST.all(testbed.pool, job_ids=chosen)
    return PageData(
        [format_id(Prefix.JOB, each) for each in chosen],
        [format_run_id(each.job_id, to_us(each.fire_at)) for each in latest],
        format_id(Prefix.JOB, busy),
        format_id(Prefix.JOB, ids[-1]),
    )


class LatestRun(NamedTuple):
    job_id: int
    fire_at: datetime


_LATEST = _SQL["latest"].rows(LatestRun)


async def _ids(testbed: Testbed) -> list[int]:
    found: list[int] = []
    while part := await _JOBS.all(
        testbed.pool, tenant_id=testbed.tenant.tenant_id, after=found[-1] if found else -1, most=_CHUNK
    ):
        found += part
    return found


def _page_jobs(count: int, now_at: datetime, seed: int) -> Iterator[Fields]:
    """Jobs of many teams that run daily at the minutes of a day, for workers and for hosts."""
    choose = random.Random(seed)  # noqa: S311 - a repeatable workload, not a secret
    ahead = timedelta(days=1) - FIRST_AFTER
    starts = [now_at + FIRST_AFTER + ahead * place / RULES for place in range(RULES)]
    schedules = [f"{at.minute} {at.hour} * * *" for at in starts]
    for number in range(count):
        target: Fields = {
            "type": "worker",
            "queue": f"pages-{choose.randrange(QUEUES)}",
            "handler": f"handler_{number % HANDLERS}",
        }
        if number % 10 == 0:
            target = {"type": "http", "url": f"https://host-{number % HOSTS}.example.com/hook"}
        yield {
            "schedule": choose.choice(schedules),
            "target": target,
            "labels": {"team": f"team-{number % TEAMS}"},
            "payload": {"number": number},
        }


async def _write_history(testbed: Testbed, ids: Sequence[int], history: History, now_at: datetime) -> None:
    """Each job ran as often, in rounds of equal length through all of them, so that rows are in the order of time."""
    for day in range(history.days + 2):
        await ledgers.add_day(testbed.pool, (now_at - timedelta(days=day)).date())
    span_us = history.days * 86_400_000_000 // max(history.runs_per_job, 1)
    until_us, total = to_us(now_at) - 1_000_000, len(ids) * history.runs_per_job
    testbed.progress.begin("writing runs", total + history.busy_runs)
    done = 0
    for number in range(history.runs_per_job):
        from_us = until_us - (history.runs_per_job - number) * span_us
        for first in range(0, len(ids), _CHUNK):
            chunk = ids[first : first + _CHUNK]
            seqs = [from_us + (first + place) * span_us // len(ids) for place in range(len(chunk))]
            await _add_runs(testbed, chunk, seqs)
            done += len(chunk)
            testbed.progress.reach(done)
    busy, apart_us = ids[len(ids) // 2], history.days * 86_400_000_000 // max(history.busy_runs, 1)
    for first in range(0, history.busy_runs, _CHUNK):
        places = range(first, min(first + _CHUNK, history.busy_runs))
        await _add_runs(testbed, [busy] * len(places), [until_us - place * apart_us - 7 for place in reversed(places)])
    await _finish(testbed, ids, until_us, from_us=until_us - span_us)


async def _finish(testbed: Testbed, ids: Sequence[int], until_us: int, from_us: int) -> None:
    testbed.progress.begin("noting the latest runs", len(ids))
    tenant_id = testbed.tenant.tenant_id
    for first in range(0, len(ids), _CHUNK):
        chunk = ids[first : first + _CHUNK]
        await _execute(testbed, "note_latest", job_ids=chunk, from_us=from_us)
        subjects = [format_id(Prefix.JOB, each) for each in chunk[::10]]
        await _execute(testbed, "add_changes", tenant_id=tenant_id, subjects=subjects)
        testbed.progress.reach(first + len(chunk))
    await _execute(testbed, "pass_lanes", before_us=until_us)
    testbed.progress.begin("vacuum")
    await _execute(testbed, "vacuum")


async def _add_runs(testbed: Testbed, job_ids: Sequence[int], seqs: Sequence[int]) -> None:
    await _execute(testbed, "add_runs", tenant_id=testbed.tenant.tenant_id, job_ids=job_ids, seqs=seqs)


async def _execute(testbed: Testbed, name: str, **values: object) -> None:
    statement = _SQL[name]
    await testbed.pool.execute(statement.text, *statement.arguments(values), timeout=_SLOW_SECONDS)
