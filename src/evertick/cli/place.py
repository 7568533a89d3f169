"""Where a command does its work: the options for it, which every such command has, and the way there."""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import typer
import uvloop

from evertick.cli.acting import DEFAULT_TENANT, TenantName, Where, act
from evertick.cli.failures import reported
from evertick.cli.options import DatabaseUrl, DataDir
from evertick.cli.servers import Server, server_of
from evertick.cli.service import Service
from evertick.cli.services.on_database import OnDatabase
from evertick.cli.services.over_api import OverApi
from evertick.sdk.client import AsyncClient

_T = TypeVar("_T")
_P = ParamSpec("_P")

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


_OPTIONS = [
    inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=Place._field_defaults[name],
        annotation=Place.__annotations__[name],
    )
    for name in Place._fields
]


def placed(command: Callable[Concatenate[Place, _P], None]) -> Callable[..., None]:
    """Give a command the options that say where; it gets them as one `Place`, before its own."""
    own = inspect.signature(command)
    _, *parameters = own.parameters.values()

    @wraps(command)
    def run(**given: Any) -> None:
        where = Place(**{name: given.pop(name) for name in Place._fields})
        command(where, **given)  # type: ignore[call-arg] # Typer passes what the signature below names

    shown = [*parameters, *_OPTIONS]
    run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined] # where inspect looks first
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return run


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
