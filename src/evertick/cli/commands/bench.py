"""`evertick bench`: measures Evertick on this machine. Each scenario is a command, built from its declaration."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from evertick.bench.scenario import Option as ScenarioOption, OptionsT, Result, Scenario, is_sound, measure
from evertick.bench.scenarios import (
    age,
    brokers,
    drain,
    flood,
    floor,
    forecast,
    growth,
    hot_second,
    idle,
    lag,
    load,
    overload,
    pages,
    register,
    schedules,
    steady,
    submit,
    tenants,
    webhooks,
)
from evertick.bench.testbed import BenchProgress, ServerChoice
from evertick.cli.errors import Exit, exit_on_error
from evertick.cli.options import optional
from evertick.cli.output import print_fields, print_json
from evertick.cli.signatures import CommandGroup, Option
from evertick.cli.tables import plain_console

_SCENARIOS = (
    drain,
    hot_second,
    steady,
    lag,
    register,
    submit,
    webhooks,
    brokers,
    tenants,
    overload,
    flood,
    forecast,
    pages,
    load,
    idle,
    growth,
    age,
    floor,
)
_NAMES = {"rate_per_second": "per second", "lag_ms": "lag in ms"}

app = CommandGroup(
    help="Measure Evertick on this machine, with real processes and a database that is removed afterwards.",
)

_SERVER = "Use this server. The bench creates a database on it and drops it afterwards."
_DIRECTORY = "Use the embedded server in this directory and keep its data. [default: a temporary one]"
DatabaseUrl = Annotated[str | None, optional("--database-url", _SERVER, metavar="URL")]
DataDir = Annotated[Path | None, optional("--data-dir", _DIRECTORY, metavar="DIR")]
AsJson = Annotated[bool, Option("--json", help="Print one JSON object instead of a table.")]
Keep = Annotated[bool, Option("--keep", help="Keep the database on the server of --database-url.")]
_PLOT = click.Path(dir_okay=False, writable=True, path_type=Path)
Svg = Annotated[
    Path | None,
    optional("--svg", "Also write a plot to this file.", metavar="FILE", parser=_PLOT),
]


def run_scenario(
    scenario: Scenario[OptionsT], options: OptionsT, choice: ServerChoice, *, as_json: bool, svg: Path | None = None
) -> None:
    """Measure and print the result. Fail if runs are missing or duplicated."""
    if choice.database_url is not None and choice.data_dir is not None:
        raise click.BadParameter("--database-url and --data-dir exclude each other")
    with exit_on_error(), _progress() as progress:
        result = measure(scenario, options, choice, progress)
    if as_json:
        print_json(result)
    else:
        print_table(result)
    if svg is not None and scenario.plot is not None:
        svg.write_text(scenario.plot(result), encoding="utf-8")
    if not is_sound(result):
        click.echo("Error: runs are missing, or were started more than once", err=True)
        raise click.exceptions.Exit(Exit.FAILED)


def _command(scenario: Scenario[Any]) -> Callable[..., None]:
    def command(
        *,
        database_url: str | None,
        data_dir: Path | None,
        as_json: bool,
        keep: bool = False,
        svg: Path | None = None,
        **values: Any,
    ) -> None:
        options = scenario.options(**values)
        fault = scenario.fault(options)
        if fault is not None:
            raise click.BadParameter(fault)
        if keep and database_url is None and data_dir is None:
            raise click.BadParameter("--keep needs --database-url or --data-dir: a temporary server is removed")
        run_scenario(scenario, options, ServerChoice(database_url, data_dir, keep), as_json=as_json, svg=svg)

    further = [_parameter("keep", Keep, default=False)] if scenario.can_keep else []
    further += [_parameter("svg", Svg, default=None)] if scenario.plot is not None else []
    return _with_signature(command, [*_parameters(scenario.options), *further, *_COMMON, _AS_JSON])


def _schedules(*, as_json: bool, **values: Any) -> None:
    """How fast the next fire time is computed, and how fast due timers that share rules are planned.

    Example: evertick bench schedules --jobs 100000 --rules 1000 --json
    """
    with Console(stderr=True).status("starting") as status:
        result: Result = schedules.run(schedules.SchedulesOptions(**values), status.update)
    if as_json:
        print_json(result)
    else:
        _print_schedules(result)


def _parameters(options: type[Any]) -> list[inspect.Parameter]:
    """One parameter for each field of a scenario's options."""
    hints = get_type_hints(options, include_extras=True)
    parameters = []
    for field in fields(options):
        kind, option = get_args(hints[field.name])
        default = field.default if option.parse is None else _typed(field.default)
        parameters.append(_parameter(field.name, _annotation(kind, option), default=default))
    return parameters


def _typed(default: Any) -> str:
    """A default as a user would type it: the help shows it so, and it is parsed as what users type."""
    return default if isinstance(default, str) else ",".join(map(str, default))


def _annotation(kind: Any, option: ScenarioOption) -> Any:
    flags = () if option.flags is None else (option.flags,)
    limits: Any = {"min": option.min, "max": option.max, "help": option.help, "metavar": option.metavar}
    if option.parse is None:
        return Annotated[kind, Option(*flags, **limits)]
    return Annotated[str, Option(*flags, **limits, parser=_parser(option.parse))]


def _parser(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def convert(value: str) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


def _parameter(name: str, annotation: Any, *, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _with_signature(command: Callable[..., None], parameters: list[inspect.Parameter]) -> Callable[..., None]:
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what the options are read from
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


_COMMON = [_parameter("database_url", DatabaseUrl, default=None), _parameter("data_dir", DataDir, default=None)]
_AS_JSON = _parameter("as_json", AsJson, default=False)


class _Bars(BenchProgress):
    """One bar for each step."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def begin(self, what: str, total: float | None = None) -> None:
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1)
            self._bars.stop_task(self._task)
        self._task = self._bars.add_task(what, total=total)

    def reach(self, done: float) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=done)


@contextmanager
def _progress() -> Iterator[BenchProgress]:
    """Progress bars on stderr, if that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield _Bars(bars)


def print_table(result: Mapping[str, Any]) -> None:
    """All fields of a result, one on each line."""
    print_fields(
        line for name, value in result.items() for line in _lines(_NAMES.get(name, name.replace("_", " ")), value)
    )


def _lines(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        plain = {key: each for key, each in value.items() if not isinstance(each, Mapping)}
        yield name, "  ".join(f"{key} {_text(each)}" for key, each in plain.items())
        for key, each in value.items():
            if isinstance(each, Mapping):
                yield from _lines(f"{name}, {key.replace('_', ' ')}", each)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for number, each in enumerate(value, start=1):
            yield from _lines(f"{name} {number}", each)
    else:
        yield name, _text(value)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}"


def _print_schedules(result: Mapping[str, Any]) -> None:
    table = Table("schedule", "next fire times per CPU second")
    table.columns[1].justify = "right"
    for name, rate in result["next_fires_per_second"].items():
        table.add_row(name, f"{rate:,}")
    console = plain_console()
    console.print(table)
    console.print(
        f"{result['runs']:,} due timers in {result['plans']:,} plans: "
        f"[bold]{result['rate_per_second']:,}[/bold] timers planned per CPU second"
    )


for _module in _SCENARIOS:
    _scenario: Scenario[Any] = _module.SCENARIO
    app.add(_scenario.name, help=f"{_scenario.summary}\n\nExample: {_scenario.example}")(_command(_scenario))
app.add("schedules")(_with_signature(_schedules, [*_parameters(schedules.SchedulesOptions), _AS_JSON]))
