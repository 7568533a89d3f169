"""The engine itself: its nodes, what a tenant's jobs do, and probes."""

from typing import Literal

from msgspec import Struct

from evertick.contract.annotations import Count, Time


class Node(Struct, frozen=True, kw_only=True):
    """A scheduler."""

    node: str
    region: str
    version: str
    started_at: Time
    seen_at: Time
    is_alive: bool
    partitions: Count


class Partitions(Struct, frozen=True):
    """All partitions, and those that no node holds."""

    total: Count
    unheld: Count


class Cluster(Struct, frozen=True, kw_only=True):
    """The engine as a whole."""

    version: str
    tzdb: str
    nodes: tuple[Node, ...]
    partitions: Partitions
    lag_seconds: float


class Lag(Struct, frozen=True):
    """Milliseconds from due time to firing."""

    p50: float
    p95: float
    p99: float
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


class Alive(Struct, frozen=True):
    status: Literal["alive"]


class Ready(Struct, frozen=True):
    """Whether a server can take requests, and why not."""

    ready: bool
    faults: list[str]
