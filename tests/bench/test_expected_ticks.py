"""How many ticks `steady` expects, against counting them one by one."""

from hypothesis import given, strategies as st

from evertick.bench.scenarios.steady import Settings, expected_ticks


@given(jobs=st.integers(1, 60), rate=st.integers(1, 20), seconds=st.integers(1, 40), offset=st.integers(0, 100))
def test_each_tick_of_the_stretch_is_expected(jobs: int, rate: int, seconds: int, offset: int) -> None:
    settings = Settings(jobs=jobs, rate=rate, seconds=seconds)
    stretch = range(offset, offset + seconds)
    period, stride = settings.period_seconds, settings.stride
    ticks = sum((second - number * stride) % period == 0 for second in stretch for number in range(jobs))
    assert expected_ticks(settings, offset) == ticks


@given(jobs=st.integers(1, 10**7), rate=st.integers(1, 10**5))
def test_about_as_many_fire_each_second_as_asked_for(jobs: int, rate: int) -> None:
    settings = Settings(jobs=jobs, rate=rate, seconds=1)
    assert jobs / settings.period_seconds <= rate or settings.period_seconds == 1
