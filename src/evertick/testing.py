"""Runs an app on a virtual clock: a test fast-forwards a day in seconds and looks at what ran.

The database is real, and so is all that fires, leases and records; only its clock is a row that the test moves. Between
two due times nothing can happen, so time leaps from one to the next. Handlers really run; meanwhile the clock stands,
and their timeouts are real seconds.
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

from evertick.domain.errors import EvertickError, InvalidInput
from evertick.domain.states import RunReason, RunStatus
from evertick.roles.scheduler import Scheduler
from evertick.roles.worker import Worker
from evertick.runtime.clock import VirtualClock
from evertick.sdk.app import App
from evertick.sdk.process import register
from evertick.store import timers
from evertick.store.database import SCHEMA, Session, connect
from evertick.store.embedded import DATABASE, EmbeddedServer
from evertick.store.migrate import migrate
from evertick.usecases.context import MAX_PER_PAGE, Tenant
from evertick.usecases.jobs.reading import get as get_job
from evertick.usecases.runs.reading import tenant_runs

__all__ = ["ClockRefused", "Ran", "VirtualTime", "virtual"]

LEASE_TIME = timedelta(days=1)
"""Leases do not run out while the clock stands, however long a handler takes."""
MAX_ROUNDS = 10_000
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "'64MB'"}
_numbers = itertools.count(1)


class ClockRefused(EvertickError):  # noqa: N818 - says what is wrong
    """The clock of a database that holds real jobs is not to be moved."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that was attempted, by its latest attempt."""

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
        self, clock: VirtualClock, session: Session, scheduler: Scheduler, worker: Worker, tenant: Tenant
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
        """What ran so far, of one job or of all, in the order of their fire times."""
        return [run for run in self._runs if name in {None, run.name}]

    async def advance(self, span: timedelta | None = None, **units: float) -> None:
        """Let so much time pass: `advance(hours=3)`, or a timedelta."""
        await self.to(self.now + (span or timedelta()) + timedelta(**units))

    async def to(self, target: datetime) -> None:
        """Let time pass until an instant, and do all that falls due on the way, each at its time."""
        if target.utcoffset() is None:
            raise InvalidInput("target", "needs a zone, as in datetime(2026, 3, 1, tzinfo=UTC)")
        if target < self.now:
            raise InvalidInput("target", f"{target} is past: it is {self.now}")
        await self._work()
        rounds = 0
        while (due_at := await timers.next_due(self._session)) is not None and due_at <= target:
            rounds = 0 if due_at > self.now else rounds + 1
            if rounds > MAX_ROUNDS:
                raise RuntimeError(f"at {self.now} there is always something due, after {MAX_ROUNDS} rounds")
            await self._set(max(due_at, self.now))
            await self._work()
        await self._set(target.astimezone(UTC))
        await self._look()

    async def _set(self, now_at: datetime) -> None:
        # A firing may come just before midnight and its outcome after.
        for day in (now_at.date(), now_at.date() + timedelta(days=1)):
            if day not in self._days:
                await self._session.execute("SELECT add_day($1)", day)
                self._days.add(day)
        await self._session.execute("UPDATE virtual_clock SET now_at = $1", now_at)
        self._clock.now_at = now_at

    async def _work(self) -> None:
        await self._scheduler.fire_due()
        await self._worker.work_off()

    async def _look(self) -> None:
        found: list[Ran] = []
        cursor: str | None = None
        while True:
            page = await tenant_runs(self._tenant, limit=MAX_PER_PAGE, cursor=cursor)
            for run in page.items:
                name = await self._name(run.job_id)
                found.append(
                    Ran(
                        name,
                        run.run_id,
                        run.scheduled_at,
                        run.started_at,
                        RunStatus(run.status),
                        run.attempt,
                        RunReason(run.reason),
                        run.error,
                    )
                )
            cursor = page.next
            if cursor is None:
                break
        self._runs = sorted(found, key=lambda run: (run.fire_at, run.name))

    async def _name(self, job_id: str) -> str:
        if job_id not in self._names:
            self._names[job_id] = (await get_job(self._tenant, job_id)).name
        return self._names[job_id]


@asynccontextmanager
async def virtual(app: App, start: datetime, *, database_url: str | None = None) -> AsyncIterator[VirtualTime]:
    """The app on a clock that begins at `start` and moves only when told.

    By default in a database of its own on an embedded server for tests; `database_url` names an empty one instead.
    """
    if start.utcoffset() is None:
        raise InvalidInput("start", "needs a zone, as in datetime(2026, 3, 1, tzinfo=UTC)")
    async with _database(database_url) as url:
        session = await connect(url)
        try:
            await _make_virtual(session, start)
            async with app.redirected(url), _at_work(app, url, session, start.astimezone(UTC)) as time:
                yield time
        finally:
            await session.close()


@asynccontextmanager
async def _at_work(app: App, url: str, session: Session, start: datetime) -> AsyncIterator[VirtualTime]:
    clock = VirtualClock(start)
    tenant = (await app.link()).tenant
    scheduler = Scheduler(url, "virtual", clock=clock)
    worker = Worker(
        url,
        app.declarations.handlers,
        queues=(app.queue,),
        tenant_id=tenant.tenant_id,
        concurrency=app.shape.concurrency,
        threads=app.shape.threads,
        lease_time=LEASE_TIME,
        clock=clock,
    )
    time = VirtualTime(clock, session, scheduler, worker, tenant)
    await time._set(start)  # noqa: SLF001 - its maker
    await register(tenant, app.name, app.declarations)
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
        await session.execute(f"DROP SCHEMA {SCHEMA} CASCADE")  # of an earlier test
    await migrate(session)
    if await session.fetchval("SELECT EXISTS (SELECT FROM jobs)"):
        raise ClockRefused("the database has jobs: only the clock of an empty one can be made virtual")
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
    admin = await connect(server.url)
    try:
        await admin.execute(f"CREATE DATABASE {name}")
        yield server.url.replace(f"/{DATABASE}?", f"/{name}?")
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await admin.close()


@functools.cache
def _server() -> EmbeddedServer:
    """One server for all tests of this process."""
    directory = Path(tempfile.mkdtemp(prefix="evertick-virtual-"))
    directory.chmod(0o711)  # root's servers run as another user
    server = EmbeddedServer(directory, _SETTINGS)
    server.start()
    atexit.register(_remove, server)
    return server


def _remove(server: EmbeddedServer) -> None:
    server.stop()
    shutil.rmtree(server.data_dir, ignore_errors=True)
