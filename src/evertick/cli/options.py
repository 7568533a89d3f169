"""Options that several commands share, groups of options that a command receives as one value, parsers of values."""

import inspect
import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Concatenate, NamedTuple, ParamSpec, TextIO, TypeVar

import click

from evertick.cli.signatures import Option
from evertick.config.reading import read_settings
from evertick.config.settings import Settings
from evertick.config.values import LOG_FORMATS, LOG_LEVELS

_G = TypeVar("_G", bound=NamedTuple)
_P = ParamSpec("_P")

EXAMPLE_INSTANT = "2026-03-07T00:00:00Z"
NO_LIMIT = "none"


class FileFormat(StrEnum):
    """Of a file of jobs."""

    NDJSON = "ndjson"  # one object on each line
    JSON = "json"  # an array
    YAML = "yaml"  # a list, or several documents


def optional(flag: str, text: str, **settings: Any) -> Any:
    """An option without a default."""
    return Option(flag, help=text, show_default=False, **settings)


_DATABASE = "PostgreSQL database, as in postgresql://user:password@host/database. (env EVERTICK_DATABASE_URL)"
_DIRECTORY = "Data directory of the embedded server, used without a URL. (env EVERTICK_DATA_DIR)"
DatabaseUrl = Annotated[str | None, optional("--database-url", _DATABASE, metavar="URL")]
DataDir = Annotated[Path | None, optional("--data-dir", _DIRECTORY, metavar="DIR")]
Limit = Annotated[int, Option("--limit", "-n", min=1, help="Maximum number of rows.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
WorkerQueue = Annotated[str | None, Option(metavar="NAME", help="Queue of the workers. [default: default]")]
TargetUrl = Annotated[
    str | None, Option("--target-url", metavar="URL", help="URL to deliver runs to, instead of a handler.")
]
ReplaceAll = Annotated[bool, Option("--replace", help="Replace existing jobs of the same names.")]


def _level(value: str | None) -> str | None:
    if value is not None and value.lower() not in LOG_LEVELS:
        raise click.BadParameter(f"must be one of {', '.join(LOG_LEVELS)}")
    return None if value is None else value.lower()


MetricsPort = Annotated[
    int | None,
    optional(
        "--metrics-port",
        "Port for /metrics of this process, on EVERTICK_METRICS_HOST. (env EVERTICK_METRICS_PORT)",
        min=0,
        max=65535,
    ),
]


def _log_format(value: str | None) -> str | None:
    if value is not None and value.lower() not in LOG_FORMATS:
        raise click.BadParameter(f"must be one of {', '.join(LOG_FORMATS)}")
    return None if value is None else value.lower()


LogLevel = Annotated[
    str | None,
    Option(
        "--log-level",
        metavar="LEVEL",
        callback=_level,
        help=f"Log level: {', '.join(LOG_LEVELS)}. (env EVERTICK_LOG_LEVEL)",
    ),
]


LogFormat = Annotated[
    str | None,
    Option(
        "--log-format",
        metavar="FORMAT",
        callback=_log_format,
        help=f"Log format: {' or '.join(LOG_FORMATS)}. (env EVERTICK_LOG_FORMAT)",
    ),
]


def settings_with(
    database_url: str | None, data_dir: Path | None, log_format: str | None = None, log_level: str | None = None
) -> Settings:
    """The settings of environment and file, overridden by the command line.

    A directory on the command line selects the embedded server even if a URL is set elsewhere.
    """
    settings = read_settings()
    settings = replace(
        settings, log_format=log_format or settings.log_format, log_level=log_level or settings.log_level
    )
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


def parse_json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"{option} must be JSON: {error}") from None


def parse_instant(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    at = instant_or_none(text)
    if at is None:
        raise click.BadParameter(f"{option} must be an instant with its offset, as in {EXAMPLE_INSTANT}")
    return at.astimezone(UTC)


def instant_or_none(text: str) -> datetime | None:
    """An instant, or None if the text is not a date and time with an offset."""
    try:
        at = datetime.fromisoformat(text.strip().upper())
    except ValueError:
        return None
    return None if at.tzinfo is None else at


def parse_pairs(option: str, texts: Iterable[str], separator: str) -> dict[str, str]:
    """`name:value` or `name=value` pairs of an option that can be repeated."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name:
            raise click.BadParameter(f"{option} must be NAME{separator}VALUE, not {text!r}")
        if pairs.setdefault(name.strip(), value.strip()) != value.strip():
            raise click.BadParameter(f"{option} gives {name.strip()!r} two values")
    return pairs


def parse_fields(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """`field=value` pairs. A value that is not JSON is a string."""
    fields: dict[str, Any] = {}
    for name, value in parse_pairs(option, texts, "=").items():
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def read_text(file: TextIO) -> str:
    """The content of a file argument."""
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.BadParameter(f"{file.name} is not UTF-8: {error}") from None


def target_of(handler: str | None, queue: str | None, url: str | None) -> dict[str, str]:
    """The target that the options --handler, --queue and --target-url describe."""
    if (handler is None) == (url is None):
        raise click.BadParameter("use either --handler or --target-url")
    if url is not None:
        if queue is not None:
            raise click.BadParameter("--queue needs --handler")
        return {"type": "http", "url": url}
    assert handler is not None
    return {"type": "worker", "handler": handler, **({} if queue is None else {"queue": queue})}


def limit_option(name: str, text: str) -> Any:
    """An option for a limit that may be removed."""
    return optional(name, text, metavar="NUMBER|none")


def read_limits(**given: str | None) -> dict[str, float | None]:
    """Limits as they are given on the command line: those that are left out stay as they are."""
    found = {name: _read_limit(text) for name, text in given.items() if text is not None}
    if not found:
        raise click.BadParameter("which limit to change is not said")
    return found


def _read_limit(text: str) -> float | None:
    if text == NO_LIMIT:
        return None
    with suppress(ValueError, OverflowError):
        limit = int(text) if text.isdecimal() else float(text)
        if math.isfinite(limit):  # JSON has null for others, which would remove the limit
            return limit
    raise click.BadParameter(f"{text!r} is neither a number nor {NO_LIMIT!r}")
