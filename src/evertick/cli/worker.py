"""`evertick worker`: runs the handlers of a user's App."""

import os
from dataclasses import replace
from typing import Annotated

import typer
import uvloop

from evertick.cli.failures import reported
from evertick.cli.loading import load_app
from evertick.cli.options import DatabaseUrl, DataDir, LogLevel
from evertick.runtime.logs import DEFAULT_LEVEL, set_up_logs
from evertick.runtime.signals import stop_signal
from evertick.sdk.app import App


def worker(
    app: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the App is, as in billing.tasks:app.")],
    *,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="From which queue it draws. [dim](the app's own)[/dim]")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="How many runs at a time. [dim](the app's own)[/dim]")
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
    """
    set_up_logs(log_level)
    # The app reads them when it connects. What it names in its own code goes before.
    if database_url is not None:
        os.environ["EVERTICK_DATABASE_URL"] = database_url
    elif data_dir is not None:
        os.environ.pop("EVERTICK_DATABASE_URL", None)
        os.environ["EVERTICK_DATA_DIR"] = str(data_dir)
    # Outside of what is reported: what the app's own code raises is best told by its traceback.
    loaded = load_app(app)
    shape = loaded.shape
    loaded.shape = replace(shape, queue=queue or shape.queue, concurrency=concurrency or shape.concurrency)
    with reported():
        uvloop.run(_work(loaded))


async def _work(app: App) -> None:
    with stop_signal() as stopping:
        async with app.running(schedules=False):
            typer.echo(
                f"Evertick is ready: a worker of {app.name} on queue {app.shape.queue}. Stop it with Ctrl-C or SIGTERM."
            )
            await stopping.wait()
