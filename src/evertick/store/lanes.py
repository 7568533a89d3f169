"""Lanes and leases: how ready attempts reach workers and dispatchers."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("lanes")


class Leased(NamedTuple):
    """An attempt to run, with all that running it needs. `is_over`: it was cancelled while it waited.

    `is_listed`: its run has a row in open_runs, which its ending removes.
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


class Range(NamedTuple):
    """A lease on the attempts of one lane from one seq to another, of which there are so many at most."""

    lease_id: int
    lane_id: int
    first_seq: int
    last_seq: int
    most: int


class Waiting(NamedTuple):
    """Ready attempts of one queue that nobody has leased."""

    queue_id: int
    attempts: int
    oldest_at: datetime


def queue_of(lane_id: int) -> int:
    return lane_id >> 10


async def lease(  # noqa: PLR0913 - from where, how much and for whom
    connection: Connection,
    queue_ids: Sequence[int],
    worker: str,
    *,
    lanes: int,
    most_per_lane: int,
    rotation: int,
    lease_time: timedelta,
    only: Collection[int] | None = None,
) -> list[Range]:
    """Lease ranges of lanes. What is in them is for `read` to tell; should that fail, the leases run out."""
    rows = await _SQL["lease"].fetch(
        connection,
        queue_ids=queue_ids,
        worker=worker,
        lanes=lanes,
        most_per_lane=most_per_lane,
        rotation=rotation,
        only=None if only is None else list(only),
        lease_seconds=lease_time.total_seconds(),
    )
    return [Range(row["lease_id"], row["lane_id"], row["first_seq"], row["last_seq"], most_per_lane) for row in rows]


async def read(connection: Connection, ranges: Sequence[Range]) -> list[Leased]:
    """The attempts in ranges that were just leased."""
    if not ranges:
        return []
    lease_ids, lane_ids, first_seqs, last_seqs, most = zip(*ranges, strict=True)
    rows = await _SQL["leased"].fetch(
        connection,
        lease_ids=lease_ids,
        lane_ids=lane_ids,
        first_seqs=first_seqs,
        last_seqs=last_seqs,
        most_per_lane=max(most),
    )
    return [Leased(*row) for row in rows]


async def extend(
    connection: Connection, worker: str, lease_time: timedelta, lease_ids: Sequence[int] | None = None
) -> set[int]:
    """Extend those of a worker's leases that are still its own, or all of them, and return which."""
    rows = await _SQL["extend"].fetch(
        connection, worker=worker, lease_seconds=lease_time.total_seconds(), lease_ids=lease_ids
    )
    return {row["lease_id"] for row in rows}


async def ended_elsewhere(connection: Connection, tokens: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Which of these running attempts (lane, seq) have an outcome already: cancelled, or lost to their worker."""
    rows = await _SQL["ended_elsewhere"].fetch(
        connection, lane_ids=[lane_id for lane_id, _ in tokens], seqs=[seq for _, seq in tokens]
    )
    return [(row["lane_id"], row["seq"]) for row in rows]


async def clock(connection: Connection) -> datetime:
    """The database's time."""
    row = await _SQL["clock"].fetchrow(connection)
    assert row is not None
    now_at: datetime = row["now_at"]
    return now_at


async def ready(connection: Connection, most_per_lane: int = 10_000) -> list[Waiting]:
    return [Waiting(*row) for row in await _SQL["ready"].fetch(connection, most=most_per_lane)]
