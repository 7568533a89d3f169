"""Jobs: creating, reading and changing them. Called by the use cases, which lock a job before they change it."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any, NamedTuple

import asyncpg

from evertick.domain.errors import EvertickError
from evertick.domain.ids import partition_of
from evertick.domain.misfire import TickGap
from evertick.domain.schedule.instants import from_us
from evertick.store import statements
from evertick.store.database import Session
from evertick.store.jobs.references import LaneKey
from evertick.store.statements import Connection, columns

MAX_ATTEMPTS = 200
"""Newest attempts of a job among which its failures are counted."""


class NumbersTaken(EvertickError):  # noqa: N818 - says what is wrong
    """Other jobs have the numbers that were drawn for new ones: a fail-over lost the draw and issued them again."""


class NewJob(NamedTuple):
    """A job to create. A `fire_at` of None: only triggers run it.

    First what is its own, then what many have in common: it goes to the database once for all of them.
    """

    job_id: int
    name: str
    payload: str | None
    spec: str
    gate_id: int | None
    trace_parent: str | None
    queue: str
    labels: str
    digest: bytes
    timeout: int
    timezone: str
    handler: str | None
    key_template: str | None
    retry: str
    fire_at: datetime | None
    due_at: datetime | None
    priority: int
    gate_limit: int | None
    has_alerts: bool = False


class ReferenceIds(NamedTuple):
    """The ids of what an edited job refers to."""

    rule_id: int
    queue_id: int


class EditRefusal(Enum):
    """Why the next version of a job was not written."""

    NAME_TAKEN = auto()  # another job has the name, and the transaction is lost
    INCOMPLETE = auto()  # its rule, queue or lane is missing


class JobRow(NamedTuple):
    """A job as its owner sees it; `spec` and `payload` are JSON. `last_…`: the latest attempt of its latest run."""

    job_id: int
    status: str
    is_finished: bool
    fire_at: datetime | None
    spec_version: int
    created_at: datetime
    updated_at: datetime
    paused_at: datetime | None
    pause_reason: str | None
    grace_us: int
    spec: str
    payload: str | None
    last_fire_at: datetime | None
    last_result: str | None
    is_last_leased: bool
    has_last_timer: bool
    is_last_withdrawn: bool
    consecutive_failures: int


class LockedJob(NamedTuple):
    """The state of a locked job. `fire_at` is its timer's, None where it has none."""

    job_id: int
    created_at: datetime
    status: str
    spec_version: int
    rule_id: int
    canonical: str
    spec: str
    payload: str | None
    fire_at: datetime | None
    last_lane: int | None
    last_seq: int | None
    now_at: datetime


class StoredJob(NamedTuple):
    """A job's current version: its specification without the payload, as JSON, and its gate."""

    spec: str
    gate_id: int | None
    has_payload: bool


class TickTimer(NamedTuple):
    """What the timer of a job's ticks is set to. It is never due while the job is paused."""

    fire_at: datetime
    due_at: datetime
    is_paused: bool
    rule_id: int
    queue_id: int
    spec_version: int
    priority: int
    gate_id: int | None


class JobNumbers(NamedTuple):
    """The database's time, numbers for new jobs, and the connections that they may name."""

    now_at: datetime
    numbers: list[int]
    connections: list[str]

    @property
    def connection_types(self) -> dict[str, str]:
        """The types of the tenant's connections, by name."""
        return {name: kind for kind, _, name in (text.partition(" ") for text in self.connections)}


class _Created(NamedTuple):
    is_complete: bool
    job_ids: list[int]


_SQL = statements.load("jobs")
_NUMBERS = _SQL["numbers"].rows(JobNumbers)
_CREATE = _SQL["create"].rows(_Created)
_VIEW = _SQL["view"].rows(JobRow)
_NAMED = _SQL["named"].values(int)
_OWNED = _SQL["owned"].values(bool)
_LOCK = _SQL["lock"].values(int)
_LOCK_TO_DELETE = _SQL["lock_to_delete"].values(int)
_LOCK_AVAILABLE = _SQL["lock_available"].values(int)
_LOCKED = _SQL["locked"].rows(LockedJob)
_STORED = _SQL["stored"].rows(StoredJob)
_HAS_PAYLOAD = _SQL["has_payload"].values(bool)
_EDIT = _SQL["edit"].rows(ReferenceIds)


