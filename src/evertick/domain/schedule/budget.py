"""How much work one question about a schedule may take: steps are counted, not time, so every machine agrees.

1. A question (next, previous, count, lost, the shortest interval) has SEARCH_STEPS. The questions that are part of
   another one share its budget.
2. A schedule is accepted if its questions take no more than ACCEPTED_STEPS now and in fifty years. In between some
   may take more: fifty years without a match take up to 14,000, and twice that where dates are removed.
3. The plan of one due timer asks several questions, and has PLAN_STEPS for all of them.
4. A list of fire times has LIST_STEPS, and ROW_STEPS more for each that it found.
5. What a search passes over costs steps, what it finds at once costs none. On a slow core a step takes about a
   microsecond.
6. What is kept from earlier questions costs as much as what is computed, so the answer depends on the question alone.
"""

import functools
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import ParamSpec, TypeVar

from evertick.domain.errors import ScheduleTooCostly

ACCEPTED_STEPS = 5_000
LIST_STEPS = 10_000
SEARCH_STEPS = 40_000
PLAN_STEPS = 2 * SEARCH_STEPS
ROW_STEPS = 40
_UNBOUNDED = 10**18

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Work:
    """The steps of one question. `paid` is what it paid already for work that grows and is kept."""

    __slots__ = ("allowed", "paid", "spent", "within")

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.spent = 0
        self.paid: dict[object, int] = {}
        self.within = ""


class Meter:
    """The steps of several questions together."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = 0


# The meter that adds up the steps of all questions, if there is one.
_meter: ContextVar[Meter | None] = ContextVar("schedule_meter", default=None)

# The question at hand. Each thread has its own, and no question outlasts the call that asks it.
_current: ContextVar[Work | None] = ContextVar("schedule_work", default=None)


def spend(steps: int, passing: str) -> None:
    """Count steps that the question at hand takes; `passing` says over what, for the message."""
    work = _current.get()
    if work is None:
        return
    work.spent += steps
    if work.spent > work.allowed:
        reason = f"takes too long to compute: more than {work.allowed} steps, at last over {work.within or passing}"
        raise ScheduleTooCostly("schedule", reason)


def spend_up_to(steps: int, whole: object, passing: str) -> None:
    """Count the steps of work that grows and is kept: a question pays once for what it needs of the `whole`."""
    work = _current.get()
    if work is not None and (due := steps - work.paid.get(whole, 0)) > 0:
        work.paid[whole] = steps
        spend(due, passing)


@contextmanager
def kept_work(passing: str) -> Iterator[Callable[[], int]]:
    """Work whose result is kept: tells its steps, which do not depend on what the question at hand has paid before."""
    with at_most(_UNBOUNDED) as work:
        begun, paid, within = work.spent, work.paid, work.within
        work.paid, work.within = {}, passing
        try:
            yield lambda: work.spent - begun
        finally:
            work.paid, work.within = paid, within


def note_paid(steps: int, whole: object) -> None:
    """The question at hand did the work on the `whole` itself, up to here."""
    work = _current.get()
    if work is not None:
        work.paid[whole] = steps


def grant_row() -> None:
    """Allow for one more fire time in a list."""
    work = _current.get()
    if work is not None:
        work.allowed += ROW_STEPS


class at_most:  # noqa: N801 - used as a function; a generator would take several times as long, for each plan
    """Bound the work inside; within another question the outer one's bound holds."""

    __slots__ = ("_token", "_work")

    def __init__(self, steps: int) -> None:
        self._work = Work(steps)
        self._token: Token[Work | None] | None = None

    def __enter__(self) -> Work:
        outer = _current.get()
        if outer is not None:
            return outer
        self._token = _current.set(self._work)
        return self._work

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _end(self._work, self._token)


def bounded_by(steps: int) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Make a function one question of so many steps."""

    def bound(question: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(question)
        def answer(*given: _P.args, **named: _P.kwargs) -> _R:
            if _current.get() is not None:
                return question(*given, **named)
            work = Work(steps)
            token = _current.set(work)
            try:
                return question(*given, **named)
            finally:
                _end(work, token)

        return answer

    return bound


def bounded(question: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function one question of SEARCH_STEPS."""
    return bounded_by(SEARCH_STEPS)(question)


@contextmanager
def metered() -> Iterator[Meter]:
    """Count the steps of all questions that are asked inside, each of which has a budget of its own."""
    meter = Meter()
    token = _meter.set(meter)
    try:
        yield meter
    finally:
        _meter.reset(token)


def finished(steps: Generator[None, None, _R]) -> _R:
    """Run work in steps to its end. Its question stays open between the steps: ask others in another context."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _R = end.value
            return result


def _end(work: Work, token: Token[Work | None]) -> None:
    _current.reset(token)
    meter = _meter.get()
    if meter is not None:
        meter.steps += work.spent
