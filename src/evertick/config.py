"""Settings of a process: from the environment, else from a TOML file, else defaults. All faults are reported at once.

The file is the one that `EVERTICK_CONFIG` names, or `evertick.toml` where the process starts. A key of the file is a
field's name; a variable is the same in capitals after `EVERTICK_`. A secret may be in a file of its own: the variable
with `_FILE` at its end names it.
"""

import difflib
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

from evertick.domain.errors import EvertickError

PREFIX = "EVERTICK_"
FILE_VARIABLE = "EVERTICK_CONFIG"
PROFILE_VARIABLE = "EVERTICK_PROFILE"
FILE_SUFFIX = "_FILE"
PROFILES = "profiles"
"""A table of servers in the file, for commands that go over the API; they read it themselves."""
DEFAULT_FILE = "evertick.toml"
HIDDEN = "***"
_CHOOSING = frozenset({FILE_VARIABLE, PROFILE_VARIABLE})
SECRET_KEY_LENGTH = 32
METRICS_KEY_LENGTH = 16
NO_NETWORKS = "none"
"""In place of a list of networks: an empty variable counts as one that is not set."""

UNLIMITED = "unlimited"
LOG_FORMATS = ("text", "json")


class Tracing(StrEnum):
    """Where the spans of runs go."""

    OFF = "off"
    OTLP = "otlp"  # to a collector, as the standard OTEL_* variables say
    PROVIDER = "provider"  # to the global provider of OpenTelemetry that the program has set up


Network: TypeAlias = IPv4Network | IPv6Network


