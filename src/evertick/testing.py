"""Runs an app on a virtual clock: a test advances time by a day in seconds and checks which jobs ran.

Database, scheduler and worker are real. Only the clock of the database is virtual: it is a row that the test updates.
Nothing happens between two due times, so the clock jumps from one to the next. It does not move while handlers run, and
their timeouts are real seconds.
"""

import atexit
import functools
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from evertick.contract.annotations import MAX_PER_PAGE
from evertick.domain.errors import EvertickError, InvalidInput
from evertick.domain.states import RunReason, RunStatus
from evertick.roles.scheduler import Scheduler
from evertick.roles.worker import DatabaseWorker
from evertick.runtime.clock import VirtualClock
from evertick.sdk.app import App
from evertick.sdk.opened import LoopThread, refuse_on_loop
from evertick.sdk.registering import every_item, register
from evertick.store.database import Session, connect
from evertick.store.engine.timers import Timer
from evertick.store.location import Location
from evertick.store.migrate import create_database, drop_database, migrate
from evertick.store.server.embedded import EmbeddedServer
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.reading import get as get_job
from evertick.usecases.runs.reading import tenant_runs
from evertick.usecases.tenants.admission import TenantAdmission

__all__ = ["ClockRefused", "Ran", "SyncVirtualTime", "VirtualTime", "virtual", "virtual_sync"]

LEASE_TIME = timedelta(days=1)
"""Longer than any step of the clock: no lease expires while its handler runs."""
MAX_ROUNDS = 10_000
"""How often work may become due at one instant before the test fails: a handler submits without end."""
MAX_LEAPT = 1_000
"""With more timers due at once, all partitions are read, as a scheduler does it."""
UNREAD_RUNS = 1_000
"""After so many runs it is read how full the queues are: fewer than a queue holds."""
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "'64MB'", "synchronous_commit": "off"}
_LEAP = """
WITH next AS (
    SELECT min(due_at) AS due_at FROM timers WHERE due_at < 'infinity'
),
leap AS (
    UPDATE virtual_clock SET now_at = greatest(now_at, next.due_at) FROM next WHERE next.due_at <= $1 RETURNING now_at
)
SELECT leap.now_at, due.job_id, due.kind::text, due.fire_at, due.due_at, due.tenant_id, due.rule_id, due.priority,
       due.queue_id
  FROM leap
 CROSS JOIN LATERAL (
           SELECT *
             FROM timers
            WHERE due_at <= leap.now_at
              AND NOT (kind = 'queued' AND EXISTS (
                           SELECT FROM timers first
                            WHERE first.partition = timers.partition AND first.job_id = timers.job_id
                              AND first.kind = 'queued' AND first.fire_at < timers.fire_at))
            LIMIT $2
       ) AS due
"""
"""To the next due time up to an instant, and the timers due then; of queued runs the first. Index: virtual_due."""
_ONE_PARTITION = """
DO $$
DECLARE
    part regclass;
BEGIN
    FOR part IN SELECT inhrelid FROM pg_inherits
                 WHERE inhparent IN ('timers'::regclass, 'attempts'::regclass, 'outcomes'::regclass) LOOP
        EXECUTE format('DROP TABLE %s', part);
    END LOOP;
    CREATE TABLE timers_0 PARTITION OF timers FOR VALUES WITH (MODULUS 1, REMAINDER 0) WITH (fillfactor = 70);
    ALTER TABLE timers_0 ALTER COLUMN partition SET (n_distinct = 1);
    CREATE TABLE attempts_virtual PARTITION OF attempts FOR VALUES FROM (MINVALUE) TO (MAXVALUE);
    CREATE TABLE outcomes_virtual PARTITION OF outcomes FOR VALUES FROM (MINVALUE) TO (MAXVALUE);
END $$
"""
"""Most of what a statement costs for one tick is the set-up of its plan, which has a scan for each partition."""
_numbers = itertools.count(1)


class ClockRefused(EvertickError):  # noqa: N818 - says what is wrong
    """The clock of a database with real jobs must not be virtual."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run, with the state of its latest attempt."""

    name: str
    run_id: str
    fire_at: datetime
    started_at: datetime | None
    status: RunStatus
    attempt: int
    reason: RunReason
    error: str | None


