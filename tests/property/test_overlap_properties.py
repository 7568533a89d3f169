from dataclasses import replace
from typing import assert_never

from hypothesis import given, strategies as st

from evertick.domain.overlap import Allotment, Replace, SkipTick, Start, Unfinished, Wait, allot, decide
from evertick.domain.policies import ConcurrentPolicy

POLICIES = st.sampled_from(ConcurrentPolicy)
LOADS = st.builds(Unfinished, st.integers(0, 5), st.integers(0, 2))
LIMITS = st.integers(1, 5)


def one_by_one(policy: ConcurrentPolicy, limit: int, unfinished: Unfinished, ticks: int) -> Allotment:
    done = Allotment()
    for _ in range(ticks):
        match decide(policy, limit, unfinished):
            case Start():
                done, unfinished = (
                    replace(done, start=done.start + 1),
                    replace(unfinished, open_runs=unfinished.open_runs + 1),
                )
            case Wait():
                # Behind an idle job's waiting run, which moves up at that moment.
                moved_up = unfinished.waiting if unfinished.open_runs == 0 else 0
                done, unfinished = replace(done, wait=done.wait + 1), Unfinished(unfinished.open_runs + moved_up, 1)
            case SkipTick():
                done = replace(done, skip_newest=done.skip_newest + 1)
            case Replace():
                raise AssertionError("REPLACE has a rule of its own")
            case other:
                assert_never(other)
    return done


@given(POLICIES.filter(lambda policy: policy is not ConcurrentPolicy.REPLACE), LIMITS, LOADS, st.integers(0, 8))
def test_ticks_due_together_fare_as_if_they_came_one_by_one(
    policy: ConcurrentPolicy, limit: int, unfinished: Unfinished, ticks: int
) -> None:
    assert allot(policy, limit, unfinished, ticks) == one_by_one(policy, limit, unfinished, ticks)


@given(POLICIES, LIMITS, LOADS, st.integers(0, 1000))
def test_every_tick_is_accounted_for(policy: ConcurrentPolicy, limit: int, unfinished: Unfinished, ticks: int) -> None:
    done = allot(policy, limit, unfinished, ticks)
    assert done.skip_oldest + done.start + done.wait + done.skip_newest == ticks


@given(POLICIES, LIMITS, LOADS, st.integers(0, 1000))
def test_no_tick_starts_beyond_the_limit(
    policy: ConcurrentPolicy, limit: int, unfinished: Unfinished, ticks: int
) -> None:
    done = allot(policy, limit, unfinished, ticks)
    most = limit if policy is ConcurrentPolicy.ALLOW else 1
    assert done.start == 0 or unfinished.total - done.cancel + done.start <= most
