"""What becomes of leases that ran out, by the scheduler's own clock and the database's."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from engine import AGAIN, LEASE, Holder, Job, Planned, add_job, ending_of, lease, scheduler, timers_of
from evertick.metrics.catalog import OUTCOMES, REAPED
from evertick.roles.scheduler import Scheduler
from evertick.roles.scheduler.maintenance import AGE, ROUND_SECONDS, Sweeping
from evertick.roles.scheduler.reaping import LATE_COMMIT, WHOLE_SECONDS, Reaping
from evertick.store.database import connect
from evertick.store.engine import consumers, lanes, outcomes
from evertick.store.engine.consumers import HandOver
from evertick.store.engine.lanes import Leased, PutBack
from hooked_pool import Hook, Run, hooked

HOUR = timedelta(hours=1)
ONCE = '{"max_retries": 0, "backoff": "fixed", "delay_seconds": 1, "max_delay_seconds": 1}'


class World:
    """A reaper on a monotonic clock and a database's clock that move as the test says."""

    def __init__(self, connection: asyncpg.Connection, running: Scheduler) -> None:
        self.connection = connection
        self.seconds = 1000.0
        self.woken: set[int] = set()
        self.left: set[int] = set()
        self.state = running.state
        self.reaping = self.reaper()
        self.holder = Holder(connection, running.node, dict(running.state.ownership.epochs))

    def reaper(self) -> Reaping:
        return Reaping(
            self.state,
            lease_time=LEASE,
            woken=self.woken.update,
            left=self.left.update,
            monotonic=lambda: self.seconds,
        )

    async def set_clock(self, by: timedelta) -> None:
        await self.connection.execute("UPDATE dial SET now_at = now_at + $1", by)

    async def run(self, span: timedelta, every: timedelta = timedelta(seconds=5)) -> None:
        """Let time pass, and the reaper look again and again."""
        await self.reaping.step()
        for _ in range(span // every):
            self.seconds += every.total_seconds()
            await self.set_clock(every)
            await self.reaping.step()

    async def leased(self, *jobs: Job, worker: str = "w", policy: str = "SKIP") -> list[Leased]:
        await self.holder.fire(*[Planned(job, policy=policy) for job in jobs])
        return await lease(self.connection, *jobs, worker=worker)

    async def results(self) -> list[str]:
        rows = await self.connection.fetch("SELECT result::text FROM outcomes ORDER BY seq")
        return [row["result"] for row in rows]

    @contextmanager
    def hooked(self, statement: str, hook: Hook) -> Iterator[None]:
        """Act around a statement of the reaper."""
        pool = self.state.pool
        self.state.pool = hooked(pool, statement, hook)
        yield
        self.state.pool = pool

    async def workers(self) -> list[str | None]:
        rows = await self.connection.fetch("SELECT worker FROM leases ORDER BY first_seq, last_seq")
        return [row["worker"] for row in rows]


@pytest.fixture
async def world(database_url: str, connection: asyncpg.Connection) -> AsyncIterator[World]:
    await connection.execute("CREATE TABLE dial AS SELECT clock_timestamp() AS now_at")
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
        " AS 'SELECT now_at FROM dial'"
    )
    async with scheduler(database_url) as running:
        await running.join()
        yield World(connection, running)


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(database_url)
    yield connection
    await connection.close()


async def test_a_lost_attempt_is_tried_again(world: World) -> None:
    job = await add_job(world.connection)
    await world.leased(job)
    await world.run(LEASE)
    assert await world.results() == []
    await world.run(timedelta(seconds=5))
    assert await world.results() == ["lost"]
    assert [kind for kind, _ in await timers_of(world.connection, job)] == ["tick", "retry"]
    assert world.woken == {job.job_id}
    assert await world.workers() == []


