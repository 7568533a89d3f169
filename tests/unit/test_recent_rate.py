"""How much happens per second lately."""

from evertick.runtime.recent_rate import WINDOW_SECONDS, RecentRate


class Meter:
    """A rate of a number and a clock that a test sets."""

    def __init__(self) -> None:
        self.now, self.count = 100.0, 5
        self.rate = RecentRate(lambda: self.count, lambda: self.now)

    def after(self, seconds: float, more: int) -> float:
        self.now += seconds
        self.count += more
        return self.rate.per_second()


def test_what_was_counted_before_is_left_out() -> None:
    meter = Meter()
    assert meter.rate.per_second() == 0.0
    assert meter.after(2, 10) == 5.0
    assert meter.after(2, 0) == 2.5


def test_what_is_older_than_the_window_is_forgotten() -> None:
    meter = Meter()
    assert meter.after(1, 1_000) == 1_000.0
    for _ in range(10):
        meter.after(WINDOW_SECONDS / 5, 0)
    assert meter.rate.per_second() == 0.0
    assert meter.after(WINDOW_SECONDS, 60) == 60 / WINDOW_SECONDS
