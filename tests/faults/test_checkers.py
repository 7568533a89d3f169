"""The checkers can pass, and each can fail: a good world has no faults, and each way of spoiling it is told."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeVar

import pytest
from hypothesis import given, settings, strategies as st

from bounded_work import calls_at_most
from evertick.domain.states import GapReason, Outcome, RunReason
from faults.checkers import (
    AttemptRecord,
    Delivery,
    FencedWrite,
    JobHistory,
    OutcomeRecord,
    PendingTimer,
    RunRecord,
    Verdict,
    epochs_only_grow,
    every_target_hit,
    every_tick_ends,
    lost_before_started_again,
)
from faults.checkers.selftest import spoiled_attempts, spoiled_gaps, spoiled_log, spoiled_runs
from faults.checkers.selftest.corruption import Corruption
from faults.checkers.selftest.worlds import (
    END_BOUND,
    FIRST,
    NOW,
    SECOND,
    SHOWCASE,
    START_BOUND,
    STEP,
    Life,
    World,
    job_of,
    log_of,
    run_of,
    worlds,
)

T = TypeVar("T")
CORRUPTIONS = [
    value
    for module in (spoiled_runs, spoiled_attempts, spoiled_gaps, spoiled_log)
    for value in vars(module).values()
    if isinstance(value, Corruption)
]
UNSTARTED = JobHistory(1, (FIRST,), (), ())


def failing(verdicts: Sequence[Verdict]) -> set[str]:
    return {verdict.name[:2] for verdict in verdicts if not verdict.ok}


def hit(job: JobHistory, *, now_us: int = NOW, allow_gaps: bool = False, allow_cancelled: bool = False) -> Verdict:
    return every_target_hit(
        [job], now_us=now_us, bound_us=START_BOUND, allow_gaps=allow_gaps, allow_cancelled=allow_cancelled
    )


@given(worlds())
def test_a_good_world_passes_every_check(world: World) -> None:
    verdicts = world.verdicts()
    assert failing(verdicts) == set(), "\n".join(map(str, verdicts))
    assert [verdict.name[:2] for verdict in verdicts] == ["C1", "C2", "C3", "C4", "C5"]


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=attrgetter("name"))
@settings(max_examples=25)
@given(world=worlds(), data=st.data())
def test_a_corruption_flips_the_checks_it_concerns(corruption: Corruption, world: World, data: st.DataObject) -> None:
    def pick(options: Sequence[T], /) -> T:
        return data.draw(st.sampled_from(options))

    verdicts = corruption.spoil(world, pick).verdicts()
    assert failing(verdicts) == corruption.breaks, "\n".join(map(str, verdicts))


@given(worlds())
def test_runs_may_share_keys_where_the_template_says_so(world: World) -> None:
    spoiled = spoiled_log.two_runs_share_an_idempotency_key.spoil(world, lambda options, /: options[0])
    assert failing(spoiled.verdicts(unique_keys=False)) == set()


def _starts(job: JobHistory) -> list[Delivery]:
    """A start of each attempt."""
    attempts = [(run.key, attempt) for run in job.runs for attempt in run.attempts]
    return [Delivery(key, "key", attempt.seq, attempt.attempt, attempt.seq, "worker") for key, attempt in attempts]


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (Outcome.LOST, ""),
        (Outcome.DEFERRED, "started again after attempt 1, which is deferred"),
        (Outcome.FAILED, "started again after attempt 1, which is failed"),
    ],
)
def test_a_run_is_started_again_only_after_its_attempt_was_lost(before: Outcome, told: str) -> None:
    job = job_of(1, [Life(), Life((before,))])
    verdict = lost_before_started_again([job], _starts(job))
    assert "".join(verdict.faults).endswith(told)
    assert (verdict.ok, verdict.figures) == (not told, {"started_again": 1})


def test_an_attempt_that_is_started_twice_is_a_fault() -> None:
    job = job_of(1, [Life()])
    assert lost_before_started_again([job], _starts(job)).ok
    assert "attempt 1 was started twice" in lost_before_started_again([job], _starts(job) * 2).faults[0]


def test_gaps_excuse_targets_only_where_the_test_allows_them() -> None:
    job = job_of(1, [Life(), GapReason.MISSED])
    assert hit(job, allow_gaps=True).figures == {"targets": 2, "hit": 1, "excused": 1, "past_own_bound": 0}
    assert len(hit(job).faults) == 1


def test_a_dst_gap_excuses_no_tick_at_the_jump() -> None:
    swallowed = job_of(1, [Life()], dst=1)
    without_run = replace(swallowed, runs=())
    assert hit(swallowed, allow_gaps=True).ok
    assert not hit(without_run, allow_gaps=True).ok
    assert not every_tick_ends([without_run], now_us=NOW, bound_us=END_BOUND).ok


def test_a_run_cancelled_before_its_start_hits_only_where_the_test_allows_it() -> None:
    job = job_of(1, [Life((), None)])
    assert hit(job, allow_cancelled=True).ok
    assert not hit(job).ok


@pytest.mark.parametrize(("after", "ok"), [(-1, False), (0, True), (START_BOUND, True), (START_BOUND + 1, False)])
def test_a_target_is_hit_from_its_tick_to_its_bound(after: int, ok: bool) -> None:  # noqa: FBT001
    outcome = OutcomeRecord(Outcome.SUCCESS, True, FIRST + after, NOW, "worker")
    run = RunRecord(1, FIRST, RunReason.TICK, (AttemptRecord(1, FIRST, 1, 1, FIRST, outcome),))
    assert hit(JobHistory(1, (FIRST,), (run,), ())).ok is ok


def test_a_start_is_given_to_one_tick_only() -> None:
    ticks = (FIRST, FIRST + SECOND)
    assert len(hit(JobHistory(1, ticks, (run_of(1, FIRST, Life()),), ())).faults) == 1


def test_the_tick_whose_time_ends_first_gets_the_start() -> None:
    late, next_one = run_of(1, FIRST, Life((Outcome.LOST,) * 5)), run_of(1, FIRST + STEP // 2, Life())
    verdict = hit(JobHistory(1, (FIRST, FIRST + STEP // 2), (late, next_one), ()))
    assert verdict.ok
    assert verdict.figures["past_own_bound"] == 1


def test_a_target_may_still_be_hit_until_its_time_is_over() -> None:
    assert hit(UNSTARTED, now_us=FIRST + START_BOUND - 1).ok
    assert not hit(UNSTARTED, now_us=FIRST + START_BOUND).ok


@pytest.mark.parametrize(("age", "ok"), [(END_BOUND - 1, True), (END_BOUND, False)])
def test_the_unfinished_is_allowed_while_young(age: int, ok: bool) -> None:  # noqa: FBT001
    attempt = AttemptRecord(1, FIRST + STEP, 1, 1, FIRST + STEP, None)
    waiting = JobHistory(1, (FIRST,), (RunRecord(1, FIRST, RunReason.CATCH_UP, (attempt,)),), ())
    assert every_tick_ends([waiting], now_us=attempt.due_us + age, bound_us=END_BOUND).ok is ok
    assert every_tick_ends([UNSTARTED], now_us=FIRST + age, bound_us=END_BOUND).ok is ok
    timer = PendingTimer(1, "tick", FIRST, FIRST + 2 * STEP)
    for job in (waiting, UNSTARTED):
        verdict = every_tick_ends([job], now_us=timer.due_us + age, bound_us=END_BOUND, timers=[timer])
        assert verdict.ok is ok


def test_duplicates_are_counted_and_are_no_fault() -> None:
    world = World((SHOWCASE,), tuple(log_of([SHOWCASE], copies=3)), ())
    verdict = world.verdicts()[3]
    assert verdict.ok
    assert verdict.figures["duplicates"] == verdict.figures["deliveries"] - verdict.figures["runs"] > 0


def test_epochs_of_different_partitions_are_not_compared() -> None:
    assert epochs_only_grow([FencedWrite(0, 9, 1), FencedWrite(1, 1, 2), FencedWrite(0, 9, 3)]).ok


def test_a_verdict_shows_its_first_faults_and_says_how_many_there_are() -> None:
    text = str(Verdict("C9", tuple(f"fault {number}" for number in range(25)), {"runs": 3}))
    assert text.splitlines()[:2] == ["C9: 25 faults (runs 3)", "  fault 0"]
    assert text.splitlines()[-2:] == ["  fault 19", "  and 5 more"]
    assert str(Verdict("C9", (), {"runs": 3})) == "C9: ok (runs 3)"


@pytest.mark.parametrize("jobs", [1, 500])
def test_the_work_grows_with_the_history_and_no_faster(jobs: int) -> None:
    fates: list[Life | GapReason] = [Life(), GapReason.MISSED] * (2_000 // jobs)
    histories = tuple(job_of(number, fates) for number in range(jobs))
    world = World(histories, tuple(log_of(histories)), tuple(FencedWrite(0, 1, seq) for seq in range(2_000)))
    with calls_at_most(2_000 * 100):
        assert failing(world.verdicts()) == set()
