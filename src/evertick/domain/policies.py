"""The closed sets of choices that a job's author makes. Their values are the words of API, SQL and docs."""

from enum import StrEnum


class Word(StrEnum):
    """A choice by its word. Hashing it costs as much as a text's: the hash of an enum is written in Python."""

    __hash__ = str.__hash__


class DstGap(Word):
    """What becomes of a wall time that the clocks jump over."""

    CATCH_UP = "catch_up"  # runs once, at the first instant after the jump (Debian cron)
    SKIP = "skip"  # does not run; the ledger shows a gap `dst`
    SHIFT = "shift"  # keeps its distance from midnight: 02:30 runs at 03:30


class DstOverlap(Word):
    """Which of the two instants a repeated wall time means."""

    FIRST = "first"
    SECOND = "second"
    BOTH = "both"


class MissedWindow(Word):
    """What to do with ticks that are late beyond their grace."""

    SKIP = "SKIP"
    RUN_ONCE = "RUN_ONCE"
    RUN_ALL = "RUN_ALL"


class ConcurrentPolicy(Word):
    """What to do with a tick while an earlier run of the job is unfinished."""

    SKIP = "SKIP"
    ALLOW = "ALLOW"
    QUEUE = "QUEUE"
    REPLACE = "REPLACE"


class Backoff(Word):
    """How the delay before a retry grows with the attempts."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


class Priority(Word):
    """Which lanes are drawn first."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


DST_PRESETS: dict[str, tuple[DstGap, DstOverlap]] = {
    "evertick": (DstGap.CATCH_UP, DstOverlap.FIRST),
    "kubernetes": (DstGap.SKIP, DstOverlap.BOTH),
    "quartz": (DstGap.SKIP, DstOverlap.SECOND),
    "airflow": (DstGap.SHIFT, DstOverlap.SECOND),
    "eventbridge": (DstGap.SKIP, DstOverlap.FIRST),
}
"""The daylight-saving habits of schedulers that people come from, as (gap, overlap)."""


class Missed(StrEnum):
    """What a resume does with the ticks that its pause swallowed."""

    SKIP = "skip"  # they are a gap
    RUN_ONCE = "run_once"  # the newest runs, the others are a gap
    RUN_ALL = "run_all"  # the newest `max_missed` run, oldest first; older ones are a gap
