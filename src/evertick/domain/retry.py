"""Owns what follows an attempt's outcome: a retry and when, a dead letter, a deferral, or nothing. Reads `Retry-After`.

Answers are delays, not instants: the statement that records the outcome adds them to the database's clock.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TypeAlias, assert_never

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import RunKey
from evertick.domain.policies import Backoff
from evertick.domain.stable_hash import stable_int
from evertick.domain.states import Outcome

RETRY_AFTER_MAX = timedelta(hours=24)
"""A `Retry-After` beyond this is taken for a mistake and shortened to it."""

DEFERRAL_MIN = timedelta(seconds=5)
DEFERRAL_MAX = timedelta(minutes=5)
"""Between these grows the wait of an attempt that finds again and again that it cannot be started."""

_ZERO = timedelta(0)
_MICROSECOND = timedelta(microseconds=1)
_DOUBLINGS_MAX = 128  # from a microsecond past the longest timedelta: more would only grow the integer
_SECONDS = re.compile(r"\d+", re.ASCII)
_SECONDS_MAX_DIGITS = 12  # still fits a timedelta; more digits mean "very long"
_DATE_MAX_LENGTH = 40


class GiveUpReason(StrEnum):
    """Why no attempt follows."""

    EXHAUSTED = "exhausted"  # the policy: `max_retries` are used up
    NOT_RETRYABLE = "not_retryable"  # worker or dispatcher: trying again cannot help


@dataclass(frozen=True, slots=True)
class Retry:
    """The run goes on: attempt number `attempt` is due after `delay`. A deferred attempt keeps its number."""

    attempt: int
    delay: timedelta


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run is over and becomes a dead letter; `attempt` was its last."""

    attempt: int
    reason: GiveUpReason


NextStep: TypeAlias = Retry | GiveUp | None
"""What follows an attempt. None: the run is finished, because it succeeded or was cancelled."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What a job's author chose; the defaults are the API's."""

    max_retries: int = 3
    backoff: Backoff = Backoff.EXPONENTIAL
    delay: timedelta = timedelta(seconds=10)
    max_delay: timedelta = timedelta(hours=1)

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise InvalidInput("max_retries", "must not be negative")
        if self.delay < _ZERO:
            raise InvalidInput("retry_delay_seconds", "must not be negative")
        if self.max_delay < self.delay:
            raise InvalidInput("retry_max_delay_seconds", "must be at least retry_delay_seconds")

    def is_last_try(self, attempt: int) -> bool:
        """Whether the run ends in a dead letter if this attempt fails or is lost."""
        return attempt > self.max_retries


@dataclass(frozen=True, slots=True)
class Ended:
    """How attempt number `attempt` (from 1) ended.

    `wait` is the least time until the next try: the target's `Retry-After`, or until its breaker closes.
    """

    outcome: Outcome
    attempt: int
    retryable: bool = True
    wait: timedelta | None = None


def decide(policy: RetryPolicy, run: RunKey, ended: Ended) -> NextStep:
    """Decide what follows. Equal arguments always give an equal answer, jitter included."""
    match ended.outcome:
        case Outcome.SUCCESS | Outcome.CANCELLED:
            return None
        case Outcome.DEFERRED:
            return Retry(ended.attempt, _spread_wait(run, ended))
        case Outcome.FAILED | Outcome.TIMED_OUT | Outcome.LOST:
            return _after_failure(policy, run, ended)
        case _:
            assert_never(ended.outcome)


def _after_failure(policy: RetryPolicy, run: RunKey, ended: Ended) -> Retry | GiveUp:
    if not ended.retryable:
        return GiveUp(ended.attempt, GiveUpReason.NOT_RETRYABLE)
    if policy.is_last_try(ended.attempt):
        return GiveUp(ended.attempt, GiveUpReason.EXHAUSTED)
    delay = max(backoff_delay(policy, run, ended.attempt), _spread_wait(run, ended))
    return Retry(ended.attempt + 1, delay)


def backoff_delay(policy: RetryPolicy, run: RunKey, attempt: int) -> timedelta:
    """The delay after attempt `attempt` failed: the backoff's, made up to half as long again by jitter.

    1. nominal = delay × 1 (fixed), × attempt (linear), × 2^(attempt - 1) (exponential)
    2. longest = min(1.5 × nominal, max_delay)
    3. the answer lies in [2/3 × longest, longest]

    So below the cap no retry comes before its nominal delay and exponential delays never shrink; at the cap
    retries still spread, within the last third below it.
    """
    nominal = policy.delay // _MICROSECOND * _growth(policy.backoff, attempt)
    longest = min(nominal * 3 // 2, policy.max_delay // _MICROSECOND)
    shortest = -(-longest * 2 // 3)  # rounded up: never before its nominal delay, not by a microsecond
    return timedelta(microseconds=shortest + _jitter(longest - shortest, run, attempt))


def deferral_delay(run: RunKey, deferrals: int) -> timedelta:
    """How long an attempt waits that was put back so often before: as an exponential backoff grows."""
    policy = RetryPolicy(backoff=Backoff.EXPONENTIAL, delay=DEFERRAL_MIN, max_delay=DEFERRAL_MAX)
    return backoff_delay(policy, run, deferrals + 1)


def _growth(backoff: Backoff, attempt: int) -> int:
    match backoff:
        case Backoff.FIXED:
            return 1
        case Backoff.LINEAR:
            return attempt
        case Backoff.EXPONENTIAL:
            return 1 << min(attempt - 1, _DOUBLINGS_MAX)
        case _:
            assert_never(backoff)


def _spread_wait(run: RunKey, ended: Ended) -> timedelta:
    """What was asked for and up to a tenth more: targets that ask many to wait must not get all of them back at once.

    `max_delay` does not shorten it. It bounds our own guess; this is the target's knowledge.
    """
    asked = min(max(ended.wait or _ZERO, _ZERO), RETRY_AFTER_MAX) // _MICROSECOND
    return timedelta(microseconds=asked + _jitter(asked // 10, run, ended.attempt))


def _jitter(width: int, run: RunKey, attempt: int) -> int:
    return stable_int(width + 1, "retry", run.job_id, run.fire_at_us, attempt)


def parse_retry_after(value: str, now: datetime) -> timedelta | None:
    """How long a header `Retry-After` (RFC 9110, 10.2.3) asks to wait from `now`: by seconds, or by a date.

    Zero for a past date; None for a value that says nothing usable.
    """
    text = value.strip(" \t")
    if _SECONDS.fullmatch(text):
        digits = text.lstrip("0") or "0"
        return timedelta(seconds=int(digits)) if len(digits) <= _SECONDS_MAX_DIGITS else timedelta.max
    if len(text) > _DATE_MAX_LENGTH or not text.isascii():
        return None
    try:
        until = parsedate_to_datetime(text)
        return max((until if until.tzinfo else until.replace(tzinfo=UTC)) - now, timedelta(0))
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