async def test_a_last_attempt_that_was_never_started_is_not_buried_but_put_back(world: World) -> None:
    """A worker was lost between leasing and starting: without retries that was a dead letter that never ran."""
    [leased] = await world.leased(await add_job(world.connection, retry=ONCE))
    await world.run(2 * LEASE)
    assert await world.results() == []
    assert await world.connection.fetchval("SELECT count(*) FROM dead_letters") == 0
    [free] = await lanes.lease_free(
        world.connection,
        [lanes.queue_of(leased.lane_id)],
        ["handle"],
        "v",
        most=9,
        lease_time=LEASE,
        tenant_id=1,
    )
    [again] = await lanes.read(world.connection, [free])
    assert (again.seq, again.attempt, again.deferrals) == (leased.seq, 1, 0)
    await outcomes.record(world.connection, "v", [ending_of(again)], [again.lease_id])
    await world.run(2 * LEASE)
    assert (await world.results(), await world.workers()) == (["success"], [])


async def test_a_last_attempt_that_was_started_is_buried(world: World) -> None:
    jobs = [await add_job(world.connection, retry=ONCE) for _ in range(2)]
    started, waiting = await world.leased(*jobs)
    await lanes.mark_started(world.connection, "w", [(started.lease_id, started.seq)])
    await world.run(2 * LEASE)
    assert await world.connection.fetchval("SELECT array_agg(seq) FROM dead_letters") == [started.seq]
    assert await world.connection.fetchval("SELECT array_agg(first_seq) FROM leases") == [waiting.seq]
    assert await world.workers() == [None]


async def test_after_its_start_a_reaper_gives_workers_the_time_to_extend(world: World) -> None:
    [leased] = await world.leased(await add_job(world.connection))
    await world.set_clock(2 * LEASE)  # nobody could extend: the database was away
    await world.run(LEASE / 3)
    assert await lanes.extend(world.connection, "w", LEASE, [leased.lease_id]) == {leased.lease_id}
    await world.run(LEASE / 3)
    assert (await world.results(), await world.workers()) == ([], ["w"])


async def test_after_an_outage_leases_of_live_workers_are_kept(world: World) -> None:
    alive, gone = [
        (await world.leased(await add_job(world.connection), worker=worker))[0] for worker in ("alive", "gone")
    ]
    await world.run(LEASE / 2)

    async def away(*_: object) -> None:
        raise ConnectionResetError

    with world.hooked("lanes.clock", away), pytest.raises(ConnectionResetError):
        await world.reaping.step()
    world.seconds += 10
    await world.set_clock(HOUR)  # whatever the outage took
    await world.run(timedelta(seconds=10))
    assert await lanes.extend(world.connection, "alive", LEASE, [alive.lease_id]) == {alive.lease_id}
    await world.run(timedelta(seconds=10))
    assert await world.connection.fetchval("SELECT array_agg(seq) FROM outcomes") == [gone.seq]
    assert await world.workers() == ["alive"]


async def test_a_clock_that_is_set_forward_makes_no_live_worker_lose_its_lease(world: World) -> None:
    [leased] = await world.leased(await add_job(world.connection))
    await world.run(LEASE / 2)
    await world.set_clock(HOUR)
    await world.run(timedelta(seconds=10))
    assert await world.results() == []
    assert await lanes.extend(world.connection, "w", LEASE, [leased.lease_id]) == {leased.lease_id}
    await world.run(timedelta(seconds=10))
    assert await world.results() == []
    before, lost = REAPED.value(), OUTCOMES.value("lost")
    await world.run(LEASE)
    assert await world.results() == ["lost"]
    assert (REAPED.value() - before, OUTCOMES.value("lost") - lost) == (1, 1)


async def test_a_clock_that_is_set_forward_just_before_the_leases_are_taken_changes_nothing(
    world: World,
) -> None:
    await world.leased(await add_job(world.connection))
    await world.run(LEASE / 2)

    async def stepped(take_over: Run, _: object) -> object:
        await world.set_clock(HOUR)
        return await take_over()

    with world.hooked("outcomes.take_over", stepped):
        await world.reaping.step()
    assert (await world.results(), await world.workers()) == ([], ["w"])


