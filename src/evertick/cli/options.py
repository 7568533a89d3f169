"""Options that several commands share, and groups of options that a command receives as one value."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import typer

from evertick.config import Settings, read_settings
from evertick.runtime.terminal import LEVELS

_G = TypeVar("_G", bound=NamedTuple)
_P = ParamSpec("_P")

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="PostgreSQL database, as in postgresql://user:password@host/database."
        " [dim](env EVERTICK_DATABASE_URL)[/dim]",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Data directory of the embedded server, used without a URL. [dim](env EVERTICK_DATA_DIR)[/dim]",
        show_default=False,
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of rows.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _level(value: str) -> str:
    if value.lower() not in LEVELS:
        raise typer.BadParameter(f"must be one of {', '.join(LEVELS)}")
    return value.lower()


LogLevel = Annotated[
    str, typer.Option("--log-level", metavar="LEVEL", callback=_level, help=f"Log level: {', '.join(LEVELS)}.")
]


def settings_with(database_url: str | None, data_dir: Path | None) -> Settings:
    """The settings of environment and file, overridden by the command line.

    A directory on the command line selects the embedded server even if a URL is set elsewhere.
    """
    settings = read_settings()
    if database_url is not None:
        return replace(settings, database_url=database_url)
    if data_dir is not None:
        return replace(settings, database_url=None, data_dir=data_dir)
    return settings


def option_group(group: type[_G]) -> Callable[[Callable[Concatenate[_G, _P], None]], Callable[..., None]]:
    """A decorator that adds an option for each field of a named tuple. The command gets the tuple before its own."""
    make: Callable[..., _G] = group
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=group._field_defaults[name],
            annotation=group.__annotations__[name],
        )
        for name in group._fields
    ]

    def decorate(command: Callable[Concatenate[_G, _P], None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        _, *own = signature.parameters.values()

        @wraps(command)
        def run(*groups: Any, **values: Any) -> None:
            fields = {name: values.pop(name) for name in group._fields}
            command(make(**fields), *groups, **values)

        parameters = [*own, *options]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate
