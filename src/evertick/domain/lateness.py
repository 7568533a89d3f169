"""Why a run started when it did, in words: which part of the way from its time to its start took longest."""

from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.states import RunReason

ON_TIME = timedelta(seconds=1)
"""A run that started within this time is not late for people."""


class Way(NamedTuple):
    """The instants of one attempt, as far as it has come. `leased_at`: None also if it is not known. `waiting`: why no
    worker has it.
    """

    scheduled_at: datetime
    due_at: datetime
    fired_at: datetime
    started_at: datetime | None
    reason: RunReason
    attempt: int
    waiting: str | None = None
    leased_at: datetime | None = None


def explain(way: Way, now_at: datetime) -> str:
    """A sentence about how late the attempt is, and why."""
    ends_at = way.started_at or now_at
    if ends_at - way.scheduled_at < ON_TIME:
        return "It started on time." if way.started_at else "It is on time so far."
    legs = (
        (way.due_at - way.scheduled_at, _before_due(way)),
        (way.fired_at - way.due_at, _before_fired(way)),
        ((way.leased_at or ends_at) - way.fired_at, _before_leased(way)),
        (ends_at - (way.leased_at or ends_at), "its worker had it, and was busy with others"),
    )
    longest, why = max(legs)
    begun = "It started" if way.started_at else "It has not started"
    return f"{begun} {_span(ends_at - way.scheduled_at)} after its time: {_span(longest)} of that {why}."


def _before_due(way: Way) -> str:
    if way.attempt > 1:
        return "are earlier attempts and the wait before this one"
    if way.reason in {RunReason.MANUAL, RunReason.REPLAY}:
        return "it waited for its turn"
    return "is the job's jitter"


def _before_fired(way: Way) -> str:
    match way.reason:
        case RunReason.CATCH_UP:
            return "no scheduler fired it: it was missed, and caught up later"
        case RunReason.LATE:
            return "no scheduler fired it, or its queue was full"
        case _:
            return "it waited to be fired, because much was due or its queue was full"


def _before_leased(way: Way) -> str:
    return f"it waited for a worker ({way.waiting})" if way.waiting else "it waited for a worker to take it"


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
