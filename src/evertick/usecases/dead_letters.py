"""Dead letters: runs whose attempts are used up, until someone replays or dismisses them."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from evertick.domain.ids import MAX_ID, Prefix, format_id, format_run_id, parse_run_id
from evertick.domain.retry import GiveUpReason
from evertick.domain.schedule.instants import from_us, to_us
from evertick.store import dead_letters
from evertick.store.dead_letters import LetterRow, Slice
from evertick.usecases.context import Page, Tenant, checked_cursor, checked_limit, job_key
from evertick.usecases.errors import JobNotFound, LetterNotFound
from evertick.usecases.requests import replay_letter
from evertick.usecases.runs import EARLIEST, LATEST, run_key

DEFAULT_PER_PAGE = 50


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A run that failed for good. `result_code` and `error` are its last attempt's."""

    run_id: str
    job_id: str
    name: str
    scheduled_at: datetime
    died_at: datetime
    attempt: int
    reason: GiveUpReason
    spec_version: int
    result_code: int | None
    error: str | None


class Chosen(NamedTuple):
    """Which dead letters to replay: a job's, those that died from an instant on, or before one."""

    job_id: str | None = None
    died_from: datetime | None = None
    died_before: datetime | None = None


class _Position(NamedTuple):
    died_at: datetime
    job_id: int
    fire_at: datetime


async def list_letters(
    tenant: Tenant, *, job_id: str | None = None, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[DeadLetter]:
    """The tenant's dead letters, or a job's, those that died last first."""
    most = checked_limit(limit)
    before = _Position(LATEST, MAX_ID, LATEST) if cursor is None else checked_cursor(cursor, _read_position)
    key = None if job_id is None else job_key(job_id)
    rows = await dead_letters.page(
        tenant.pool, tenant.tenant_id, Slice(EARLIEST, *before, job_id=key, of_live_jobs=False), most + 1
    )
    return Page(tuple(map(_letter_of, rows[:most])), _write_position(rows[most - 1]) if len(rows) > most else None)


async def replay_letters(tenant: Tenant, chosen: Chosen, limit: int) -> list[str]:
    """Replay up to `limit` dead letters of jobs that still exist, the newest first; return the new runs' ids.

    Fewer than `limit` means that none are left. How fast is for the caller to say, by calling again.
    """
    before = _Position(chosen.died_before or LATEST, -1, EARLIEST)
    key = None if chosen.job_id is None else job_key(chosen.job_id)
    wanted = Slice(chosen.died_from or EARLIEST, *before, job_id=key, of_live_jobs=True)
    rows = await dead_letters.page(tenant.pool, tenant.tenant_id, wanted, limit)
    replayed: list[str] = []
    for row in rows:
        try:
            replayed.append(await replay_letter(tenant, format_run_id(row.job_id, to_us(row.fire_at))))
        except (LetterNotFound, JobNotFound):
            continue  # someone else settled it, or deleted its job, since the look
    return replayed


async def dismiss(tenant: Tenant, run_id: str) -> None:
    """Remove a dead letter; its run stays in the history."""
    key = run_key(run_id)
    if await dead_letters.take(tenant.pool, tenant.tenant_id, key.job_id, from_us(key.fire_at_us)) is None:
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
