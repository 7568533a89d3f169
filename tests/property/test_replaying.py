"""The pace of replays: whatever happens between batches, due times never come faster than the rate."""

import itertools
from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from evertick.domain.replaying import AHEAD, MAX_BATCH, plan_batch

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
        batch = plan_batch(rate, 1000, next_at, now_at)
        made = int(batch.size * share)
        dues += [batch.start_at + timedelta(seconds=number * batch.seconds_apart) for number in range(made)]
        next_at = batch.next_at(made)
        assert 1 <= batch.size <= MAX_BATCH
        assert batch.start_at >= now_at
    slack = timedelta(microseconds=2)  # datetimes have microseconds, rates have not
    assert all(later - earlier >= timedelta(seconds=1 / rate) - slack for earlier, later in itertools.pairwise(dues))


@given(rates, st.lists(st.floats(0, 0.2), min_size=1, max_size=50))
def test_a_janitor_that_looks_in_time_keeps_the_rate_however_its_looks_fall(rate: float, delays: list[float]) -> None:
    """Each look comes a poll after the one before, or somewhat later."""
    now_at = next_at = NOON
    made = 0
    for delay in delays:
        while next_at <= now_at + AHEAD:
            batch = plan_batch(rate, 10_000, next_at, now_at)
            made += batch.size
            next_at = batch.next_at(batch.size)
        now_at += AHEAD + timedelta(seconds=delay)
    # Only what the delays of the looks added up to may be lost.
    least = ((now_at - NOON).total_seconds() - sum(delays)) * rate
    assert made >= int(least * (1 - 1e-6))


@given(rates, st.integers(1, 1000))
def test_a_replay_is_no_faster_than_its_tenant_may_submit(rate: float, submits_per_second: int) -> None:
    batch = plan_batch(rate, submits_per_second, NOON, NOON)
    assert batch.seconds_apart >= max(1 / rate, 1 / submits_per_second)
