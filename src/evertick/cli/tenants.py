"""`evertick tenants`: who owns jobs here, and how much each may have and do."""

from typing import Annotated, Any

import typer

from evertick.cli.acting import DEFAULT_TENANT, Where, act
from evertick.cli.options import AsJson, DatabaseUrl, DataDir
from evertick.cli.output import print_facts, print_json, print_rows
from evertick.domain.access import KeyRole
from evertick.usecases import audit, keys, tenants
from evertick.usecases.context import MOST_PER_PAGE, Tenant
from evertick.usecases.joining import joined
from evertick.usecases.tenants import TenantView, shape_of

app = typer.Typer(no_args_is_help=True, help="Create, list and change tenants.", rich_markup_mode="rich")

ACTOR = "command line"

Weight = Annotated[int | None, typer.Option("--weight", help="Its share of the work.", show_default=False)]
Fanout = Annotated[
    int | None, typer.Option("--fanout", help="Over how many partitions its jobs spread.", show_default=False)
]
JobsQuota = Annotated[int | None, typer.Option("--jobs-quota", help="Jobs at once.", show_default=False)]
Submits = Annotated[
    int | None, typer.Option("--submits-per-second", help="Submissions in the long run.", show_default=False)
]
Burst = Annotated[int | None, typer.Option("--submit-burst", help="Submissions at once.", show_default=False)]
Running = Annotated[int | None, typer.Option("--running-quota", help="Runs at once.", show_default=False)]
Shortest = Annotated[
    float | None,
    typer.Option("--shortest-interval-seconds", help="The least interval of its schedules.", show_default=False),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    *,
    weight: Weight = None,
    fanout: Fanout = None,
    jobs_quota: JobsQuota = None,
    submits_per_second: Submits = None,
    submit_burst: Burst = None,
    running_quota: Running = None,
    shortest_interval_seconds: Shortest = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a tenant, and show its first key, an admin's, this once.

    [bold]Example[/bold]

      evertick tenants create acme --jobs-quota 5000
    """
    changes = _given(locals())

    async def work(acting: Tenant) -> dict[str, Any]:
        async with joined(acting) as inside:
            made = await tenants.create(inside.pool, name, changes)
            key = await keys.create(inside.pool, tenants.tenant_key(None, made.tenant_id), KeyRole.ADMIN, "first")
            await audit.record(inside, ACTOR, "create_tenant", made.tenant_id)
            return {**shape_of(made), "api_key": key.secret}

    _print(act(Where(database_url, data_dir, DEFAULT_TENANT), work), as_json=as_json)


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
    found = act(Where(database_url, data_dir, DEFAULT_TENANT), all_tenants)
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
def edit(
    name: Annotated[str, typer.Argument(help="Which tenant.")],
    *,
    weight: Weight = None,
    fanout: Fanout = None,
    jobs_quota: JobsQuota = None,
    submits_per_second: Submits = None,
    submit_burst: Burst = None,
    running_quota: Running = None,
    shortest_interval_seconds: Shortest = None,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Change what a tenant may have and do. Servers that run follow within seconds.

    [bold]Example[/bold]

      evertick tenants edit acme --jobs-quota 100000
    """
    changes = _given(locals())

    async def work(acting: Tenant) -> dict[str, Any]:
        async with joined(acting) as inside:
            edited = await tenants.edit(inside.pool, tenants.public_id(acting.tenant_id), changes)
            await audit.record(inside, ACTOR, "edit_tenant", edited.tenant_id)
            return shape_of(edited)

    _print(act(Where(database_url, data_dir, name), work), as_json=as_json)


async def all_tenants(acting: Tenant) -> list[TenantView]:
    found: list[TenantView] = []
    cursor: str | None = None
    while True:
        page = await tenants.list_tenants(acting.pool, None, limit=MOST_PER_PAGE, cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


def _given(options: dict[str, Any]) -> dict[str, float]:
    return {name: options[name] for name in tenants.LIMITS if options.get(name) is not None}


def _print(shown: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(shown)
    else:
        print_facts(shown.items())
