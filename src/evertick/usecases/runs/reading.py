"""Reading runs: a job's with its gaps, a tenant's, and one with its attempts.

The lists are filtered by a run's status, which follows from several tables. So a page reads slices until it is full or
has read `MAX_READ` entries; then it is short, and its cursor continues from there. Where the archive is read too, a
slice has the entries of both in one order. The live ones are read first: a day that is dropped meanwhile is in both.
"""

import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import asdict

from evertick.contract.runs import Run, RunDetail, RunOrGap
from evertick.domain.archiving import NO_LIMIT_DAYS
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import MAX_ID, RunKey, format_token, parse_run_id, parse_token
from evertick.domain.schedule.instants import SECOND_US, from_us, to_us
from evertick.domain.states import GapReason, GapStatus, RunStatus
from evertick.runtime.run_views import attempt_of, gap_of, run_of
from evertick.store.engine import clock
from evertick.store.jobs import jobs, runs
from evertick.store.jobs.runs import FireTimeRange, GapRow, Walk
from evertick.store.statements import Connection
from evertick.usecases.context import Page, TenantContext, checked_cursor, checked_limit, job_key
from evertick.usecases.errors import JobNotFound, RunNotFound
from evertick.usecases.runs.archived import ArchivedRuns, gap_row, run_row, with_archived
from evertick.usecases.runs.views import runs_of

DEFAULT_PER_PAGE = 20
SLICE = 500
MAX_READ = 10_000
"""The most entries that one page reads when it looks for a rare status."""

EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 12, 31, tzinfo=UTC)

_LAST_RANK = 99
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


class _Slice(NamedTuple, Generic[_P, _E]):
    """A part of a list; a None has a position and no entry. `is_cut`: no more can be read for this page."""

    items: Sequence[tuple[_P, _E | None]]
    is_end: bool
    is_cut: bool = False


async def job_runs(  # noqa: PLR0913 - as many filters as there are
    tenant: TenantContext,
    job_id: str,
    *,
    limit: int = DEFAULT_PER_PAGE,
    cursor: str | None = None,
    status: RunStatus | GapStatus | None = None,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    archive: bool = False,
) -> Page[RunOrGap]:
    """A job's runs and gaps, newest first, of the fire times from `from_at` on and before `to_at`.

    `archive`: also those of days that were archived.
    """
    key = job_key(job_id)
    after = None if cursor is None else checked_cursor(cursor, _read_position)
    archived = ArchivedRuns(tenant) if archive else None
    is_known = await jobs.owned(tenant.pool, tenant.tenant_id, key)
    if not is_known and archived is None:
        raise JobNotFound(job_id)
    from_at = await _visible(tenant, from_at, archive=archive)

    history = _JobHistory(tenant, key, status, from_at, to_at, archived, is_known=is_known)
    page = await _filled(history.slice_of, after, lambda at: f"{at.at_us}.{at.rank}", status, checked_limit(limit))
    if not is_known and cursor is None and not page.items and page.next is None:
        raise JobNotFound(job_id)
    return page


