"""Decides what the archive of a day consists of: where its files are, in which slices of time a day is read, and
whose days are kept.

The archive has one row for each attempt, with its outcome. A run may have attempts on several days, so that it is put
together when it is read; a mark says which attempt is its last.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from evertick.domain.ids import Prefix, format_id
from evertick.domain.schedule.instants import to_us

NO_LIMIT_DAYS = 36_500
"""A tenant with so many days has no limit of its own."""
DAY_US = 86_400_000_000
SLICE_ROWS = 500_000
MAX_SLICES = 288
SCHEMA_VERSION = 1


class FileKind(StrEnum):
    """What the rows of a file are."""

    RUNS = "runs"
    GAPS = "gaps"


class DayRange(NamedTuple):
    """A day as instants and as the seqs of its attempts; both ends are the beginnings of days."""

    day: date
    from_at: datetime
    end_at: datetime

    @property
    def first_seq(self) -> int:
        return to_us(self.from_at)

    @property
    def end_seq(self) -> int:
        return to_us(self.end_at)


def day_range(day: date) -> DayRange:
    from_at = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return DayRange(day, from_at, from_at + timedelta(days=1))


def slices(day: DayRange, rows: int) -> Iterator[tuple[int, int]]:
    """Equal parts of a day, from its first seq on: so many that each has about `SLICE_ROWS` rows.

    Each is written by itself, so that the newest runs of a large day are found without reading all of it.
    """
    count = max(1, min(MAX_SLICES, -(-rows // SLICE_ROWS)))
    for number in range(count):
        yield day.first_seq + number * DAY_US // count, day.first_seq + (number + 1) * DAY_US // count


def file_path(kind: FileKind, tenant_id: int, day: date, name: str) -> str:
    """Where a file is, below the root: directories as Hive names them, which DuckDB, Athena and Spark read."""
    return f"{kind}/tenant={format_id(Prefix.TENANT, tenant_id)}/date={day}/{name}.parquet"


def manifest_path(day: date, part: int, token: str) -> str:
    """Each export has its own: one that has lost its claim cannot replace that of the other."""
    return f"manifests/{day}.{part}-{token}.json"


def is_exported(day: date, now_at: datetime, archive_days: int) -> bool:
    """Whether a tenant that keeps its archive for so many days wants this one in it."""
    return archive_days >= NO_LIMIT_DAYS or day >= now_at.astimezone(UTC).date() - timedelta(days=archive_days)
