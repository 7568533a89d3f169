"""What a rate promises, whatever is drawn and whatever the clock does."""

from datetime import timedelta

from hypothesis import given, strategies as st

from evertick.domain.admission import (
    AdmissionRequest,
    Admitted,
    Allowance,
    Quota,
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

SECOND = 1_000_000
MICROSECOND = timedelta(microseconds=1)

rates = st.builds(Rate, per_second=st.integers(1, 2000), burst=st.integers(1, 50))
steps = st.lists(st.tuples(st.integers(0, 3 * SECOND), st.integers(0, 60)), max_size=40)
jumpy_steps = st.lists(st.tuples(st.integers(-SECOND, SECOND), st.integers(0, 60)), max_size=40)
counts = st.integers(0, 30)


def drawn_at(rate: Rate, played: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The (moment, amount) of every draw that succeeds."""
    allowance, now_us, drawn = full(rate, 0), 0, []
    for step, amount in played:
        now_us += step
        match draw(rate, allowance, amount, now_us):
            case Allowance() as allowance:
                assert 0 <= allowance.units <= rate.burst * SECOND
                drawn.append((now_us, amount))
            case _:
                pass
    return drawn


@given(rates, steps)
def test_no_window_holds_more_than_burst_and_rate_allow(rate: Rate, played: list[tuple[int, int]]) -> None:
    drawn = drawn_at(rate, played)
    for first, (start, _) in enumerate(drawn):
        total = 0
        for end, amount in drawn[first:]:
            total += amount
            assert total * SECOND <= rate.burst * SECOND + rate.per_second * (end - start)


@given(rates, jumpy_steps)
def test_a_clock_that_jumps_back_and_forth_earns_no_more_than_its_furthest_reach(
    rate: Rate, played: list[tuple[int, int]]
) -> None:
    drawn = drawn_at(rate, played)
    furthest = max((moment for moment, _ in drawn), default=0)
    total = sum(amount for _, amount in drawn)
    assert total * SECOND <= rate.burst * SECOND + rate.per_second * max(furthest, 0)


@given(rates, st.integers(0, 50 * SECOND), st.integers(0, 60), st.integers(-SECOND, SECOND))
def test_a_wait_is_exactly_long_enough(rate: Rate, units: int, amount: int, now_us: int) -> None:
    allowance = Allowance(min(units, rate.burst * SECOND), 0)
    match draw(rate, allowance, amount, now_us):
        case Wait(retry_after):
            then_us = now_us + retry_after // MICROSECOND
            assert isinstance(draw(rate, allowance, amount, then_us), Allowance)
            assert draw(rate, allowance, amount, then_us - 1) == Wait(MICROSECOND)
        case TooLarge():
            assert amount > rate.burst
        case Allowance():
            assert amount <= rate.burst


@given(
    st.builds(Quota, jobs=counts, submit=rates, running=counts, ready=counts),
    st.builds(AdmissionRequest, submits=counts, jobs=counts, runs=counts),
    st.tuples(counts, counts, counts),
)
def test_what_is_admitted_keeps_every_quota(
    quota: Quota, request: AdmissionRequest, used: tuple[int, int, int]
) -> None:
    jobs, running, ready = used
    usage = Usage(jobs, running, ready, full(quota.submit, 0))
    match admit(quota, usage, request, 0):
        case Admitted(allowance):
            assert not request.jobs or jobs + request.jobs <= quota.jobs
            assert not request.runs or running + request.runs <= quota.running
            assert not request.runs or ready + request.runs <= quota.ready
            assert allowance.units == (quota.submit.burst - request.submits) * SECOND
        case Throttled(_, retry_after):
            assert retry_after > timedelta(0)
        case Refused():
            fits = (
                jobs + request.jobs <= quota.jobs
                and request.runs <= min(quota.running, quota.ready)
                and request.submits <= quota.submit.burst
            )
            assert not fits
