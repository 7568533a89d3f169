"""The port between the executor and the place where attempts come from and their outcomes go.

A source leases attempts at its own pace and hands them to its `Consumer`, the executor. The executor runs them and
gives them back: recorded with an outcome, handed over to the consumers of a broker, or put back if they were never
started.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias, assert_never

from evertick.domain.attempt import (
    SUCCEEDED,
    Attempt,
    AttemptOutcome,
    Deferred,
    Failed,
    HandedOver,
    NotRecorded,
    NotStarted,
    Succeeded,
    Token,
)
from evertick.domain.states import Outcome
from evertick.executor.held_leases import HeldLease, HeldLeases
from evertick.runtime.clock import Clock
from evertick.runtime.loop import Loop

EndedAttempt: TypeAlias = tuple[Attempt, AttemptOutcome, datetime | None, datetime, datetime | None]
"""An attempt, how it ended, when it was started, finished and leased. Plain: one is made for each attempt."""


class UnstartedAttempt(NamedTuple):
    """An attempt to put back: others may lease it after `delay`. A deferral is counted; the next one waits longer."""

    attempt: Attempt
    reason: str
    delay: timedelta = timedelta(0)
    is_deferral: bool = False


@dataclass(slots=True)
class AttemptCounters:
    """What an executor has done since it started, in attempts.

    In the end each that was leased is counted once more, unless it was over before.
    """

    leased: int = 0
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    handed_back: int = 0  # put back before they were started, or stopped with the worker
    handed_over: int = 0  # accepted by a broker: a consumer reports the outcome
    lost: int = 0  # not ours any more: their lease ran out here, or others ended them
    stale: int = 0  # of those that ended here: others had ended them before

    @property
    def executed(self) -> int:
        return self.succeeded + self.failed + self.timed_out

    def count(self, outcome: AttemptOutcome) -> None:
        if outcome is SUCCEEDED:
            self.succeeded += 1
            return
        match outcome:
            case Succeeded():
                self.succeeded += 1
            case Failed(result=Outcome.TIMED_OUT):
                self.timed_out += 1
            case Failed():
                self.failed += 1
            case Deferred() | NotStarted():
                self.handed_back += 1
            case HandedOver():
                self.handed_over += 1
            case _:
                assert_never(outcome)


class RecordFailure(Enum):
    """Why recording failed."""

    UNKNOWN = auto()  # no answer: it may have been done
    LOCKED = auto()  # rolled back because of others
    UNSTORABLE = auto()  # something in it cannot be stored
    REFUSED = auto()  # the other side's own error


class Consumer(Protocol):
    """The executor as its source sees it. Asked for `slots`: how many attempts can run at once."""

    name: str
    slots: int
    clock: Clock
    counters: AttemptCounters
    held_leases: HeldLeases

    @property
    def role(self) -> str:
        """What the metrics call it."""

    @property
    def handler_names(self) -> Sequence[str]: ...

    @property
    def held(self) -> int:
        """How many attempts are here, waiting or running."""

    @property
    def written_off(self) -> int:
        """How many threads are lost to handlers that do not end."""

    @property
    def ended(self) -> int:
        """How many attempts have ended here so far."""

    @property
    def may_lease(self) -> bool:
        """Whether outcomes get through and handlers end, so that more may come."""

    def take(self, attempts: Sequence[Attempt]) -> None:
        """Run these. Their leases are among the held ones already."""

    def drop(self, attempt: Attempt) -> None:
        """This one was over before it came."""

    def release(self, lease_id: int) -> None:
        """Let go of a lease that turned out to be empty."""

    def died(self, tokens: Collection[Token]) -> None:
        """The recorded failures of these attempts were the last ones of their runs."""

    def beat_now(self) -> None:
        """Do not wait with the next heartbeat."""


class Source(Protocol):
    """Where attempts come from. What heartbeats do (from `extend` on) is called on the heartbeat's own event loop."""

    max_outcomes: int
    """How many outcomes one call of `record` may bring."""
    max_output_bytes: int
    """How many bytes of outputs one call may bring; a single output may always come."""
    marks_starts: bool
    """Whether the start of a last try must be marked before its handler is called."""

    @property
    def heartbeat_seconds(self) -> float:
        """The pause between two heartbeats, after a failed one too."""

    @property
    def heartbeat_timeout_seconds(self) -> float: ...

    @property
    def drops_expired(self) -> bool:
        """Whether an attempt is lost once its lease ran out here, before the other side says so."""

    def loop(
        self, name: str, step: Callable[[], Awaitable[float]], longest_pause: Callable[[], float] | None = None
    ) -> Loop:
        """A loop that knows what an outage of the other side looks like."""

    async def open(self, consumer: Consumer) -> None: ...

    def start(self) -> None:
        """Lease until `stop_leasing`."""

    async def lease(self, most: int, lane_ids: Collection[int] | None = None) -> int:
        """Lease up to `most` attempts now, without a loop; returns how many came.

        From these lanes, or from all: then also what was put back, and from queues that are new.
        """

    def freed(self, held: int) -> None:
        """An attempt has left; `held` are still here."""

    async def stop_leasing(self) -> None: ...

    async def hand_over_rest(self) -> None:
        """Hand over what was leased and could not be read yet."""

    async def close(self) -> None: ...

    def queue_name(self, attempt: Attempt) -> str:
        """Where the attempt came from, for people to read."""

    def is_last_try(self, attempt: Attempt) -> bool:
        """Whether the loss of the attempt would end its run."""

    async def mark_started(self, attempts: Sequence[Attempt]) -> Collection[Token]:
        """Note that these are about to start. Only those that are returned may be started."""

    async def record(self, ended: Sequence[EndedAttempt], done_leases: Sequence[int]) -> NotRecorded:
        """Record outcomes, and let go of leases in which nothing is open."""

    def failure_of(self, error: Exception) -> RecordFailure: ...

    async def put_back(self, unstarted: Sequence[UnstartedAttempt]) -> None: ...

    async def hand_over(self, attempts: Sequence[Attempt]) -> None:
        """Leave these, which a broker has accepted, to the consumers of their messages."""

    async def ended_elsewhere(self, tokens: Collection[Token]) -> Collection[Token]:
        """Which of these attempts others have ended, for example a user who cancelled their run."""

    async def note_progress(self, texts: Mapping[Token, str]) -> None:
        """Say how far the running attempts are of which that is known."""

    def forget(self, lease_ids: Collection[int]) -> None:
        """These leases are lost: nothing of them will be recorded."""

    async def extend(self, leases: Sequence[HeldLease]) -> Collection[int]:
        """Extend these leases; returns those that are still ours."""

    async def announce(self) -> None:
        """Say which queues and handlers this worker serves."""

    async def leave(self) -> None:
        """This worker serves nothing any more."""

    async def hang_up(self) -> None:
        """Close the heartbeat's connection; the next `extend` makes a new one."""
