"""From the verdict of a delivery that was begun to the ending of its attempt, and what follows by the job's policy."""

from datetime import datetime
from typing import assert_never

from evertick.domain.retry import Ended
from evertick.domain.states import Outcome
from evertick.runtime.retry_decision import next_step
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending
from evertick.targets.http.verdict import Delivered, Failed


def ending_of(
    leased: Leased, verdict: Delivered | Failed, started_at: datetime | None, finished_at: datetime
) -> Ending:
    match verdict:
        case Delivered(code, excerpt):
            ended, error = Ended(Outcome.SUCCESS, leased.attempt), None
        case Failed(error, outcome, code, excerpt, retryable, wait):
            ended = Ended(outcome, leased.attempt, retryable, wait)
        case _:
            assert_never(verdict)
    return Ending(
        leased.lane_id,
        leased.seq,
        leased.job_id,
        leased.fire_at,
        leased.spec_version,
        leased.reason,
        ended.outcome.value,
        started_at,
        finished_at,
        code,
        error,
        excerpt,
        next_step(leased.retry, leased.job_id, leased.fire_at, ended),
        leased.is_listed,
    )
