"""The transitions of runs and attempts: what may become of each, by which event, and what causes it.

Production derives a run's status from its rows (`domain.states.run_status`). This model is what the tests hold that
to, and the source of the diagrams in `docs/states.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from evertick.domain.states import AttemptStatus, OpenAttempt, Outcome, RunStatus, StateWord


class Event(StateWord):
    """What moves a run or an attempt."""

    FIRE = "fire", "scheduler", "a timer is due (tick, retry, deferral, trigger): an attempt is appended"
    QUEUE = "queue", "scheduler", "policy QUEUE lets a tick wait for the run before it"
    TRIGGER = "trigger", "user", "a manual run is asked for"
    REPLAY = "replay", "user", "a new run repeats a finished one, which stays as it is"
    LEASE = "lease", "worker or dispatcher", "takes the range that the attempt lies in"
    SUCCEED = "succeed", "worker, dispatcher or consumer", "records `success`"
    FAIL = "fail", "worker, dispatcher or consumer", "records `failed`"
    TIME_OUT = "time_out", "worker, dispatcher or consumer; scheduler (reaper)", "records `timed_out`"
    PUT_BACK = (
        "put_back",
        "worker, dispatcher, or reaper",
        "it was not started (no handler here, no slot for its target, a failing host, a stop): it can be leased again",
    )
    HAND_BACK = (
        "hand_back",
        "worker or dispatcher",
        "records `deferred`: it is stopping, and what runs must end, or the probe of a failing host failed",
    )
    REAP = "reap", "scheduler (reaper)", "records `lost`: the lease expired"
    CANCEL = (
        "cancel",
        "user, or scheduler",
        "by request, by REPLACE, or because the job was deleted before its time came",
    )
    RETRY = "retry", "whatever ends the attempt", "sets a retry timer in the statement that records"
    GIVE_UP = "give_up", "whatever ends the attempt", "writes a dead letter in the statement that records"


_ATTEMPTS: dict[tuple[OpenAttempt | None, Event], AttemptStatus] = {
    (None, Event.FIRE): OpenAttempt.READY,
    (OpenAttempt.READY, Event.LEASE): OpenAttempt.LEASED,
    (OpenAttempt.READY, Event.CANCEL): Outcome.CANCELLED,
    (OpenAttempt.LEASED, Event.SUCCEED): Outcome.SUCCESS,
    (OpenAttempt.LEASED, Event.FAIL): Outcome.FAILED,
    (OpenAttempt.LEASED, Event.TIME_OUT): Outcome.TIMED_OUT,
    (OpenAttempt.LEASED, Event.REAP): Outcome.LOST,
    (OpenAttempt.LEASED, Event.CANCEL): Outcome.CANCELLED,
    (OpenAttempt.LEASED, Event.PUT_BACK): OpenAttempt.READY,
    (OpenAttempt.LEASED, Event.HAND_BACK): Outcome.DEFERRED,
}
ATTEMPT_TRANSITIONS: Mapping[tuple[OpenAttempt | None, Event], AttemptStatus] = MappingProxyType(_ATTEMPTS)
"""The life of an attempt; None is "not there yet"."""

_RUNS: dict[tuple[RunStatus | None, Event], RunStatus] = {
    (None, Event.FIRE): RunStatus.PENDING,
    (None, Event.QUEUE): RunStatus.PENDING,
    (None, Event.TRIGGER): RunStatus.PENDING,
    (None, Event.REPLAY): RunStatus.PENDING,
    (RunStatus.PENDING, Event.FIRE): RunStatus.PENDING,
    (RunStatus.PENDING, Event.LEASE): RunStatus.RUNNING,
    (RunStatus.PENDING, Event.CANCEL): RunStatus.CANCELLED,
    (RunStatus.RUNNING, Event.SUCCEED): RunStatus.SUCCESS,
    (RunStatus.RUNNING, Event.RETRY): RunStatus.RETRYING,
    (RunStatus.RUNNING, Event.GIVE_UP): RunStatus.DEAD,
    (RunStatus.RUNNING, Event.CANCEL): RunStatus.CANCELLED,
    (RunStatus.RUNNING, Event.PUT_BACK): RunStatus.PENDING,
    (RunStatus.RUNNING, Event.HAND_BACK): RunStatus.PENDING,
    (RunStatus.RETRYING, Event.FIRE): RunStatus.PENDING,
    (RunStatus.RETRYING, Event.CANCEL): RunStatus.CANCELLED,
}
RUN_TRANSITIONS: Mapping[tuple[RunStatus | None, Event], RunStatus] = MappingProxyType(_RUNS)
"""The life of a run; None is "not there yet"."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The event has no effect in this state: it came too late, or never could."""

    status: RunStatus | AttemptStatus | None
    event: Event


def advance_attempt(status: AttemptStatus | None, event: Event) -> AttemptStatus | Refused:
    # An outcome is final: no event moves it.
    if isinstance(status, Outcome):
        return Refused(status, event)
    return ATTEMPT_TRANSITIONS.get((status, event), Refused(status, event))


def advance_run(status: RunStatus | None, event: Event) -> RunStatus | Refused:
    return RUN_TRANSITIONS.get((status, event), Refused(status, event))
