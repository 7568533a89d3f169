"""What a rate bucket promises to several drawers, whatever they draw and whatever the clock does.

The oracle is a bucket in exact fractions that earns for each forward move of the clock beyond where it was.
"""

from fractions import Fraction

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from evertick.domain import rate_bucket
from evertick.domain.rate_bucket import CLOCK_TOLERANCE_US, Bucket, Drawn, Rate, Slice, draw, full

SECOND = 1_000_000
DRAWERS = 3

rates = st.builds(Rate, per_second=st.integers(1, 2000), burst=st.integers(1, 50))
amounts = st.integers(1, 60)


@given(rates, st.integers(0, 50 * SECOND), st.integers(1, 50), st.integers(-SECOND, SECOND))
def test_a_wait_is_exactly_long_enough(rate: Rate, units: int, least: int, now_us: int) -> None:
    least = min(least, rate.burst)
    bucket = Bucket(min(units, rate.burst * SECOND), 0)
    drawn, _ = draw(rate, bucket, now_us, least=least, wanted=least)
    if not drawn.granted:
        then_us = now_us + drawn.wait_us
        assert draw(rate, bucket, then_us, least=least, wanted=least)[0] == Drawn(least)
        assert draw(rate, bucket, then_us - 1, least=least, wanted=least)[0] == Drawn(0, 1)


@given(rates, st.lists(st.tuples(st.integers(0, 3 * SECOND), amounts), max_size=40))
def test_no_window_holds_more_than_burst_and_rate_allow(rate: Rate, played: list[tuple[int, int]]) -> None:
    bucket, now_us, drawn = full(rate, 0), 0, []
    for step, wanted in played:
        now_us += step
        (granted, _), bucket = draw(rate, bucket, now_us, least=1, wanted=wanted)
        drawn.append((now_us, granted))
    for first, (start, _) in enumerate(drawn):
        total = 0
        for end, amount in drawn[first:]:
            total += amount
            assert total * SECOND <= rate.burst * SECOND + rate.per_second * (end - start)


@given(st.floats(0.001, 1000), st.lists(st.integers(0, 3_000 * SECOND), max_size=40))
def test_a_rate_may_be_a_fraction_and_gives_what_it_earns(per_second: float, steps: list[int]) -> None:
    rate = rate_bucket.rate_of(per_second, 10**9)
    bucket, now_us, drawn = Bucket(0, 0), 0, 0
    for step in steps:
        now_us += step
        (granted, _), bucket = draw(rate, bucket, now_us, least=1, wanted=10**9)
        drawn += granted
    earned = Fraction(per_second) * now_us / SECOND
    # A unit is a millionth of a token: each step leaves out less than one, and rounds once.
    assert earned - 1 - Fraction(len(steps) + 1, SECOND) <= drawn <= earned + Fraction(1, 1000)


@given(
    st.builds(Rate, per_second=st.integers(1, 2000) | st.floats(0.01, 100), burst=st.integers(1, 50)),
    st.lists(st.tuples(st.integers(0, SECOND), st.integers(0, DRAWERS - 1), amounts), max_size=60),
)
def test_no_window_holds_more_than_rate_and_burst_and_the_slices_at_its_start(
    rate: Rate, played: list[tuple[int, int, int]]
) -> None:
    """Of several processes, each of which takes what it gets, up to what it wants."""
    bucket, now_us, slices = full(rate, 0), 0, [Slice() for _ in range(DRAWERS)]
    spent: list[tuple[int, int, int]] = []
    for step, who, most in played:
        now_us += step
        slices = [rate_bucket.unexpired(held, now_us) for held in slices]
        ahead_of_it = sum(held.tokens for held in slices)
        held = slices[who]
        if held.tokens < most:
            wanted = most - held.tokens + rate_bucket.ahead(rate, held, now_us)
            drawn, bucket = draw(rate, bucket, now_us, least=1, wanted=wanted)
            held = rate_bucket.received(rate, held, drawn, 1, now_us)
        taken = min(held.tokens, most)
        slices[who] = rate_bucket.spend(held, taken)
        spent.append((now_us, taken, ahead_of_it))
    for first, (start, _, held_before) in enumerate(spent):
        total = 0
        for end, taken, _ in spent[first:]:
            total += taken
            allowed = rate.burst + Fraction(rate.per_second) * (end - start) / SECOND + held_before
            assert total <= allowed + Fraction(1, 1000)


