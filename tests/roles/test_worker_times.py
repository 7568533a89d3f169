"""Deadlines, leases and what others do to an attempt while it runs."""

import asyncio
import threading
import time
from datetime import timedelta
from typing import NoReturn

import pytest

from engine import PATIENCE_SECONDS, lease, until
from evertick.executor import execution
from evertick.executor.handlers.run import Run
from evertick.runtime import timeouts
from evertick.store.database import connect
from evertick.store.engine import lanes
from roles.workshop import Workshop, reap, within_patience

SHORT_LEASE = timedelta(seconds=0.6)
LEASE = timedelta(seconds=9)
"""So long that a machine may stand still for some seconds."""


class Patient:
    """A handler that waits to be released, and tells when it began and when it was cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.release = asyncio.Event()

    async def __call__(self, run: Run) -> str:
        self.began.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "released"


async def test_an_async_handler_is_cancelled_at_its_deadline(workshop: Workshop) -> None:
    handler = Patient()
    job = await workshop.ready(timeout_seconds=0)
    worker = await workshop.work_off({"handle": handler})
    outcome = await workshop.outcome(job)
    assert handler.cancelled.is_set()
    assert (outcome.result, outcome.error) == ("timed_out", "not finished after 0 s, the job's timeout")
    assert [attempt for attempt, _ in await workshop.retries(job)] == [2]
    assert worker.counters.timed_out == 1


async def test_what_a_thread_returns_after_its_deadline_is_ignored(workshop: Workshop) -> None:
    release, left = threading.Event(), threading.Event()

    def handle() -> str:
        assert release.wait(PATIENCE_SECONDS)
        left.set()
        return "late"

    job = await workshop.ready(timeout_seconds=0)
    async with workshop.opened({"handle": handle}, threads=1) as worker:
        await worker.work_off()
        release.set()
        assert await asyncio.to_thread(left.wait, PATIENCE_SECONDS)
        other = await workshop.ready()  # the thread counts again, or another took its place
        await worker.work_off()
    assert await workshop.results(job) == ["timed_out"]
    assert await workshop.results(other) == ["success"]


async def test_a_handler_that_refuses_to_be_cancelled_is_left_behind(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "CANCEL_SECONDS", 0.0)
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    job = await workshop.ready(timeout_seconds=0)
    await workshop.work_off({"handle": stubborn}, concurrency=1)
    release.set()
    assert await workshop.results(job) == ["timed_out"]


async def test_a_cancelled_run_is_stopped_while_it_runs(workshop: Workshop) -> None:
    handler = Patient()
    job = await workshop.ready()
    async with workshop.started({"handle": handler}) as worker:
        await within_patience(handler.began)
        await workshop.end_elsewhere(job, "cancelled")
        await within_patience(handler.cancelled)
        await until(workshop.has_no_leases)
    assert await workshop.results(job) == ["cancelled"]
    assert (worker.counters.leased, worker.counters.lost) == (1, 1)


async def test_the_outcome_of_a_lost_attempt_comes_too_late(workshop: Workshop) -> None:
    handler = Patient()
    job = await workshop.ready()
    async with workshop.opened({"handle": handler}) as worker:
        working = asyncio.create_task(worker.work_off())
        await within_patience(handler.began)
        assert await workshop.reap(job) == 1
        handler.release.set()
        await working
    assert await workshop.results(job) == ["lost"]
    assert (worker.counters.succeeded, worker.counters.stale) == (1, 1)
    assert [attempt for attempt, _ in await workshop.retries(job)] == [2]


async def test_handlers_are_cancelled_when_their_lease_is_lost(workshop: Workshop) -> None:
    handler = Patient()
    job = await workshop.ready()
    async with workshop.started({"handle": handler}, lease_time=LEASE) as worker:
        await within_patience(handler.began)
        await workshop.reap(job)
        await within_patience(handler.cancelled)
    assert await workshop.results(job) == ["lost"]
    assert worker.counters.lost == 1


async def test_a_handler_that_blocks_the_event_loop_keeps_its_lease(workshop: Workshop) -> None:
    job = await workshop.ready()
    blocking, reaped = threading.Event(), threading.Event()
    taken = 0

    async def reap_for_long() -> None:
        """Until the lease would have run out some seconds ago."""
        nonlocal taken
        connection = await connect(workshop.url)
        blocking.wait(PATIENCE_SECONDS)
        first_at = await connection.fetchval("SELECT expires_at FROM leases")

        async def is_over() -> bool:
            nonlocal taken
            taken += await reap(connection, job)
            return taken > 0 or bool(await connection.fetchval("SELECT clock_at() > $1", first_at + LEASE / 3))

        await until(is_over)
        await connection.close()
        reaped.set()

    async def block() -> None:
        blocking.set()
        assert reaped.wait(PATIENCE_SECONDS)

    reaper = threading.Thread(target=lambda: asyncio.run(reap_for_long()))
    reaper.start()
    async with workshop.started({"handle": block}, lease_time=LEASE):
        await workshop.until_ended(job)
    reaper.join()
    assert (taken, await workshop.results(job)) == (0, ["success"])


async def test_a_loop_that_hangs_for_longer_than_any_handler_may_loses_its_leases(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertick.executor.heartbeat.MARGIN_SECONDS", 0.1)
    job = await workshop.ready(timeout_seconds=0)
    reaped = threading.Event()

    async def reap_until_found() -> None:
        connection = await connect(workshop.url)
        await until(lambda: reap(connection, job))
        await connection.close()
        reaped.set()

    async def hang() -> None:
        assert reaped.wait(PATIENCE_SECONDS)

    reaper = threading.Thread(target=lambda: asyncio.run(reap_until_found()))
    async with workshop.started({"handle": hang}, lease_time=SHORT_LEASE):
        reaper.start()
        await workshop.until_ended(job)
    reaper.join()
    assert await workshop.results(job) == ["lost"]


async def test_an_outcome_is_recorded_though_the_connection_dies_meanwhile(workshop: Workshop) -> None:
    handler = Patient()
    job = await workshop.ready()
    other = await connect(workshop.url)
    async with workshop.started({"handle": handler}) as worker:
        await within_patience(handler.began)
        async with other.transaction():
            await other.execute("LOCK TABLE outcomes IN ACCESS EXCLUSIVE MODE")
            handler.release.set()
            await until(lambda: _kill_recorder(workshop))
        await workshop.until_ended(job)
        await until(workshop.has_no_leases)
    await other.close()
    assert await workshop.outcomes(job) == [(1, "success", True, None, '"released"')]
    assert (worker.counters.succeeded, worker.counters.stale) == (1, 0)


async def _kill_recorder(workshop: Workshop) -> bool:
    killed = await workshop.connection.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE '/* outcomes.record */%' AND wait_event_type = 'Lock'"
    )
    return len(killed) > 0


async def test_many_failures_at_once_are_all_recorded(workshop: Workshop) -> None:
    def fail() -> NoReturn:
        raise ValueError("no")

    job = await workshop.ready(count=200)
    worker = await workshop.work_off({"handle": fail})
    assert await workshop.results(job) == ["failed"] * 200
    assert len(await workshop.retries(job)) == 200
    assert worker.counters.failed == 200


async def test_a_heartbeat_waits_for_what_its_worker_commits(workshop: Workshop) -> None:
    """One that gave up soon would hardly ever come between the commits of a slow disk, and the leases would run out."""
    job = await workshop.ready()
    [leased] = await lease(workshop.connection, job, worker="w")
    long = timedelta(minutes=10)  # so that the statement's own time-out comes late on any machine
    beating = await connect(workshop.url, timeouts=timeouts.lease_heartbeat(long))
    async with workshop.connection.transaction():
        await workshop.connection.execute("SELECT FROM leases FOR UPDATE")
        beat = asyncio.create_task(lanes.extend(beating, "w", long, [leased.lease_id]))

        async def has_waited() -> bool:
            asked = (
                "SELECT clock_timestamp() - query_start > $2 FROM pg_stat_activity WHERE pid = $1 AND state = 'active'"
            )
            await workshop.connection.execute("SELECT pg_stat_clear_snapshot()")  # else a transaction sees one only
            is_long = await workshop.connection.fetchval(asked, beating.get_server_pid(), timedelta(seconds=1))
            return beat.done() or bool(is_long)

        await until(has_waited)
    assert await beat == {leased.lease_id}
    await beating.close()


async def test_it_is_kept_when_an_attempt_was_leased(workshop: Workshop) -> None:
    """Between its lease and its start it waits in the worker, which runs one at a time."""
    first, second = await workshop.ready(), await workshop.ready()
    await workshop.work_off({"handle": lambda: time.sleep(0.05)}, threads=1)
    rows = await workshop.connection.fetch("SELECT held_ms FROM outcomes ORDER BY started_at")
    assert len({first.job_id, second.job_id}) == len(rows) == 2
    before, after = (row["held_ms"] for row in rows)
    assert 0 <= before < after
