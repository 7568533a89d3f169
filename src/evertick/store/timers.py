"""Timers: reading those that fall due, and firing them. Called by schedulers for partitions that they hold."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("timers")

TimerKey: TypeAlias = tuple[int, str, datetime]


class Timer(NamedTuple):
    """A pending due time as loaded: enough to plan it, and to name it when it is fired."""

    job_id: int
    kind: str
    fire_at: datetime
    due_at: datetime
    tenant_id: int
    rule_id: int


@dataclass(slots=True)
class Firing:
    """What a scheduler wants to do with due timers, as columns. `number` of a timer counts from 1."""

    job_ids: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    fire_ats: list[datetime] = field(default_factory=list)
    due_ats: list[datetime] = field(default_factory=list)
    rule_ids: list[int] = field(default_factory=list)
    run_ats: list[datetime | None] = field(default_factory=list)
    reasons: list[str | None] = field(default_factory=list)
    next_fire_ats: list[datetime | None] = field(default_factory=list)
    next_due_ats: list[datetime | None] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    gap_numbers: list[int] = field(default_factory=list)
    gap_first_ats: list[datetime] = field(default_factory=list)
    gap_last_ats: list[datetime] = field(default_factory=list)
    gap_ticks: list[int] = field(default_factory=list)
    gap_reasons: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.job_ids)


WAIT = timedelta(seconds=1)
"""For so long a run is put off that found no room."""


class Fired(NamedTuple):
    """What became of it. Numbers that are not in `judged` were changed by someone else, or are not ours any more."""

    now_at: datetime
    last_seq: int
    runs: int
    judged: Sequence[int]
    waiting: Sequence[int]
    early: Sequence[int]
    queue_ids: Sequence[int]


async def load(
    connection: Connection, partitions: Sequence[int], from_at: datetime, before_at: datetime, most: int
) -> list[Timer]:
    """The earliest `most` timers of each partition that are due in [from_at, before_at)."""
    rows = await _SQL["load"].fetch(connection, partitions=partitions, from_at=from_at, before_at=before_at, most=most)
    return [Timer(*row) for row in rows]


async def load_jobs(connection: Connection, job_ids: Iterable[int], before_at: datetime) -> list[Timer]:
    rows = await _SQL["load_jobs"].fetch(connection, job_ids=list(job_ids), before_at=before_at)
    return [Timer(*row) for row in rows]


async def next_due(connection: Connection) -> datetime | None:
    row = await _SQL["next_due"].fetchrow(connection)
    assert row is not None
    due_at: datetime | None = row["due_at"]
    return due_at


async def fire(connection: Connection, node: str, epochs: dict[int, int], last_seq: int, firing: Firing) -> Fired:
    """Fire, fenced by the epochs of the partitions in it."""
    partitions = [job_id & 255 for job_id in firing.job_ids]
    held = sorted(set(partitions) & epochs.keys())
    row = await _SQL["fire"].fetchrow(
        connection,
        node=node,
        last_seq=last_seq,
        wait_seconds=WAIT.total_seconds(),
        held=held,
        epochs=[epochs[partition] for partition in held],
        partitions=partitions,
        job_ids=firing.job_ids,
        kinds=firing.kinds,
        fire_ats=firing.fire_ats,
        due_ats=firing.due_ats,
        rule_ids=firing.rule_ids,
        run_ats=firing.run_ats,
        reasons=firing.reasons,
        next_fire_ats=firing.next_fire_ats,
        next_due_ats=firing.next_due_ats,
        policies=firing.policies,
        limits=firing.limits,
        gap_numbers=firing.gap_numbers,
        gap_first_ats=firing.gap_first_ats,
        gap_last_ats=firing.gap_last_ats,
        gap_ticks=firing.gap_ticks,
        gap_reasons=firing.gap_reasons,
    )
    assert row is not None
    return Fired(
        row["now_at"],
        row["last_seq"],
        row["runs"],
        row["judged"] or (),
        row["waiting"] or (),
        row["early"] or (),
        row["queue_ids"] or (),
    )


async def quarantine(connection: Connection, job_ids: Sequence[int], reason: str) -> None:
    await _SQL["quarantine"].execute(connection, job_ids=job_ids, reason=reason)
