"""Dead letters: runs without attempts left, until they are replayed or dismissed."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple

from evertick.contract.runs import DeadLetter, LetterFilter, Replaying
from evertick.domain.ids import MAX_ID, Prefix, format_id, format_run_id, parse_run_id
from evertick.domain.retry import GiveUpReason
from evertick.domain.schedule.instants import from_us, to_us
from evertick.store.database import Session
from evertick.store.engine import lanes
from evertick.store.jobs import runs
from evertick.store.jobs.runs import LetterRange, LetterRow, ReplayedRun, ReplayRate
from evertick.usecases.context import (
    DEFAULT_PER_PAGE,
    Page,
    TenantContext,
    checked_cursor,
    checked_limit,
    job_key,
    page_of,
)
from evertick.usecases.errors import LetterNotFound
from evertick.usecases.runs.reading import EARLIEST, LATEST, run_key

BATCH_SIZE = 1000
"""Letters in one statement."""
MAX_SHOWN = 1000
MAX_REPLAYS = 100_000
"""Runs in one transaction."""


class Replayed(NamedTuple):
    """The runs that dead letters have become; `has_more`: others are left for another request.

    `admitted` is how many were allowed to: some of them may have lost their jobs.
    """

    runs: list[ReplayedRun]
    has_more: bool
    admitted: int

    @property
    def run_ids(self) -> list[str]:
        """In the order in which they are due."""
        ordered = sorted(self.runs, key=lambda run: run.due_at)
        return [format_run_id(run.job_id, to_us(run.fire_at)) for run in ordered]

    @property
    def last_due_at(self) -> datetime | None:
        return max((run.due_at for run in self.runs), default=None)

    def replaying(self, most: int = MAX_SHOWN) -> Replaying:
        """The same as the API answers it, with the ids of the first runs."""
        return Replaying(
            replayed=len(self.runs),
            run_ids=tuple(self.run_ids[:most]),
            last_due_at=self.last_due_at,
            has_more=self.has_more,
        )


class _Position(NamedTuple):
    died_at: datetime
    job_id: int
    fire_at: datetime


async def list_letters(
    tenant: TenantContext, *, job_id: str | None = None, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[DeadLetter]:
    """The tenant's dead letters, or a job's, those that died last first."""
    most = checked_limit(limit)
    before = _Position(LATEST, MAX_ID, LATEST) if cursor is None else checked_cursor(cursor, _read_position)
    key = None if job_id is None else job_key(job_id)
    rows = await runs.dead_letters_page(
        tenant.pool, tenant.tenant_id, LetterRange(EARLIEST, *before, job_id=key, of_live_jobs=False), most + 1
    )
    found = page_of(rows, most, _write_position)
    return Page(tuple(map(_letter_of, found.items)), found.next)


async def _admit_all(wanted: int) -> int:
    return wanted


async def replay_letters(
    tenant: TenantContext,
    chosen: LetterFilter,
    rate_per_second: float,
    admitted: Callable[[int], Awaitable[int]] = _admit_all,
    given_back: Callable[[int], None] = lambda _: None,
) -> Replayed:
    """Replay the dead letters of jobs that still exist, the newest first, so many each second.

    Each stores a payload and becomes a run as if it were submitted: `admitted` returns how many more of so many may be,
    and `given_back` is called with those of a transaction that was undone.
    All runs are made in one transaction: each has a timer that is due at its turn.
    """
    key = None if chosen.job_id is None else job_key(chosen.job_id)
    before = _Position(chosen.died_before or LATEST, -1, EARLIEST)
    wanted = LetterRange(chosen.died_from or EARLIEST, *before, job_id=key, of_live_jobs=True)
    pace = ReplayRate(await lanes.clock(tenant.pool), 1 / rate_per_second)

    async def work(connection: Session) -> Replayed:
        total = 0

        async def drawn(count: int) -> int:
            nonlocal total
            total += (more := await admitted(count))
            return more

        try:
            return await _replay(connection, tenant.tenant_id, wanted, pace, drawn)
        except BaseException:
            given_back(total)
            raise

    replayed = await tenant.in_transaction(work)
    tenant.notify(sorted({each.job_id for each in replayed.runs}))
    return replayed


async def _replay(
    connection: Session,
    tenant_id: int,
    wanted: LetterRange,
    pace: ReplayRate,
    admitted: Callable[[int], Awaitable[int]],
) -> Replayed:
    """In batches. A replayed letter is not in the next batch; one that could not be is, under another number."""
    done: list[ReplayedRun] = []
    tried = 0
    while rows := await runs.dead_letters_page(connection, tenant_id, wanted, BATCH_SIZE):
        found = len(rows)
        del rows[await admitted(found) if tried < MAX_REPLAYS else 0 :]
        # In one statement after the other: a deletion of a job at this moment ends first, and is visible.
        live = await runs.lock_jobs(connection, tenant_id, {row.job_id for row in rows})
        letters = [(row.job_id, row.fire_at, number) for number, row in enumerate(rows, tried) if row.job_id in live]
        done += await runs.replay_dead_letters(connection, tenant_id, letters, pace)
        tried += len(rows)
        if len(rows) < found:
            return Replayed(done, has_more=True, admitted=tried)
    return Replayed(done, has_more=False, admitted=tried)


async def dismiss(tenant: TenantContext, run_id: str) -> None:
    """Remove a dead letter; its run stays in the history."""
    key = run_key(run_id)
    if await runs.take_dead_letter(tenant.pool, tenant.tenant_id, key.job_id, from_us(key.fire_at_us)) is None:
        raise LetterNotFound(run_id)


def _letter_of(row: LetterRow) -> DeadLetter:
    return DeadLetter(
        run_id=format_run_id(row.job_id, to_us(row.fire_at)),
        job_id=format_id(Prefix.JOB, row.job_id),
        name=row.name,
        scheduled_at=row.fire_at,
        died_at=row.died_at,
        attempt=row.attempt,
        reason=GiveUpReason(row.reason),
        spec_version=row.spec_version,
        result_code=row.code,
        error=row.error,
    )


def _write_position(row: LetterRow) -> str:
    return f"{to_us(row.died_at)}.{format_run_id(row.job_id, to_us(row.fire_at))}"


def _read_position(text: str) -> _Position:
    died_us, _, run_id = text.partition(".")
    job_id, fire_us = parse_run_id(run_id)
    return _Position(from_us(int(died_us)), job_id, from_us(fire_us))
