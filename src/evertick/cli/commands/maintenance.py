"""Commands of operators: `evertick migrate`, `evertick doctor`, `evertick config check`."""

import tomllib

import typer
import uvloop

from evertick.cli.connection import DatabaseOptions, database_options
from evertick.cli.errors import Exit, exit_on_error
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, print_line, print_rows
from evertick.cli.servers import config_file, profile_faults
from evertick.config import ConfigInvalid, Settings, read_settings
from evertick.store.database import open_pool
from evertick.usecases.diagnosis import Diagnosis, Level
from evertick.usecases.doctor import examine
from evertick.wiring import bring_up_to_date, database, database_location

config_app = typer.Typer(no_args_is_help=True, help="Check the settings.", rich_markup_mode="rich")


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
            uvloop.run(bring_up_to_date(url, applied.append))
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


@config_app.callback()
def config() -> None:
    """Typer needs a callback to keep `check` a subcommand while it is the only one."""


@config_app.command()
def check(as_json: AsJson = False) -> None:
    """Report all faults of the settings, in the environment and in the config file. Exit code 2 if there are any.

    [bold]Examples[/bold]

      evertick config check

      EVERTICK_CONFIG=/etc/evertick.toml evertick config check --json
    """
    faults = [*_settings_faults(), *_profile_faults()]
    if as_json:
        print_json({"faults": faults})
    elif not faults:
        typer.echo("The settings are valid.")
    else:
        for fault in faults:
            print_line(f"Error: {fault}", err=True)
    if faults:
        raise typer.Exit(Exit.USAGE)


def _settings_faults() -> tuple[str, ...]:
    try:
        read_settings()
    except ConfigInvalid as invalid:
        return invalid.faults
    return ()


def _profile_faults() -> list[str]:
    path = config_file()
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return []  # `_settings_faults` reports a file that cannot be read
    return [f"{path}: {fault}" for fault in profile_faults(content.get("profiles", {}))]
