"""The root of the `evertick` command: its options and the list of its commands.

A command is imported when it is called, or shown in the help: importing all of them takes a second.
"""

from importlib import import_module
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from evertick import tzdb
from evertick.cli.errors import exit_on_error
from evertick.runtime.extras import MissingExtra, server_extra
from evertick.version import __version__

COMMANDS = {
    "up": "server:up",
    "scheduler": "server:scheduler",
    "worker": "worker:worker",
    "migrate": "server:migrate",
    "doctor": "server:doctor",
    "cluster": "cluster:app",
    "health": "health:health",
    "preview": "preview:preview",
    "jobs": "jobs:app",
    "runs": "runs:app",
    "history": "history:history",
    "archive": "archive:app",
    "dead-letters": "dead_letters:app",
    "replays": "replays:app",
    "queues": "queues:app",
    "targets": "targets:app",
    "connections": "connections:app",
    "alerts": "alerts:app",
    "events": "events:app",
    "tenants": "tenants:app",
    "keys": "keys:app",
    "secrets": "secrets:app",
    "config": "config:app",
    "bench": "bench:app",
}
"""Module and name of each command, in the order of the help."""


class _Commands(TyperGroup):
    # The types of commands and contexts are private to Typer.
    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the same for all
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - the same for all
        return _command(cmd_name) if cmd_name in COMMANDS else None


def _command(name: str) -> Any:
    """Where the server is missing that it needs, the command says how to install it."""
    module, _, attribute = COMMANDS[name].partition(":")
    try:
        with server_extra(f"evertick {name}"):
            found = getattr(import_module(f"evertick.cli.commands.{module}"), attribute)
    except MissingExtra as missing:
        return _missing_command(name, missing)
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(rich_markup_mode="rich")
        found.command(name)(function)
    command = typer.main.get_command(found)
    command.name = name
    return command


def _missing_command(name: str, missing: MissingExtra) -> Any:
    any_arguments = {"allow_extra_args": True, "ignore_unknown_options": True}
    only = typer.Typer(rich_markup_mode="rich")

    @only.command(name, help=escape(str(missing)), add_help_option=False, context_settings=any_arguments)
    def refuse() -> None:
        with exit_on_error():
            raise missing

    return typer.main.get_command(only)


app = typer.Typer(
    cls=_Commands,
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


def main() -> None:
    app(prog_name="evertick")
