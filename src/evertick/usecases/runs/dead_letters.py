"""Dead letters: runs without attempts left, until they are replayed or dismissed. A request replays many at once; the
rest becomes a replay that janitors work off (`replays`).
"""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import NamedTuple, TypedDict, Unpack

from evertick.contract.runs import DeadLetter, LetterFilter, Replaying
from evertick.domain.ids import MAX_ID, Prefix, format_id, format_run_id, parse_run_id
from evertick.domain.retry import GiveUpReason
from evertick.domain.schedule.instants import from_us, to_us
from evertick.store.database import Session
from evertick.store.engine import lanes
from evertick.store.jobs import replays, runs
from evertick.store.jobs.replays import LetterPosition, ScannedLetter, WantedLetters
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
MAX_LISTED = 1000
"""Letters that a page of a list with filters looks at."""
MAX_GROUPED = 5_000
"""The newest letters, which are grouped by job and error."""
MAX_GROUPS = 50
MAX_LOOKED_AT = 100_000
"""Letters that one request compares with its filter."""


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

    def replaying(self, replay_id: str | None, most: int = MAX_SHOWN) -> Replaying:
        """The same as the API answers it, with the ids of the first runs and of the replay of the rest."""
        return Replaying(
            replayed=len(self.runs),
            run_ids=tuple(self.run_ids[:most]),
            last_due_at=self.last_due_at,
            has_more=self.has_more,
            replay_id=replay_id,
        )


class LetterGroup(NamedTuple):
    """Dead letters of one job with one error: the last line of it, which says most."""

    job_id: str
    name: str
    error: str
    letters: int
    first_died_at: datetime
    last_died_at: datetime


async def group_letters(tenant: TenantContext) -> list[LetterGroup]:
    """The largest groups among the tenant's newest dead letters."""
    rows = await runs.letter_groups(tenant.pool, tenant.tenant_id, MAX_GROUPED, MAX_GROUPS)
    return [LetterGroup(format_id(Prefix.JOB, row.job_id), *row[1:]) for row in rows]


class LetterFilters(TypedDict, total=False):
    """Which dead letters a list shows; without a filter, all."""

    job_id: str | None
    queue: str | None
    error: str | None
    label: str | None


async def list_letters(
    tenant: TenantContext,
    *,
    limit: int = DEFAULT_PER_PAGE,
    cursor: str | None = None,
    **filters: Unpack[LetterFilters],
) -> Page[DeadLetter]:
    """The tenant's dead letters, those that died last first.

    A page looks at a limited number of letters, so it may have few or none though more follow.
    """
    most = checked_limit(limit)
    before = LetterPosition(LATEST, MAX_ID, LATEST) if cursor is None else checked_cursor(cursor, _read_position)
    job_id = filters.get("job_id")
    key = None if job_id is None else job_key(job_id)
    wanted = LetterRange(EARLIEST, *before, key, filters.get("queue"), filters.get("error"), filters.get("label"))
    look = max(MAX_LISTED, most + 1) if wanted.queue or wanted.error or wanted.label else most + 1
    rows = await runs.dead_letters_page(tenant.pool, tenant.tenant_id, wanted, look)
    found = page_of([row for row in rows if row.is_wanted], most, _write_position)
    following = found.next or (_write_position(rows[-1]) if len(rows) == look else None)
    return Page(tuple(map(_letter_of, found.items)), following)


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
    wanted = wanted_letters(chosen)
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


def wanted_letters(chosen: LetterFilter) -> WantedLetters:
    key = None if chosen.job_id is None else job_key(chosen.job_id)
    return WantedLetters(
        chosen.died_from or from_us(0), chosen.died_before, key, chosen.queue, chosen.error, chosen.label
    )


async def _replay(
    connection: Session,
    tenant_id: int,
    wanted: WantedLetters,
    pace: ReplayRate,
    admitted: Callable[[int], Awaitable[int]],
) -> Replayed:
    """In batches, the newest letters first."""
    done: list[ReplayedRun] = []
    tried = looked_at = 0
    position = LetterPosition(wanted.died_before or LATEST, -1, EARLIEST)
    while scanned := await replays.scan(connection, tenant_id, wanted, position, BATCH_SIZE):
        letters = [letter for letter in scanned if letter.is_wanted]
        found = len(letters)
        del letters[await admitted(found) if tried < MAX_REPLAYS else 0 :]
        # In one statement after the other: a deletion of a job at this moment ends first, and is visible.
        is_deleted = await replays.wait_for_jobs(connection, tenant_id, {letter.job_id for letter in letters})
        live: list[ScannedLetter] = [letter for letter in letters if not is_deleted.get(letter.job_id, True)]
        done += await replays.replay(connection, tenant_id, live, pace, tried)
        tried += len(letters)
        looked_at += len(scanned)
        if len(letters) < found or (looked_at >= MAX_LOOKED_AT and len(scanned) == BATCH_SIZE):
            return Replayed(done, has_more=True, admitted=tried)
        position = scanned[-1].position
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


def _read_position(text: str) -> LetterPosition:
    died_us, _, run_id = text.partition(".")
    job_id, fire_us = parse_run_id(run_id)
    return LetterPosition(from_us(int(died_us)), job_id, from_us(fire_us))
