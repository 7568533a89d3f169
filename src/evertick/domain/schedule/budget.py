"""How much work one question about a schedule may take: steps are counted, not time, so every machine agrees.

1. A question (next, previous, count, lost, the shortest interval, the making of a schedule) has SEARCH_STEPS. The
   questions that are part of another one share its budget.
2. A list of fire times has ROW_STEPS more for each that it found.
3. What a search passes over costs steps, what it finds at once costs none. A step is about half a microsecond.
4. What is kept from earlier questions costs as much as what is computed, so the answer depends on the question alone.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from evertick.domain.errors import ScheduleTooCostly

SEARCH_STEPS = 10_000
ROW_STEPS = 40

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Work(threading.local):
    """The steps of the question that this thread works on."""

    def __init__(self) -> None:
        self.is_open = False
        self.allowed = 0
        self.spent = 0
        self.paid: dict[object, int] = {}
        self.within = ""


_work = Work()


def spend(steps: int, passing: str) -> None:
    """Count steps that the question at hand takes; `passing` says over what, for the message."""
    _work.spent += steps
    if _work.spent > _work.allowed and _work.is_open:
        reason = f"takes too long to compute: more than {_work.allowed} steps, at last over {_work.within or passing}"
        raise ScheduleTooCostly("schedule", reason)


def spend_up_to(steps: int, whole: object, passing: str) -> None:
    """Count the steps of work that grows and is kept: a question pays once for what it needs of the `whole`."""
    if _work.is_open:
        due = steps - _work.paid.get(whole, 0)
        if due > 0:
            _work.paid[whole] = steps
            spend(due, passing)


@contextmanager
def kept_work(passing: str) -> Iterator[Callable[[], int]]:
    """Work whose result is kept: tells its steps, which do not depend on what the question at hand has paid before."""
    begun, paid, within = _work.spent, _work.paid, _work.within
    _work.paid, _work.within = {}, passing
    try:
        yield lambda: _work.spent - begun
    finally:
        _work.paid, _work.within = paid, within


def note_paid(steps: int, whole: object) -> None:
    """The question at hand did the work on the `whole` itself, up to here."""
    if _work.is_open:
        _work.paid[whole] = steps


def grant_row() -> None:
    """Allow for one more fire time in a list."""
    _work.allowed += ROW_STEPS


@contextmanager
def at_most(steps: int) -> Iterator[Work]:
    """Bound the work inside; within another question the outer one's bound holds."""
    if _work.is_open:
        yield _work
        return
    _work.is_open, _work.allowed, _work.spent, _work.paid = True, steps, 0, {}
    try:
        yield _work
    finally:
        _work.is_open = False


def bounded(question: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function one question."""

    @functools.wraps(question)
    def answer(*given: _P.args, **named: _P.kwargs) -> _R:
        if _work.is_open:
            return question(*given, **named)
        _work.is_open, _work.allowed, _work.spent = True, SEARCH_STEPS, 0
        if _work.paid:
            _work.paid = {}
        try:
            return question(*given, **named)
        finally:
            _work.is_open = False

    return answer
