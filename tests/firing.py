"""Fire times as short texts, for tests that say what a schedule does."""

from datetime import UTC, datetime
from typing import TypedDict, Unpack

from evertick import Schedule

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
NEW_YORK = "America/New_York"
BERLIN = "Europe/Berlin"


class Policies(TypedDict, total=False):
    dst_gap: str
    dst_overlap: str
    key: str


def fires(
    text: str,
    zone: str = "UTC",
    *,
    after: str = "2026-01-01T00:00Z",
    count: int = 3,
    **options: Unpack[Policies],
) -> list[str]:
    """The first fire times after an instant, as short texts in UTC."""
    schedule = Schedule(text, zone, **options)
    return [at.strftime("%Y-%m-%d %H:%M") for at in schedule.upcoming(datetime.fromisoformat(after), count)]


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp()) * 1_000_000
