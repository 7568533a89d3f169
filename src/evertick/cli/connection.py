"""Connects a command to the server or database that its options name, and runs its work there."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import typer
import uvloop

from evertick.cli.backend import Backend
from evertick.cli.backends.api import ApiBackend
from evertick.cli.errors import exit_on_error
from evertick.cli.options import DatabaseUrl, DataDir, option_group, settings_with
from evertick.cli.servers import ServerAccess, find_server
from evertick.client import AsyncClient
from evertick.config import Settings
from evertick.runtime.extras import server_extra

if TYPE_CHECKING:
    from evertick.usecases.context import TenantContext

_T = TypeVar("_T")

DEFAULT_TENANT = "default"

ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Use the HTTP API of this server, with the key in EVERTICK_API_KEY. [dim](env EVERTICK_URL)[/dim]",
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Use the server of this profile in the config file. [dim](env EVERTICK_PROFILE)[/dim]",
        show_default=False,
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", metavar="FILE", help="Read the API key from this file.", show_default=False),
]
TenantName = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant, with a database.")]


class DatabaseOptions(NamedTuple):
    """Options of commands that use the database alone."""

    database_url: DatabaseUrl = None
    data_dir: DataDir = None

    def settings(self) -> Settings:
        return settings_with(self.database_url, self.data_dir)


class TenantOptions(NamedTuple):
    """Options of commands that use the database on behalf of one tenant."""

    tenant: TenantName = DEFAULT_TENANT
    database_url: DatabaseUrl = None
    data_dir: DataDir = None

    @property
    def database(self) -> DatabaseOptions:
        return DatabaseOptions(self.database_url, self.data_dir)


class ConnectionOptions(NamedTuple):
    """Options of commands that use a server's API or a tenant's database."""

    url: ServerUrl = None
    profile: Profile = None
    api_key_file: ApiKeyFile = None
    database_url: DatabaseUrl = None
    data_dir: DataDir = None
    tenant: TenantName = DEFAULT_TENANT

    @property
    def database(self) -> DatabaseOptions:
        return DatabaseOptions(self.database_url, self.data_dir)


database_options = option_group(DatabaseOptions)
tenant_options = option_group(TenantOptions)
connection_options = option_group(ConnectionOptions)


def call(options: ConnectionOptions, work: Callable[[Backend], Awaitable[_T]]) -> _T:
    """Run work on a server or a database and return its result. An error ends the command."""
    with exit_on_error():
        server = _server(options)
        if server is not None:
            return uvloop.run(_call_api(server, work))
        with server_extra("a command without --url, which uses a database,"):
            from evertick.cli.backends.database import DatabaseBackend  # noqa: PLC0415 - the API needs no driver
    return call_database(options.database, options.tenant, lambda tenant: work(DatabaseBackend(tenant)))


def call_database(options: DatabaseOptions, tenant: str, work: "Callable[[TenantContext], Awaitable[_T]]") -> _T:
    """Run work on a database on behalf of a tenant and return its result. An error ends the command."""
    from evertick.wiring import database  # noqa: PLC0415 - as in `call`

    with exit_on_error(), database(options.settings()) as url:
        return uvloop.run(_call_database(url, tenant, work))


async def _call_api(server: ServerAccess, work: Callable[[Backend], Awaitable[_T]]) -> _T:
    async with AsyncClient(server.url, server.api_key) as client:
        return await work(ApiBackend(client))


async def _call_database(url: str, name: str, work: "Callable[[TenantContext], Awaitable[_T]]") -> _T:
    from evertick.wiring import acting_for  # noqa: PLC0415 - as in `call`

    async with acting_for(url, name) as tenant:
        return await work(tenant)


def _server(options: ConnectionOptions) -> ServerAccess | None:
    """The server to call. A database on the command line overrides a server in the environment or the config file."""
    if options.database_url is not None or options.data_dir is not None:
        if options.url is not None or options.profile is not None:
            raise typer.BadParameter("a server and a database exclude each other")
        return None
    server = find_server(options.url, options.profile, options.api_key_file)
    if server is not None and options.tenant != DEFAULT_TENANT:
        raise typer.BadParameter("--tenant needs a database: a server takes the tenant from the key")
    return server
