"""Workers that pull: lease attempts of a tenant's queue, extend their leases, record their outcomes. Nothing is kept
between two calls, so any process may serve the next one.
"""

import asyncio
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from evertick.contract import patterns
from evertick.contract.target import DISPATCHED_QUEUES
from evertick.contract.workers import OutcomeReport, Recorded
from evertick.domain.attempt import Token
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.fairness import first_priority
from evertick.domain.ids import Prefix, format_token, parse_id, parse_token
from evertick.domain.limits import MAX_OUTPUT_BYTES
from evertick.domain.rate_bucket import Rate
from evertick.domain.retry import Ended, GiveUp, Retry
from evertick.domain.schedule.instants import from_us
from evertick.domain.states import Outcome
from evertick.executor.handlers.run import (
    ERROR_BYTES,
    EXCERPT_BYTES,
    Unkept,
    clean,
    excerpt_of,
    shown_progress,
    to_output,
)
from evertick.runtime import run_views
from evertick.runtime.queue_rates import QueueRates
from evertick.runtime.retry_decision import is_last_try, next_step
from evertick.store.database import Pool, Session
from evertick.store.engine import consumers, lanes, outcomes, pulls
from evertick.store.engine.lanes import Leased, PutBack, queue_of
from evertick.store.engine.outcomes import Ending
from evertick.store.engine.pulls import HeldAttempt, QueueAccess
from evertick.usecases.context import TenantContext

MAX_LANES = 32
_QUEUE = re.compile(patterns.QUEUE)
_WORKER = re.compile(patterns.WORKER_ID)
MAX_ROUNDS = 4
BUSY_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds to wait before each further try to record outcomes of locked runs."""
CONTENDED_PAUSES = (0.01, 0.02, 0.04, 0.08)
"""The same for a lease from a queue whose cap another worker's lease has locked: that takes milliseconds."""
NEVER = datetime.min.replace(tzinfo=UTC)


class LeasedAttempts(NamedTuple):
    """What a worker has leased, and when by the database's clock.

    `is_rated`: the queue has a rate. `wait_seconds`: there is work, and the rate allows it after so long.
    """

    attempts: list[Leased]
    now_at: datetime
    is_rated: bool = False
    wait_seconds: float | None = None


def check_queue(queue: str) -> None:
    """Refuse what names no queue that a worker may pull from."""
    if not _QUEUE.fullmatch(queue):
        raise InvalidInput("queue", "is no name of a queue")
    if queue in DISPATCHED_QUEUES:
        raise InvalidInput("queue", f"{queue!r} is for {queue} targets, which Evertick delivers itself")


async def queue_access(tenant: TenantContext, queue: str, key_id: str) -> QueueAccess:
    """Where a request with this API key may lease from, by what is true right now."""
    return await pulls.queue_access(tenant.pool, tenant.tenant_id, queue, parse_id(Prefix.API_KEY, key_id))


