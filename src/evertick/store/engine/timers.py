"""Timers: reading those that fall due, and firing them. Called by schedulers for partitions that they hold."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import asyncpg

from evertick.domain.ids import PARTITIONS
from evertick.store import statements
from evertick.store.statements import Connection

_GAP_REASONS = {reason: number for number, reason in enumerate(("missed", "paused", "overlap", "calendar", "dst"), 1)}
"""By their places in the list that `fire` has of them."""

_PARTITION = PARTITIONS - 1
"""The bits of a job id that are its partition: `partition_of` without the call, for very many ids."""

TimerKey: TypeAlias = tuple[int, str, datetime]


class Stream(NamedTuple):
    """The timers of one tenant, priority and queue in one partition."""

    partition: int
    tenant_id: int
    priority: int
    queue_id: int


class FirstOfStream(NamedTuple):
    """A stream that a walk met, and its earliest timer in the stretch, if there is one.

    `number`: how many streams the walk had met by then. `is_cut`: it was to meet no more.
    """

    partition: int
    tenant_id: int
    priority: int
    queue_id: int
    number: int
    is_cut: bool
    job_id: int | None
    kind: str | None
    fire_at: datetime | None
    due_at: datetime | None

    @property
    def stream(self) -> Stream:
        return Stream(self.partition, self.tenant_id, self.priority, self.queue_id)


class Stretch(NamedTuple):
    """A stretch of due times: from one until before another."""

    from_at: datetime
    before_at: datetime


class Timer(NamedTuple):
    """A pending due time as loaded: enough to plan it, and to name it when it is fired."""

    job_id: int
    kind: str
    fire_at: datetime
    due_at: datetime
    tenant_id: int
    rule_id: int
    priority: int
    queue_id: int = 0

    @property
    def stream(self) -> Stream:
        return Stream(self.job_id & _PARTITION, self.tenant_id, self.priority, self.queue_id)


class DueCount(NamedTuple):
    """How many timers of a partition are due."""

    partition: int
    timers: int


class PlannedGap(NamedTuple):
    """Ticks that do not run."""

    first_at: datetime
    last_at: datetime
    ticks: int
    reason: str


class FirePlan(NamedTuple):
    """What becomes of due timers that fire alike: those of one tick, or of one run that exists already."""

    kind: str
    fire_at: datetime
    due_at: datetime
    rule_id: int
    run_at: datetime | None
    reason: str | None
    next_fire_at: datetime | None
    next_due_at: datetime | None
    policy: str
    limit: int
    gaps: tuple[PlannedGap, ...] = ()
    wait: timedelta = timedelta(seconds=1)
    """How long it is put off if its job has as many runs as it may have."""


Firing: TypeAlias = Sequence[tuple[FirePlan, Sequence[int]]]
"""Plans, each with the ids of its jobs. The place of a timer counts from 1 through the jobs of all plans."""


class Fired(NamedTuple):
    """The result of a firing, with the places of timers that did not fire. `lane_runs`: how many runs each lane got.

    `gate_ids`: the gates of its timers. What fired waits there, and something may have waited for what did not run.
    `refused`: changed by another session, or their partition is lost. `waiting`: put off. `early` and `busy` are
    unchanged: not due yet; locked by another session, or with something locked that they would change. `passed`: moved
    on without a run, `overlaps` of them because an earlier run was open. `fenced`: if any was refused, the partitions
    that are held.
    """

    now_at: datetime
    runs: int
    lane_ids: Sequence[int]
    lane_runs: Sequence[int]
    last_seq: int
    refused: Sequence[int]
    waiting: Sequence[int]
    early: Sequence[int]
    busy: Sequence[int]
    passed: Sequence[int]
    overlaps: int
    fenced: Sequence[int] | None
    gate_ids: Sequence[int]


class _TraceParent(NamedTuple):
    job_id: int
    fire_at: datetime
    trace_parent: str


class _TraceAuthor(NamedTuple):
    job_id: int
    trace_parent: str


class Quarantined(NamedTuple):
    """How many jobs were paused, and the ids of those that another session has locked."""

    paused: int
    locked: list[int]


_SQL = statements.load("timers")
_LOAD = _SQL["load"].rows(Timer)
_LOAD_JOBS = _SQL["load_jobs"].rows(Timer)
_TRACE_PARENTS = _SQL["trace_parents"].rows(_TraceParent)
_TRACE_AUTHORS = _SQL["trace_authors"].rows(_TraceAuthor)
_WALK_STREAMS = _SQL["walk_streams"].rows(FirstOfStream)
_LOAD_STREAMS = _SQL["load_streams"].rows(Timer)
_COUNT_DUE = _SQL["count_due"].rows(DueCount)
_NEXT_DUE = _SQL["next_due"].values(datetime)
_FIRE = _SQL["fire"].rows(Fired)
_AS_PLANNED = _SQL["as_planned"].values(int)
_QUARANTINE = _SQL["quarantine"].rows(Quarantined)


async def load(
    connection: Connection, partitions: Sequence[int], from_ats: Sequence[datetime], before_at: datetime, most: int
) -> list[Timer]:
    """The earliest `most` timers of each partition that are due in [its from_at, before_at)."""
    return await _LOAD.all(connection, partitions=partitions, from_ats=from_ats, before_at=before_at, most=most)


async def walk_streams(connection: Connection, starts: Sequence[tuple[Stream, Stretch, int]]) -> list[FirstOfStream]:
    """The streams of each partition below a given one, so many at most, with their earliest timers in a stretch.

    The last stream of each walk is in the answer even if it has none.
    """
    streams, stretches, mosts = zip(*starts, strict=True)
    partitions, tenant_ids, priorities, queue_ids = zip(*streams, strict=True)
    from_ats, before_ats = zip(*stretches, strict=True)
    return await _WALK_STREAMS.all(
        connection,
        partitions=partitions,
        tenant_ids=tenant_ids,
        priorities=priorities,
        queue_ids=queue_ids,
        from_ats=from_ats,
        before_ats=before_ats,
        mosts=mosts,
    )


async def load_streams(connection: Connection, wanted: Sequence[tuple[Stream, Stretch, int]]) -> list[Timer]:
    """The earliest timers of each stream in a stretch, and so many at most."""
    streams, stretches, mosts = zip(*wanted, strict=True)
    partitions, tenant_ids, priorities, queue_ids = zip(*streams, strict=True)
    from_ats, before_ats = zip(*stretches, strict=True)
    return await _LOAD_STREAMS.all(
        connection,
        partitions=partitions,
        tenant_ids=tenant_ids,
        priorities=priorities,
        queue_ids=queue_ids,
        from_ats=from_ats,
        before_ats=before_ats,
        mosts=mosts,
    )


async def count_due(connection: Connection, before_ats: Mapping[int, datetime], most: int) -> dict[int, int]:
    """How many timers of each partition fall due before an instant, up to `most`; only partitions that have any."""
    rows = await _COUNT_DUE.all(
        connection, partitions=list(before_ats), before_ats=list(before_ats.values()), most=most
    )
    return dict(rows)


async def load_jobs(connection: Connection, job_ids: Iterable[int], before_at: datetime) -> list[Timer]:
    return await _LOAD_JOBS.all(connection, job_ids=list(job_ids), before_at=before_at)


async def next_due(connection: Connection) -> datetime | None:
    return await _NEXT_DUE.one_or_none(connection)


async def fire(connection: Connection, node: str, epochs: dict[int, int], last_seq: int, firing: Firing) -> Fired:
    """Fire, fenced by the epochs of the partitions in it."""
    job_ids = [job_id for _, jobs in firing for job_id in jobs]
    held = sorted({job_id & _PARTITION for job_id in job_ids} & epochs.keys())
    fired = await _FIRE.one(
        connection,
        node=node,
        last_seq=last_seq,
        held=held,
        epochs=[epochs[partition] for partition in held],
        job_ids=job_ids,
        **_columns(firing),
    )
    refused = fired.refused or ()
    locked = await _as_planned(connection, node, epochs, firing, refused) if refused else set()
    return fired._replace(
        lane_ids=fired.lane_ids or (),
        lane_runs=fired.lane_runs or (),
        refused=[place for place in refused if place not in locked],
        busy=[*fired.busy, *locked],
    )


async def _as_planned(
    connection: Connection, node: str, epochs: dict[int, int], firing: Firing, places: Iterable[int]
) -> set[int]:
    """The refused timers that are as planned: another session had them locked."""
    planned = [(plan, job_id) for plan, jobs in firing for job_id in jobs]
    known = [(place, *planned[place - 1]) for place in places if planned[place - 1][1] & _PARTITION in epochs]
    numbers = await _AS_PLANNED.all(
        connection,
        node=node,
        numbers=[place for place, _, _ in known],
        job_ids=[job_id for _, _, job_id in known],
        kinds=[plan.kind for _, plan, _ in known],
        fire_ats=[plan.fire_at for _, plan, _ in known],
        due_ats=[plan.due_at for _, plan, _ in known],
        rule_ids=[plan.rule_id for _, plan, _ in known],
        epochs=[epochs[job_id & _PARTITION] for _, _, job_id in known],
    )
    return set(numbers)


def _columns(firing: Firing) -> dict[str, Sequence[object]]:
    """The plans as columns, with the stretches of jobs and of gaps that are theirs."""
    plans = [plan for plan, _ in firing]
    lasts = list(accumulate(len(jobs) for _, jobs in firing))
    last_gaps = list(accumulate(len(plan.gaps) for plan in plans))
    gaps = [gap for plan in plans for gap in plan.gaps]
    return {
        "kinds": [plan.kind for plan in plans],
        "fire_ats": [plan.fire_at for plan in plans],
        "due_ats": [plan.due_at for plan in plans],
        "rule_ids": [plan.rule_id for plan in plans],
        "run_ats": [plan.run_at for plan in plans],
        "reasons": [plan.reason for plan in plans],
        "next_fire_ats": [plan.next_fire_at for plan in plans],
        "next_due_ats": [plan.next_due_at for plan in plans],
        "policies": [plan.policy for plan in plans],
        "limits": [plan.limit for plan in plans],
        "waits": [plan.wait.total_seconds() for plan in plans],
        "firsts": [last - len(jobs) + 1 for last, (_, jobs) in zip(lasts, firing, strict=True)],
        "lasts": lasts,
        "first_gaps": [
            last - len(plan.gaps) + 1 if plan.gaps else None for last, plan in zip(last_gaps, plans, strict=True)
        ],
        "last_gaps": last_gaps,
        "gap_first_ats": [gap.first_at for gap in gaps],
        "gap_last_ats": [gap.last_at for gap in gaps],
        "gap_ticks": [gap.ticks for gap in gaps],
        "gap_reasons": [_GAP_REASONS[gap.reason] for gap in gaps],
    }


async def trace_parents(
    connection: Connection, runs: Collection[tuple[int, datetime]]
) -> dict[tuple[int, datetime], str]:
    """The trace contexts that some of these runs were asked for with."""
    rows = await _TRACE_PARENTS.all(
        connection, job_ids=[job_id for job_id, _ in runs], fire_ats=[fire_at for _, fire_at in runs]
    )
    return {(row.job_id, row.fire_at): row.trace_parent for row in rows}


async def trace_authors(connection: Connection, runs: Collection[tuple[int, str, datetime]]) -> dict[int, str]:
    """The trace contexts in which jobs were written, by job, of runs that kinds of timers are about to fire."""
    rows = await _TRACE_AUTHORS.all(
        connection,
        job_ids=[job_id for job_id, _, _ in runs],
        kinds=[kind for _, kind, _ in runs],
        fire_ats=[fire_at for _, _, fire_at in runs],
    )
    return {row.job_id: row.trace_parent for row in rows}


async def quarantine(
    connection: Connection, broken: Mapping[int, int], reason: str, *, is_missing: bool = False
) -> Quarantined:
    """Pause jobs that still have the given rule, which cannot be read or, if it was missing, still is."""
    return await _QUARANTINE.one(
        connection, job_ids=list(broken), rule_ids=list(broken.values()), reason=reason, is_missing=is_missing
    )


def lacks_day(error: BaseException) -> bool:
    """Whether a firing was refused because its day is no partition of the ledgers yet. Nothing was done."""
    return isinstance(error, asyncpg.CheckViolationError) and error.table_name in {"attempts", "outcomes"}
