"""`evertick secrets`: webhook secrets of a tenant, their rotation, and the re-encryption of all stored secrets."""

from typing import Annotated

import click

from evertick.cli.backends import ACTOR
from evertick.cli.connection import (
    DEFAULT_TENANT,
    DatabaseOptions,
    TenantOptions,
    call_database,
    database_options,
    settings_of,
    tenant_options,
)
from evertick.cli.options import AsJson
from evertick.cli.output import print_fields, print_json
from evertick.cli.signatures import CommandGroup, Option
from evertick.domain.schedule.describe.english import counted
from evertick.roles.dispatcher.settings import seal_of
from evertick.usecases import audit
from evertick.usecases.context import TenantContext, unit_of_work
from evertick.usecases.tenants import secrets
from evertick.usecases.tenants.secrets import Resealed, Secrets
from evertick.usecases.tenants.tenants import public_id

app = CommandGroup(help="Show and rotate webhook secrets, and re-encrypt them.")


@app.add()
@tenant_options
def show(options: TenantOptions, *, as_json: AsJson = False) -> None:
    """Show the secrets that sign webhooks. Only receivers may know them.

    Example

      evertick secrets show
    """

    async def work(tenant: TenantContext) -> Secrets:
        return await secrets.show(tenant, seal_of(settings_of(options)))

    _print(call_database(options, options.tenant, work), as_json=as_json)


@app.add()
@tenant_options
def rotate(
    options: TenantOptions,
    *,
    drop_previous: Annotated[
        bool, Option("--drop-previous", help="End a rotation: sign only with the newest secret.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a new secret. Webhooks are signed with the new and the previous one, until the previous one is dropped.

    Examples

      evertick secrets rotate

      evertick secrets rotate --drop-previous
    """
    change = secrets.drop_previous if drop_previous else secrets.rotate
    action = "drop_webhook_secret" if drop_previous else "rotate_webhook_secret"

    async def work(tenant: TenantContext) -> Secrets:
        async with unit_of_work(tenant) as unit:
            changed = await change(unit, seal_of(settings_of(options)))
            await audit.record(unit, ACTOR, action, public_id(tenant.tenant_id))
            return changed

    _print(call_database(options, options.tenant, work), as_json=as_json)


@app.add()
@database_options
def reseal(database: DatabaseOptions, *, as_json: AsJson = False) -> None:
    """Encrypt the stored secrets of all tenants with the first key of EVERTICK_SECRET_KEY. Then drop the other keys.

    Example

      EVERTICK_SECRET_KEY="$NEW_KEY,$OLD_KEY" evertick secrets reseal
    """

    async def work(operator: TenantContext) -> Resealed:
        return await secrets.reseal(operator.pool, seal_of(settings_of(database)), _print_progress)

    _print_resealed(call_database(database, DEFAULT_TENANT, work), as_json=as_json)


def _print_progress(done: int, total: int) -> None:
    click.echo(f"{done} of {total} tenants", err=True)


def _print_resealed(done: Resealed, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "tenants": done.tenants,
                "connections": done.connections,
                "key_id": done.key_id,
                "unneeded_key_ids": done.unneeded_key_ids,
            }
        )
        return
    owners = f"{counted(done.tenants, 'tenant')} and {counted(done.connections, 'connection')}"
    click.echo(f"Re-encrypted the secrets of {owners}; all use the key {done.key_id}.")
    if done.unneeded_key_ids:
        others = ", ".join(done.unneeded_key_ids)
        click.echo(f"Once that key is the first of every process, remove these: {others}.")


def _print(found: Secrets, *, as_json: bool) -> None:
    if as_json:
        print_json({"current": found.current, "previous": found.previous, "rotated_at": found.rotated_at})
    else:
        print_fields([("current", found.current), ("previous", found.previous), ("since", found.rotated_at)])
