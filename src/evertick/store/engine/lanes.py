"""Lanes and leases: how ready attempts reach workers and dispatchers."""

import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick import tzdb
from evertick.domain.attempt import Token
from evertick.domain.idempotency import KeySubject, default_key, render
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.checks import cached_template
from evertick.domain.rate_bucket import Rate, rate_of
from evertick.metrics.catalog import REFUSED
from evertick.store import statements
from evertick.store.database import Session
from evertick.store.engine.outcomes import TokenRow
from evertick.store.statements import Connection, columns
from evertick.store.tenants.secrets import Sealed
from evertick.store.tenants.tenants import TenantLimits


class Leased(NamedTuple):
    """An attempt to run, with all that running it needs. `is_over`: it was cancelled while it waited.

    `is_listed`: its run has a row in open_runs, which its ending removes. `deferrals`: how often it was put back.
    """

    lane_id: int
    seq: int
    lease_id: int
    job_id: int
    fire_at: datetime
    due_at: datetime
    spec_version: int
    reason: str
    attempt: int
    name: str
    handler: str | None
    timezone: str
    key_template: str | None
    timeout_seconds: int
    retry: str
    payload: str | None
    spec: str | None
    replays_at: datetime | None
    is_over: bool
    is_listed: bool = True
    tenant_id: int = 0
    deferrals: int = 0
    trace_parent: str | None = None

    @property
    def token(self) -> Token:
        return self.lane_id, self.seq

    @property
    def idempotency_key(self) -> str:
        """Equal in all attempts of the run, and in a replay of it."""
        job_id, fire_at = format_id(Prefix.JOB, self.job_id), self.replays_at or self.fire_at
        if not self.key_template:
            return default_key(job_id, fire_at)
        return render(
            cached_template(self.key_template), KeySubject(job_id, self.name, tzdb.load(self.timezone)), fire_at
        )


class LeasedRange(NamedTuple):
    """A lease on the attempts of one lane from one seq to another, of which there are so many at most."""

    lease_id: int
    lane_id: int
    first_seq: int
    last_seq: int
    most: int
    deferrals: int = 0


class PutBack(NamedTuple):
    """An attempt that was never started, and waits for so long to be leased again. `handler`: '' for HTTP."""

    lane_id: int
    seq: int
    handler: str
    delay: timedelta = timedelta(0)
    deferrals: int = 0


NO_CAP = 2**31 - 1
MAX_DEFERRALS = 32_000
"""The count stops here."""


class QueueWithWork(NamedTuple):
    """A queue that has something for a dispatcher to lease, its tenant's limits, and its sealed secrets, if any."""

    queue_id: int
    tenant_id: int
    name: str
    weight: int
    http_timeout_max_seconds: int
    is_capped: bool
    rate_limit: float | None
    rate_burst: int | None
    current: bytes | None
    previous: bytes | None
    rotated_at: datetime | None

    def __repr__(self) -> str:
        return f"QueueWithWork(queue_id={self.queue_id}, tenant_id={self.tenant_id})"

    @property
    def rate(self) -> Rate | None:
        return None if self.rate_limit is None else rate_of(self.rate_limit, self.rate_burst)

    @property
    def limits(self) -> TenantLimits:
        return TenantLimits(self.tenant_id, self.weight, self.http_timeout_max_seconds)

    @property
    def sealed(self) -> Sealed | None:
        if self.current is None or self.rotated_at is None:
            return None
        return Sealed(self.tenant_id, self.current, self.previous, self.rotated_at)


class QueueCaps(NamedTuple):
    """How many attempts of a queue, and of its tenant in all queues, may run at once."""

    queue_id: int
    tenant_id: int
    max_running: int
    running_quota: int
    has_work: bool

    @property
    def is_capped(self) -> bool:
        return min(self.max_running, self.running_quota) < NO_CAP


class QueueRunning(NamedTuple):
    queue_id: int
    tenant_id: int
    running: int


class _ReadyCount(NamedTuple):
    queue_id: int
    attempts: int


class _RangeRow(NamedTuple):
    lease_id: int
    lane_id: int
    first_seq: int
    last_seq: int


class _FreeLease(NamedTuple):
    range: _RangeRow
    deferrals: int


_SQL = statements.load("lanes")
_LEASE = _SQL["lease"].rows(_RangeRow)
_DISPATCHED_QUEUES = _SQL["dispatched_queues"].rows(QueueWithWork)
_COUNT_READY = _SQL["count_ready"].rows(_ReadyCount)
_LOCK_CAPS = _SQL["lock_caps"].rows(QueueCaps)
_RUNNING = _SQL["running"].rows(QueueRunning)
_LEASE_BY_QUEUE = _SQL["lease_by_queue"].rows(_RangeRow)
_LEASE_FREE = _SQL["lease_free"].rows(_FreeLease)
_PUT_BACK = _SQL["put_back"].rows(TokenRow)
_MARK_STARTED = _SQL["mark_started"].rows(TokenRow)
_LEASED = _SQL["leased"].rows(Leased)
_EXTEND = _SQL["extend"].values(int)
_ENDED_ELSEWHERE = _SQL["ended_elsewhere"].rows(TokenRow)
_CLOCK = _SQL["clock"].values(datetime)