class _Drawer:
    """A process: it holds a slice, and has a clock of its own, which never goes back."""

    def __init__(self) -> None:
        self.held = Slice()


class SharedBucket(RuleBasedStateMachine):
    """Several processes that spend slices of one bucket, and are killed; a clock that is set."""

    @initialize(rate=rates)
    def begin(self, rate: Rate) -> None:
        self.rate = rate
        self.now_us = self.as_of_us = 0
        self.monotonic_us = 0
        self.bucket = full(rate, 0)
        self.there = Fraction(rate.burst)
        self.earned = Fraction(rate.burst)
        self.spent = 0
        self.drawers = [_Drawer() for _ in range(DRAWERS)]

    @rule(step=st.integers(0, 2 * SECOND))
    def time_passes(self, step: int) -> None:
        self.now_us += step
        self.monotonic_us += step

    @rule(back=st.integers(1, 10 * SECOND))
    def the_clock_is_set_back(self, back: int) -> None:
        self.now_us -= back

    @rule(who=st.integers(0, DRAWERS - 1))
    def a_process_is_killed(self, who: int) -> None:
        self.drawers[who] = _Drawer()

    @rule(per_second=st.integers(1, 2000), burst=st.integers(1, 50))
    def the_limits_are_edited(self, per_second: int, burst: int) -> None:
        self._earn()
        self.rate = Rate(per_second, burst)

    @rule(who=st.integers(0, DRAWERS - 1), least=amounts, most=amounts)
    def a_process_spends(self, who: int, least: int, most: int) -> None:
        drawer = self.drawers[who]
        least = min(least, most, self.rate.burst)
        held = rate_bucket.unexpired(drawer.held, self.monotonic_us)
        if held.tokens < most:
            needed = max(1, least - held.tokens)
            wanted = most - held.tokens + rate_bucket.ahead(self.rate, held, self.monotonic_us)
            held = rate_bucket.received(self.rate, held, self._draw(needed, wanted), needed, self.monotonic_us)
        taken = min(held.tokens, most) if held.tokens >= least else 0
        drawer.held = rate_bucket.spend(held, taken)
        self.spent += taken

    def _draw(self, least: int, wanted: int) -> Drawn:
        drawn, self.bucket = draw(self.rate, self.bucket, self.now_us, least=least, wanted=wanted)
        self._earn()
        expected = min(wanted, int(self.there)) if self.there >= least else 0
        assert drawn.granted == expected
        assert bool(drawn.wait_us) == (not expected)
        self.there -= expected
        return drawn

    def _earn(self) -> None:
        """Exactly what the clock's forward moves are worth; a clock that was set counts from its new time."""
        if self.as_of_us - self.now_us > CLOCK_TOLERANCE_US:
            self.as_of_us = self.now_us
        forward = Fraction(max(0, self.now_us - self.as_of_us), SECOND) * Fraction(self.rate.per_second)
        self.as_of_us = max(self.as_of_us, self.now_us)
        gained = min(self.there + forward, Fraction(self.rate.burst)) - self.there
        self.there += gained
        self.earned += max(gained, Fraction(0))
        # The bucket counts what it gains only when it is drawn from: keep both at the same instant.
        self.bucket = rate_bucket.refill(self.rate, self.bucket, self.now_us)

    @invariant()
    def nothing_is_spent_that_was_not_earned(self) -> None:
        if hasattr(self, "earned"):
            assert self.spent <= self.earned

    @invariant()
    def slices_are_small(self) -> None:
        for drawer in getattr(self, "drawers", []):
            assert drawer.held.tokens <= 60 + 50


SharedBucket.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestSharedBucket = SharedBucket.TestCase
