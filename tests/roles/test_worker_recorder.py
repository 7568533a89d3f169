"""How outcomes get recorded while somebody else is in the way, and when one of them cannot be stored."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from engine import Job, until
from evertick.executor.recorder import STALLED_SECONDS
from evertick.executor.sources.database.source import MAX_OUTCOMES
from evertick.roles.worker import DatabaseWorker
from evertick.store.database import connect
from hooked_pool import Run, hook_every_pool
from roles.workshop import Workshop, within_patience

BEAT = timedelta(seconds=1)


@asynccontextmanager
async def another(workshop: Workshop) -> AsyncIterator[asyncpg.Connection]:
    """Someone else's transaction, which comes to its end with the block."""
    connection = await connect(workshop.url)
    transaction = connection.transaction()
    await transaction.start()
    yield connection
    await transaction.rollback()
    await connection.close()


async def lock_run(other: asyncpg.Connection, job: Job) -> None:
    """As who cancels the run, but does not come to an end."""
    assert await other.fetch("SELECT job_id FROM open_runs WHERE job_id = $1 FOR UPDATE", job.job_id)


async def lock_job(other: asyncpg.Connection, job: Job) -> None:
    """As who deletes the job."""
    await other.execute("SELECT FROM jobs WHERE job_id = $1 FOR UPDATE", job.job_id)


async def end_attempt(other: asyncpg.Connection, job: Job) -> None:
    """As a reaper that stands still before its COMMIT."""
    await other.execute(
        "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
        " SELECT lane_id, seq, clock_at(), 'lost', true FROM attempts WHERE job_id = $1",
        job.job_id,
    )


async def fail() -> None:
    raise ValueError("no")


async def succeed() -> None: ...


@pytest.mark.parametrize(
    ("hold", "handler", "result"),
    [(lock_run, succeed, "success"), (lock_job, fail, "failed"), (end_attempt, succeed, "success")],
)
async def test_what_somebody_has_locked_waits_alone(workshop: Workshop, hold: Any, handler: Any, result: str) -> None:
    others = await workshop.ready(count=40)
    held = await workshop.ready()
    async with workshop.started({"handle": gated(handler)}) as worker, another(workshop) as other:
        await until_leased(worker, 41)
        await hold(other, held)
        Gate.opened.set()
        await workshop.until_ended(others, 40)
        assert await workshop.results(held) == []
        # What comes later is not held up either.
        later = await workshop.ready()
        await workshop.until_ended(later)
        assert await workshop.leases() == 1
        await other.execute("ROLLBACK")
        await workshop.until_ended(held)
        await until(workshop.has_no_leases)
        await other.execute("BEGIN")
    assert await workshop.results(held) == [result]
    assert worker.counters.stale == 0


class Gate:
    """Keeps handlers from ending until a test has prepared what they end into."""

    opened = asyncio.Event()


@pytest.fixture(autouse=True)
def closed_gate() -> None:
    Gate.opened = asyncio.Event()


def gated(handler: Any) -> Any:
    async def handle() -> None:
        await Gate.opened.wait()
        await handler()

    return handle


async def until_leased(worker: DatabaseWorker, count: int) -> None:
    async def is_leased() -> bool:
        return worker.counters.leased == count

    await until(is_leased)


async def test_an_outcome_that_cannot_be_stored_counts_as_failed_and_keeps_nobody_back(workshop: Workshop) -> None:
    await workshop.connection.execute(
        "ALTER TABLE outcomes ADD CONSTRAINT poison CHECK (error NOT LIKE 'ValueError: poison%')"
    )
    poison = await workshop.ready(payload={"text": "poison"})
    others = await workshop.ready(payload={"text": "food"}, count=30)

    async def handle(text: str) -> str:
        if text == "poison":
            raise ValueError(text)
        return text

    async with workshop.started({"handle": handle}):
        (failed,) = await workshop.until_ended(poison)
        await workshop.until_ended(others, 30)
        await until(workshop.has_no_leases)
    assert await workshop.results(others) == ["success"] * 30
    assert (failed.result, failed.is_final) == ("failed", False)
    assert failed.error is not None
    assert failed.error.startswith("its outcome, failed, could not be stored: ")
    assert [attempt for attempt, _ in await workshop.retries(poison)] == [2]


