"""How timers come from the table into memory, whatever is read, heard or missed."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from engine import MINUTE, Job, add_job, add_timer, runs_of
from evertick.domain.policies import ConcurrentPolicy
from evertick.domain.rule import Policies
from evertick.roles.scheduler import Scheduler, loading
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.store.engine import members
from hooked_pool import Run, hooked

SECOND = timedelta(seconds=1)
ALLOWED = Policies(concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=10)


def known(node: Scheduler) -> set[int]:
    return {timer.job_id for timer in node.state.pending}


async def lose(connection: asyncpg.Connection, node: Scheduler, partition: int) -> None:
    """Another node takes the partition, and this one notices at its heartbeat."""
    await members.take(connection, "thief", [partition], timedelta(0))
    await node.membership.step()


class Reads:
    """The readings ahead of time that follow: from which due time each partition was read last. A poll is none."""

    def __init__(self, node: Scheduler) -> None:
        self.from_ats: dict[int, datetime] = {}
        self.before_at: datetime | None = None
        node.state.pool = hooked(node.state.pool, "timers.load", self._note)

    async def _note(self, read: Run, values: Mapping[str, Any]) -> object:
        if values["most"] != loading.POLL_LIMIT:
            self.from_ats |= dict(zip(values["partitions"], values["from_ats"], strict=True))
            self.before_at = values["before_at"]
        return await read()


async def test_timers_of_the_coming_minutes_are_read_and_later_ones_are_not(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    due, soon = await add_job(connection), await add_job(connection, fire_at=now_at + 9 * MINUTE, partition=200)
    await add_job(connection, fire_at=now_at + 20 * MINUTE)
    await node.loading.step()
    assert known(node) == {due.job_id, soon.job_id}


async def test_each_round_reads_on_where_the_last_one_ended(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "AHEAD_SECONDS", 0)
    reads = Reads(node)
    await node.loading.step()
    end_at = reads.before_at
    await add_job(connection, fire_at=now_at + 5 * MINUTE)  # in a stretch that was read before
    await node.loading.step()
    assert reads.from_ats == dict.fromkeys(range(256), end_at)
    assert known(node) == set()


async def test_a_partition_with_more_timers_than_fit_is_read_on_as_they_are_used_up(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_PER_PARTITION", 10)
    monkeypatch.setattr(loading, "REFILL", 5)
    jobs = [await add_job(connection, fire_at=now_at + MINUTE + n * SECOND) for n in range(25)]
    await add_job(connection, fire_at=now_at + MINUTE, partition=8)
    await node.loading.step()
    assert (node.state.pending.count(7), node.state.pending.count(8)) == (10, 1)
    await use_up(connection, node, jobs[:5])
    await node.loading.step()
    assert node.state.pending.count(7) == 5
    await use_up(connection, node, jobs[5:6])
    await node.loading.step()
    assert {job.job_id for job in jobs[6:16]} <= known(node)
    assert node.state.pending.count(7) == 10


async def use_up(connection: asyncpg.Connection, node: Scheduler, jobs: list[Job]) -> None:
    """As if they had fired for the last time."""
    for job in jobs:
        await connection.execute("DELETE FROM timers WHERE job_id = $1", job.job_id)
    done = {job.job_id for job in jobs}
    for timer in [timer for timer in node.state.pending if timer.job_id in done]:
        node.state.pending.forget(PendingTimer(timer.job_id, timer))


async def test_a_flood_larger_than_an_answer_is_fired_whole_and_once(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_PER_PARTITION", 10)
    monkeypatch.setattr(loading, "REFILL", 5)
    jobs = [await add_job(connection, "now") for _ in range(45)]
    for _ in range(10):
        await node.loading.step()
        while await node.firing.fire_batch():
            pass
    assert await connection.fetchval("SELECT count(*) FROM timers") == 0
    assert [len(await runs_of(connection, job)) for job in jobs] == [1] * len(jobs)


async def test_a_wake_up_brings_the_jobs_that_it_names(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    await node.loading.step()
    named, _ = [await add_job(connection, fire_at=now_at + 5 * MINUTE) for _ in range(2)]
    far = await add_job(connection, fire_at=now_at + 60 * MINUTE)
    node.loading.woken(frozenset({named.job_id, far.job_id}))
    await node.loading.step()
    assert known(node) == {named.job_id}


async def test_a_wake_up_tells_of_a_tick_that_has_moved(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    job = await add_job(connection, fire_at=now_at + 5 * MINUTE)
    await node.loading.step()
    await connection.execute("UPDATE timers SET fire_at = $1, due_at = $1", now_at + MINUTE)
    node.loading.woken(frozenset({job.job_id}))
    await node.loading.step()
    assert [timer.due_at for timer in node.state.pending] == [now_at + MINUTE]


async def test_a_wake_up_for_somebody_elses_partition_is_not_heeded(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    await node.loading.step()
    node.state.ownership.drop({7})
    job = await add_job(connection, fire_at=now_at + MINUTE)
    node.loading.woken(frozenset({job.job_id}))
    await node.loading.step()
    assert known(node) == set()


async def test_a_wake_up_whose_reading_fails_is_not_lost(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    await node.loading.step()
    job = await add_job(connection, fire_at=now_at + 5 * MINUTE)
    node.loading.woken(frozenset({job.job_id}))
    await connection.execute("ALTER TABLE timers RENAME TO timers_away")
    with pytest.raises(asyncpg.UndefinedTableError):
        await node.loading.step()
    await connection.execute("ALTER TABLE timers_away RENAME TO timers")
    await node.loading.step()
    assert known(node) == {job.job_id}


@pytest.mark.parametrize("hint", ["poll", "many"])
async def test_a_timer_that_nobody_was_told_of_is_found_by_the_poll(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch, hint: str
) -> None:
    """Each second; or at once, when a wake-up says that there are too many to name."""
    monkeypatch.setattr(loading, "POLL_SECONDS", 0 if hint == "poll" else 3600)
    await node.loading.step()
    job = await add_job(connection, fire_at=now_at)
    if hint == "many":
        await node.loading.step()
        assert known(node) == set()
        node.loading.woken(None)
    await node.loading.step()
    assert known(node) == {job.job_id}


async def test_a_lost_partition_is_forgotten_and_read_from_the_beginning_when_it_comes_back(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    due, soon = await add_job(connection), await add_job(connection, fire_at=now_at + 5 * MINUTE)
    neighbour = await add_job(connection, fire_at=now_at + 5 * MINUTE, partition=8)
    await node.loading.step()
    assert await members.take(connection, "thief", [7], timedelta(0)) == {7: 2}
    hidden = await add_job(connection, fire_at=now_at + 2 * MINUTE)
    await node.join()  # the thief is no member: what it took is ours again at once
    assert node.state.ownership.epochs[7] == 3
    assert known(node) == {neighbour.job_id}
    await node.loading.step()
    assert known(node) == {due.job_id, soon.job_id, neighbour.job_id, hidden.job_id}


async def test_nothing_waits_for_a_firing(connection: asyncpg.Connection, node: Scheduler) -> None:
    job = await add_job(connection)
    async with node.state.ownership.writing:
        await node.loading.step()
        assert known(node) == {job.job_id}


async def test_a_firing_in_the_middle_of_a_reading_is_believed_before_its_answer(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    job = await add_job(connection, "every 1m", fire_at=now_at)
    await node.loading.step()

    async def fired_before_the_answer_is_here(read: Run, _: object) -> object:
        answer = await read()
        assert await node.firing.fire_batch() == 1
        return answer

    node.state.pool = hooked(node.state.pool, "timers.load", fired_before_the_answer_is_here)
    await node.loading.load_due()
    (timer,) = node.state.pending
    assert timer.fire_at == await connection.fetchval("SELECT fire_at FROM timers")
    assert await node.firing.fire_batch() == 0
    assert len(await runs_of(connection, job)) == 1


async def test_partitions_with_more_timers_than_their_share_of_an_answer_are_read_again(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "AHEAD_SECONDS", 0)
    monkeypatch.setattr(loading, "ANSWER", 2)
    monkeypatch.setattr(loading, "MAX_ANSWER", 256)
    counts = {7: 1, 8: 5, 9: 40, 200: 3}
    jobs = [
        await add_job(connection, fire_at=now_at + MINUTE + n * SECOND, partition=partition)
        for partition, count in counts.items()
        for n in range(count)
    ]
    reads = Reads(node)
    await node.loading.step()
    end_at = reads.before_at
    assert known(node) == {job.job_id for job in jobs}
    await node.loading.step()
    assert reads.from_ats == dict.fromkeys(range(256), end_at), "all were read to the end"


async def test_where_a_poll_finds_news_it_reads_what_is_behind_them(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "POLL_LIMIT", 2)
    flood = [await add_job(connection) for _ in range(5)]
    await node.loading.step()
    now_at = await connection.fetchval("SELECT clock_at()")
    hidden = [await add_job(connection, partition=8, fire_at=now_at) for _ in range(5)]
    asked: list[list[int]] = []

    async def noted(read: Run, values: Mapping[str, Any]) -> object:
        asked.append(values["partitions"])
        return await read()

    node.state.pool = hooked(node.state.pool, "timers.load", noted)
    await node.loading.load_due()
    assert known(node) == {job.job_id for job in (*flood, *hidden)}
    assert [len(partitions) for partitions in asked] == [256, 1]


async def test_a_partition_that_was_not_read_to_its_end_is_read_on_before_that_is_due(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though what was read is not used up: jobs that fire again stay. And nothing is read that is far away."""
    for limit, value in {"MAX_PER_PARTITION": 10, "REFILL": 5, "AHEAD_SECONDS": 0}.items():
        monkeypatch.setattr(loading, limit, value)
    jobs = [await add_job(connection, fire_at=now_at + 4 * SECOND + n * SECOND) for n in range(40)]
    await node.loading.step()
    assert known(node) == {job.job_id for job in jobs[:10]}
    await node.loading.step()
    assert known(node) == {job.job_id for job in jobs[:19]}  # from the tenth on, which may not have been the last
    await node.loading.step()
    assert known(node) == {job.job_id for job in jobs[:19]}