@dataclass(frozen=True, slots=True)
class _JobHistory:
    """What a request wants of a job's runs and gaps. `is_known`: the database has the job."""

    tenant: TenantContext
    job_id: int
    status: RunStatus | GapStatus | None
    from_at: datetime | None
    to_at: datetime | None
    archived: ArchivedRuns | None
    is_known: bool

    async def slice_of(self, after: _Position | None, most: int) -> _Slice[_Position, RunOrGap]:
        found = await self._live(after, most) if self.is_known else []
        if self.archived is None:
            return _Slice(found, len(found) < most)
        # Older ones are not needed, if there are enough.
        from_at = self.from_at if len(found) < most else max(self.from_at or EARLIEST, from_us(found[-1][0].at_us))
        archived, cut_at = await self._archived(self.archived, after, from_at, most)
        # A run that was archived by two attempts is the later one.
        items = sorted((dict(sorted(archived, key=_attempt)) | dict(found)).items(), key=_in_order)
        complete = items if cut_at is None else [item for item in items if item[0].at_us > cut_at]
        if cut_at is not None and len(complete) < most:
            return _Slice([*complete, (_Position(cut_at + 1, _LAST_RANK), None)], is_end=False, is_cut=True)
        return _Slice(complete[:most], len(complete) < most)

    async def _live(self, after: _Position | None, most: int) -> list[tuple[_Position, RunOrGap]]:
        found: list[tuple[_Position, RunOrGap]] = []
        if not isinstance(self.status, GapStatus):
            rows = await runs.of_job(self.tenant.pool, self.job_id, self._runs_before(after, self.from_at), most)
            views = await runs_of(self.tenant, rows)
            found += [(_Position(to_us(run.scheduled_at), 0), run) for run in views]
        if not isinstance(self.status, RunStatus):
            fire_times = self._gaps_before(after, self.from_at)
            gaps = await runs.gaps(self.tenant.pool, self.job_id, fire_times, most + len(_RANKS))
            found += _gaps_after(after, gaps)
        return sorted(found, key=_in_order)[:most]

    async def _archived(
        self, archived: ArchivedRuns, after: _Position | None, from_at: datetime | None, most: int
    ) -> tuple[list[tuple[_Position, RunOrGap]], int | None]:
        """Archived runs and gaps, and at which instant they are cut, if they are."""
        found: list[tuple[_Position, RunOrGap]] = []
        cuts: list[int | None] = []
        if not isinstance(self.status, GapStatus):
            lines, cut_at = await archived.runs_of_job(self.job_id, self._runs_before(after, from_at), most)
            found += [(_Position(to_us(line.fire_at), 0), run_of(run_row(line))) for line in lines]
            cuts.append(cut_at)
        if not isinstance(self.status, RunStatus):
            fire_times = self._gaps_before(after, from_at)
            gaps, cut_at = await archived.gaps_of_job(self.job_id, fire_times, most + len(_RANKS))
            found += _gaps_after(after, [gap_row(line) for line in gaps])
            cuts.append(cut_at)
        return found, max((cut for cut in cuts if cut is not None), default=None)

    def _runs_before(self, after: _Position | None, from_at: datetime | None) -> FireTimeRange:
        return _fire_times(from_at, _earlier(self.to_at, None if after is None else from_us(after.at_us)))

    def _gaps_before(self, after: _Position | None, from_at: datetime | None) -> FireTimeRange:
        # Others of the instant where the page before ended may be left.
        return _fire_times(from_at, _earlier(self.to_at, None if after is None else from_us(after.at_us + 1)))


async def tenant_runs(  # noqa: PLR0913 - as many filters as there are
    tenant: TenantContext,
    *,
    limit: int = DEFAULT_PER_PAGE,
    cursor: str | None = None,
    status: RunStatus | None = None,
    from_at: datetime | None = None,
    to_at: datetime | None = None,
    archive: bool = False,
    within_seconds: float | None = None,
) -> Page[Run]:
    """Runs of all jobs of the tenant that were attempted, the latest attempted first; `archive`: as of `job_runs`.

    After `within_seconds`, a page looks no further: it may have few or none, though more follow.
    """
    start = None if cursor is None else checked_cursor(cursor, _read_attempt_position)
    archived = ArchivedRuns(tenant) if archive else None
    fire_times = _fire_times(await _visible(tenant, from_at, archive=archive), to_at or LATEST)

    async def slice_of(after: _AttemptPosition | None, most: int) -> _Slice[_AttemptPosition, Run]:
        walk = Walk(MAX_ID, 0, None) if after is None else Walk(after.seq, after.lane_id, after.walk_seq)
        found = await runs.of_tenant(tenant.pool, tenant.tenant_id, fire_times, walk, most)
        began = found[0].place_seq if walk.walk_seq is None and found else walk.walk_seq or 0
        views = await runs_of(tenant, [each.run for each in found])
        items = [
            (_AttemptPosition(each.place_lane, each.place_seq, began), None if each.is_elsewhere else run)
            for each, run in zip(found, views, strict=True)
        ]
        if archived is None:
            return _Slice(items, len(items) < most)
        down_to = 0 if len(found) < most else found[-1].place_seq
        lines, cut_at = await archived.newest(fire_times, down_to, (walk.before_seq, walk.before_lane), most)
        began = began or (lines[0].seq if lines else 0)
        entries: dict[_AttemptPosition, Run | None] = dict(items)
        for line in lines:
            entries.setdefault(_AttemptPosition(line.lane_id, line.seq, began), run_of(run_row(line)))
        merged = sorted(entries.items(), key=lambda item: (-item[0].seq, -item[0].lane_id))
        if cut_at is not None and len([at for at, _ in merged if at.seq > cut_at]) < most:
            complete = [item for item in merged if item[0].seq > cut_at]
            return _Slice([*complete, (_AttemptPosition(0, cut_at + 1, began), None)], is_end=False, is_cut=True)
        return _Slice(merged[:most], len(merged) < most)

    return await _filled(
        slice_of, start, _write_attempt_position, status, checked_limit(limit), within_seconds=within_seconds
    )


