"""`evertick health`: whether the process beside it is alive. For health checks of containers; needs no server."""

from pathlib import Path
from typing import Annotated

import click

from evertick.cli.errors import Exit, exit_on_error
from evertick.cli.options import optional
from evertick.config.reading import read_settings
from evertick.runtime.liveness import STALE_SECONDS, age_seconds

_FILE = "The file in which the process reports. (env EVERTICK_HEALTH_FILE)"


def health(*, file: Annotated[Path | None, optional("--file", _FILE, metavar="FILE")] = None) -> None:
    """Check that a process is ready and its event loop runs. Exit code 1 if not.

    The process reports in the file that EVERTICK_HEALTH_FILE names, the same for both. `evertick doctor` checks a whole
    cluster.

    Example

      EVERTICK_HEALTH_FILE=/run/evertick/health evertick health
    """
    with exit_on_error():
        path = file or read_settings().health_file
    if path is None:
        click.echo("Error: which process? Use --file, or set EVERTICK_HEALTH_FILE", err=True)
        raise click.exceptions.Exit(Exit.USAGE)
    age = age_seconds(path)
    if age is None:
        click.echo(f"Error: no process has reported in {path}", err=True)
    elif age > STALE_SECONDS:
        click.echo(f"Error: the last report in {path} is {age:.0f} seconds old", err=True)
    else:
        click.echo(f"The process is alive: it reported {age:.0f} seconds ago.")
        return
    raise click.exceptions.Exit(Exit.FAILED)
