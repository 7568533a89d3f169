"""Options that several commands share."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from evertick.config import Settings, read_settings
from evertick.runtime.logs import LEVELS

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="A PostgreSQL, as in postgresql://user:password@host/database. [dim](env EVERTICK_DATABASE_URL)[/dim]",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Where the embedded server keeps its data, if there is no URL. [dim](env EVERTICK_DATA_DIR)[/dim]",
        show_default=False,
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _level(value: str) -> str:
    if value.lower() not in LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(LEVELS)}")
    return value.lower()


LogLevel = Annotated[
    str, typer.Option("--log-level", metavar="LEVEL", callback=_level, help=f"How much to log: {', '.join(LEVELS)}.")
]


def settings_with(database_url: str | None, data_dir: Path | None) -> Settings:
    """The settings of environment and file, with what the command line says before them.

    A directory on the command line means the embedded server in it, whatever URL is set elsewhere.
    """
    settings = read_settings()
    if database_url is not None:
        return replace(settings, database_url=database_url)
    if data_dir is not None:
        return replace(settings, database_url=None, data_dir=data_dir)
    return settings


def mention_more(*, is_more: bool) -> None:
    """Said beside the result, so that a script which reads it is not confused."""
    if is_more:
        typer.echo("There are more: raise --limit to see them.", err=True)
