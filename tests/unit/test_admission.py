"""Whether a tenant's request may enter."""

from dataclasses import replace
from datetime import timedelta

import pytest

from evertick.domain.admission import (
    READY_WAIT,
    RUNNING_WAIT,
    AdmissionRequest,
    Admitted,
    Quota,
    Refused,
    Throttled,
    Usage,
    admit,
    with_rate,
)
from evertick.domain.errors import InvalidInput
from evertick.domain.limits import QuotaName
from evertick.domain.rate_bucket import Drawn, Rate

RATE = Rate(per_second=3, burst=5)
QUOTA = Quota(jobs=10, submit=RATE, running=4, ready=20)
IDLE = Usage(jobs=0, running=0, ready=0)


def test_a_negative_quota_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="jobs"):
        Quota(jobs=-1)
    with pytest.raises(InvalidInput, match="running"):
        Quota(running=-1)
    with pytest.raises(InvalidInput, match="ready"):
        Quota(ready=-1)


def test_the_default_quota_admits_one_full_batch() -> None:
    quota = Quota()
    assert isinstance(admit(quota, IDLE, AdmissionRequest(submits=10_000, jobs=10_000)), Admitted)
    assert quota.jobs == 100_000


def test_a_batch_is_admitted_up_to_the_quota_of_jobs() -> None:
    batch = AdmissionRequest(submits=4, jobs=4, is_batch=True)
    assert admit(QUOTA, replace(IDLE, jobs=6), batch) == Admitted(4, 4)
    assert admit(QUOTA, replace(IDLE, jobs=7), batch) == Admitted(3, 3, Refused(QuotaName.JOBS, 10))
    assert admit(QUOTA, replace(IDLE, jobs=10), batch) == Refused(QuotaName.JOBS, 10)


def test_a_batch_is_admitted_as_far_as_the_rate_goes() -> None:
    whole = Admitted(4, 4)
    assert with_rate(RATE, whole, Drawn(4)) == whole
    assert with_rate(RATE, whole, Drawn(1)) == Admitted(1, 1, Throttled(QuotaName.SUBMIT_RATE, timedelta(seconds=1)))
    assert with_rate(RATE, whole, Drawn(0, 7)) == Throttled(QuotaName.SUBMIT_RATE, timedelta(microseconds=7))


def test_the_last_job_of_the_quota_is_admitted_and_the_next_refused() -> None:
    usage = replace(IDLE, jobs=9)
    assert isinstance(admit(QUOTA, usage, AdmissionRequest(jobs=1)), Admitted)
    assert admit(QUOTA, usage, AdmissionRequest(jobs=2)) == Refused(QuotaName.JOBS, 10)


def test_a_tenant_over_a_lowered_job_quota_may_still_edit_and_trigger() -> None:
    usage = replace(IDLE, jobs=11)
    assert isinstance(admit(QUOTA, usage, AdmissionRequest()), Admitted)
    assert isinstance(admit(QUOTA, usage, AdmissionRequest(runs=1)), Admitted)


def test_submitting_too_fast_is_throttled_for_as_long_as_it_takes() -> None:
    verdict = with_rate(RATE, Admitted(4, 0), Drawn(0, 1_333_334))
    assert verdict == Throttled(QuotaName.SUBMIT_RATE, timedelta(microseconds=1_333_334))
    assert verdict.retry_after_seconds == 2


def test_a_request_beyond_the_burst_is_refused_by_name() -> None:
    assert admit(QUOTA, IDLE, AdmissionRequest(submits=6)) == Refused(QuotaName.SUBMIT_BURST, 5)


def test_a_run_beyond_those_allowed_at_once_is_throttled() -> None:
    assert isinstance(admit(QUOTA, replace(IDLE, running=3), AdmissionRequest(runs=1)), Admitted)
    verdict = admit(QUOTA, replace(IDLE, running=4), AdmissionRequest(runs=1))
    assert verdict == Throttled(QuotaName.RUNNING, RUNNING_WAIT)


def test_more_runs_than_may_run_at_once_wait_their_turn() -> None:
    assert isinstance(admit(QUOTA, IDLE, AdmissionRequest(runs=5)), Admitted)
    assert admit(replace(QUOTA, running=0), IDLE, AdmissionRequest(runs=1)) == Refused(QuotaName.RUNNING, 0)


def test_more_runs_than_may_ever_wait_are_refused() -> None:
    assert admit(QUOTA, IDLE, AdmissionRequest(runs=21)) == Refused(QuotaName.READY, 20)


def test_overload_throttles_runs_due_at_once() -> None:
    assert isinstance(admit(QUOTA, replace(IDLE, ready=19), AdmissionRequest(runs=1)), Admitted)
    verdict = admit(QUOTA, replace(IDLE, ready=20), AdmissionRequest(runs=1))
    assert verdict == Throttled(QuotaName.READY, READY_WAIT)


def test_overload_lets_jobs_for_later_in() -> None:
    assert isinstance(admit(QUOTA, replace(IDLE, ready=99, running=99), AdmissionRequest(jobs=1)), Admitted)


def test_what_waiting_cannot_cure_is_said_before_what_it_can() -> None:
    usage = replace(IDLE, running=4)
    quota = replace(QUOTA, ready=0)
    assert admit(quota, usage, AdmissionRequest(runs=1)) == Refused(QuotaName.READY, 0)


@pytest.mark.parametrize(
    ("microseconds", "seconds"), [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (60_000_000, 60)]
)
def test_the_retry_after_header_rounds_up_to_whole_seconds(microseconds: int, seconds: int) -> None:
    verdict = Throttled(QuotaName.SUBMIT_RATE, timedelta(microseconds=microseconds))
    assert verdict.retry_after_seconds == seconds