def new_ids() -> int:
    """The first id of the leases that a statement makes. Random, so that no id is given out twice."""
    return secrets.randbits(62)


def lane_id_of(queue_id: int, partition: int, priority: int, *, is_gated: bool = False) -> int:
    """A lane's id: its queue, its partition in 8 bits, whether it has gates in 1, its priority in 2.

    In SQL the function of the same name.
    """
    return queue_id << 11 | partition << 3 | is_gated << 2 | priority


def is_gated(lane_id: int) -> bool:
    """Whether attempts of the lane wait at gates before they are ready."""
    return bool(lane_id & 4)


def queue_of(lane_id: int) -> int:
    return lane_id >> 11


def partition_of(lane_id: int) -> int:
    return (lane_id >> 3) & 255


async def lease(  # noqa: PLR0913 - from where, how much, for which worker
    connection: Connection,
    queue_ids: Sequence[int],
    worker: str,
    *,
    lanes: int,
    most_per_lane: int,
    rotation: int,
    lease_time: timedelta,
    tenant_id: int | None,
    only: Collection[int] | None = None,
    first_priority: int = 0,
) -> list[LeasedRange]:
    """Lease ranges of lanes of a tenant's queues, or of any tenant's. `read` returns the attempts in them."""
    rows = await _LEASE.all(
        connection,
        queue_ids=queue_ids,
        worker=worker,
        lanes=lanes,
        most_per_lane=most_per_lane,
        rotation=rotation,
        first_priority=first_priority,
        only=None if only is None else list(set(only)),  # one that is named twice would be leased twice
        lease_seconds=lease_time.total_seconds(),
        tenant_id=tenant_id,
        first_lease_id=new_ids(),
    )
    return [LeasedRange(*row, most=most_per_lane) for row in rows]


async def dispatched_queues(connection: Connection, *, after: int, most: int) -> list[QueueWithWork]:
    """The next queues that have something for a dispatcher to lease, in the order of their ids."""
    return await _DISPATCHED_QUEUES.all(connection, after=after, most=most)


async def count_ready(
    connection: Connection, most: Mapping[int, int], handlers: Sequence[str] | None, tenant_id: int | None
) -> dict[int, int]:
    """How many attempts these queues have to lease, of these handlers or of any, counted up to `most` of each.

    Those that have none are left out, as are another tenant's if `tenant_id` is given.
    """
    given = {"queue_ids": list(most), "most": list(most.values()), "handlers": handlers, "tenant_id": tenant_id}
    return dict(await _COUNT_READY.all(connection, **given))


class CappedRooms(NamedTuple):
    """How many attempts each queue may give. `is_cut`: there are queues whose cap another session has locked."""

    rooms: dict[int, int]
    is_cut: bool


async def lock_rooms(session: Session, rooms: Mapping[int, int], tenant_id: int | None) -> CappedRooms:
    """Of each queue how many attempts may be leased in this transaction: as many as asked for, and as its caps leave.

    A queue whose cap another session has locked is left out, as is another tenant's if `tenant_id` is given. The first
    queues of a tenant get what its cap leaves: pass them in an order that changes.
    """
    return await _rooms(session, rooms, tenant_id, is_locking=True)


async def estimate_rooms(connection: Connection, rooms: Mapping[int, int], tenant_id: int | None) -> dict[int, int]:
    """As `lock_rooms`, without any locks: what others lease meanwhile does not count."""
    return (await _rooms(connection, rooms, tenant_id, is_locking=False)).rooms


async def _rooms(
    connection: Connection, rooms: Mapping[int, int], tenant_id: int | None, *, is_locking: bool
) -> CappedRooms:
    given = {"queue_ids": list(rooms), "tenant_id": tenant_id, "is_locking": is_locking}
    caps = {each.queue_id: each for each in await _LOCK_CAPS.all(connection, **given)}
    capped = {each.tenant_id for each in caps.values() if each.is_capped and each.has_work}
    running = await _RUNNING.all(connection, tenant_ids=list(capped)) if capped else []
    of_queue = {each.queue_id: each.running for each in running}
    of_tenant: Counter[int] = Counter()
    for each in running:
        of_tenant[each.tenant_id] += each.running
    left: dict[int, int] = {}
    for queue_id, asked in rooms.items():
        cap = caps.get(queue_id)
        if cap is None or not cap.has_work:
            continue
        room = min(asked, cap.max_running - of_queue.get(queue_id, 0), cap.running_quota - of_tenant[cap.tenant_id])
        if room > 0:
            left[queue_id] = room
            of_tenant[cap.tenant_id] += room
    return CappedRooms(left, is_cut=len(caps) < len(rooms))


