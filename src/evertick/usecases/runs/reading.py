"""Reading runs: a job's with its gaps, a tenant's, and one with its attempts.

The lists are filtered by a run's status, which follows from several tables. So a page reads slices until it is full or
has read `MAX_READ` entries; then it is short, and its cursor continues from there.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from msgspec.structs import asdict

from evertick.contract.runs import Run, RunDetail, RunOrGap
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import MAX_ID, RunKey, format_token, parse_run_id, parse_token
from evertick.domain.schedule.instants import SECOND_US, from_us, to_us
from evertick.domain.states import GapReason, GapStatus, RunStatus
from evertick.runtime.run_views import attempt_of, gap_of, run_of
from evertick.store.jobs import jobs, runs
from evertick.store.jobs.runs import FireTimeRange, GapRow, Walk
from evertick.store.statements import Connection
from evertick.usecases.context import Page, TenantContext, checked_cursor, checked_limit, job_key
from evertick.usecases.errors import JobNotFound, RunNotFound

DEFAULT_PER_PAGE = 20
SLICE = 500
MAX_READ = 10_000
"""The most entries that one page reads when it looks for a rare status."""

EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, tzinfo=UTC)

_RANKS = {reason: rank for rank, reason in enumerate(GapReason, start=1)}
_P = TypeVar("_P")
_E = TypeVar("_E", bound=RunOrGap)


class _Position(NamedTuple):
    """A position in a job's history: at one instant the run comes first, then gaps by reason."""

    at_us: int
    rank: int


class _AttemptPosition(NamedTuple):
    """A position in a tenant's runs: an attempt's. The list began at `walk_seq`, and leaves out what came after."""

    lane_id: int
    seq: int
    walk_seq: int


async def job_runs(  # noqa: PLR0913 - as many filters as there are
    tenant: TenantContext,
    job_id: str,
    *,
    limit: int = DEFAULT_PER_PAGE,
    cursor: str | None = None,
    status: RunStatus | GapStatus | None = None,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
) -> Page[RunOrGap]:
    """A job's runs and gaps, newest first, of the fire times from `from_at` on and before `to_at`."""
    key = job_key(job_id)
    after = None if cursor is None else checked_cursor(cursor, _read_position)
    if not await jobs.owned(tenant.pool, tenant.tenant_id, key):
        raise JobNotFound(job_id)

    async def slice_of(after: _Position | None, most: int) -> list[tuple[_Position, RunOrGap]]:
        found: list[tuple[_Position, RunOrGap]] = []
        if not isinstance(status, GapStatus):
            before_at = _earlier(to_at, None if after is None else from_us(after.at_us))
            rows = await runs.of_job(tenant.pool, key, _fire_times(from_at, before_at), most)
            found += [(_Position(to_us(row.fire_at), 0), run_of(row)) for row in rows]
        if not isinstance(status, RunStatus):
            # Others of the instant where the page before ended may be left.
            before_at = _earlier(to_at, None if after is None else from_us(after.at_us + 1))
            gaps = await runs.gaps(tenant.pool, key, _fire_times(from_at, before_at), most + len(_RANKS))
            found += _gaps_after(after, gaps)
        return sorted(found, key=lambda item: (-item[0].at_us, item[0].rank))[:most]

    return await _filled(slice_of, after, lambda at: f"{at.at_us}.{at.rank}", status, checked_limit(limit))


async def tenant_runs(  # noqa: PLR0913 - as many filters as there are
    tenant: TenantContext,
    *,
    limit: int = DEFAULT_PER_PAGE,
    cursor: str | None = None,
    status: RunStatus | None = None,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
) -> Page[Run]:
    """Runs of all jobs of the tenant that were attempted, the latest attempted first."""
    start = None if cursor is None else checked_cursor(cursor, _read_attempt_position)
    fire_times = _fire_times(from_at, to_at or LATEST)

    async def slice_of(after: _AttemptPosition | None, most: int) -> list[tuple[_AttemptPosition, Run | None]]:
        walk = Walk(MAX_ID, 0, None) if after is None else Walk(after.seq, after.lane_id, after.walk_seq)
        found = await runs.of_tenant(tenant.pool, tenant.tenant_id, fire_times, walk, most)
        began = found[0].place_seq if walk.walk_seq is None and found else walk.walk_seq or 0
        return [
            (_AttemptPosition(each.place_lane, each.place_seq, began), None if each.is_elsewhere else run_of(each.run))
            for each in found
        ]

    return await _filled(slice_of, start, _write_attempt_position, status, checked_limit(limit))


