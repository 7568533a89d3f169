"""Rate buckets: how many of something may happen at a rate, with a burst; and slices of a bucket that processes share.

A bucket fills with tokens at its rate, up to its burst. A process draws a slice of tokens ahead of its use, so that it
asks for more a few times a second and not for each request. Decides only: `store/engine/rate_buckets` keeps the
buckets, by the same arithmetic, and `runtime/rate_slices` the slices.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from evertick.domain.errors import InvalidInput, require_at_least

# One token in units. Each microsecond adds `per_second` units; a fraction of a unit is left out.
UNITS_PER_TOKEN = 1_000_000
CLOCK_TOLERANCE_US = 1_000_000
"""A statement may read the clock before another one, and write after it. A clock that is further back was set."""
SLICE_US = 100_000
"""A slice lasts about this long at the pace of its process."""
SHORTEST_SLICE_US = 10_000
"""Between two draws from an empty bucket, however small its burst is."""
LIFETIME_US = 1_000_000
"""After this long, what is left of a slice is not used."""
PARTS = 8
"""A slice is at most this part of a second's tokens and of the burst, so that one process does not hold them all."""


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` on average, and up to `burst` in one instant after a time without use."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if not self.per_second > 0:
            raise InvalidInput("per_second", f"must be more than 0, got {self.per_second}")
        require_at_least("burst", self.burst, 1)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What may be drawn under a rate: `units` millionths of a token, as of an instant."""

    units: int
    as_of_us: int


class Drawn(NamedTuple):
    """How many tokens were drawn. If none: after which time there are enough, unless others draw before."""

    granted: int
    wait_us: int = 0


def full(rate: Rate, now_us: int) -> Bucket:
    """A bucket that is new, or was not drawn from for long."""
    return Bucket(rate.burst * UNITS_PER_TOKEN, now_us)


def draw(rate: Rate, bucket: Bucket, now_us: int, *, least: int, wanted: int) -> tuple[Drawn, Bucket]:
    """Draw the tokens that are there, up to `wanted`, but none if there are fewer than `least`.

    `least` is at most the burst: more are never there.
    """
    bucket = refill(rate, bucket, now_us)
    there = bucket.units // UNITS_PER_TOKEN
    if there >= least:
        granted = min(wanted, there)
        return Drawn(granted), replace(bucket, units=bucket.units - granted * UNITS_PER_TOKEN)
    missing = least * UNITS_PER_TOKEN - bucket.units
    return Drawn(0, bucket.as_of_us + math.ceil(missing / rate.per_second) - now_us), bucket


def refill(rate: Rate, bucket: Bucket, now_us: int) -> Bucket:
    """The bucket as of now. A lower burst applies at once.

    A clock that goes back adds nothing. Within the tolerance, time counts again once it passes `as_of_us`; beyond it,
    the clock was set, and time counts from now on.
    """
    since_us = bucket.as_of_us if bucket.as_of_us - now_us <= CLOCK_TOLERANCE_US else now_us
    as_of_us = max(now_us, since_us)
    units = bucket.units + math.floor((as_of_us - since_us) * rate.per_second)
    return Bucket(min(units, rate.burst * UNITS_PER_TOKEN), as_of_us)


def rate_of(per_second: float, burst: int | None) -> Rate:
    """A rate limit as users set it. Without a burst it is what a second allows."""
    return Rate(per_second, burst or math.ceil(per_second))


def part_of(rate: Rate, part: float) -> Rate:
    """A rate that is so much of another one."""
    return Rate(rate.per_second * part, max(1, math.floor(rate.burst * part)))


@dataclass(frozen=True, slots=True)
class Slice:
    """The tokens that a process holds of a bucket. Times are the process's own.

    `spent` tokens were used, or refused, since the last draw at `drawn_us`. A draw of `refused` tokens was refused:
    they are there at `there_us`, and until `again_us` asking for as many is pointless.
    """

    tokens: int = 0
    spent: int = 0
    drawn_us: int = -LIFETIME_US
    refused: int = 0
    there_us: int = 0
    again_us: int = 0


def unexpired(held: Slice, now_us: int) -> Slice:
    """The slice without tokens that are too old: its bucket may have been filled to its burst meanwhile."""
    return held if now_us - held.drawn_us < LIFETIME_US else replace(held, tokens=0)


def spend(held: Slice, amount: int) -> Slice:
    return replace(held, tokens=held.tokens - amount, spent=held.spent + amount)


def give_back(rate: Rate, held: Slice, amount: int, now_us: int) -> Slice:
    """Hold tokens again that were spent for something that was undone; no more than the burst: the rest is too old."""
    held = unexpired(held, now_us)
    return replace(held, tokens=min(held.tokens + amount, rate.burst), drawn_us=now_us, refused=0)


def turn_away(held: Slice, amount: int) -> Slice:
    """Count what was refused as demand, so that the next slice is large enough for it."""
    return replace(held, spent=held.spent + amount)


def refusal_us(held: Slice, least: int, now_us: int) -> int | None:
    """How long to wait for so many tokens, if an earlier refusal says so. None: ask the bucket."""
    if not held.refused or least - held.tokens < held.refused or now_us >= held.again_us:
        return None
    return max(held.there_us, held.again_us) - now_us


def ahead(rate: Rate, held: Slice, now_us: int) -> int:
    """How many tokens to draw beyond those that are needed now: what was asked for lately in the time of a slice.

    A process that spends faster and faster doubles its slice with each draw; one that seldom spends draws none ahead.
    """
    expected = held.spent * SLICE_US // max(now_us - held.drawn_us, SLICE_US)
    return min(expected, int(rate.per_second) // PARTS, rate.burst // PARTS)


def received(rate: Rate, held: Slice, drawn: Drawn, least: int, now_us: int) -> Slice:
    """The slice after a draw of at least so many."""
    if drawn.granted or not least:
        return Slice(tokens=held.tokens + drawn.granted, drawn_us=now_us)
    # Asking whenever one token is there would be a statement for each; asking after the bucket has filled up would
    # lose what runs over.
    pause_us = max(SHORTEST_SLICE_US, min(SLICE_US, int(rate.burst * UNITS_PER_TOKEN / (2 * rate.per_second))))
    again_us = now_us + max(pause_us, min(drawn.wait_us, LIFETIME_US))
    return replace(held, refused=least, there_us=now_us + drawn.wait_us, again_us=again_us)
