"""All checkers over one history."""

from collections.abc import Sequence

from faults.checkers.attempts import one_run_per_tick
from faults.checkers.deliveries import receivers_log
from faults.checkers.endings import every_tick_ends
from faults.checkers.fence import epochs_only_grow
from faults.checkers.history import Delivery, FencedWrite, JobHistory, PendingTimer
from faults.checkers.targets import every_target_hit
from faults.checkers.verdict import Verdict


def check_all(
    jobs: Sequence[JobHistory],
    *,
    now_us: int,
    start_bound_us: int,
    end_bound_us: int,
    allow_gaps: bool,
    allow_cancelled: bool = False,
    unique_keys: bool = True,
    timers: Sequence[PendingTimer] = (),
    deliveries: Sequence[Delivery] | None = None,
    writes: Sequence[FencedWrite] | None = None,
) -> tuple[Verdict, ...]:
    """C1 to C5 in order; C4 and C5 only where there is a receiver's log, or a list of writes."""
    verdicts = [
        every_target_hit(
            jobs, now_us=now_us, bound_us=start_bound_us, allow_gaps=allow_gaps, allow_cancelled=allow_cancelled
        ),
        one_run_per_tick(jobs),
        every_tick_ends(jobs, now_us=now_us, bound_us=end_bound_us, timers=timers),
    ]
    if deliveries is not None:
        verdicts.append(receivers_log(jobs, deliveries, unique_keys=unique_keys))
    if writes is not None:
        verdicts.append(epochs_only_grow(writes))
    return tuple(verdicts)
