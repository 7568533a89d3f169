"""Reading archived runs and gaps: those of days that were dropped from the database.

Files are found in the database, by tenant and by the range of their rows, and are read from the latest on until there
is enough. A request reads `MAX_FILES` files at most; then its result is cut, and says from where on it is complete. So
a search through a year goes on page by page.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from evertick.domain.archiving import FileKind
from evertick.domain.schedule.instants import from_us, to_us
from evertick.runtime.archive import Archive
from evertick.store.archive import days
from evertick.store.archive.days import AttemptLine, FileRange, GapLine
from evertick.store.jobs.runs import AttemptRow, FireTimeRange, GapRow, RunRow
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import NoArchive

if TYPE_CHECKING:
    from evertick.store.archive.parquet import ParquetArchive

MAX_FILES = 16
MAX_FILES_OF_RUN = 64

_L = TypeVar("_L", AttemptLine, GapLine)


class Found(NamedTuple, Generic[_L]):
    """Rows, the latest first. `cut_at`: others may be at this seq or instant, or before it; None: these are all."""

    lines: list[_L]
    cut_at: int | None


class ArchivedRuns:
    """The archive as one request of a tenant reads it."""

    def __init__(self, tenant: TenantContext) -> None:
        if tenant.archive is None:
            raise NoArchive
        self._archive: Archive = tenant.archive
        self._tenant = tenant
        self._files_left = MAX_FILES

    async def newest(
        self, fire_times: FireTimeRange, down_to: int, before: tuple[int, int], most: int
    ) -> Found[AttemptLine]:
        """The tenant's runs before a place (seq, lane) and not before the seq `down_to`."""
        files = await days.files_by_seq(
            self._tenant.pool,
            self._tenant.tenant_id,
            from_seq=max(fire_times.from_seq, down_to),
            before_seq=before[0],
            from_at=fire_times.from_at,
            before_at=fire_times.before_at,
            most=self._files_left + 1,
        )

        def read(path: str) -> "Callable[[ParquetArchive], list[AttemptLine]]":
            return lambda archive: archive.newest_runs(path, fire_times.from_at, fire_times.before_at, before, most)

        return await self._latest(files, read, lambda line: line.seq, lambda file: file.extent.last_seq, most)

    async def runs_of_job(self, job_id: int, fire_times: FireTimeRange, most: int) -> Found[AttemptLine]:
        """A job's runs in a range of fire times, each by its last attempt."""

        def read(path: str) -> "Callable[[ParquetArchive], list[AttemptLine]]":
            return lambda archive: archive.runs_of_job(path, job_id, fire_times.from_at, fire_times.before_at, most)

        files = await self._files(FileKind.RUNS, fire_times.from_at, fire_times.before_at, self._files_left + 1)
        return await self._latest(files, read, lambda line: to_us(line.fire_at), _last_us, most)

    async def gaps_of_job(self, job_id: int, fire_times: FireTimeRange, most: int) -> Found[GapLine]:
        """A job's gaps that reach into a range."""

        def read(path: str) -> "Callable[[ParquetArchive], list[GapLine]]":
            return lambda archive: archive.gaps_of_job(path, job_id, fire_times.from_at, fire_times.before_at)

        files = await self._files(FileKind.GAPS, fire_times.from_at, fire_times.before_at, self._files_left + 1)
        return await self._latest(files, read, lambda line: to_us(line.first_at), _last_us, most)

    async def attempts_of_run(self, job_id: int, fire_at: datetime) -> list[AttemptLine]:
        """The attempts of a run, the first one first."""
        files = await self._files(FileKind.RUNS, fire_at, from_us(to_us(fire_at) + 1), MAX_FILES_OF_RUN)
        found: list[AttemptLine] = []
        for file in files:
            found += await self._archive.read(
                self._tenant.tenant_id,
                lambda archive, path=file.path: archive.attempts_of_run(path, job_id, fire_at),  # type: ignore[misc]
            )
        return sorted(found, key=lambda line: line.seq)

    async def _files(self, kind: FileKind, from_at: datetime, before_at: datetime, most: int) -> list[FileRange]:
        tenant = self._tenant
        return await days.files_by_fire_time(
            tenant.pool, tenant.tenant_id, kind, from_at=from_at, before_at=before_at, most=most
        )

    async def _latest(
        self,
        files: Iterable[FileRange],
        read: "Callable[[str], Callable[[ParquetArchive], list[_L]]]",
        place: Callable[[_L], int],
        last_place: Callable[[FileRange], int],
        most: int,
    ) -> Found[_L]:
        """The latest lines of files, which come in the order of their last places."""
        found: list[_L] = []
        for file in files:
            last = last_place(file)
            if len(found) >= most and place(found[most - 1]) > last:
                break
            if not self._files_left:
                return Found([line for line in found if place(line) > last], last)
            self._files_left -= 1
            found += await self._archive.read(self._tenant.tenant_id, read(file.path))
            found.sort(key=place, reverse=True)
        return Found(found, None)


def _last_us(file: FileRange) -> int:
    return to_us(file.extent.last_at)


def run_row(line: AttemptLine) -> RunRow:
    """A run by an archived attempt; without one, for a run that was cancelled while it waited."""
    is_attempt = line.attempt > 0
    return RunRow(
        job_id=line.job_id,
        fire_at=line.fire_at,
        reason=line.reason,
        spec_version=line.spec_version,
        has_timer=False,
        is_queued=False,
        waits_at_gate=None,
        is_withdrawn=line.is_withdrawn,
        lane_id=line.lane_id if is_attempt else None,
        seq=line.seq if is_attempt else None,
        attempt=line.attempt if is_attempt else None,
        is_leased=False,
        result=line.result if is_attempt else None,
        started_at=line.started_at,
        finished_at=line.finished_at if is_attempt else None,
        worker=line.worker,
        code=line.code,
        error=line.error,
        name=line.job_name,
        handler=line.handler,
        queue=line.queue if is_attempt else None,
    )


def attempt_row(line: AttemptLine) -> AttemptRow:
    return AttemptRow(run_row(line), line.due_at, line.excerpt)


def gap_row(line: GapLine) -> GapRow:
    return GapRow(line.job_id, line.first_at, line.last_at, line.ticks, line.spec_version, line.reason)


def with_archived(live: Sequence[AttemptRow], archived: Sequence[AttemptLine]) -> list[AttemptRow]:
    """The attempts of a run, archived ones first. A withdrawal counts as a row only if there is no attempt."""
    known = {row.run.seq for row in live}
    attempts = [attempt_row(line) for line in archived if line.attempt > 0 and line.seq not in known]
    if rows := [*attempts, *(row for row in live if row.run.seq is not None)]:
        return sorted(rows, key=lambda row: row.run.seq or 0)
    return [*live] or [attempt_row(line) for line in archived[-1:]]
