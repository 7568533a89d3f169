"""Finds the server or database that a command uses, and runs its work there.

Options name it, else a profile of the config file, else the settings. A key is sent only to its own server: a key from
a profile or from the settings is not used with another URL.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias, TypeVar

import click

from evertick.cli.errors import exit_on_error
from evertick.cli.options import AsJson, DatabaseUrl, DataDir, option_group, optional, settings_with
from evertick.cli.signatures import Option
from evertick.config.reading import DEFAULT_FILE, FILE_VARIABLE, PROFILE_VARIABLE, ConfigInvalid, read_settings
from evertick.config.settings import Settings
from evertick.domain.errors import InvalidInput
from evertick.runtime.extras import server_extra

if TYPE_CHECKING:
    from evertick.cli.backends.api import ApiBackend
    from evertick.cli.backends.database import DatabaseBackend
    from evertick.store.location import DatabaseAddress
    from evertick.usecases.context import TenantContext

_T = TypeVar("_T")

DEFAULT_TENANT = "default"
_PROFILE_KEYS = ("url", "api_key")

_SERVER = "Use the HTTP API of this server, with the key in EVERTICK_API_KEY. (env EVERTICK_URL)"
_PROFILE = "Use the server of this profile in the config file. (env EVERTICK_PROFILE)"
ServerUrl = Annotated[str | None, optional("--url", _SERVER, metavar="URL")]
Profile = Annotated[str | None, optional("--profile", _PROFILE, metavar="NAME")]
ApiKeyFile = Annotated[Path | None, optional("--api-key-file", "Read the API key from this file.", metavar="FILE")]
TenantName = Annotated[str, Option("--tenant", metavar="NAME", help="The tenant, with a database.")]


class ServerAccess(NamedTuple):
    """A server and the key for it."""

    url: str
    api_key: str

    def __repr__(self) -> str:
        return "ServerAccess(***)"


class DatabaseOptions(NamedTuple):
    """Options of commands that use the database alone."""

    database_url: DatabaseUrl = None
    data_dir: DataDir = None


class TenantOptions(NamedTuple):
    """Options of commands that use the database on behalf of one tenant."""

    tenant: TenantName = DEFAULT_TENANT
    database_url: DatabaseUrl = None
    data_dir: DataDir = None


class ConnectionOptions(NamedTuple):
    """Options of commands that use a server's API or a tenant's database."""

    as_json: AsJson = False
    url: ServerUrl = None
    profile: Profile = None
    api_key_file: ApiKeyFile = None
    database_url: DatabaseUrl = None
    data_dir: DataDir = None
    tenant: TenantName = DEFAULT_TENANT


Backend: TypeAlias = "ApiBackend | DatabaseBackend"
AnyOptions: TypeAlias = DatabaseOptions | TenantOptions | ConnectionOptions

database_options = option_group(DatabaseOptions)
tenant_options = option_group(TenantOptions)
connection_options = option_group(ConnectionOptions)


def call(
    options: ConnectionOptions,
    work: Callable[[Backend], Awaitable[_T]],
    *,
    uses_archive: bool = False,
    waits: bool = False,
) -> _T:
    """Run work on a server or a database and return its result. An error ends the command.

    `waits`: the work awaits more than the backend, such as the time until it looks again.
    """
    with exit_on_error():
        server = _server(options)
        if server is not None:
            return _call_api(server, work, waits=waits)
        with server_extra("a command without --url, which uses a database,"):
            from evertick.cli.backends.database import DatabaseBackend  # noqa: PLC0415 - the API needs no driver
        from evertick.runtime.rate_buckets import open_buckets  # noqa: PLC0415 - as above
        from evertick.store.database import Pool  # noqa: PLC0415
        from evertick.usecases.tenants.admission import TenantAdmission  # noqa: PLC0415
        from evertick.usecases.tenants.connections import ConnectionAccess  # noqa: PLC0415

    async def work_on_database(tenant: "TenantContext") -> _T:
        assert isinstance(tenant.pool, Pool)
        settings = settings_of(options)
        async with open_buckets(tenant.pool, settings.redis_url) as buckets:
            admission = TenantAdmission(tenant, buckets, settings.max_ready)
            return await work(DatabaseBackend(tenant, admission, ConnectionAccess(settings)))

    return call_database(options, options.tenant, work_on_database, uses_archive=uses_archive)


def _call_api(server: ServerAccess, work: Callable[[Backend], Awaitable[_T]], *, waits: bool) -> _T:
    from evertick.cli.backends.api import ApiBackend  # noqa: PLC0415 - the help needs no client
    from evertick.client.client import AsyncClient, PlainClient  # noqa: PLC0415
    from evertick.client.plain_transport import is_plain, run_plain  # noqa: PLC0415

    async def work_on_api(kind: type[AsyncClient]) -> _T:
        async with kind(server.url, server.api_key) as client:
            return await work(ApiBackend(client))

    if is_plain(server.url) and not waits:
        return run_plain(work_on_api(PlainClient))
    import asyncio  # noqa: PLC0415 - takes as long as the rest of a simple call

    return asyncio.run(work_on_api(AsyncClient))


def call_database(
    options: AnyOptions,
    tenant: str,
    work: "Callable[[TenantContext], Awaitable[_T]]",
    *,
    uses_archive: bool = False,
) -> _T:
    """Run work on a database on behalf of a tenant and return its result. An error ends the command."""
    import uvloop  # noqa: PLC0415 - as in `call`

    from evertick.runtime.archive import open_archive  # noqa: PLC0415 - as in `call`
    from evertick.wiring import connected_tenant, database  # noqa: PLC0415 - as in `call`

    async def call_use_cases(url: "DatabaseAddress") -> _T:
        async with open_archive(settings) as archive, connected_tenant(url, tenant, archive) as acting:
            return await work(acting)

    with exit_on_error():
        settings = settings_of(options)
    # An archive is opened for those that read it: that imports much, and may ask the network for credentials.
    settings = settings if uses_archive else replace(settings, archive_url=None)
    with exit_on_error(), database(settings) as url:
        return uvloop.run(call_use_cases(url))


def settings_of(options: AnyOptions) -> Settings:
    return settings_with(options.database_url, options.data_dir)


def _server(options: ConnectionOptions) -> ServerAccess | None:
    """The server to call. A database on the command line overrides a server in the environment or the config file."""
    if options.database_url is not None or options.data_dir is not None:
        if options.url is not None or options.profile is not None:
            raise click.BadParameter("a server and a database exclude each other")
        return None
    server = find_server(options.url, options.profile, options.api_key_file)
    if server is not None and options.tenant != DEFAULT_TENANT:
        raise click.BadParameter("--tenant needs a database: a server takes the tenant from the key")
    return server


def find_server(url: str | None, profile: str | None, api_key_file: Path | None) -> ServerAccess | None:
    """The server that the options name, else the environment, else the config file. None if none of them names one."""
    if url is not None and profile is not None:
        raise click.BadParameter("--url and --profile exclude each other")
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
    import tomllib  # noqa: PLC0415 - most have no file

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
    faults = [
        f"{where}.{key} is not known: a profile has {' and '.join(_PROFILE_KEYS)}"
        for key in profile
        if key not in _PROFILE_KEYS
    ]
    if "url" not in profile:
        faults.append(f"{where}.url is missing")
    return faults + [
        f"{where}.{key}: must be a non-empty string"
        for key in _PROFILE_KEYS
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
        raise click.BadParameter(f"--api-key-file {path}: {error}") from None
    if not key:
        raise click.BadParameter(f"--api-key-file {path}: is empty")
    return key