async def test_more_than_fit_at_one_instant_are_read_as_the_first_are_used_up(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit, value in {"MAX_PER_PARTITION": 10, "REFILL": 5, "AHEAD_SECONDS": 0}.items():
        monkeypatch.setattr(loading, limit, value)
    jobs = [await add_job(connection, fire_at=now_at + 3 * SECOND) for _ in range(25)]
    later = await add_job(connection, fire_at=now_at + 4 * SECOND)
    for _ in range(3):
        await node.loading.step()
    assert later.job_id in known(node)
    read = known(node) - {later.job_id}
    assert len(read) == 10
    await use_up(connection, node, [job for job in jobs if job.job_id in read])
    await node.loading.step()
    assert len(known(node) - {later.job_id}) == 10


async def test_a_partition_that_is_lost_while_it_is_read_is_not_read_on(
    connection: asyncpg.Connection, node: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_PER_PARTITION", 10)
    monkeypatch.setattr(loading, "POLL_SECONDS", 3600)
    for _ in range(20):
        await add_job(connection)

    async def lost_meanwhile(read: Run, _: object) -> object:
        answer = await read()
        await lose(connection, node, 7)
        return answer

    node.state.pool = hooked(node.state.pool, "timers.load", lost_meanwhile)
    assert await node.loading.step() > 60, "nothing is to be read before the next poll"
    assert known(node) == set()


async def test_a_partition_that_is_lost_and_regained_while_it_is_read_is_read_anew(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime
) -> None:
    added: list[Job] = []

    async def away_for_a_while(read: Run, values: Mapping[str, Any]) -> object:
        answer = await read()
        if not added and 7 in values["partitions"]:
            added.append(await add_job(connection, fire_at=now_at + MINUTE))  # by its other holder
            await lose(connection, node, 7)
            await node.join()  # the thief is no member: what it took is ours again at once
            assert node.state.ownership.epochs[7] == 3
        return answer

    node.state.pool = hooked(node.state.pool, "timers.load", away_for_a_while)
    await node.loading.step()
    await node.loading.step()
    assert known(node) == {added[0].job_id}


async def test_the_next_in_line_is_read_as_soon_as_the_first_has_been_fired(
    connection: asyncpg.Connection, node: Scheduler, now_at: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    for interval in ("POLL_SECONDS", "AHEAD_SECONDS"):
        monkeypatch.setattr(loading, interval, 3600)
    job = await add_job(connection, "* * * * *", ALLOWED, fire_at=now_at + MINUTE)
    for number in range(3):
        await add_timer(connection, job, "queued", now_at - (60 - number) * MINUTE, "catch_up")
    for runs in (1, 2, 3):
        await node.loading.step()
        await node.firing.fire_batch()
        assert len(await runs_of(connection, job)) == runs
