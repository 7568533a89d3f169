"""A scheduler and a worker on a virtual clock, with very many jobs of mixed policies, and an outage of both.

The clock moves from one second with due timers to the next. It stands still while they fire and run, so that the seqs,
which are microseconds, say what was fired in which second of the catch-up.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product
from typing import Any

from engine import AT, scheduler
from evertick import App, Run
from evertick.domain.catch_up import OUTAGE
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.domain.states import RunReason
from evertick.roles.scheduler import Scheduler
from evertick.roles.worker import DatabaseWorker
from evertick.runtime.clock import VirtualClock
from evertick.store.database import Pool, open_pool
from evertick.store.engine import timers
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create_many import create_many
from faults.checkers import Verdict, check_all
from faults.ledger import Ledger, read_ledger

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
BEFORE = timedelta(minutes=20)
AFTER = timedelta(minutes=20)
LONGEST_CATCH_UP = timedelta(hours=12)
MAX_MISSED = 8
RETRIED_US = 15 * SECOND_US
"""Longer than a run and its retry."""
SCHEDULES = (
    "*/5 * * * *",
    "every 7m",
    "RRULE:FREQ=HOURLY;BYMINUTE=10,20,25,50",
    "13 * * * *",
    "every 15m",
    "H/10 * * * *",
)
HANDLERS = ("succeed", "succeed", "fail_once", "fail_always")
POLICIES = (ConcurrentPolicy.SKIP, ConcurrentPolicy.ALLOW, ConcurrentPolicy.QUEUE)
QUEUE = "outage"
LEASE_TIME = timedelta(days=7)
"""Longer than all of the virtual time: the worker never loses a lease."""
LATE = frozenset({RunReason.CATCH_UP, RunReason.LATE})

app = App(name="outage", queue=QUEUE)


@app.handler("succeed")
async def succeed(run: Run) -> None:
    """Do nothing."""


@app.handler("fail_once")
async def fail_once(run: Run) -> None:
    if run.attempt == 1:
        raise RuntimeError("the first attempt")


@app.handler("fail_always")
async def fail_always(run: Run) -> None:
    raise RuntimeError("each attempt")


def mixed_jobs(count: int) -> Iterator[dict[str, Any]]:
    """Jobs of all combinations of schedule, policies and handler, in turn."""
    kinds = list(product(SCHEDULES, MissedWindow, POLICIES, HANDLERS))
    for number in range(count):
        schedule, missed, policy, handler = kinds[number % len(kinds)]
        yield {
            "name": f"job {number}",
            "schedule": schedule,
            "missed_window": missed,
            "max_missed": MAX_MISSED,
            "concurrent_policy": policy,
            "max_concurrent": 5 if policy is ConcurrentPolicy.ALLOW else 1,
            "max_retries": 1,
            "retry_delay_seconds": 5,
            "target": {"type": "worker", "queue": QUEUE, "handler": handler},
        }


@dataclass(frozen=True, slots=True)
class Recovery:
    """The history, and when the outage began and ended."""

    ledger: Ledger
    jobs: dict[int, MissedWindow]
    began_at: datetime
    back_at: datetime
    now_at: datetime

    def verdicts(self) -> tuple[Verdict, ...]:
        """C1 to C3. What was missed may run as late as the catch-up ends."""
        return check_all(
            self.ledger.jobs,
            now_us=to_us(self.now_at),
            start_bound_us=to_us(self.now_at) - to_us(self.began_at),
            end_bound_us=60 * SECOND_US,
            allow_gaps=True,
            timers=self.ledger.timers,
        )

    def catch_up_curve(self) -> list[int]:
        """How many late runs were fired in each second from the end of the outage to the last of them."""
        back = to_us(self.back_at) // SECOND_US
        firsts = (run.in_order[0].seq for job in self.ledger.jobs for run in job.runs if run.reason in LATE)
        fired = Counter(seq // SECOND_US - back for seq in firsts)
        return [fired[second] for second in range(max(fired, default=-1) + 1)]

    def reasons(self) -> dict[MissedWindow, Counter[RunReason]]:
        """Why runs of each policy exist."""
        found: dict[MissedWindow, Counter[RunReason]] = {each: Counter() for each in MissedWindow}
        for job in self.ledger.jobs:
            found[self.jobs[job.job_id]].update(run.reason for run in job.runs)
        return found

    def held_back_curve(self) -> list[int]:
        """How many runs of ticks that the rate holds back were fired in each second after the outage."""
        back = to_us(self.back_at) // SECOND_US
        held_us = to_us(self.back_at - OUTAGE)
        runs = (run for job in self.ledger.jobs for run in job.runs if run.fire_us < held_us)
        fired = Counter(run.in_order[0].seq // SECOND_US - back for run in runs)
        return [fired[second] for second in range(max(fired, default=-1) + 1)]

    def catch_ups(self, missed: MissedWindow) -> list[int]:
        """For each job of a policy, how many of its missed ticks ran."""
        return [
            sum(run.reason is RunReason.CATCH_UP for run in job.runs)
            for job in self.ledger.jobs
            if self.jobs[job.job_id] is missed
        ]

    def runs_after(self, missed: MissedWindow) -> list[int]:
        """For each job of a policy, how many ticks of the outage ran, missed or late."""
        return [
            sum(run.reason in LATE and run.fire_us < to_us(self.back_at) for run in job.runs)
            for job in self.ledger.jobs
            if self.jobs[job.job_id] is missed
        ]

    def on_time_lags(self) -> list[float]:
        """The lags, in seconds, of ticks that came when their jobs had caught up.

        That is when all ticks of the outage have run, and the first run after the outage was fired: before it the job's
        one timer was in the past. Then those runs and their retries have to end, for which overlapping ticks wait. Jobs
        with many missed ticks are left out.
        """
        back_us = to_us(self.back_at)
        lags: list[float] = []
        for job in self.ledger.jobs:
            if self.jobs[job.job_id] is MissedWindow.RUN_ALL:
                continue
            fired_us = sorted((run.in_order[0].seq, run.fire_us) for run in job.runs)
            left_us = [seq for seq, fire_us in fired_us if fire_us <= back_us]
            first_us = [seq for seq, _ in fired_us if seq > back_us][:1]
            caught_up_us = max([back_us, *left_us, *first_us]) + RETRIED_US
            after = [run for run in job.runs if run.fire_us > caught_up_us]
            lags += [(run.in_order[0].seq - run.fire_us) / SECOND_US for run in after]
        return lags


@dataclass(slots=True)
class VirtualCluster:
    """Drives a scheduler and a worker."""

    pool: Pool
    clock: VirtualClock
    node: Scheduler
    worker: DatabaseWorker
    jobs: dict[int, MissedWindow] = field(default_factory=dict)

    async def create(self, count: int) -> None:
        results = await create_many(TenantContext(self.pool, 1), list(mixed_jobs(count)))
        rejected = next((line for line in results if line.job_id is None), None)
        assert rejected is None, rejected
        rows = await self.pool.fetch("SELECT job_id, spec->>'missed_window' AS missed FROM job_versions")
        self.jobs = {row["job_id"]: MissedWindow(row["missed"] or MissedWindow.RUN_ONCE) for row in rows}

    async def move_to(self, now_at: datetime) -> None:
        await self.pool.execute("UPDATE virtual_clock SET now_at = $1", now_at)
        self.clock.now_at = now_at
        await self.node.join()  # its heartbeat may be old by now

    async def work_until(self, end_at: datetime) -> None:
        """Fire and run everything that becomes due by an instant, and while anything is late."""
        while (due_at := await timers.next_due(self.pool)) is not None and due_at <= max(end_at, self.clock.now_at):
            second_at = (due_at + SECOND - timedelta(microseconds=1)).replace(microsecond=0)
            await self.move_to(max(second_at, self.clock.now_at + SECOND))
            await self.node.fire_due()
            await self.worker.work_off()
            if self.clock.now_at > end_at + LONGEST_CATCH_UP:
                raise AssertionError(f"a timer is due at {due_at} and does not fire")

    async def survive(self, outage: timedelta) -> Recovery:
        """Work as usual for a while, do nothing during the outage, and work until nothing is late any more."""
        began_at = AT + BEFORE
        await self.work_until(began_at)
        back_at = began_at + outage + SECOND / 2
        await self.move_to(back_at)
        await self.work_until(back_at + AFTER)
        async with self.pool.acquire() as connection:
            ledger = await read_ledger(connection)
        return Recovery(ledger, self.jobs, began_at, back_at, self.clock.now_at)


@asynccontextmanager
async def virtual_cluster(
    url: str, days: int, *, catch_up_factor: float | None = None, normal_rate: float = 500
) -> AsyncIterator[VirtualCluster]:
    async with await open_pool(url) as pool:
        await pool.execute("CREATE TABLE virtual_clock AS SELECT $1::timestamptz AS now_at", AT)
        await pool.execute(
            "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
            " AS 'SELECT now_at FROM virtual_clock'"
        )
        for day in range(days):
            await pool.execute("SELECT add_day($1)", AT.date() + timedelta(days=day))
        clock = VirtualClock(AT)
        worker = DatabaseWorker(
            url,
            app.declarations.handlers,
            queues=(QUEUE,),
            tenant_id=1,
            lease_time=LEASE_TIME,
            clock=clock,
        )
        async with scheduler(url, clock=clock, catch_up_factor=catch_up_factor, normal_rate=normal_rate) as node:
            await worker.open()
            try:
                yield VirtualCluster(pool, clock, node, worker)
            finally:
                await worker.close()
