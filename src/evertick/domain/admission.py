"""Whether a tenant's request may enter: its quotas, the rate at which it submits, and overload.

Decides only. Counting jobs and runs, and drawing from the tenant's rate bucket, is the caller's.
"""

from dataclasses import dataclass
from datetime import timedelta

from evertick.domain.backpressure import DEFAULT_READY_QUOTA
from evertick.domain.errors import require_at_least
from evertick.domain.limits import QuotaName
from evertick.domain.policies import Priority
from evertick.domain.rate_bucket import Drawn, Rate

# When a run will end or a queue will drain is unknown, so these waits are guesses: long enough that callers that
# obey do not add to the load, short enough that they notice room soon after it appears.
RUNNING_WAIT = timedelta(seconds=1)
READY_WAIT = timedelta(seconds=5)
OVERLOAD_WAIT = timedelta(seconds=10)
ANSWERS_WAIT = timedelta(minutes=10)
"""Kept answers are removed when they are a day old, so room appears all the time."""


DEFAULT_RATE = Rate(per_second=1_000, burst=10_000)
"""The burst admits one full batch of jobs."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may have and do."""

    jobs: int = 100_000
    submit: Rate = DEFAULT_RATE
    running: int = 1_000
    ready: int = DEFAULT_READY_QUOTA
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
    storage_bytes: int = 0
    answer_bytes: int = 0
    overload: frozenset[Priority] = frozenset()  # submissions of these priorities are refused


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """What a request needs: all of it, or nothing. Of a batch, the first jobs may be admitted without the others."""

    submits: int = 1  # creations, edits, triggers, replays
    jobs: int = 0  # jobs that would exist in addition
    runs: int = 0  # runs due at once: a trigger, a replay, a job scheduled `now`
    is_stored: bool = True  # it stores more than its entry in the audit log
    keeps_answer: bool = False  # it has an Idempotency-Key
    is_batch: bool = False  # each submission is one new job
    priority: Priority | None = None  # of new work; of a batch, the highest that it may have


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


@dataclass(frozen=True, slots=True)
class Admitted:
    """Go on, with so many submissions and new jobs. `cut`: the limit that a batch reached with its next job."""

    submits: int
    jobs: int
    cut: Throttled | Refused | None = None


OVERLOADED = Throttled(QuotaName.OVERLOAD, OVERLOAD_WAIT)


Admission = Admitted | Throttled | Refused


def admit(quota: Quota, usage: Usage, request: AdmissionRequest) -> Admission:
    """Return the first limit that is reached. Only what is admitted here draws from the rate, see `with_rate`."""
    if request.priority in usage.overload:
        return OVERLOADED
    room = quota.jobs - usage.jobs
    if request.jobs and room < (1 if request.is_batch else request.jobs):
        return Refused(QuotaName.JOBS, quota.jobs)
    # Only runs due at once need room among the ready ones: a job for later waits in the timers table.
    blocked = _no_storage_for(quota, usage, request) or _no_room_for(quota, usage, request.runs)
    if blocked is not None:
        return blocked
    if request.is_batch and room < request.jobs:
        return Admitted(room, room, Refused(QuotaName.JOBS, quota.jobs))
    if not request.is_batch and request.submits > quota.submit.burst:
        return Refused(QuotaName.SUBMIT_BURST, quota.submit.burst)
    return Admitted(request.submits, request.jobs)


def with_rate(rate: Rate, admitted: Admitted, drawn: Drawn) -> Admission:
    """What was admitted otherwise, given what was drawn for it from the rate: of a batch, perhaps a part."""
    if drawn.granted >= admitted.submits:
        return admitted
    if not drawn.granted:
        return Throttled(QuotaName.SUBMIT_RATE, timedelta(microseconds=drawn.wait_us))
    missing = min(admitted.submits - drawn.granted, rate.burst)
    wait = timedelta(seconds=missing / rate.per_second)
    return Admitted(drawn.granted, drawn.granted, Throttled(QuotaName.SUBMIT_RATE, wait))


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
    if not runs:
        return None
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
