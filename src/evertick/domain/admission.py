"""Whether a tenant's request may enter: its quotas, the rate at which it submits, and overload.

Decides only. Counting jobs and runs, and keeping each tenant's allowance, is the caller's.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import assert_never

from evertick.domain.errors import require_at_least

# When a run will end or a queue will drain is unknown, so these waits are guesses: long enough that callers that
# obey do not add to the load, short enough that they notice room soon after it appears.
RUNNING_WAIT = timedelta(seconds=1)
READY_WAIT = timedelta(seconds=5)
ANSWERS_WAIT = timedelta(minutes=10)
"""Kept answers are removed when they are a day old, so room appears all the time."""

# One request in allowance units. Each microsecond adds `per_second` units, so all arithmetic is in integers.
_ONE = 1_000_000


class QuotaName(StrEnum):
    """Which limit was reached. The API names it beside `Retry-After`."""

    JOBS = "jobs"  # jobs that exist at once
    SUBMIT_RATE = "submit_rate"  # submissions per second, once the burst is used up
    SUBMIT_BURST = "submit_burst"  # submissions in one request
    RUNNING = "running"  # runs at once
    READY = "ready"  # attempts waiting in lanes: overload
    STORAGE = "storage"  # bytes of jobs, their versions and the audit log
    KEPT_ANSWERS = "kept_answers"  # bytes of answers that are kept for repeated requests
    API_KEYS = "api_keys"  # keys that have not ended
    QUEUES = "queues"  # queues that something refers to
    COMPUTATIONS = "computations"  # schedules that wait to be computed
    BATCHES = "batches"  # large batches at work or waiting
    BODY_BYTES = "body_bytes"  # memory for bodies of requests under way
    LONG_POLLS = "long_polls"  # lease requests that wait
    REQUESTS = "requests"  # requests under way, or waiting for these
    UNREAD_ANSWERS = "unread_answers"  # bytes of answers that clients have not read


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` on average, and up to `burst` in one instant after a time without requests."""

    per_second: int
    burst: int

    def __post_init__(self) -> None:
        require_at_least("per_second", self.per_second, 1)
        require_at_least("burst", self.burst, 1)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What may still be drawn under a rate: `units` millionths of one, as of a moment."""

    units: int
    as_of_us: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Not enough allowance now; enough after exactly this time, if nothing else is drawn."""

    retry_after: timedelta


@dataclass(frozen=True, slots=True)
class TooLarge:
    """More than the rate's burst: no wait will help."""


def full(rate: Rate, now_us: int) -> Allowance:
    """The allowance of a tenant that is new, or has sent nothing for long."""
    return Allowance(rate.burst * _ONE, now_us)


