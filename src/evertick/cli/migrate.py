"""`evertick migrate`: brings a database's schema to this version's."""

import typer
import uvloop

from evertick.cli.failures import reported
from evertick.cli.options import DatabaseUrl, DataDir, settings_with
from evertick.wiring import bring_up_to_date, database, database_location


def migrate(database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Bring the database's schema up to date: all or nothing, and safe while others do the same.

    [bold]Example[/bold]

      evertick migrate --database-url postgresql://evertick@db.internal/evertick
    """
    with reported():
        settings = settings_with(database_url, data_dir)
        applied: list[str] = []
        with database(settings, create=True) as url:
            uvloop.run(bring_up_to_date(url, applied.append))
        # Told only now: before the commit none of them is there to stay.
        for name in applied:
            typer.echo(f"applied {name}")
        typer.echo(f"The schema of {database_location(settings)} is up to date{'' if applied else ': nothing to do'}.")