async def get_run(tenant: TenantContext, run_id: str) -> RunDetail:
    """One run with its attempts, or RunNotFound."""
    key = run_key(run_id)
    if not await jobs.owned(tenant.pool, tenant.tenant_id, key.job_id):
        raise RunNotFound(run_id)
    rows = await run_rows(tenant.pool, key)
    if not rows:
        raise RunNotFound(run_id)
    attempts = tuple(attempt_of(row) for row in rows if row.run.seq is not None)
    return RunDetail(**asdict(run_of(rows[-1].run)), attempts=attempts)


def run_key(run_id: str) -> RunKey:
    """What a public run id names; one that cannot be an id names no run."""
    try:
        return parse_run_id(run_id)
    except InvalidInput:
        raise RunNotFound(run_id) from None


async def run_rows(connection: Connection, key: RunKey) -> list[runs.AttemptRow]:
    return await runs.attempts(connection, key.job_id, from_us(key.fire_at_us), _from_seq(key.fire_at_us))


async def _filled(
    slice_of: Callable[[_P | None, int], Awaitable[Sequence[tuple[_P, _E | None]]]],
    after: _P | None,
    write: Callable[[_P], str],
    status: RunStatus | GapStatus | None,
    limit: int,
) -> Page[_E]:
    """A page out of as many slices as it takes; a None in a slice has a position and no entry."""
    most = limit + 1 if status is None else SLICE
    found: list[_E] = []
    for _ in range(0, MAX_READ, most):
        items = await slice_of(after, most)
        for number, (at, entry) in enumerate(items, start=1):
            if entry is not None and status in {None, entry.status}:
                found.append(entry)
            if len(found) == limit:
                is_end = number == len(items) < most
                return Page(tuple(found), None if is_end else write(at))
        if len(items) < most:
            return Page(tuple(found), None)
        after = items[-1][0]
    assert after is not None
    return Page(tuple(found), write(after))


def _gaps_after(after: _Position | None, rows: Sequence[GapRow]) -> Iterator[tuple[_Position, RunOrGap]]:
    for row in rows:
        at = _Position(to_us(row.first_at), _RANKS[GapReason(row.reason)])
        if after is None or at.at_us < after.at_us or at.rank > after.rank:
            yield at, gap_of(row)


def _fire_times(from_at: datetime | None, before_at: datetime) -> FireTimeRange:
    return FireTimeRange(from_at or EARLIEST, before_at, 0 if from_at is None else _from_seq(to_us(from_at)))


def _from_seq(fire_at_us: int) -> int:
    # An attempt is never before its fire time. A manual run may be a little after the clock, though.
    return max(0, fire_at_us - SECOND_US)


def _earlier(one: datetime | None, other: datetime | None) -> datetime:
    return min(one or LATEST, other or LATEST)


def _read_position(text: str) -> _Position:
    at_us, rank = text.split(".")
    from_us(int(at_us))
    return _Position(int(at_us), int(rank))


def _write_attempt_position(at: _AttemptPosition) -> str:
    return f"{format_token(at.lane_id, at.seq)}.{at.walk_seq}"


def _read_attempt_position(text: str) -> _AttemptPosition:
    token, _, walk_seq = text.rpartition(".")
    lane_id, seq = parse_token(token)
    return _AttemptPosition(lane_id, seq, parse_token(f"{lane_id}.{walk_seq}").seq)