async def test_a_clock_that_is_set_back_makes_no_dead_workers_lease_live_longer(world: World) -> None:
    [_, put_back] = await world.leased(await add_job(world.connection), await add_job(world.connection))
    back = PutBack(put_back.lane_id, put_back.seq, "handle", timedelta(minutes=1))
    await lanes.put_back(world.connection, "w", [back])
    await world.run(timedelta(seconds=5))
    await world.set_clock(-HOUR)
    await world.run(timedelta(seconds=5))
    furthest = await world.connection.fetchval("SELECT max(expires_at - clock_at()) FROM leases")
    assert furthest <= timedelta(minutes=1)
    await world.run(LEASE)
    assert await world.results() == ["lost"]


async def test_a_lease_that_is_seen_long_after_it_ran_out_is_found_within_a_minute(world: World) -> None:
    await world.run(LEASE)
    await world.leased(await add_job(world.connection))
    await world.connection.execute("UPDATE leases SET expires_at = clock_at() - $1::interval", 2 * LATE_COMMIT)
    await world.run(timedelta(seconds=WHOLE_SECONDS))
    assert await world.results() == ["lost"]


async def test_who_takes_a_partition_over_finds_what_ran_out_in_it_long_ago(world: World) -> None:
    job = await add_job(world.connection)
    await world.leased(job)
    await world.connection.execute("UPDATE leases SET expires_at = clock_at() - $1::interval", 2 * LATE_COMMIT)
    epoch = world.state.ownership.epochs.pop(job.partition)
    await world.run(2 * LEASE)
    assert await world.results() == []
    world.state.ownership.epochs[job.partition] = epoch
    await world.run(LEASE / 2)
    assert await world.results() == ["lost"]


async def test_a_reaper_looks_on_from_where_a_clock_was_set_back_to(world: World) -> None:
    await world.run(LEASE)
    await world.set_clock(-HOUR)
    await world.run(LEASE)
    await world.leased(await add_job(world.connection))
    await world.connection.execute("UPDATE leases SET expires_at = clock_at()")
    await world.run(timedelta(seconds=5))
    assert await world.results() == ["lost"]


async def test_a_run_that_somebody_has_locked_holds_up_no_other(world: World, second: asyncpg.Connection) -> None:
    jobs = [await add_job(world.connection) for _ in range(3)]
    await world.leased(*jobs, policy="ALLOW")
    async with second.transaction():
        await second.execute("SELECT FROM open_runs WHERE job_id = $1 FOR UPDATE", jobs[1].job_id)
        await world.run(LEASE + timedelta(seconds=5))
        assert await world.results() == ["lost", "lost"]
        assert await world.workers() == ["scheduler"]
    await world.run(timedelta(seconds=0))
    assert await world.results() == ["lost"] * 3
    assert await world.workers() == []


async def test_an_attempt_that_is_just_being_cancelled_holds_up_no_other(
    world: World, second: asyncpg.Connection
) -> None:
    """No row of open_runs speaks for it, so that the lock is the outcome's own, and the statement waits a little."""
    leased = await world.leased(*[await add_job(world.connection) for _ in range(3)])
    async with second.transaction():
        await outcomes.record(second, "user", [ending_of(leased[1], "cancelled")], [])
        await world.run(LEASE + timedelta(seconds=5))
        assert await world.results() == ["lost", "lost"]
    await world.run(timedelta(seconds=0))
    assert await world.results() == ["lost", "cancelled", "lost"]
    await world.run(LEASE + timedelta(seconds=5))
    assert await world.workers() == []


async def test_a_batch_that_takes_too_long_is_ended_in_smaller_ones(world: World) -> None:
    await world.leased(*[await add_job(world.connection) for _ in range(3)])

    async def slow(record: Run, values: Mapping[str, Any]) -> object:
        if len(values["seqs"]) > 1:
            raise asyncpg.QueryCanceledError
        return await record()

    with world.hooked("outcomes.record", slow):
        await world.run(LEASE + timedelta(seconds=5))
    assert await world.results() == ["lost"] * 3


