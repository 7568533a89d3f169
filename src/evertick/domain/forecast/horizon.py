"""What a forecast is asked about, and what it is made from: buckets of time, and timers grouped by rule."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from evertick.domain.rule import Rule
from evertick.domain.schedule.instants import DAY_S, SECOND_US, to_us

MINUTE_US = 60 * SECOND_US
MAX_BUCKETS = 3_000
MAX_US = 366 * DAY_S * SECOND_US
_LATEST_US = to_us(datetime(9900, 1, 1, tzinfo=UTC))
"""From when on the calendar may end within a horizon."""


class Horizon(NamedTuple):
    """Buckets of equal length in [from_us, to_us). What is due before `now_us` has fired, or fires now."""

    from_us: int
    to_us: int
    bucket_us: int
    now_us: int

    @property
    def buckets(self) -> int:
        return (self.to_us - self.from_us) // self.bucket_us

    @property
    def start_us(self) -> int:
        """From when on due times are counted."""
        return max(self.from_us, self.now_us)

    @property
    def first_minute(self) -> int:
        """The first whole minute, since 1970. What is due before it is counted rule by rule."""
        return -(-self.start_us // MINUTE_US)


def horizon_of(from_us: int, until_us: int, bucket_us: int, now_us: int) -> Horizon:
    """A horizon of whole buckets that contains the given times, as far as it may: it is a year long at most.

    Buckets are whole minutes. They are longer than asked for where there would be too many.
    """
    from_us = min(max(from_us, 0), _LATEST_US)
    span_us = min(max(until_us - from_us, 1), MAX_US)
    least_us = -(-span_us // ((MAX_BUCKETS - 1) * MINUTE_US)) * MINUTE_US
    bucket_us = max(bucket_us // MINUTE_US * MINUTE_US, least_us, MINUTE_US)
    first_us = from_us // bucket_us * bucket_us
    buckets = -(-(from_us + span_us - first_us) // bucket_us)
    return Horizon(first_us, first_us + buckets * bucket_us, bucket_us, now_us)


class Pending(NamedTuple):
    """Jobs of one rule with timers at one fire time, which are due so many seconds after it."""

    fire_us: int
    offset_s: int
    jobs: int


@dataclass(frozen=True, slots=True)
class RuleLoad:
    """The pending jobs of one rule, in the order of their offsets."""

    rule: Rule
    pending: tuple[Pending, ...]

    @property
    def jobs(self) -> int:
        return sum(each.jobs for each in self.pending)
