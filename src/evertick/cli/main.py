"""The root of the `evertick` command: its options and the list of its commands."""

from typing import Annotated

import typer

from evertick import tzdb
from evertick.cli import (
    bench,
    config_check,
    dead_letters,
    doctor,
    import_group,
    jobs,
    keys,
    migrate,
    preview,
    runs,
    secrets,
    tenants,
    up,
    worker,
)
from evertick.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,  # a traceback is for a bug report: plain text pastes better
    help="A distributed job scheduler: every tick accounted for, and seen before it happens.",
    epilog="Exit codes: 0 done, 1 the thing failed, 2 wrong usage, 3 cannot reach the server or database.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"evertick {__version__} (tz database {tzdb.VERSION})")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options that stand before a command."""


app.command("up")(up.up)
app.command("scheduler")(up.scheduler)
app.command("worker")(worker.worker)
app.command("migrate")(migrate.migrate)
app.command("doctor")(doctor.doctor)
app.command("preview")(preview.preview)
app.add_typer(jobs.app, name="jobs")
jobs.app.add_typer(import_group.app, name="import")
app.add_typer(runs.app, name="runs")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.add_typer(secrets.app, name="secrets")
app.add_typer(config_check.app, name="config")
app.add_typer(bench.app, name="bench")


def main() -> None:
    app(prog_name="evertick")
