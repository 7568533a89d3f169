"""Finds the server that a command calls, and its API key: from options, a profile of the config file, or settings.

A key is sent only to its own server: a key from a profile or from the settings is not used with another URL.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import typer

from evertick.config import DEFAULT_FILE, FILE_VARIABLE, PROFILE_VARIABLE, ConfigInvalid, Settings, read_settings
from evertick.domain.errors import InvalidInput

_KEYS = ("url", "api_key")


class ServerAccess(NamedTuple):
    """A server and the key for it."""

    url: str
    api_key: str

    def __repr__(self) -> str:
        return "ServerAccess(***)"


def find_server(url: str | None, profile: str | None, api_key_file: Path | None) -> ServerAccess | None:
    """The server that the options name, else the environment, else the config file. None if none of them names one."""
    if url is not None and profile is not None:
        raise typer.BadParameter("--url and --profile exclude each other")
    api_key = None if api_key_file is None else _read_key(api_key_file)
    chosen = profile or (None if url is not None else os.environ.get(PROFILE_VARIABLE))
    if chosen:
        return read_profile(chosen, api_key)
    settings = read_settings()
    address = url or settings.url
    return None if address is None else server_with_key(address, api_key, settings)


def server_with_key(url: str, api_key: str | None, settings: Settings) -> ServerAccess:
    """A server with this key, or with the one in the settings."""
    if api_key is not None:
        return ServerAccess(url, api_key)
    if settings.api_key is None:
        raise InvalidInput("api_key", "is missing: set EVERTICK_API_KEY, or use --api-key-file")
    if settings.url is not None and settings.url.rstrip("/") != url.rstrip("/"):
        raise InvalidInput("api_key", "is missing: the one in the settings is for another server; use --api-key-file")
    return ServerAccess(url, settings.api_key)


def read_profile(name: str, api_key: str | None = None) -> ServerAccess:
    """A profile of the config file, with this key or its own. Raises ConfigInvalid with all faults."""
    path = config_file()
    try:
        profiles = tomllib.loads(path.read_text(encoding="utf-8")).get("profiles", {})
    except FileNotFoundError:
        profiles = {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigInvalid([f"{path}: {error}"]) from None
    faults = profile_faults(profiles)
    if faults:
        raise ConfigInvalid(f"{path}: {fault}" for fault in faults)
    if name not in profiles:
        known = f"it has {', '.join(profiles)}" if profiles else "it has none"
        raise ConfigInvalid([f"{path}: there is no profile {name!r}: {known}"])
    found = api_key or profiles[name].get("api_key")
    if found is None:
        raise ConfigInvalid([f"{path}: profiles.{name}.api_key is missing: set it, or use --api-key-file"])
    return ServerAccess(profiles[name]["url"], found)


def profile_faults(profiles: Any) -> list[str]:
    """All faults of the table of profiles."""
    if not isinstance(profiles, Mapping):
        return ["profiles: must be tables, as in [profiles.production]"]
    return [fault for name, profile in profiles.items() for fault in _faults(f"profiles.{name}", profile)]


def _faults(where: str, profile: Any) -> list[str]:
    if not isinstance(profile, Mapping):
        return [f"{where}: must be a table with a url"]
    faults = [f"{where}.{key} is not known: a profile has {' and '.join(_KEYS)}" for key in profile if key not in _KEYS]
    if "url" not in profile:
        faults.append(f"{where}.url is missing")
    return faults + [
        f"{where}.{key}: must be a non-empty string"
        for key in _KEYS
        if key in profile and not (isinstance(profile[key], str) and profile[key].strip())
    ]


def config_file() -> Path:
    named = os.environ.get(FILE_VARIABLE)
    return Path(named).expanduser() if named else Path(DEFAULT_FILE)


def _read_key(path: Path) -> str:
    """The key in a file. An empty file is an error, not a reason to use another key."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--api-key-file {path}: {error}") from None
    if not key:
        raise typer.BadParameter(f"--api-key-file {path}: is empty")
    return key
