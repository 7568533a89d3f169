"""The commands of Evertick inside of a framework's own command, for the App of that framework."""

import os
from collections.abc import Sequence

from evertick.cli.main import main
from evertick.sdk.app import App


def run_command(app: App, worker: str, arguments: Sequence[str], program: str) -> None:
    """Run a command with the app's database, and end the process as the command does.

    `worker` is where `evertick worker` finds the app, in this process and in those that it starts.
    """
    settings = app.settings()
    os.environ["EVERTICK_DATABASE_SCHEMA"] = settings.database_schema
    if settings.database_url is not None:
        os.environ["EVERTICK_DATABASE_URL"] = settings.database_url
    elif settings.data_dir is not None:
        os.environ["EVERTICK_DATA_DIR"] = str(settings.data_dir)
    words = list(arguments)
    if words[:1] == ["worker"]:
        words.insert(1, worker)
    main(words, program)
