"""`evertick worker`: runs the handlers of a user's App."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import click
import uvloop

from evertick.cli.connection import server_with_key
from evertick.cli.errors import Exit, exit_on_error
from evertick.cli.options import DatabaseUrl, DataDir, LogFormat, LogLevel, MetricsPort, optional
from evertick.cli.output import print_line
from evertick.cli.signatures import Argument, Option
from evertick.cli.worker_processes import MAX_PROCESSES, WorkerProcesses
from evertick.client import Unreachable
from evertick.client.transport import DEFAULT_URL
from evertick.config.reading import read_settings
from evertick.runtime.liveness import reporting_liveness
from evertick.runtime.logs import set_up_logs
from evertick.runtime.process import expect_batches, raise_descriptor_limit, stop_signal
from evertick.sdk.app import App
from evertick.sdk.remote import Worker

_DEFAULT_APP = "app"
_SERVER = "Work over HTTP for this server, with the key in EVERTICK_API_KEY. (env EVERTICK_URL)"


def worker(
    app: Annotated[str, Argument(metavar="MODULE:APP", help="Module and name of the App, as in billing.tasks:app.")],
    *,
    queue: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Queue to take runs from. Can be repeated. [default: the app's own]"),
    ] = None,
    concurrency: Annotated[
        int | None,
        Option(min=1, help="Maximum number of concurrent runs of each process. [default: the app's own]"),
    ] = None,
    processes: Annotated[
        int, Option(min=1, max=MAX_PROCESSES, help="Number of processes, for handlers that use the CPU.")
    ] = 1,
    reload: Annotated[
        bool, Option("--reload", help="Restart when a Python file below the working directory changes.")
    ] = False,
    url: Annotated[str | None, optional("--url", _SERVER, metavar="URL")] = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    metrics_port: MetricsPort = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run the handlers of an App. Schedulers are other processes. Start as many workers as the load needs.

    Ctrl-C or SIGTERM stops it gracefully: it takes no new runs, waits for running handlers, and puts back the rest. A
    second one hands running ones back at once.

    With --processes, each process is a worker of its own, and serves its metrics on the next port. If one ends by
    itself, the others are stopped, and the command ends with its exit code.

    Examples

      evertick worker billing.tasks:app

      evertick worker tasks:app --queue billing --concurrency 20 --database-url postgresql://evertick@db.internal/evertick

      evertick worker tasks:app --queue mail --queue reports --processes 4

      evertick worker tasks:app --reload

      evertick worker tasks:app --url https://evertick.example.com
    """
    with exit_on_error():
        settings = read_settings()
        set_up_logs(log_level or settings.log_level, log_format or settings.log_format, has_users_code=True)
    if url is not None and database_url is not None:
        raise click.BadParameter("--url and --database-url exclude each other")
    # The app reads the environment when it connects. Settings in its own code override the environment.
    if database_url is not None:
        os.environ["EVERTICK_DATABASE_URL"] = database_url
    elif data_dir is not None:
        os.environ.pop("EVERTICK_DATABASE_URL", None)
        os.environ["EVERTICK_DATA_DIR"] = str(data_dir)
    if metrics_port is not None:
        os.environ["EVERTICK_METRICS_PORT"] = str(metrics_port)
    if processes > 1 or reload:
        command = ["worker", app, *_options_of_child(queue, concurrency, url, log_level, log_format)]
        with exit_on_error():
            raise click.exceptions.Exit(WorkerProcesses(command, processes, Path.cwd() if reload else None).run())
    # Not inside `exit_on_error`: an exception in the app's own code is shown with its traceback.
    loaded = load_app(app)
    raise_descriptor_limit()
    options = loaded.worker_options
    first, *others = dict.fromkeys(queue or [options.queue])
    loaded.worker_options = replace(
        options, queue=first, more_queues=tuple(others), concurrency=concurrency or options.concurrency
    )
    with exit_on_error():
        if url is not None or _is_remote(loaded):
            _work_remotely(loaded, url)
        else:
            what = f"a worker of {loaded.name} on queue {', '.join(loaded.worker_options.queues)}"
            uvloop.run(_work(loaded.running(schedules=False), what))


def _options_of_child(
    queues: list[str] | None, concurrency: int | None, url: str | None, log_level: str | None, log_format: str | None
) -> Iterator[str]:
    """What the environment does not tell."""
    for name in queues or ():
        yield from ("--queue", name)
    given = {"--concurrency": concurrency, "--url": url, "--log-level": log_level, "--log-format": log_format}
    for option, value in given.items():
        if value is not None:
            yield from (option, str(value))


def _is_remote(app: App) -> bool:
    """Whether the settings name a server and no database."""
    settings = app.settings()
    return settings.url is not None and settings.database_url is None and settings.data_dir is None


def _work_remotely(app: App, url: str | None) -> None:
    settings = read_settings()
    try:
        server = server_with_key(url or settings.url or DEFAULT_URL, None, settings)
        worker = Worker(app, server.url, server.api_key)
        uvloop.run(_work(worker.running(), f"a remote worker of {app.name} on queue {', '.join(worker.queues)}"))
    except Unreachable as error:
        print_line(f"Error: {error.detail}", err=True)
        raise click.exceptions.Exit(Exit.UNREACHABLE) from None


async def _work(running: AbstractAsyncContextManager[object], what: str) -> None:
    with stop_signal() as stopping:
        async with running, reporting_liveness(read_settings().health_file):
            expect_batches()
            click.echo(f"Evertick is ready: {what}. Stop it with Ctrl-C or SIGTERM.")
            await stopping.wait()


def load_app(text: str) -> App:
    """The App that `module:name` names, searched in the working directory too. `module` alone means its `app`."""
    module_name, _, name = text.partition(":")
    if not module_name or module_name.startswith("."):
        raise click.BadParameter(f"{text!r} must be MODULE:APP, as in billing.tasks:app")
    # As `python -m` does, so that modules beside the app are found.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # If a module that the app imports is missing, the traceback is more useful.
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise click.BadParameter(
            f"there is no module {module_name!r} in {Path.cwd()} or in the installed packages"
        ) from None
    app = getattr(module, name or _DEFAULT_APP, None)
    if not isinstance(app, App):
        raise click.BadParameter(f"{module_name!r} has no App called {name or _DEFAULT_APP!r}")
    return app
