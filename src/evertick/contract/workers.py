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
    words,
)
from evertick.domain.backpressure import DEFAULT_MAX_READY
from evertick.domain.states import WorkerRole

LONGEST_POLL_SECONDS = 30
"""Proxies that cut idle requests off do so later, as a rule after a minute."""
MAX_READY = 1_000_000_000
MAX_PROGRESS_TEXTS = 1000
"""In one heartbeat."""
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


class QueueHandler(Struct, frozen=True, kw_only=True):
    """A handler of a queue: jobs name it, workers serve it, or both."""

    handler: str
    workers: Annotated[Count, Meta(description="How many workers that are alive serve it. With 0, its runs wait.")]


class Queue(Struct, frozen=True, kw_only=True):
    """A queue, what limits it, how full it is, and who serves it. `oldest_due_at`: of the attempts that wait.

    `handlers` are those of workers, of attempts that wait for another worker, and of the tenant's newest 1,000 jobs.
    """

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
    workers: Annotated[Count, Meta(description="How many workers or dispatchers that are alive serve the queue.")] = 0
    handlers: tuple[QueueHandler, ...] = ()

    @property
    def unserved(self) -> list[str]:
        """The handlers that no worker serves."""
        return [each.handler for each in self.handlers if not each.workers]


class ServedQueue(Struct, frozen=True, kw_only=True):
    """A queue that a worker serves, and with which handlers; null: with any."""

    queue: str
    handlers: tuple[str, ...] | None


class Worker(Struct, frozen=True, kw_only=True):
    """A worker or dispatcher, by its heartbeats. One that was not heard of for ten minutes is left out."""

    worker_id: str
    role: Annotated[str, words(WorkerRole)]
    is_alive: bool
    version: Annotated[str | None, Meta(description="Of Evertick; null for workers that pull over HTTP.")]
    started_at: Time
    seen_at: Annotated[Time, Meta(description="Its last heartbeat.")]
    queues: tuple[ServedQueue, ...]
    finished_per_second: Annotated[
        float | None,
        Meta(
            description="Attempts in the last half minute. Null for workers that pull over HTTP, and of those that work"
            " for all tenants for callers who do not operate them."
        ),
    ] = None


class WorkersQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[str, Meta(pattern=patterns.WORKER_ID), CURSOR] | None = None


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
            list[Annotated[str, Meta(min_length=1, max_length=255, pattern=patterns.STORABLE)]],
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
    progress: (
        Annotated[
            dict[Token, str],
            Meta(
                max_length=MAX_PROGRESS_TEXTS,
                description="How far attempts are, by their tokens, as in `3 of 10`. It is shown while they run; it"
                " replaces what was told of attempts that were leased together. 200 characters are kept.",
            ),
        ]
        | None
    ) = None


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
    output: Annotated[
        Any,
        Meta(description="What it came to. It is kept up to 64 KB of compact JSON; of a longer one, the beginning."),
    ] = None
    excerpt: Annotated[str | None, Meta(description="The beginning of an output that is not given.")] = None


class OutcomesRequest(Struct, forbid_unknown_fields=True):
    worker_id: WorkerId
    outcomes: Annotated[list[OutcomeReport], Meta(max_length=10_000)]
    with_dead: Annotated[bool, Meta(description="Whether the answer names the failures that no attempt follows.")] = (
        False
    )
    json_schema: ClassVar[Schema] = {
        "examples": [{"worker_id": "worker-1", "outcomes": [{"token": "412.1781532000000001", "result": "success"}]}]
    }


class Recorded(Struct, frozen=True, omit_defaults=True):
    """How many outcomes count, and the tokens of those that came too late or were never the worker's."""

    recorded: Count
    stale: tuple[Token, ...]
    dead: Annotated[
        tuple[Token, ...], Meta(description="If asked for, those that count and that no attempt follows.")
    ] = ()
