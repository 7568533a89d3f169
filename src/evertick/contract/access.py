"""Tenants, API keys, and the log of changes."""

from datetime import datetime
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.annotations import (
    CURSOR,
    KeyId,
    Limit,
    Name,
    Schema,
    TenantId,
    Time,
    accepted,
    checked,
    words,
)
from evertick.domain.access import KeyRole
from evertick.domain.job.checks import NAME_MAX_LENGTH, check_instant

_MAX_NUMBER = 2**31 - 1
LONGEST_GRACE_SECONDS = 30 * 86_400

Weight = Annotated[int, Meta(ge=1, le=1000)]
Quota = Annotated[int, Meta(ge=0, le=_MAX_NUMBER)]
Rate = Annotated[int, Meta(ge=1, le=1_000_000)]
Burst = Annotated[int, Meta(ge=1, le=_MAX_NUMBER)]
Interval = Annotated[float, Meta(ge=0, le=86_400)]
Jitter = Annotated[
    float, Meta(ge=0, le=86_400, description="`jitter_seconds` of jobs that are created or replaced without any.")
]
HttpTimeout = Annotated[int, Meta(ge=1, le=3600)]
HistoryDays = Annotated[
    int,
    Meta(ge=1, le=36_500, description="Older runs and gaps are not listed; 36500: as long as the server keeps them."),
]
ArchiveDays = Annotated[
    int, Meta(ge=0, le=36_500, description="Archived runs and gaps are removed when they are older; 36500: never.")
]
Bytes = Annotated[int, Meta(ge=0, le=2**53)]
"""So much any client can read as a number."""


class Tenant(Struct, frozen=True, kw_only=True):
    """A tenant and what it may have."""

    tenant_id: TenantId
    name: str
    created_at: Time
    weight: Weight
    jobs_quota: Quota
    submits_per_second: Rate
    submit_burst: Burst
    running_quota: Quota
    ready_quota: Quota
    shortest_interval_seconds: Interval
    http_timeout_max_seconds: HttpTimeout
    storage_quota_bytes: Bytes
    default_jitter_seconds: Jitter
    history_days: HistoryDays
    archive_days: ArchiveDays


class NewTenant(Tenant, frozen=True, kw_only=True):
    """A new tenant with its first key, which is shown this once."""

    api_key: Annotated[str, Meta(description="The secret, shown this once.")]

    def __repr__(self) -> str:
        return f"NewTenant(tenant_id={self.tenant_id!r}, name={self.name!r})"


class TenantPatch(Struct, kw_only=True, forbid_unknown_fields=True):
    weight: Weight | None = None
    jobs_quota: Quota | None = None
    submits_per_second: Rate | None = None
    submit_burst: Burst | None = None
    running_quota: Quota | None = None
    ready_quota: Quota | None = None
    shortest_interval_seconds: Interval | None = None
    http_timeout_max_seconds: HttpTimeout | None = None
    storage_quota_bytes: Bytes | None = None
    default_jitter_seconds: Jitter | None = None
    history_days: HistoryDays | None = None
    archive_days: ArchiveDays | None = None


class TenantRequest(TenantPatch, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(max_length=NAME_MAX_LENGTH, pattern=patterns.NAME)]


class TenantsQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[TenantId, CURSOR] | None = None


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key, without its secret."""

    key_id: KeyId
    tenant_id: TenantId
    name: str
    role: Annotated[str, words(KeyRole)]
    prefix: str
    created_at: Time
    expires_at: Time | None
    revoked_at: Time | None
    last_used_at: Time | None


class NewApiKey(ApiKey, frozen=True, kw_only=True):
    """A new key with its secret, which is shown this once."""

    api_key: Annotated[str, Meta(description="The secret, shown this once.")]

    def __repr__(self) -> str:
        return f"NewApiKey(key_id={self.key_id!r}, prefix={self.prefix!r})"


class KeyRequest(Struct, forbid_unknown_fields=True):
    role: KeyRole
    name: Name = ""
    expires_at: (
        Annotated[
            datetime,
            Meta(tz=True, description="An instant in the future."),
            accepted(pattern=patterns.FUTURE),
            checked(check_instant),
        ]
        | None
    ) = None
    tenant_id: Annotated[TenantId, Meta(description="Another tenant's, for the host's admins.")] | None = None
    json_schema: ClassVar[Schema] = {"examples": [{"role": "viewer", "name": "the dashboard on the wall"}]}


class KeysQuery(Struct, forbid_unknown_fields=True):
    tenant_id: TenantId | None = None
    limit: Limit = 50
    cursor: Annotated[KeyId, CURSOR] | None = None


class RotateRequest(Struct, forbid_unknown_fields=True):
    grace_seconds: Annotated[float, Meta(ge=0, le=LONGEST_GRACE_SECONDS)] = 0.0


class AuditEntry(Struct, frozen=True, kw_only=True):
    """An entry of the audit log: `actor` is a key's id, the command line or the dispatcher."""

    changed_at: Time
    actor: str
    action: str
    subject: str | None
    request_id: str | None


class ChangesQuery(Struct, forbid_unknown_fields=True):
    limit: Limit = 50
    cursor: Annotated[str, Meta(pattern=patterns.ENTRY), CURSOR] | None = None
