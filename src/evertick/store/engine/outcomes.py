"""Outcomes: how attempts end, and what follows. Called by workers, dispatchers and the reaper."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from evertick.domain.attempt import NotRecorded
from evertick.domain.retry import GiveUp, NextStep, Retry
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import Outcome
from evertick.metrics.catalog import DEAD_LETTERS_RECORDED, OUTCOMES, REAPED, REFUSED, RETRIES
from evertick.store import statements
from evertick.store.statements import Connection

_T = TypeVar("_T")


class TokenRow(NamedTuple):
    """A token as statements return it."""

    lane_id: int
    seq: int


_SUCCESS = Outcome.SUCCESS.value
_DEFERRED = Outcome.DEFERRED.value
_MILLISECOND = timedelta(milliseconds=1)
_MAX_HELD_MS = 2**31 - 1


class Ending(NamedTuple):
    """How one attempt ended. `then`: what follows it."""

    lane_id: int
    seq: int
    job_id: int
    fire_at: datetime
    spec_version: int
    reason: str
    result: str
    started_at: datetime | None
    finished_at: datetime
    code: int | None = None
    error: str | None = None
    excerpt: str | None = None
    output: str | None = None
    then: NextStep = None
    is_listed: bool = True
    """False: the run is known to have no row in open_runs."""
    leased_at: datetime | None = None

    @property
    def held_ms(self) -> int | None:
        """How long its worker had it before it started it; None: not known."""
        if self.leased_at is None or self.started_at is None:
            return None
        return min(max((self.started_at - self.leased_at) // _MILLISECOND, 0), _MAX_HELD_MS)


class LostAttempt(NamedTuple):
    """An open attempt in a lease that ran out; for a lease without any, `lane_id` and all after `deferrals` are None.

    `is_marked`: its start was noted. `handler`: '' for HTTP, None if its job is gone. `is_past_end`: its consumer
    had all the time that its run may take.
    """

    lease_id: int
    worker: str
    is_marked: bool
    deferrals: int
    lane_id: int | None
    seq: int
    job_id: int
    fire_at: datetime
    spec_version: int
    reason: str
    attempt: int
    retry: str
    handler: str | None
    is_listed: bool
    started_at: datetime | None
    is_past_end: bool


class _RecordedRow(NamedTuple):
    """An outcome that was not recorded, or a gate that a run has left."""

    lane_id: int | None
    seq: int | None
    is_busy: bool | None
    gate_id: int | None


class _TakenLease(NamedTuple):
    lease_id: int
    lane_id: int
    first_seq: int
    last_seq: int
    worker: str
    started: list[int] | None
    deferrals: int
    is_past_end: bool


class _OpenAttempt(NamedTuple):
    lease_id: int
    lane_id: int | None
    seq: int
    job_id: int
    fire_at: datetime
    spec_version: int
    reason: str
    attempt: int
    retry: str
    handler: str | None
    is_listed: bool
    started_at: datetime | None


_SQL = statements.load("outcomes")
_RECORD = _SQL["record"].rows(_RecordedRow)
_TAKE_OVER = _SQL["take_over"].rows(_TakenLease)
_OPEN_IN = _SQL["open_in"].rows(_OpenAttempt)


async def record(  # noqa: PLR0913 - what is recorded, for whom, and who learns of it
    connection: Connection,
    worker: str,
    endings: Sequence[Ending],
    done_leases: Sequence[int],
    *,
    holder: str | None = None,
    left: Callable[[Collection[int]], None] = lambda _: None,
) -> NotRecorded:
    """Record outcomes as `worker`, and release leases of `holder`, which is the worker unless given.

    `left` gets the gates that runs have left.
    """
    told = _told(endings)
    plain = endings
    if told:
        others = set(map(id, told))
        plain = [ending for ending in endings if id(ending) not in others]
    listed = [ending for ending in endings if ending.is_listed]
    following = [ending for ending in told if ending.then is not None]
    rows = await _RECORD.all(
        connection,
        worker=worker,
        holder=holder or worker,
        plain_lane_ids=[ending.lane_id for ending in plain],
        plain_seqs=[ending.seq for ending in plain],
        plain_started_us=_micros([ending.started_at for ending in plain if ending.started_at]),
        plain_finished_us=_micros([ending.finished_at for ending in plain]),
        plain_codes=_unless_all_none([ending.code for ending in plain]),
        plain_excerpts=_unless_all_none([ending.excerpt for ending in plain]),
        plain_held_ms=_unless_all_none(_held_ms(plain)),
        lane_ids=[ending.lane_id for ending in told],
        seqs=[ending.seq for ending in told],
        started_ats=[ending.started_at for ending in told],
        finished_ats=[ending.finished_at for ending in told],
        results=[ending.result for ending in told],
        codes=[ending.code for ending in told],
        finals=[not isinstance(ending.then, Retry) for ending in told],
        errors=[ending.error for ending in told],
        excerpts=[ending.excerpt for ending in told],
        outputs=[ending.output for ending in told],
        held_ms=[ending.held_ms for ending in told],
        listed_lane_ids=[ending.lane_id for ending in listed],
        listed_seqs=[ending.seq for ending in listed],
        listed_job_ids=[ending.job_id for ending in listed],
        listed_fire_ats=[ending.fire_at for ending in listed],
        **_following(following),
        done_leases=done_leases,
    )
    unrecorded = NotRecorded(set(), set())
    for row in rows:
        if row.lane_id is not None and row.seq is not None:
            (unrecorded.busy if row.is_busy else unrecorded.stale).add((row.lane_id, row.seq))
    _count(endings, told, unrecorded)
    if gate_ids := {row.gate_id for row in rows if row.gate_id is not None}:
        left(gate_ids)
    return unrecorded


def _told(endings: Sequence[Ending]) -> list[Ending]:
    """Those that are no successes, or have more to record than a code and an excerpt."""
    return [
        ending
        for ending in endings
        if ending.result != _SUCCESS
        or ending.then is not None
        or ending.started_at is None
        or ending.error is not None
        or ending.output is not None
    ]


def _held_ms(endings: Sequence[Ending]) -> list[int | None]:
    """How long each was held. Attempts that were leased and begun together share both objects."""
    found: list[int | None] = []
    leased_at = started_at = held_ms = None
    for ending in endings:
        if ending.started_at is not started_at or ending.leased_at is not leased_at:
            leased_at, started_at, held_ms = ending.leased_at, ending.started_at, ending.held_ms
        found.append(held_ms)
    return found


def _micros(instants: Sequence[datetime]) -> list[int]:
    """As microseconds. Attempts that began or ended together share the object."""
    found: list[int] = []
    last, last_us = None, 0
    for at in instants:
        if at is not last:
            last, last_us = at, to_us(at)
        found.append(last_us)
    return found


def _unless_all_none(values: list[_T]) -> list[_T]:
    """For an array beside longer ones, which is filled up with nulls."""
    return [] if values.count(None) == len(values) else values  # type: ignore[arg-type] # some may be None


def _count(endings: Sequence[Ending], told: Sequence[Ending], unrecorded: NotRecorded) -> None:
    """Count what was recorded. What is undone with its transaction counts too."""
    REFUSED.add(len(unrecorded.stale), "stale")
    if left := unrecorded.stale | unrecorded.busy:
        endings = [ending for ending in endings if (ending.lane_id, ending.seq) not in left]
        told = [ending for ending in told if (ending.lane_id, ending.seq) not in left]
    OUTCOMES.add(len(endings) - len(told), _SUCCESS)
    for result, count in Counter(ending.result for ending in told).items():
        OUTCOMES.add(count, result)
    DEAD_LETTERS_RECORDED.add(sum(isinstance(ending.then, GiveUp) for ending in told))
    RETRIES.add(sum(isinstance(ending.then, Retry) and ending.result != _DEFERRED for ending in told))


def _following(endings: Sequence[Ending]) -> dict[str, Sequence[object]]:
    """Retries and dead letters as columns."""
    return {
        "next_lane_ids": [ending.lane_id for ending in endings],
        "next_seqs": [ending.seq for ending in endings],
        "next_job_ids": [ending.job_id for ending in endings],
        "next_fire_ats": [ending.fire_at for ending in endings],
        "next_spec_versions": [ending.spec_version for ending in endings],
        "next_reasons": [ending.reason for ending in endings],
        "next_attempts": [ending.then.attempt for ending in endings if ending.then],
        "next_delays": [
            ending.then.delay.total_seconds() if isinstance(ending.then, Retry) else None for ending in endings
        ],
        "dead_reasons": [ending.then.reason.value if isinstance(ending.then, GiveUp) else None for ending in endings],
    }


async def reap(  # noqa: PLR0913 - which leases, for which node, how many
    connection: Connection,
    node: str,
    partitions: Sequence[int],
    *,
    lease_time: timedelta,
    most: int,
    from_at: datetime | None = None,
    latest_at: datetime | None = None,
) -> list[LostAttempt]:
    """Take over leases that have run out, and return what is open in them.

    `from_at`: leave out those that ran out before. `latest_at`: the latest time that the caller considers possible, in
    case the database's clock was set forward.
    """
    taken = await _TAKE_OVER.all(
        connection,
        node=node,
        partitions=partitions,
        lease_seconds=lease_time.total_seconds(),
        most=most,
        from_at=from_at,
        latest_at=latest_at,
    )
    REAPED.add(len(taken))
    if not taken:
        return []
    leases = {lease.lease_id: lease for lease in taken}
    attempts = await _OPEN_IN.all(
        connection,
        lease_ids=list(leases),
        lane_ids=[lease.lane_id for lease in taken],
        first_seqs=[lease.first_seq for lease in taken],
        last_seqs=[lease.last_seq for lease in taken],
    )
    return [_lost(leases[attempt.lease_id], attempt) for attempt in attempts]


def _lost(lease: _TakenLease, attempt: _OpenAttempt) -> LostAttempt:
    is_marked = attempt.seq in (lease.started or ())
    return LostAttempt(
        worker=lease.worker,
        is_marked=is_marked,
        deferrals=lease.deferrals,
        is_past_end=lease.is_past_end,
        **attempt._asdict(),
    )
