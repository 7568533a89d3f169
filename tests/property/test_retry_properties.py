from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import assume, given, strategies as st

from evertick.domain.ids import RunKey
from evertick.domain.policies import Backoff
from evertick.domain.retry import (
    RETRY_AFTER_MAX,
    Ended,
    GiveUp,
    Retry,
    RetryPolicy,
    backoff_delay,
    decide,
    parse_retry_after,
)
from evertick.domain.states import Outcome

ZERO = timedelta(0)
DURATIONS = st.timedeltas(ZERO, timedelta(days=30)) | st.just(timedelta.max)
RUNS = st.builds(RunKey, st.integers(0, 2**63 - 1), st.integers(0, 2**52))
ATTEMPTS = st.integers(1, 20) | st.integers(1, 10**9)
ENDED = st.builds(
    Ended,
    st.sampled_from(Outcome),
    ATTEMPTS,
    st.booleans(),
    st.none() | st.timedeltas(timedelta(days=-1), timedelta(days=2)) | st.just(timedelta.max),
)
INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001  (given its zone by the strategy)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    delay, max_delay = sorted([draw(DURATIONS), draw(DURATIONS)])
    return RetryPolicy(draw(st.integers(0, 5000)), draw(st.sampled_from(Backoff)), delay, max_delay)


@given(policies(), RUNS, ATTEMPTS)
def test_backoff_stays_within_its_documented_window(policy: RetryPolicy, run: RunKey, attempt: int) -> None:
    delay = backoff_delay(policy, run, attempt)
    assert delay <= policy.max_delay
    # In the first half of the range the cap does not bite, so the configured delay is a floor.
    if policy.delay <= policy.max_delay / 2:
        assert delay >= policy.delay
    assert delay >= policy.delay / 2


@given(policies(), RUNS)
def test_exponential_delays_never_shrink_below_the_cap(policy: RetryPolicy, run: RunKey) -> None:
    assume(policy.backoff is Backoff.EXPONENTIAL)
    delays = [backoff_delay(policy, run, attempt) for attempt in range(1, 40)]
    growing = [delay for delay in delays if delay < policy.max_delay * 0.66]
    assert all(earlier <= later for earlier, later in pairwise(growing))


@given(policies(), RUNS, ENDED)
def test_a_decision_is_reproducible(policy: RetryPolicy, run: RunKey, ended: Ended) -> None:
    assert decide(policy, run, ended) == decide(policy, run, ended)


@given(policies(), RUNS, ENDED)
def test_no_retry_or_deferral_comes_before_the_wait_that_was_asked_for(
    policy: RetryPolicy, run: RunKey, ended: Ended
) -> None:
    decision = decide(policy, run, ended)
    if isinstance(decision, Retry):
        assert decision.delay >= min(ended.wait or ZERO, RETRY_AFTER_MAX)
        assert decision.delay >= ZERO


@given(policies(), RUNS, ENDED)
def test_a_run_never_has_more_attempts_than_allowed_and_only_a_retry_uses_one_up(
    policy: RetryPolicy, run: RunKey, ended: Ended
) -> None:
    match decide(policy, run, ended):
        case Retry(attempt=attempt) if ended.outcome is Outcome.DEFERRED:
            assert attempt == ended.attempt
        case Retry(attempt=attempt):
            assert ended.attempt + 1 == attempt <= policy.max_retries + 1
        case GiveUp(attempt=attempt):
            assert attempt == ended.attempt
            assert ended.attempt > policy.max_retries or not ended.retryable
        case None:
            assert ended.outcome in {Outcome.SUCCESS, Outcome.CANCELLED}


@given(policies(), st.integers(1, 10))
def test_runs_that_fail_together_come_back_apart(policy: RetryPolicy, attempt: int) -> None:
    assume(policy.delay >= timedelta(seconds=10))
    delays = {backoff_delay(policy, RunKey(job_id, 0), attempt) for job_id in range(50)}
    assert len(delays) > 40


@given(st.text(), INSTANTS)
def test_no_text_breaks_it_or_asks_for_the_past(value: str, now: datetime) -> None:
    wait = parse_retry_after(value, now)
    assert wait is None or wait >= timedelta(0)


@given(INSTANTS, INSTANTS)
def test_every_http_date_is_read_back(until: datetime, now: datetime) -> None:
    until = until.replace(microsecond=0)
    text = f"{DAYS[until.weekday()]}, {until:%d} {MONTHS[until.month - 1]} {until.year:04} {until:%H:%M:%S} GMT"
    assert parse_retry_after(text, now) == max(until - now, timedelta(0))


@given(st.integers(0, 10**12 - 1), INSTANTS)
def test_every_number_of_seconds_is_read_back(seconds: int, now: datetime) -> None:
    assert parse_retry_after(str(seconds), now) == timedelta(seconds=seconds)
