"""Where a database is, and how a connection logs in: passwords that change are read anew for each connection."""

import asyncio
import shlex
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from evertick.config.settings import DATABASE_SCHEMA, Settings

PASSWORD_SECONDS = 10.0
"""For a command that prints a password. It asks a service, as a rule."""


@dataclass(frozen=True, slots=True)
class Location:
    """A URL, and what it does not say."""

    url: str = field(repr=False)
    direct_url: str | None = field(default=None, repr=False)
    """Of the same database without a pooler in between, to listen there."""
    password: Callable[[], Awaitable[str]] | None = None
    """Instead of one in the URL."""
    wanted: str = "read-write"
    """Of several hosts; as `target_session_attrs`, which a URL may have itself."""
    schema: str = DATABASE_SCHEMA
    """Where Evertick's tables are."""


DatabaseAddress: TypeAlias = str | Location
"""A URL alone is enough for many."""


class PasswordUnavailable(OSError):  # noqa: N818 - says what is wrong
    """A password could not be read: perhaps later. The message never shows what was read."""


def location_of(settings: Settings) -> Location | None:
    """None: the settings name no database, so the embedded server is used."""
    if settings.database_url is None:
        return None
    return Location(
        settings.database_url,
        settings.database_direct_url,
        _password_source(settings),
        schema=settings.database_schema,
    )


def replica_of(settings: Settings) -> Location | None:
    """None: the settings name no standby."""
    if settings.database_replica_url is None:
        return None
    return Location(
        settings.database_replica_url,
        password=_password_source(settings),
        wanted="standby",
        schema=settings.database_schema,
    )


def _password_source(settings: Settings) -> Callable[[], Awaitable[str]] | None:
    if settings.database_password_file is not None:
        return partial(_read_file, settings.database_password_file)
    if settings.database_password_command is not None:
        return partial(_run_command, settings.database_password_command)
    return None


async def _read_file(path: Path) -> str:
    return await asyncio.to_thread(_password_in, path)


def _password_in(path: Path) -> str:
    name = f"the password file {path}"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise PasswordUnavailable(f"{name}: {error.strerror}") from None
    return _first_line(content, name)


async def _run_command(command: str) -> str:
    # In a thread, because not every event loop can wait for a process outside of the main thread.
    return await asyncio.to_thread(_password_of, command)


def _password_of(command: str) -> str:
    """The output of a command, which is no shell script. Its errors go where those of this process go."""
    words = shlex.split(command)
    name = f"the password command {words[0]}"  # its arguments may be secret
    try:
        finished = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=PASSWORD_SECONDS)  # noqa: S603, PLW1510
    except subprocess.TimeoutExpired:
        raise PasswordUnavailable(f"{name} took longer than {PASSWORD_SECONDS:.0f} seconds") from None
    except OSError as error:
        raise PasswordUnavailable(f"{name}: {error.strerror}") from None
    if finished.returncode:
        raise PasswordUnavailable(f"{name} failed with exit code {finished.returncode}")
    return _first_line(finished.stdout, name)


def _first_line(content: bytes, source: str) -> str:
    """The password in what was read. Files and commands end with a line break as a rule."""
    try:
        password = content.decode().partition("\n")[0].removesuffix("\r")
    except UnicodeDecodeError:
        raise PasswordUnavailable(f"{source}: is not UTF-8") from None
    if not password:
        raise PasswordUnavailable(f"{source}: is empty")
    return password
