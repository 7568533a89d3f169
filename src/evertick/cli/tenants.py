"""`evertick tenants`: who owns jobs here, and how much each may have and do."""

from typing import Annotated, Any, NamedTuple

import typer

from evertick.cli.connection import DEFAULT_TENANT, call_database
from evertick.cli.acting import Where
from evertick.cli.options import option_group
from evertick.cli.options import AsJson, DatabaseUrl, DataDir
from evertick.cli.output import print_fields, print_json, print_rows
from evertick.contract import access
from evertick.domain.access import KeyRole
from evertick.usecases import audit
from evertick.usecases.tenants import keys, tenants
from evertick.usecases.context import MAX_PER_PAGE, Tenant
from evertick.usecases.tenants.tenants import shape_of
from evertick.usecases.unit_of_work import unit_of_work

app = typer.Typer(no_args_is_help=True, help="Create, list and change tenants.", rich_markup_mode="rich")

ACTOR = "command line"


def _option(name: str, said: str) -> Any:
    return typer.Option(name, help=said, show_default=False)


class Limits(NamedTuple):
    """What a tenant may have and do; None is as it was. The fields are the options, by their names in Python."""

    weight: Annotated[int | None, _option("--weight", "Its share of the work.")] = None
    fanout: Annotated[int | None, _option("--fanout", "Over how many partitions its jobs spread.")] = None
    jobs_quota: Annotated[int | None, _option("--jobs-quota", "Jobs at once.")] = None
    submits_per_second: Annotated[int | None, _option("--submits-per-second", "Submissions in the long run.")] = None
    submit_burst: Annotated[int | None, _option("--submit-burst", "Submissions at once.")] = None
    running_quota: Annotated[int | None, _option("--running-quota", "Runs at once.")] = None
    shortest_interval_seconds: Annotated[
        float | None, _option("--shortest-interval-seconds", "The least interval of its schedules.")
    ] = None
    http_timeout_max_seconds: Annotated[
        int | None, _option("--http-timeout-max-seconds", "How long one of its webhooks may take, at most 3600.")
    ] = None
    storage_quota_bytes: Annotated[
        int | None,
        _option("--storage-quota-bytes", "Bytes that its jobs may take; kept answers may take as many again."),
    ] = None

    @property
    def given(self) -> dict[str, float]:
        return {name: value for name, value in self._asdict().items() if value is not None}


limited = option_group(Limits)


@app.command()
@limited
def create(
    limits: Limits,
    name: Annotated[str, typer.Argument(help="What it is called.")],
    *,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a tenant, and show its first key, an admin's, this once.

    [bold]Example[/bold]

      evertick tenants create acme --jobs-quota 5000
    """

    async def work(acting: Tenant) -> dict[str, Any]:
        async with unit_of_work(acting) as inside:
            made = await tenants.create(inside.pool, name, limits.given)
            key = await keys.create(inside.pool, tenants.tenant_key(None, made.tenant_id), KeyRole.ADMIN, "first")
            await audit.record(inside, ACTOR, "create_tenant", made.tenant_id)
            return {**shape_of(made), "api_key": key.secret}

    _print(call_database(Where(database_url, data_dir, DEFAULT_TENANT), work), as_json=as_json)


@app.command("list")
def list_tenants(
    *,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List all tenants.

    [bold]Example[/bold]

      evertick tenants list
    """
    found = call_database(Where(database_url, data_dir, DEFAULT_TENANT), all_tenants)
    if as_json:
        print_json([shape_of(tenant) for tenant in found])
        return
    columns = ("tenant", "name", "weight", "fanout", "jobs", "submits/s", "created")
    rows = (
        (each.tenant_id, each.name, each.weight, each.fanout, each.jobs_quota, each.submits_per_second, each.created_at)
        for each in found
    )
    print_rows(columns, rows, none="No tenants.")


@app.command()
@limited
def edit(
    limits: Limits,
    name: Annotated[str, typer.Argument(help="Which tenant.")],
    *,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Change what a tenant may have and do. Servers that run follow within seconds.

    [bold]Example[/bold]

      evertick tenants edit acme --jobs-quota 100000
    """

    async def work(acting: Tenant) -> dict[str, Any]:
        async with unit_of_work(acting) as inside:
            edited = await tenants.edit(inside.pool, tenants.public_id(acting.tenant_id), limits.given)
            await audit.record(inside, ACTOR, "edit_tenant", edited.tenant_id)
            return shape_of(edited)

    _print(call_database(Where(database_url, data_dir, name), work), as_json=as_json)


async def all_tenants(acting: Tenant) -> list[access.Tenant]:
    found: list[access.Tenant] = []
    cursor: str | None = None
    while True:
        page = await tenants.list_tenants(acting.pool, None, limit=MAX_PER_PAGE, cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


def _print(shown: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(shown)
    else:
        print_fields(shown.items())
