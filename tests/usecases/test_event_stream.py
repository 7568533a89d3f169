"""The event stream: it holds exactly the ledger, in an order that readers can resume, whoever commits when."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import asyncpg
import pytest

from evertick.contract.events import Event, EventStreamRequest
from evertick.contract.job import Job
from evertick.contract.runs import RunDetail
from evertick.domain.errors import InvalidInput
from evertick.domain.events import PUBLIC, STORED, EventType
from evertick.domain.policies import Missed
from evertick.domain.retry import GiveUp, GiveUpReason, Retry
from evertick.domain.states import FINAL_RUNS, JobStatus
from evertick.runtime import events as runtime_events
from evertick.store import database
from evertick.store.database import Pool
from evertick.store.tenants import audit, events
from evertick.store.tenants.audit import AuditRecord
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import EventStreamNotFound, RunFinished, TriggerRefused
from evertick.usecases.jobs import reading as job_reading
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete, pause, resume
from evertick.usecases.runs.reading import get_run, job_runs
from evertick.usecases.runs.requests import cancel, replay, trigger
from evertick.usecases.tenants.events import get_stream, position_of, put_stream, read, remove_stream
from hooked_pool import Run, hooked
from usecases.world import WORKER, World, at, key_of

ON = EventStreamRequest()
AGAIN = Retry(2, timedelta(seconds=20))
DEAD = GiveUp(3, GiveUpReason.EXHAUSTED)


@pytest.fixture
async def streaming(world: World, tenant: TenantContext) -> World:
    await put_stream(tenant, ON)
    return world


@pytest.fixture
async def second(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await database.connect(database_url)
    yield connection
    await connection.close()


async def read_all(tenant: TenantContext, cursor: str | None = None, page: int = 1000) -> list[Event]:
    """All events after a cursor, page by page, once all have their positions."""
    assert isinstance(tenant.pool, Pool)
    while await events.give_positions(tenant.pool, 100):
        pass
    found: list[Event] = []
    while True:
        part = await read(tenant, after=position_of(cursor), types=STORED, limit=page)
        found += part.events
        cursor = str(part.cursor)
        if part.is_last:
            return found


def types_of(found: list[Event]) -> list[str]:
    return [event.type.removeprefix("evertick.") for event in found]


class Load:
    """Does something to the jobs of a tenant, again and again, at random."""

    def __init__(self, world: World, tenant: TenantContext, seed: int) -> None:
        self.world = world
        self.tenant = tenant
        self.random = random.Random(seed)
        self.jobs: list[Job] = []
        self.run_ids: list[str] = []
        self.seconds = 30
        self.actions: list[Callable[[], Awaitable[object]]] = [
            *[self.pass_time] * 6,
            *[self.work] * 6,
            *(self.create, self.trigger, self.trigger, self.cancel, self.cancel, self.replay),
            *(self.pause, self.resume, self.resume, self.edit, self.delete),
        ]

    async def act(self, times: int) -> None:
        for _ in range(5):
            await self.create()
        for number in range(times):
            await self.random.choice(self.actions)()
            if not number % 10:
                await events.give_positions(self.world.pool, 7)

    async def pass_time(self) -> None:
        self.seconds += self.random.choice([1, 15, 60, 300])
        await self.world.set_clock(at(0, self.seconds))
        for _ in range(3):
            await self.world.fire()

    async def work(self) -> None:
        for leased in await self.world.lease():
            result, then = self.random.choice(
                [("success", None), ("failed", AGAIN), ("failed", AGAIN), ("timed_out", DEAD), ("failed", DEAD)]
            )
            if self.random.random() < 0.7:
                await self.world.record([leased], result, then)

    async def create(self) -> None:
        policy = self.random.choice(["SKIP", "QUEUE", "REPLACE", "ALLOW"])
        fields: dict[str, Any] = {"schedule": "* * * * *", "concurrent_policy": policy, "misfire_grace_seconds": 90}
        if not self.random.randrange(4):
            fields = {"schedule": f"in {self.random.randrange(1, 300)}s"}
        self.jobs.append(await create(self.tenant, {**fields, "target": WORKER, "max_retries": 3}))

    def job(self) -> str:
        return self.random.choice(self.jobs).job_id

    async def trigger(self) -> None:
        with suppress(TriggerRefused):
            force = self.random.random() < 0.5
            self.run_ids.append(await trigger(self.tenant, self.job(), force=force))

    async def cancel(self) -> None:
        history = await job_runs(self.tenant, self.job())
        runs = [entry.run_id for entry in history.items if entry.run_id is not None]
        for run_id in runs[:3]:
            try:
                await cancel(self.tenant, run_id)
            except RunFinished:
                continue

    async def replay(self) -> None:
        for run_id in self.run_ids[-3:]:
            if (await get_run(self.tenant, run_id)).status in FINAL_RUNS:
                self.run_ids.append(await replay(self.tenant, run_id))

    async def pause(self) -> None:
        await pause(self.tenant, self.job(), "for a while")

    async def resume(self) -> None:
        await resume(self.tenant, self.job(), self.random.choice(list(Missed)))

    async def edit(self) -> None:
        await edit(self.tenant, self.job(), {"labels": {"n": str(self.random.random())}, "schedule": "*/2 * * * *"})

    async def delete(self) -> None:
        if len(self.jobs) > 3:
            job = self.jobs.pop(self.random.randrange(len(self.jobs)))
            self.run_ids = [run_id for run_id in self.run_ids if job.job_id[4:] not in run_id]
            await delete(self.tenant, job.job_id)


class Rebuilt:
    """What a reader that has nothing but the stream knows."""

    def __init__(self, found: list[Event]) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.gaps: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.jobs: dict[str, tuple[str, bool, int]] = {}
        for event in found:
            self.apply(event.type.removeprefix("evertick."), event.data)

    def apply(self, kind: str, data: Any) -> None:
        match kind.split("."):
            case ["run", _]:
                assert data.run_id not in self.runs
                self.runs[data.run_id] = {name: getattr(data, name) for name in RunDetail.__struct_fields__}
            case ["gap", verb]:
                key = data.job_id, data.scheduled_at, str(data.reason)
                self.gaps.pop(key, None)
                if verb == "recorded":
                    self.gaps[key] = data.until, data.count, data.spec_version
            case ["job", verb]:
                status, is_finished, _ = self.jobs.get(data.job_id, ("active", False, 0))
                status = {"paused": "paused", "resumed": "active", "deleted": "deleted"}.get(verb, status)
                is_finished = {"finished": True, "reopened": False}.get(verb, is_finished)
                self.jobs[data.job_id] = status, is_finished, data.spec_version


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.campaign) for seed in range(4, 40))])
async def test_the_ledger_can_be_rebuilt_from_the_stream(streaming: World, tenant: TenantContext, seed: int) -> None:
    load = Load(streaming, tenant, seed)
    await load.act(120)
    found = await read_all(tenant, page=37)
    rebuilt = Rebuilt(found)

    rows = await streaming.connection.fetch("SELECT job_id, status::text, spec_version FROM jobs")
    keys = {f"{row['job_id']}": row for row in rows}
    runs: dict[str, dict[str, Any]] = {}
    for job_id in rebuilt.jobs:
        cursor = None
        while True:
            history = await job_runs(tenant, job_id, cursor=cursor)
            for entry in history.items:
                if entry.run_id is not None and entry.status in FINAL_RUNS:
                    detail = await get_run(tenant, entry.run_id)
                    runs[entry.run_id] = {name: getattr(detail, name) for name in RunDetail.__struct_fields__}
            cursor = history.next
            if cursor is None:
                break
    assert len(keys) == len(rebuilt.jobs)
    assert len(runs) > 10
    assert rebuilt.runs == runs

    gaps = await streaming.connection.fetch("SELECT * FROM gaps")
    assert gaps
    assert len(rebuilt.gaps) == len(gaps)
    assert sorted(rebuilt.gaps.values()) == sorted((gap["last_at"], gap["ticks"], gap["spec_version"]) for gap in gaps)

    for job in load.jobs:
        seen = await job_reading.get(tenant, job.job_id)
        status, is_finished, version = rebuilt.jobs[job.job_id]
        words = {"paused": JobStatus.PAUSED, "active": JobStatus.FINISHED if is_finished else JobStatus.ACTIVE}
        assert (seen.status, seen.spec_version) == (words[status], version)
    deleted = [job_id for job_id, (status, _, _) in rebuilt.jobs.items() if status == "deleted"]
    assert len(deleted) == len(rebuilt.jobs) - len(load.jobs)


async def test_other_tenants_have_no_part_in_it(streaming: World, connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO tenants (tenant_id, name, weight) VALUES (2, 'other', 1)")
    other = streaming.tenant(2)
    await create(other, {"schedule": "* * * * *", "target": WORKER})
    await streaming.set_clock(at(1))
    assert len(await streaming.run_all()) == 1
    assert await streaming.count("new_events", "events") == [0, 0]
    with pytest.raises(EventStreamNotFound):
        await read(other, types=PUBLIC)
    await put_stream(other, ON)
    await streaming.set_clock(at(2))
    assert len(await streaming.run_all()) == 1
    assert types_of(await read_all(other)) == ["run.finished"]
    assert await read_all(streaming.tenant()) == []


async def test_the_host_may_keep_the_events_of_all(streaming: World, connection: asyncpg.Connection) -> None:
    await connection.execute("INSERT INTO tenants (tenant_id, name, weight) VALUES (2, 'other', 1)")
    other = streaming.tenant(2)
    with pytest.raises(InvalidInput, match="all_tenants"):
        await put_stream(other, EventStreamRequest(all_tenants=True))
    await put_stream(streaming.tenant(), EventStreamRequest(all_tenants=True))
    await create(other, {"schedule": "* * * * *", "target": WORKER})
    assert await streaming.count("new_events") == [1]
    assert await read_all(streaming.tenant()) == []  # a reader gets the events of its tenant
    with pytest.raises(EventStreamNotFound):
        await read_all(other)


async def test_what_commits_late_is_not_skipped(
    streaming: World, tenant: TenantContext, second: asyncpg.Connection
) -> None:
    """A reader that has seen a later event gets the earlier one, too, when that is committed at last."""
    first = await streaming.minutely(name="first")
    transaction = second.transaction()
    await transaction.start()
    await second.execute("UPDATE jobs SET status = 'paused' WHERE job_id = $1", key_of(first))
    other = await streaming.minutely(name="other")
    seen = await read_all(tenant)
    assert types_of(seen) == ["job.created", "job.created"]
    await transaction.commit()
    (late,) = await read_all(tenant, seen[-1].id)
    assert (late.type, late.data.job_id) == ("evertick.job.paused", first.job_id)
    assert int(late.id) > int(seen[-1].id)
    assert seen[-1].data.job_id == other.job_id


async def test_changes_of_a_job_come_in_the_order_in_which_they_were_made(
    streaming: World, tenant: TenantContext, connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    """Also where the transaction that came second began first: its id is the smaller one."""
    job = await streaming.minutely()
    key = key_of(job)
    early = second.transaction()
    await early.start()
    early_id = await second.fetchval("SELECT pg_current_xact_id()::text::bigint")
    async with connection.transaction():
        late_id = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
        await connection.execute("UPDATE jobs SET status = 'paused' WHERE job_id = $1", key)
    await second.execute("UPDATE jobs SET status = 'active' WHERE job_id = $1", key)
    await early.commit()
    assert early_id < late_id
    assert types_of(await read_all(tenant)) == ["job.created", "job.paused", "job.resumed"]


async def test_two_janitors_give_each_event_one_position(
    streaming: World, tenant: TenantContext, second: asyncpg.Connection
) -> None:
    await streaming.minutely()
    lock = second.transaction()
    await lock.start()
    await second.execute("SELECT FROM event_positions FOR UPDATE")
    assert await events.give_positions(streaming.pool, 10) == 0  # another has the lock, and is not waited for
    await lock.rollback()
    assert await events.give_positions(streaming.pool, 10) == 1
    assert await events.give_positions(streaming.pool, 10) == 0
    assert len(await read_all(tenant)) == 1


async def test_positions_follow_the_clock_and_never_go_back(streaming: World, tenant: TenantContext) -> None:
    """So that none that a fail-over lost is given again, and that a clock that is set back does no harm."""
    await streaming.minutely()
    await streaming.set_clock(at(10))
    (first,) = await read_all(tenant)
    assert int(first.id) == int(at(10).timestamp()) * 1_000_000
    await streaming.set_clock(at(5))
    await streaming.minutely()
    await streaming.minutely()
    assert [int(event.id) for event in await read_all(tenant)] == [int(first.id) + n for n in range(3)]


async def test_a_reader_that_comes_too_late_learns_that_it_missed_events(
    streaming: World, tenant: TenantContext, connection: asyncpg.Connection
) -> None:
    await streaming.minutely()
    (seen,) = await read_all(tenant)
    await streaming.minutely()
    assert len(await read_all(tenant)) == 2
    assert await events.drop_days(streaming.pool, at(11 * 60)) == 0  # this day is not over yet
    assert await events.drop_days(streaming.pool, at(48 * 60)) == 1
    await streaming.set_clock(at(30 * 60))
    await connection.execute("SELECT add_day(($1::timestamptz AT TIME ZONE 'UTC')::date)", at(30 * 60))
    await streaming.minutely()
    lost, new = await read_all(tenant, seen.id)
    assert lost.type == "evertick.events.lost"
    assert lost.data.after == seen.id
    assert types_of([new]) == ["job.created"]
    assert len(await read_all(tenant, lost.id)) == 1
    assert types_of(await read_all(tenant)) == ["job.created"]  # one that begins here has missed nothing


async def test_a_reader_learns_of_a_day_that_is_dropped_while_it_reads(streaming: World, tenant: TenantContext) -> None:
    await streaming.minutely()
    (seen,) = await read_all(tenant)
    await streaming.minutely()
    assert len(await read_all(tenant)) == 2
    dropped: list[int] = []

    async def drop_before(run: Run, _: Mapping[str, Any]) -> Any:
        if not dropped:
            dropped.append(await events.drop_days(streaming.pool, at(48 * 60)))
        return await run()

    reading = replace(tenant, pool=hooked(streaming.pool, "events.page", drop_before))
    page = await read(reading, after=position_of(seen.id))
    assert dropped == [1]
    assert types_of(page.events) == ["events.lost"]


async def test_a_search_for_rare_types_reads_so_many_events_and_goes_on_after_them(
    streaming: World, tenant: TenantContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_events, "MAX_LOOKED_AT", 2)
    for _ in range(5):
        await streaming.minutely()
    last = await streaming.minutely()
    await pause(tenant, last.job_id)
    every = await read_all(tenant)
    first = await read(tenant, types=[EventType.JOB_PAUSED])
    assert (first.events, first.cursor, first.is_last) == ([], int(every[1].id), False)
    pages = [first]
    while not pages[-1].is_last:
        pages.append(await read(tenant, after=pages[-1].cursor, types=[EventType.JOB_PAUSED]))
    assert [event.id for page in pages for event in page.events] == [every[-1].id]


async def test_a_stream_that_was_off_for_a_while_says_so(streaming: World, tenant: TenantContext) -> None:
    await streaming.minutely()
    (seen,) = await read_all(tenant)
    await remove_stream(tenant)
    with pytest.raises(EventStreamNotFound):
        await get_stream(tenant)
    await streaming.minutely(name="untold")
    await streaming.set_clock(at(3))
    other = streaming.tenant(1)
    await put_stream(other, ON)
    (lost,) = await read_all(tenant, seen.id)  # though nothing had a position meanwhile
    assert (lost.type, lost.data.after) == ("evertick.events.lost", seen.id)
    await streaming.minutely(name="told")
    assert [event.data.job_name for event in await read_all(tenant, lost.id)] == ["told"]


async def test_entries_of_the_audit_log_are_events_for_those_who_may_read_it(
    streaming: World, tenant: TenantContext, pool: Pool
) -> None:
    await audit.record(pool, AuditRecord(1, "key_1", "pause_job", "job_1", "r1"))
    (entry,) = await read_all(tenant)
    assert (entry.type, entry.data.actor, entry.data.action) == ("evertick.audit.recorded", "key_1", "pause_job")
    assert (await read(tenant, types=PUBLIC)).events == []


async def test_a_gap_that_is_forgotten_is_an_event(streaming: World, tenant: TenantContext) -> None:
    """The clocks will jump over the first tick; then the schedule changes, and there is none to jump over."""
    year = at(0).year + 1
    last_sunday = max(day for day in range(25, 32) if date(year, 3, day).isoweekday() == 7)
    fields = {"schedule": f"30 2 {last_sunday} 3 *", "timezone": "Europe/Berlin", "dst_gap": "skip"}
    job = await create(tenant, {**fields, "start_at": f"{year}-01-01T00:00:00Z", "target": WORKER})
    created = await read_all(tenant)
    assert types_of(created) == ["job.created", "gap.recorded"]
    await edit(tenant, job.job_id, {"schedule": f"0 12 {last_sunday} 3 *"})
    removed = [event for event in await read_all(tenant) if event.type == "evertick.gap.removed"]
    assert [event.data for event in removed] == [created[1].data]


async def test_types_have_the_words_of_the_database(connection: asyncpg.Connection) -> None:
    words = await connection.fetch("SELECT unnest(enum_range(NULL::event_type))::text AS word")
    assert [row["word"] for row in words] == [*STORED]
    assert set(EventType) - set(STORED) == {EventType.EVENTS_LOST}
