"""Owns the words for the states of runs, attempts and gaps, and how a run's status follows from its attempts.

`docs/states.md` is generated from them and from the transitions in `tests/state_model.py`, which the tests hold
`run_status` to.
"""

from enum import StrEnum
from typing import Self, TypeAlias, assert_never


class StateWord(StrEnum):
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


class ReplayStatus(StateWord):
    """What the API says about a replay of many dead letters."""

    RUNNING = "running", "user", "janitors make runs of its dead letters"
    DONE = "done", "janitor", "no dead letter that it wants is left; final"
    CANCELLED = "cancelled", "user", "ended on purpose: the rest are dead letters still; final"


class SmearStatus(StateWord):
    """What the API says about a smear: jitter that is given to many jobs."""

    RUNNING = "running", "user", "janitors give its jobs their jitter"
    DONE = "done", "janitor", "each of its jobs has the jitter, or was left alone"
    UNDOING = "undoing", "user", "janitors take the jitter back"
    UNDONE = "undone", "janitor", "the jitter is taken back, except from jobs that were edited since; final"


class SmearedState(StateWord):
    """What has become of a job of a smear."""

    WAITING = "waiting", "user", "has no jitter yet"
    CHANGED = "changed", "janitor", "has a new version with the jitter"
    SKIPPED = "skipped", "janitor", "was left alone: deleted, edited, or it must not have the jitter; final"
    UNDONE = "undone", "janitor", "has a new version without the jitter; final"
    KEPT = "kept", "janitor", "was edited or deleted since, so the jitter was not taken back; final"


class RunStatus(StateWord):
    """What the API says about a run."""

    PENDING = "pending", "scheduler", "waits for its time, for a place of its key, or for a worker"
    RUNNING = "running", "worker or dispatcher", "an attempt is leased"
    RETRYING = (
        "retrying",
        "whatever ends the attempt",
        "an attempt ended badly; the next one waits for its time",
    )
    SUCCESS = "success", "worker, dispatcher or consumer", "an attempt succeeded; final"
    DEAD = (
        "dead",
        "whatever ends the attempt",
        "no attempt follows; a dead letter until replayed or dismissed; final",
    )
    CANCELLED = "cancelled", "user, or scheduler", "ended on purpose; final"


class OpenAttempt(StateWord):
    """The states of an attempt that has no outcome yet."""

    READY = "ready", "scheduler", "is in its lane, at its gate, or was put back"
    LEASED = "leased", "worker or dispatcher", "is leased, or handed over to the consumers of a broker"


class Outcome(StateWord):
    """How an attempt ended. Exactly one is recorded: the first writer wins, later ones get `stale`."""

    SUCCESS = "success", "worker, dispatcher or consumer", "the handler returned, the target accepted"
    FAILED = (
        "failed",
        "worker, dispatcher or consumer",
        "the handler raised, the target refused or was not reached",
    )
    TIMED_OUT = (
        "timed_out",
        "worker, dispatcher or consumer; scheduler (reaper)",
        "the deadline passed; no consumer reported in time",
    )
    LOST = "lost", "scheduler (reaper)", "the lease expired without an outcome"
    CANCELLED = "cancelled", "user, or scheduler", "the user cancelled it, or policy REPLACE did"
    DEFERRED = "deferred", "worker or dispatcher", "ended before its time: the same attempt number comes again"


AttemptStatus: TypeAlias = OpenAttempt | Outcome


class RunReason(StateWord):
    """Why a run exists."""

    TICK = "tick", "scheduler", "its fire time came"
    LATE = "late", "scheduler", "its fire time came, and it fired late but within grace"
    CATCH_UP = "catch_up", "scheduler", "its tick was missed, and `missed_window` or a resume asked for it"
    MANUAL = "manual", "user", "triggered by hand, at a fire time of its own"
    REPLAY = "replay", "user", "repeats a finished run, at a fire time of its own"


class GapReason(StateWord):
    """Why ticks did not run."""

    MISSED = "missed", "scheduler", "late beyond grace"
    PAUSED = "paused", "scheduler", "the job was paused"
    OVERLAP = "overlap", "scheduler", "an earlier run was unfinished"
    DST = "dst", "scheduler", "the clocks jumped over them, and no policy made up for it"


class GapStatus(StateWord):
    """The status that a gap has in the API's list of runs."""

    SKIPPED = "skipped", "scheduler", "left out on purpose"
    MISSED = "missed", "scheduler", "not fired in time"


def gap_status(reason: GapReason) -> GapStatus:
    return GapStatus.MISSED if reason is GapReason.MISSED else GapStatus.SKIPPED


FINAL_RUNS = frozenset({RunStatus.SUCCESS, RunStatus.DEAD, RunStatus.CANCELLED})


def run_status(latest: AttemptStatus | None, *, timer_pending: bool, withdrawn: bool = False) -> RunStatus:
    """Derive a run's status from its latest attempt (None before the first) and its timer.

    `withdrawn`: the run was cancelled while a retry waited. No open attempt could take that outcome, and a
    recorded one never changes, so the statement that removes the timer keeps the mark.
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


class WorkerRole(StrEnum):
    """Who takes attempts from queues."""

    WORKER = "worker"  # calls handlers, with its own connection to the database
    REMOTE_WORKER = "remote_worker"  # calls handlers, and pulls over HTTP
    DISPATCHER = "dispatcher"  # delivers to targets


class JobStatus(StrEnum):
    """Whether a job fires. A deleted one is not there."""

    ACTIVE = "active"  # it fires, or waits for triggers
    PAUSED = "paused"  # by a person, or because its rule or target cannot be used
    FINISHED = "finished"  # its last tick has passed
