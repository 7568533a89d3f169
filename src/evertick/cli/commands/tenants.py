"""`evertick tenants`: creates, lists and changes tenants and their quotas."""

from functools import partial
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

from msgspec.structs import asdict

from evertick.cli.backends import ACTOR, Listing
from evertick.cli.backends.database import read_pages
from evertick.cli.connection import DEFAULT_TENANT, DatabaseOptions, call_database, database_options
from evertick.cli.options import AsJson, option_group, optional
from evertick.cli.output import print_document, print_listing
from evertick.cli.signatures import Argument, CommandGroup
from evertick.contract import access
from evertick.domain.access import KeyRole
from evertick.usecases import audit
from evertick.usecases.context import TenantContext, unit_of_work
from evertick.usecases.tenants import keys, tenants

app = CommandGroup(help="Create, list and change tenants.")


class QuotaOptions(NamedTuple):
    """Quotas of a tenant. None leaves a quota unchanged."""

    weight: Annotated[int | None, optional("--weight", "Weight in fair sharing.")] = None
    jobs_quota: Annotated[int | None, optional("--jobs-quota", "Maximum number of jobs.")] = None
    submits_per_second: Annotated[
        int | None, optional("--submits-per-second", "Submissions per second in the long run.")
    ] = None
    submit_burst: Annotated[int | None, optional("--submit-burst", "Submissions in one burst.")] = None
    running_quota: Annotated[int | None, optional("--running-quota", "Maximum number of concurrent runs.")] = None
    shortest_interval_seconds: Annotated[
        float | None, optional("--shortest-interval-seconds", "Shortest interval of its schedules.")
    ] = None
    http_timeout_max_seconds: Annotated[
        int | None, optional("--http-timeout-max-seconds", "Longest timeout of its webhooks, at most 3600.")
    ] = None
    storage_quota_bytes: Annotated[
        int | None,
        optional("--storage-quota-bytes", "Maximum bytes of its jobs, and the same again for stored responses."),
    ] = None

    default_jitter_seconds: Annotated[
        float | None, optional("--default-jitter-seconds", "Jitter of its new jobs that choose none.")
    ] = None
    history_days: Annotated[
        int | None, optional("--history-days", "Days of runs and gaps that are listed; 36500: all that are kept.")
    ] = None
    archive_days: Annotated[
        int | None, optional("--archive-days", "Days that its archive is kept; 36500: without an end, 0: no archive.")
    ] = None

    def changes(self) -> dict[str, float]:
        return {name: value for name, value in self._asdict().items() if value is not None}


quota_options = option_group(QuotaOptions)


@app.add()
@quota_options
@database_options
def create(
    database: DatabaseOptions,
    quotas: QuotaOptions,
    name: Annotated[str, Argument(help="Name of the new tenant.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Create a tenant. Its first API key, with the role admin, is shown only now.

    Example

      evertick tenants create acme --jobs-quota 5000
    """

    async def work(operator: TenantContext) -> dict[str, Any]:
        async with unit_of_work(operator) as unit:
            tenant = await tenants.create(unit.pool, name, quotas.changes())
            key = await keys.create(unit.pool, tenants.tenant_key(None, tenant.tenant_id), KeyRole.ADMIN, "first")
            await audit.record(unit, ACTOR, "create_tenant", tenant.tenant_id)
            return {**asdict(tenant), "api_key": key.api_key}

    print_document(call_database(database, DEFAULT_TENANT, work), as_json=as_json)


@app.add("list")
@database_options
def list_tenants(database: DatabaseOptions, *, as_json: AsJson = False) -> None:
    """List all tenants.

    Example

      evertick tenants list
    """

    async def work(operator: TenantContext) -> Listing[access.Tenant]:
        return await read_pages(partial(tenants.list_tenants, operator.pool, None))

    print_listing(
        call_database(database, DEFAULT_TENANT, work),
        ("tenant", "name", "weight", "jobs", "submits/s", "created"),
        attrgetter("tenant_id", "name", "weight", "jobs_quota", "submits_per_second", "created_at"),
        empty="No tenants.",
        as_json=as_json,
    )


@app.add()
@quota_options
@database_options
def edit(
    database: DatabaseOptions,
    quotas: QuotaOptions,
    name: Annotated[str, Argument(help="Name of the tenant.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Change the quotas of a tenant. Running servers apply them within seconds.

    Example

      evertick tenants edit acme --jobs-quota 100000
    """

    async def work(tenant: TenantContext) -> dict[str, Any]:
        async with unit_of_work(tenant) as unit:
            edited = await tenants.edit(unit.pool, tenants.public_id(tenant.tenant_id), quotas.changes())
            await audit.record(unit, ACTOR, "edit_tenant", edited.tenant_id)
            return asdict(edited)

    print_document(call_database(database, name, work), as_json=as_json)
