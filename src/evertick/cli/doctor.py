"""`evertick doctor`: what is well with a database and what is not."""

import typer
import uvloop

from evertick.cli.exit_codes import Exit
from evertick.cli.failures import reported
from evertick.cli.options import AsJson, DatabaseUrl, DataDir, settings_with
from evertick.cli.output import print_json, print_rows
from evertick.config import Settings
from evertick.store.database import open_pool
from evertick.usecases.diagnosis import Diagnosis, Level
from evertick.usecases.doctor import examine
from evertick.wiring import database


def doctor(database_url: DatabaseUrl = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Look at versions, schema, clocks, schedulers, lag, leases, vacuum and where webhooks may go.

    It says of each that it is well, or what to do.

    Exit code 1 if there is a problem; warnings alone are no failure.

    [bold]Examples[/bold]

      evertick doctor

      evertick doctor --database-url postgresql://evertick@db.internal/evertick --json
    """
    with reported():
        settings = settings_with(database_url, data_dir)
        with database(settings) as url:
            findings = uvloop.run(_examine(url, settings))
    _show(findings, as_json=as_json)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(Exit.FAILED)


async def _examine(url: str, settings: Settings) -> list[Diagnosis]:
    async with await open_pool(url, max_size=1) as pool:
        return await examine(pool, settings.heartbeat_timeout, settings)


def _show(findings: list[Diagnosis], *, as_json: bool) -> None:
    if as_json:
        print_json([finding._asdict() for finding in findings])
        return
    rows = [(finding.name, finding.level, _words(finding)) for finding in findings]
    print_rows(("", "", ""), rows, none="")


def _words(finding: Diagnosis) -> str:
    return finding.what if finding.todo is None else f"{finding.what}. To do: {finding.todo}."
