"""Exports a day of the history: writes its files, reads them back, and compares them with the tables.

A day's tables are counted first. Each tenant gets a file of its runs and one of its gaps. The database computes the
digest of each row as it reads it; the same is computed of the rows of the finished file. A file that differs does not
count. Rows are read in pages and written in row groups, so that a large day needs no more memory than a small one.

An export that is interrupted is continued by the next one, with the files that were checked; these are read again. An
export that has lost its claim to another changes nothing any more, and its files are removed.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import partial
from itertools import islice
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from evertick.domain.archiving import (
    SCHEMA_VERSION,
    DayRange,
    FileKind,
    day_range,
    file_path,
    is_exported,
    manifest_path,
    slices,
)
from evertick.domain.ids import Prefix, format_id
from evertick.runtime.archive import Archive
from evertick.store.archive import days
from evertick.store.archive.days import AttemptLine, Claim, GapLine, KnownFile, Measured
from evertick.store.database import Pool
from evertick.store.errors import ArchiveDamaged, ArchiveUnavailable
from evertick.version import __version__

logger = logging.getLogger("evertick.janitor")

ATTEMPTS_PER_LANE = 2_000
LANES_PER_PAGE = 32
LOOSE_PER_PAGE = 10_000
ROWS_PER_GROUP = 65_536
MANIFEST, NO_TENANT = "manifest", 0
"""How a manifest is noted. One of an export that lost its claim or was killed is removed as its other files are."""

_Line = TypeVar("_Line", AttemptLine, GapLine)


class DayChanged(Exception):  # noqa: N818 - says what happened
    """The tables have changed while a day was exported: it is to be exported again."""


class ClaimLost(Exception):  # noqa: N818 - says what happened
    """Another export has taken the day over."""


@dataclass(slots=True)
class _Expected:
    """What a tenant has of a day, by the tables."""

    lanes: list[int] = field(default_factory=list)
    attempts: int = 0
    outcomes: int = 0
    withdrawals: int = 0
    gaps: int = 0
    gaps_digest: int = 0

    def rows(self, kind: FileKind) -> int:
        return self.gaps if kind is FileKind.GAPS else self.attempts + self.withdrawals

    def is_in(self, file: KnownFile) -> bool:
        """Whether a file that was checked earlier still holds all of it."""
        if file.kind == FileKind.GAPS:
            return (file.rows, int(file.digest)) == (self.gaps, self.gaps_digest)
        return (file.rows, file.outcomes) == (self.rows(FileKind.RUNS), self.outcomes)


class DayExport:
    """One export of a day, on the janitor's pool."""

    def __init__(self, pool: Pool, archive: Archive, day: date) -> None:
        self._pool = pool
        self._archive = archive
        self._day: DayRange = day_range(day)

    async def run(self, now_at: datetime) -> Claim:
        """Export the day and verify it, by a time that is trusted. After that it may be dropped."""
        claim = await days.claim(self._pool, self._day.day, token_hex(6))
        measured = None if claim is None else await days.measure(self._pool, claim, self._day)
        if claim is None or measured is None:
            raise ClaimLost
        expected = await self._expected(measured)
        adopted = {(file.tenant_id, file.kind): file for file in await days.adopt(self._pool, claim)}
        kept = await days.tenant_days(self._pool)
        files: list[KnownFile] = []
        for tenant_id, of_tenant in sorted(expected.items()):
            # Rows of a tenant that is not known are kept: somebody may know it.
            if tenant_id in kept and not is_exported(self._day.day, now_at, kept[tenant_id]):
                continue
            for kind in FileKind:
                if of_tenant.rows(kind):
                    earlier = adopted.pop((tenant_id, str(kind)), None)
                    files.append(await self._file_of(claim, tenant_id, kind, of_tenant, earlier))
        await days.reject_files(self._pool, [file.path for file in adopted.values()])
        await self._write_manifest(claim, measured, files)
        if not await days.verify_day(self._pool, claim):
            raise ClaimLost
        rows = sum(file.rows for file in files)
        logger.info("%s is archived: %d rows in %d files", self._day.day, rows, len(files))
        return claim

    async def _expected(self, measured: Measured) -> dict[int, _Expected]:
        found: dict[int, _Expected] = defaultdict(_Expected)
        for lane in await days.lanes_of_day(self._pool, self._day):
            of_tenant = found[lane.tenant_id]
            of_tenant.lanes.append(lane.lane_id)
            of_tenant.attempts += lane.attempts
            of_tenant.outcomes += lane.outcomes
        for loose in await days.loose_of_day(self._pool, self._day):
            of_tenant = found[loose.tenant_id]
            of_tenant.gaps, of_tenant.withdrawals = loose.gaps, loose.withdrawals
            of_tenant.gaps_digest = int(loose.gaps_digest)
        every = found.values()
        if measured != Measured(
            sum(each.attempts for each in every),
            sum(each.outcomes for each in every),
            sum(each.gaps for each in every),
            sum(each.withdrawals for each in every),
        ):
            raise DayChanged
        return found

    async def _file_of(
        self, claim: Claim, tenant_id: int, kind: FileKind, expected: _Expected, earlier: KnownFile | None
    ) -> KnownFile:
        """The tenant's file of a kind: that of an earlier export, if it is as it should be, or a new one."""
        if earlier is not None:
            if expected.is_in(earlier) and await is_intact(self._archive, earlier):
                return earlier
            await days.reject_files(self._pool, [earlier.path])
        path = file_path(kind, tenant_id, self._day.day, f"part-{claim.part}-{token_hex(6)}")
        if not await days.note_file(self._pool, claim, path, tenant_id, kind):
            raise ClaimLost
        if kind is FileKind.RUNS:
            written = await self._write(path, kind, self._attempts(tenant_id, expected, claim.day))
        else:
            written = await self._write(path, kind, self._gaps(tenant_id))
        if written[0] != expected.rows(kind):
            raise DayChanged
        checked = await self._archive.run(lambda files: files.check(path, kind))
        if (checked.rows, checked.digest) != written:
            raise ArchiveDamaged(f"{path} does not hold what was written to it")
        if checked.outcomes != (expected.outcomes if kind is FileKind.RUNS else 0):
            raise DayChanged
        file = KnownFile(
            path,
            tenant_id,
            str(kind),
            checked.rows,
            checked.outcomes,
            checked.bytes,
            str(checked.digest),
            checked.sha256,
        )
        if not await days.check_file(self._pool, claim, file, checked.extent):
            raise ClaimLost
        return file

    async def _write(self, path: str, kind: FileKind, groups: AsyncIterator[Sequence[Any]]) -> tuple[int, int]:
        """Write row groups to a file; returns how many rows, and the sum of their digests."""
        writer = await self._archive.run(lambda files: files.writer(path, kind))
        rows = digest = 0
        async for lines in groups:
            await self._archive.run(lambda _, lines=lines: writer.add(lines))  # type: ignore[misc] # its own lines
            rows += len(lines)
            digest += sum(line.digest for line in lines)
        await self._archive.run(lambda _: writer.close())
        return rows, digest

    async def _attempts(self, tenant_id: int, expected: _Expected, day: date) -> AsyncIterator[list[AttemptLine]]:
        """The tenant's attempts in row groups, by slices of the day; then its runs that were cancelled early."""
        read = partial(
            days.attempts_page,
            self._pool,
            most=ATTEMPTS_PER_LANE,
            are_later_gone=await days.are_later_gone(self._pool, day),
        )
        for first_seq, end_seq in slices(self._day, expected.attempts):
            async for group in _in_groups(self._slice(expected.lanes, first_seq, end_seq, read)):
                yield group
        if expected.withdrawals:
            withdrawals = partial(days.withdrawals_page, self._pool, tenant_id, self._day)
            async for group in _in_groups(_pages(withdrawals)):
                yield group

    async def _slice(
        self,
        lanes: Sequence[int],
        first_seq: int,
        end_seq: int,
        read: Callable[..., Awaitable[list[AttemptLine]]],
    ) -> AsyncIterator[list[AttemptLine]]:
        for some in _batched(lanes, LANES_PER_PAGE):
            after = dict.fromkeys(some, first_seq - 1)
            while after:
                page = await read(list(after.items()), end_seq)
                yield page
                last = {line.lane_id: line.seq for line in page}
                counts = Counter(line.lane_id for line in page)
                after = {lane_id: last[lane_id] for lane_id, count in counts.items() if count == ATTEMPTS_PER_LANE}

    async def _gaps(self, tenant_id: int) -> AsyncIterator[list[GapLine]]:
        async for group in _in_groups(_pages(partial(days.gaps_page, self._pool, tenant_id, self._day))):
            yield group

    async def _write_manifest(self, claim: Claim, measured: Measured, files: Sequence[KnownFile]) -> None:
        manifest = {
            "day": claim.day,
            "part": claim.part,
            "schema_version": SCHEMA_VERSION,
            "evertick_version": __version__,
            "tables": measured._asdict(),
            "files": [file._asdict() | {"tenant_id": format_id(Prefix.TENANT, file.tenant_id)} for file in files],
        }
        content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        path = manifest_path(*claim)
        if not await days.note_file(self._pool, claim, path, NO_TENANT, MANIFEST):
            raise ClaimLost
        await self._archive.run(lambda all_files: all_files.write_bytes(path, content))


async def is_intact(archive: Archive, file: KnownFile) -> bool:
    """Whether a file is there and holds what it held when it was checked. ArchiveUnavailable: nobody can say."""
    try:
        checked = await archive.run(lambda files: files.check(file.path, FileKind(file.kind)))
    except ArchiveDamaged:
        return False
    except ArchiveUnavailable as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        return False
    return (checked.rows, str(checked.digest), checked.sha256) == (file.rows, file.digest, file.sha256)


async def _pages(read: Callable[[_Line | None, int], Awaitable[list[_Line]]]) -> AsyncIterator[list[_Line]]:
    """All pages of what is read after the last line of the page before."""
    after: _Line | None = None
    while page := await read(after, LOOSE_PER_PAGE):
        yield page
        if len(page) < LOOSE_PER_PAGE:
            return
        after = page[-1]


async def _in_groups(pages: AsyncIterator[list[_Line]]) -> AsyncIterator[list[_Line]]:
    """The lines of pages in groups of `ROWS_PER_GROUP`, but for the last."""
    waiting: list[_Line] = []
    async for page in pages:
        waiting += page
        while len(waiting) >= ROWS_PER_GROUP:
            yield waiting[:ROWS_PER_GROUP]
            waiting = waiting[ROWS_PER_GROUP:]
    if waiting:
        yield waiting


def _batched(items: Sequence[int], size: int) -> Iterator[list[int]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
