"""Outcomes: how attempts end, and what follows. Called by workers, dispatchers and the reaper."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("outcomes")

Token: TypeAlias = tuple[int, int]  # lane_id, seq


@dataclass(frozen=True, slots=True)
class Again:
    """The run goes on: attempt number `attempt` is due after `delay`."""

    attempt: int
    delay: timedelta


@dataclass(frozen=True, slots=True)
class Dead:
    """The run is over and becomes a dead letter."""

    attempt: int
    reason: str


class Ending(NamedTuple):
    """How one attempt ended. `then` is None when the run is over and all is well, or cancelled."""

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
    then: Again | Dead | None = None


class Lost(NamedTuple):
    """An open attempt in a lease that ran out; only the first two are set for a lease without any."""

    lease_id: int
    worker: str
    lane_id: int | None
    seq: int
    job_id: int
    fire_at: datetime
    spec_version: int
    reason: str
    attempt: int
    retry: str


async def record(
    connection: Connection, worker: str, endings: Sequence[Ending], done_leases: Sequence[int]
) -> set[Token]:
    """Record outcomes and let go of leases. Returns the attempts that were recorded; the others are stale."""
    endings = sorted(endings)  # by lane and seq: two who race for the same ones cannot deadlock
    columns = list(zip(*endings, strict=True)) if endings else [()] * len(Ending._fields)
    lane_ids, seqs, job_ids, fire_ats, _, _, results, started_ats, finished_ats, codes, errors, excerpts, _ = columns
    following = [ending for ending in endings if ending.then is not None]
    row = await _SQL["record"].fetchrow(
        connection,
        worker=worker,
        lane_ids=lane_ids,
        seqs=seqs,
        job_ids=job_ids,
        fire_ats=fire_ats,
        results=results,
        finals=[not isinstance(ending.then, Again) for ending in endings],
        started_ats=started_ats,
        finished_ats=finished_ats,
        codes=codes,
        errors=errors,
        excerpts=excerpts,
        next_lane_ids=[ending.lane_id for ending in following],
        next_seqs=[ending.seq for ending in following],
        next_job_ids=[ending.job_id for ending in following],
        next_fire_ats=[ending.fire_at for ending in following],
        next_spec_versions=[ending.spec_version for ending in following],
        next_reasons=[ending.reason for ending in following],
        next_attempts=[ending.then.attempt for ending in following if ending.then],
        next_delays=[
            ending.then.delay.total_seconds() if isinstance(ending.then, Again) else None for ending in following
        ],
        dead_reasons=[ending.then.reason if isinstance(ending.then, Dead) else None for ending in following],
        done_leases=done_leases,
    )
    assert row is not None
    return set(zip(row["lane_ids"], row["seqs"], strict=True))


async def reap(
    connection: Connection, node: str, partitions: Sequence[int], *, lease_time: timedelta, most: int
) -> list[Lost]:
    """Take over leases that have run out, and return what is open in them."""
    rows = await _SQL["reap"].fetch(
        connection, node=node, partitions=partitions, lease_seconds=lease_time.total_seconds(), most=most
    )
    return [Lost(*row) for row in rows]
