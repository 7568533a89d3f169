"""How much of the jobs is counted, and how finely, decided from one partition."""

import random
from collections import Counter
from datetime import UTC, datetime

import pytest

from evertick import Schedule
from evertick.domain.forecast import sampling
from evertick.domain.forecast.sampling import Probe, Sample, has_one_second, relative_error, richness, sample_of
from evertick.domain.ids import PARTITIONS
from evertick.domain.rule import Policies, rule_of

ANCHOR_AT = datetime(2026, 1, 1, tzinfo=UTC)


def probe(jobs: int, rules: int, seconds: int = 1, minutes: int = 1) -> Probe:
    """One partition of jobs that choose among rules at random, and among the seconds and minutes of their jitter."""

    def seen(kinds: int) -> list[int]:
        choose = random.Random(1)
        return list(Counter(choose.randrange(kinds) for _ in range(jobs // PARTITIONS)).values())

    return Probe(seen(rules * seconds), seen(rules * minutes), seen(rules))


def partitions_of(probe: Probe, *, has_labels: bool = False) -> int:
    return sample_of(probe, has_labels=has_labels).partitions


@pytest.mark.parametrize("rules", [10, 1_000, 100_000, 5_000_000])
def test_the_number_of_rules_is_estimated_from_those_that_were_seen_once_and_twice(rules: int) -> None:
    assert rules / 2 < richness(probe(10_000_000, rules).rules) < rules * 2


def test_few_rules_are_counted_whole_however_many_jobs_have_them() -> None:
    assert sample_of(Probe([], [], []), has_labels=False) == Sample(PARTITIONS, by_second=True)
    assert sample_of(probe(10_000_000, 5_000), has_labels=False) == Sample(PARTITIONS, by_second=True)


def test_of_many_rules_a_sample_is_counted() -> None:
    assert partitions_of(probe(10_000_000, 5_000_000)) == 1
    partitions = partitions_of(probe(1_000_000, 500_000))
    assert 1 < partitions < PARTITIONS
    assert partitions * len(probe(1_000_000, 500_000).rules) <= sampling.MAX_RULES


def test_jitter_that_makes_too_many_groups_is_counted_in_minutes_before_a_sample_is_taken() -> None:
    assert sample_of(probe(10_000_000, 1_440, 300, 6), has_labels=False) == Sample(PARTITIONS, by_second=False)
    sample = sample_of(probe(10_000_000, 20_000, 3_600, 61), has_labels=False)
    assert (1 <= sample.partitions < PARTITIONS, sample.by_second) == (True, False)


def test_labels_of_many_jobs_are_compared_in_a_sample() -> None:
    assert partitions_of(probe(10_000_000, 10), has_labels=True) == 4
    assert partitions_of(probe(100_000, 10), has_labels=True) == PARTITIONS


@pytest.mark.parametrize(
    ("schedule", "has_one"),
    [
        ("*/5 * * * *", True),
        ("30 0 3 * * *", True),
        ("*/20 * * * * *", False),
        ("* * * * * *", False),
        ("every 2m", True),
        ("every 90s", False),
        ("R/2026-01-01T00:00:10Z/P1M", True),
        ("DTSTART:20260101T000010Z\nRRULE:FREQ=HOURLY", True),
        ("DTSTART:20260101T000010Z\nRRULE:FREQ=SECONDLY;INTERVAL=70", False),
        ("DTSTART:20260101T000010Z\nRRULE:FREQ=DAILY;BYSECOND=0,30", False),
    ],
)
def test_which_schedules_fire_at_one_second_of_the_minute(schedule: str, has_one: object) -> None:
    assert has_one_second(rule_of(Schedule(schedule, anchor_at=ANCHOR_AT), Policies()).spec) == has_one


def test_the_error_of_a_sample_falls_with_what_is_counted() -> None:
    assert relative_error(1000, PARTITIONS) == relative_error(0, 1) == 0
    assert relative_error(80_000, 1) == pytest.approx(0.0564, abs=0.001)
    assert relative_error(80_000, 16) < relative_error(80_000, 1)