async def lease_by_queue(  # noqa: PLR0913 - from where, how much, for which worker
    connection: Connection,
    rooms: Mapping[int, int],
    worker: str,
    *,
    lanes: int,
    most: int,
    most_per_lane: int,
    rotation: int,
    lease_time: timedelta,
    only: Collection[int] | None = None,
    first_priority: int = 0,
) -> list[LeasedRange]:
    """Lease ranges of lanes of any tenants' queues, from each queue about as many attempts as it has room."""
    rows = await _LEASE_BY_QUEUE.all(
        connection,
        queue_ids=list(rooms),
        rooms=list(rooms.values()),
        worker=worker,
        lanes=lanes,
        most_lanes=lanes + len(rooms),
        most=most,
        most_per_lane=most_per_lane,
        rotation=rotation,
        first_priority=first_priority,
        only=None if only is None else list(set(only)),  # one that is named twice would be leased twice
        lease_seconds=lease_time.total_seconds(),
        first_lease_id=new_ids(),
    )
    return [LeasedRange(*row, most=most_per_lane) for row in rows]


async def lease_free(  # noqa: PLR0913 - from where, how much, for which worker
    connection: Connection,
    queue_ids: Sequence[int],
    handlers: Sequence[str] | None,
    worker: str,
    *,
    most: int,
    lease_time: timedelta,
    tenant_id: int | None,
    rooms: Sequence[int] | None = None,
) -> list[LeasedRange]:
    """Lease attempts that were put back and are ready, of these handlers; None: of any.

    `rooms`: how many each of the queues may give.
    """
    rows = await _LEASE_FREE.all(
        connection,
        queue_ids=queue_ids,
        rooms=rooms,
        handlers=handlers,
        worker=worker,
        most=most,
        lease_seconds=lease_time.total_seconds(),
        tenant_id=tenant_id,
        first_lease_id=new_ids(),
    )
    return [LeasedRange(*row.range, most=1, deferrals=row.deferrals) for row in rows]


async def put_back(connection: Connection, holder: str, attempts: Sequence[PutBack]) -> set[Token]:
    """Let others lease attempts that were never started. Returns those that are not the holder's, or are over."""
    rows = await _PUT_BACK.all(
        connection,
        holder=holder,
        lane_ids=[each.lane_id for each in attempts],
        seqs=[each.seq for each in attempts],
        handlers=[each.handler for each in attempts],
        delays=[each.delay.total_seconds() for each in attempts],
        deferrals=[min(each.deferrals, MAX_DEFERRALS) for each in attempts],
        first_lease_id=new_ids(),
    )
    REFUSED.add(len(rows), "lease")
    return set(rows)


async def mark_started(connection: Connection, worker: str, attempts: Sequence[tuple[int, int]]) -> set[Token]:
    """Note that these (lease, seq) are about to start. Only those that are returned (lane, seq) may be started."""
    return set(await _MARK_STARTED.all(connection, worker=worker, **columns(("lease_ids", "seqs"), attempts)))


async def read(connection: Connection, ranges: Sequence[LeasedRange]) -> list[Leased]:
    """The attempts in ranges that were just leased."""
    if not ranges:
        return []
    lease_ids, lane_ids, first_seqs, last_seqs, most, deferrals = zip(*ranges, strict=True)
    return await _LEASED.all(
        connection,
        lease_ids=lease_ids,
        lane_ids=lane_ids,
        first_seqs=first_seqs,
        last_seqs=last_seqs,
        most_per_lane=max(most),
        deferrals=deferrals,
    )


async def extend(
    connection: Connection,
    worker: str,
    lease_time: timedelta,
    lease_ids: Sequence[int] | None = None,
    running: Sequence[tuple[int, int, datetime]] = (),
) -> set[int]:
    """Extend those of these leases that are still the worker's, or all that are, and return which.

    `running`: attempts that run (lease, seq), and since when.
    """
    extended = await _EXTEND.all(
        connection,
        worker=worker,
        lease_seconds=lease_time.total_seconds(),
        lease_ids=lease_ids,
        **columns(("running_leases", "running_seqs", "started_ats"), running),
    )
    return set(extended)


async def note_progress(connection: Connection, worker: str, texts: Mapping[Token, str]) -> None:
    """How far attempts (lane, seq) are that run in a worker's leases: of each lease these texts and no others."""
    rows = [(*token, text) for token, text in texts.items()]
    await _SQL["note_progress"].execute(connection, worker=worker, **columns(("lane_ids", "seqs", "texts"), rows))


async def ended_elsewhere(connection: Connection, tokens: Sequence[Token]) -> Sequence[Token]:
    """Which of these running attempts (lane, seq) have an outcome already: cancelled, or lost to their worker."""
    return await _ENDED_ELSEWHERE.all(connection, **columns(("lane_ids", "seqs"), tokens))


async def clock(connection: Connection) -> datetime:
    """The database's time."""
    return await _CLOCK.one(connection)
