"""The pace of replays: whatever happens between batches, due times never come faster than the rate."""

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from evertick.domain.replaying import MAX_BATCH, pace_of, plan_batch

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
rates = st.floats(0.01, 1000)
delays = st.floats(0, 10_000)


@given(rates, st.lists(st.tuples(delays, st.floats(0, 1)), max_size=20))
def test_due_times_are_never_closer_than_the_rate_allows(rate: float, batches: list[tuple[float, float]]) -> None:
    now_at = next_at = NOON
    dues: list[datetime] = []
    for delay, share in batches:
        # A janitor comes when the batch is due, or later; some of the letters may be gone.
        now_at = max(now_at, next_at) + timedelta(seconds=delay)
        batch = plan_batch(rate, next_at, now_at)
        made = int(batch.size * share)
        dues += [batch.start_at + timedelta(seconds=number * batch.seconds_apart) for number in range(made)]
        next_at = batch.next_at(made)
        assert 1 <= batch.size <= MAX_BATCH
        assert batch.start_at >= now_at
    slack = timedelta(microseconds=2)  # datetimes have microseconds, rates have not
    assert all(later - earlier >= timedelta(seconds=1 / rate) - slack for earlier, later in itertools.pairwise(dues))


@given(st.lists(rates, min_size=1, max_size=20), st.integers(1, 1000))
def test_the_replays_of_a_tenant_stay_together_within_its_rate(asked: list[float], submits_per_second: int) -> None:
    paces = [pace_of(rate, submits_per_second, len(asked)) for rate in asked]
    assert sum(paces) <= submits_per_second * (1 + 1e-9)
    assert all(pace <= rate for pace, rate in zip(paces, asked, strict=True))
