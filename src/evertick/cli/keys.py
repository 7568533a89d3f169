"""`evertick keys`: who may use the HTTP API on a tenant's behalf."""

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from evertick.cli.connection import DEFAULT_TENANT, TenantName, call_database
from evertick.cli.acting import Where
from evertick.cli.options import AsJson, DatabaseUrl, DataDir
from evertick.cli.output import print_fields, print_json, print_rows
from evertick.cli.commands.tenants import ACTOR
from evertick.contract.access import ApiKey
from evertick.contract.reading import read_instant
from evertick.domain.access import KeyRole
from evertick.domain.job.faults import Faults
from evertick.usecases import audit
from evertick.usecases.tenants import keys
from evertick.usecases.context import MAX_PER_PAGE, Tenant
from evertick.usecases.tenants.keys import NewSecret, shape_of
from evertick.usecases.unit_of_work import unit_of_work

app = typer.Typer(no_args_is_help=True, help="Create, list, rotate and revoke API keys.", rich_markup_mode="rich")

KeyId = Annotated[str, typer.Argument(metavar="KEY_ID", help="Which key, as `keys list` shows it.")]


@app.command()
def create(
    *,
    role: Annotated[KeyRole, typer.Option("--role", help="What it may do.")] = KeyRole.EDITOR,
    name: Annotated[str, typer.Option("--name", help="What it is for.")] = "",
    expires_at: Annotated[
        str | None, typer.Option("--expires-at", metavar="INSTANT", help="When it ends.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Create a key, and show it this once.

    [bold]Examples[/bold]

      evertick keys create --role worker --name billing-workers

      evertick keys create --role viewer --expires-at 2027-01-01T00:00:00Z
    """

    async def work(acting: Tenant) -> NewSecret:
        ends_at = _instant(expires_at)
        async with unit_of_work(acting) as inside:
            new = await keys.create(inside.pool, acting.tenant_id, role, name, ends_at)
            await audit.record(inside, ACTOR, "create_key", new.key.key_id)
            return new

    _print_new(call_database(Where(database_url, data_dir, tenant), work), as_json=as_json)


@app.command("list")
def list_keys(
    *,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List a tenant's keys, without their secrets.

    [bold]Example[/bold]

      evertick keys list --tenant acme
    """
    found = call_database(Where(database_url, data_dir, tenant), _all)
    if as_json:
        print_json([shape_of(key) for key in found])
        return
    columns = ("key", "begins", "role", "name", "last used", "expires", "revoked")
    rows = (
        (key.key_id, key.prefix, str(key.role), key.name, key.last_used_at, key.expires_at, key.revoked_at)
        for key in found
    )
    print_rows(columns, rows, none="No keys.")


@app.command()
def rotate(
    key_id: KeyId,
    *,
    grace_seconds: Annotated[
        float, typer.Option("--grace-seconds", min=0, help="For so long the old one stays valid.")
    ] = 0.0,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Replace a key by one like it, and show that this once.

    [bold]Example[/bold]

      evertick keys rotate key_0000000000001 --grace-seconds 3600
    """

    async def work(acting: Tenant) -> NewSecret:
        async with unit_of_work(acting) as inside:
            new = await keys.rotate(inside.pool, acting.tenant_id, key_id, timedelta(seconds=grace_seconds))
            await audit.record(inside, ACTOR, "rotate_key", key_id)
            return new

    _print_new(call_database(Where(database_url, data_dir, tenant), work), as_json=as_json)


@app.command()
def revoke(
    key_id: KeyId,
    *,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """End a key. Servers that run follow within seconds.

    [bold]Example[/bold]

      evertick keys revoke key_0000000000001
    """

    async def work(acting: Tenant) -> None:
        async with unit_of_work(acting) as inside:
            await keys.revoke(inside.pool, acting.tenant_id, key_id)
            await audit.record(inside, ACTOR, "revoke_key", key_id)

    call_database(Where(database_url, data_dir, tenant), work)
    typer.echo(f"Revoked {key_id}.")


async def _all(acting: Tenant) -> list[ApiKey]:
    found: list[ApiKey] = []
    cursor: str | None = None
    while True:
        page = await keys.list_keys(acting.pool, acting.tenant_id, limit=MAX_PER_PAGE, cursor=cursor)
        found += page.items
        cursor = page.next
        if cursor is None:
            return found


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    faults = Faults()
    at = read_instant(text, "/expires_at", faults)
    faults.raise_any()
    return at


def _print_new(new: NewSecret, *, as_json: bool) -> None:
    shown: dict[str, Any] = {**shape_of(new.key), "api_key": new.secret}
    if as_json:
        print_json(shown)
    else:
        print_fields([("api_key", new.secret), ("key_id", new.key.key_id), ("role", str(new.key.role))])
