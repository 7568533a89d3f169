"""Whether a tenant's request may enter."""

from dataclasses import replace
from datetime import timedelta

import pytest

from evertick.domain.admission import (
    READY_WAIT,
    RUNNING_WAIT,
    AdmissionRequest,
    Admitted,
    Allowance,
    Quota,
    QuotaName,
    Rate,
    Refused,
    Throttled,
    TooLarge,
    Usage,
    Wait,
    admit,
    draw,
    full,
)
from evertick.domain.errors import InvalidInput

SECOND = 1_000_000
RATE = Rate(per_second=3, burst=5)
QUOTA = Quota(jobs=10, submit=RATE, running=4, ready=20)
IDLE = Usage(jobs=0, running=0, ready=0, allowance=full(RATE, 0))


def test_a_full_allowance_admits_the_burst_and_then_asks_to_wait() -> None:
    rest = draw(RATE, full(RATE, 0), 5, 0)
    assert rest == Allowance(0, 0)
    assert draw(RATE, rest, 1, 0) == Wait(timedelta(microseconds=333_334))


def test_the_wait_is_exact_to_the_microsecond() -> None:
    empty = Allowance(0, 0)
    assert isinstance(draw(RATE, empty, 1, 333_333), Wait)
    assert draw(RATE, empty, 1, 333_334) == Allowance(2, 333_334)


def test_thirds_of_a_second_do_not_drift() -> None:
    allowance = Allowance(0, 0)
    for second in range(1, 1001):
        for now_us in (second * SECOND - 666_666, second * SECOND - 333_333, second * SECOND):
            drawn = draw(RATE, allowance, 1, now_us)
            assert isinstance(drawn, Allowance)
            allowance = drawn
    assert allowance == Allowance(0, 1000 * SECOND)


def test_a_long_silence_earns_no_more_than_the_burst() -> None:
    assert draw(RATE, Allowance(0, 0), 5, 10**15) == Allowance(0, 10**15)


def test_more_than_the_burst_can_never_be_drawn() -> None:
    assert draw(RATE, full(RATE, 0), 6, 10**15) == TooLarge()


def test_a_clock_that_goes_back_earns_nothing_and_loses_nothing() -> None:
    allowance = Allowance(1_000_000, 10 * SECOND)
    assert draw(RATE, allowance, 1, 7 * SECOND) == Allowance(0, 10 * SECOND)
    assert draw(RATE, allowance, 4, 7 * SECOND) == Wait(timedelta(seconds=4))


def test_a_lowered_burst_takes_effect_at_once() -> None:
    assert draw(Rate(3, 2), full(RATE, 0), 1, 0) == Allowance(1_000_000, 0)


@pytest.mark.parametrize(("per_second", "burst"), [(0, 1), (1, 0), (-1, 1)])
def test_a_rate_that_admits_nothing_is_refused(per_second: int, burst: int) -> None:
    with pytest.raises(InvalidInput, match="must be at least 1"):
        Rate(per_second, burst)


def test_a_negative_quota_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="jobs"):
        Quota(jobs=-1)
    with pytest.raises(InvalidInput, match="running"):
        Quota(running=-1)
    with pytest.raises(InvalidInput, match="ready"):
        Quota(ready=-1)


def test_the_default_quota_admits_one_full_batch() -> None:
    quota = Quota()
    usage = replace(IDLE, allowance=full(quota.submit, 0))
    assert isinstance(admit(quota, usage, AdmissionRequest(submits=10_000, jobs=10_000), 0), Admitted)
    assert quota.jobs == 100_000


def test_an_admitted_request_draws_its_submits() -> None:
    assert admit(QUOTA, IDLE, AdmissionRequest(submits=2, jobs=2), 0) == Admitted(Allowance(3_000_000, 0))


def test_the_last_job_of_the_quota_is_admitted_and_the_next_refused() -> None:
    usage = replace(IDLE, jobs=9)
    assert isinstance(admit(QUOTA, usage, AdmissionRequest(jobs=1), 0), Admitted)
    assert admit(QUOTA, usage, AdmissionRequest(jobs=2), 0) == Refused(QuotaName.JOBS, 10)


def test_a_tenant_over_a_lowered_job_quota_may_still_edit_and_trigger() -> None:
    usage = replace(IDLE, jobs=11)
    assert isinstance(admit(QUOTA, usage, AdmissionRequest(), 0), Admitted)
    assert isinstance(admit(QUOTA, usage, AdmissionRequest(runs=1), 0), Admitted)


def test_submitting_too_fast_is_throttled_for_as_long_as_it_takes() -> None:
    usage = replace(IDLE, allowance=Allowance(0, 0))
    verdict = admit(QUOTA, usage, AdmissionRequest(submits=4), 0)
    assert verdict == Throttled(QuotaName.SUBMIT_RATE, timedelta(microseconds=1_333_334))
    assert verdict.retry_after_seconds == 2


def test_a_request_beyond_the_burst_is_refused_by_name() -> None:
    assert admit(QUOTA, IDLE, AdmissionRequest(submits=6), 0) == Refused(QuotaName.SUBMIT_BURST, 5)


def test_a_run_beyond_those_allowed_at_once_is_throttled() -> None:
    assert isinstance(admit(QUOTA, replace(IDLE, running=3), AdmissionRequest(runs=1), 0), Admitted)
    verdict = admit(QUOTA, replace(IDLE, running=4), AdmissionRequest(runs=1), 0)
    assert verdict == Throttled(QuotaName.RUNNING, RUNNING_WAIT)


def test_more_runs_than_may_run_at_once_wait_their_turn() -> None:
    assert isinstance(admit(QUOTA, IDLE, AdmissionRequest(runs=5), 0), Admitted)
    assert admit(replace(QUOTA, running=0), IDLE, AdmissionRequest(runs=1), 0) == Refused(QuotaName.RUNNING, 0)


def test_more_runs_than_may_ever_wait_are_refused() -> None:
    assert admit(QUOTA, IDLE, AdmissionRequest(runs=21), 0) == Refused(QuotaName.READY, 20)


def test_overload_throttles_runs_due_at_once() -> None:
    assert isinstance(admit(QUOTA, replace(IDLE, ready=19), AdmissionRequest(runs=1), 0), Admitted)
    verdict = admit(QUOTA, replace(IDLE, ready=20), AdmissionRequest(runs=1), 0)
    assert verdict == Throttled(QuotaName.READY, READY_WAIT)


def test_overload_lets_jobs_for_later_in() -> None:
    assert isinstance(admit(QUOTA, replace(IDLE, ready=99, running=99), AdmissionRequest(jobs=1), 0), Admitted)


def test_what_waiting_cannot_cure_is_said_before_what_it_can() -> None:
    usage = replace(IDLE, running=4)
    quota = replace(QUOTA, ready=0)
    assert admit(quota, usage, AdmissionRequest(runs=1), 0) == Refused(QuotaName.READY, 0)


@pytest.mark.parametrize(
    ("microseconds", "seconds"), [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (60_000_000, 60)]
)
def test_the_retry_after_header_rounds_up_to_whole_seconds(microseconds: int, seconds: int) -> None:
    verdict = Throttled(QuotaName.SUBMIT_RATE, timedelta(microseconds=microseconds))
    assert verdict.retry_after_seconds == seconds
