"""Good histories for the checkers' own tests: small worlds in which nothing went wrong, though much happened."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from hypothesis import strategies as st

from evertick.domain.states import GapReason, Outcome, RunReason
from faults.checkers.all_checks import check_all
from faults.checkers.history import (
    AttemptRecord,
    Delivery,
    FencedWrite,
    GapRecord,
    JobHistory,
    OutcomeRecord,
    PendingTimer,
    RunRecord,
)
from faults.checkers.verdict import Verdict

SECOND = 1_000_000
STEP = 60 * SECOND
RETRY_AFTER = 10 * SECOND
START_BOUND, END_BOUND = 50 * SECOND, 300 * SECOND
FIRST = 1_767_225_600 * SECOND  # 2026-01-01
NOW = FIRST + 86_400 * SECOND


class Life(NamedTuple):
    """How a run goes: attempts that do not end it, then the one that does; None is a withdrawal instead."""

    before: tuple[Outcome, ...] = ()
    end: Outcome | None = Outcome.SUCCESS
    reason: RunReason = RunReason.TICK


@dataclass(frozen=True)
class World:
    jobs: tuple[JobHistory, ...]
    deliveries: tuple[Delivery, ...]
    writes: tuple[FencedWrite, ...]
    timers: tuple[PendingTimer, ...] = ()

    def runs(self, wanted: Callable[[RunRecord], bool] = lambda _: True) -> list[RunRecord]:
        return [run for job in self.jobs for run in job.runs if wanted(run)]

    def verdicts(self, *, allow_gaps: bool = True, unique_keys: bool = True) -> tuple[Verdict, ...]:
        return check_all(
            self.jobs,
            now_us=NOW,
            start_bound_us=START_BOUND,
            end_bound_us=END_BOUND,
            allow_gaps=allow_gaps,
            allow_cancelled=True,
            unique_keys=unique_keys,
            timers=self.timers,
            deliveries=self.deliveries,
            writes=self.writes,
        )


def run_of(job_id: int, fire_us: int, life: Life) -> RunRecord:
    results = [*life.before, *([] if life.end is None else [life.end])]
    attempts, number = [], 1
    for index, result in enumerate(results):
        seq = fire_us + index * RETRY_AFTER
        is_end = life.end is not None and index == len(life.before)
        # Who was lost or cancelled may never have said when he started; here those say so who end a run.
        knows = result is not Outcome.DEFERRED and (is_end or result is not Outcome.LOST)
        started = seq + SECOND if knows else None
        outcome = OutcomeRecord(result, is_end, started, seq + 2 * SECOND, f"worker-{index}")
        attempts.append(AttemptRecord(job_id, seq, number, 1, seq, outcome))
        number += result is not Outcome.DEFERRED
    withdrawn_us = fire_us + STEP if life.end is None else None
    return RunRecord(job_id, fire_us, life.reason, tuple(attempts), withdrawn_us)


def job_of(job_id: int, fates: Sequence[Life | GapReason], manual: Sequence[int] = (), dst: int = 0) -> JobHistory:
    """A tick each STEP, with its fate; manual runs some seconds after the first; `dst` ticks lost there."""
    placed = [(FIRST + index * STEP, fate) for index, fate in enumerate(fates)]
    runs = [run_of(job_id, tick, fate) for tick, fate in placed if isinstance(fate, Life)]
    runs += [run_of(job_id, FIRST + offset * SECOND, Life(reason=RunReason.MANUAL)) for offset in manual]
    gaps = [GapRecord(FIRST, FIRST, dst, GapReason.DST)] if dst else []
    for fate, group in groupby(placed, key=lambda place: place[1]):
        if isinstance(fate, GapReason):
            ticks = [tick for tick, _ in group]
            gaps.append(GapRecord(ticks[0], ticks[-1], len(ticks), fate))
    return JobHistory(job_id, tuple(tick for tick, _ in placed), tuple(runs), tuple(gaps))


def log_of(jobs: Sequence[JobHistory], copies: int = 1) -> Iterator[Delivery]:
    """Each attempt that started came through, so many times."""
    for run in (run for job in jobs for run in job.runs):
        for attempt in run.attempts:
            if attempt.outcome is not None and attempt.outcome.started_us is not None:
                for copy in range(copies):
                    at_us = attempt.outcome.started_us + copy
                    key = f"{run.job_id}:{run.fire_us}"
                    yield Delivery(run.key, key, attempt.seq, attempt.attempt, at_us, attempt.outcome.worker)


SHOWCASE = job_of(
    1,
    [
        Life(),
        Life((Outcome.FAILED,)),
        Life((Outcome.DEFERRED,)),
        Life((Outcome.FAILED, Outcome.TIMED_OUT), Outcome.FAILED),
        GapReason.MISSED,
        GapReason.MISSED,
        GapReason.MISSED,
        Life((), Outcome.CANCELLED),
        Life((Outcome.FAILED,), None),
        GapReason.PAUSED,
        Life((), None),
        Life((Outcome.LOST,), reason=RunReason.LATE),
    ],
    manual=[5],
    dst=2,
)
"""A job to which everything happened, so that each corruption finds something to corrupt."""

_retried = st.sampled_from([Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST, Outcome.DEFERRED])
_ends = st.sampled_from([None, *(result for result in Outcome if result is not Outcome.DEFERRED)])
_reasons = st.sampled_from([RunReason.TICK, RunReason.LATE, RunReason.CATCH_UP])
_lives = st.builds(Life, st.lists(_retried, max_size=3).map(tuple), _ends, _reasons)
_gap_reasons = st.sampled_from([reason for reason in GapReason if reason is not GapReason.DST])


@st.composite
def worlds(draw: st.DrawFn) -> World:
    fates = st.lists(st.one_of(_lives, _lives, _gap_reasons), max_size=8)
    manual = st.lists(st.integers(1, 9), max_size=2, unique=True)
    others = [
        job_of(job_id, draw(fates), draw(manual), draw(st.integers(0, 2)))
        for job_id in range(2, 2 + draw(st.integers(0, 3)))
    ]
    jobs = tuple(draw(st.permutations([SHOWCASE, *others])))
    deliveries = draw(st.permutations(list(log_of(jobs, copies=draw(st.integers(1, 2))))))
    epochs = sorted(draw(st.lists(st.integers(1, 5), min_size=2, max_size=8)))
    writes = [FencedWrite(draw(st.integers(0, 1)), epoch, seq) for seq, epoch in enumerate(epochs)]
    return World(jobs, tuple(deliveries), tuple(draw(st.permutations(writes))))
