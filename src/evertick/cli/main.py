"""The root of the `evertick` command: its options and the list of its commands.

A command is imported when it is called: importing all of them takes seconds. So `--version`, `--help` and completion
import nothing but Click.
"""

import sys
from collections.abc import Sequence
from typing import Any

import click

from evertick.cli.signatures import CommandGroup
from evertick.runtime.extras import MissingExtra, has_server, needs_server, server_extra
from evertick.version import __version__

COMMANDS = {
    "up": ("server:up", "Run Evertick: migrate the database, then serve the API, fire timers and deliver webhooks."),
    "scheduler": ("server:scheduler", "Run one scheduler of a cluster. The database must be migrated."),
    "worker": (
        "worker:worker",
        "Run the handlers of an App. Schedulers are other processes. Start as many workers as the load needs.",
    ),
    "migrate": (
        "server:migrate",
        "Migrate the database to the schema of this version, in one transaction. Concurrent migrations are safe.",
    ),
    "doctor": (
        "server:doctor",
        "Check versions, schema, clocks, schedulers, lag, leases, vacuum and the network access of webhooks.",
    ),
    "cluster": ("cluster:app", "Show the cluster's identity, and confirm a restored database."),
    "health": ("health:health", "Check that a process is ready and its event loop runs. Exit code 1 if not."),
    "preview": (
        "preview:preview",
        "Show the next fire times of a schedule in its time zone and in UTC, a description, and the effects of DST.",
    ),
    "top": (
        "top:top",
        "Show what the engine does, live: rates, lag, what needs attention, queues, nodes, runs, the next ticks.",
    ),
    "forecast": (
        "forecast:forecast",
        "Show how many firings each minute or hour to come will have, and which jobs make the fullest.",
    ),
    "jobs": ("jobs:app", "List, show, add, edit, export, pause, trigger and delete jobs."),
    "runs": ("runs:app", "List, follow, show, cancel and replay runs."),
    "history": (
        "history:history",
        "Show what ran in a stretch of time, the newest first. With --job, also the ticks that did not run.",
    ),
    "archive": ("archive:app", "List, check and export days of the archive."),
    "dead-letters": ("dead_letters:app", "List, replay and dismiss dead letters."),
    "replays": ("replays:app", "List, show and cancel replays."),
    "queues": ("queues:app", "List and limit queues."),
    "workers": (
        "queues:workers",
        "List workers and dispatchers by name: which queues and handlers each serves, and its last heartbeat.",
    ),
    "targets": ("targets:app", "List, limit and reset target hosts."),
    "connections": ("connections:app", "Add, test and remove connections to message brokers."),
    "alerts": ("alerts:app", "List alerts; set and test where their notices go."),
    "events": ("events:app", "Read events: finished runs, gaps, changes of jobs; set where they are sent."),
    "tenants": ("tenants:app", "Create, list and change tenants."),
    "keys": ("keys:app", "Create, list, rotate and revoke API keys."),
    "secrets": ("secrets:app", "Show and rotate webhook secrets, and re-encrypt them."),
    "config": ("config:app", "Check the settings."),
    "completion": (
        "completion:completion",
        "Print a script by which a shell completes commands and options. Its startup file is the place to call it.",
    ),
    "bench": (
        "bench:app",
        "Measure Evertick on this machine, with real processes and a database that is removed afterwards.",
    ),
}
"""Module, name and first sentence of each command, in the order of the help. A test compares the sentences."""
OF_SERVER = frozenset(
    {"up", "scheduler", "migrate", "doctor", "cluster", "archive", "tenants", "keys", "secrets", "bench"}
)
"""Commands that need the server's packages. A test compares them with what the modules import."""


class _Commands(CommandGroup):
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in OF_SERVER and not has_server():
            return click.Command(cmd_name, help=needs_server(f"evertick {cmd_name}"))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """A command that is interrupted ends as shells expect it; Click would call it a failure."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            from evertick.runtime.process import INTERRUPTED  # noqa: PLC0415 - as the commands

            raise click.exceptions.Exit(INTERRUPTED) from None

    def load(self, name: str) -> click.Command:
        """Where the server is missing that it needs, the command says how to install it."""
        try:
            with server_extra(f"evertick {name}"):
                return super().load(name)
        except MissingExtra as missing:
            return _missing_command(name, missing)


def _missing_command(name: str, missing: MissingExtra) -> click.Command:
    from evertick.cli.errors import exit_on_error  # noqa: PLC0415 - as the commands

    @click.command(
        name,
        help=str(missing),
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def refuse() -> None:
        with exit_on_error():
            raise missing

    return refuse


app = _Commands(
    later=COMMANDS,
    help="A distributed job scheduler on PostgreSQL: every tick ends in a run or in a recorded gap.",
    epilog="Exit codes: 0 success, 1 failure, 2 wrong usage, 3 server or database unreachable.",
)


def _show_version(context: click.Context, _parameter: click.Parameter, is_requested: bool) -> None:
    if is_requested:
        from evertick import tzdb  # noqa: PLC0415 - as the commands

        click.echo(f"evertick {__version__} (tz database {tzdb.VERSION})")
        context.exit()


app.params.append(
    click.Option(
        ["--version"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_version,
        help="Show the version and exit.",
    )
)


def main(arguments: Sequence[str] | None = None, program: str = "evertick") -> None:
    """Run the command that the arguments name, by default those of the process; `program` is what its help calls it."""
    # httpx imports its own command line, with Click, Rich and Pygments, wherever it can: half of its import time.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type] # so, an import of it fails
    # On Windows Click would take `* * * * *` for a pattern of files, and `$` in a password for a variable.
    app(None if arguments is None else list(arguments), prog_name=program, windows_expand_args=False)
