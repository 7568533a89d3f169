"""Rate buckets and slices of them, by examples."""

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.rate_bucket import (
    LIFETIME_US,
    SLICE_US,
    Bucket,
    Drawn,
    Rate,
    Slice,
    ahead,
    draw,
    full,
    give_back,
    part_of,
    rate_of,
    received,
    refusal_us,
    spend,
    turn_away,
    unexpired,
)

SECOND = 1_000_000
RATE = Rate(per_second=3, burst=5)
FAST = Rate(per_second=1000, burst=10_000)


def test_a_full_bucket_gives_the_burst_and_then_asks_to_wait() -> None:
    drawn, rest = draw(RATE, full(RATE, 0), 0, least=5, wanted=5)
    assert (drawn, rest) == (Drawn(5), Bucket(0, 0))
    assert draw(RATE, rest, 0, least=1, wanted=1) == (Drawn(0, 333_334), rest)


def test_the_wait_is_exact_to_the_microsecond() -> None:
    empty = Bucket(0, 0)
    assert draw(RATE, empty, 333_333, least=1, wanted=1)[0] == Drawn(0, 1)
    assert draw(RATE, empty, 333_334, least=1, wanted=1) == (Drawn(1), Bucket(2, 333_334))


def test_what_is_there_is_drawn_unless_it_is_less_than_the_least() -> None:
    bucket = Bucket(3 * SECOND, 0)
    assert draw(RATE, bucket, 0, least=1, wanted=4) == (Drawn(3), Bucket(0, 0))
    assert draw(RATE, bucket, 0, least=4, wanted=4) == (Drawn(0, 333_334), bucket)


def test_thirds_of_a_second_do_not_drift() -> None:
    bucket = Bucket(0, 0)
    for second in range(1, 1001):
        for now_us in (second * SECOND - 666_666, second * SECOND - 333_333, second * SECOND):
            drawn, bucket = draw(RATE, bucket, now_us, least=1, wanted=1)
            assert drawn == Drawn(1)
    assert bucket == Bucket(0, 1000 * SECOND)


def test_a_long_silence_earns_no_more_than_the_burst() -> None:
    assert draw(RATE, Bucket(0, 0), 10**15, least=1, wanted=9) == (Drawn(5), Bucket(0, 10**15))


def test_a_clock_that_goes_back_a_little_earns_nothing_and_loses_nothing() -> None:
    bucket = Bucket(SECOND, 10 * SECOND)
    assert draw(RATE, bucket, 10 * SECOND - 7, least=1, wanted=1) == (Drawn(1), Bucket(0, 10 * SECOND))
    assert draw(RATE, bucket, 10 * SECOND - 7, least=4, wanted=4) == (Drawn(0, SECOND + 7), bucket)


def test_after_a_clock_was_set_back_time_counts_again_at_once() -> None:
    drawn, bucket = draw(RATE, Bucket(SECOND, 10**15), 7, least=1, wanted=1)
    assert (drawn, bucket) == (Drawn(1), Bucket(0, 7))
    assert draw(RATE, bucket, SECOND + 7, least=3, wanted=3)[0] == Drawn(3)


def test_a_lowered_burst_takes_effect_at_once() -> None:
    assert draw(Rate(3, 2), full(RATE, 0), 0, least=1, wanted=9) == (Drawn(2), Bucket(0, 0))


def test_a_rate_without_a_burst_allows_what_a_second_does() -> None:
    assert [rate_of(per_second, None).burst for per_second in (0.2, 1, 2.5)] == [1, 1, 3]
    assert rate_of(0.2, 7) == Rate(0.2, 7)
    assert part_of(Rate(3, 5), 0.5) == Rate(1.5, 2)
    assert part_of(Rate(1, 1), 0.5) == Rate(0.5, 1)


@pytest.mark.parametrize(("per_second", "burst"), [(0, 1), (1, 0), (-1, 1)])
def test_a_rate_that_admits_nothing_is_refused(per_second: int, burst: int) -> None:
    with pytest.raises(InvalidInput, match="must be"):
        Rate(per_second, burst)


def test_a_process_that_seldom_spends_draws_nothing_ahead() -> None:
    held = spend(received(FAST, Slice(), Drawn(1), 1, 0), 1)
    assert ahead(FAST, held, SECOND) == 0


def test_a_process_that_spends_fast_doubles_its_slice_up_to_its_pace() -> None:
    held = spend(received(FAST, Slice(), Drawn(8), 1, 0), 8)
    assert ahead(FAST, held, SLICE_US // 2) == 8
    assert ahead(FAST, held, 2 * SLICE_US) == 4


def test_a_slice_is_a_small_part_of_the_burst_and_of_a_second() -> None:
    held = spend(received(FAST, Slice(), Drawn(9000), 1, 0), 9000)
    assert ahead(FAST, held, 1) == 125
    assert ahead(Rate(1000, 80), held, 1) == 10


def test_what_is_refused_makes_the_next_slice_larger() -> None:
    held = received(FAST, Slice(drawn_us=0), Drawn(0, 1000), 1, 0)
    for _ in range(50):
        held = turn_away(held, 1)
    assert ahead(FAST, held, SLICE_US) == 50


def test_old_tokens_are_not_used() -> None:
    held = received(FAST, Slice(), Drawn(5), 1, 0)
    assert unexpired(held, LIFETIME_US - 1).tokens == 5
    assert unexpired(held, LIFETIME_US).tokens == 0


def test_a_refusal_holds_for_as_many_and_more_and_for_a_while() -> None:
    held = received(FAST, Slice(), Drawn(0, 3000), 3, 0)
    assert refusal_us(held, 3, 1000) == 99_000
    assert refusal_us(held, 4, 1000) == 99_000
    assert refusal_us(held, 2, 1000) is None
    assert refusal_us(held, 3, SLICE_US) is None


def test_an_empty_bucket_is_asked_again_before_it_is_full() -> None:
    small = Rate(per_second=1000, burst=40)
    held = received(small, Slice(), Drawn(0, 1000), 1, 0)
    assert refusal_us(held, 1, 19_999) is not None
    assert refusal_us(held, 1, 20_000) is None


def test_what_is_given_back_is_held_again() -> None:
    held = spend(received(FAST, Slice(), Drawn(5), 1, 0), 5)
    assert give_back(FAST, held, 3, 10).tokens == 3
    assert give_back(FAST, held, FAST.burst + 1, 10).tokens == FAST.burst
