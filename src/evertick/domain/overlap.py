"""What a manual trigger does while runs of its job are open. Of ticks, the statement that fires decides."""

from enum import StrEnum
from typing import assert_never

from evertick.domain.policies import ConcurrentPolicy


class TriggerVerdict(StrEnum):
    """What becomes of a trigger."""

    START = "start"  # it runs beside what is open, if anything is
    QUEUE = "queue"  # it waits until there is room
    REPLACE = "replace"  # what is open is cancelled
    REFUSE = "refuse"  # there is no run


def judge_trigger(
    policy: ConcurrentPolicy, max_concurrent: int, *, open_runs: int, queued_runs: int, may_skip: bool
) -> TriggerVerdict:
    """By the policy of the job. `open_runs` includes runs that wait, `queued_runs` are those that wait for room.

    `may_skip`: the job has ticks, and no gate. Else no trigger is refused: of a job without ticks it asks for work of
    its own, and at a gate runs wait for each other.
    """
    excluded = TriggerVerdict.REFUSE if may_skip else TriggerVerdict.START
    match policy:
        case ConcurrentPolicy.SKIP:
            return excluded if open_runs else TriggerVerdict.START
        case ConcurrentPolicy.ALLOW:
            return TriggerVerdict.START if open_runs < max_concurrent else excluded
        case ConcurrentPolicy.QUEUE:
            if not open_runs:
                return TriggerVerdict.START
            return TriggerVerdict.REFUSE if queued_runs and may_skip else TriggerVerdict.QUEUE
        case ConcurrentPolicy.REPLACE:
            return TriggerVerdict.REPLACE if open_runs else TriggerVerdict.START
        case _:
            assert_never(policy)
