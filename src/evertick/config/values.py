"""The values of settings: how each kind is read from a variable or a file. ValueError says what a value must be."""

import re
import shlex
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, TypeAlias

from evertick.domain.limits import MAX_OUTPUT_BYTES

SECRET_KEY_LENGTH = 32
METRICS_KEY_LENGTH = 16
NO_NETWORKS = "none"
"""In place of a list of networks: an empty variable counts as one that is not set."""
UNLIMITED = "unlimited"
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")

Network: TypeAlias = IPv4Network | IPv6Network


class Role(StrEnum):
    """What a process may do besides running users' handlers."""

    API = "api"  # answers over HTTP
    SCHEDULER = "scheduler"  # fires timers
    JANITOR = "janitor"  # removes what is old or unused, repairs what was lost
    DISPATCHER = "dispatcher"  # delivers webhooks


class Tracing(StrEnum):
    """Where the spans of runs go."""

    OFF = "off"
    OTLP = "otlp"  # to a collector, as the standard OTEL_* variables say
    PROVIDER = "provider"  # to the global provider of OpenTelemetry that the program has set up


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text that is not empty")
    return value.strip()


def path_prefix(value: Any) -> str:
    prefix = text(value).rstrip("/")
    if not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", prefix):
        raise ValueError("must be a path such as /evertick")
    return prefix


def database_url(value: Any) -> str:
    url = text(value)
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://")
    return url


def schema_name(value: Any) -> str:
    name = text(value)
    if re.fullmatch("(?!pg_)[a-z_][a-z0-9_]{0,62}", name) is None:
        raise ValueError("must be a name of a-z, 0-9 and _ that does not begin with a digit or pg_")
    if name == "public":  # functions with the rights of their owner trust what is in the schema
        raise ValueError("must not be public: other roles may create functions there")
    return name


def command(value: Any) -> str:
    command = text(value)
    try:
        shlex.split(command)
    except ValueError as error:
        raise ValueError(f"must be a command with its arguments: {error}") from None
    return command


def redis_url(value: Any) -> str:
    url = text(value)
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must begin with redis://, rediss:// or unix://")
    return url


def archive_url(value: Any) -> str:
    url = text(value)
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    if scheme not in {"file", "s3"} or not rest.strip("/") or (scheme == "file" and not rest.startswith("/")):
        raise ValueError("must be a directory, as in /srv/archive or file:///srv/archive, or s3://bucket/prefix")
    if "@" in rest.partition("/")[0]:
        raise ValueError(
            "must have no user or password: set EVERTICK_ARCHIVE_ACCESS_KEY and EVERTICK_ARCHIVE_SECRET_KEY"
        )
    return url


def endpoint(value: Any) -> str:
    url = text(value)
    if re.fullmatch("https?://[^/@?#]+/?", url) is None:
        raise ValueError("must read https://host:port, without a path")
    return url


def server_url(value: Any) -> str:
    url = text(value)
    if re.match("[a-z]+://[^/?#]*@", url):
        raise ValueError("must have no user or password: the key is all that a server asks for")
    return url


def secret_keys(value: Any) -> tuple[str, ...]:
    keys = value if isinstance(value, list) else text(value).split(",")
    if not keys or not all(isinstance(key, str) and len(key.strip()) >= SECRET_KEY_LENGTH for key in keys):
        raise ValueError(f"must have at least {SECRET_KEY_LENGTH} characters, as `openssl rand -base64 32` makes them")
    return tuple(key.strip() for key in keys)


def metrics_key(value: Any) -> str:
    key = text(value)
    if len(key) < METRICS_KEY_LENGTH or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError(f"must have at least {METRICS_KEY_LENGTH} ASCII characters, without spaces")
    return key


def names(value: Any) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(each, str) and each.strip() for each in names):
        raise ValueError("must be names of queues, by commas")
    return tuple(each.strip() for each in names)


def networks(value: Any) -> tuple[Network, ...]:
    if isinstance(value, str) and value.strip().lower() == NO_NETWORKS:
        return ()
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(each, str) and each.strip() for each in texts):
        raise ValueError(f"must be networks, by commas, as in 10.0.0.0/8,fd12:3456::/32, or {NO_NETWORKS}")
    return tuple(ip_network(each.strip()) for each in texts)


def yes_or_no(value: Any) -> bool:
    found = _WORDS.get(str(value).strip().lower())
    if found is None:
        raise ValueError("must be true or false")
    return found


_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def directory(value: Any) -> Path:
    return Path(text(value)).expanduser()


def port(value: Any) -> int:
    port = number(value)
    if not 0 <= port <= 65535 or port != int(port):
        raise ValueError("must be a whole number from 0 to 65535")
    return int(port)


def count(value: Any) -> int:
    count = number(value)
    if not 0 < count < 1e9 or count != int(count):
        raise ValueError("must be a whole number above 0")
    return int(count)


def result_bytes(value: Any) -> int:
    size = number(value)
    if not 0 <= size <= MAX_OUTPUT_BYTES or size != int(size):
        raise ValueError(f"must be a whole number from 0 to {MAX_OUTPUT_BYTES}")
    return int(size)


def positive(value: Any) -> float:
    found = number(value)
    if not 0 < found < 1e9:
        raise ValueError("must be a number above 0")
    return found


def factor(value: Any) -> float | None:
    if isinstance(value, str) and value.strip().lower() == UNLIMITED:
        return None
    factor = number(value)
    if not 1 < factor < 1e9:
        raise ValueError(f"must be a number above 1, or {UNLIMITED}")
    return factor


def roles(value: Any) -> tuple[Role, ...]:
    names = value.split(",") if isinstance(value, str) else value
    known = {str(role) for role in Role}
    if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
        raise ValueError(f"must be among {', '.join(Role)}, by commas")
    if unknown := [each.strip() for each in names if each.strip() not in known]:
        raise ValueError(f"{', '.join(unknown) or 'nothing'}: must be among {', '.join(Role)}")
    return tuple(Role(each.strip()) for each in names)


def tracing(value: Any) -> Tracing:
    try:
        return Tracing(value)
    except ValueError:
        raise ValueError(f"must be {', '.join(Tracing)}") from None


def log_format(value: Any) -> str:
    if value not in LOG_FORMATS:
        raise ValueError(f"must be {' or '.join(LOG_FORMATS)}")
    return str(value)


def log_level(value: Any) -> str:
    level = str(value).lower()
    if level not in LOG_LEVELS:
        raise ValueError(f"must be one of {', '.join(LOG_LEVELS)}")
    return level


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number")  # noqa: TRY004 - all faults of a value are of one kind
    try:
        return float(value)
    except ValueError:
        raise ValueError("must be a number") from None
