"""On whose behalf, and with what, use cases act."""

import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.schedule.schedule import SHORTEST_INTERVAL
from evertick.runtime import background
from evertick.store.database import Pool, Session, was_conflict
from evertick.usecases.references import ReferenceCache
from evertick.usecases.errors import JobNotFound

_T = TypeVar("_T")
_TRIES = 5
_COMPUTATIONS = 10
"""How often a transaction is begun anew because an answer was missing, or had expired when it was computed."""
_LONG_SECONDS = 1.5
"""A deadlock is found within a second; who has waited longer has waited for a lock, and might wait as long again."""

MAX_PER_PAGE = 200


def _nobody(_: Iterable[int]) -> None:
    """Wake nobody: polling finds new timers too."""


class Answer(NamedTuple, Generic[_T]):
    """What was computed about an instant. It holds for later ones too, before `until_at`; None: for all."""

    value: _T
    until_at: datetime | None = None


class NotComputed(Exception):  # noqa: N818 - a request, not an error
    """A transaction needs an answer that may take long. It ends, so that neither locks nor a connection wait."""

    def __init__(self, tenant_id: int, key: Hashable, work: Callable[[], Answer[Any]]) -> None:
        super().__init__()
        self.tenant_id = tenant_id
        self.key = key
        self.work = work


# What was computed for the transaction at hand, while it was not open. None: there is no transaction.
_answers: ContextVar[dict[Hashable, Answer[Any]] | None] = ContextVar("answers", default=None)


async def computed(
    tenant: "Tenant", key: Hashable, work: Callable[[], Answer[_T]], now_at: datetime | None = None
) -> _T:
    """Compute in the background thread. Within `again` that is done with no transaction open, before the next try.

    `key` has all that the answer depends on, but for the time: an answer that does not hold at `now_at` is not used.
    """
    answers = _answers.get()
    if answers is None:
        return (await background.run(tenant.tenant_id, work)).value
    found: Answer[_T] | None = answers.get(key)
    if found is None or (now_at is not None and found.until_at is not None and now_at >= found.until_at):
        raise NotComputed(tenant.tenant_id, key, work)
    return found.value


def forget_computed(key: Hashable) -> None:
    """Compute it anew next time."""
    (_answers.get() or {}).pop(key, None)


async def again(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do a transaction: again when something was computed that it needs, or when the server undid it because of others.

    Not for who has waited long for others. One within another leaves computing to that one.
    """
    return await computing(lambda: despite_others(work))


async def computing(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do work: again when something was computed that it needs. Whatever it holds it gives back meanwhile."""
    if _answers.get() is not None:
        return await work()
    answers: dict[Hashable, Answer[Any]] = {}
    token = _answers.set(answers)
    try:
        for _ in range(_COMPUTATIONS):
            try:
                return await work()
            except NotComputed as needed:
                answers[needed.key] = await background.run(needed.tenant_id, needed.work)
        raise background.TooBusy  # what it depends on changes faster than it can be computed
    finally:
        _answers.reset(token)


async def despite_others(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do a transaction: again when the server undid it because of others, unless it has waited long for them."""
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
    catalogue: ReferenceCache = field(default_factory=ReferenceCache)

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
    if not 1 <= limit <= MAX_PER_PAGE:
        raise InvalidInput("limit", f"must be from 1 to {MAX_PER_PAGE}")
    return limit


def checked_cursor(cursor: str, read: Callable[[str], _T]) -> _T:
    """What a cursor says; InvalidInput if it is none that a page gave."""
    try:
        return read(cursor)
    except ValueError:
        raise InvalidInput("cursor", "is none that an earlier page gave") from None
