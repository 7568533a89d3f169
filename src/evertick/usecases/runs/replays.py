"""Replays of many dead letters: started, read and cancelled here, worked off by janitors (`roles/janitor/replayer`)."""

from datetime import datetime

from evertick.contract.runs import LetterFilter, Replay, ReplayFilter, Replaying
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import MAX_ID, Prefix, format_id, parse_id
from evertick.domain.schedule.instants import from_us
from evertick.domain.states import ReplayStatus
from evertick.store.jobs import replays
from evertick.store.jobs.replays import NewReplay, ReplayRow, WantedLetters
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_cursor, checked_limit, page_of
from evertick.usecases.errors import ReplayFinished, ReplayNotFound, TooManyReplays
from evertick.usecases.runs.dead_letters import Replayed, wanted_letters

MAX_RUNNING = 100
"""Replays of a tenant at the same time: each takes a part of its rate."""
MAX_COUNTED = 10_000
"""Letters that a look at a replay compares with its filter."""


async def start(
    tenant: TenantContext,
    chosen: LetterFilter,
    rate_per_second: float,
    actor: str,
    *,
    start_at: datetime | None = None,
) -> str:
    """Start a replay of the dead letters that match, or begin one with the same filter again. Returns its id."""
    wanted = wanted_letters(chosen)
    found = await replays.restart(tenant.pool, tenant.tenant_id, wanted)
    if found is None:
        if await replays.count_running(tenant.pool, tenant.tenant_id) >= MAX_RUNNING:
            raise TooManyReplays(MAX_RUNNING)
        found = await replays.start(tenant.pool, tenant.tenant_id, NewReplay(wanted, rate_per_second, start_at, actor))
    return format_id(Prefix.REPLAY, found)


async def start_rest(
    tenant: TenantContext, replayed: Replayed, chosen: LetterFilter, rate_per_second: float, actor: str
) -> str | None:
    """Leave what a request could not replay to a replay, which goes on when its last run is due."""
    if not replayed.has_more:
        return None
    return await start(tenant, chosen, rate_per_second, actor, start_at=replayed.last_due_at)


def in_background(replay_id: str) -> Replaying:
    """The answer to a request that leaves everything to a replay."""
    return Replaying(replayed=0, run_ids=(), last_due_at=None, has_more=True, replay_id=replay_id)


async def list_replays(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[Replay]:
    """The tenant's replays, newest first."""
    most = checked_limit(limit)
    before = MAX_ID if cursor is None else checked_cursor(cursor, lambda text: parse_id(Prefix.REPLAY, text))
    rows = await replays.page(tenant.pool, tenant.tenant_id, before=before, most=most + 1)
    return page_of([_replay_of(row, None) for row in rows], most, lambda replay: replay.replay_id)


async def get(tenant: TenantContext, replay_id: str) -> Replay:
    """A replay, and how much is left of it."""
    row = await _row(tenant, replay_id)
    if row.status != ReplayStatus.RUNNING:
        return _replay_of(row, 0)
    left = await replays.scan(tenant.pool, tenant.tenant_id, row.wanted, row.reached, MAX_COUNTED)
    return _replay_of(row, sum(letter.is_wanted for letter in left))


async def cancel(tenant: TenantContext, replay_id: str) -> Replay:
    """End a replay. Runs that it has made stay; ReplayFinished if it is over."""
    row = await _row(tenant, replay_id)
    if not await replays.cancel(tenant.pool, tenant.tenant_id, row.replay_id):
        raise ReplayFinished(replay_id, ReplayStatus((await _row(tenant, replay_id)).status))
    return await get(tenant, replay_id)


async def _row(tenant: TenantContext, replay_id: str) -> ReplayRow:
    try:
        key = parse_id(Prefix.REPLAY, replay_id)
    except InvalidInput:
        raise ReplayNotFound(replay_id) from None
    rows = await replays.page(tenant.pool, tenant.tenant_id, before=MAX_ID, only=key, most=1)
    if not rows:
        raise ReplayNotFound(replay_id)
    return rows[0]


def _replay_of(row: ReplayRow, remaining: int | None) -> Replay:
    return Replay(
        replay_id=format_id(Prefix.REPLAY, row.replay_id),
        status=ReplayStatus(row.status),
        filter=_filter_of(row.wanted),
        rate_per_second=row.rate_per_second,
        replayed=row.replayed,
        looked_at=row.looked_at,
        remaining=remaining,
        created_at=row.created_at,
        created_by=row.actor,
        next_batch_at=row.next_batch_at if row.status == ReplayStatus.RUNNING else None,
        finished_at=row.finished_at,
    )


def _filter_of(wanted: WantedLetters) -> ReplayFilter:
    return ReplayFilter(
        job_id=None if wanted.job_id is None else format_id(Prefix.JOB, wanted.job_id),
        died_from=None if wanted.died_from == from_us(0) else wanted.died_from,
        died_before=wanted.died_before,
        queue=wanted.queue,
        error=wanted.error,
        label=wanted.label,
    )
