"""Owns the life of a run and of an attempt: their states, the events that move them, and who causes each.

SQL, API and dashboard follow these tables. `docs/states.md` is generated from them by `states_page`.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Self, TypeAlias, assert_never


class _Word(StrEnum):
    """A closed set whose members carry who sets them and what they mean, for code and page alike."""

    set_by: str
    meaning: str

    # The defaults let type checkers accept the lookup `RunStatus("dead")`; every member states all three.
    def __new__(cls, word: str, set_by: str = "", meaning: str = "") -> Self:
        member = str.__new__(cls, word)
        member._value_ = word
        member.set_by = set_by
        member.meaning = meaning
        return member


class RunStatus(_Word):
    """What the API says about a run."""

    PENDING = "pending", "scheduler", "waits for its time or for a worker"
    RUNNING = "running", "worker or dispatcher", "an attempt is leased"
    RETRYING = (
        "retrying",
        "whoever ended the attempt",
        "an attempt ended badly; the next one waits for its time",
    )
    SUCCESS = "success", "worker or dispatcher", "an attempt succeeded; final"
    DEAD = "dead", "whoever ended the attempt", "no attempt will follow; a dead letter until settled; final"
    CANCELLED = "cancelled", "user, or scheduler", "ended on purpose; final"


class OpenAttempt(_Word):
    """The states of an attempt that has no outcome yet."""

    READY = "ready", "scheduler", "stands in its lane, or was put back"
    LEASED = "leased", "worker or dispatcher", "lies in a range that someone holds"


class Outcome(_Word):
    """How an attempt ended. One is ever recorded: the first writer wins, the others are told `stale`."""

    SUCCESS = "success", "worker or dispatcher", "the handler returned, the target accepted"
    FAILED = "failed", "worker or dispatcher", "the handler raised, the target refused or was not reached"
    TIMED_OUT = "timed_out", "worker or dispatcher", "the deadline passed"
    LOST = "lost", "scheduler (reaper)", "the lease expired without an outcome"
    CANCELLED = "cancelled", "user, or scheduler", "the user cancelled it, or policy REPLACE did"
    DEFERRED = "deferred", "worker or dispatcher", "given up before its end: the same attempt number comes again"


AttemptStatus: TypeAlias = OpenAttempt | Outcome


class RunReason(_Word):
    """Why a run exists."""

    TICK = "tick", "scheduler", "its fire time came"
    LATE = "late", "scheduler", "its fire time came, and it fired late but within grace"
    CATCH_UP = "catch_up", "scheduler", "its tick was missed, and `missed_window` or a resume asked for it"
    MANUAL = "manual", "user", "triggered by hand, at a fire time of its own"
    REPLAY = "replay", "user", "repeats a finished run, at a fire time of its own"


class GapReason(_Word):
    """Why ticks did not run."""

    MISSED = "missed", "scheduler", "late beyond grace"
    PAUSED = "paused", "scheduler", "the job was paused"
    OVERLAP = "overlap", "scheduler", "an earlier run was unfinished"
    CALENDAR = "calendar", "scheduler", "a calendar excludes them"
    DST = "dst", "scheduler", "the clocks jumped over them, and no policy made up for it"


class GapStatus(_Word):
    """The word under which a gap stands in the API's list of runs."""

    SKIPPED = "skipped", "scheduler", "left out on purpose"
    MISSED = "missed", "scheduler", "nobody fired them in time"


def gap_status(reason: GapReason) -> GapStatus:
    return GapStatus.MISSED if reason is GapReason.MISSED else GapStatus.SKIPPED


class Event(_Word):
    """What moves a run or an attempt."""

    FIRE = "fire", "scheduler", "a timer is due (tick, retry, deferral, trigger): an attempt is appended"
    QUEUE = "queue", "scheduler", "policy QUEUE lets a tick wait for the run before it"
    TRIGGER = "trigger", "user", "a manual run is asked for"
    REPLAY = "replay", "user", "a new run repeats a finished one, which stays as it is"
    LEASE = "lease", "worker or dispatcher", "takes the range that the attempt lies in"
    SUCCEED = "succeed", "worker or dispatcher", "records `success`"
    FAIL = "fail", "worker or dispatcher", "records `failed`"
    TIME_OUT = "time_out", "worker or dispatcher", "records `timed_out`"
    PUT_BACK = (
        "put_back",
        "worker, dispatcher, or reaper",
        "it was not started (no handler here, no place for its target, a stop): the attempt can be leased again",
    )
    HAND_BACK = "hand_back", "worker or dispatcher", "records `deferred`: it is stopping, and what runs must end"
    REAP = "reap", "scheduler (reaper)", "records `lost`: the lease expired"
    CANCEL = (
        "cancel",
        "user, or scheduler",
        "by request, by REPLACE, or because the job was deleted before its time came",
    )
    RETRY = "retry", "whoever ended the attempt", "sets a retry timer in the statement that records"
    GIVE_UP = "give_up", "whoever ended the attempt", "writes a dead letter in the statement that records"


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

FINAL_RUNS = frozenset({RunStatus.SUCCESS, RunStatus.DEAD, RunStatus.CANCELLED})


def run_status(latest: AttemptStatus | None, *, timer_pending: bool, withdrawn: bool = False) -> RunStatus:
    """Derive a run's status from its latest attempt (None before the first) and its timer.

    `withdrawn`: the run was cancelled while a retry waited. No open attempt could take that outcome, and a
    recorded one never changes, so whoever removes the timer keeps the mark.
    """
    match latest:
        case OpenAttempt():
            return RunStatus.RUNNING if latest is OpenAttempt.LEASED else RunStatus.PENDING
        case Outcome.SUCCESS:
            return RunStatus.SUCCESS
        case Outcome.CANCELLED:
            return RunStatus.CANCELLED
        case None | Outcome.DEFERRED:
            # Nothing is burned; without a timer nothing will come either: it was cancelled while it waited.
            return RunStatus.PENDING if timer_pending else RunStatus.CANCELLED
        case Outcome.FAILED | Outcome.TIMED_OUT | Outcome.LOST:
            without_timer = RunStatus.CANCELLED if withdrawn else RunStatus.DEAD
            return RunStatus.RETRYING if timer_pending else without_timer
        case _:
            assert_never(latest)
