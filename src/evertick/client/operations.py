"""Calls about tenants, keys, targets, connections, alerts, events and forecasts.

`client` imports them when they are asked for: most programs need jobs and runs alone.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from evertick.client.request import PREFIX, Request, change, fetch, no_content, path_of, post, struct_of
from evertick.client.transport import Call, Calls, PagedCall, StreamCall, W
from evertick.contract.access import ApiKey, AuditEntry, NewApiKey, NewTenant, Tenant
from evertick.contract.alerts import Alert, AlertTarget
from evertick.contract.connections import BrokerConnection, ConnectionCheck
from evertick.contract.events import Event, EventStream
from evertick.contract.forecast import Forecast, ForecastAdvice, Smear
from evertick.contract.runs import Run
from evertick.contract.target_hosts import TargetHost

TenantPage: TypeAlias = list[Tenant]
KeyPage: TypeAlias = list[ApiKey]
ChangePage: TypeAlias = list[AuditEntry]
TargetPage: TypeAlias = list[TargetHost]
AlertPage: TypeAlias = list[Alert]
ConnectionPage: TypeAlias = list[BrokerConnection]
EventPage: TypeAlias = list[Event]
SmearPage: TypeAlias = list[Smear]


class TenantCalls(Calls[W]):
    """Tenants and their quotas."""

    @Call
    def create(self, name: str, /, *, idempotency_key: str | None = None, **quotas: Any) -> Request[NewTenant]:
        """Create a tenant, with its first key."""
        return post(path_of("tenants"), struct_of(NewTenant), {"name": name, **quotas}, key=idempotency_key)

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[TenantPage]:
        """The tenants that the key may see."""
        return fetch(path_of("tenants"), struct_of(TenantPage), limit=page_size)

    @Call
    def get(self, tenant_id: str) -> Request[Tenant]:
        """A tenant by its id."""
        return fetch(path_of("tenants", tenant_id), struct_of(Tenant))

    @Call
    def update(self, tenant_id: str, /, **quotas: Any) -> Request[Tenant]:
        """Change the quotas of a tenant."""
        return change("PATCH", path_of("tenants", tenant_id), struct_of(Tenant), quotas)


class ApiKeyCalls(Calls[W]):
    """API keys."""

    @Call
    def create(
        self,
        role: str,
        *,
        name: str = "",
        expires_at: datetime | None = None,
        tenant_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request[NewApiKey]:
        """Create a key. Calls with the same idempotency key and the same API key get the same answer."""
        body = {"role": role, "name": name, "expires_at": expires_at, "tenant_id": tenant_id}
        return post(path_of("api-keys"), struct_of(NewApiKey), body, key=idempotency_key)

    @PagedCall
    def list(self, *, tenant_id: str | None = None, page_size: int | None = None) -> Request[KeyPage]:
        """The keys of a tenant, including expired and revoked ones."""
        return fetch(path_of("api-keys"), struct_of(KeyPage), tenant_id=tenant_id, limit=page_size)

    @Call
    def get(self, key_id: str) -> Request[ApiKey]:
        """A key by its id."""
        return fetch(path_of("api-keys", key_id), struct_of(ApiKey))

    @Call
    def rotate(
        self, key_id: str, *, grace_seconds: float = 0.0, idempotency_key: str | None = None
    ) -> Request[NewApiKey]:
        """Replace a key by a new one. The old key stays valid for `grace_seconds`."""
        body = {"grace_seconds": grace_seconds}
        return post(path_of("api-keys", key_id, "rotate"), struct_of(NewApiKey), body, key=idempotency_key)

    @Call
    def revoke(self, key_id: str) -> Request[None]:
        """Revoke a key."""
        return change("DELETE", path_of("api-keys", key_id), no_content)


class TargetCalls(Calls[W]):
    """Hosts of targets, and connections to brokers, that failed lately or have a rate limit."""

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[TargetPage]:
        """The hosts, by name, with their circuit breakers."""
        return fetch(path_of("targets"), struct_of(TargetPage), limit=page_size)

    @Call
    def update(
        self, host: str, *, rate_limit: float | None = None, rate_burst: int | None = None
    ) -> Request[TargetHost]:
        """Limit how many deliveries a host gets per second, from all dispatchers together. None: no limit."""
        limits = {"rate_limit": rate_limit, "rate_burst": rate_burst}
        return change("PUT", path_of("targets", host), struct_of(TargetHost), limits)

    @Call
    def reset(self, host: str, *, idempotency_key: str | None = None) -> Request[TargetHost]:
        """Close the circuit of a host."""
        return post(path_of("targets", host, "reset"), struct_of(TargetHost), key=idempotency_key)


class ConnectionCalls(Calls[W]):
    """Connections to message brokers, which targets use by name. Their secrets are never read back."""

    @Call
    def create(
        self,
        name: str,
        type: str,  # noqa: A002 - the API's name
        *,
        settings: Mapping[str, Any],
        secrets: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Request[BrokerConnection]:
        """Create a connection of this type: `kafka`, `rabbitmq`, `redis_stream`, `nats` or `sqs`."""
        body = {"name": name, "type": type, "settings": settings, "secrets": secrets}
        return post(path_of("connections"), struct_of(BrokerConnection), body, key=idempotency_key)

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[ConnectionPage]:
        """The connections, by name."""
        return fetch(path_of("connections"), struct_of(ConnectionPage), limit=page_size)

    @Call
    def get(self, name: str) -> Request[BrokerConnection]:
        """A connection by its name."""
        return fetch(path_of("connections", name), struct_of(BrokerConnection))

    @Call
    def replace(
        self,
        name: str,
        type: str,  # noqa: A002 - the API's name
        *,
        settings: Mapping[str, Any],
        secrets: Mapping[str, str] | None = None,
    ) -> Request[BrokerConnection]:
        """Create a connection, or replace it. A secret that is left out stays as it is; an empty one is removed."""
        body = {"type": type, "settings": settings, "secrets": secrets}
        return change("PUT", path_of("connections", name), struct_of(BrokerConnection), body)

    @Call
    def test(self, name: str) -> Request[ConnectionCheck]:
        """Let the API connect to the broker, and say what it found. No message is sent."""
        return post(f"{path_of('connections', name)}:test", struct_of(ConnectionCheck), is_change=False)

    @Call
    def delete(self, name: str) -> Request[None]:
        """Remove a connection that no job uses."""
        return change("DELETE", path_of("connections", name), no_content)


class AlertCalls(Calls[W]):
    """Alerts, and where their notices go."""

    @PagedCall
    def list(self, *, status: str | None = None, page_size: int | None = None) -> Request[AlertPage]:
        """The alerts, newest first; only those that are `open` or `closed`, if given."""
        return fetch(path_of("alerts"), struct_of(AlertPage), status=status, limit=page_size)

    @Call
    def target(self) -> Request[AlertTarget]:
        """Where notices go."""
        return fetch(path_of("alerts", "target"), struct_of(AlertTarget))

    @Call
    def set_target(self, url: str, /, **options: Any) -> Request[AlertTarget]:
        """Set where notices go. Options as in the API: `headers`, `conditions`."""
        return change("PUT", path_of("alerts", "target"), struct_of(AlertTarget), {"url": url, **options})

    @Call
    def remove_target(self) -> Request[None]:
        """Send no notices any more."""
        return change("DELETE", path_of("alerts", "target"), no_content)

    @Call
    def test(self, *, idempotency_key: str | None = None) -> Request[Run]:
        """Send a test notice; the answer is its run."""
        return post(path_of("alerts", "target", "test"), struct_of(Run), key=idempotency_key)


class EventCalls(Calls[W]):
    """Events: finished runs, gaps, changes of jobs. The `id` of the last one, as `cursor`, is where to go on."""

    @PagedCall
    def list(
        self, *, cursor: str | None = None, types: Sequence[str] = (), page_size: int | None = None
    ) -> Request[EventPage]:
        """The events that there are, oldest first."""
        return fetch(path_of("events"), struct_of(EventPage), cursor=cursor, types=tuple(types), limit=page_size)

    @StreamCall
    def follow(self, *, cursor: str | None = None, types: Sequence[str] = ()) -> Request[Event]:
        """The events that there are, and then those that happen. It goes on after the last one when it is cut off."""
        return fetch(path_of("events"), struct_of(Event), cursor=cursor, types=tuple(types))

    @Call
    def stream(self) -> Request[EventStream]:
        """The stream, and how far its sink is."""
        return fetch(path_of("events", "stream"), struct_of(EventStream))

    @Call
    def set_stream(self, /, **options: Any) -> Request[EventStream]:
        """Keep events from now on. Options as in the API: `sink`, `types`, `all_tenants`."""
        return change("PUT", path_of("events", "stream"), struct_of(EventStream), options)

    @Call
    def remove_stream(self) -> Request[None]:
        """Keep no more events, and send none."""
        return change("DELETE", path_of("events", "stream"), no_content)


class ForecastCalls(Calls[W]):
    """Firings to come, the jitter that would lower their peak, and smears: such jitter for many jobs."""

    @Call
    def get(  # noqa: PLR0913 - as many options as the API has
        self,
        horizon: str | None = None,
        *,
        from_at: datetime | None = None,
        to_at: datetime | None = None,
        bucket_seconds: int | None = None,
        labels: Mapping[str, str] | None = None,
        queue: str | None = None,
        hottest: int | None = None,
        all_tenants: bool = False,
    ) -> Request[Forecast]:
        """How many firings each minute of `24h`, each hour of `30d`, or each bucket between two instants will have."""
        wanted = {"horizon": horizon, "from": from_at, "to": to_at, "bucket_seconds": bucket_seconds, "label": labels}
        everyone = "true" if all_tenants else None
        return fetch(
            path_of("forecast"), struct_of(Forecast), **wanted, queue=queue, hottest=hottest, all_tenants=everyone
        )

    @Call
    def advice(self, *, labels: Mapping[str, str] | None = None, queue: str | None = None) -> Request[ForecastAdvice]:
        """Which jobs should get jitter, so that the highest minute of the next 24 hours is lower."""
        return fetch(path_of("forecast", "advice"), struct_of(ForecastAdvice), label=labels, queue=queue)

    @Call
    def apply(
        self,
        advice: ForecastAdvice,
        *,
        labels: Mapping[str, str] | None = None,
        queue: str | None = None,
        idempotency_key: str | None = None,
    ) -> Request[Smear]:
        """Give the jobs of an advice their jitter, with the filter that it was asked with."""
        body = {
            "rules": [rule.rule_id for rule in advice.rules],
            "jitter_seconds": advice.jitter_seconds,
            "label": [f"{key}:{value}" for key, value in (labels or {}).items()],
            "queue": queue,
        }
        return post(f"{PREFIX}/forecast/advice:apply", struct_of(Smear), body, key=idempotency_key)

    @PagedCall
    def smears(self, *, page_size: int | None = None) -> Request[SmearPage]:
        """The smears, newest first."""
        return fetch(path_of("smears"), struct_of(SmearPage), limit=page_size)

    @Call
    def smear(self, smear_id: str) -> Request[Smear]:
        """A smear with its progress."""
        return fetch(path_of("smears", smear_id), struct_of(Smear))

    @Call
    def undo(self, smear_id: str, *, idempotency_key: str | None = None) -> Request[Smear]:
        """Take the jitter of a smear back, from jobs that were not edited since."""
        return post(path_of("smears", smear_id, "undo"), struct_of(Smear), key=idempotency_key)


class AuditLogCalls(Calls[W]):
    """Who changed what."""

    @PagedCall
    def list(self, *, page_size: int | None = None) -> Request[ChangePage]:
        """The changes, newest first."""
        return fetch(path_of("audit-log"), struct_of(ChangePage), limit=page_size)
