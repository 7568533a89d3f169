"""C2: one run per (job, fire time), whose attempts follow one another; one outcome per attempt."""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from evertick.domain.ids import RunKey
from evertick.domain.states import Outcome
from faults.checkers.history import AttemptRecord, JobHistory, RunRecord
from faults.checkers.verdict import Verdict, run_text

_RETRIED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST})


def one_run_per_tick(jobs: Iterable[JobHistory]) -> Verdict:
    """Each (job, fire time) and each (lane, seq) stands once; attempts count 1, 2, … with growing `seq`.

    An attempt that ended in two outcomes shows as two rows with one (lane, seq).
    """
    faults: list[str] = []
    runs: set[RunKey] = set()
    places: set[tuple[int, int]] = set()
    for job in jobs:
        for run in job.runs:
            key = run.key
            if run.job_id != job.job_id:
                faults.append(f"{run_text(key)}: stands among the runs of job {job.job_id}")
            if key in runs:
                faults.append(f"{run_text(key)}: there are two")
            runs.add(key)
            for attempt in run.attempts:
                place = (attempt.lane_id, attempt.seq)
                if place in places:
                    faults.append(f"{run_text(key)}: lane {place[0]}, seq {place[1]} is taken twice")
                places.add(place)
            faults += (f"{run_text(key)}: {fault}" for fault in _chain_faults(run))
    return Verdict("C2 one run per tick", tuple(faults), {"runs": len(runs), "attempts": len(places)})


def _chain_faults(run: RunRecord) -> Iterator[str]:
    attempts = run.in_order
    if attempts and attempts[0].attempt != 1:
        yield f"begins with attempt {attempts[0].attempt}"
    for before, after in pairwise(attempts):
        if after.seq <= before.seq:
            yield f"attempt {after.attempt} has seq {after.seq}, not above {before.seq} of attempt {before.attempt}"
        if after.spec_version != before.spec_version:
            yield f"attempts of spec versions {before.spec_version} and {after.spec_version}"
        if fault := _step_fault(before, after):
            yield fault


def _step_fault(before: AttemptRecord, after: AttemptRecord) -> str | None:
    """Whether `after` may come next: with the same number after a deferral, with the next after a failure."""
    outcome = before.outcome
    number, following = before.attempt, after.attempt
    if outcome is not None and outcome.result is Outcome.DEFERRED:
        return None if following == number else f"attempt {number} was deferred, yet {following} follows"
    if following == number:
        return f"attempt {number} fired twice, and the first was not deferred"
    if following > number + 1:
        return f"attempt {following} follows {number}"
    if outcome is None:
        return f"attempt {following} follows {number}, which has no outcome"
    if outcome.is_final or outcome.result not in _RETRIED:
        return f"attempt {following} follows {number}, which ended the run as {outcome.result}"
    return None