async def numbers(connection: Connection, tenant_id: int, count: int) -> JobNumbers:
    return await _NUMBERS.one(connection, tenant_id=tenant_id, count=count)


def lane_keys(jobs: Iterable[NewJob]) -> set[LaneKey]:
    """The lanes of jobs: of one with a gate both, since a run of an earlier version may have none."""
    found = {(job.queue, partition_of(job.job_id), job.priority, job.gate_limit is not None) for job in jobs}
    lanes = {LaneKey(*key) for key in found}
    return lanes | {lane._replace(is_gated=False) for lane in lanes if lane.is_gated}


async def create(
    connection: Connection,
    tenant_id: int,
    now_at: datetime,
    jobs: Sequence[NewJob],
    gaps: Sequence[tuple[int, TickGap]] = (),
) -> set[int] | None:
    """Create jobs, with gaps by job id, and return the ids of those whose name was free.

    None: nothing is written, since a rule, queue or lane is missing that they refer to.
    """
    kinds: dict[tuple[Any, ...], int] = {}
    own = [(*job[:_OWN], kinds.setdefault(job[_OWN:], len(kinds))) for job in jobs]
    values = columns(_OWN_PARAMETERS, own) | columns(_KIND_PARAMETERS, list(kinds))
    values |= columns(_LANE_PARAMETERS, list(lane_keys(jobs)))
    noted = {f"gap_{name}": column for name, column in _gap_columns([gap for _, gap in gaps]).items()}
    try:
        created = await _CREATE.one(
            connection,
            tenant_id=tenant_id,
            now_at=now_at,
            gap_job_ids=[job_id for job_id, _ in gaps],
            **noted,
            **values,
        )
    except asyncpg.UniqueViolationError as error:
        raise NumbersTaken(str(error)) from error
    return set(created.job_ids) if created.is_complete else None


_OWN_PARAMETERS = ("job_ids", "names", "payloads", "specs", "gate_ids", "trace_parents", "kinds")
_OWN = len(_OWN_PARAMETERS) - 1
_KIND_PARAMETERS = (
    "queues",
    "labels",
    "digests",
    "timeouts",
    "timezones",
    "handlers",
    "key_templates",
    "retries",
    "fire_ats",
    "due_ats",
    "priorities",
    "gate_limits",
    "has_alerts",
)
_LANE_PARAMETERS = ("lane_queues", "lane_partitions", "lane_priorities", "lane_gated")


def _gap_columns(gaps: Sequence[TickGap]) -> dict[str, list[Any]]:
    return {
        "first_ats": [from_us(gap.first_us) for gap in gaps],
        "last_ats": [from_us(gap.last_us) for gap in gaps],
        "ticks": [gap.count for gap in gaps],
        "reasons": [str(gap.reason) for gap in gaps],
    }


async def add_gaps(connection: Connection, job_id: int, spec_version: int, gaps: Sequence[TickGap]) -> None:
    if gaps:
        await _SQL["add_gaps"].execute(connection, job_id=job_id, spec_version=spec_version, **_gap_columns(gaps))


async def forget_ahead(connection: Connection, job_id: int, now_at: datetime) -> None:
    await _SQL["forget_ahead"].execute(connection, job_id=job_id, now_at=now_at)


async def view(connection: Connection, tenant_id: int, job_ids: Sequence[int]) -> list[JobRow]:
    """Those of these jobs that the tenant has, by id."""
    return await _VIEW.all(connection, tenant_id=tenant_id, job_ids=job_ids, most_attempts=MAX_ATTEMPTS)


