"""`evertick secrets`: what receivers verify webhooks with, how to replace it, and how to replace what seals it."""

from typing import Annotated

import typer

from evertick.cli.acting import DEFAULT_TENANT, TenantName, Where, act
from evertick.cli.options import AsJson, DatabaseUrl, DataDir, settings_with
from evertick.cli.output import print_facts, print_json
from evertick.cli.tenants import ACTOR
from evertick.domain.schedule.english import counted
from evertick.roles.dispatcher.settings import seal_of
from evertick.usecases import audit
from evertick.usecases.context import Tenant
from evertick.usecases.tenants import secrets
from evertick.usecases.tenants.secrets import Resealed, Secrets
from evertick.usecases.tenants.tenants import public_id
from evertick.usecases.unit_of_work import unit_of_work

app = typer.Typer(
    no_args_is_help=True, help="Show and rotate webhook secrets, and what seals them.", rich_markup_mode="rich"
)


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
    action = "drop_webhook_secret" if drop_previous else "rotate_webhook_secret"

    async def work(acting: Tenant) -> Secrets:
        async with unit_of_work(acting) as inside:
            changed = await change(inside, seal_of(settings_with(database_url, data_dir)))
            await audit.record(inside, ACTOR, action, public_id(acting.tenant_id))
            return changed

    _print(act(Where(database_url, data_dir, tenant), work), as_json=as_json)


@app.command()
def reseal(
    *,
    as_json: AsJson = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Seal the stored secrets of all tenants with the first key of EVERTICK_SECRET_KEY, so that the others may go.

    [bold]Example[/bold]

      EVERTICK_SECRET_KEY="$NEW_KEY,$OLD_KEY" evertick secrets reseal
    """

    async def work(acting: Tenant) -> Resealed:
        return await secrets.reseal(acting.pool, seal_of(settings_with(database_url, data_dir)), _say_progress)

    _print_resealed(act(Where(database_url, data_dir, DEFAULT_TENANT), work), as_json=as_json)


def _say_progress(done: int, total: int) -> None:
    typer.echo(f"{done} of {total} tenants", err=True)


def _print_resealed(done: Resealed, *, as_json: bool) -> None:
    if as_json:
        print_json({"tenants": done.tenants, "key_id": done.key_id, "unneeded_key_ids": done.unneeded_key_ids})
        return
    typer.echo(f"The secrets of {counted(done.tenants, 'tenant')} were resealed; all are under the key {done.key_id}.")
    if done.unneeded_key_ids:
        others = ", ".join(done.unneeded_key_ids)
        typer.echo(f"Once it is the first key of every process, these may go: {others}.")


def _print(found: Secrets, *, as_json: bool) -> None:
    if as_json:
        print_json({"current": found.current, "previous": found.previous, "rotated_at": found.rotated_at})
    else:
        print_facts([("current", found.current), ("previous", found.previous), ("since", found.rotated_at)])
