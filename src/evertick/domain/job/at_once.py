"""Which jobs have a run to make as soon as they exist: only these can overload those who do the work."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from evertick.domain.errors import InvalidSchedule
from evertick.domain.job.spec import DEFAULT_TIMEZONE
from evertick.domain.job.timing import is_plain_instant
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.spec import Once, Soon
from evertick.domain.schedule.text import Setting, is_one_off, parse, split_zone
from evertick.domain.schedule.zone import zone

SOON = timedelta(seconds=1)


def runs_at_once(job: object, now: datetime) -> int:
    """How many runs a job, as its author wrote it, would have within a second: one or none."""
    if not isinstance(job, Mapping):
        return 0
    schedule, timezone = job.get("schedule"), job.get("timezone") or DEFAULT_TIMEZONE
    if not isinstance(schedule, str) or not isinstance(timezone, str):
        return 0
    try:
        return int(_is_at_once(schedule, timezone, now + SOON))
    except (InvalidSchedule, ValueError, OverflowError):
        return 0  # refused where it is read


def _is_at_once(schedule: str, timezone: str, before: datetime) -> bool:
    if is_plain_instant(schedule):
        return datetime.fromisoformat(schedule) <= before
    if not is_one_off(schedule):
        return False
    bare, name = split_zone(schedule, timezone)
    match parse(bare, Setting(zone(name))):
        case Soon(delay_us, _):
            return delay_us <= SOON / timedelta(microseconds=1)
        case Once(at_us):
            return at_us <= to_us(before)
        case _:
            return False