async def ended_keys(pool: Pool, keys: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those of these tenants' API keys that were revoked or have expired."""
    numbers = {(tenant_id, parse_id(Prefix.API_KEY, key_id)): (tenant_id, key_id) for tenant_id, key_id in keys}
    return {numbers[number] for number in await pulls.ended_keys(pool, list(numbers))}


async def lease(  # noqa: PLR0913 - from where, how much and for whom
    tenant: TenantContext,
    queue_id: int,
    worker_id: str,
    most: int,
    lease_time: timedelta,
    *,
    handlers: Collection[str] | None = None,
    is_capped: bool = False,
    rate: Rate | None = None,
    rates: QueueRates | None = None,
) -> LeasedAttempts:
    """Lease up to `most` attempts: what is free, before or after a little of many lanes and more of those that had it.

    Of these handlers only, if they are given: what is for others is put back for workers that have them.
    `is_capped`: in one transaction, and no more than the caps of the queue and the tenant leave. With a rate,
    no more than it allows now.
    """
    worker = _name(tenant, worker_id)
    if rate is None or rates is None:
        return await _lease_capped(tenant, queue_id, worker, most, lease_time, handlers, is_capped=is_capped)
    named = None if handlers is None else list(handlers)
    allowed, wait_seconds = await rates.take(
        *(tenant.pool, {queue_id: most}, {queue_id: rate}),
        capped=[queue_id] if is_capped else (),
        handlers=named,
        tenant_id=tenant.tenant_id,
    )
    unused = tokens = allowed.get(queue_id, 0)
    try:
        leased = await _lease_capped(tenant, queue_id, worker, tokens, lease_time, handlers, is_capped=is_capped)
        unused -= len(leased.attempts)
    finally:  # what was leased and is not known here is started by nobody
        rates.give_back(queue_id, unused)
    return leased._replace(is_rated=True, wait_seconds=wait_seconds)


async def _lease_capped(  # noqa: PLR0913, PLR0917 - as `lease`
    tenant: TenantContext,
    queue_id: int,
    worker: str,
    most: int,
    lease_time: timedelta,
    handlers: Collection[str] | None,
    *,
    is_capped: bool,
) -> LeasedAttempts:
    if is_capped and most:
        is_contended = False

        async def lease_capped(session: Session) -> LeasedAttempts:
            nonlocal is_contended
            rooms, is_contended = await lanes.lock_rooms(session, {queue_id: most}, tenant.tenant_id)
            return await _lease(
                replace(tenant, pool=session), queue_id, worker, rooms.get(queue_id, 0), lease_time, handlers
            )

        leased = await tenant.in_transaction(lease_capped)
        for pause in CONTENDED_PAUSES:
            if not is_contended:
                break
            await asyncio.sleep(pause)
            leased = await tenant.in_transaction(lease_capped)
        return leased
    return await _lease(tenant, queue_id, worker, most, lease_time, handlers)


async def _lease(  # noqa: PLR0913, PLR0917 - as `lease`
    tenant: TenantContext,
    queue_id: int,
    worker: str,
    most: int,
    lease_time: timedelta,
    handlers: Collection[str] | None,
) -> LeasedAttempts:
    if most <= 0:
        return LeasedAttempts([], NEVER)

    async def lease_free(room: int) -> list[Leased]:
        named = None if handlers is None else list(handlers)
        free = await lanes.lease_free(
            *(tenant.pool, [queue_id], named, worker), most=room, lease_time=lease_time, tenant_id=tenant.tenant_id
        )
        return await lanes.read(tenant.pool, free)

    # In turn: neither what was put back or let in by its key, nor what waits in lanes, is always last.
    is_free_first = random.random() < 0.5  # noqa: S311 - no secret
    taken = await lease_free(most) if is_free_first else []
    width = MAX_LANES
    for _ in range(MAX_ROUNDS):
        room = most - len(taken)
        width = min(width, room)
        if room <= 0:
            break
        ranges = await lanes.lease(
            tenant.pool,
            [queue_id],
            worker,
            lanes=width,
            most_per_lane=room // width,
            rotation=random.randrange(256),  # noqa: S311 - so that no lane is always last
            lease_time=lease_time,
            tenant_id=tenant.tenant_id,
            first_priority=first_priority(random.randrange(1 << 16)),  # noqa: S311 - requests know of no earlier ones
        )
        found = await lanes.read(tenant.pool, ranges)
        if not found:
            break
        own = found if handlers is None else [each for each in found if each.is_over or each.handler in handlers]
        if len(own) < len(found):
            kept = {(each.lane_id, each.seq) for each in own}
            await _put_back(tenant, worker, [each for each in found if (each.lane_id, each.seq) not in kept])
        taken += own
        width = len({each.lane_id for each in found})
    if not is_free_first and len(taken) < most:
        taken += await lease_free(most - len(taken))
    if not taken:
        return LeasedAttempts([], NEVER)
    started = await _mark_started(tenant, worker, [each for each in taken if not each.is_over])
    return LeasedAttempts(started, await lanes.clock(tenant.pool))


async def _mark_started(tenant: TenantContext, worker: str, leased: list[Leased]) -> list[Leased]:
    """Attempts that a worker leases count as started. The last attempt of a run is marked in its lease."""
    last = [each for each in leased if is_last_try(each.retry, each.attempt)]
    if not last:
        return leased
    kept = await lanes.mark_started(tenant.pool, worker, [(each.lease_id, each.seq) for each in last])
    gone = {(each.lane_id, each.seq) for each in last} - kept
    return [each for each in leased if (each.lane_id, each.seq) not in gone]


async def put_back(tenant: TenantContext, worker_id: str, leased: LeasedAttempts, rates: QueueRates) -> None:
    """Let others lease at once what a worker has leased when the answer to it is lost."""
    if leased.attempts:
        await _put_back(tenant, _name(tenant, worker_id), leased.attempts)
        if leased.is_rated:
            rates.give_back(queue_of(leased.attempts[0].lane_id), len(leased.attempts))


async def _put_back(tenant: TenantContext, worker: str, attempts: Sequence[Leased]) -> None:
    back = [PutBack(each.lane_id, each.seq, each.handler or "", deferrals=each.deferrals) for each in attempts]
    await lanes.put_back(tenant.pool, worker, back)
    await pulls.release(tenant.pool, worker, {each.lane_id for each in back})


async def heartbeat(
    tenant: TenantContext,
    worker_id: str,
    tokens: Sequence[str] | None,
    lease_time: timedelta,
    progress: Mapping[str, str] | None = None,
) -> list[str]:
    """Extend a worker's leases, and note how far its attempts are; returns the tokens of attempts that it should stop.

    Those were cancelled, or are among the given ones and not the worker's any more. What a consumer got from a broker
    is its own from its first heartbeat on, until the run's timeout. With tokens, only their leases are extended: a
    lease that the worker does not know of, because an answer was lost, must run out. None: all leases are extended, for
    no longer than their attempts may take.
    """
    worker = _name(tenant, worker_id)
    holds = [_token(token, f"/tokens/{number}") for number, token in enumerate(tokens or ())]
    if tokens is None:
        await pulls.extend_all(tenant.pool, worker, lease_time)
    elif lease_ids := await pulls.leases(tenant.pool, worker, holds):
        await lanes.extend(tenant.pool, worker, lease_time, lease_ids)
    if progress:
        texts = {_token(token, f"/progress/{token}"): shown_progress(text) for token, text in progress.items()}
        await lanes.note_progress(tenant.pool, worker, texts)
    stopped = set(await pulls.cancelled(tenant.pool, worker))
    if holds:
        lost = set(await pulls.lost(tenant.pool, worker, holds))
        if lost:
            lost -= await consumers.claim(tenant.pool, tenant.tenant_id, worker, sorted(lost), lease_time)
        stopped |= lost
    return [format_token(*token) for token in sorted(stopped)]


async def record(  # noqa: PLR0913 - of whom, and what it has an effect on
    tenant: TenantContext,
    worker_id: str,
    reports: Sequence[OutcomeReport],
    made_room: Callable[[Collection[int]], None],
    left: Callable[[Collection[int]], None],
    *,
    result_max_bytes: int = MAX_OUTPUT_BYTES,
) -> Recorded:
    """Record outcomes. The first one for an attempt counts, and only from the worker that holds it, or, if it was
    published to a broker and its outcome is to be reported, from any consumer while none holds it.

    `made_room` gets the queues with a cap of which more may run now, `left` the gates that runs have left. Results are
    kept up to `result_max_bytes`.
    """
    worker = _name(tenant, worker_id)
    first: dict[Token, OutcomeReport] = {}
    repeated: list[str] = []
    for number, each in enumerate(reports):
        if first.setdefault(_token(each.token, f"/outcomes/{number}/token"), each) is not each:
            repeated.append(each.token)
    held = await pulls.held(tenant.pool, tenant.tenant_id, worker, list(first))
    if others := [token for token in first if token not in held]:
        held |= await consumers.reportable(tenant.pool, tenant.tenant_id, worker, others)
    now_at = await lanes.clock(tenant.pool) if held else NEVER
    ended = [(held[token], report) for token, report in first.items() if token in held]
    endings = [_ending(mine, report, now_at, _came_to(report, result_max_bytes)) for mine, report in ended]
    stale = await _record(tenant, worker_id, endings, left)
    if held:
        await pulls.release(tenant.pool, worker, {lane_id for lane_id, _ in held})
    if reported := [token for token in others if token in held]:
        await consumers.release(tenant.pool, reported)
    if capped := {lanes.queue_of(each.lane_id) for each in held.values() if each.is_capped}:
        made_room(capped)
    if again := [ending.job_id for ending in endings if isinstance(ending.then, Retry)]:
        tenant.notify(again)
    lost = [report.token for token, report in first.items() if token not in held or token in stale]
    given_up = {(each.lane_id, each.seq) for each in endings if isinstance(each.then, GiveUp)}
    dead = tuple(format_token(*token) for token in given_up - stale)
    return Recorded(len(first) - len(lost), tuple(lost + repeated), dead)


async def _record(
    tenant: TenantContext, worker_id: str, endings: Sequence[Ending], left: Callable[[Collection[int]], None]
) -> set[Token]:
    """Record endings, those of locked runs several times; returns the stale ones."""
    stale, busy = await outcomes.record(tenant.pool, worker_id, endings, [], left=left)
    for pause in BUSY_PAUSES:
        if not busy:
            return stale
        await asyncio.sleep(pause)
        rest = [ending for ending in endings if (ending.lane_id, ending.seq) in busy]
        more, busy = await outcomes.record(tenant.pool, worker_id, rest, [], left=left)
        stale |= more
    if busy:
        raise TimeoutError("others have locked the runs of these attempts")
    return stale


def worker_name(tenant: TenantContext, worker: str | None) -> str | None:
    """A worker's name as its tenant gave it."""
    return run_views.worker_name(tenant.tenant_id, worker)


def _name(tenant: TenantContext, worker_id: str) -> str:
    """What the leases of a tenant's worker are held under: two tenants may choose the same name."""
    if not _WORKER.fullmatch(worker_id):
        raise InvalidInput("worker_id", "must be 1 to 128 letters, digits and . _ : @ -")
    return f"{tenant.tenant_id}/{worker_id}"


def _token(text: str, at: str) -> Token:
    try:
        return parse_token(text)
    except InvalidInput as refused:
        raise InvalidFields([Fault(at, refused.reason)]) from None


def _ending(
    held: HeldAttempt, report: OutcomeReport, now_at: datetime, came_to: tuple[str | None, str | None]
) -> Ending:
    seconds = report.retry_after_seconds
    retry_after = None if seconds is None else timedelta(seconds=seconds)
    ended = Ended(Outcome(report.result), held.attempt, report.retryable is not False, retry_after)
    started_at, finished_at = _times(report, from_us(held.seq), now_at)
    excerpt, output = came_to
    return Ending(
        held.lane_id,
        held.seq,
        held.job_id,
        held.fire_at,
        held.spec_version,
        held.reason,
        report.result,
        started_at,
        finished_at,
        error=None if report.error is None else _cut(report.error),
        excerpt=excerpt,
        output=output,
        then=next_step(held.retry, held.job_id, held.fire_at, ended),
        leased_at=held.leased_at,
    )


def _times(report: OutcomeReport, fired_at: datetime, now_at: datetime) -> tuple[datetime | None, datetime]:
    """When an attempt began and ended. Of a worker with a wrong clock only the duration counts.

    An attempt runs after it was fired (a `seq` is that instant) and before its end is told.
    """
    began, ended = report.started_at, report.finished_at or now_at
    longest = max(now_at - fired_at, timedelta(0))
    took = timedelta(0) if began is None else min(max(ended - began, timedelta(0)), longest)
    if ended > now_at or min(began or ended, ended) < fired_at:
        ended = now_at
    return None if began is None else max(min(fired_at, ended), ended - took), ended


def _came_to(report: OutcomeReport, max_bytes: int) -> tuple[str | None, str | None]:
    """What is kept of an output: its beginning, or all of it, or nothing. What a failed attempt tells is no result."""
    if not max_bytes and report.result == Outcome.SUCCESS:
        return None, None
    if report.output is None:
        return None if report.excerpt is None else _cut(report.excerpt, EXCERPT_BYTES), None
    try:
        return None, to_output(report.output, max_bytes)
    except Unkept:
        return excerpt_of(report.output), None


def _cut(text: str, most: int = ERROR_BYTES) -> str:
    return clean(text).encode()[:most].decode(errors="ignore")