class ConfigInvalid(EvertickError, ValueError):  # noqa: N818 - says what is wrong
    """Settings that cannot be used, with all their faults."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(("the settings cannot be used:", *(f"  {fault}" for fault in self.faults))))

    def __reduce__(self) -> tuple[type["ConfigInvalid"], tuple[tuple[str, ...]]]:
        return type(self), (self.faults,)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty")
    return value.strip()


def _database_url(value: Any) -> str:
    url = _text(value)
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://")
    return url


def _command(value: Any) -> str:
    command = _text(value)
    try:
        shlex.split(command)
    except ValueError as error:
        raise ValueError(f"must be a command with its arguments: {error}") from None
    return command


def _redis_url(value: Any) -> str:
    url = _text(value)
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must begin with redis://, rediss:// or unix://")
    return url


def _server_url(value: Any) -> str:
    url = _text(value)
    if re.match("[a-z]+://[^/?#]*@", url):
        raise ValueError("must have no user or password: the key is all that a server asks for")
    return url


def _secret_keys(value: Any) -> tuple[str, ...]:
    keys = value if isinstance(value, list) else _text(value).split(",")
    if not keys or not all(isinstance(key, str) and len(key.strip()) >= SECRET_KEY_LENGTH for key in keys):
        raise ValueError(f"must have at least {SECRET_KEY_LENGTH} characters, as `openssl rand -base64 32` makes them")
    return tuple(key.strip() for key in keys)


def _metrics_key(value: Any) -> str:
    key = _text(value)
    if len(key) < METRICS_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"must have at least {METRICS_KEY_LENGTH} ASCII characters, without spaces")
    return key


def _names(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(each, str) and each.strip() for each in names):
        raise ValueError("must be names of queues, by commas")
    return tuple(each.strip() for each in names)


def _networks(value: Any) -> tuple[Network, ...]:
    if isinstance(value, str) and value.strip().lower() == NO_NETWORKS:
        return ()
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) and each.strip() for each in texts):
        raise ValueError(f"must be networks, by commas, as in 10.0.0.0/8,fd12:3456::/32, or {NO_NETWORKS}")
    return tuple(ip_network(each.strip()) for each in texts)


def _yes_or_no(value: Any) -> bool:
    found = _WORDS.get(str(value).strip().lower())
    if found is None:
        raise ValueError("must be true or false")
    return found


_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _directory(value: Any) -> Path:
    return Path(_text(value)).expanduser()


def _port(value: Any) -> int:
    port = _number(value)
    if not 0 <= port <= 65535 or port != int(port):
        raise ValueError("must be a whole number from 0 to 65535")
    return int(port)


def _count(value: Any) -> int:
    count = _number(value)
    if not 0 < count < 1e9 or count != int(count):
        raise ValueError("must be a whole number above 0")
    return int(count)


def _positive(value: Any) -> float:
    number = _number(value)
    if not 0 < number < 1e9:
        raise ValueError("must be a number above 0")
    return number


def _factor(value: Any) -> float | None:
    if isinstance(value, str) and value.strip().lower() == UNLIMITED:
        return None
    factor = _number(value)
    if not 1 < factor < 1e9:
        raise ValueError(f"must be a number above 1, or {UNLIMITED}")
    return factor


def _tracing(value: Any) -> Tracing:
    try:
        return Tracing(value)
    except ValueError:
        raise ValueError(f"must be {', '.join(Tracing)}") from None


def _log_format(value: Any) -> str:
    if value not in LOG_FORMATS:
        raise ValueError(f"must be {' or '.join(LOG_FORMATS)}")
    return str(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number")  # noqa: TRY004 - all faults of a value are of one kind
    try:
        return float(value)
    except ValueError:
        raise ValueError("must be a number") from None


def _setting(read: Callable[[Any], Any], default: Any, *, is_secret: bool = False) -> Any:
    return field(default=default, metadata={"read": read, "is_secret": is_secret})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """All settings, with the defaults that hold without any. Its repr hides what is secret."""

    database_url: str | None = _setting(_database_url, None, is_secret=True)  # None: the embedded server
    database_direct_url: str | None = _setting(
        _database_url, None, is_secret=True
    )  # the same database without the pooler, for LISTEN; None: behind a pooler processes poll
    database_password_file: Path | None = _setting(_directory, None)  # noqa: RUF009 - a field; read for each connection
    database_password_command: str | None = _setting(
        _command, None, is_secret=True
    )  # prints the password; called for each connection
    database_replica_url: str | None = _setting(
        _database_url, None, is_secret=True
    )  # a standby of the same database, for lists and figures of the API that may be seconds old
    database_replica_max_lag_seconds: float = _setting(_positive, 10.0)  # further behind it is not used
    cluster: str | None = _setting(_text, None)  # its name in the database; None: it has none
    data_dir: Path | None = _setting(_directory, None)  # noqa: RUF009 - a field; of the embedded server
    redis_url: str | None = _setting(_redis_url, None, is_secret=True)  # of rate buckets; None: in the database
    host: str = _setting(_text, "127.0.0.1")
    port: int = _setting(_port, 8700)
    tls_cert: Path | None = _setting(_directory, None)  # noqa: RUF009 - as above; of the API, with the chain; None: plain http
    tls_key: Path | None = _setting(_directory, None)  # noqa: RUF009 - as above
    max_connections: int = _setting(_count, 8192)  # of clients with the API
    max_connections_per_address: int = _setting(_count, 1024)  # this machine's own addresses have no such limit
    max_long_polls: int = _setting(_count, 3000)  # of pull workers that wait at one process
    max_long_polls_per_tenant: int = _setting(_count, 1000)
    max_ready: int = _setting(
        _count, 4_000_000
    )  # waiting attempts of all tenants; from half of it on submissions are refused, low priority first
    trusted_proxies: tuple[Network, ...] = _setting(
        _networks, ()
    )  # in front of the API: their X-Forwarded-For is believed, and they have no limit per address
    metrics_open: bool | None = _setting(_yes_or_no, None)  # without a key; None: only while bound to loopback
    metrics_host: str = _setting(_text, "127.0.0.1")  # of a port for metrics alone
    metrics_port: int | None = _setting(_port, None)
    metrics_key: str | None = _setting(_metrics_key, None, is_secret=True)  # of whoever reads metrics
    metrics_queues: tuple[str, ...] | None = _setting(
        _names, None
    )  # those with series of their own; None: the first 50 names
    health_file: Path | None = _setting(_directory, None)  # noqa: RUF009 - as above; touched by a live process
    log_format: str = _setting(_log_format, LOG_FORMATS[0])
    tracing: Tracing = _setting(_tracing, Tracing.OFF)  # noqa: RUF009 - a field
    url: str | None = _setting(_server_url, None)  # for clients
    api_key: str | None = _setting(_text, None, is_secret=True)
    secret_key: tuple[str, ...] | None = _setting(
        _secret_keys, None, is_secret=True
    )  # of webhook secrets in the database: the first seals them, all open them
    egress_allow: tuple[Network, ...] | None = _setting(
        _networks, None
    )  # not public, yet open to webhooks; None: loopback, for one tenant on one machine (roles/dispatcher/settings)
    egress_allow_http: bool = _setting(_yes_or_no, False)  # webhooks without TLS
    body_memory_mib: float = _setting(_positive, 512.0)  # of the API, for the bodies of requests under way
    body_memory_mib_per_tenant: float = _setting(_positive, 128.0)
    heartbeat_seconds: float = _setting(_positive, 0.5)
    heartbeat_timeout_seconds: float = _setting(_positive, 5.0)
    lease_seconds: float = _setting(_positive, 30.0)
    load_horizon_seconds: float = _setting(_positive, 120.0)
    catch_up_factor: float | None = _setting(
        _factor, 2.0
    )  # after an outage schedulers fire up to so many times as much as normal; None: whatever they can
    normal_rate: float = _setting(_positive, 500.0)  # runs a second of the whole cluster that are normal at least
    history_days: float = _setting(_positive, 90.0)
    audit_log_days: float = _setting(_positive, 365.0)
    dead_letter_days: float = _setting(_positive, 365.0)

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


def read_settings(environment: Mapping[str, str] | None = None, directory: Path | None = None) -> Settings:
    """The settings for a process with this environment that starts in this directory; by default, this one's."""
    environment = os.environ if environment is None else environment
    faults: list[str] = []
    given = _joined(_from_file(environment, directory or Path(), faults), _from_environment(environment, faults))
    readers = {each.name: each.metadata["read"] for each in fields(Settings)}
    values: dict[str, Any] = {}
    for name, (source, raw) in given.items():
        try:
            values[name] = readers[name](raw)
        except ValueError as error:
            faults.append(f"{source}: {error}")
    _check_together(Settings(**values), faults)
    if faults:
        raise ConfigInvalid(faults)
    return Settings(**values)


