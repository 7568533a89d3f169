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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from evertick.contract.annotations import MAX_PER_PAGE
from evertick.domain.errors import EvertickError, InvalidInput
from evertick.domain.states import RunReason, RunStatus
from evertick.roles.scheduler import Scheduler
from evertick.roles.worker import DatabaseWorker
from evertick.runtime.clock import VirtualClock
from evertick.sdk.app import App
from evertick.sdk.process import every_item, register
from evertick.store.database import SCHEMA, Session, connect
from evertick.store.engine import timers
from evertick.store.migrate import create_database, drop_database, migrate
from evertick.store.server.embedded import EmbeddedServer
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.reading import get as get_job
from evertick.usecases.runs.reading import tenant_runs
from evertick.usecases.tenants.admission import TenantAdmission

__all__ = ["ClockRefused", "Ran", "VirtualTime", "virtual"]

LEASE_TIME = timedelta(days=1)
"""Longer than any step of the clock: no lease expires while its handler runs."""
MAX_ROUNDS = 10_000
"""How often work may become due at one instant before the test fails: a handler submits without end."""
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "'64MB'"}
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
        self._days: set[date] = set()
        self._names: dict[str, str] = {}
        self._runs: list[Ran] = []

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
        await self._work()
        rounds = 0
        while (due_at := await timers.next_due(self._session)) is not None and due_at <= target:
            rounds = 0 if due_at > self.now else rounds + 1
            if rounds > MAX_ROUNDS:
                raise RuntimeError(f"at {self.now} there is still work due after {MAX_ROUNDS} rounds")
            await self._set_clock(max(due_at, self.now))
            await self._work()
        await self._set_clock(target.astimezone(UTC))
        await self._read_runs()

    async def _set_clock(self, now_at: datetime) -> None:
        # A run may fire just before midnight and end after it.
        for day in (now_at.date(), now_at.date() + timedelta(days=1)):
            if day not in self._days:
                await self._session.execute("SELECT add_day($1)", day)
                self._days.add(day)
        await self._session.execute("UPDATE virtual_clock SET now_at = $1", now_at)
        self._clock.now_at = now_at

    async def _work(self) -> None:
        await self._scheduler.fire_due()
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


@asynccontextmanager
async def virtual(app: App, start: datetime, *, database_url: str | None = None) -> AsyncIterator[VirtualTime]:
    """The app on a virtual clock that starts at `start`.

    By default it uses a new database on an embedded server. `database_url` names an empty database instead.
    """
    if start.utcoffset() is None:
        raise InvalidInput("start", "needs a zone, as in datetime(2026, 3, 1, tzinfo=UTC)")
    async with _database(database_url) as url:
        session = await connect(url)
        try:
            await _make_virtual(session, start)
            async with app.redirected(url), _running(app, url, session, start.astimezone(UTC)) as time:
                yield time
        finally:
            await session.close()


@asynccontextmanager
async def _running(app: App, url: str, session: Session, start: datetime) -> AsyncIterator[VirtualTime]:
    clock = VirtualClock(start)
    tenant = (await app.connection()).tenant
    scheduler = Scheduler(url, "virtual", clock=clock)
    worker = DatabaseWorker(
        url,
        app.declarations.handlers,
        queues=(app.queue,),
        tenant_id=tenant.tenant_id,
        concurrency=app.worker_options.concurrency,
        threads=app.worker_options.threads,
        lease_time=LEASE_TIME,
        clock=clock,
    )
    time = VirtualTime(clock, session, scheduler, worker, tenant)
    await time._set_clock(start)  # noqa: SLF001 - the function that creates it
    await register(tenant, TenantAdmission(tenant), app.name, app.declarations)
    await scheduler.open()
    await scheduler.join()
    await worker.open()
    try:
        yield time
    finally:
        await worker.close()
        await scheduler.close()


async def _make_virtual(session: Session, start: datetime) -> None:
    is_virtual = await session.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{SCHEMA}.virtual_clock")
    if is_virtual:
        await session.execute(f"DROP SCHEMA {SCHEMA} CASCADE")  # left by an earlier test
    await migrate(session)
    if await session.fetchval("SELECT EXISTS (SELECT FROM jobs)"):
        raise ClockRefused("the database has jobs: a virtual clock needs an empty database")
    async with session.transaction():
        await session.execute("CREATE TABLE virtual_clock (now_at timestamptz NOT NULL)")
        await session.execute("INSERT INTO virtual_clock VALUES ($1)", start)
        await session.execute(
            "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
            " AS 'SELECT now_at FROM virtual_clock'"
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
