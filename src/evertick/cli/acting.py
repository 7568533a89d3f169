"""How commands act on the database that the options name, for one tenant."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
import uvloop

from evertick.cli.failures import reported
from evertick.cli.options import settings_with
from evertick.usecases.context import Tenant
from evertick.wiring import acting_for, database

_T = TypeVar("_T")

DEFAULT_TENANT = "default"

TenantName = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose jobs.")]


class Where(NamedTuple):
    """Which database, and whose jobs in it."""

    database_url: str | None
    data_dir: Path | None
    tenant: str


def act(where: Where, work: Callable[[Tenant], Awaitable[_T]]) -> _T:
    """Do something and return what came of it; what goes wrong ends the command."""
    with reported(), database(settings_with(where.database_url, where.data_dir)) as url:
        return uvloop.run(_act(url, where.tenant, work))


async def _act(url: str, tenant: str, work: Callable[[Tenant], Awaitable[_T]]) -> _T:
    async with acting_for(url, tenant) as acting:
        return await work(acting)
