"""Reading runs: a job's history, a tenant's, and one run."""

import pytest

from evertick.contract.job import Job
from evertick.contract.runs import Run, RunOrGap
from evertick.domain.errors import InvalidInput
from evertick.domain.retry import GiveUp, GiveUpReason, Retry
from evertick.domain.states import GapStatus, RunStatus
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound, RunNotFound
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.lifecycle import delete, pause, resume
from evertick.usecases.runs import reading
from evertick.usecases.runs.reading import get_run, job_runs, tenant_runs
from evertick.usecases.runs.requests import cancel, trigger
from usecases.world import MINUTE, WORKER, World, at


async def eventful(world: World, tenant: TenantContext) -> Job:
    """A job with a history: 1 success, 2 dead, 3-4 paused, 5 retried and successful, 6 overlapped, 6:30 by hand."""
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.run_all()
    await world.set_clock(at(2))
    await world.fire()
    await world.record(await world.lease(), "failed", GiveUp(1, GiveUpReason.NOT_RETRYABLE), code=500)
    await pause(tenant, job.job_id)
    await world.set_clock(at(4, 30))
    await resume(tenant, job.job_id)
    await world.set_clock(at(5))
    await world.fire()
    await world.record(await world.lease(), "timed_out", Retry(2, MINUTE))
    await world.set_clock(at(6))
    await world.fire()
    await world.fire()
    await world.record(await world.lease(), code=200)
    await world.set_clock(at(6, 30))
    await trigger(tenant, job.job_id)
    return job


def told(entries: tuple[RunOrGap, ...]) -> list[tuple[str, str, float]]:
    return [(str(entry.status), str(entry.reason), (entry.scheduled_at - at(0)) / MINUTE) for entry in entries]


HISTORY = [
    ("pending", "manual", 6.5),
    ("skipped", "overlap", 6),
    ("success", "tick", 5),
    ("skipped", "paused", 3),
    ("dead", "tick", 2),
    ("success", "tick", 1),
]


async def test_a_history_has_runs_and_gaps_in_their_places(world: World, tenant: TenantContext) -> None:
    job = await eventful(world, tenant)
    page = await job_runs(tenant, job.job_id)
    assert told(page.items) == HISTORY
    assert page.next is None
    _, _, retried, gap, dead, _ = page.items
    assert isinstance(retried, Run)
    assert (retried.attempt, retried.result_code, retried.duration_ms, retried.worker_id) == (2, 200, 412, "worker-1")
    assert (retried.finished_at, retried.error) == (at(6), None)
    assert (gap.run_id, gap.until, gap.count) == (None, at(4), 2)  # type: ignore[union-attr]
    assert (dead.result_code, dead.error) == (500, "it broke")  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6])
async def test_pages_of_any_size_make_the_same_history(world: World, tenant: TenantContext, limit: int) -> None:
    job = await eventful(world, tenant)
    found: list[RunOrGap] = []
    cursor = None
    while True:
        page = await job_runs(tenant, job.job_id, limit=limit, cursor=cursor)
        assert len(page.items) == min(limit, 6 - len(found))
        found += page.items
        cursor = page.next
        if cursor is None:
            break
    assert told(tuple(found)) == HISTORY


async def test_a_history_is_filtered_by_status(world: World, tenant: TenantContext) -> None:
    job = await eventful(world, tenant)
    for status in (*RunStatus, *GapStatus):
        expected = [entry for entry in HISTORY if entry[0] == status]
        assert told((await job_runs(tenant, job.job_id, status=status)).items) == expected


async def test_a_history_is_cut_by_time_and_keeps_a_gap_that_reaches_in(world: World, tenant: TenantContext) -> None:
    job = await eventful(world, tenant)
    page = await job_runs(tenant, job.job_id, from_at=at(4), to_at=at(6))
    assert told(page.items) == HISTORY[2:4]
    page = await job_runs(tenant, job.job_id, from_at=at(5), to_at=at(6, 1), limit=1)
    assert told(page.items) == HISTORY[1:2]
    page = await job_runs(tenant, job.job_id, from_at=at(5), to_at=at(6, 1), limit=1, cursor=page.next)
    assert (told(page.items), page.next) == (HISTORY[2:3], None)


