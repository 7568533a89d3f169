"""The root of the `evertick` command: its options and the list of its commands."""

from importlib import import_module
from typing import Annotated

import typer
from rich.markup import escape

from evertick import tzdb
from evertick.cli.commands import config, dead_letters, jobs, preview, queues, replays, runs, targets, worker
from evertick.cli.errors import exit_on_error
from evertick.runtime.extras import MissingExtra, server_extra
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


def _add_server_command(name: str, module: str, attribute: str = "app") -> None:
    """Add a command of a module that imports the server. Where that is missing, the command says how to install it."""
    try:
        with server_extra(f"evertick {name}"):
            found = getattr(import_module(f"evertick.cli.commands.{module}"), attribute)
    except MissingExtra as missing:
        _add_missing_command(name, missing)
        return
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name)
    else:
        app.command(name)(found)


def _add_missing_command(name: str, missing: MissingExtra) -> None:
    any_arguments = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name, help=escape(str(missing)), add_help_option=False, context_settings=any_arguments)
    def refuse() -> None:
        with exit_on_error():
            raise missing


_add_server_command("up", "server", "up")
_add_server_command("scheduler", "server", "scheduler")
app.command("worker")(worker.worker)
_add_server_command("migrate", "server", "migrate")
_add_server_command("doctor", "server", "doctor")
app.command("preview")(preview.preview)
app.add_typer(jobs.app, name="jobs")
app.add_typer(runs.app, name="runs")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(replays.app, name="replays")
app.add_typer(queues.app, name="queues")
app.add_typer(targets.app, name="targets")
_add_server_command("tenants", "tenants")
_add_server_command("keys", "keys")
_add_server_command("secrets", "secrets")
app.add_typer(config.app, name="config")
_add_server_command("bench", "bench")


def main() -> None:
    app(prog_name="evertick")
