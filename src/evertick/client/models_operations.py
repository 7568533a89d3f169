"""What the API answers with about the engine itself, its workers, tenants and keys."""

from datetime import datetime
from typing import Any

from msgspec import Struct


class LeasedAttempt(Struct, frozen=True, kw_only=True):
    """An attempt to run. `payload` is as it was given; `deadline` is by the database's clock."""

    token: str
    run_id: str
    job_id: str
    name: str
    handler: str | None
    payload: Any
    scheduled_at: datetime
    attempt: int
    idempotency_key: str
    deadline: datetime
    reason: str = "tick"
    timeout_seconds: float | None = None


class Lease(Struct, frozen=True, kw_only=True):
    """What a worker has for `lease_seconds`, and for as long as its heartbeats go on."""

    lease_seconds: float
    attempts: tuple[LeasedAttempt, ...]


class Beat(Struct, frozen=True):
    """The tokens of attempts that a worker should stop."""

    cancel: tuple[str, ...] = ()


class Recorded(Struct, frozen=True):
    """How many outcomes count, and the tokens of those that came too late."""

    recorded: int
    stale: tuple[str, ...] = ()


class Node(Struct, frozen=True, kw_only=True):
    """A scheduler."""

    node: str
    version: str
    is_alive: bool
    partitions: int
    started_at: datetime | None = None
    seen_at: datetime | None = None
    region: str = ""


class Partitions(Struct, frozen=True):
    """All partitions, and those that no node holds."""

    total: int
    unheld: int


class Cluster(Struct, frozen=True, kw_only=True):
    """The engine as a whole."""

    version: str
    nodes: tuple[Node, ...]
    partitions: Partitions
    lag_seconds: float
    tzdb: str = ""


class Lag(Struct, frozen=True, kw_only=True):
    """Milliseconds from due time to firing."""

    p50: float
    p95: float
    p99: float
    max: float


class Stats(Struct, frozen=True, kw_only=True):
    """What a tenant's jobs did lately."""

    window_seconds: float
    fired_per_second: float
    finished_per_second: float
    succeeded_per_second: float
    lag_ms: Lag
    ready: int
    running: int
    oldest_due_at: datetime | None = None
    oldest_due_seconds: float = 0.0


class Tenant(Struct, frozen=True, kw_only=True):
    """A tenant and what it may have."""

    tenant_id: str
    name: str
    created_at: datetime
    weight: int
    fanout: int
    jobs_quota: int
    submits_per_second: int
    submit_burst: int
    running_quota: int
    ready_quota: int
    shortest_interval_seconds: float = 0.0
    http_timeout_max_seconds: int = 300
    storage_quota_bytes: int = 0


class NewTenant(Tenant, frozen=True, kw_only=True):
    """A new tenant with its first key, which is shown this once."""

    api_key: str

    def __repr__(self) -> str:
        return f"NewTenant(tenant_id={self.tenant_id!r}, name={self.name!r})"


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key, without its secret."""

    key_id: str
    tenant_id: str
    name: str
    role: str
    prefix: str
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None


class NewApiKey(ApiKey, frozen=True, kw_only=True):
    """A new key with its secret, which is shown this once."""

    api_key: str

    def __repr__(self) -> str:
        return f"NewApiKey(key_id={self.key_id!r}, prefix={self.prefix!r})"


class Change(Struct, frozen=True, kw_only=True):
    """An entry of the audit log."""

    changed_at: datetime
    actor: str
    action: str
    subject: str | None = None
    request_id: str | None = None