async def test_a_retry_policy_that_cannot_be_read_holds_up_nobody(world: World) -> None:
    jobs = [await add_job(world.connection) for _ in range(3)]
    leased = await world.leased(*jobs)
    await world.connection.execute(
        """UPDATE job_versions SET retry = '{"backoff": "of a later version"}' WHERE job_id = $1""", jobs[1].job_id
    )
    assert len(leased) == 3
    await world.run(LEASE + timedelta(seconds=5))
    assert await world.results() == ["lost"] * 3
    assert [kind for kind, _ in await timers_of(world.connection, jobs[1])] == ["tick", "retry"]


async def test_a_sweep_that_fails_does_not_keep_leases_from_being_reaped(world: World) -> None:
    async def too_slow(*_: object) -> None:
        raise asyncpg.QueryCanceledError

    with world.hooked("orphans.check", too_slow):
        world.reaping = world.reaper()
    await world.run(timedelta(seconds=ROUND_SECONDS - 5))
    await world.leased(await add_job(world.connection))
    with pytest.raises(asyncpg.QueryCanceledError):
        await world.run(timedelta(seconds=5))
    await world.run(LEASE + timedelta(seconds=5))
    assert await world.results() == ["lost"]


async def test_what_stays_locked_for_longer_than_the_reapers_lease_is_reaped_again(
    world: World, second: asyncpg.Connection
) -> None:
    await world.leased(await add_job(world.connection), policy="ALLOW")
    async with second.transaction():
        await second.execute("SELECT FROM open_runs FOR UPDATE")
        await world.run(3 * LEASE)
        assert (await world.results(), await world.workers()) == ([], ["scheduler"])
    await world.run(LEASE)
    assert (await world.results(), await world.workers()) == (["lost"], [])


async def test_an_attempt_that_no_lease_covers_is_found_and_ends(world: World) -> None:
    """It lay below its lane's head without lease or outcome: its run never ended, under SKIP its job never fired."""
    jobs = [await add_job(world.connection) for _ in range(3)]
    leased = await world.leased(*jobs)
    await outcomes.record(world.connection, "w", [ending_of(leased[0])], [])
    await world.connection.execute("DELETE FROM leases")  # as a holder with a fault might
    await world.run(AGE - timedelta(minutes=1))
    assert await world.results() == ["success"]
    await world.run(timedelta(minutes=3))
    assert await world.results() == ["success", "lost", "lost"]
    assert await world.workers() == []
    await world.run(timedelta(minutes=2))
    assert await world.connection.fetchval("SELECT swept = head FROM lanes")


async def test_what_somebody_holds_or_waits_to_be_leased_is_left_alone(world: World) -> None:
    jobs = [await add_job(world.connection) for _ in range(3)]
    done, free, held = await world.leased(*jobs)
    await outcomes.record(world.connection, "w", [ending_of(done)], [])
    await lanes.put_back(world.connection, "w", [PutBack(free.lane_id, free.seq, "handle")])
    await world.connection.execute(
        "UPDATE leases SET expires_at = clock_at() + interval '1 day', lease_seconds = 86400"
    )
    await world.run(2 * AGE, timedelta(seconds=10))
    assert await world.results() == ["success"]
    assert await world.connection.fetchval("SELECT swept FROM lanes") == free.seq - 1
    assert held.seq > free.seq


async def test_a_sweep_goes_on_beyond_an_open_attempt_a_little_at_a_time(world: World) -> None:
    jobs = [await add_job(world.connection) for _ in range(9)]
    first, *others = await world.leased(*jobs)
    await outcomes.record(world.connection, "w", [ending_of(each) for each in others[:-1]], [])
    await world.connection.execute("UPDATE leases SET last_seq = first_seq")
    await world.set_clock(2 * AGE)
    sweeping = Sweeping(world.state.pool, max_per_lane=2)
    for _ in range(4):
        await sweeping.sweep([7])
        assert await world.workers() == ["w"]
        assert await world.connection.fetchval("SELECT swept FROM lanes") == first.seq - 1
    await sweeping.sweep([7])
    assert await world.workers() == ["w", "nobody"]


