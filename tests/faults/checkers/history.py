"""What the checkers read: all that is on record about jobs, and the receiver's log. Time is µs since 1970 UTC."""

from dataclasses import dataclass
from operator import attrgetter

from evertick.domain.ids import RunKey
from evertick.domain.states import AttemptStatus, GapReason, OpenAttempt, Outcome, RunReason, RunStatus, run_status

_IN_ORDER = attrgetter("attempt", "seq")


@dataclass(frozen=True, slots=True)
class OutcomeRecord:
    """`is_final`: no retry was set. `started_us` is None where nobody knows it, or nothing started."""

    result: Outcome
    is_final: bool
    started_us: int | None
    finished_us: int
    worker: str


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    lane_id: int
    seq: int
    attempt: int
    spec_version: int
    due_us: int
    outcome: OutcomeRecord | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All attempts at one (job, fire time), in any order. `withdrawn_us`: cancelled while it waited for a timer."""

    job_id: int
    fire_us: int
    reason: RunReason
    attempts: tuple[AttemptRecord, ...]
    withdrawn_us: int | None = None

    @property
    def key(self) -> RunKey:
        return RunKey(self.job_id, self.fire_us)

    @property
    def is_scheduled(self) -> bool:
        return self.reason is not RunReason.MANUAL and self.reason is not RunReason.REPLAY

    @property
    def in_order(self) -> list[AttemptRecord]:
        return sorted(self.attempts, key=_IN_ORDER)

    @property
    def latest(self) -> AttemptRecord | None:
        return max(self.attempts, key=_IN_ORDER, default=None)

    @property
    def status(self) -> RunStatus:
        """As the outcomes say it. Which timers are left has no say: a retry that got lost must not look like an end."""
        latest = self.latest
        withdrawn = self.withdrawn_us is not None
        if latest is None:
            return run_status(None, timer_pending=not withdrawn, withdrawn=withdrawn)
        outcome = latest.outcome
        state: AttemptStatus = OpenAttempt.READY if outcome is None else outcome.result
        # A deferral ends nothing, whatever its row says.
        gave_up = outcome is not None and outcome.is_final and outcome.result is not Outcome.DEFERRED
        return run_status(state, timer_pending=not (withdrawn or gave_up), withdrawn=withdrawn)

    @property
    def started_us(self) -> int | None:
        """When the first attempt started of which that is known; a deferral never did."""
        outcomes = [attempt.outcome for attempt in self.attempts if attempt.outcome is not None]
        starts = [outcome.started_us for outcome in outcomes if outcome.result is not Outcome.DEFERRED]
        return min([start for start in starts if start is not None], default=None)


@dataclass(frozen=True, slots=True)
class GapRecord:
    first_us: int
    last_us: int
    count: int
    reason: GapReason


@dataclass(frozen=True, slots=True)
class JobHistory:
    """One job. `ticks`: its fire times in the window, computed anew; gaps must lie within that window."""

    job_id: int
    ticks: tuple[int, ...]
    runs: tuple[RunRecord, ...]
    gaps: tuple[GapRecord, ...]


@dataclass(frozen=True, slots=True)
class PendingTimer:
    job_id: int
    kind: str
    fire_us: int
    due_us: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """One line of the receiver's log; `seq` is the fencing token's."""

    run_key: RunKey
    idempotency_key: str
    seq: int
    attempt: int
    at_us: int
    worker: str


@dataclass(frozen=True, slots=True)
class FencedWrite:
    """A write that the fence let through. `seq` orders the writes to one partition."""

    partition: int
    epoch: int
    seq: int
