"""Commands of measurements: each setting of a scenario becomes an option, described once for all that have it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from evertick.bench.measuring import S, Scenario, is_sound, measure
from evertick.bench.server_lifetime import Place
from evertick.cli.bench.showing import show, watched
from evertick.cli.exit_codes import Exit
from evertick.cli.failures import reported
from evertick.cli.output import print_json

COUNT_MAX = 50_000_000
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="Measure on this server, in a database that is made for it and dropped afterwards.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Measure on the embedded server in this directory, which stays. [dim](a temporary one)[/dim]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def number(text: str, *, least: int = 1, most: int = COUNT_MAX) -> Any:
    """An option that takes a whole number."""
    return Annotated[int, typer.Option(min=least, max=most, help=text)]


_OPTIONS: Mapping[str, Any] = {
    "jobs": number("How many jobs there are."),
    "rules": number("How many rules the jobs that are not due share.", most=100_000),
    "payload_bytes": number("Size of each job's payload.", least=0, most=60_000),
    "seconds": Annotated[float, typer.Option(min=1, max=86_400, help="For how long.")],
    "workers": number("Worker processes.", most=64),
    "concurrency": Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Runs at a time in each worker. [dim](the product's own)[/dim]"),
    ],
    "seed": Annotated[int, typer.Option(help="Chooses the load; the same seed gives the same load.")],
}
"""Options of settings that several scenarios have."""


def command_of(
    scenario: Scenario[S],
    settings: type[S],
    text: str,
    *,
    check: Callable[[S], None] = lambda _: None,
    **options: Any,
) -> Callable[..., None]:
    """The command of a scenario. `options` are those of settings that it alone has."""

    @with_options(settings, **options)
    def command(
        *, database_url: DatabaseUrl = None, data_dir: DataDir = None, as_json: AsJson = False, **given: Any
    ) -> None:
        wanted = settings(**given)
        check(wanted)
        perform(scenario, wanted, Place(database_url, data_dir), as_json=as_json)

    command.__doc__ = text
    return command


def with_options(settings: type[Any], **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function's `given` one option for each of the settings that it has no parameter for."""
    known = {**_OPTIONS, **options}

    def declare(command: Callable[..., None]) -> Callable[..., None]:
        own = [each for each in inspect.signature(command).parameters.values() if each.kind is each.KEYWORD_ONLY]
        taken = {each.name for each in own}
        added = [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=known[each.name]
            )
            for each in fields(settings)
            if each.name not in taken
        ]
        parameters = [*added, *own]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return declare


def perform(
    scenario: Scenario[S],
    settings: S,
    place: Place,
    *,
    as_json: bool,
    also: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Measure, show, do what `also` says with the result, and fail where something is missing or was done twice."""
    if place.database_url is not None and place.data_dir is not None:
        raise typer.BadParameter("--database-url and --data-dir exclude each other")
    with reported(), watched() as progress:
        result: dict[str, Any] = measure(scenario, settings, place, progress)
    if as_json:
        print_json(result)
    else:
        show(result)
    if also is not None:
        also(result)
    if not is_sound(result):
        typer.echo("Error: runs are missing, or were started more than once", err=True)
        raise typer.Exit(Exit.FAILED)
