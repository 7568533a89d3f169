"""Steps through the tables of states: what an event makes of a run or an attempt."""

from dataclasses import dataclass

from evertick.domain.states import ATTEMPT_TRANSITIONS, RUN_TRANSITIONS, AttemptStatus, Event, Outcome, RunStatus


@dataclass(frozen=True, slots=True)
class Refused:
    """The event has no effect in this state: it came too late, or never could."""

    status: RunStatus | AttemptStatus | None
    event: Event


def advance_attempt(status: AttemptStatus | None, event: Event) -> AttemptStatus | Refused:
    # An outcome is looked up by no key: it is final, whoever comes second.
    if isinstance(status, Outcome):
        return Refused(status, event)
    return ATTEMPT_TRANSITIONS.get((status, event), Refused(status, event))


def advance_run(status: RunStatus | None, event: Event) -> RunStatus | Refused:
    return RUN_TRANSITIONS.get((status, event), Refused(status, event))
