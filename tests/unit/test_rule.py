"""Rules: jobs that fire alike share one, jobs that do not never do."""

from datetime import UTC, datetime, timedelta

import pytest

from evertick import InvalidInput, Schedule
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.rule import Policies, default_grace, from_canonical, rule_of

AT = datetime(2026, 6, 1, 9, tzinfo=UTC)


def digest(text: str, timezone: str = "UTC", policies: Policies | None = None, **options: object) -> bytes:
    return rule_of(Schedule(text, timezone, **options), policies or Policies()).digest()  # type: ignore[arg-type] # kwargs


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 9 * * 1-5", "0 9 * * MON-FRI"),
        ("0 9 * * 7", "0 9 * * SUN"),
        ("@daily", "0 0 * * *"),
        ("*/5 * * * *", "0,5,10,15,20,25,30,35,40,45,50,55 * * * *"),
        ("0 9 * * *", "0 0 9 * * *"),
        ("every 60m", "every 1h"),
        ("2026-06-09T13:00:00Z", "in 90s"),
        ("RRULE:FREQ=DAILY;BYHOUR=9,10", "RRULE:BYHOUR=10,9;FREQ=DAILY"),
    ],
)
def test_two_ways_of_writing_the_same_share_a_rule(one: str, other: str) -> None:
    assert digest(one) == digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0 9 * * *", "0 10 * * *"),
        ("0 0 */10 * 0", "0 0 1,11,21,31 * 0"),  # the star makes both fields necessary
        ("every 5m", "every 6m"),
        ("manual", "in 5m"),
        ("R/2026-01-01T00:00:00Z/PT5M", "every 5m"),  # the first has a first tick
    ],
)
def test_different_fire_times_never_share_a_rule(one: str, other: str) -> None:
    assert digest(one) != digest(other)


def test_a_star_matters_only_where_clocks_change() -> None:
    assert digest("*/30 2 * * *") == digest("0,30 2 * * *")
    assert digest("*/30 2 * * *", "Europe/Berlin") != digest("0,30 2 * * *", "Europe/Berlin")


def test_policies_for_clock_changes_matter_only_for_fixed_times_in_zones_that_have_them() -> None:
    assert digest("0 9 * * *", dst_gap="skip") == digest("0 9 * * *", dst_gap="shift")
    assert digest("* * * * *", "Europe/Berlin", dst_gap="skip") == digest("* * * * *", "Europe/Berlin")
    assert digest("0 9 * * *", "Europe/Berlin", dst_gap="skip") != digest("0 9 * * *", "Europe/Berlin")


def test_the_zone_of_an_interval_does_not_matter() -> None:
    assert digest("every 5m", "Asia/Tokyo") == digest("every 5m", "UTC")


def test_intervals_share_a_rule_when_their_anchors_are_whole_steps_apart() -> None:
    assert digest("every 5m", anchor_at=AT) == digest("every 5m", anchor_at=AT + timedelta(minutes=25))
    assert digest("every 5m", anchor_at=AT) != digest("every 5m", anchor_at=AT + timedelta(minutes=1))


def test_numbers_that_the_policy_ignores_do_not_split_rules() -> None:
    assert digest("@daily", policies=Policies(max_missed=5)) == digest("@daily", policies=Policies(max_missed=6))
    run_all = [Policies(missed_window=MissedWindow.RUN_ALL, max_missed=n) for n in (5, 6)]
    assert digest("@daily", policies=run_all[0]) != digest("@daily", policies=run_all[1])
    allow = [Policies(concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=n) for n in (1, 2)]
    assert digest("@daily", policies=allow[0]) != digest("@daily", policies=allow[1])


def test_jobs_with_h_share_a_rule_exactly_when_they_hash_to_the_same_time() -> None:
    rules = {digest("H * * * *", key=str(n)) for n in range(500)}
    assert len(rules) == 60


@pytest.mark.parametrize(
    ("text", "grace"),
    [
        ("* * * * *", timedelta(minutes=1)),
        ("*/5 * * * *", timedelta(minutes=5)),
        ("@daily", timedelta(hours=1)),
        ("every 10s", timedelta(seconds=10)),
        ("2026-06-09T13:00:00Z", timedelta(hours=1)),
    ],
)
def test_the_default_grace_is_the_interval_and_an_hour_at_most(text: str, grace: timedelta) -> None:
    assert default_grace(Schedule(text).shortest_interval()) == grace


@pytest.mark.parametrize(
    "text",
    [
        "*/5 2 L,15 1-3 5L,1#2",
        "every 90s",
        "R5/2026-01-31T09:00:00/P1M",
        "DTSTART:20260105T093000\nRRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE;COUNT=9\nEXDATE:20260107T093000",
        "2026-06-09T13:00:00Z",
        "manual",
    ],
)
def test_a_rule_comes_back_whole_from_its_canonical_text(text: str) -> None:
    schedule = Schedule(text, "Europe/Paris", start_at=AT.replace(year=2020), end_at=AT.replace(year=2030))
    rule = rule_of(schedule, Policies())
    again = from_canonical(rule.canonical())
    assert again == rule
    assert again.digest() == rule.digest()
    assert again.ticks().next(0) == rule.ticks().next(0)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("max_missed", {"max_missed": 0}),
        ("max_concurrent", {"max_concurrent": 0}),
        ("jitter_seconds", {"jitter": timedelta(seconds=-1)}),
        ("misfire_grace_seconds", {"misfire_grace": timedelta(seconds=-1)}),
    ],
)
def test_a_policy_out_of_range_names_its_field(field: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as error:
        Policies(**options)  # type: ignore[arg-type] # one wrong value at a time
    assert error.value.field == field
