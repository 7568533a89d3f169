"""What admission promises, whatever is asked for."""

from datetime import timedelta

from hypothesis import given, strategies as st

from evertick.domain.admission import (
    AdmissionRequest,
    Admitted,
    Quota,
    Refused,
    Throttled,
    Usage,
    admit,
    with_rate,
)
from evertick.domain.rate_bucket import Rate, draw, full

rates = st.builds(Rate, per_second=st.integers(1, 2000), burst=st.integers(1, 50))
counts = st.integers(0, 30)


@given(
    st.builds(Quota, jobs=counts, submit=rates, running=counts, ready=counts),
    st.builds(AdmissionRequest, submits=counts, jobs=counts, runs=counts),
    st.tuples(counts, counts, counts),
)
def test_what_is_admitted_keeps_every_quota(
    quota: Quota, request: AdmissionRequest, used: tuple[int, int, int]
) -> None:
    jobs, running, ready = used
    match admit(quota, Usage(jobs, running, ready), request):
        case Admitted(submits, new_jobs, cut):
            assert (submits, new_jobs, cut) == (request.submits, request.jobs, None)
            assert submits <= quota.submit.burst
            assert not request.jobs or jobs + request.jobs <= quota.jobs
            assert not request.runs or running < quota.running  # more than may run at once wait their turn
            assert not request.runs or ready + request.runs <= quota.ready
        case Throttled(_, retry_after):
            assert retry_after > timedelta(0)
        case Refused():
            fits = (
                jobs + request.jobs <= quota.jobs
                and (not request.runs or (quota.running > 0 and request.runs <= quota.ready))
                and request.submits <= quota.submit.burst
            )
            assert not fits


@given(st.builds(Quota, jobs=counts, submit=rates), st.integers(1, 80), counts, counts)
def test_a_batch_gets_all_that_there_is(quota: Quota, lines: int, jobs: int, used: int) -> None:
    _, bucket = draw(quota.submit, full(quota.submit, 0), 0, least=0, wanted=used)
    there, room = max(0, quota.submit.burst - used), quota.jobs - jobs
    verdict = admit(quota, Usage(jobs, 0, 0), AdmissionRequest(submits=lines, jobs=lines, is_batch=True))
    if isinstance(verdict, Admitted):
        drawn, _ = draw(quota.submit, bucket, 0, least=1, wanted=verdict.submits)
        verdict = with_rate(quota.submit, verdict, drawn)
    match verdict:
        case Admitted(submits, new_jobs, cut):
            assert submits == new_jobs == min(lines, there, room)
            assert (cut is None) == (submits == lines)
        case Throttled():
            assert not there
        case Refused():
            assert room <= 0
