"""What jobs fired lately. Called by the scheduler's fuse."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection


class RecentRuns(NamedTuple):
    """How many runs one fire time of a job has, under the job's version and rule as they are."""

    job_id: int
    tenant_id: int
    spec_version: int
    rule_id: int
    fire_at: datetime
    runs: int


_RECENT_RUNS = statements.load("fuse")["recent_runs"].rows(RecentRuns)


async def recent_runs(
    connection: Connection, job_ids: Iterable[int], from_seq: int, most_per_lane: int
) -> list[RecentRuns]:
    """What some jobs fired from a seq on, in the newest attempts of their lanes."""
    return await _RECENT_RUNS.all(connection, job_ids=list(job_ids), from_seq=from_seq, most=most_per_lane)
