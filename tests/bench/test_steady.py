"""How many ticks `steady` expects, against counting them one by one."""

from hypothesis import given, strategies as st

from evertick.bench.scenarios.steady import SteadyOptions, expected_ticks


@given(jobs=st.integers(1, 60), rate=st.integers(1, 20), seconds=st.integers(1, 40), offset=st.integers(0, 100))
def test_each_tick_of_the_interval_is_expected(jobs: int, rate: int, seconds: int, offset: int) -> None:
    options = SteadyOptions(jobs=jobs, rate=rate, seconds=seconds)
    interval = range(offset, offset + seconds)
    period, stride = options.period_seconds, options.stride
    ticks = sum((second - number * stride) % period == 0 for second in interval for number in range(jobs))
    assert expected_ticks(options, offset) == ticks


@given(jobs=st.integers(1, 10**7), rate=st.integers(1, 10**5))
def test_about_as_many_fire_each_second_as_asked_for(jobs: int, rate: int) -> None:
    options = SteadyOptions(jobs=jobs, rate=rate, seconds=1)
    assert jobs / options.period_seconds <= rate or options.period_seconds == 1
