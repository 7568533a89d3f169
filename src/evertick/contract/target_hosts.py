"""Hosts of HTTP targets that failed lately, and their circuit breakers."""

from typing import Annotated

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import CURSOR, Count, Limit, Time, words
from evertick.domain.breaker import CircuitState

HostName = Annotated[str, Meta(pattern=patterns.HOST, examples=["api.example.com", "10.0.0.7:8080"])]


class TargetHost(Struct, frozen=True, kw_only=True):
    """A host of HTTP targets that failed lately. While its circuit is not closed, deliveries to it are deferred."""

    host: Annotated[HostName, Meta(description="With its port, unless that is 443.")]
    state: Annotated[str, words(CircuitState)]
    since: Annotated[Time, Meta(description="Since when it is closed, or not.")]
    calls: Annotated[Count, Meta(description="In the last 30 to 60 seconds, or before the circuit opened.")]
    failures: Count
    failure_ratio: Annotated[float, Meta(ge=0, le=1)]
    next_probe_at: Time | None
    last_error: str | None


class TargetHostsQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[HostName, CURSOR] | None = None
