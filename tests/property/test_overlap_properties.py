from dataclasses import replace
from typing import assert_never

from hypothesis import given, strategies as st

from evertick.domain.overlap import Allotment, Load, Replace, SkipTick, Start, Wait, allot, decide
from evertick.domain.policies import ConcurrentPolicy

POLICIES = st.sampled_from(ConcurrentPolicy)
LOADS = st.builds(Load, st.integers(0, 5), st.integers(0, 2))
LIMITS = st.integers(1, 5)


def one_by_one(policy: ConcurrentPolicy, limit: int, load: Load, ticks: int) -> Allotment:
    done = Allotment()
    for _ in range(ticks):
        match decide(policy, limit, load):
            case Start():
                done, load = replace(done, start=done.start + 1), replace(load, open_runs=load.open_runs + 1)
            case Wait():
                # Behind an idle job's waiting run, which moves up at that moment.
                moved_up = load.waiting if load.open_runs == 0 else 0
                done, load = replace(done, wait=done.wait + 1), Load(load.open_runs + moved_up, 1)
            case SkipTick():
                done = replace(done, skip_newest=done.skip_newest + 1)
            case Replace():
                raise AssertionError("REPLACE has a rule of its own")
            case other:
                assert_never(other)
    return done


@given(POLICIES.filter(lambda policy: policy is not ConcurrentPolicy.REPLACE), LIMITS, LOADS, st.integers(0, 8))
def test_ticks_due_together_fare_as_if_they_came_one_by_one(
    policy: ConcurrentPolicy, limit: int, load: Load, ticks: int
) -> None:
    assert allot(policy, limit, load, ticks) == one_by_one(policy, limit, load, ticks)


@given(POLICIES, LIMITS, LOADS, st.integers(0, 1000))
def test_every_tick_is_accounted_for(policy: ConcurrentPolicy, limit: int, load: Load, ticks: int) -> None:
    done = allot(policy, limit, load, ticks)
    assert done.skip_oldest + done.start + done.wait + done.skip_newest == ticks


@given(POLICIES, LIMITS, LOADS, st.integers(0, 1000))
def test_no_tick_starts_beyond_the_limit(policy: ConcurrentPolicy, limit: int, load: Load, ticks: int) -> None:
    done = allot(policy, limit, load, ticks)
    most = limit if policy is ConcurrentPolicy.ALLOW else 1
    assert done.start == 0 or load.unfinished - done.cancel + done.start <= most
