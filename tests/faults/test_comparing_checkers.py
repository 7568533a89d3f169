"""C6, C7 and C8 compare a cluster with itself before a fault: equal passes, and each way of being worse is told."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from evertick.domain.states import GapReason, Outcome, RunReason
from faults.checkers import (
    AttemptRecord,
    GapRecord,
    JobHistory,
    OutcomeRecord,
    RunRecord,
    Verdict,
    Window,
    lag_recovers,
    neighbours_unaffected,
    resources_bounded,
)
from faults.checkers.lags import ENOUGH, p99
from faults.checkers.selftest.worlds import FIRST, SECOND

CALM = Window(FIRST, FIRST + 50 * SECOND)
FAULT = Window(CALM.until_us, CALM.until_us + 50 * SECOND)
HEALED = FAULT.until_us
SETTLED_SECONDS = 30
BEFORE = {"scheduler memory_kb": 80_000, "scheduler descriptors": 40, "connections": 20, "dead_tuples": 100}


def _history(lags: list[float]) -> JobHistory:
    """A job that fires each second, with the lag of each run in seconds."""
    ticks = tuple(FIRST + number * SECOND for number in range(len(lags)))
    runs = tuple(_run(tick, lag) for tick, lag in zip(ticks, lags, strict=True))
    return JobHistory(1, ticks, runs, ())


def _run(tick: int, lag: float, result: Outcome = Outcome.SUCCESS) -> RunRecord:
    start = tick + int(lag * SECOND)
    outcome = OutcomeRecord(result, True, start, start + SECOND, "worker")
    return RunRecord(1, tick, RunReason.TICK, (AttemptRecord(1, tick, 1, 1, tick, outcome),))


def _recovers(lags: list[float]) -> Verdict:
    return lag_recovers(
        [_history(lags)],
        before=CALM,
        healed_us=HEALED,
        within_us=SETTLED_SECONDS * SECOND,
        factor=3,
        floor_us=SECOND,
    )


def _unaffected(*jobs: JobHistory) -> Verdict:
    return neighbours_unaffected({"other": jobs}, calm=CALM, fault=FAULT, factor=3, floor_us=SECOND)


@pytest.mark.parametrize(
    ("after", "ok"), [(0.1, True), (1.0, True), (1.1, False)], ids=["as before", "at the bound", "beyond it"]
)
def test_the_lag_after_healing_is_compared_with_the_lag_before(after: float, ok: bool) -> None:  # noqa: FBT001
    assert _recovers([0.1] * 50 + [20.0] * 50 + [9.0] * SETTLED_SECONDS + [after] * 50).ok is ok


def test_a_machine_that_was_slow_before_may_be_slow_afterwards() -> None:
    assert _recovers([2.0] * 50 + [20.0] * 50 + [9.0] * SETTLED_SECONDS + [5.9] * 50).ok
    assert not _recovers([2.0] * 50 + [20.0] * 50 + [9.0] * SETTLED_SECONDS + [6.1] * 50).ok


def test_how_long_the_recovery_took_is_reported() -> None:
    figures = _recovers([0.1] * 50 + [20.0] * 50 + [9.0] * 10 + [0.1] * 70).figures
    assert (figures["recovered_after_ms"], figures["longest_ms"]) == (19_000, 20_000)  # the last late start


@pytest.mark.parametrize("lags", [[0.1] * (100 + SETTLED_SECONDS + ENOUGH - 1), []])
def test_too_few_runs_prove_nothing(lags: list[float]) -> None:
    assert "which prove nothing" in str(_recovers(lags))
    assert "which prove nothing" in str(_unaffected(_history(lags[:60])))


def test_a_neighbour_that_is_served_as_before_is_unaffected() -> None:
    assert _unaffected(_history([0.1] * 50 + [0.9] * 50)).ok


def test_a_neighbour_that_waits_longer_is_affected() -> None:
    assert "other: the lag is 1100 ms, the bound 1000 ms" in str(_unaffected(_history([0.1] * 50 + [1.1] * 50)))


def test_a_neighbour_with_a_missed_tick_or_a_dead_run_is_affected() -> None:
    good = _history([0.1] * 100)
    last = good.ticks[-1]
    missed = replace(good, runs=good.runs[:-1], gaps=(GapRecord(last, last, 1, GapReason.MISSED),))
    dead = replace(good, runs=(*good.runs[:-1], _run(last, 0.1, Outcome.FAILED)))
    overlapped = replace(missed, gaps=(GapRecord(last, last, 1, GapReason.OVERLAP),))
    assert not _unaffected(missed).ok
    assert not _unaffected(dead).ok
    assert _unaffected(overlapped).ok


def test_each_neighbour_is_judged_by_itself() -> None:
    good, slow = _history([0.1] * 100), _history([0.1] * 50 + [9.0] * 50)
    verdict = neighbours_unaffected({"good": [good], "slow": [slow]}, calm=CALM, fault=FAULT, floor_us=SECOND)
    assert [fault.partition(":")[0] for fault in verdict.faults] == ["slow"]


@given(st.dictionaries(st.sampled_from(sorted(BEFORE)), st.integers(0, 10**6)))
def test_resources_that_stay_as_they_are_pass(used: dict[str, int]) -> None:
    assert resources_bounded(used, used).ok


@pytest.mark.parametrize("name", BEFORE)
def test_a_resource_that_grew_too_much_or_was_not_measured_is_told(name: str) -> None:
    grown = BEFORE | {name: BEFORE[name] * 10 + 100_000}
    assert [fault.partition(":")[0] for fault in resources_bounded(BEFORE, grown).faults] == [name]
    lacking = {each: used for each, used in BEFORE.items() if each != name}
    assert not resources_bounded(BEFORE, lacking).ok


def test_one_of_a_hundred_may_be_late() -> None:
    assert p99([1] * 99 + [50]) == 1
    assert p99([1] * 98 + [50] * 2) == 50
    assert p99([7]) == 7
    assert p99([]) == 0
