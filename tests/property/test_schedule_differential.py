"""Evertick against those who know one half each: cronsim cron, dateutil RRULE, the compiled files the zones."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from cronsim import CronSim
from dateutil import rrule as dateutil_rrule
from hypothesis import assume, given, settings, strategies as st

from evertick import Schedule, tzdb
from evertick.domain.schedule.zone import Zone
from strategies import (
    FIRST_AT,
    FREQUENCIES,
    LAST_AT,
    PATIENT,
    UNUSUAL_ZONES,
    AtLength,
    Change,
    build,
    changes,
    compact,
    cron_texts,
    instants,
    rules,
    walls,
    write_rule,
    zone_names,
)

AT_LENGTH = AtLength()
holds = AT_LENGTH.holds


# Cron


def by_cronsim(text: str, zone: str, after: datetime, count: int) -> list[datetime]:
    start = after.astimezone(tzdb.load(zone)) if zone != "UTC" else after
    return [at.astimezone(UTC) for at in islice(CronSim(text, start), count)]


@holds(cron_texts(hashed=False), instants(), examples=100, at_length=30_000)
def test_in_utc_cron_fires_as_in_cronsim(text: str, after: datetime) -> None:
    assert build(text, "UTC").upcoming(after, 12) == by_cronsim(text, "UTC", after, 12)


def near_change(zone: str, after: datetime, condition: Callable[[Change], bool]) -> bool:
    """Whether the clocks change in such a way around the days in which a comparison takes place."""
    at, margin = int(after.timestamp()), 86_400
    return any(at - margin < change.at < at + 3 * margin and condition(change) for change in changes(zone))


@holds(cron_texts(fields=5, hashed=False), zone_names, st.data(), examples=100, at_length=30_000)
def test_in_every_zone_cron_fires_as_in_cronsim(text: str, zone: str, data: st.DataObject) -> None:
    schedule = build(text, zone)
    after = data.draw(instants(zone)).replace(microsecond=0) - timedelta(hours=12)
    # cronsim makes up for a correction too; and where the clocks do not jump from full hour to full hour, its steps
    # of an hour pass over the rest of the hour in which they land.
    assume(not near_change(zone, after, lambda change: abs(change.after - change.before) >= 3 * 3600))
    assume(not near_change(zone, after, lambda change: bool((change.at + change.before) % 3600)))
    assume(not near_change(zone, after, lambda change: bool((change.at + change.after) % 3600)))
    # A day that begins with a jump, cronsim begins at a midnight that does not exist, and fires on what that shows.
    assume(not near_change(zone, after, lambda change: (change.at + change.before) % 86_400 == 0))
    # Started in an hour's second pass, cronsim counts from that hour's first, in the past.
    assume(after.astimezone(tzdb.load(zone)).fold == 0)
    end = after + timedelta(days=3)
    found = [at for at in schedule.upcoming(after, 60) if at < end]
    assert found == [at for at in by_cronsim(text, zone, after, 60) if at < end]


# RRULE


def by_dateutil(rule: dict[str, str], start: datetime, first: datetime, count: int) -> list[datetime]:
    """The first `count` fires from `first` on, and no look beyond: dateutil would search to the year 9999."""
    fires = (at.replace(tzinfo=UTC) for at in dateutil_rrule.rrulestr(write_rule(rule), dtstart=start))
    return list(islice((at for at in fires if at >= first), count))


_SPAN_DAYS = {"YEARLY": 4000, "MONTHLY": 1500, "WEEKLY": 800, "DAILY": 400, "HOURLY": 40, "MINUTELY": 2, "SECONDLY": 1}


def first_whole_period(rule: dict[str, str], start: datetime) -> datetime:
    """From where on dateutil chooses BYSETPOS from whole periods, as Evertick always does.

    dateutil lays a rule's first week from DTSTART on: positions there count from DTSTART.
    """
    first = start.replace(tzinfo=UTC)
    return first + timedelta(days=7) if "BYSETPOS" in rule and rule["FREQ"] == "WEEKLY" else first


@holds(st.sampled_from(FREQUENCIES).flatmap(rules), walls, examples=120, at_length=40_000)
def test_in_utc_a_recurrence_fires_as_in_dateutil(rule: dict[str, str], start: datetime) -> None:
    # dateutil does not count the week that a year's last days share with the next year from that year's end.
    assume(not {"-52", "-53"} & set(rule.get("BYWEEKNO", "").split(",")))
    schedule = build(f"DTSTART:{compact(start)}\n{write_rule(rule)}", "UTC")
    first = first_whole_period(rule, start)
    end = first + timedelta(days=_SPAN_DAYS[rule["FREQ"]])
    found = [at for at in schedule.upcoming(first - timedelta(seconds=1), 100) if at < end]
    assert found == by_dateutil(rule, start, first, len(found))
    assert schedule.next(end) is not None, "a rule without an end never ends"


@holds(st.sampled_from(FREQUENCIES).flatmap(rules), walls, st.integers(1, 60), examples=60, at_length=20_000)
def test_count_ends_a_recurrence_where_dateutil_ends_it(rule: dict[str, str], start: datetime, count: int) -> None:
    assume(not ("BYSETPOS" in rule and rule["FREQ"] == "WEEKLY"))
    first = start.replace(tzinfo=UTC)
    text = f"DTSTART:{compact(start)}\n{write_rule(rule)}"
    endless = build(text, "UTC").upcoming(first - timedelta(seconds=1), count + 1)
    assume(len(endless) == count + 1 and endless[-1] < first + timedelta(days=_SPAN_DAYS[rule["FREQ"]]))
    counted = Schedule(f"{text};COUNT={count}")
    assert counted.upcoming(first - timedelta(seconds=1), count + 1) == by_dateutil(rule, start, first, count)
    assert counted.count_between(first, endless[-1]) == count


# Zones


def by_stretches(name: str) -> tuple[Change, ...]:
    """The changes of offset that a zone's stretches show, year by year."""
    zone, found = Zone(name), []
    at, end = int(FIRST_AT.timestamp()), int(LAST_AT.timestamp())
    while at < end:
        stretch = zone.stretch_at(at)
        assert (stretch.start, zone.offset(stretch.start), zone.offset(stretch.end - 1)) == (
            at,
            stretch.offset,
            stretch.offset,
        )
        if stretch.since == stretch.start and stretch.before != stretch.offset:
            found.append(Change(stretch.start, stretch.before, stretch.offset))
        at = stretch.end
    return tuple(found)


@pytest.mark.parametrize("name", UNUSUAL_ZONES)
def test_an_unusual_zone_changes_when_its_compiled_file_says(name: str) -> None:
    assert by_stretches(name) == changes(name)


@settings(PATIENT, max_examples=40)
@given(st.sampled_from(sorted(tzdb.names())))
def test_some_zones_change_when_their_compiled_files_say(name: str) -> None:
    assert by_stretches(name) == changes(name)


@pytest.mark.campaign
@pytest.mark.parametrize("name", sorted(tzdb.names()))
def test_every_zone_changes_when_its_compiled_file_says(name: str) -> None:
    assert by_stretches(name) == changes(name)


@pytest.mark.campaign
@pytest.mark.parametrize("name", AT_LENGTH.properties)
def test_at_length(name: str) -> None:
    AT_LENGTH.properties[name]()
