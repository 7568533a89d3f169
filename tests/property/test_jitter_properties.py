from collections import Counter
from datetime import timedelta

from hypothesis import given, strategies as st

from evertick.domain.stable_hash import jitter_offset

WINDOWS = st.timedeltas(timedelta(microseconds=1), timedelta(days=1))


@given(st.integers(0, 2**63 - 1), WINDOWS)
def test_an_offset_lies_within_its_window_and_never_changes(job_id: int, window: timedelta) -> None:
    offset = jitter_offset(job_id, window)
    assert timedelta(0) <= offset < window
    assert jitter_offset(job_id, window) == offset


@given(st.integers(0, 2**55), st.timedeltas(timedelta(seconds=1), timedelta(days=1)))
def test_neighbouring_jobs_spread_evenly_over_the_window(first_job: int, window: timedelta) -> None:
    tenths = Counter(jitter_offset(first_job + number, window) * 10 // window for number in range(1000))
    assert set(tenths) == set(range(10))
    assert max(tenths.values()) < 200
