"""Scenarios, their options, and the fields of their results.

An option is declared once, at its field: type, default, limits, help text. The command line builds its commands from
these declarations.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import Field, dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from evertick.bench import queries
from evertick.bench.queries import RunStatistics
from evertick.bench.testbed import Testbed
from evertick.bench.workload import QUEUE

Result: TypeAlias = dict[str, Any]
MAX_COUNT = 50_000_000
PERCENTILES = ("p50", "p95", "p99", "max")


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


async def read_runs(testbed: Testbed, from_at: datetime, until_at: datetime, queue: str = QUEUE) -> RunStatistics:
    testbed.progress.begin("reading results")
    return await queries.runs(testbed.pool, queue, from_at, until_at)


def count_fields(runs: RunStatistics, expected: int) -> dict[str, Any]:
    """How many runs there are, how many of the expected ones are missing, and how many starts were duplicates."""
    return {"runs": runs.runs, "missing": expected - runs.succeeded, "duplicates": runs.duplicates}


def total_fields(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The counts of several results, added up."""
    return {name: sum(part[name] for part in parts) for name in ("runs", "missing", "duplicates")}


def created_fields(created: int, expected: int) -> dict[str, Any]:
    """How many jobs were created, and how many are missing or too many."""
    return {"jobs": created, "missing": max(expected - created, 0), "duplicates": max(created - expected, 0)}


def rate_fields(count: int, seconds: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 3), "rate_per_second": round(count / seconds) if seconds > 0 else None}


def lag_fields(runs: RunStatistics) -> dict[str, Any]:
    """How late runs started, counted from their due time."""
    if not runs.lags_ms:
        return {"lag_ms": None}
    return {"lag_ms": {name: round(value, 2) for name, value in zip(PERCENTILES, runs.lags_ms, strict=True)}}


def cpu_used(before: Mapping[str, float], after: Mapping[str, float], by: float, digits: int = 1) -> dict[str, float]:
    """CPU time that each kind of process used between two readings, divided by `by`."""
    return {name: round((seconds - before.get(name, 0.0)) / by, digits) for name, seconds in after.items()}


def seconds_between(from_at: datetime | None, to_at: datetime | None) -> float | None:
    return None if from_at is None or to_at is None else round((to_at - from_at).total_seconds(), 3)