async def test_a_rare_status_is_found_over_several_pages(
    world: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await eventful(world, tenant)
    monkeypatch.setattr(reading, "SLICE", 2)
    monkeypatch.setattr(reading, "MAX_READ", 2)
    first = await job_runs(tenant, job.job_id, status=RunStatus.DEAD)
    assert (first.items, first.next is not None) == ((), True)
    second = await job_runs(tenant, job.job_id, status=RunStatus.DEAD, cursor=first.next)
    assert told(second.items) == HISTORY[4:5]


async def test_a_gap_and_a_run_at_one_instant_both_stand_there(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await world.set_clock(at(1))
    await world.run_all()
    await world.connection.execute(
        "INSERT INTO gaps SELECT job_id, $1, $1, 1, NULL, 1, unnest('{dst,missed}'::gap_reason[]) FROM jobs", at(1)
    )
    expected = [("success", "tick", 1), ("missed", "missed", 1), ("skipped", "dst", 1)]
    assert told((await job_runs(tenant, job.job_id)).items) == expected
    cursor = None
    for entry in expected:
        page = await job_runs(tenant, job.job_id, limit=1, cursor=cursor)
        assert told(page.items) == [entry]
        cursor = page.next
    assert cursor is None


async def test_one_run_is_shown_with_its_attempts(world: World, tenant: TenantContext) -> None:
    job = await eventful(world, tenant)
    run_id = (await job_runs(tenant, job.job_id)).items[2].run_id
    detail = await get_run(tenant, str(run_id))
    assert (detail.run.status, detail.run.run_id) == ("success", run_id)
    first, second = detail.attempts
    assert [(each.attempt, each.result, each.worker_id) for each in (first, second)] == [
        (1, "timed_out", "worker-1"),
        (2, "success", "worker-1"),
    ]
    assert (first.error, first.excerpt, second.result_code) == ("it broke", "so sorry", 200)
    assert int(first.token.split(".")[1]) < int(second.token.split(".")[1])
    assert (first.due_at, second.due_at) == (at(5), at(6))


async def test_the_states_of_a_run(world: World, tenant: TenantContext) -> None:
    job = await world.minutely(concurrent_policy="QUEUE")
    await world.set_clock(at(1))
    await world.fire()
    run_id = str((await job_runs(tenant, job.job_id)).items[0].run_id)
    assert (await get_run(tenant, run_id)).run.status == "pending"
    leased = await world.lease()
    detail = await get_run(tenant, run_id)
    assert (detail.run.status, detail.run.worker_id, detail.attempts[0].status) == ("running", "worker-1", "leased")
    assert (detail.attempts[0].result, detail.attempts[0].leased_at) == (None, at(1))
    await world.set_clock(at(2))
    await world.fire()
    queued = (await job_runs(tenant, job.job_id)).items[0]
    assert (queued.status, queued.scheduled_at, queued.attempt) == ("pending", at(2), 0)  # type: ignore[union-attr]
    await world.record(leased, "deferred", Retry(1, MINUTE))
    assert (await get_run(tenant, run_id)).run.status == "pending"
    await world.set_clock(at(3))
    await world.connection.execute("DELETE FROM timers WHERE kind = 'tick'")
    await world.connection.execute("UPDATE timers SET due_at = 'infinity' WHERE kind = 'queued'")
    await world.fire()
    await world.record(await world.lease(), "lost", Retry(2, MINUTE))
    retrying = (await get_run(tenant, run_id)).run
    assert (retrying.status, retrying.finished_at, retrying.error) == ("retrying", None, "it broke")


async def test_a_tenants_runs_are_those_of_all_its_jobs(world: World, tenant: TenantContext) -> None:
    job = await eventful(world, tenant)
    other = await create(tenant, {"schedule": "manual", "target": {**WORKER, "queue": "other"}})
    await world.connection.execute("INSERT INTO tenants (name) VALUES ('other')")
    await create(world.tenant(2), {"schedule": "now", "target": WORKER})
    by_hand = await trigger(tenant, other.job_id)
    await world.set_clock(at(6, 40))
    await world.fire()
    page = await tenant_runs(tenant)
    assert [(entry.job_id, str(entry.status)) for entry in page.items[2:]] == [
        (job.job_id, "success"),
        (job.job_id, "dead"),
        (job.job_id, "success"),
    ]
    assert {entry.job_id for entry in page.items[:2]} == {job.job_id, other.job_id}
    assert by_hand in {entry.run_id for entry in page.items[:2]}
    assert [entry.attempt for entry in page.items] == [1, 1, 2, 1, 1]
    found: list[Run] = []
    cursor = None
    for _ in range(5):
        one = await tenant_runs(tenant, limit=1, cursor=cursor)
        found += one.items
        cursor = one.next
    assert tuple(found) == page.items
    assert [str(entry.status) for entry in (await tenant_runs(tenant, status=RunStatus.DEAD)).items] == ["dead"]
    early = await tenant_runs(tenant, from_at=at(2), to_at=at(6))
    assert early.items == page.items[2:4]


async def test_a_run_that_is_retried_during_a_walk_is_neither_missed_nor_told_twice(
    world: World, tenant: TenantContext
) -> None:
    jobs = [await create(tenant, {"schedule": "manual", "target": WORKER}) for _ in range(3)]
    run_ids = []
    for second, job in enumerate(jobs):
        await world.set_clock(at(1, second))
        run_ids.append(await trigger(tenant, job.job_id))
        await world.fire()
    leased = sorted(await world.lease(), key=lambda each: each.seq)
    await world.record(leased[:2], "failed", Retry(2, MINUTE))
    first = await tenant_runs(tenant, limit=1)
    assert first.next is not None
    await world.set_clock(at(3))
    assert await world.fire() == 2
    await world.record([each for each in await world.lease() if each.job_id == leased[1].job_id])
    page = await tenant_runs(tenant, limit=1, cursor=first.next)
    rest = await tenant_runs(tenant, limit=1, cursor=page.next)
    assert [run.run_id for each in (first, page, rest) for run in each.items] == run_ids[::-1]
    # Each is told as it stands, not as it stood: it goes on, so it has not died of the attempt that failed.
    assert [(str(run.status), run.attempt) for run in (*page.items, *rest.items)] == [("success", 2), ("running", 2)]
    assert (await tenant_runs(tenant, cursor=first.next, status=RunStatus.DEAD)).items == ()
    assert rest.next is None


async def test_a_deleted_jobs_history_stays(world: World, tenant: TenantContext) -> None:
    job = await eventful(world, tenant)
    await delete(tenant, job.job_id)
    assert told((await job_runs(tenant, job.job_id)).items) == [("cancelled", "manual", 6.5), *HISTORY[1:]]


async def test_what_is_not_the_tenants_is_not_there(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    run_id = await trigger(tenant, job.job_id)
    stranger = world.tenant(2)
    with pytest.raises(JobNotFound):
        await job_runs(stranger, job.job_id)
    with pytest.raises(RunNotFound):
        await get_run(stranger, run_id)
    assert (await tenant_runs(stranger)).items == ()
    with pytest.raises(RunNotFound):
        await get_run(tenant, run_id[:-1] + "7")
    for read in (
        job_runs(tenant, job.job_id, cursor="x"),
        tenant_runs(tenant, cursor="x.y"),
        tenant_runs(tenant, cursor="1.2"),
    ):
        with pytest.raises(InvalidInput, match="cursor"):
            await read


async def test_a_cancelled_run_before_its_first_attempt_is_in_the_history(world: World, tenant: TenantContext) -> None:
    job = await world.minutely()
    await cancel(tenant, await trigger(tenant, job.job_id))
    assert told((await job_runs(tenant, job.job_id)).items) == [("cancelled", "manual", 0.5)]