async def get_run(tenant: TenantContext, run_id: str, *, archive: bool = False) -> RunDetail:
    """One run with its attempts, or RunNotFound; `archive`: also those that were archived."""
    key = run_key(run_id)
    archived = ArchivedRuns(tenant) if archive else None
    is_known = await jobs.owned(tenant.pool, tenant.tenant_id, key.job_id)
    rows = await run_rows(tenant.pool, key) if is_known else []
    visible_at = await _visible(tenant, None, archive=archive)
    if visible_at is not None and from_us(key.fire_at_us) < visible_at:
        raise RunNotFound(run_id)
    if archived is not None:
        rows = with_archived(rows, await archived.attempts_of_run(key.job_id, from_us(key.fire_at_us)))
    if not rows:
        raise RunNotFound(run_id)
    attempts = tuple(attempt_of(row) for row in rows if row.run.seq is not None)
    (run,) = await runs_of(tenant, [rows[-1].run])
    output = rows[-1].output
    return RunDetail(**asdict(run), attempts=attempts, output=None if output is None else json.loads(output))


def run_key(run_id: str) -> RunKey:
    """What a public run id names; one that cannot be an id names no run."""
    try:
        return parse_run_id(run_id)
    except InvalidInput:
        raise RunNotFound(run_id) from None


async def run_rows(connection: Connection, key: RunKey) -> list[runs.AttemptRow]:
    return await runs.attempts(connection, key.job_id, from_us(key.fire_at_us), _from_seq(key.fire_at_us))


async def _filled(  # noqa: PLR0913 - of two kinds of lists
    slice_of: Callable[[_P | None, int], Awaitable[_Slice[_P, _E]]],
    after: _P | None,
    write: Callable[[_P], str],
    status: RunStatus | GapStatus | None,
    limit: int,
    *,
    within_seconds: float | None = None,
) -> Page[_E]:
    """A page out of as many slices as it takes, and as there is time for."""
    most = limit + 1 if status is None else SLICE
    found: list[_E] = []
    ends = math.inf if within_seconds is None else time.monotonic() + within_seconds
    for _ in range(0, MAX_READ, most):
        part = await slice_of(after, most)
        for number, (at, entry) in enumerate(part.items, start=1):
            if entry is not None and status in {None, entry.status}:
                found.append(entry)
            if len(found) == limit:
                is_end = part.is_end and number == len(part.items)
                return Page(tuple(found), None if is_end else write(at))
        if part.is_end:
            return Page(tuple(found), None)
        after = part.items[-1][0]
        if part.is_cut or time.monotonic() >= ends:
            break
    assert after is not None
    return Page(tuple(found), write(after))


def _in_order(item: tuple[_Position, object]) -> tuple[int, int]:
    return -item[0].at_us, item[0].rank


def _attempt(item: tuple[_Position, RunOrGap]) -> int:
    return item[1].attempt if isinstance(item[1], Run) else 0


async def _visible(tenant: TenantContext, from_at: datetime | None, *, archive: bool) -> datetime | None:
    """From when on a list may begin: not before the tenant's history does."""
    days = max(tenant.history_days, tenant.archive_days) if archive else tenant.history_days
    if days >= NO_LIMIT_DAYS:
        return from_at
    return max(from_at or EARLIEST, (await clock.marks(tenant.pool)).trusted_at - timedelta(days=days))


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