class VirtualTime:
    """The clock of a test. `virtual` makes one."""

    def __init__(
        self, clock: VirtualClock, session: Session, scheduler: Scheduler, worker: DatabaseWorker, tenant: TenantContext
    ) -> None:
        self._clock = clock
        self._session = session
        self._scheduler = scheduler
        self._worker = worker
        self._tenant = tenant
        self._names: dict[str, str] = {}
        self._runs: list[Ran] = []
        self._unread = 0
        self._has_gates = False

    @property
    def now(self) -> datetime:
        return self._clock.now_at

    def runs(self, name: str | None = None) -> list[Ran]:
        """The runs so far, of one job or of all, in the order of their fire times."""
        return [run for run in self._runs if name in {None, run.name}]

    async def advance(self, span: timedelta | None = None, **units: float) -> None:
        """Advance the clock: `advance(hours=3)`, or by a timedelta."""
        await self.to(self.now + (span or timedelta()) + timedelta(**units))

    async def to(self, target: datetime) -> None:
        """Advance the clock to an instant, and run everything that becomes due, each at its due time."""
        if target.utcoffset() is None:
            raise InvalidInput("target", "needs a zone, as in datetime(2026, 3, 1, tzinfo=UTC)")
        if target < self.now:
            raise InvalidInput("target", f"{target} is past: it is {self.now}")
        await self._work_all()
        rounds = 0
        while due := await self._session.fetch(_LEAP, target, MAX_LEAPT + 1):
            now_at = due[0]["now_at"]
            rounds = 0 if now_at > self.now else rounds + 1
            if rounds > MAX_ROUNDS:
                raise RuntimeError(f"at {self.now} there is still work due after {MAX_ROUNDS} rounds")
            self._clock.now_at = now_at
            if len(due) > MAX_LEAPT or self._unread > UNREAD_RUNS:
                await self._work_all()
            else:
                await self._work([Timer._make(row[1:]) for row in due])
        await self.set_clock(target.astimezone(UTC))
        await self._read_runs()

    async def set_clock(self, now_at: datetime) -> None:
        """Set the clock without running anything."""
        await self._session.execute("UPDATE virtual_clock SET now_at = $1", now_at)
        self._clock.now_at = now_at

    async def _work(self, due: Sequence[Timer]) -> None:
        """Run what is due. Nothing else is looked at: most of the time of a tick goes into looking."""
        before = self._scheduler.firing.counters.fired
        lanes = await self._scheduler.fire_timers(due)
        fired = self._scheduler.firing.counters.fired - before
        self._unread += fired
        self._has_gates = self._has_gates or self._scheduler.gates.is_noted
        leased = await self._worker.work_off(fired, lanes) if lanes else 0
        if leased < fired or self._has_gates or self._scheduler.backpressure.parked:
            await self._work_all()

    async def _work_all(self) -> None:
        """Run all that is due or ready."""
        await self._scheduler.fire_due()
        self._unread = 0
        await self._worker.work_off()
        while await self._scheduler.gates.look(is_sweep=True):
            await self._worker.work_off()

    async def _read_runs(self) -> None:
        runs = every_item(lambda cursor: tenant_runs(self._tenant, limit=MAX_PER_PAGE, cursor=cursor))
        found = [
            Ran(
                await self._name(run.job_id),
                run.run_id,
                run.scheduled_at,
                run.started_at,
                RunStatus(run.status),
                run.attempt,
                RunReason(run.reason),
                run.error,
            )
            async for run in runs
        ]
        self._runs = sorted(found, key=lambda run: (run.fire_at, run.name))

    async def _name(self, job_id: str) -> str:
        if job_id not in self._names:
            self._names[job_id] = (await get_job(self._tenant, job_id)).name
        return self._names[job_id]


