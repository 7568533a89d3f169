"""The archive as operators handle it: which days are in it, whether their files are intact, exports on request."""

from datetime import date, timedelta
from typing import NamedTuple

from evertick.domain.archiving import day_range
from evertick.domain.errors import InvalidInput
from evertick.roles.janitor.exporting import ClaimLost, DayChanged, DayExport, is_intact
from evertick.store.archive import days
from evertick.store.archive.days import ExportedDay
from evertick.store.database import Pool
from evertick.store.engine import clock
from evertick.store.maintenance import ledgers
from evertick.store.statements import Connection
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import NoArchive


class VerifiedDay(NamedTuple):
    """What the files of a day hold, and which of them do not hold what they should."""

    day: date
    files: int
    rows: int
    bytes: int
    damaged: list[str]


async def list_days(connection: Connection, most: int) -> list[ExportedDay]:
    """The exports, newest first."""
    return await days.exported_days(connection, most)


async def verify(operator: TenantContext, day: date) -> VerifiedDay:
    """Read all files of a day. ArchiveUnavailable: the storage cannot be read at all."""
    if operator.archive is None:
        raise NoArchive
    files = await days.files_of_day(operator.pool, day)
    if not files:
        raise InvalidInput("day", f"{day} has no files in the archive")
    damaged = [file.path for file in files if not await is_intact(operator.archive, file)]
    return VerifiedDay(day, len(files), sum(file.rows for file in files), sum(file.bytes for file in files), damaged)


async def export(operator: TenantContext, day: date) -> VerifiedDay:
    """Export a day whose runs are over, and verify it. It stays in the database for as long as history is kept."""
    if operator.archive is None:
        raise NoArchive
    assert isinstance(operator.pool, Pool)
    after_at = day_range(day).end_at + timedelta(microseconds=1)
    expired = dict(await ledgers.expired_days(operator.pool, after_at))
    if not expired.get(day, True):
        raise InvalidInput("day", f"{day} has runs that are not over")
    now_at = (await clock.marks(operator.pool)).trusted_at
    async with days.only_export(operator.pool) as is_ours:
        if not is_ours:
            raise InvalidInput("day", "a janitor is exporting: try again later")
        try:
            claim = await DayExport(operator.pool, operator.archive, day).run(now_at)
        except (ClaimLost, DayChanged):
            raise InvalidInput("day", f"{day} changed meanwhile: try again") from None
    files = await days.files_of_day(operator.pool, claim.day)
    return VerifiedDay(day, len(files), sum(file.rows for file in files), sum(file.bytes for file in files), [])


async def turn_off(connection: Connection) -> bool:
    """From now on days are dropped without being archived. False: that is so already."""
    return await days.turn(connection, None)
