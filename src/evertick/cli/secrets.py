"""`evertick secrets`: what receivers verify webhooks with, and how to replace it."""

from typing import Annotated

import typer

from evertick.cli.acting import DEFAULT_TENANT, TenantName, Where, act
from evertick.cli.options import AsJson, DatabaseUrl, DataDir, settings_with
from evertick.cli.output import print_facts, print_json
from evertick.roles.dispatcher.settings import seal_of
from evertick.usecases import secrets
from evertick.usecases.context import Tenant
from evertick.usecases.secrets import Secrets

app = typer.Typer(no_args_is_help=True, help="Show and rotate webhook secrets.", rich_markup_mode="rich")


@app.command()
def show(
    *,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show the secrets that webhooks are signed with. Give them to receivers, and to nobody else.

    [bold]Example[/bold]

      evertick secrets show
    """

    async def work(acting: Tenant) -> Secrets:
        return await secrets.show(acting, seal_of(settings_with(database_url, data_dir)))

    _print(act(Where(database_url, data_dir, tenant), work), as_json=as_json)


@app.command()
def rotate(
    *,
    drop_previous: Annotated[
        bool, typer.Option("--drop-previous", help="End a rotation: sign with the newest secret alone.")
    ] = False,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Make a new secret. Webhooks are signed with it and with the one so far, until that is dropped.

    [bold]Examples[/bold]

      evertick secrets rotate

      evertick secrets rotate --drop-previous
    """
    change = secrets.drop_previous if drop_previous else secrets.rotate

    async def work(acting: Tenant) -> Secrets:
        return await change(acting, seal_of(settings_with(database_url, data_dir)))

    _print(act(Where(database_url, data_dir, tenant), work), as_json=as_json)


def _print(found: Secrets, *, as_json: bool) -> None:
    if as_json:
        print_json({"current": found.current, "previous": found.previous, "rotated_at": found.rotated_at})
    else:
        print_facts([("current", found.current), ("previous", found.previous), ("since", found.rotated_at)])
