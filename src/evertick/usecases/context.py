"""The tenant that a use case acts for, with its database, also where several use cases share a transaction; pages,
cursors and ids that all use cases share.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Generic, TypeVar

from evertick.contract.annotations import MAX_PER_PAGE
from evertick.domain.archiving import NO_LIMIT_DAYS
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.schedule.schedule import SHORTEST_INTERVAL
from evertick.runtime.archive import Archive
from evertick.store.database import Pool, Session
from evertick.usecases.errors import JobNotFound
from evertick.usecases.references import ReferenceCache
from evertick.usecases.transactions import retry_transaction

_T = TypeVar("_T")
DEFAULT_PER_PAGE = 50


def _notify_nobody(_: Iterable[int]) -> None:
    """Send no wake-ups: polling finds new timers too."""


@dataclass(frozen=True, slots=True)
class TenantContext:
    """One tenant on one database.

    `shortest` is the least interval of its schedules, `default_jitter_seconds` the jitter of jobs that choose none.
    `history_days` and `archive_days` say how far back its history is listed; `archive`: where older runs are read.
    `trace_parent` is the trace context in which jobs are created and edited, and stays with their versions.
    `notify` gets the jobs that have new timers, after the commit. Tenants of one pool share a cache of references. In
    place of the pool, `unit_of_work` puts the session of a transaction that several use cases take part in.
    """

    pool: Pool | Session
    tenant_id: int
    shortest: timedelta = SHORTEST_INTERVAL
    notify: Callable[[Iterable[int]], None] = _notify_nobody
    references: ReferenceCache = field(default_factory=ReferenceCache)
    default_jitter_seconds: float = 0
    history_days: int = NO_LIMIT_DAYS
    archive_days: int = NO_LIMIT_DAYS
    archive: Archive | None = None
    trace_parent: str | None = None

    async def in_transaction(self, work: Callable[[Session], Awaitable[_T]]) -> _T:
        """Do work in one transaction; again from the start after a conflict with others (see `transactions`)."""
        return await retry_transaction(lambda: self._once(work))

    async def change_job(self, key: int, work: Callable[[Session], Awaitable[_T]]) -> _T:
        """Do work that may give a job new timers in one transaction, and notify about them after it."""
        done = await self.in_transaction(work)
        self.notify([key])
        return done

    async def _once(self, work: Callable[[Session], Awaitable[_T]]) -> _T:
        if not isinstance(self.pool, Pool):
            async with self.pool.transaction():  # a savepoint
                return await work(self.pool)
        async with self.pool.acquire() as connection, connection.transaction():
            return await work(connection)


@asynccontextmanager
async def unit_of_work(tenant: TenantContext) -> AsyncIterator[TenantContext]:
    """The tenant inside one transaction, which commits when the block ends without an error.

    Notifications of its use cases are sent after the commit: until then the changes may be undone.
    """
    changed: list[int] = []
    assert isinstance(tenant.pool, Pool)
    async with tenant.pool.acquire() as session, session.transaction():
        yield replace(tenant, pool=session, notify=changed.extend)
    if changed:
        tenant.notify(changed)


@asynccontextmanager
async def single_connection(tenant: TenantContext) -> AsyncIterator[TenantContext]:
    """The tenant on one connection, without a transaction around what it does."""
    assert isinstance(tenant.pool, Pool)
    async with tenant.pool.acquire() as session:
        yield replace(tenant, pool=session)


@dataclass(frozen=True, slots=True)
class Page(Generic[_T]):
    """A part of a list. It may be short, even empty, and yet not the last: only a `next` of None ends the list."""

    items: tuple[_T, ...]
    next: str | None


def page_of(items: Iterable[_T], limit: int, position: Callable[[_T], str]) -> Page[_T]:
    """A page of the first items. If more follow, its next one begins after the position of its last."""
    found = tuple(items)
    return Page(found[:limit], position(found[limit - 1]) if len(found) > limit else None)


def job_key(job_id: str) -> int:
    """The number in a public job id; one that cannot be an id names no job."""
    try:
        return parse_id(Prefix.JOB, job_id)
    except InvalidInput:
        raise JobNotFound(job_id) from None


def checked_limit(limit: int) -> int:
    if not 1 <= limit <= MAX_PER_PAGE:
        raise InvalidInput("limit", f"must be from 1 to {MAX_PER_PAGE}")
    return limit


def checked_cursor(cursor: str, read: Callable[[str], _T]) -> _T:
    """What a cursor says; InvalidInput if it is none that a page gave."""
    try:
        return read(cursor)
    except ValueError:
        raise InvalidInput("cursor", "is none that an earlier page gave") from None
