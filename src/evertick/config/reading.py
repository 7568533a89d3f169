"""Reads settings: from the environment, else from a TOML file, else defaults. All faults are reported at once.

The file is the one that `EVERTICK_CONFIG` names, or `evertick.toml` where the process starts. A key of the file is a
field's name; a variable is the same in capitals after `EVERTICK_`. A secret may be in a file of its own: the variable
with `_FILE` at its end names it.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from evertick.config.settings import Settings, is_loopback
from evertick.domain.errors import EvertickError

PREFIX = "EVERTICK_"
FILE_VARIABLE = "EVERTICK_CONFIG"
PROFILE_VARIABLE = "EVERTICK_PROFILE"
FILE_SUFFIX = "_FILE"
PROFILES = "profiles"
"""A table of servers in the file, for commands that go over the API; they read it themselves."""
DEFAULT_FILE = "evertick.toml"
_CHOOSING = frozenset({FILE_VARIABLE, PROFILE_VARIABLE})
_SERVICE = re.compile(rf"{PREFIX}(?:\w+_)?SERVICE_(?:HOST|PORT(?:_\w+)?)")
_SERVICE_URL = re.compile(r"(?:tcp|udp|sctp)://")


class ConfigInvalid(EvertickError, ValueError):  # noqa: N818 - says what is wrong
    """Settings that cannot be used, with all their faults."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(("the settings cannot be used:", *(f"  {fault}" for fault in self.faults))))

    def __reduce__(self) -> tuple[type["ConfigInvalid"], tuple[tuple[str, ...]]]:
        return type(self), (self.faults,)


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
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named:
            faults.append(f"{FILE_VARIABLE}: there is no file {path}")
        return {}
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"{path}: {error}")
        return {}
    import tomllib  # noqa: PLC0415 - most commands have no file

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        faults.append(f"{path}: {error}")
        return {}
    known = [each.name for each in fields(Settings)]
    faults += [f"{path}: {key} is not known{_nearest(key, known)}" for key in content if key not in {*known, PROFILES}]
    return {key: (f"{path}: {key}", value) for key, value in content.items() if key in known}


def _from_environment(environment: Mapping[str, str], faults: list[str]) -> dict[str, tuple[str, Any]]:
    known = {PREFIX + each.name.upper(): each.name for each in fields(Settings)}
    ours = {
        key: value
        for key, value in environment.items()
        if key.startswith(PREFIX) and key not in _CHOOSING and not _is_of_kubernetes(key, value)
    }
    secrets = [PREFIX + each.name.upper() for each in fields(Settings) if each.metadata["is_secret"]]
    for key in secrets:
        if path := ours.pop(key + FILE_SUFFIX, ""):
            _read_secret(key, path, ours, faults)
    # Other programs may use the prefix: only what looks like a misspelt setting is refused.
    strangers = (
        (key, _nearest(key.removesuffix(FILE_SUFFIX), known, PREFIX)) for key in sorted(ours.keys() - known.keys())
    )
    faults += [f"{key} is not known{nearest}" for key, nearest in strangers if nearest]
    return {known[key]: (key, value) for key, value in ours.items() if key in known and value}


def _is_of_kubernetes(key: str, value: str) -> bool:
    """Whether Kubernetes sets it for a service with a name such as `evertick`: EVERTICK_PORT is then a URL."""
    return _SERVICE.fullmatch(key) is not None or _SERVICE_URL.match(value) is not None


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
    if (settings.archive_access_key is None) != (settings.archive_secret_key is None):
        faults.append("archive_access_key, archive_secret_key: must both be given, or neither")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("tls_key", "tls_cert") if settings.tls_cert is None else ("tls_cert", "tls_key")
        faults.append(f"{missing}: is missing, and {given} is given: TLS needs both files")


def _nearest(key: str, known: Iterable[str], prefix: str = "") -> str:
    """`prefix` does not count: it is long, so any short name after it would be near to some setting."""
    found = difflib.get_close_matches(key.removeprefix(prefix), [each.removeprefix(prefix) for each in known], 1, 0.75)
    return f": did you mean {prefix}{found[0]}?" if found else ""
