"""Runs as lines of a table."""

from evertick.contract.runs import Gap, RunOrGap
from evertick.domain.schedule.describe.english import counted

RUN_COLUMNS = ("scheduled (UTC)", "run", "status", "reason", "attempt", "took", "error")


def run_row(entry: RunOrGap) -> tuple[object, ...]:
    """A run, or a gap in its place."""
    if isinstance(entry, Gap):
        return entry.scheduled_at, counted(entry.count, "tick"), entry.status, entry.reason, None, None, None
    took = duration(entry.duration_ms)
    return entry.scheduled_at, entry.run_id, entry.status, entry.reason, entry.attempt, took, entry.error


def duration(milliseconds: float | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds:,.0f} ms"
