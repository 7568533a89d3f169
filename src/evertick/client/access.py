"""Calls of admins: tenants, keys, and the log of changes."""

from datetime import datetime
from typing import Any, TypeAlias

from evertick.client.request import Request, change, look, nothing, path_of, post, shaped
from evertick.client.transport import Listed, Section, Sent, W
from evertick.contract.access import ApiKey, AuditEntry, NewApiKey, NewTenant, Tenant

TenantPage: TypeAlias = list[Tenant]
KeyPage: TypeAlias = list[ApiKey]
ChangePage: TypeAlias = list[AuditEntry]


class Tenants(Section[W]):
    """Tenants and what they may have."""

    @Sent
    def create(self, name: str, /, *, idempotency_key: str | None = None, **quotas: Any) -> Request[NewTenant]:
        """Create a tenant, with its first key."""
        return post(path_of("tenants"), shaped(NewTenant), {"name": name, **quotas}, key=idempotency_key)

    @Listed
    def list(self, *, page_size: int | None = None) -> Request[TenantPage]:
        """The tenants that the key may see."""
        return look(path_of("tenants"), shaped(TenantPage), limit=page_size)

    @Sent
    def get(self, tenant_id: str) -> Request[Tenant]:
        """A tenant by its id."""
        return look(path_of("tenants", tenant_id), shaped(Tenant))

    @Sent
    def update(self, tenant_id: str, /, **quotas: Any) -> Request[Tenant]:
        """Change a tenant's quotas or share."""
        return change("PATCH", path_of("tenants", tenant_id), shaped(Tenant), quotas)


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
        return post(path_of("api-keys"), shaped(NewApiKey), body, key=idempotency_key)

    @Listed
    def list(self, *, tenant_id: str | None = None, page_size: int | None = None) -> Request[KeyPage]:
        """A tenant's keys, those that ended too."""
        return look(path_of("api-keys"), shaped(KeyPage), tenant_id=tenant_id, limit=page_size)

    @Sent
    def get(self, key_id: str) -> Request[ApiKey]:
        """A key by its id."""
        return look(path_of("api-keys", key_id), shaped(ApiKey))

    @Sent
    def rotate(
        self, key_id: str, *, grace_seconds: float = 0.0, idempotency_key: str | None = None
    ) -> Request[NewApiKey]:
        """Put a new key in its place; the old one stays valid for the grace."""
        body = {"grace_seconds": grace_seconds}
        return post(path_of("api-keys", key_id, "rotate"), shaped(NewApiKey), body, key=idempotency_key)

    @Sent
    def revoke(self, key_id: str) -> Request[None]:
        """End a key."""
        return change("DELETE", path_of("api-keys", key_id), nothing)


class AuditLog(Section[W]):
    """Who changed what."""

    @Listed
    def list(self, *, page_size: int | None = None) -> Request[ChangePage]:
        """The changes, newest first."""
        return look(path_of("audit-log"), shaped(ChangePage), limit=page_size)
