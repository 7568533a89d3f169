import pytest

from evertick.domain.overlap import (
    Allotment,
    Overlap,
    Replace,
    SkipTick,
    Start,
    Unfinished,
    Wait,
    allot,
    decide,
)
from evertick.domain.policies import ConcurrentPolicy

SKIP, ALLOW, QUEUE, REPLACE = ConcurrentPolicy


@pytest.mark.parametrize("policy", ConcurrentPolicy)
def test_a_tick_of_an_idle_job_starts_whatever_the_policy(policy: ConcurrentPolicy) -> None:
    assert decide(policy, 1, Unfinished()) == Start()


@pytest.mark.parametrize(
    ("policy", "decision"),
    [(SKIP, SkipTick()), (ALLOW, SkipTick()), (QUEUE, Wait()), (REPLACE, Replace(cancel=1))],
)
def test_a_tick_that_meets_an_unfinished_run_follows_the_policy(policy: ConcurrentPolicy, decision: Overlap) -> None:
    assert decide(policy, 1, Unfinished(open_runs=1)) == decision


def test_allow_starts_up_to_max_concurrent_and_skips_beyond() -> None:
    assert [decide(ALLOW, 3, Unfinished(open_runs)) for open_runs in (2, 3, 4)] == [Start(), SkipTick(), SkipTick()]


@pytest.mark.parametrize("policy", [SKIP, QUEUE, REPLACE])
def test_max_concurrent_matters_to_allow_alone(policy: ConcurrentPolicy) -> None:
    assert decide(policy, 9, Unfinished(open_runs=1)) == decide(policy, 1, Unfinished(open_runs=1))


def test_queue_lets_one_wait_and_skips_the_next() -> None:
    assert decide(QUEUE, 1, Unfinished(open_runs=1, waiting=1)) == SkipTick()


def test_queue_lets_nobody_overtake_the_one_that_waits() -> None:
    assert decide(QUEUE, 1, Unfinished(open_runs=0, waiting=1)) == Wait()


def test_replace_cancels_all_that_is_unfinished() -> None:
    assert decide(REPLACE, 1, Unfinished(open_runs=2, waiting=1)) == Replace(cancel=3)


@pytest.mark.parametrize("policy", [SKIP, ALLOW])
def test_a_run_left_waiting_by_an_edit_of_the_policy_still_counts(policy: ConcurrentPolicy) -> None:
    assert decide(policy, 1, Unfinished(open_runs=0, waiting=1)) == SkipTick()


def test_of_ticks_due_together_the_oldest_go_first() -> None:
    assert allot(SKIP, 1, Unfinished(), 5) == Allotment(start=1, skip_newest=4)
    assert allot(ALLOW, 3, Unfinished(open_runs=1), 5) == Allotment(start=2, skip_newest=3)
    assert allot(QUEUE, 1, Unfinished(), 5) == Allotment(start=1, wait=1, skip_newest=3)


def test_of_ticks_due_together_replace_starts_the_newest_alone() -> None:
    assert allot(REPLACE, 1, Unfinished(open_runs=2), 5) == Allotment(skip_oldest=4, start=1, cancel=2)


def test_no_ticks_need_nothing_and_cancel_nothing() -> None:
    assert allot(REPLACE, 1, Unfinished(open_runs=1), 0) == Allotment()
