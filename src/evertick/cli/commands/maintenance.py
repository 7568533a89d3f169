"""Commands of operators: `evertick migrate` and `evertick doctor`."""

import typer
import uvloop

from evertick.cli.connection import DatabaseOptions, database_options
from evertick.cli.errors import Exit, exit_on_error
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, print_rows
from evertick.config import Settings
from evertick.store.database import open_pool
from evertick.usecases.diagnosis import Diagnosis, Level
from evertick.usecases.doctor import examine
from evertick.wiring import database, database_location, migrate_database


@database_options
def migrate(options: DatabaseOptions) -> None:
    """Migrate the database to the schema of this version, in one transaction. Concurrent migrations are safe.

    [bold]Example[/bold]

      evertick migrate --database-url postgresql://evertick@db.internal/evertick
    """
    with exit_on_error():
        settings = options.settings()
        applied: list[str] = []
        with database(settings, create=True) as url:
            uvloop.run(migrate_database(url, applied.append))
        # Printed after the commit: before it, no migration is applied.
        for name in applied:
            typer.echo(f"applied {name}")
        typer.echo(f"The schema of {database_location(settings)} is up to date{'' if applied else ': nothing to do'}.")


@database_options
def doctor(options: DatabaseOptions, *, as_json: AsJson = False) -> None:
    """Check versions, schema, clocks, schedulers, lag, leases, vacuum and the network access of webhooks.

    Each check is ok, or says what to do.

    Exit code 1 if there is a problem. Warnings do not change the exit code.

    [bold]Examples[/bold]

      evertick doctor

      evertick doctor --database-url postgresql://evertick@db.internal/evertick --json
    """
    with exit_on_error():
        settings = options.settings()
        with database(settings) as url:
            findings = uvloop.run(_examine(url, settings))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_rows(("", "", ""), [(each.name, each.level, _advice(each)) for each in findings], empty="")
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(Exit.FAILED)


async def _examine(url: str, settings: Settings) -> list[Diagnosis]:
    async with await open_pool(url, max_size=1) as pool:
        return await examine(pool, settings.heartbeat_timeout, settings)


def _advice(finding: Diagnosis) -> str:
    return finding.what if finding.todo is None else f"{finding.what}. To do: {finding.todo}."