def draw(rate: Rate, allowance: Allowance, amount: int, now_us: int) -> Allowance | Wait | TooLarge:
    """Draw `amount`, all or nothing: the allowance that remains, or why not.

    A clock that goes back adds nothing and takes nothing: time counts again once it passes `as_of_us`.
    """
    if amount > rate.burst:
        return TooLarge()
    as_of_us = max(now_us, allowance.as_of_us)
    gained = (as_of_us - allowance.as_of_us) * rate.per_second
    units = min(allowance.units + gained, rate.burst * _ONE) - amount * _ONE
    if units >= 0:
        return Allowance(units, as_of_us)
    refill_us = -(units // rate.per_second)  # rounds the wait up, as floor division of a negative does
    return Wait(timedelta(microseconds=as_of_us + refill_us - now_us))


def draw_up_to(rate: Rate, allowance: Allowance, amount: int, now_us: int) -> tuple[int, Allowance]:
    """Draw as much of `amount` as there is, in whole ones: how many, and the allowance that remains."""
    rest = draw(rate, allowance, 0, now_us)
    assert isinstance(rest, Allowance)
    drawn = min(amount, rest.units // _ONE)
    return drawn, Allowance(rest.units - drawn * _ONE, rest.as_of_us)


def give_back(rate: Rate, allowance: Allowance, amount: int) -> Allowance:
    """The allowance once so many that were drawn and not used are returned; never more than the burst."""
    return Allowance(min(allowance.units + amount * _ONE, rate.burst * _ONE), allowance.as_of_us)


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may have and do. The burst admits one full batch of jobs."""

    jobs: int = 100_000
    submit: Rate = Rate(per_second=1_000, burst=10_000)
    running: int = 1_000
    ready: int = 1_000_000
    storage_bytes: int = 10 * 2**30  # of jobs; as much again of kept answers

    def __post_init__(self) -> None:
        require_at_least("jobs", self.jobs, 0)
        require_at_least("running", self.running, 0)
        require_at_least("ready", self.ready, 0)
        require_at_least("storage_bytes", self.storage_bytes, 0)


@dataclass(frozen=True, slots=True)
class Usage:
    """What counts against the quota at this moment."""

    jobs: int
    running: int
    ready: int
    allowance: Allowance
    storage_bytes: int = 0
    answer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """What a request needs: all of it, or nothing."""

    submits: int = 1  # creations, edits, triggers, replays
    jobs: int = 0  # jobs that would exist in addition
    runs: int = 0  # runs due at once: a trigger, a replay, a job scheduled `now`
    is_stored: bool = True  # it stores more than its entry in the audit log
    keeps_answer: bool = False  # it has an Idempotency-Key


@dataclass(frozen=True, slots=True)
class Admitted:
    """Go on, and keep `allowance` as the tenant's new one."""

    allowance: Allowance


@dataclass(frozen=True, slots=True)
class Throttled:
    """Not now. The same request may succeed after `retry_after`."""

    quota: QuotaName
    retry_after: timedelta

    @property
    def retry_after_seconds(self) -> int:
        """For the `Retry-After` header: whole seconds, rounded up."""
        return -(-self.retry_after // timedelta(seconds=1))


@dataclass(frozen=True, slots=True)
class Refused:
    """Over `limit`, and waiting alone will not change that."""

    quota: QuotaName
    limit: int


Admission = Admitted | Throttled | Refused


def admit(quota: Quota, usage: Usage, request: AdmissionRequest, now_us: int) -> Admission:
    """Return the first limit that is reached; the allowance is drawn only when none is."""
    if request.jobs and usage.jobs + request.jobs > quota.jobs:
        return Refused(QuotaName.JOBS, quota.jobs)
    full_storage = _no_storage_for(quota, usage, request)
    if full_storage is not None:
        return full_storage
    # Only runs due at once can overload: a job for later waits in the timers table, which is the buffer.
    blocked = _no_room_for(quota, usage, request.runs) if request.runs else None
    if blocked is not None:
        return blocked
    match draw(quota.submit, usage.allowance, request.submits, now_us):
        case Allowance() as rest:
            return Admitted(rest)
        case Wait(retry_after):
            return Throttled(QuotaName.SUBMIT_RATE, retry_after)
        case TooLarge():
            return Refused(QuotaName.SUBMIT_BURST, quota.submit.burst)
        case never:
            assert_never(never)


def _no_storage_for(quota: Quota, usage: Usage, request: AdmissionRequest) -> Throttled | Refused | None:
    if request.is_stored and usage.storage_bytes >= quota.storage_bytes:
        return Refused(QuotaName.STORAGE, quota.storage_bytes)
    # A tenant over its quota can still pause and cancel, up to twice the quota.
    if usage.storage_bytes > 2 * quota.storage_bytes:
        return Refused(QuotaName.STORAGE, quota.storage_bytes)
    if request.keeps_answer and usage.answer_bytes >= quota.storage_bytes:
        return Throttled(QuotaName.KEPT_ANSWERS, ANSWERS_WAIT)
    return None


def _no_room_for(quota: Quota, usage: Usage, runs: int) -> Throttled | Refused | None:
    if not quota.running:
        return Refused(QuotaName.RUNNING, 0)
    if runs > quota.ready:
        return Refused(QuotaName.READY, quota.ready)
    # More than may run at once wait their turn, which is what being ready means.
    if usage.running >= quota.running:
        return Throttled(QuotaName.RUNNING, RUNNING_WAIT)
    if usage.ready + runs > quota.ready:
        return Throttled(QuotaName.READY, READY_WAIT)
    return None
