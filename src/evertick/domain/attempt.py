"""An attempt as it is executed, and how it can end: what sources hand out, and what handlers and targets return."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol, TypeAlias

from evertick.domain.states import Outcome

Token: TypeAlias = tuple[int, int]
"""Lane and seq: what names an attempt, and fences it off from later ones of its job, which have a larger seq."""


class NotRecorded(NamedTuple):
    """Outcomes that were not recorded. `stale`: others had ended those attempts.

    `busy`: their run or job is locked. They and their leases were left as they are: give both again.
    """

    stale: set[Token]
    busy: set[Token]


class Attempt(Protocol):
    """One attempt with all that running it needs. `payload` and `spec`, the job's definition, are JSON texts.

    `lease_id` is the lease that it was handed out under; `deferrals` counts how often it was put back before.
    `trace_parent` is the trace context that its run was asked for with, if any; for a remote worker, which is not told
    the due time, that of the firing.
    """

    @property
    def token(self) -> Token: ...
    @property
    def lease_id(self) -> int: ...
    @property
    def tenant_id(self) -> int: ...
    @property
    def job_id(self) -> int: ...
    @property
    def spec_version(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def fire_at(self) -> datetime: ...
    @property
    def due_at(self) -> datetime | None: ...
    @property
    def trace_parent(self) -> str | None: ...
    @property
    def reason(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def deferrals(self) -> int: ...
    @property
    def handler(self) -> str | None: ...
    @property
    def payload(self) -> str | None: ...
    @property
    def spec(self) -> str | None: ...
    @property
    def timeout_seconds(self) -> int: ...
    @property
    def idempotency_key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The work is done. `output` is what it came to, as JSON; without it, `excerpt` may be the beginning of that."""

    excerpt: str | None = None
    code: int | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The work is not done. `wait` is the least time until the next try, `retryable` whether one can help.

    `is_target_gone`: the target said that it will never accept the job again. `is_host_well`: whether the host works,
    although it did not do this; None: by the code, or because there is none.
    """

    error: str
    result: Outcome = Outcome.FAILED  # or TIMED_OUT
    code: int | None = None
    excerpt: str | None = None
    retryable: bool = True
    wait: timedelta | None = None
    is_target_gone: bool = False
    is_host_well: bool | None = None


@dataclass(frozen=True, slots=True)
class Deferred:
    """It was started, and stopped with its worker or failed as the probe of its host. It counts as no try, and comes
    again at once.
    """

    error: str


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Nothing of it was done: it is put back and leaves no outcome. `is_host_busy`: its host had no slot free.

    `wait`: how long until it may be leased again. None: the longer, the more often it was put back before.
    """

    error: str
    is_host_busy: bool = False
    wait: timedelta | None = None


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A broker has accepted it, and a consumer reports its outcome: until then, or its timeout, the run stays open.

    `receipt` is what the broker answered, for people: where the message is.
    """

    receipt: str | None = None


AttemptOutcome: TypeAlias = Succeeded | Failed | Deferred | NotStarted | HandedOver

SUCCEEDED = Succeeded()
