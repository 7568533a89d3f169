"""Where a command does its work: the options for it, which every such command has, and the way there."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
import uvloop

from evertick.cli.acting import DEFAULT_TENANT, TenantName, Where, act
from evertick.cli.failures import reported
from evertick.cli.grouped import grouped
from evertick.cli.options import DatabaseUrl, DataDir
from evertick.cli.servers import Server, server_of
from evertick.cli.service import Service
from evertick.cli.services.on_database import OnDatabase
from evertick.cli.services.over_api import OverApi
from evertick.client import AsyncClient

_T = TypeVar("_T")

ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Go over the HTTP API of this server, with the key in EVERTICK_API_KEY. [dim](env EVERTICK_URL)[/dim]",
        show_default=False,
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="NAME",
        help="Or: of the server in this profile of the config file. [dim](env EVERTICK_PROFILE)[/dim]",
        show_default=False,
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", metavar="FILE", help="Read the API key from this file.", show_default=False),
]


class Place(NamedTuple):
    """A server, or a database and whose jobs in it. Its fields are the options, by their names in Python."""

    url: ServerUrl = None
    profile: Profile = None
    api_key_file: ApiKeyFile = None
    database_url: DatabaseUrl = None
    data_dir: DataDir = None
    tenant: TenantName = DEFAULT_TENANT


placed = grouped(Place)
"""Gives a command the options that say where."""


def ask(place: Place, work: Callable[[Service], Awaitable[_T]]) -> _T:
    """Do something there and return what came of it; what goes wrong ends the command."""
    with reported():
        server = _server(place)
        if server is not None:
            return uvloop.run(_over_api(server, work))
    return act(Where(place.database_url, place.data_dir, place.tenant), lambda tenant: work(OnDatabase(tenant)))


async def _over_api(server: Server, work: Callable[[Service], Awaitable[_T]]) -> _T:
    async with AsyncClient(server.url, server.api_key) as client:
        return await work(OverApi(client))


def _server(place: Place) -> Server | None:
    """A database on the command line goes before a server that is set elsewhere."""
    if place.database_url is not None or place.data_dir is not None:
        if place.url is not None or place.profile is not None:
            raise typer.BadParameter("a server and a database exclude each other")
        return None
    server = server_of(place.url, place.profile, place.api_key_file)
    if server is not None and place.tenant != DEFAULT_TENANT:
        raise typer.BadParameter("--tenant goes with a database: over the API it is the key's")
    return server
