"""The server itself: its nodes, figures of a tenant, probes."""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from evertick.contract.annotations import Count, JobId, Time, words


class Node(Struct, frozen=True, kw_only=True):
    """A scheduler."""

    node: str
    region: str
    version: str
    started_at: Time
    seen_at: Time
    is_alive: bool
    partitions: Count
    fired_per_second: Annotated[
        float | None,
        Meta(description="In the last half minute, of all tenants; null for callers who do not operate them."),
    ] = None


class Partitions(Struct, frozen=True):
    """All partitions, and those that no node holds."""

    total: Count
    unheld: Count


class Cluster(Struct, frozen=True, kw_only=True):
    """The engine as a whole. `suspicion`: why nothing fires or runs, if the database may be a restored copy."""

    version: str
    tzdb: str
    nodes: tuple[Node, ...]
    partitions: Partitions
    lag_seconds: float
    suspicion: str | None = None


class Lag(Struct, frozen=True):
    """Milliseconds from due time to firing."""

    p50: float
    p95: float
    p99: float
    p999: float
    max: float


class Stats(Struct, frozen=True, kw_only=True):
    """What a tenant's jobs did lately. `oldest_due_at` is of its timer that should have been fired first, if any."""

    window_seconds: float
    fired_per_second: float
    finished_per_second: float
    succeeded_per_second: float
    lag_ms: Lag
    ready: Count
    running: Count
    oldest_due_at: Time | None
    oldest_due_seconds: float


class NeedLevel(StrEnum):
    """How bad it is."""

    BAD = "bad"  # runs are lost or kept back until somebody acts
    WARN = "warn"  # it may get worse
    INFO = "info"  # it ends by itself


class NeedKind(StrEnum):
    """What needs attention."""

    DEAD_LETTERS = "dead_letters"  # runs that failed for good
    OPEN_BREAKERS = "open_breakers"  # hosts that get no deliveries
    PAUSED_BY_ITSELF = "paused_by_itself"  # jobs that Evertick paused
    OVERDUE = "overdue"  # timers that should have fired
    NO_SUCCESS = "no_success"  # jobs without success for too long
    FAILURES = "failures"  # jobs that fail again and again
    LATE = "late"  # jobs that are late
    RUNNING_LONG = "running_long"  # jobs that run too long
    CATCH_UP = "catch_up"  # many timers are overdue
    QUOTA = "quota"  # a quota is nearly used up
    REPLAYS = "replays"  # replays under way


class Need(Struct, frozen=True, kw_only=True):
    """Something that needs attention. It is counted up to 1,000."""

    kind: Annotated[str, words(NeedKind)]
    level: Annotated[str, words(NeedLevel)]
    count: Count
    text: Annotated[str, Meta(description="The same in words.")]


class NextTick(Struct, frozen=True, kw_only=True):
    """A timer that is due soon: of a tick, a retry, or a run that was asked for."""

    job_id: JobId
    name: str
    queue: str
    scheduled_at: Time
    due_at: Time


class Attention(Struct, frozen=True, kw_only=True):
    """What needs attention, the worst first, and what comes next."""

    now: Time
    needs: tuple[Need, ...]
    next: tuple[NextTick, ...]


class Alive(Struct, frozen=True):
    status: Literal["alive"]


class Ready(Struct, frozen=True):
    """Whether a server can take requests, and why not."""

    ready: bool
    faults: list[str]
    warnings: Annotated[
        list[str], Meta(description="What an operator should know although requests are answered.")
    ] = []
