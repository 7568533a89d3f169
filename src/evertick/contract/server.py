"""The server itself: its nodes, figures of a tenant, probes, and what it answers when something is wrong."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from evertick.contract.annotations import Count, Schema, Time
from evertick.domain.admission import QuotaName


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


class Alive(Struct, frozen=True):
    status: Literal["alive"]


class Ready(Struct, frozen=True):
    """Whether a server can take requests, and why not."""

    ready: bool
    faults: list[str]


class InputError(Struct, frozen=True):
    """One thing wrong with an input."""

    pointer: Annotated[str, Meta(description="An RFC 6901 JSON pointer; empty for the whole.")] = ""
    detail: str = ""
    json_schema: ClassVar[Schema] = {"required": ["pointer", "detail"]}


class Problem(Struct, frozen=True, kw_only=True):
    """What is wrong, as RFC 9457 has it."""

    type: Annotated[str, Meta(examples=["urn:evertick:problem:not-found"], extra_json_schema={"format": "uri"})] = (
        "about:blank"
    )
    title: str = ""
    status: Annotated[int, Meta(ge=400, le=599)] = 500
    detail: str = ""
    instance: str = ""
    request_id: str = ""
    errors: tuple[InputError, ...] = ()
    quota: Annotated[str, Meta(description=f"Which quota stood in the way: {', '.join(QuotaName)}.")] = ""
    json_schema: ClassVar[Schema] = {
        "required": ["type", "title", "status", "detail", "instance", "request_id"],
    }
