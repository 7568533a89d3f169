"""What a worker leases: from all lanes now and then, and at once from those that a wake-up names."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from engine import AT, Holder, Job, Planned, add_job, lease, until
from evertick.contract.target import HTTP_QUEUE
from evertick.domain.attempt import Attempt, AttemptOutcome, Token
from evertick.domain.fairness import FairSlots, TenantCounts
from evertick.executor.held_leases import HeldLease, HeldLeases
from evertick.executor.source import AttemptCounters
from evertick.executor.sources.database import reading
from evertick.executor.sources.database.leasing import (
    FIRST_PAUSE,
    FREE_SECONDS,
    LONGEST_PAUSE,
    MAX_LANES,
    UNREAD_SECONDS,
    Leasing,
)
from evertick.executor.sources.database.pace import CompletionRate, Pace, RoundTrip
from evertick.executor.sources.database.queues import LOOK_SECONDS, NamedQueues, QueueSelection
from evertick.executor.sources.database.reading import READERS
from evertick.roles.dispatcher.dispatcher import TargetHandler
from evertick.roles.dispatcher.slots import DeliveryCounts, WaitingForSlots
from evertick.roles.dispatcher.tenants import Keyring, TenantQueues
from evertick.runtime.clock import Clock, DatabaseClock
from evertick.runtime.queue_rates import QueueRates
from evertick.runtime.rate_slices import RateSlices
from evertick.store.database import Pool, open_pool
from evertick.store.engine import lanes
from evertick.store.engine.lanes import LeasedRange, PutBack, lane_id_of
from evertick.store.engine.rate_buckets import DatabaseBuckets
from evertick.store.statements import Connection
from evertick.store.tenants.secrets import Seal
from hooked_pool import Run, hook_every_pool, hooked

LEASE = timedelta(minutes=1)


class Bench:
    """Leasing that has looked at all lanes a moment ago, for a consumer that keeps what comes of it."""

    name = "w"
    role = "worker"
    handler_names = ("handle",)
    written_off = held = ended = 0
    may_lease = True

    def __init__(self, pool: Pool, connection: asyncpg.Connection, queues: QueueSelection | None = None) -> None:
        self.now = 1000.0
        self.clock: Clock = DatabaseClock()
        self.counters = AttemptCounters()
        self.pace = Pace(100)
        self.slots = 100
        self.taken: list[Attempt] = []
        self.held_leases = HeldLeases(LEASE.total_seconds())
        self.round_trip = RoundTrip()
        self.queues = ["default"]
        self.leasing = Leasing(
            pool,
            NamedQueues(self.queues, None) if queues is None else queues,
            self,
            lease_time=LEASE,
            pace=self.pace,
            round_trip=self.round_trip,
            rate=CompletionRate(self.round_trip, lambda: self.now),
            queue_rates=QueueRates(RateSlices(DatabaseBuckets(pool))),
            monotonic=lambda: self.now,
        )
        self._holder = Holder(connection)

    async def ready(self, job: Job, count: int = 1) -> None:
        if not self._holder.epochs:
            await self._holder.take(*range(256))
        await self._holder.fire_ticks(Planned(job, policy="ALLOW", limit=1000), count)

    async def leases_more_than(self, count: int, job: Job) -> bool:
        """Whether more of this job was leased. If not, it leases again."""
        if self.jobs.count(job.job_id) > count:
            return True
        await self.leasing.lease(10)
        return False

    def give_room(self, attempts: int) -> None:
        self.pace.size = self.slots = attempts

    def take(self, attempts: Sequence[Attempt]) -> None:
        self.taken.extend(attempts)

    def drop(self, attempt: Attempt) -> None:
        """Nothing is over before it comes."""

    def release(self, lease_id: int) -> None:
        """No lease is empty."""

    def died(self, tokens: Collection[Token]) -> None:
        """Nothing is recorded."""

    def beat_now(self) -> None:
        """The lease time never changes."""

    @property
    def jobs(self) -> list[int]:
        return [each.job_id for each in self.taken]


@pytest.fixture
async def bench(connection: asyncpg.Connection, database_url: str) -> AsyncIterator[Bench]:
    await add_job(connection, fire_at=AT + timedelta(days=1))
    pool = await open_pool(database_url, min_size=1, max_size=READERS)
    bench = Bench(pool, connection)
    assert await bench.leasing.step() == FIRST_PAUSE
    yield bench
    await pool.close()


async def test_only_lanes_that_a_wake_up_names_are_asked_at_once(connection: asyncpg.Connection, bench: Bench) -> None:
    named, unheard = await add_job(connection, partition=3), await add_job(connection, partition=4)
    await bench.ready(named)
    await bench.ready(unheard)
    assert bench.leasing.hear(frozenset({named.lane_id}))
    assert await bench.leasing.step() == FIRST_PAUSE  # there was no more in it
    assert bench.jobs == [named.job_id]
    assert await bench.leasing.step() == 0  # a look at all of them
    assert bench.jobs == [named.job_id, unheard.job_id]


async def test_low_is_leased_in_its_turn_while_high_keeps_coming(connection: asyncpg.Connection, bench: Bench) -> None:
    low = await add_job(connection, partition=3, priority=2)
    high = await add_job(connection, partition=4, priority=0)
    await bench.ready(low, count=10)
    await bench.ready(high, count=60)
    bench.give_room(1)
    for _ in range(42):
        await bench.leasing.step()
    assert bench.jobs.count(low.job_id) == 2
    assert bench.jobs.count(high.job_id) == 40


async def test_what_nobody_named_is_found_though_wake_ups_never_end(
    connection: asyncpg.Connection, bench: Bench
) -> None:
    unheard = await add_job(connection, partition=4)
    await bench.ready(unheard)
    bench.now += LONGEST_PAUSE
    bench.leasing.hear(frozenset({unheard.lane_id + 4}))
    await bench.leasing.step()
    assert bench.jobs == [unheard.job_id]


async def test_a_named_lane_with_more_than_there_was_room_for_is_gone_on_with(
    connection: asyncpg.Connection, bench: Bench
) -> None:
    job = await add_job(connection, partition=3)
    await bench.ready(job, count=5)
    bench.give_room(2)
    bench.leasing.hear(frozenset({job.lane_id}))
    steps = [await bench.leasing.step() for _ in range(3)]
    assert steps == [0, 0, 0]
    assert len(bench.taken) == 5


async def test_a_wake_up_does_not_put_off_the_lanes_that_a_look_has_not_come_to(
    connection: asyncpg.Connection, bench: Bench
) -> None:
    jobs = [await add_job(connection, partition=partition) for partition in range(MAX_LANES + 10)]
    for job in jobs:
        await bench.ready(job)
    bench.leasing.hear(None)
    assert await bench.leasing.step() == 0
    assert len(bench.taken) == MAX_LANES
    bench.leasing.hear(frozenset({jobs[0].lane_id}))
    assert await bench.leasing.step() == 0
    assert len(bench.taken) == len(jobs)


async def test_a_queue_that_comes_later_is_found_within_a_second(connection: asyncpg.Connection, bench: Bench) -> None:
    bench.queues.append("second")
    await bench.ready(await add_job(connection, partition=3, queue="second"))
    bench.now += LOOK_SECONDS
    await bench.leasing.step()
    assert len(bench.taken) == 1


async def test_a_name_is_kept_while_there_is_no_room(connection: asyncpg.Connection, bench: Bench) -> None:
    named, unheard = await add_job(connection, partition=3), await add_job(connection, partition=4)
    await bench.ready(named)
    await bench.ready(unheard)
    bench.give_room(0)
    bench.leasing.hear(frozenset({named.lane_id}))
    await bench.leasing.step()
    bench.give_room(100)
    await bench.leasing.step()
    assert bench.jobs == [named.job_id]


@pytest.mark.parametrize("lanes", [None, frozenset(range(1, MAX_LANES + 2))], ids=["unknown", "too many"])
async def test_a_wake_up_that_names_none_or_too_many_is_for_all(
    connection: asyncpg.Connection, bench: Bench, lanes: frozenset[int] | None
) -> None:
    job = await add_job(connection, partition=3)
    await bench.ready(job)
    bench.leasing.hear(lanes and frozenset(lane_id_of(job.queue_id, number, 0) for number in lanes))
    assert await bench.leasing.step() == 0
    assert bench.jobs == [job.job_id]


async def test_the_lanes_of_others_are_none_of_its_business(bench: Bench) -> None:
    assert not bench.leasing.hear(frozenset({lane_id_of(999, 0, 0)}))


async def test_what_was_put_back_is_leased_when_a_wake_up_says_so(connection: asyncpg.Connection, bench: Bench) -> None:
    job = await add_job(connection, partition=3)
    await bench.ready(job)
    (leased,) = await lease(connection, job, worker="another")
    await bench.leasing.step()  # it has just looked, and found nothing
    await lanes.put_back(connection, "another", [PutBack(leased.lane_id, leased.seq, "handle")])
    assert not bench.leasing.hear(frozenset({-999}))
    assert bench.leasing.hear(frozenset({-job.queue_id}))
    assert await bench.leasing.step() == 0
    assert bench.jobs == [job.job_id]


async def _look(_: Connection) -> None:
    """Nothing depends on how many tenants there are here."""


async def _deliver(_: Attempt) -> AttemptOutcome:
    raise AssertionError("nothing is delivered here")


def of_two_tenants() -> tuple[TenantQueues, WaitingForSlots]:
    """What a dispatcher leases from, and what waits in it."""
    slots = FairSlots(100, tenants=TenantCounts(2))
    waiting = WaitingForSlots(slots, longest_seconds=1.0)
    keyring = Keyring(Seal("a key of at least thirty-two characters"), _look)
    return TenantQueues(keyring, slots, waiting.queue, DeliveryCounts()), waiting


@pytest.mark.parametrize("limits", ["", "max_running = 1000", "rate_limit = 1, rate_burst = 1"])
async def test_what_was_put_back_of_one_tenant_is_leased_while_another_has_much(
    connection: asyncpg.Connection, pool: Pool, limits: str
) -> None:
    queues, waiting = of_two_tenants()
    bench = Bench(pool, connection, queues)
    bench.handler_names = ("",)
    large = await add_job(connection, partition=3, queue=HTTP_QUEUE)
    other = await connection.fetchval("INSERT INTO tenants (name) VALUES ('other') RETURNING tenant_id")
    small = await add_job(connection, partition=4, queue=HTTP_QUEUE, tenant_id=other)
    await bench.ready(large, 20)
    leased_before = await bench.leasing.lease(10)
    waiting.add((bench.taken[0], TargetHandler(_deliver, lambda _: 60), HeldLease(1, 0.0), False))
    await bench.ready(small)
    (leased,) = await lease(connection, small, worker="another")
    await lanes.put_back(connection, "another", [PutBack(leased.lane_id, leased.seq, "")])
    if limits:
        await connection.execute(f"UPDATE queues SET {limits} WHERE queue_id = $1", large.queue_id)
    bench.now += FREE_SECONDS
    await bench.leasing.lease(10)
    assert (bench.jobs.count(small.job_id), leased_before > 0) == (1, True)

    if "rate" in limits:  # a token that was drawn too late is there for a later lease
        await until(lambda: bench.leases_more_than(leased_before, large))
    assert bench.jobs.count(large.job_id) > leased_before


async def test_no_more_is_leased_than_was_asked_for_while_an_idle_tenant_comes_first(
    connection: asyncpg.Connection, pool: Pool
) -> None:
    queues, waiting = of_two_tenants()
    bench = Bench(pool, connection, queues)
    for partition in range(20, 40):
        await bench.ready(await add_job(connection, partition=partition, queue=HTTP_QUEUE))
    other = await connection.fetchval("INSERT INTO tenants (name) VALUES ('other') RETURNING tenant_id")
    small = await add_job(connection, partition=4, queue=HTTP_QUEUE, tenant_id=other)
    assert await bench.leasing.lease(4) == 4
    waiting.add((bench.taken[0], TargetHandler(_deliver, lambda _: 60), HeldLease(1, 0.0), False))
    await bench.ready(small, 3)
    assert await bench.leasing.lease(10) == 10
    assert bench.jobs.count(small.job_id) == 3


async def test_limits_of_a_queue_are_known_until_a_look_finds_others(
    connection: asyncpg.Connection, pool: Pool
) -> None:
    queues, _ = of_two_tenants()
    bench = Bench(pool, connection, queues)
    job = await add_job(connection, partition=3, queue=HTTP_QUEUE)
    await connection.execute("UPDATE queues SET max_running = 10, rate_limit = 1, rate_burst = 1")
    await bench.ready(job)
    await queues.refresh(pool, bench.now)
    await lease(connection, job, worker="another")
    await queues.refresh(pool, bench.now)
    assert queues.with_work == {}
    assert queues.capped == queues.rates.keys() == {job.queue_id}, "a lease that is under way may have found work there"
    await connection.execute("UPDATE queues SET max_running = 2147483647, rate_limit = NULL, rate_burst = NULL")
    await bench.ready(await add_job(connection, partition=4, queue=HTTP_QUEUE))
    await queues.refresh(pool, bench.now)
    assert not queues.capped
    assert not queues.rates


async def test_what_was_put_back_for_another_handler_is_left(connection: asyncpg.Connection, bench: Bench) -> None:
    job = await add_job(connection, partition=3)
    await bench.ready(job)
    (leased,) = await lease(connection, job, worker="another")
    await lanes.put_back(connection, "another", [PutBack(leased.lane_id, leased.seq, "other")])
    bench.leasing.hear(frozenset({-job.queue_id}))
    assert await bench.leasing.step() > 0
    assert bench.jobs == []


async def test_what_was_leased_is_read_by_several_at_once_while_the_disk_is_slow(
    connection: asyncpg.Connection, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    async def counted(run: Run, _: object) -> Any:
        reads[-1] += 1
        return await run()

    hook_every_pool(monkeypatch, "lanes.leased", counted)
    for slow_seconds in (-60.0, -60.0, 60.0, 60.0):  # as if it were slow, then as if it were not
        monkeypatch.setattr(reading, "SLOW_SECONDS", slow_seconds)
        reads.append(0)
        jobs = [await add_job(connection, partition=partition) for partition in range(10)]
        for job in jobs:
            await bench.ready(job)
        bench.leasing.hear(None)
        bench.taken.clear()
        await bench.leasing.step()
        assert sorted(bench.jobs) == sorted(job.job_id for job in jobs)
    assert reads == [1, READERS, READERS, 1]


async def test_what_cannot_be_read_is_held_and_read_again(
    connection: asyncpg.Connection, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SLOW_SECONDS", -60.0)  # as if the disk were slow
    jobs = [await add_job(connection, partition=partition) for partition in range(16)]
    for job in jobs[8:]:
        await bench.ready(job)
    bench.leasing.hear(None)
    await bench.leasing.step()
    bench.taken.clear()
    for job in jobs[:8]:
        await bench.ready(job)
    calls = 0

    async def failing_once(run: Run, _: object) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionResetError
        return await run()

    hook_every_pool(monkeypatch, "lanes.leased", failing_once)
    bench.leasing.hear(None)
    await bench.leasing.step()
    assert (calls, len(bench.jobs)) == (READERS, 6)
    assert len(bench.held_leases.snapshot()) == 16, "the heartbeat extends those that were not read as well"
    await bench.leasing.step()
    assert sorted(bench.jobs) == sorted(job.job_id for job in jobs[:8])


async def test_nothing_more_is_leased_while_what_was_leased_cannot_be_read(
    connection: asyncpg.Connection, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.ready(await add_job(connection, partition=3))

    async def failing(*_: object) -> None:
        raise ConnectionResetError

    with monkeypatch.context() as broken:
        hook_every_pool(broken, "lanes.leased", failing)
        bench.leasing.hear(None)
        await bench.leasing.step()
        await bench.ready(await add_job(connection, partition=4))
        with pytest.raises(ConnectionResetError):
            await bench.leasing.step()
    assert await connection.fetchval("SELECT count(*) FROM leases") == 1
    await bench.leasing.step()
    assert len(bench.taken) == 2


async def test_a_range_that_the_database_cannot_read_does_not_keep_back_the_others(
    connection: asyncpg.Connection, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [await add_job(connection, partition=partition) for partition in range(3)]
    for job in jobs:
        await bench.ready(job)
    broken = jobs[1].lane_id

    async def corrupt(run: Run, parameters: Mapping[str, Any]) -> Any:
        if broken in parameters["lane_ids"]:
            raise asyncpg.DataCorruptedError
        return await run()

    hook_every_pool(monkeypatch, "lanes.leased", corrupt)
    bench.leasing.hear(None)
    await bench.leasing.step()
    await bench.leasing.step()
    assert sorted(bench.jobs) == [jobs[0].job_id, jobs[2].job_id]
    bench.now += UNREAD_SECONDS + 1
    await bench.leasing.step()
    assert not bench.leasing.has_unread
    assert len(bench.held_leases.snapshot()) == 2, "it is left to run out"


async def test_over_a_slow_line_all_lanes_are_asked_at_once(connection: asyncpg.Connection, bench: Bench) -> None:
    bench.round_trip.note(0.3)
    bench.give_room(1000)
    for partition in range(3 * MAX_LANES):
        await bench.ready(await add_job(connection, partition=partition))
    bench.leasing.hear(None)
    await bench.leasing.step()
    assert len(bench.taken) == 3 * MAX_LANES


async def test_over_a_slow_line_a_lease_does_not_wait_for_the_one_before(
    connection: asyncpg.Connection, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await add_job(connection, partition=3), await add_job(connection, partition=4)
    await bench.ready(first, count=2)
    bench.give_room(1)
    bench.leasing.hear(frozenset({first.lane_id}))
    assert await bench.leasing.step() == 0
    is_asked, may_answer = asyncio.Event(), asyncio.Event()

    async def slow(run: Run, _: object) -> Any:
        if not is_asked.is_set():
            is_asked.set()
            await may_answer.wait()
        return await run()

    hook_every_pool(monkeypatch, "lanes.leased", slow)
    step = asyncio.create_task(bench.leasing.step())
    await is_asked.wait()
    await bench.ready(second)
    bench.give_room(10)
    assert await bench.leasing.step_ahead() == LONGEST_PAUSE, "over a fast line there is no need"
    bench.round_trip.note(0.3)
    bench.give_room(1)
    assert await bench.leasing.step_ahead() == LONGEST_PAUSE, "what is under way takes up room"
    bench.give_room(10)
    assert await bench.leasing.step_ahead() == 0
    assert bench.jobs == [first.job_id, second.job_id]
    may_answer.set()
    await step
    assert bench.jobs == [first.job_id, second.job_id, first.job_id]


@pytest.mark.parametrize("error", [ConnectionResetError(), asyncpg.DataError()])
async def test_what_others_cannot_read_is_not_forgotten_while_something_is_read_again(
    pool: Pool, error: Exception
) -> None:
    """Over a slow line several leases are under way: a range that nobody reads would be held until the worker ends."""
    earlier, later = [LeasedRange(lease_id, lane_id_of(1, 0, 0), lease_id, lease_id, 1) for lease_id in (1, 2)]
    asked, answered = asyncio.Event(), asyncio.Event()

    async def fail(_: Run, parameters: Mapping[str, Any]) -> None:
        if earlier.lease_id in parameters["lease_ids"]:
            asked.set()
            await answered.wait()
        raise error

    own = reading.Reading(hooked(pool, "lanes.leased", fail), lambda: 0.0)
    own.unread = [earlier]
    again = asyncio.create_task(own.read_again())
    await asked.wait()
    await own.read([later])
    answered.set()
    await asyncio.wait([again])
    assert sorted(own.unread) == [earlier, later]
    assert again.exception() is (error if isinstance(error, OSError) else None)
