from datetime import UTC, datetime, timedelta

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import RunKey
from evertick.domain.policies import Backoff
from evertick.domain.retry import (
    RETRY_AFTER_MAX,
    Ended,
    GiveUp,
    GiveUpReason,
    Retry,
    RetryPolicy,
    backoff_delay,
    decide,
    deferral_delay,
    parse_retry_after,
)
from evertick.domain.states import Outcome

RUN = RunKey(job_id=256, fire_at_us=1_781_010_000_000_000)
POLICY = RetryPolicy()
FAILURES = [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST]
NOW = datetime(2026, 6, 9, 13, 0, tzinfo=UTC)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.CANCELLED])
def test_success_and_cancel_end_the_run(outcome: Outcome) -> None:
    assert decide(POLICY, RUN, Ended(outcome, attempt=1)) is None


@pytest.mark.parametrize("outcome", FAILURES)
def test_a_failure_with_retries_left_is_retried_as_the_next_attempt(outcome: Outcome) -> None:
    decision = decide(POLICY, RUN, Ended(outcome, attempt=3))
    assert isinstance(decision, Retry)
    assert decision.attempt == 4


@pytest.mark.parametrize("outcome", FAILURES)
def test_the_last_failure_is_given_up(outcome: Outcome) -> None:
    assert decide(POLICY, RUN, Ended(outcome, attempt=4)) == GiveUp(4, GiveUpReason.EXHAUSTED)


def test_without_retries_the_first_failure_is_the_last() -> None:
    decision = decide(RetryPolicy(max_retries=0), RUN, Ended(Outcome.FAILED, attempt=1))
    assert decision == GiveUp(1, GiveUpReason.EXHAUSTED)


def test_a_failure_that_cannot_be_cured_is_given_up_at_once() -> None:
    ended = Ended(Outcome.FAILED, attempt=1, retryable=False, wait=seconds(5))
    assert decide(POLICY, RUN, ended) == GiveUp(1, GiveUpReason.NOT_RETRYABLE)


def test_a_handed_back_attempt_is_due_now_under_the_same_number() -> None:
    assert decide(POLICY, RUN, Ended(Outcome.DEFERRED, attempt=2)) == Retry(2, seconds(0))


def test_a_deferral_is_never_exhausted() -> None:
    decision = decide(RetryPolicy(max_retries=0), RUN, Ended(Outcome.DEFERRED, attempt=1, wait=seconds(30)))
    assert isinstance(decision, Retry)
    assert decision.attempt == 1
    assert seconds(30) <= decision.delay <= seconds(33)


def test_retry_after_is_honoured_beyond_the_longest_backoff() -> None:
    policy = RetryPolicy(max_delay=seconds(60))
    decision = decide(policy, RUN, Ended(Outcome.FAILED, attempt=1, wait=seconds(600)))
    assert isinstance(decision, Retry)
    assert seconds(600) <= decision.delay <= seconds(660)


def test_retry_after_does_not_hasten_a_retry() -> None:
    decision = decide(POLICY, RUN, Ended(Outcome.FAILED, attempt=3, wait=seconds(1)))
    assert decision == Retry(4, backoff_delay(POLICY, RUN, 3))


@pytest.mark.parametrize("asked", [timedelta(days=365), timedelta.max])
def test_an_absurd_retry_after_is_shortened_to_a_day(asked: timedelta) -> None:
    decision = decide(POLICY, RUN, Ended(Outcome.FAILED, attempt=1, wait=asked))
    assert isinstance(decision, Retry)
    assert RETRY_AFTER_MAX <= decision.delay <= RETRY_AFTER_MAX * 1.1