async def named(connection: Connection, tenant_id: int, name: str) -> int | None:
    return await _NAMED.one_or_none(connection, tenant_id=tenant_id, name=name)


async def owned(connection: Connection, tenant_id: int, job_id: int) -> bool:
    """Whether the tenant has the job, or had it until it was deleted."""
    return await _OWNED.one(connection, tenant_id=tenant_id, job_id=job_id)


async def lock(connection: Connection, tenant_id: int, job_id: int, *, to_delete: bool = False) -> bool:
    """Lock a job, if the tenant has it."""
    statement = _LOCK_TO_DELETE if to_delete else _LOCK
    return await statement.one_or_none(connection, tenant_id=tenant_id, job_id=job_id) is not None


async def lock_available(connection: Session, job_ids: Sequence[int]) -> list[int]:
    """Lock these jobs, and return those that no other transaction has locked."""
    return await _LOCK_AVAILABLE.all(connection, job_ids=job_ids)


async def locked(connection: Connection, job_id: int) -> LockedJob:
    """The state of a job after `lock`; its tick's timer is locked too."""
    return await _LOCKED.one(connection, job_id=job_id)


async def stored(connection: Connection, job_id: int) -> StoredJob:
    """The current version of a locked job."""
    return await _STORED.one(connection, job_id=job_id)


async def has_payload(connection: Connection, job_id: int, spec_version: int, payload: str | None) -> bool:
    return await _HAS_PAYLOAD.one(connection, job_id=job_id, spec_version=spec_version, payload=payload)


async def edit(
    connection: Connection, tenant_id: int, job: NewJob, spec_version: int, now_at: datetime
) -> ReferenceIds | EditRefusal:
    """Write the next version of a locked job."""
    values = job._asdict()
    del values["fire_at"], values["due_at"]
    try:
        referred = await _EDIT.one_or_none(
            connection, tenant_id=tenant_id, spec_version=spec_version, now_at=now_at, **values
        )
    except asyncpg.UniqueViolationError:
        return EditRefusal.NAME_TAKEN
    return EditRefusal.INCOMPLETE if referred is None else referred


async def move_timer(connection: Connection, job_id: int, timer: TickTimer) -> None:
    await _SQL["move_timer"].execute(connection, job_id=job_id, **timer._asdict())


async def add_timer(connection: Connection, tenant_id: int, job_id: int, timer: TickTimer) -> None:
    await _SQL["add_timer"].execute(connection, tenant_id=tenant_id, job_id=job_id, **timer._asdict())


async def drop_timer(connection: Connection, job_id: int, now_at: datetime, *, is_finished: bool) -> None:
    await _SQL["drop_timer"].execute(connection, job_id=job_id, now_at=now_at, is_finished=is_finished)


async def unfinish(connection: Connection, job_id: int) -> None:
    await _SQL["unfinish"].execute(connection, job_id=job_id)


async def pause(connection: Connection, job_id: int, reason: str | None) -> None:
    await _SQL["pause"].execute(connection, job_id=job_id, reason=reason)


async def resume(connection: Connection, job_id: int, now_at: datetime) -> None:
    await _SQL["resume"].execute(connection, job_id=job_id, now_at=now_at)


async def set_due(connection: Connection, job_id: int, fire_at: datetime, due_at: datetime) -> None:
    await _SQL["set_due"].execute(connection, job_id=job_id, fire_at=fire_at, due_at=due_at)


async def catch_up(connection: Connection, job: LockedJob, fire_ats: Sequence[datetime]) -> None:
    """Let ticks of a locked job run after all, in this order."""
    await _SQL["catch_up"].execute(
        connection,
        job_id=job.job_id,
        fire_ats=fire_ats,
        now_at=job.now_at,
        last_lane=job.last_lane,
        last_seq=job.last_seq,
    )


async def delete(connection: Connection, job_id: int, now_at: datetime) -> None:
    await _SQL["delete"].execute(connection, job_id=job_id, now_at=now_at)
