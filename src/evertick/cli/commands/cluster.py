"""`evertick cluster`: the identity of a cluster, and its confirmation after a restore."""

from dataclasses import asdict

import click

from evertick.cli.backends import ACTOR
from evertick.cli.connection import DEFAULT_TENANT, DatabaseOptions, call_database, database_options, settings_of
from evertick.cli.options import AsJson
from evertick.cli.output import print_document
from evertick.cli.signatures import CommandGroup
from evertick.usecases import audit, cluster
from evertick.usecases.cluster import ClusterIdentity
from evertick.usecases.context import TenantContext, unit_of_work

app = CommandGroup(help="Show the cluster's identity, and confirm a restored database.")


@app.add()
@database_options
def show(database: DatabaseOptions, *, as_json: AsJson = False) -> None:
    """Show whether the cluster may work in the database, and why not.

    Example

      evertick cluster show --database-url postgresql://evertick@db.internal/evertick
    """
    print_document(asdict(call_database(database, DEFAULT_TENANT, cluster.show)), as_json=as_json)


@app.add()
@database_options
def confirm(database: DatabaseOptions, *, as_json: AsJson = False) -> None:
    """Let the cluster work in a database that was restored from a backup.

    First make sure that nothing works in the original any more, or that this copy may run its jobs beside it: else both
    send webhooks and call handlers. Ticks since the backup are late or missed, as the misfire policy of each job says.

    The database gets the name in EVERTICK_CLUSTER: from now on only processes with this name work in it. Without the
    variable it has none.

    Examples

      evertick cluster confirm --database-url postgresql://evertick@db.internal/evertick

      EVERTICK_CLUSTER=staging evertick cluster confirm --database-url postgresql://evertick@staging-db/evertick
    """
    name = settings_of(database).cluster

    async def work(operator: TenantContext) -> ClusterIdentity:
        async with unit_of_work(operator) as unit:
            before = await cluster.confirm(unit, name)
            await audit.record(unit, ACTOR, "confirm_cluster", name)
            return before

    before = call_database(database, DEFAULT_TENANT, work)
    if as_json:
        print_document({"name": name, "before": asdict(before)}, as_json=True)
        return
    click.echo("Confirmed: schedulers, workers and dispatchers go on within seconds.")
    click.echo(f"The cluster is called {name}." if name else "The cluster has no name.")
