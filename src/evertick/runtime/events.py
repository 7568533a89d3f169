"""Events as CloudEvents, made from the rows of the stream and of the ledger. For the API and for sinks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict, replace

from evertick.contract.access import AuditEntry
from evertick.contract.events import (
    EVENT_PREFIX,
    SPEC_VERSION,
    ChangedJob,
    Event,
    EventData,
    FinishedRun,
    LostEvents,
    StreamedGap,
)
from evertick.contract.runs import Attempt, Run
from evertick.domain.events import EventType, has_lost
from evertick.domain.ids import Prefix, format_id
from evertick.domain.schedule.instants import SECOND_US, from_us, to_us
from evertick.runtime.run_views import attempt_of, gap_of, run_of, worker_name
from evertick.store.jobs.runs import AttemptRow, GapRow
from evertick.store.statements import Connection
from evertick.store.tenants import events
from evertick.store.tenants.events import EventAttempt, EventRow, Range

SOURCE = "/evertick/tenants/"
MAX_LOOKED_AT = 20_000
"""Events that one page of some types is looked for in."""
_E = TypeVar("_E", Run, Attempt)


class EventPage(NamedTuple):
    """Events in order. `cursor`: where the next page begins. `is_last`: the stream has no more for now.

    A page that is not the last may be short, even empty.
    """

    events: list[Event]
    cursor: int
    is_last: bool


async def read_page(connection: Connection, wanted: Range, most: int) -> EventPage:
    """The next events of a range. A reader whose next ones are not kept any more gets an event that says so first."""
    lost: list[Event] = []
    came_after = wanted.after
    while True:
        # Else a search for a rare type would be one statement through all events that are kept.
        until = wanted.until if wanted.types is None else await events.looked_until(connection, wanted, MAX_LOOKED_AT)
        rows = await events.page(connection, wanted._replace(until=until), most)
        # Asked after the page was read: if a day was dropped before that, this tells.
        kept_after = await events.kept_after(connection, wanted.tenant_id)
        if kept_after is None or not has_lost(wanted.after, kept_after):
            break
        lost = [_lost(wanted.tenant_id, came_after, kept_after)]
        wanted = wanted._replace(after=kept_after)
    attempts = await _attempts(connection, rows)
    made = [_event_of(row, attempts.get(row.position, ())) for row in rows]
    is_full = len(rows) == most
    cursor = rows[-1].position if is_full else max(wanted.after, until)
    return EventPage([*lost, *made], cursor, is_last=not is_full and until == wanted.until)


async def _attempts(connection: Connection, rows: Iterable[EventRow]) -> Mapping[int, Sequence[EventAttempt]]:
    finished = [
        events.FinishedRun(row.position, row.job_id, row.fire_at, max(0, to_us(row.fire_at) - SECOND_US), row.seq)
        for row in rows
        if row.type == EventType.RUN_FINISHED and row.job_id is not None and row.fire_at is not None
    ]
    found: defaultdict[int, list[EventAttempt]] = defaultdict(list)
    if finished:
        for attempt in await events.runs(connection, finished):
            found[attempt.position].append(attempt)
    return found


def _event_of(row: EventRow, attempts: Sequence[EventAttempt]) -> Event:
    if row.type == EventType.RUN_FINISHED and not attempts:
        # It took longer than history is kept, which is so short that its rows are gone.
        return _lost(row.tenant_id, row.position - 1, row.position)
    data = _data_of(row, attempts)
    job_id = None if row.job_id is None else format_id(Prefix.JOB, row.job_id)
    return Event(
        specversion=SPEC_VERSION,
        id=str(row.position),
        source=SOURCE + format_id(Prefix.TENANT, row.tenant_id),
        type=EVENT_PREFIX + row.type,
        time=row.at,
        datacontenttype="application/json",
        data=data,
        subject=data.run_id if isinstance(data, Run) else data.subject if isinstance(data, AuditEntry) else job_id,
        partitionkey=job_id,
    )


def _data_of(row: EventRow, attempts: Sequence[EventAttempt]) -> EventData:
    match EventType(row.type):
        case EventType.RUN_FINISHED:
            return _finished_run(row, attempts)
        case EventType.GAP_RECORDED | EventType.GAP_REMOVED:
            assert row.job_id is not None
            assert row.fire_at is not None
            assert row.last_at is not None
            gap = GapRow(row.job_id, row.fire_at, row.last_at, row.ticks or 0, row.spec_version or 0, str(row.detail))
            return StreamedGap(**asdict(gap_of(gap)), job_name=row.name)
        case EventType.AUDIT_RECORDED:
            return AuditEntry(
                changed_at=row.at,
                actor=row.actor or "",
                action=row.action or "",
                subject=row.subject,
                request_id=row.request_id,
            )
        case _:
            assert row.job_id is not None
            return ChangedJob(
                job_id=format_id(Prefix.JOB, row.job_id),
                job_name=row.name,
                spec_version=row.spec_version or 0,
                pause_reason=row.detail,
                spec=None if row.spec is None else msgspec.json.decode(row.spec),
            )


def _finished_run(row: EventRow, attempts: Sequence[EventAttempt]) -> FinishedRun:
    made = tuple(
        _with_name(attempt_of(AttemptRow(each.run, each.due_at, each.excerpt)), row.tenant_id)
        for each in attempts
        if each.run.seq is not None
    )
    run = _with_name(run_of(attempts[-1].run), row.tenant_id)
    return FinishedRun(**asdict(run), attempts=made, job_name=row.name)


def _with_name(entry: _E, tenant_id: int) -> _E:
    return replace(entry, worker_id=worker_name(tenant_id, entry.worker_id))


def _lost(tenant_id: int, after: int, until: int) -> Event:
    return Event(
        specversion=SPEC_VERSION,
        id=str(until),
        source=SOURCE + format_id(Prefix.TENANT, tenant_id),
        type=EVENT_PREFIX + EventType.EVENTS_LOST,
        time=from_us(until),
        datacontenttype="application/json",
        data=LostEvents(after=str(after), until=str(until)),
    )
