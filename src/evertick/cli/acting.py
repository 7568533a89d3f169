"""How commands reach the use cases: on the database that the options name, for one tenant."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
import uvloop

from evertick.cli.failures import reported
from evertick.cli.options import settings_with
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.usecases import jobs
from evertick.usecases.context import MOST_PER_PAGE, Page, Tenant
from evertick.wiring import acting_for, database

_T = TypeVar("_T")

DEFAULT_TENANT = "default"

TenantName = Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose jobs.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]


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


async def job_id_of(tenant: Tenant, job: str) -> str:
    """The id of a job that was given by id or by name."""
    try:
        parse_id(Prefix.JOB, job)
    except InvalidInput:
        return (await jobs.get_by_name(tenant, job)).job_id
    return job


async def gathered(limit: int, page: Callable[[int, str | None], Awaitable[Page[_T]]]) -> tuple[list[_T], bool]:
    """The first `limit` of a list, page by page, and whether there are more."""
    found: list[_T] = []
    cursor: str | None = None
    while len(found) < limit:
        part = await page(min(limit - len(found), MOST_PER_PAGE), cursor)
        found += part.items
        cursor = part.next
        if cursor is None:
            break
    return found, cursor is not None


def mention_more(*, is_more: bool) -> None:
    """Said beside the result, so that a script which reads it is not confused."""
    if is_more:
        typer.echo("There are more: raise --limit to see them.", err=True)
