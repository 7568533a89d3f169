"""Commands of operators: `evertick up` and `scheduler` run roles until a signal stops them, `migrate`, `doctor`."""

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Annotated, Any

import click
import uvloop

from evertick.cli.connection import DatabaseOptions, database_options, settings_of
from evertick.cli.errors import Exit, exit_on_error
from evertick.cli.options import AsJson, DatabaseUrl, DataDir, LogFormat, LogLevel, MetricsPort, optional, settings_with
from evertick.cli.output import print_json, print_rows
from evertick.cli.signatures import Option
from evertick.config import values
from evertick.config.reading import checked
from evertick.config.settings import Settings
from evertick.config.values import Role
from evertick.runtime.liveness import reporting_liveness
from evertick.runtime.logs import set_up_logs
from evertick.runtime.process import expect_batches, raise_descriptor_limit, stop_signal
from evertick.store.database import open_pool
from evertick.store.location import DatabaseAddress
from evertick.store.migrate import Obstacle
from evertick.store.migration_plan import Step
from evertick.usecases.diagnosis import Diagnosis, Level
from evertick.usecases.doctor import examine
from evertick.wiring import (
    database,
    database_location,
    first_key,
    login_link,
    migrate_database,
    node_name,
    plan_migration,
    require_current_schema,
    running,
)

logger = logging.getLogger("evertick")

SCHEDULER_ROLES = (Role.SCHEDULER, Role.JANITOR)


