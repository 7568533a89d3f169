"""Queues, and the pull protocol of workers: leases, heartbeats and outcomes."""

from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import (
    BURST_NEEDS_RATE,
    CURSOR,
    Count,
    JobId,
    Limit,
    Ordinal,
    RateBurst,
    RateLimit,
    ReportedTime,
    RunId,
    Schema,
    Time,
    Token,
    WorkerId,
)
from evertick.domain.backpressure import DEFAULT_MAX_READY

LONGEST_POLL_SECONDS = 30
"""Proxies that cut idle requests off do so later, as a rule after a minute."""
MAX_READY = 1_000_000_000
_RESULTS = ["success", "failed", "timed_out", "deferred"]


MaxRunning = Annotated[
    Annotated[int, Meta(ge=0, le=1_000_000)] | None,
    Meta(description="How many attempts of the queue run at once, in all workers together; null: no limit."),
]


MaxReady = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_READY,
        description="How many attempts of the queue may wait for a worker. While so many do, its timers wait.",
    ),
]


class Queue(Struct, frozen=True, kw_only=True):
    """A queue, what limits it, and how full it is. `oldest_due_at`: of the attempts that wait for a worker."""

    name: str
    max_running: MaxRunning
    max_ready: MaxReady = DEFAULT_MAX_READY
    rate_limit: RateLimit = None
    rate_burst: RateBurst = None
    ready: Annotated[Count, Meta(description="Attempts that wait for a worker.")] = 0
    oldest_due_at: Time | None = None
    is_full: Annotated[
        bool,
        Meta(description="No timer of the queue fires: as many attempts wait as may, of the queue or its tenant."),
    ] = False


class QueueSettings(Struct, forbid_unknown_fields=True):
    max_running: MaxRunning = None
    max_ready: MaxReady = DEFAULT_MAX_READY
    rate_limit: RateLimit = None
    rate_burst: RateBurst = None
    json_schema: ClassVar[Schema] = BURST_NEEDS_RATE


def limits_of(queue: Queue) -> dict[str, Any]:
    """The limits of a queue, as `QueueSettings` names them."""
    return {name: getattr(queue, name) for name in QueueSettings.__struct_fields__}


class QueuesQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[str, Meta(pattern=patterns.QUEUE), CURSOR] | None = None


class LeaseRequest(Struct, forbid_unknown_fields=True):
    worker_id: WorkerId
    max: Annotated[int, Meta(ge=1, le=1000)] = 100
    wait_seconds: Annotated[float, Meta(ge=0, le=LONGEST_POLL_SECONDS, description="For the first of them.")] = 20.0
    handlers: (
        Annotated[
            list[Annotated[str, Meta(min_length=1, max_length=255)]],
            Meta(min_length=1, max_length=1000, description="Those that the worker has; without it, any."),
        ]
        | None
    ) = None


class LeasedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt to run. `payload` is as it was given; `deadline` is by the database's clock."""

    token: Annotated[Token, Meta(description="The number after the dot grows with every attempt of a job.")]
    run_id: RunId
    job_id: JobId
    name: str
    handler: str | None
    payload: Any
    scheduled_at: Time
    attempt: Ordinal
    reason: str
    idempotency_key: str
    timeout_seconds: Count
    deadline: Time
    traceparent: Annotated[str, Meta(description="W3C Trace Context, for what the handler calls.")] | None = None


class Lease(Struct, frozen=True, kw_only=True):
    """What a worker has for `lease_seconds`, and for as long as its heartbeats go on."""

    lease_seconds: int | float
    attempts: tuple[LeasedAttempt, ...]


class HeartbeatRequest(Struct, forbid_unknown_fields=True):
    tokens: Annotated[list[Token], Meta(max_length=10_000, description="All that the worker holds.")] | None = None


class Heartbeat(Struct, frozen=True):
    """The tokens of attempts that a worker should stop."""

    cancel: tuple[Token, ...]


class OutcomeReport(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How an attempt ended: success, failed, timed_out, or deferred if nothing of it was done."""

    token: Token
    result: Annotated[str, Meta(pattern=f"^({'|'.join(_RESULTS)})$", extra_json_schema={"enum": _RESULTS})]
    started_at: ReportedTime | None = None
    finished_at: ReportedTime | None = None
    error: str | None = None
    retryable: Annotated[bool | None, Meta(description="False: trying again cannot help.")] = None
    retry_after_seconds: (
        Annotated[float, Meta(ge=0, le=86_400, description="The next try must not come before.")] | None
    ) = None
    output: Annotated[Any, Meta(description="What it came to; the beginning is kept.")] = None


class OutcomesRequest(Struct, forbid_unknown_fields=True):
    worker_id: WorkerId
    outcomes: Annotated[list[OutcomeReport], Meta(max_length=10_000)]
    json_schema: ClassVar[Schema] = {
        "examples": [{"worker_id": "worker-1", "outcomes": [{"token": "412.1781532000000001", "result": "success"}]}]
    }


class Recorded(Struct, frozen=True):
    """How many outcomes count, and the tokens of those that came too late or were never the worker's."""

    recorded: Count
    stale: tuple[Token, ...]
