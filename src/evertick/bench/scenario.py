"""Scenarios and their options. An option is declared once, at its field: type, default, limits, help text.

The command line builds its commands from these declarations.
"""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import Field, dataclass
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from evertick.bench.testbed import Testbed

Result: TypeAlias = dict[str, Any]
MAX_COUNT = 50_000_000


@dataclass(frozen=True, slots=True)
class Option:
    """How the command line shows and checks one option. `parse` raises ValueError with a message for the user."""

    help: str
    min: float | None = None
    max: float | None = None
    flags: str | None = None
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None


Jobs = Annotated[int, Option("Number of jobs.", 1, MAX_COUNT)]
Rules = Annotated[int, Option("Number of rules that the jobs in the background share.", 1, 100_000)]
PayloadBytes = Annotated[int, Option("Size of the payload of each job.", 0, 60_000)]
Seconds = Annotated[float, Option("Duration of the measurement.", 1, 86_400)]
Workers = Annotated[int, Option("Number of worker processes.", 1, 64)]
Concurrency = Annotated[
    int | None, Option("Concurrent runs in each worker. [dim](the default of workers)[/dim]", 1, 10_000)
]
Seed = Annotated[int, Option("Seed of the random workload. The same seed gives the same workload.")]


class Options(Protocol):
    """The options of a scenario: a dataclass. Each field is Annotated with an Option."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


OptionsT = TypeVar("OptionsT", bound=Options)


def no_fault(_: Options) -> None:
    """For scenarios whose options are independent of each other."""


@dataclass(frozen=True, slots=True)
class Scenario(Generic[OptionsT]):
    """A measurement.

    `fault` checks options against each other and returns what is wrong. `reuses_database`: the jobs that remain are not
    due, so the next measurement can use the same database. `can_keep`: its database may stay. `plot` draws its result
    as SVG.
    """

    name: str
    summary: str
    example: str
    options: type[OptionsT]
    run: Callable[[Testbed, OptionsT], Coroutine[Any, Any, Result]]
    fault: Callable[[OptionsT], str | None] = no_fault
    reuses_database: bool = True
    can_keep: bool = False
    plot: Callable[[Mapping[str, Any]], str] | None = None


def is_sound(result: Mapping[str, Any]) -> bool:
    """Whether every expected run happened exactly once."""
    return not result.get("missing") and not result.get("duplicates")