def _roles(text: str) -> tuple[Role, ...]:
    try:
        return values.roles(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


Host = Annotated[str | None, optional("--host", "Host of the API. (env EVERTICK_HOST)", metavar="HOST")]
Port = Annotated[int | None, optional("--port", "Port of the API. (env EVERTICK_PORT)", min=0, max=65535)]
NoMigrate = Annotated[
    bool,
    Option("--no-migrate", help="Refuse to start unless `evertick migrate` was run. Print no API key."),
]
_ROLES = "Roles of this process, separated by commas; by default"
Roles = Annotated[
    tuple[Role, ...] | None,
    optional("--roles", f"{_ROLES} {','.join(Role)}. (env EVERTICK_ROLES)", metavar="ROLES", parser=_roles),
]
RolesOfScheduler = Annotated[
    tuple[Role, ...] | None,
    optional("--roles", f"{_ROLES} {','.join(SCHEDULER_ROLES)}.", metavar="ROLES", parser=_roles),
]


def up(
    *,
    host: Host = None,
    port: Port = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    roles: Roles = None,
    metrics_port: MetricsPort = None,
    no_migrate: NoMigrate = False,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run Evertick: migrate the database, then serve the API, fire timers and deliver webhooks.

    Without a database URL it starts an embedded PostgreSQL server. The first start prints an API key. Several processes
    on one database share the work; each needs its own port. Ctrl-C or SIGTERM stops the process gracefully.

    Examples

      evertick up

      evertick up --data-dir ./evertick-data --port 8701

      evertick up --database-url postgresql://evertick@db.internal/evertick

      evertick up --no-migrate --roles api,dispatcher --database-url postgresql://evertick@db.internal/evertick
    """
    with exit_on_error():
        settings = settings_with(database_url, data_dir, log_format, log_level)
        set_up_logs(settings.log_level, settings.log_format)
        settings = replace(settings, host=host or settings.host, port=settings.port if port is None else port)
        if no_migrate:
            _serve(settings, roles or settings.roles or tuple(Role), metrics_port, require_current_schema, create=False)
        else:
            _serve(settings, roles or settings.roles or tuple(Role), metrics_port, migrate_database, create=True)


def scheduler(
    *,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    roles: RolesOfScheduler = None,
    metrics_port: MetricsPort = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run one scheduler of a cluster. The database must be migrated.

    Example

      evertick migrate --database-url postgresql://evertick@db.internal/evertick

      evertick scheduler --database-url postgresql://evertick@db.internal/evertick
    """
    with exit_on_error():
        settings = settings_with(database_url, data_dir, log_format, log_level)
        set_up_logs(settings.log_level, settings.log_format)
        if settings.database_url is None and settings.data_dir is None:
            click.echo("Error: a scheduler needs --database-url or --data-dir", err=True)
            raise click.exceptions.Exit(Exit.USAGE)
        _serve(settings, roles or SCHEDULER_ROLES, metrics_port, require_current_schema, create=False)


def _serve(
    settings: Settings,
    roles: Collection[Role],
    metrics_port: int | None,
    prepare: Callable[[DatabaseAddress], Awaitable[Any]],
    *,
    create: bool,
) -> None:
    if metrics_port is not None:
        settings = checked(replace(settings, metrics_port=metrics_port))
    raise_descriptor_limit()
    with database(settings, create=create) as url:
        uvloop.run(_run(url, roles, settings, prepare, shows_key=create))


async def _run(
    url: DatabaseAddress,
    roles: Collection[Role],
    settings: Settings,
    prepare: Callable[[DatabaseAddress], Awaitable[Any]],
    *,
    shows_key: bool,
) -> None:
    node = node_name()
    with stop_signal() as stopping:
        await prepare(url)
        async with running(url, node, roles, settings) as address, reporting_liveness(settings.health_file):
            expect_batches()
            await _print_ready(url, node, settings, address, shows_key=shows_key)
            await stopping.wait()


async def _print_ready(
    url: DatabaseAddress, node: str, settings: Settings, address: str | None, *, shows_key: bool
) -> None:
    """Print that the process is ready. Scripts wait for these lines: their text must not change."""
    where = f"node {node} on {database_location(settings)}. Stop it with Ctrl-C or SIGTERM."
    if address is None:
        click.echo(f"Evertick is ready: {where}")
        return
    logger.info("%s", where)
    # Both before it is ready: nothing may fail after that. Where others migrate, stdout may be a log that others read.
    key = await first_key(url) if shows_key else None
    link = await login_link(url) if shows_key else None
    click.echo(f"Evertick is ready at {address}")
    if key is not None:
        click.echo(f"API key: {key}")
    elif shows_key:  # on stderr: scripts read the two lines above
        click.echo("Keys are shown once, when they are made. For another: evertick keys create --role admin", err=True)
    if link is not None:
        click.echo(
            f"Dashboard: {address}{settings.path_prefix or ''}/login/link?token={link} (works once, for 10 minutes)"
        )


@database_options
def migrate(
    options: DatabaseOptions,
    *,
    plan: Annotated[
        bool, Option("--plan", help="Print the statements and their locks as SQL, and change nothing.")
    ] = False,
) -> None:
    """Migrate the database to the schema of this version, in one transaction. Concurrent migrations are safe.

    Examples

      evertick migrate --plan --database-url postgresql://evertick@db.internal/evertick

      evertick migrate --database-url postgresql://evertick@db.internal/evertick
    """
    with exit_on_error():
        settings = settings_of(options)
        if plan:
            with database(settings) as url:
                _print_plan(*uvloop.run(plan_migration(url)), database_location(settings))
            return
        applied: list[str] = []
        with database(settings, create=True) as url:
            uvloop.run(migrate_database(url, applied.append))
        # Printed after the commit: before it, no migration is applied.
        for name in applied:
            click.echo(f"applied {name}")
        click.echo(f"The schema of {database_location(settings)} is up to date{'' if applied else ': nothing to do'}.")


def _print_plan(steps: list[Step], obstacle: Obstacle | None, location: str) -> None:
    if not steps:
        click.echo(f"-- The schema of {location} is up to date: nothing to do.")
        return
    click.echo(f"-- For {location}, in one transaction; each lock is held until its end.")
    if obstacle is not None:
        click.echo(f"-- NOT POSSIBLE YET: {obstacle.what}. To do: {obstacle.todo}.")
    for number, step in enumerate(steps, 1):
        click.echo(f"\n-- {step.migration}, statement {number} of {len(steps)}: {step.lock}")
        click.echo(f"{step.statement};")


@database_options
def doctor(options: DatabaseOptions, *, as_json: AsJson = False) -> None:
    """Check versions, schema, clocks, schedulers, lag, leases, vacuum and the network access of webhooks.

    Each check is ok, or says what to do.

    Exit code 1 if there is a problem. Warnings do not change the exit code.

    Examples

      evertick doctor

      evertick doctor --database-url postgresql://evertick@db.internal/evertick --json
    """
    with exit_on_error():
        settings = settings_of(options)
        with database(settings) as url:
            findings = uvloop.run(_examine(url, settings))
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        print_rows(("", "", ""), [(each.name, each.level, _advice(each)) for each in findings], empty="")
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise click.exceptions.Exit(Exit.FAILED)


async def _examine(url: DatabaseAddress, settings: Settings) -> list[Diagnosis]:
    async with await open_pool(url, max_size=1) as pool:
        return await examine(pool, settings.heartbeat_timeout, settings, url)


def _advice(finding: Diagnosis) -> str:
    return finding.what if finding.todo is None else f"{finding.what}. To do: {finding.todo}."
