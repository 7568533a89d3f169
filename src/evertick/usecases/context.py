"""On whose behalf, and with what, use cases act."""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.schedule.schedule import SHORTEST_INTERVAL
from evertick.store.database import Pool, Session, was_conflict
from evertick.usecases.catalogue import Catalogue
from evertick.usecases.errors import JobNotFound

_T = TypeVar("_T")
_TRIES = 5
_LONG_SECONDS = 1.5
"""A deadlock is found within a second; who has waited longer has waited for a lock, and might wait as long again."""

MOST_PER_PAGE = 200


def _nobody(_: Iterable[int]) -> None:
    """Wake nobody: polling finds new timers too."""


async def again(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do work, and again from the start when the server undid it because of others; not for who has waited long."""
    began = time.monotonic()
    for _ in range(_TRIES - 1):
        try:
            return await work()
        except Exception as error:
            if not was_conflict(error) or time.monotonic() - began > _LONG_SECONDS:
                raise
    return await work()


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant on one database.

    `fanout` is over how many partitions its jobs spread, `shortest` the least interval of its schedules. `notify` is
    told which jobs have new timers, after the commit. Tenants of one pool share a catalogue. In place of the pool,
    `joining.joined` puts the session of a transaction that several use cases take part in.
    """

    pool: Pool | Session
    tenant_id: int
    fanout: int = 1
    shortest: timedelta = SHORTEST_INTERVAL
    notify: Callable[[Iterable[int]], None] = _nobody
    catalogue: Catalogue = field(default_factory=Catalogue)

    async def transact(self, work: Callable[[Session], Awaitable[_T]]) -> _T:
        """Do work in one transaction; again from the start when the server undid it because of others."""
        return await again(lambda: self._once(work))

    async def _once(self, work: Callable[[Session], Awaitable[_T]]) -> _T:
        if not isinstance(self.pool, Pool):
            async with self.pool.transaction():  # a savepoint
                return await work(self.pool)
        async with self.pool.acquire() as connection, connection.transaction():
            return await work(connection)


@dataclass(frozen=True, slots=True)
class Page(Generic[_T]):
    """A part of a list. It may be short, even empty, and yet not the last: only a `next` of None ends the list."""

    items: tuple[_T, ...]
    next: str | None


def job_key(job_id: str) -> int:
    """The number in a public job id; one that cannot be an id names no job."""
    try:
        return parse_id(Prefix.JOB, job_id)
    except InvalidInput:
        raise JobNotFound(job_id) from None


def checked_limit(limit: int) -> int:
    if not 1 <= limit <= MOST_PER_PAGE:
        raise InvalidInput("limit", f"must be from 1 to {MOST_PER_PAGE}")
    return limit


def checked_cursor(cursor: str, read: Callable[[str], _T]) -> _T:
    """What a cursor says; InvalidInput if it is none that a page gave."""
    try:
        return read(cursor)
    except ValueError:
        raise InvalidInput("cursor", "is none that an earlier page gave") from None