async def test_a_sweep_does_not_wait_for_who_leases_nor_does_it_keep_them(
    world: World, second: asyncpg.Connection
) -> None:
    [leased] = await world.leased(await add_job(world.connection))
    await outcomes.record(world.connection, "w", [ending_of(leased, "failed", AGAIN)], [leased.lease_id])
    await world.set_clock(2 * AGE)
    sweeping = Sweeping(world.state.pool)
    async with second.transaction():
        await second.execute("SELECT FROM lanes FOR UPDATE")
        await sweeping.sweep([7])
    assert await world.connection.fetchval("SELECT swept FROM lanes") == 0
    await sweeping.sweep([7])
    assert await world.connection.fetchval("SELECT swept FROM lanes") == leased.seq


async def test_a_sweep_marks_an_idle_lane_with_gates_once_a_day(world: World) -> None:
    await add_job(world.connection, gate_id=7, gate_limit=1)
    marks = []
    for age in (2 * AGE, 3 * AGE, timedelta(hours=20), timedelta(hours=30)):
        await world.set_clock(age)
        await Sweeping(world.state.pool).sweep([7])
        marks.append(await world.connection.fetchval("SELECT swept FROM lanes WHERE lane_is_gated(lane_id)"))
    assert 0 < marks[0] == marks[1] == marks[2] < marks[3]


async def test_a_free_lease_of_a_cancelled_attempt_goes(world: World) -> None:
    leased, _ = await world.leased(await add_job(world.connection), await add_job(world.connection))
    await lanes.put_back(world.connection, "w", [PutBack(leased.lane_id, leased.seq, "handle")])
    await outcomes.record(world.connection, "user", [ending_of(leased, "cancelled")], [])
    await Sweeping(world.state.pool).sweep([7])
    assert await world.workers() == ["w"]


async def test_what_no_consumer_reports_is_timed_out_at_its_timeout_and_tried_again(world: World) -> None:
    job = await add_job(world.connection)
    [leased] = await world.leased(job, worker="dispatcher")
    await consumers.hand_over(world.connection, "dispatcher", [HandOver(*leased.token, 1, 120)])
    await outcomes.record(world.connection, "dispatcher", [], [leased.lease_id])
    await world.run(timedelta(seconds=120))
    assert await world.results() == []
    await world.run(timedelta(seconds=5))
    assert await world.connection.fetchval("SELECT ARRAY[result::text, worker, error] FROM outcomes") == [
        "timed_out",
        "1/(consumer)",
        "no consumer has reported the outcome within the job's timeout",
    ]
    assert [kind for kind, _ in await timers_of(world.connection, job)] == ["tick", "retry"]
    assert await world.workers() == []


async def test_the_last_attempt_of_a_consumer_that_died_is_a_dead_letter(world: World) -> None:
    job = await add_job(world.connection, retry=ONCE)
    await world.connection.execute("UPDATE job_versions SET spec = $1", '{"target": {"completion": "reported"}}')
    [leased] = await world.leased(job, worker="dispatcher")
    await consumers.hand_over(world.connection, "dispatcher", [HandOver(*leased.token, 1, 3600)])
    await consumers.claim(world.connection, 1, "1/a", [leased.token], LEASE)
    await world.run(LEASE + timedelta(seconds=5))
    assert await world.connection.fetchval("SELECT ARRAY[result::text, worker] FROM outcomes") == ["lost", "1/a"]
    assert await world.connection.fetchval("SELECT count(*) FROM dead_letters") == 1


async def test_a_clock_that_is_set_back_moves_the_end_of_a_consumers_lease_too(world: World) -> None:
    [leased] = await world.leased(await add_job(world.connection), worker="dispatcher")
    await consumers.hand_over(world.connection, "dispatcher", [HandOver(*leased.token, 1, 120)])
    await world.run(timedelta(seconds=20))
    await world.set_clock(-HOUR)
    await world.run(timedelta(seconds=5))
    left = "SELECT round(extract(epoch FROM {} - clock_at())) FROM leases WHERE ends_at IS NOT NULL"
    assert await world.connection.fetchval(left.format("ends_at")) <= 120
    assert await world.connection.fetchval(left.format("expires_at")) <= 120
