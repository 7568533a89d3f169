"""Hosts of targets, and connections to brokers, that failed lately or have a rate limit; their circuit breakers."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import (
    BURST_NEEDS_RATE,
    CURSOR,
    Count,
    Limit,
    RateBurst,
    RateLimit,
    Schema,
    Time,
    words,
)
from evertick.domain.breaker import CircuitState

HostName = Annotated[str, Meta(pattern=patterns.HOST, examples=["api.example.com", "10.0.0.7:8080", "kafka:orders"])]


class TargetHost(Struct, frozen=True, kw_only=True):
    """A host of targets that failed lately or has a rate limit. Deliveries to it are deferred while its circuit is not
    closed, or while its rate does not allow them.
    """

    host: Annotated[
        HostName,
        Meta(description="With its port, unless that is 443. Of a broker the type and the connection: `kafka:orders`."),
    ]
    state: Annotated[str, words(CircuitState)]
    since: Annotated[Time, Meta(description="Since when it is closed, or not.")]
    calls: Annotated[Count, Meta(description="In the last 30 to 60 seconds, or before the circuit opened.")]
    failures: Count
    failure_ratio: Annotated[float, Meta(ge=0, le=1)]
    next_probe_at: Time | None
    last_error: str | None
    rate_limit: RateLimit = None
    rate_burst: RateBurst = None


class TargetSettings(Struct, forbid_unknown_fields=True):
    rate_limit: RateLimit = None
    rate_burst: RateBurst = None
    json_schema: ClassVar[Schema] = BURST_NEEDS_RATE


class TargetHostsQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[HostName, CURSOR] | None = None
