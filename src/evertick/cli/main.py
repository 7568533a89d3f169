"""The root of the `evertick` command: its options and the list of its commands."""

from typing import Annotated

import typer

from evertick import tzdb
from evertick.cli.commands import (
    bench,
    dead_letters,
    jobs,
    keys,
    maintenance,
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
    pretty_exceptions_enable=False,  # tracebacks go into bug reports as plain text
    help="A distributed job scheduler on PostgreSQL: every tick ends in a run or in a recorded gap.",
    epilog="Exit codes: 0 success, 1 failure, 2 wrong usage, 3 server or database unreachable.",
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"evertick {__version__} (tz database {tzdb.VERSION})")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options before a command."""


app.command("up")(up.up)
app.command("scheduler")(up.scheduler)
app.command("worker")(worker.worker)
app.command("migrate")(maintenance.migrate)
app.command("doctor")(maintenance.doctor)
app.command("preview")(preview.preview)
app.add_typer(jobs.app, name="jobs")
app.add_typer(runs.app, name="runs")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(tenants.app, name="tenants")
app.add_typer(keys.app, name="keys")
app.add_typer(secrets.app, name="secrets")
app.add_typer(maintenance.config_app, name="config")
app.add_typer(bench.app, name="bench")


def main() -> None:
    app(prog_name="evertick")