@pytest.mark.parametrize(
    ("backoff", "nominal"),
    [
        (Backoff.FIXED, [10, 10, 10, 10]),
        (Backoff.LINEAR, [10, 20, 30, 40]),
        (Backoff.EXPONENTIAL, [10, 20, 40, 80]),
    ],
)
def test_a_retry_comes_at_its_nominal_delay_or_up_to_half_as_much_later(backoff: Backoff, nominal: list[int]) -> None:
    delays = [backoff_delay(RetryPolicy(backoff=backoff), RUN, attempt) for attempt in (1, 2, 3, 4)]
    assert [seconds(n) <= delay <= seconds(1.5 * n) for n, delay in zip(nominal, delays, strict=True)] == [True] * 4


def test_capped_retries_still_spread() -> None:
    delays = {backoff_delay(POLICY, RunKey(job_id, 0), 50) for job_id in range(100)}
    assert len(delays) == 100
    assert min(delays) >= POLICY.max_delay * 2 / 3
    assert max(delays) <= POLICY.max_delay


def test_no_retry_is_a_microsecond_early() -> None:
    policy = RetryPolicy(backoff=Backoff.FIXED, delay=timedelta(microseconds=3))
    assert {backoff_delay(policy, RunKey(job_id, 0), 1).microseconds for job_id in range(50)} == {3, 4}


def test_a_wait_that_has_passed_already_is_no_wait() -> None:
    assert decide(POLICY, RUN, Ended(Outcome.DEFERRED, attempt=1, wait=seconds(-60))) == Retry(1, seconds(0))


def test_no_delay_means_at_once() -> None:
    assert backoff_delay(RetryPolicy(delay=seconds(0)), RUN, 5) == seconds(0)


@pytest.mark.parametrize(
    ("field", "fault"),
    [
        ("max_retries", lambda: RetryPolicy(max_retries=-1)),
        ("retry_delay_seconds", lambda: RetryPolicy(delay=seconds(-1))),
        ("retry_max_delay_seconds", lambda: RetryPolicy(delay=seconds(10), max_delay=seconds(9))),
    ],
)
def test_an_unusable_policy_is_refused_by_the_name_of_its_field(field: str, fault: type[RetryPolicy]) -> None:
    with pytest.raises(InvalidInput) as refused:
        fault()
    assert refused.value.field == field


def test_an_attempt_that_cannot_be_started_waits_longer_each_time_up_to_five_minutes() -> None:
    waits = [deferral_delay(RUN, deferrals) for deferrals in range(1000)]
    assert seconds(5) <= waits[0] <= seconds(7.5)
    assert waits[:6] == sorted(waits[:6])
    assert all(seconds(200) <= wait <= seconds(300) for wait in waits[6:])


def test_attempts_that_are_put_back_together_come_again_apart() -> None:
    assert len({deferral_delay(RunKey(job_id, 0), 0) for job_id in range(100)}) == 100


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 0 \t", 0),
        ("00000000000000000007", 7),
        ("Tue, 09 Jun 2026 13:02:00 GMT", 120),
        ("Tuesday, 09-Jun-26 13:02:00 GMT", 120),
        ("Tue Jun  9 13:02:00 2026", 120),
        ("Tue, 09 Jun 2026 12:00:00 GMT", 0),  # already past
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0),  # 1994, not 2094
    ],
)
def test_seconds_and_all_three_forms_of_date_are_read(value: str, seconds: int) -> None:
    assert parse_retry_after(value, NOW) == timedelta(seconds=seconds)


def test_more_seconds_than_a_duration_holds_mean_the_longest() -> None:
    assert parse_retry_after("9" * 5000, NOW) == timedelta.max


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "-5",
        "+5",
        "1.5",
        "1e3",
        "١٢",  # digits, but not ASCII's
        "12 13",
        "Tue, ٠٩ Jun 2026 13:02:00 GMT",
        "Tue, 31 Jun 2026 13:02:00 GMT",
        "Tue, 09 Jun 2026 24:02:00 GMT",
        "Tue, 09 Jun 2026 13:02:61 GMT",
        "2026-06-09T13:02:00Z",
        "120\r\nX-Evil: 1",
    ],
)
def test_a_value_that_says_nothing_usable_is_none(value: str) -> None:
    assert parse_retry_after(value, NOW) is None
