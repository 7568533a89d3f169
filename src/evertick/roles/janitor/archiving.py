"""Archives days of the history before they are dropped.

Duty: exports each day that is finished and older than history is kept, verifies the files, and then has the day
dropped. It removes what interrupted exports have left, and files of tenants that keep their archive for a shorter time.

Invariants: while the archive is on, no day is dropped that is not in files that were read back and compared; the
statement that drops checks this, and that nothing came to the day since it was counted. Age is measured by the time
that is trusted. One janitor exports at a time, by a lock; should two do so, the later claim counts, and both have files
of their own.

Steps: each minute it tries to take the lock, and exports the days that wait, the oldest first, one after the other.

Crash: the next janitor continues with the files that were checked. Storage away: the days stay in the database, a
minute later it tries again; the error is logged, counted, and shown by `evertick doctor`. Slow storage: days wait.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from evertick.domain.archiving import day_range
from evertick.domain.ids import Prefix, format_id
from evertick.metrics.catalog import ARCHIVE_DAYS_WAITING, ARCHIVE_ERRORS, ARCHIVED_DAYS
from evertick.roles.janitor.exporting import ClaimLost, DayChanged, DayExport
from evertick.runtime.archive import Archive
from evertick.runtime.logs import tenant_fields
from evertick.runtime.loop import Loop
from evertick.store.archive import days
from evertick.store.archive.days import Claim
from evertick.store.database import Pool
from evertick.store.engine import clock
from evertick.store.errors import ArchiveUnavailable
from evertick.store.maintenance import ledgers
from evertick.store.tenants import audit
from evertick.store.tenants.audit import AuditRecord

logger = logging.getLogger("evertick.janitor")

EVERY_SECONDS = 60.0
LEFTOVERS_KEPT = timedelta(hours=1)
"""A process that hangs may yet write a file that another has removed: for so long it is removed again."""
FILES_PER_BATCH = 100
DROP_TRIES = 20
DROP_PAUSE_SECONDS = 3.0
"""A long report keeps the ledgers from being locked. Another export would read all files again."""
ACTOR = "janitor"


class Archiving:
    """Archives days on the janitor's pool: one connection holds the lock, one works."""

    def __init__(self, pool: Pool, archive: Archive, history: timedelta) -> None:
        self._pool = pool
        self._archive = archive
        self._history = history
        self._waiting = 0
        self._unwatch: Callable[[], None] = lambda: None
        self._round: asyncio.Task[float] | None = None
        self._loop = Loop("archive", self._step)

    def start(self) -> None:
        self._unwatch = ARCHIVE_DAYS_WAITING.watch_value(lambda: self._waiting)
        self._loop.start()

    async def stop(self) -> None:
        """Stop at once: the next export, of any janitor, continues."""
        if self._round is not None:
            self._round.cancel()
        await self._loop.stop()
        self._unwatch()

    async def turn_on(self) -> None:
        """From now on no day is dropped that is not archived."""
        before = await days.marks(self._pool)
        if await days.turn(self._pool, self._archive.url):
            if before.is_on:
                logger.warning("the archive was at %s and is at %s now", before.url, self._archive.url)
            else:
                logger.info("days are archived at %s before they are dropped", self._archive.url)

    async def archive_days(self) -> int:
        """Archive and drop all days that wait; returns how many were dropped. None while another janitor is at it."""
        await self.turn_on()
        async with days.only_export(self._pool) as is_ours:
            if not is_ours:
                self._waiting = 0  # the one at work counts them
                return 0
            try:
                dropped = await self._archive_days()
            except ArchiveUnavailable as error:
                ARCHIVE_ERRORS.add(1)
                await days.note_error(self._pool, str(error))
                raise
            if (await days.marks(self._pool)).error is not None:
                await days.note_error(self._pool, None)
            return dropped

    async def _archive_days(self) -> int:
        now_at = (await clock.marks(self._pool)).trusted_at
        waiting = await waiting_days(self._pool, now_at - self._history)
        self._waiting = len(waiting)
        dropped = 0
        for day in waiting:
            if await self._archive_day(day, now_at):
                dropped += 1
                self._waiting -= 1
        await self._remove_leftovers(now_at)
        await self._remove_outdated(now_at)
        return dropped

    async def _archive_day(self, day: date, now_at: datetime) -> bool:
        await self._remove_leftovers(now_at)
        try:
            claim = await DayExport(self._pool, self._archive, day).run(now_at)
        except DayChanged:
            logger.warning("%s changed while it was exported: it is exported again", day)
            return False
        except ClaimLost:
            logger.warning("another janitor exports %s", day)
            return False
        result = await self._drop(claim)
        if result != "dropped":
            logger.info("%s is archived and could not be dropped yet: %s", day, result)
            return False
        ARCHIVED_DAYS.add(1)
        return True

    async def _drop(self, claim: Claim) -> str:
        for _ in range(DROP_TRIES - 1):
            result = await days.drop_archived_day(self._pool, claim)
            if result != "locked":
                return result
            await asyncio.sleep(DROP_PAUSE_SECONDS)
        return await days.drop_archived_day(self._pool, claim)

    async def _remove_leftovers(self, now_at: datetime) -> None:
        for leftover in await days.leftovers(self._pool, FILES_PER_BATCH):
            await self._archive.run(lambda files, path=leftover.path: files.delete(path))  # type: ignore[misc]
            if leftover.noted_at < now_at - LEFTOVERS_KEPT:
                await days.forget_files(self._pool, [leftover.path])

    async def _remove_outdated(self, now_at: datetime) -> None:
        """Remove files of tenants that keep their archive for a shorter time, and say so in their audit logs."""
        while outdated := await days.outdated(self._pool, now_at, FILES_PER_BATCH):
            for file in outdated:
                await self._archive.run(lambda files, path=file.path: files.delete(path))  # type: ignore[misc]
            last = {file.tenant_id: file.day for file in sorted(outdated, key=lambda file: file.day)}
            async with self._pool.acquire() as connection, connection.transaction():
                await days.forget_files(connection, [file.path for file in outdated])
                records = [
                    AuditRecord(tenant_id, ACTOR, "delete_archive", f"up to {day}", None)
                    for tenant_id, day in last.items()
                ]
                await audit.record_all(connection, records)
            for tenant_id, day in last.items():
                name = format_id(Prefix.TENANT, tenant_id)
                logger.info("the archive of %s up to %s is removed", name, day, extra=tenant_fields(tenant_id))

    async def _step(self) -> float:
        # A task of its own, which `stop` cancels: an export may take hours.
        self._round = asyncio.create_task(self._try())
        await asyncio.wait([self._round])
        return EVERY_SECONDS if self._round.cancelled() else self._round.result()

    async def _try(self) -> float:
        try:
            await self.archive_days()
        except ArchiveUnavailable as error:
            logger.warning("days are not archived, and stay in the database: %s", error)
        return EVERY_SECONDS


async def waiting_days(pool: Pool, before_at: datetime) -> list[date]:
    """Finished days that ended before an instant and have anything left, oldest first."""
    expired = dict(await ledgers.expired_days(pool, before_at))
    end = before_at.astimezone(UTC).date()
    loose = [day for day in await days.loose_days(pool, day_range(end).from_at) if day_range(day).end_at < before_at]
    finished = {day for day, is_finished in expired.items() if is_finished}
    return sorted(finished | {day for day in loose if day not in expired})
