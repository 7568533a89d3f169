"""A corruption: one way in which a good world goes bad, with the checks that must say so and no others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from evertick.domain.states import Outcome, RunStatus
from faults.checkers.history import RunRecord
from faults.checkers.selftest.worlds import World

T = TypeVar("T")


class Pick(Protocol):
    def __call__(self, options: Sequence[T], /) -> T: ...


Spoil = Callable[[World, Pick], World]


@dataclass(frozen=True)
class Corruption:
    name: str
    spoil: Spoil
    breaks: frozenset[str]


def breaks(*checks: str) -> Callable[[Spoil], Corruption]:
    def mark(spoil: Spoil) -> Corruption:
        return Corruption(spoil.__name__, spoil, frozenset(checks))

    return mark


def succeeded(run: RunRecord) -> bool:
    return run.is_scheduled and run.status is RunStatus.SUCCESS


def ends_as(run: RunRecord, *results: Outcome) -> bool:
    return [attempt.outcome.result for attempt in run.attempts if attempt.outcome is not None] == list(results)


def retried_once(run: RunRecord) -> bool:
    return ends_as(run, Outcome.FAILED, Outcome.SUCCESS)


def deferred_once(run: RunRecord) -> bool:
    return ends_as(run, Outcome.DEFERRED, Outcome.SUCCESS)
