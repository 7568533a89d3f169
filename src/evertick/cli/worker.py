"""`evertick worker`: runs the handlers of a user's App."""

import os
from dataclasses import replace
from typing import Annotated

import typer
import uvloop

from evertick.cli.errors import Exit
from evertick.cli.errors import exit_on_error
from evertick.cli.commands.worker import load_app
from evertick.cli.options import DatabaseUrl, DataDir, LogLevel
from evertick.cli.output import print_line
from evertick.cli.servers import server_with_key
from evertick.client import Unreachable
from evertick.client.transport import DEFAULT_URL
from evertick.config import read_settings
from evertick.runtime.process import raise_descriptor_limit
from evertick.runtime.process import expect_batches
from evertick.runtime.logs import DEFAULT_LEVEL, set_up_logs
from evertick.runtime.process import stop_signal
from evertick.sdk.app import App
from evertick.sdk.remote import Worker

_HOW_TO_STOP = "Stop it with Ctrl-C or SIGTERM."


def worker(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is, as in billing.tasks:app.")],
    *,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="From which queue it draws. [dim](the app's own)[/dim]")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="How many runs at a time. [dim](the app's own)[/dim]")
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Work over HTTP for this server, with the key in EVERTICK_API_KEY, if no database is named."
            " [dim](env EVERTICK_URL)[/dim]",
            show_default=False,
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    log_level: LogLevel = DEFAULT_LEVEL,
) -> None:
    """Run the handlers of an App, and leave firing to schedulers elsewhere. Start as many as there is work for.

    On Ctrl-C or SIGTERM it takes no more work, lets what runs come to its end, and hands back what does not.

    [bold]Examples[/bold]

      evertick worker billing.tasks:app

      evertick worker tasks:app --queue billing --concurrency 20 --database-url postgresql://evertick@db.internal/evertick

      evertick worker tasks:app --url https://evertick.example.com
    """
    set_up_logs(log_level)
    if url is not None and database_url is not None:
        raise typer.BadParameter("--url and --database-url exclude each other")
    # The app reads them when it connects. What it names in its own code goes before.
    if database_url is not None:
        os.environ["EVERTICK_DATABASE_URL"] = database_url
    elif data_dir is not None:
        os.environ.pop("EVERTICK_DATABASE_URL", None)
        os.environ["EVERTICK_DATA_DIR"] = str(data_dir)
    # Outside of what is exit_on_error: what the app's own code raises is best told by its traceback.
    loaded = load_app(app)
    raise_descriptor_limit()
    options = loaded.worker_options
    loaded.worker_options = replace(
        options, queue=queue or options.queue, concurrency=concurrency or options.concurrency
    )
    with exit_on_error():
        if url is not None or _is_remote(loaded):
            _work_remotely(loaded, url)
        else:
            uvloop.run(_work(loaded))


def _is_remote(app: App) -> bool:
    """Whether the environment names a server, and nobody a database."""
    settings = app.settings()
    return settings.url is not None and settings.database_url is None and settings.data_dir is None


def _work_remotely(app: App, url: str | None) -> None:
    settings = read_settings()
    try:
        server = server_with_key(url or settings.url or DEFAULT_URL, None, settings)
        uvloop.run(_pull(app, Worker(app, server.url, server.api_key)))
    except Unreachable as error:
        print_line(f"Error: {error.detail}", err=True)
        raise typer.Exit(Exit.UNREACHABLE) from None


async def _pull(app: App, worker: Worker) -> None:
    with stop_signal() as stopping:
        async with worker.running():
            expect_batches()
            queues = ", ".join(worker.queues)
            typer.echo(f"Evertick is ready: a remote worker of {app.name} on queue {queues}. {_HOW_TO_STOP}")
            await stopping.wait()


async def _work(app: App) -> None:
    with stop_signal() as stopping:
        async with app.running(schedules=False):
            expect_batches()
            typer.echo(f"Evertick is ready: a worker of {app.name} on queue {app.worker_options.queue}. {_HOW_TO_STOP}")
            await stopping.wait()