def checked(settings: Settings) -> Settings:
    """The settings, after options of a command were put into them. Raises ConfigInvalid if they do not go together."""
    faults: list[str] = []
    _check_together(settings, faults)
    if faults:
        raise ConfigInvalid(faults)
    return settings


def _from_file(environment: Mapping[str, str], directory: Path, faults: list[str]) -> dict[str, tuple[str, Any]]:
    named = environment.get(FILE_VARIABLE)
    path = Path(named).expanduser() if named else directory / DEFAULT_FILE
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if named:
            faults.append(f"{FILE_VARIABLE}: there is no file {path}")
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        faults.append(f"{path}: {error}")
        return {}
    known = [each.name for each in fields(Settings)]
    faults += [f"{path}: {key} is not known{_nearest(key, known)}" for key in content if key not in {*known, PROFILES}]
    return {key: (f"{path}: {key}", value) for key, value in content.items() if key in known}


def _from_environment(environment: Mapping[str, str], faults: list[str]) -> dict[str, tuple[str, Any]]:
    known = {PREFIX + each.name.upper(): each.name for each in fields(Settings)}
    ours = {key: value for key, value in environment.items() if key.startswith(PREFIX) and key not in _CHOOSING}
    secrets = [PREFIX + each.name.upper() for each in fields(Settings) if each.metadata["is_secret"]]
    for key in secrets:
        if path := ours.pop(key + FILE_SUFFIX, ""):
            _read_secret(key, path, ours, faults)
    # Other programs may use the prefix: only what looks like a misspelt setting is refused.
    strangers = ((key, _nearest(key, known)) for key in sorted(ours.keys() - known.keys()))
    faults += [f"{key} is not known{nearest}" for key, nearest in strangers if nearest]
    return {known[key]: (key, value) for key, value in ours.items() if key in known and value}


def _read_secret(key: str, path: str, ours: dict[str, str], faults: list[str]) -> None:
    """Add the variable that a file has, or a fault. Two places for one secret are one too many to be sure of."""
    if ours.get(key):
        faults.append(f"{key + FILE_SUFFIX}: {key} is set too: use one of them")
        return
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"{key + FILE_SUFFIX}: {error}")
        return
    if text:
        ours[key] = text
    else:
        faults.append(f"{key + FILE_SUFFIX}: {path} is empty")


def _joined(
    in_file: dict[str, tuple[str, Any]], in_environment: dict[str, tuple[str, Any]]
) -> dict[str, tuple[str, Any]]:
    """The environment overrides the file. A key that the file has for its server is not used for another server."""
    is_elsewhere = "url" in in_file and "url" in in_environment and in_file["url"][1] != in_environment["url"][1]
    ours = {name: value for name, value in in_file.items() if name != "api_key" or not is_elsewhere}
    return ours | in_environment


def _check_together(settings: Settings, faults: list[str]) -> None:
    if settings.heartbeat_timeout_seconds < 2 * settings.heartbeat_seconds:
        faults.append("heartbeat_timeout_seconds: must be at least twice heartbeat_seconds")
    is_open = is_loopback(settings.metrics_host) if settings.metrics_open is None else settings.metrics_open
    if settings.metrics_port is not None and settings.metrics_key is None and not is_open:
        faults.append("metrics_port: set metrics_key, or metrics_open to true")
    if settings.database_password_file is not None and settings.database_password_command is not None:
        faults.append("database_password_file, database_password_command: only one of them can be used")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("tls_key", "tls_cert") if settings.tls_cert is None else ("tls_cert", "tls_key")
        faults.append(f"{missing}: is missing, and {given} is given: TLS needs both files")


def _nearest(key: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(key, list(known), n=1, cutoff=0.75)
    return f": did you mean {found[0]}?" if found else ""


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
