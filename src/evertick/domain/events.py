"""The types of events in a stream, when a reader has missed some, and when a sink that fails is tried again."""

from evertick.domain.states import StateWord

FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 300.0


class EventType(StateWord):
    """What an event tells. The triggers of the ledger know the same words, but for the last."""

    RUN_FINISHED = "run.finished", "whatever ends the run", "a run succeeded, died or was cancelled"
    GAP_RECORDED = (
        "gap.recorded",
        "scheduler, or user",
        "ticks did not run; a later one of the same job, `scheduled_at` and `reason` replaces it",
    )
    GAP_REMOVED = "gap.removed", "user, or janitor", "ticks of a gap ahead will not come, or will run after all"
    JOB_CREATED = "job.created", "user", "a job is there"
    JOB_EDITED = "job.edited", "user", "a job has a new version"
    JOB_PAUSED = "job.paused", "user, scheduler or dispatcher", "no tick of the job fires until it is resumed"
    JOB_RESUMED = "job.resumed", "user", "the ticks of the job fire again"
    JOB_FINISHED = "job.finished", "scheduler, or user", "the last tick of the job has passed"
    JOB_REOPENED = "job.reopened", "user, or janitor", "a finished job has ticks to come again"
    JOB_DELETED = "job.deleted", "user, or janitor", "a job is gone; its history stays"
    AUDIT_RECORDED = "audit.recorded", "user, or a role", "an entry of the audit log: who changed what"
    EVENTS_LOST = "events.lost", "reader", "the reader came too late: events between two positions are gone"


STORED = tuple(kind for kind in EventType if kind is not EventType.EVENTS_LOST)
PUBLIC = tuple(kind for kind in STORED if kind is not EventType.AUDIT_RECORDED)
"""What everybody may read. The audit log is for admins."""


def has_lost(after: int | None, kept_after: int) -> bool:
    """Whether there may have been events after a reader's position that are not kept any more. None: it is new."""
    return after is not None and after < kept_after


def wait_seconds(failures: int) -> float:
    """How long a sink is left alone after so many failures in a row."""
    return float(min(FIRST_WAIT_SECONDS * 2 ** min(failures - 1, 20), LONGEST_WAIT_SECONDS))