async def test_what_was_done_is_not_done_again_because_its_output_cannot_be_stored(workshop: Workshop) -> None:
    await workshop.connection.execute(
        "ALTER TABLE outcomes ADD CONSTRAINT poison CHECK (output IS DISTINCT FROM '\"poison\"')"
    )
    poison = await workshop.ready(payload={"text": "poison"})

    async def handle(text: str) -> str:
        return text

    async with workshop.started({"handle": handle}):
        (done,) = await workshop.until_ended(poison)
        await until(workshop.has_no_leases)
    assert (done.result, done.is_final, done.error) == ("success", True, None)
    assert done.excerpt is not None
    assert done.excerpt.startswith("what it returned could not be stored: ")


async def test_batches_shrink_when_they_take_too_long_and_grow_again(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    async def slow(run: Run, parameters: Mapping[str, Any]) -> Any:
        sizes.append(len(parameters["plain_seqs"]) + len(parameters["seqs"]))
        if sizes[-1] > 10:
            raise TimeoutError
        return await run()

    hook_every_pool(monkeypatch, "outcomes.record", slow)
    job = await workshop.ready(count=40)
    async with workshop.started({"handle": gated(succeed)}) as worker:
        await until_leased(worker, 40)
        Gate.opened.set()
        await workshop.until_ended(job, 40)
        await until(workshop.has_no_leases)
    assert await workshop.results(job) == ["success"] * 40
    assert sizes[:3] == [40, 20, 10]
    assert worker.recorder.batch_size > 10
    assert worker.counters.stale == 0


async def test_nothing_is_leased_while_nothing_could_be_recorded_for_seconds(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    away = asyncio.Event()
    answers = asyncio.Event()

    async def silent(run: Run, _: object) -> Any:
        away.set()
        await answers.wait()
        return await run()

    hook_every_pool(monkeypatch, "outcomes.record", silent)
    job = await workshop.ready()
    async with workshop.started({"handle": succeed}, monotonic=lambda: now) as worker:
        await within_patience(away)
        assert worker.may_lease
        now += STALLED_SECONDS + 1
        assert not worker.may_lease
        answers.set()
        await workshop.until_ended(job)

        async def has_room() -> bool:
            return worker.may_lease

        await until(has_room)
    assert len(worker.recorder) == 0
    assert worker.recorder.batch_size == MAX_OUTCOMES


async def test_one_that_is_locked_for_long_does_not_keep_the_worker_from_leasing(workshop: Workshop) -> None:
    held = await workshop.ready()
    now = 1000.0
    async with (
        workshop.started({"handle": gated(succeed)}, monotonic=lambda: now) as worker,
        another(workshop) as other,
    ):
        await until_leased(worker, 1)
        await end_attempt(other, held)
        Gate.opened.set()

        async def is_apart() -> bool:
            return worker.recorder.apart == 1

        await until(is_apart)
        now += STALLED_SECONDS + 1
        later = await workshop.ready()
        await workshop.until_ended(later)
        await other.execute("ROLLBACK")
        now += 60
        await workshop.until_ended(held)
        await other.execute("BEGIN")


async def test_the_lease_of_an_outcome_that_waits_is_kept(workshop: Workshop) -> None:
    """Else a reaper would have its attempt as soon as the lock is gone, and what was done would be done again."""
    held = await workshop.ready()
    async with (
        workshop.started({"handle": gated(succeed)}, lease_time=3 * BEAT) as worker,
        another(workshop) as other,
    ):
        await until_leased(worker, 1)
        await lock_run(other, held)
        Gate.opened.set()

        async def is_apart() -> bool:
            return worker.recorder.apart == 1

        await until(is_apart)
        runs_out = "SELECT expires_at FROM leases"
        before_at = await workshop.connection.fetchval(runs_out)

        async def is_extended() -> bool:
            return bool(await workshop.connection.fetchval(f"{runs_out} WHERE expires_at > $1", before_at + BEAT))

        await until(is_extended)
        await other.execute("ROLLBACK")
        await workshop.until_ended(held)
        await until(workshop.has_no_leases)
        await other.execute("BEGIN")
    assert await workshop.results(held) == ["success"]
