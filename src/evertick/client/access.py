"""Calls of admins: tenants, keys, and the log of changes."""

from datetime import datetime
from typing import Any, TypeAlias

from evertick.client.request import Request, change, look, nothing, path_of, post, shaped
from evertick.client.sections import Listed, Section, Sent, W
from evertick.contract.access import ApiKey, AuditEntry, NewApiKey, NewTenant, Tenant

_read_tenant = shaped(Tenant)
_read_tenants = shaped(list[Tenant])
_read_new_tenant = shaped(NewTenant)
_read_key = shaped(ApiKey)
_read_keys = shaped(list[ApiKey])
_read_new_key = shaped(NewApiKey)
_read_changes = shaped(list[AuditEntry])

TenantPage: TypeAlias = list[Tenant]
KeyPage: TypeAlias = list[ApiKey]
ChangePage: TypeAlias = list[AuditEntry]


class Tenants(Section[W]):
    """Tenants and what they may have."""

    @Sent
    def create(self, name: str, /, *, idempotency_key: str | None = None, **quotas: Any) -> Request[NewTenant]:
        """Create a tenant, with its first key."""
        return post(path_of("tenants"), _read_new_tenant, {"name": name, **quotas}, key=idempotency_key)

    @Listed
    def list(self, *, page_size: int | None = None) -> Request[TenantPage]:
        """The tenants that the key may see."""
        return look(path_of("tenants"), _read_tenants, limit=page_size)

    @Sent
    def get(self, tenant_id: str) -> Request[Tenant]:
        """A tenant by its id."""
        return look(path_of("tenants", tenant_id), _read_tenant)

    @Sent
    def update(self, tenant_id: str, /, **quotas: Any) -> Request[Tenant]:
        """AuditEntry a tenant's quotas or share."""
        return change("PATCH", path_of("tenants", tenant_id), _read_tenant, quotas)


class ApiKeys(Section[W]):
    """API keys."""

    @Sent
    def create(
        self,
        role: str,
        *,
        name: str = "",
        expires_at: datetime | None = None,
        tenant_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request[NewApiKey]:
        """Create a key. With the same idempotency key and the same API key, its answer comes again."""
        body = {"role": role, "name": name, "expires_at": expires_at, "tenant_id": tenant_id}
        return post(path_of("api-keys"), _read_new_key, body, key=idempotency_key)

    @Listed
    def list(self, *, tenant_id: str | None = None, page_size: int | None = None) -> Request[KeyPage]:
        """A tenant's keys, those that ended too."""
        return look(path_of("api-keys"), _read_keys, tenant_id=tenant_id, limit=page_size)

    @Sent
    def get(self, key_id: str) -> Request[ApiKey]:
        """A key by its id."""
        return look(path_of("api-keys", key_id), _read_key)

    @Sent
    def rotate(
        self, key_id: str, *, grace_seconds: float = 0.0, idempotency_key: str | None = None
    ) -> Request[NewApiKey]:
        """Put a new key in its place; the old one stays valid for the grace."""
        body = {"grace_seconds": grace_seconds}
        return post(path_of("api-keys", key_id, "rotate"), _read_new_key, body, key=idempotency_key)

    @Sent
    def revoke(self, key_id: str) -> Request[None]:
        """End a key."""
        return change("DELETE", path_of("api-keys", key_id), nothing)


class AuditLog(Section[W]):
    """Who changed what."""

    @Listed
    def list(self, *, page_size: int | None = None) -> Request[ChangePage]:
        """The changes, newest first."""
        return look(path_of("audit-log"), _read_changes, limit=page_size)
