"""`evertick keys`: API keys of a tenant."""

from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Annotated

import click
from msgspec.structs import asdict

from evertick.cli.backends import ACTOR, Listing
from evertick.cli.backends.database import read_pages
from evertick.cli.connection import TenantOptions, call_database, tenant_options
from evertick.cli.options import AsJson, optional
from evertick.cli.output import print_fields, print_json, print_listing
from evertick.cli.signatures import Argument, CommandGroup, Option
from evertick.contract.access import ApiKey, NewApiKey
from evertick.contract.reading import read_instant
from evertick.domain.access import KeyRole
from evertick.domain.job.faults import Faults
from evertick.usecases import audit
from evertick.usecases.context import TenantContext, unit_of_work
from evertick.usecases.tenants import keys

app = CommandGroup(help="Create, list, rotate and revoke API keys.")

KeyId = Annotated[str, Argument(metavar="KEY_ID", help="Id of the key, as `keys list` shows it.")]


@app.add()
@tenant_options
def create(
    options: TenantOptions,
    *,
    role: Annotated[KeyRole, Option("--role", help="Permissions of the key.")] = KeyRole.EDITOR,
    name: Annotated[str, Option("--name", help="Purpose of the key.")] = "",
    expires_at: Annotated[str | None, optional("--expires-at", "When the key expires.", metavar="INSTANT")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a key. It is shown only now.

    Examples

      evertick keys create --role worker --name billing-workers

      evertick keys create --role viewer --expires-at 2027-01-01T00:00:00Z
    """

    async def work(tenant: TenantContext) -> NewApiKey:
        ends_at = _instant(expires_at)
        async with unit_of_work(tenant) as unit:
            new = await keys.create(unit.pool, tenant.tenant_id, role, name, ends_at)
            await audit.record(unit, ACTOR, "create_key", new.key_id)
            return new

    _print_new(call_database(options, options.tenant, work), as_json=as_json)


@app.add("list")
@tenant_options
def list_keys(options: TenantOptions, *, as_json: AsJson = False) -> None:
    """List the keys of a tenant, without their secrets.

    Example

      evertick keys list --tenant acme
    """

    async def work(tenant: TenantContext) -> Listing[ApiKey]:
        return await read_pages(partial(keys.list_keys, tenant.pool, tenant.tenant_id))

    print_listing(
        call_database(options, options.tenant, work),
        ("key", "begins", "role", "name", "last used", "expires", "revoked"),
        attrgetter("key_id", "prefix", "role", "name", "last_used_at", "expires_at", "revoked_at"),
        empty="No keys.",
        as_json=as_json,
    )


@app.add()
@tenant_options
def rotate(
    options: TenantOptions,
    key_id: KeyId,
    *,
    grace_seconds: Annotated[float, Option("--grace-seconds", min=0, help="How long the old key stays valid.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Replace a key by a new one with the same role. The new key is shown only now.

    Example

      evertick keys rotate key_0000000000001 --grace-seconds 3600
    """

    async def work(tenant: TenantContext) -> NewApiKey:
        async with unit_of_work(tenant) as unit:
            new = await keys.rotate(unit.pool, tenant.tenant_id, key_id, timedelta(seconds=grace_seconds))
            await audit.record(unit, ACTOR, "rotate_key", key_id)
            return new

    _print_new(call_database(options, options.tenant, work), as_json=as_json)


@app.add()
@tenant_options
def revoke(options: TenantOptions, key_id: KeyId) -> None:
    """Revoke a key. Running servers refuse it within seconds.

    Example

      evertick keys revoke key_0000000000001
    """

    async def work(tenant: TenantContext) -> None:
        async with unit_of_work(tenant) as unit:
            await keys.revoke(unit.pool, tenant.tenant_id, key_id)
            await audit.record(unit, ACTOR, "revoke_key", key_id)

    call_database(options, options.tenant, work)
    click.echo(f"Revoked {key_id}.")


def _instant(text: str | None) -> datetime | None:
    if text is None:
        return None
    faults = Faults()
    at = read_instant(text, "/expires_at", faults)
    faults.raise_any()
    return at


def _print_new(new: NewApiKey, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(new))
    else:
        print_fields([("api_key", new.api_key), ("key_id", new.key_id), ("role", new.role)])
