"""The archive as the database knows it: what a day holds, which days were exported, and in which files.

Called by the janitor, by commands, and by the use cases that read archived runs.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date, datetime
from typing import NamedTuple

import asyncpg

from evertick.domain.archiving import DayRange, FileKind
from evertick.store import statements
from evertick.store.database import Pool, transaction_without_timeout
from evertick.store.statements import Connection, row_count

_EXPORT_LOCK = int.from_bytes(b"archive", "big")
_COUNT_SECONDS = 60 * 60
"""Counting a day of a hundred million attempts reads the whole day."""
_CHANGED = "AR001"


class ArchiveMarks(NamedTuple):
    """Whether days must be archived before they are dropped, where, and why the last export failed."""

    is_on: bool
    url: str | None
    failed_at: datetime | None
    error: str | None


class Claim(NamedTuple):
    """The export at work on a part of a day."""

    day: date
    part: int
    token: str


class Measured(NamedTuple):
    """How many rows the tables have of a day."""

    attempts: int
    outcomes: int
    gaps: int
    withdrawals: int


class LaneOfDay(NamedTuple):
    """How many attempts and outcomes a lane has of a day."""

    lane_id: int
    tenant_id: int
    attempts: int
    outcomes: int


class LooseOfDay(NamedTuple):
    """How many gaps and withdrawals a tenant has of a day."""

    tenant_id: int
    gaps: int
    withdrawals: int
    gaps_digest: str


class AttemptLine(NamedTuple):
    """An attempt with its outcome, as it is archived. A run that was cancelled while it waited has the number 0."""

    lane_id: int
    seq: int
    job_id: int
    attempt: int
    is_last: bool
    is_withdrawn: bool
    fire_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    reason: str
    spec_version: int
    result: str | None
    code: int | None
    worker: str | None
    error: str | None
    excerpt: str | None
    job_name: str
    queue: str
    handler: str | None
    target: str | None
    digest: int


class GapLine(NamedTuple):
    """A gap, as it is archived."""

    job_id: int
    first_at: datetime
    last_at: datetime
    ticks: int
    spec_version: int
    reason: str
    job_name: str
    digest: int


class KnownFile(NamedTuple):
    """A file that was checked, with what it should hold. The digest is a number."""

    path: str
    tenant_id: int
    kind: str
    rows: int
    outcomes: int
    bytes: int
    digest: str
    sha256: str


class Extent(NamedTuple):
    """From where to where the rows of a file reach: seqs, and fire times or the ticks of gaps."""

    first_seq: int
    last_seq: int
    first_at: datetime
    last_at: datetime


class FileRange(NamedTuple):
    """A file of a tenant, and from where to where its rows reach."""

    path: str
    day: date
    extent: Extent


class Leftover(NamedTuple):
    path: str
    noted_at: datetime


class OutdatedFile(NamedTuple):
    path: str
    tenant_id: int
    day: date


class ExportedDay(NamedTuple):
    """An export, for people."""

    day: date
    part: int
    state: str
    attempts: int
    gaps: int
    verified_at: datetime | None
    dropped_at: datetime | None
    rows: int
    bytes: int
    files: int


class ArchiveSummary(NamedTuple):
    """How many days are archived, and which is the last."""

    days: int
    last_day: date | None


class _TenantDays(NamedTuple):
    tenant_id: int
    archive_days: int


_SQL = statements.load("archive")
_MARKS = _SQL["marks"].rows(ArchiveMarks)
_LOCK_EXPORTS = _SQL["lock_exports"].values(bool)
_LOOSE_DAYS = _SQL["loose_days"].values(date)
_OLDEST_DAY = _SQL["oldest_day"].values(date)
_CLAIM = _SQL["claim"].values(int)
_ADOPT = _SQL["adopt"].rows(KnownFile)
_MEASURE = _SQL["measure"].rows(Measured)
_LANES_OF_DAY = _SQL["lanes_of_day"].rows(LaneOfDay)
_LOOSE_OF_DAY = _SQL["loose_of_day"].rows(LooseOfDay)
_TENANT_DAYS = _SQL["tenant_days"].rows(_TenantDays)
_ATTEMPTS_PAGE = _SQL["attempts_page"].rows(AttemptLine)
_WITHDRAWALS_PAGE = _SQL["withdrawals_page"].rows(AttemptLine)
_GAPS_PAGE = _SQL["gaps_page"].rows(GapLine)
_NOTE_FILE = _SQL["note_file"].values(str)
_CHECK_FILE = _SQL["check_file"].values(str)
_VERIFY_DAY = _SQL["verify_day"].values(int)
_DROP_ARCHIVED_DAY = _SQL["drop_archived_day"].values(str)
_LEFTOVERS = _SQL["leftovers"].rows(Leftover)
_OUTDATED = _SQL["outdated"].rows(OutdatedFile)
_DAYS = _SQL["days"].rows(ExportedDay)
_FILES_OF_DAY = _SQL["files_of_day"].rows(KnownFile)
_SUMMARY = _SQL["summary"].rows(ArchiveSummary)
_ARE_LATER_GONE = _SQL["are_later_gone"].values(bool)
_FILES_BY_SEQ = _SQL["files_by_seq"].rows(FileRange)
_FILES_BY_FIRE_TIME = _SQL["files_by_fire_time"].rows(FileRange)


async def marks(connection: Connection) -> ArchiveMarks:
    return await _MARKS.one(connection)


async def turn(connection: Connection, url: str | None) -> bool:
    """From now on days must be archived, at a URL, or need not be: None. False: that is so already."""
    return bool(row_count(await _SQL["turn"].execute(connection, is_on=url is not None, url=url)))


async def note_error(connection: Connection, error: str | None) -> None:
    await _SQL["note_error"].execute(connection, error=error)


@asynccontextmanager
async def only_export(pool: Pool) -> AsyncIterator[bool]:
    """Take the lock of the one export at work, for as long as the context lasts. False: another has it."""
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        is_ours = await _LOCK_EXPORTS.one(connection, lock=_EXPORT_LOCK)
        # The driver leaves a statement's snapshot in place until the next one, and that would hold up vacuum.
        await connection.execute("SELECT")
        yield is_ours


async def loose_days(connection: Connection, before_at: datetime) -> list[date]:
    """Days before an instant that have gaps or withdrawals."""
    return await _LOOSE_DAYS.all(connection, before_at=before_at)


async def oldest_day(connection: Connection) -> date | None:
    """The first day of which there are attempts, gaps or withdrawals."""
    return await _OLDEST_DAY.one_or_none(connection)


async def claim(connection: Connection, day: date, token: str) -> Claim | None:
    """Begin the export of a day, or take it over. None: another took it meanwhile."""
    part = await _CLAIM.one_or_none(connection, day=day, token=token)
    return None if part is None else Claim(day, part, token)


async def adopt(connection: Connection, claim: Claim) -> list[KnownFile]:
    """Take over the files that an earlier export of the same part has finished."""
    return await _ADOPT.all(connection, **claim._asdict())


async def measure(pool: Pool, claim: Claim, day: DayRange) -> Measured | None:
    """Count what the tables have of a day. None: the claim is lost."""
    async with transaction_without_timeout(pool) as connection:
        return await _MEASURE.one_or_none(
            connection,
            _COUNT_SECONDS,
            **claim._asdict(),
            first_seq=day.first_seq,
            end_seq=day.end_seq,
            from_at=day.from_at,
            end_at=day.end_at,
        )


async def lanes_of_day(pool: Pool, day: DayRange) -> list[LaneOfDay]:
    async with transaction_without_timeout(pool) as connection:
        return await _LANES_OF_DAY.all(connection, first_seq=day.first_seq, end_seq=day.end_seq)


async def loose_of_day(connection: Connection, day: DayRange) -> list[LooseOfDay]:
    return await _LOOSE_OF_DAY.all(connection, from_at=day.from_at, end_at=day.end_at)


async def tenant_days(connection: Connection) -> dict[int, int]:
    """For how many days each tenant keeps its archive."""
    return dict(await _TENANT_DAYS.all(connection))


async def attempts_page(
    connection: Connection, after: Sequence[tuple[int, int]], end_seq: int, most: int, *, are_later_gone: bool
) -> list[AttemptLine]:
    """Up to `most` attempts of each of some lanes, after a seq of each and before an end."""
    return await _ATTEMPTS_PAGE.all(
        connection,
        lane_ids=[lane_id for lane_id, _ in after],
        after_seqs=[seq for _, seq in after],
        end_seq=end_seq,
        most=most,
        are_later_gone=are_later_gone,
    )


async def withdrawals_page(
    connection: Connection, tenant_id: int, day: DayRange, after: AttemptLine | None, most: int
) -> list[AttemptLine]:
    return await _WITHDRAWALS_PAGE.all(
        connection,
        tenant_id=tenant_id,
        from_at=day.from_at if after is None else after.due_at,
        end_at=day.end_at,
        after_job_id=-1 if after is None else after.job_id,
        after_fire_at=day.from_at if after is None else after.fire_at,
        most=most,
    )


async def gaps_page(
    connection: Connection, tenant_id: int, day: DayRange, after: GapLine | None, most: int
) -> list[GapLine]:
    return await _GAPS_PAGE.all(
        connection,
        tenant_id=tenant_id,
        from_at=day.from_at if after is None else after.last_at,
        end_at=day.end_at,
        after_job_id=-1 if after is None else after.job_id,
        after_first_at=day.from_at if after is None else after.first_at,
        after_reason="missed" if after is None else after.reason,
        most=most,
    )


async def note_file(connection: Connection, claim: Claim, path: str, tenant_id: int, kind: str) -> bool:
    """Note a file that is about to be written. False: the claim is lost."""
    noted = await _NOTE_FILE.one_or_none(connection, **claim._asdict(), path=path, tenant_id=tenant_id, kind=kind)
    return noted is not None


async def check_file(connection: Connection, claim: Claim, file: KnownFile, extent: Extent) -> bool:
    """Note what a file holds that was read back. False: the claim is lost."""
    fields = file._asdict()
    del fields["tenant_id"], fields["kind"]
    return await _CHECK_FILE.one_or_none(connection, **fields, **extent._asdict(), token=claim.token) is not None


async def reject_files(connection: Connection, paths: Sequence[str]) -> None:
    """Do not count on files that do not hold what they should."""
    await _SQL["reject_files"].execute(connection, paths=paths)


async def verify_day(connection: Connection, claim: Claim) -> bool:
    """All files of a part were checked. False: the claim is lost."""
    return await _VERIFY_DAY.one_or_none(connection, **claim._asdict()) is not None


async def drop_archived_day(pool: Pool, claim: Claim) -> str:
    """Drop a day that was verified: `dropped`, `changed` since it was counted, `unverified`, or `locked` by others."""
    try:
        async with transaction_without_timeout(pool) as connection:
            await statements.load("ledgers")["set_lock_timeout"].execute(connection)
            return await _DROP_ARCHIVED_DAY.one(connection, _COUNT_SECONDS, **claim._asdict())
    except asyncpg.LockNotAvailableError:
        return "locked"
    except asyncpg.PostgresError as error:
        if error.sqlstate != _CHANGED:
            raise
        return "changed"


async def leftovers(connection: Connection, most: int) -> list[Leftover]:
    return await _LEFTOVERS.all(connection, most=most)


async def forget_files(connection: Connection, paths: Sequence[str]) -> None:
    await _SQL["forget_files"].execute(connection, paths=paths)


async def outdated(connection: Connection, now_at: datetime, most: int) -> list[OutdatedFile]:
    """Files of tenants that keep their archive for a shorter time."""
    return await _OUTDATED.all(connection, now_at=now_at, most=most)


async def exported_days(connection: Connection, most: int) -> list[ExportedDay]:
    return await _DAYS.all(connection, most=most)


async def files_of_day(connection: Connection, day: date) -> list[KnownFile]:
    return await _FILES_OF_DAY.all(connection, day=day)


async def summary(connection: Connection) -> ArchiveSummary:
    return await _SUMMARY.one(connection)


async def are_later_gone(connection: Connection, day: date) -> bool:
    """Whether a day after this one was dropped already."""
    return await _ARE_LATER_GONE.one(connection, day=day)


async def files_by_seq(  # noqa: PLR0913 - as many bounds as a walk has
    connection: Connection,
    tenant_id: int,
    *,
    from_seq: int,
    before_seq: int,
    from_at: datetime,
    before_at: datetime,
    most: int,
) -> list[FileRange]:
    """A tenant's files with attempts in a range, those with the latest first."""
    return await _FILES_BY_SEQ.all(
        connection,
        tenant_id=tenant_id,
        from_seq=from_seq,
        before_seq=before_seq,
        from_at=from_at,
        before_at=before_at,
        most=most,
    )


async def files_by_fire_time(  # noqa: PLR0913 - as `files_by_seq`
    connection: Connection, tenant_id: int, kind: FileKind, *, from_at: datetime, before_at: datetime, most: int
) -> list[FileRange]:
    """A tenant's files with fire times in a range, those with the latest first."""
    return await _FILES_BY_FIRE_TIME.all(
        connection, tenant_id=tenant_id, kind=str(kind), from_at=from_at, before_at=before_at, most=most
    )