class SyncVirtualTime:
    """The clock of a test that is not async. `virtual_sync` makes one."""

    def __init__(self, time: VirtualTime, call: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._time = time
        self._call = call

    @property
    def now(self) -> datetime:
        return self._time.now

    def runs(self, name: str | None = None) -> list[Ran]:
        """The runs so far, of one job or of all, in the order of their fire times."""
        return self._time.runs(name)

    def advance(self, span: timedelta | None = None, **units: float) -> None:
        """Advance the clock: `advance(hours=3)`, or by a timedelta."""
        self._call(self._time.advance(span, **units))

    def to(self, target: datetime) -> None:
        """Advance the clock to an instant, and run everything that becomes due, each at its due time."""
        self._call(self._time.to(target))


@asynccontextmanager
async def virtual(app: App, start: datetime, *, database_url: str | None = None) -> AsyncIterator[VirtualTime]:
    """The app on a virtual clock that starts at `start`.

    By default it uses a new database on an embedded server. `database_url` names an empty database instead.
    """
    if start.utcoffset() is None:
        raise InvalidInput("start", "needs a zone, as in datetime(2026, 3, 1, tzinfo=UTC)")
    async with _database(database_url) as url:
        location = Location(url, schema=app.settings().database_schema)
        session = await connect(location)
        try:
            await _make_virtual(session, location.schema, start)
            async with app.redirected(url), _running(app, location, session, start.astimezone(UTC)) as time:
                yield time
        finally:
            await session.close()


@contextmanager
def virtual_sync(app: App, start: datetime, *, database_url: str | None = None) -> Iterator[SyncVirtualTime]:
    """`virtual` for sync code: scheduler, worker and async handlers run on an event loop in a thread of its own."""
    refuse_on_loop("use `async with virtual(...)`")
    thread = LoopThread()
    try:
        context = virtual(app, start, database_url=database_url)
        time = thread.call(context.__aenter__())
        try:
            yield SyncVirtualTime(time, thread.call)
        finally:
            thread.call(context.__aexit__(None, None, None))
    finally:
        thread.close()


@asynccontextmanager
async def _running(app: App, location: Location, session: Session, start: datetime) -> AsyncIterator[VirtualTime]:
    clock = VirtualClock(start)
    tenant = (await app.connection()).tenant
    scheduler = Scheduler(location, "virtual", clock=clock)
    worker = DatabaseWorker(
        location,
        app.declarations.handlers,
        queues=(app.queue,),
        tenant_id=tenant.tenant_id,
        concurrency=app.worker_options.concurrency,
        threads=app.worker_options.threads,
        lease_time=LEASE_TIME,
        clock=clock,
    )
    time = VirtualTime(clock, session, scheduler, worker, tenant)
    await time.set_clock(start)
    await register(tenant, TenantAdmission(tenant), app.name, app.declarations)
    await scheduler.open()
    await scheduler.join()
    await worker.open()
    try:
        yield time
    finally:
        await worker.close()
        await scheduler.close()


async def _make_virtual(session: Session, schema: str, start: datetime) -> None:
    is_virtual = await session.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{schema}.virtual_clock")
    if is_virtual:
        await session.execute(f'DROP SCHEMA "{schema}" CASCADE')  # left by an earlier test
    await migrate(session)
    if await session.fetchval("SELECT EXISTS (SELECT FROM jobs)"):
        raise ClockRefused("the database has jobs: a virtual clock needs an empty database")
    async with session.transaction():
        await session.execute("CREATE TABLE virtual_clock (now_at timestamptz NOT NULL)")
        await session.execute("INSERT INTO virtual_clock VALUES ($1)", start)
        await session.execute(_ONE_PARTITION)
        await session.execute("CREATE INDEX virtual_due ON timers (due_at)")
        await session.execute(
            # Not in SQL: such a function that reads a table is planned anew in each statement.
            "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE"
            " AS 'BEGIN RETURN (SELECT now_at FROM virtual_clock); END'"
        )


@asynccontextmanager
async def _database(url: str | None) -> AsyncIterator[str]:
    if url is not None:
        yield url
        return
    server = _server()
    name = f"virtual_{next(_numbers)}"
    yield await create_database(server.url, name)
    await drop_database(server.url, name)


@functools.cache
def _server() -> EmbeddedServer:
    """One embedded server for all tests of this process."""
    directory = Path(tempfile.mkdtemp(prefix="evertick-virtual-"))
    directory.chmod(0o711)  # started by root, the server runs as another user, which needs access
    server = EmbeddedServer(directory, _SETTINGS)
    server.start()
    atexit.register(_remove, server)
    return server


def _remove(server: EmbeddedServer) -> None:
    server.stop()
    shutil.rmtree(server.data_dir, ignore_errors=True)
