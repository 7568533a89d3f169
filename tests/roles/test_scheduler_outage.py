"""Three hours without a scheduler, on a virtual clock: a minutely job, under each policy for what it missed.

The clock stands still while it catches up. Each round fires all that is due, then a worker ends all that is ready.
"""

from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta

import asyncpg
import pytest

from engine import AT, MINUTE, Job, add_job, finish, gaps_of, runs_of, scheduler
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.rule import Policies
from evertick.roles.scheduler import Scheduler
from evertick.runtime.clock import VirtualClock
from roles.stepping import accounted, ticks

OUTAGE = timedelta(hours=3)
BACK_AT = AT + 5 * MINUTE + OUTAGE + MINUTE / 2
"""Half a minute after a tick: within the grace of a minute, unlike the 179 before it."""
LAST_AT = BACK_AT - MINUTE / 2
MAX_MISSED = 100
MISSED = {MissedWindow.SKIP: 0, MissedWindow.RUN_ONCE: 1, MissedWindow.RUN_ALL: MAX_MISSED}
"""How many of the 179 run."""
ROUNDS = 150


class Hands:
    """Move the clock of the database, and the scheduler's with it."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self.clock = VirtualClock(AT)

    async def move_to(self, now_at: datetime) -> None:
        await self._connection.execute("UPDATE virtual_clock SET now_at = $1", now_at)
        self.clock.now_at = now_at

    async def end_waits(self) -> None:
        """Let those be due again that were put off for want of room, as if a moment had passed."""
        await self._connection.execute("UPDATE timers SET due_at = fire_at WHERE fire_at <= clock_at()")


@pytest.fixture
async def hands(connection: asyncpg.Connection) -> Hands:
    await connection.execute("CREATE TABLE virtual_clock AS SELECT $1::timestamptz AS now_at", AT)
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
        " AS 'SELECT now_at FROM virtual_clock'"
    )
    await connection.execute("SELECT add_day($1)", AT.date())
    return Hands(connection)


@pytest.fixture
async def node(database_url: str, hands: Hands) -> AsyncIterator[Scheduler]:
    async with scheduler(database_url, clock=hands.clock) as opened:
        await opened.join()
        yield opened


async def survive(connection: asyncpg.Connection, node: Scheduler, hands: Hands, job: Job) -> None:
    """Five minutes of work, three hours of outage, and the way back."""
    for tick_at in ticks(AT + MINUTE, AT + 5 * MINUTE):
        await hands.move_to(tick_at)
        await node.fire_due()
        await finish(connection, job)
    await hands.move_to(BACK_AT)
    await node.join()
    for _ in range(ROUNDS):
        await node.fire_due()
        await finish(connection, job)
        await hands.end_waits()


@pytest.mark.parametrize("policy", ConcurrentPolicy)
@pytest.mark.parametrize("missed", MissedWindow)
async def test_every_tick_of_an_outage_is_accounted_for(
    connection: asyncpg.Connection, node: Scheduler, hands: Hands, missed: MissedWindow, policy: ConcurrentPolicy
) -> None:
    limit = 3 if policy is ConcurrentPolicy.ALLOW else 1
    policies = Policies(missed_window=missed, max_missed=MAX_MISSED, concurrent_policy=policy, max_concurrent=limit)
    job = await add_job(connection, "* * * * *", policies, fire_at=AT + MINUTE)
    await survive(connection, node, hands, job)
    assert await accounted(connection, job) == ticks(AT + MINUTE, LAST_AT)
    reasons = Counter(reason for _, reason, _ in await runs_of(connection, job))
    kept = MISSED[missed]
    # The last tick is due while the one before it runs: that is an overlap like any other, unless none of those ran.
    is_skipped = policy is ConcurrentPolicy.SKIP and kept > 0
    assert reasons == Counter({"tick": 5, "catch_up": kept, "late": 0 if is_skipped else 1})
    gone = (AT + 6 * MINUTE, LAST_AT - (kept + 1) * MINUTE, 179 - kept, "missed")
    assert await gaps_of(connection, job) == [gone, *([(LAST_AT, LAST_AT, 1, "overlap")] if is_skipped else [])]
    results = Counter(row["result"] for row in await connection.fetch("SELECT result::text AS result FROM outcomes"))
    cancelled = kept if policy is ConcurrentPolicy.REPLACE else 0
    assert results == Counter({"success": reasons.total() - cancelled, "cancelled": cancelled})


async def test_catching_up_runs_oldest_first_and_one_at_a_time(
    connection: asyncpg.Connection, node: Scheduler, hands: Hands
) -> None:
    job = await add_job(connection, "* * * * *", Policies(missed_window=MissedWindow.RUN_ALL), fire_at=AT + MINUTE)
    await hands.move_to(AT + 10 * MINUTE + MINUTE / 2)
    ended = []
    for _ in range(9):
        await node.fire_due()
        ended.append(await finish(connection, job))
        await hands.end_waits()
    fire_times = [fire_at for fire_at, _, _ in await runs_of(connection, job)]
    assert ended == [1] * 9
    assert fire_times == ticks(AT + MINUTE, AT + 9 * MINUTE)


async def test_an_outage_that_lasts_while_a_run_is_open_is_made_up_for_when_it_ends(
    connection: asyncpg.Connection, node: Scheduler, hands: Hands
) -> None:
    job = await add_job(connection, "* * * * *", Policies(missed_window=MissedWindow.RUN_ONCE), fire_at=AT + MINUTE)
    await hands.move_to(AT + MINUTE)
    await node.fire_due()
    for now_at in (BACK_AT, BACK_AT + 10 * MINUTE):
        await hands.move_to(now_at)
        await node.fire_due()
        assert (await runs_of(connection, job), await gaps_of(connection, job)) == ([(AT + MINUTE, "tick", 1)], [])
    await finish(connection, job)
    await hands.end_waits()
    await node.fire_due()
    newest_at = LAST_AT + 9 * MINUTE
    assert (await runs_of(connection, job))[1:] == [(newest_at, "catch_up", 1)]
    assert await accounted(connection, job) == ticks(AT + MINUTE, newest_at + MINUTE)


async def test_a_one_off_that_was_missed_runs_once_unless_it_is_to_be_skipped(
    connection: asyncpg.Connection, node: Scheduler, hands: Hands
) -> None:
    jobs = {
        missed: await add_job(connection, "now", Policies(missed_window=missed), fire_at=AT + MINUTE)
        for missed in MissedWindow
    }
    await hands.move_to(BACK_AT)
    await node.fire_due()
    ran = {missed: [reason for _, reason, _ in await runs_of(connection, job)] for missed, job in jobs.items()}
    assert ran == {
        MissedWindow.SKIP: [],
        MissedWindow.RUN_ONCE: ["catch_up"],
        MissedWindow.RUN_ALL: ["catch_up"],
    }
    assert await gaps_of(connection, jobs[MissedWindow.SKIP]) == [(AT + MINUTE, AT + MINUTE, 1, "missed")]
    assert await connection.fetchval("SELECT count(*) FROM timers") == 0


async def test_a_job_by_the_second_catches_up_one_run_at_a_time(
    connection: asyncpg.Connection, node: Scheduler, hands: Hands
) -> None:
    """Each run ends at once; meanwhile the next tick was put off."""
    second, missed = timedelta(seconds=1), 30
    policies = Policies(missed_window=MissedWindow.RUN_ALL, max_missed=1000)
    job = await add_job(connection, "every 1s", policies, fire_at=AT)
    now_at = AT + missed * second
    await hands.move_to(now_at)
    while (tick_at := await tick_of(connection, job)) <= now_at - 2 * second and now_at < AT + 4 * missed * second:
        await node.fire_due()
        await finish(connection, job)
        now_at = max(now_at, await connection.fetchval("SELECT min(due_at) FROM timers"))
        await hands.move_to(now_at)
    assert tick_at > now_at - 2 * second
    ran = {fire_at for fire_at, _, _ in await runs_of(connection, job)}
    assert ran >= {AT + number * second for number in range(missed)}


async def tick_of(connection: asyncpg.Connection, job: Job) -> datetime:
    tick_at: datetime = await connection.fetchval(
        "SELECT fire_at FROM timers WHERE job_id = $1 AND kind = 'tick'", job.job_id
    )
    return tick_at
