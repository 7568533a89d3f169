"""All settings of a process, with their defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from evertick.config import values
from evertick.config.values import LOG_FORMATS, Network, Role, Tracing
from evertick.domain.limits import MAX_OUTPUT_BYTES

DATABASE_SCHEMA = "evertick"
HIDDEN = "***"


def _setting(read: Callable[[Any], Any], default: Any, *, is_secret: bool = False) -> Any:
    return field(default=default, metadata={"read": read, "is_secret": is_secret})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """All settings, with the defaults that hold without any. Its repr hides what is secret."""

    database_url: str | None = _setting(values.database_url, None, is_secret=True)  # None: the embedded server
    database_direct_url: str | None = _setting(
        values.database_url, None, is_secret=True
    )  # the same database without the pooler, for LISTEN; None: behind a pooler processes poll
    database_password_file: Path | None = _setting(values.directory, None)  # noqa: RUF009 - a field; read for each connection
    database_password_command: str | None = _setting(
        values.command, None, is_secret=True
    )  # prints the password; called for each connection
    database_schema: str = _setting(values.schema_name, DATABASE_SCHEMA)  # of Evertick's tables, beside those of others
    database_replica_url: str | None = _setting(
        values.database_url, None, is_secret=True
    )  # a standby of the same database, for lists and figures of the API that may be seconds old
    database_replica_max_lag_seconds: float = _setting(values.positive, 10.0)  # further behind it is not used
    cluster: str | None = _setting(values.text, None)  # its name in the database; None: it has none
    data_dir: Path | None = _setting(values.directory, None)  # noqa: RUF009 - a field; of the embedded server
    redis_url: str | None = _setting(values.redis_url, None, is_secret=True)  # of rate buckets; None: in the database
    roles: tuple[Role, ...] | None = _setting(values.roles, None)  # of `evertick up`; None: all
    host: str = _setting(values.text, "127.0.0.1")
    port: int = _setting(values.port, 8700)
    tls_cert: Path | None = _setting(values.directory, None)  # noqa: RUF009 - as above; of the API, with the chain; None: plain http
    tls_key: Path | None = _setting(values.directory, None)  # noqa: RUF009 - as above
    max_connections: int = _setting(values.count, 8192)  # of clients with the API
    max_connections_per_address: int = _setting(values.count, 1024)  # this machine's own addresses have no such limit
    max_long_polls: int = _setting(values.count, 3000)  # of pull workers that wait at one process
    max_long_polls_per_tenant: int = _setting(values.count, 1000)
    max_ready: int = _setting(
        values.count, 4_000_000
    )  # waiting attempts of all tenants; from half of it on submissions are refused, low priority first
    trusted_proxies: tuple[Network, ...] = _setting(
        values.networks, ()
    )  # in front of the API: their X-Forwarded-For is believed, and they have no limit per address
    path_prefix: str | None = _setting(values.path_prefix, None)  # below which a proxy shows the API and the dashboard
    session_hours: float = _setting(values.positive, 12.0)  # after which the dashboard asks for a key again
    metrics_open: bool | None = _setting(values.yes_or_no, None)  # without a key; None: only while bound to loopback
    metrics_host: str = _setting(values.text, "127.0.0.1")  # of a port for metrics alone
    metrics_port: int | None = _setting(values.port, None)
    metrics_key: str | None = _setting(values.metrics_key, None, is_secret=True)  # of whoever reads metrics
    metrics_queues: tuple[str, ...] | None = _setting(
        values.names, None
    )  # those with series of their own; None: the first 50 names
    health_file: Path | None = _setting(values.directory, None)  # noqa: RUF009 - as above; touched by a live process
    log_format: str = _setting(values.log_format, LOG_FORMATS[0])
    log_level: str = _setting(values.log_level, "info")  # of Evertick, and of an app's own loggers
    tracing: Tracing = _setting(values.tracing, Tracing.OFF)  # noqa: RUF009 - a field
    url: str | None = _setting(values.server_url, None)  # for clients
    api_key: str | None = _setting(values.text, None, is_secret=True)
    secret_key: tuple[str, ...] | None = _setting(
        values.secret_keys, None, is_secret=True
    )  # of webhook secrets in the database: the first seals them, all open them
    egress_allow: tuple[Network, ...] | None = _setting(
        values.networks, None
    )  # not public, yet open to webhooks; None: loopback, for one tenant on one machine (roles/dispatcher/settings)
    egress_allow_http: bool = _setting(values.yes_or_no, False)  # webhooks without TLS
    body_memory_mib: float = _setting(values.positive, 512.0)  # of the API, for the bodies of requests under way
    body_memory_mib_per_tenant: float = _setting(values.positive, 128.0)
    heartbeat_seconds: float = _setting(values.positive, 0.5)
    heartbeat_timeout_seconds: float = _setting(values.positive, 5.0)
    lease_seconds: float = _setting(values.positive, 30.0)
    load_horizon_seconds: float = _setting(values.positive, 120.0)
    catch_up_factor: float | None = _setting(
        values.factor, 2.0
    )  # after an outage schedulers fire up to so many times as much as normal; None: whatever they can
    normal_rate: float = _setting(values.positive, 500.0)  # runs a second of the whole cluster that are normal at least
    history_days: float = _setting(values.positive, 90.0)
    result_max_bytes: int = _setting(
        values.result_bytes, MAX_OUTPUT_BYTES
    )  # of JSON that a handler returned; of a longer result the beginning is kept, with 0 nothing
    audit_log_days: float = _setting(values.positive, 365.0)
    dead_letter_days: float = _setting(values.positive, 365.0)
    archive_url: str | None = _setting(values.archive_url, None)  # where days go before they are dropped; None: nowhere
    archive_endpoint: str | None = _setting(values.endpoint, None)  # of storage like S3; None: that of AWS
    archive_region: str | None = _setting(values.text, None)
    archive_access_key: str | None = _setting(values.text, None, is_secret=True)  # None: as the variables of AWS say
    archive_secret_key: str | None = _setting(values.text, None, is_secret=True)
    event_days: float = _setting(values.positive, 7.0)  # no longer than the history and the audit log

    @property
    def heartbeat(self) -> timedelta:
        return timedelta(seconds=self.heartbeat_seconds)

    @property
    def heartbeat_timeout(self) -> timedelta:
        return timedelta(seconds=self.heartbeat_timeout_seconds)

    @property
    def lease_time(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)

    @property
    def load_horizon(self) -> timedelta:
        return timedelta(seconds=self.load_horizon_seconds)

    @property
    def history(self) -> timedelta:
        return timedelta(days=self.history_days)

    @property
    def audit_log(self) -> timedelta:
        return timedelta(days=self.audit_log_days)

    @property
    def dead_letters(self) -> timedelta:
        return timedelta(days=self.dead_letter_days)

    @property
    def events(self) -> timedelta:
        return timedelta(days=self.event_days)

    def __repr__(self) -> str:
        shown = (f"{each.name}={_shown(each.metadata, getattr(self, each.name))}" for each in fields(self))
        return f"Settings({', '.join(shown)})"


DEFAULTS = Settings()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on this host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(metadata: Mapping[str, Any], value: Any) -> str:
    if not metadata["is_secret"] or value is None:
        return repr(value)
    if not isinstance(value, str) or not value.startswith(("postgresql://", "postgres://")):
        return repr(HIDDEN)
    try:
        parts = urlsplit(value)
    except ValueError:
        return repr(HIDDEN)
    place = parts.netloc.rpartition("@")[2]
    return repr(urlunsplit((parts.scheme, f"{HIDDEN}@{place}" if "@" in parts.netloc else place, parts.path, "", "")))
