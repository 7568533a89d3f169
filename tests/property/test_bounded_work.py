"""No schedule takes much work, however rarely or impossibly it fires."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings

from bounded_work import MAX_CALLS, TooMuchWorkError, calls_at_most
from evertick import InvalidSchedule, Schedule
from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.schedule.instants import from_us, to_us
from strategies import PATIENT, cron_texts, rrule_texts, zone_names


def ask(text: str, zone: str = "America/New_York", most: int = MAX_CALLS) -> list[datetime] | None:
    """What a schedule answers first, or None if it is refused as one that never fires or costs too much."""
    Schedule("0 0 * * *", zone).upcoming(datetime(2026, 1, 1, tzinfo=UTC), 2)
    try:
        with calls_at_most(most):
            schedule = Schedule(text, zone)
    except ScheduleTooCostly:
        return None
    except InvalidSchedule as refusal:
        assert "never fires" in refusal.reason  # noqa: PT017 - the other outcome is an answer
        return None
    fires = []
    at: datetime | None = datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(2):
        with calls_at_most(most):
            at = schedule.next(at) if at else None
        fires += [at] if at else []
    with calls_at_most(most):
        behind = schedule.ticks(0).prev(to_us(datetime(2026, 1, 1, tzinfo=UTC)))
    assert behind is None or from_us(behind) < datetime(2026, 1, 1, tzinfo=UTC)
    return fires


FROM_2026 = "DTSTART:20260101T030000\nRRULE:"

NEVER_FIRES = [
    "0 0 30 2 *",
    "0 0 31 2,4,6,9,11 *",
    "0 0 30,31 2 ?",
    *(f"RRULE:FREQ={freq};BYMONTH=2;BYMONTHDAY=30" for freq in ("YEARLY", "MONTHLY", "DAILY", "HOURLY", "SECONDLY")),
    *(f"{FROM_2026}FREQ={freq};BYMONTH=2;BYMONTHDAY=30" for freq in ("YEARLY", "MONTHLY", "DAILY", "MINUTELY")),
    "RRULE:FREQ=WEEKLY;BYMONTH=2;BYDAY=MO;BYSETPOS=2",
    "RRULE:FREQ=MONTHLY;BYDAY=5MO;BYMONTHDAY=1",
    f"{FROM_2026}FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30;COUNT=5",
    f"{FROM_2026}FREQ=YEARLY;INTERVAL=100;BYMONTH=2;BYMONTHDAY=30",
    f"{FROM_2026}FREQ=YEARLY;INTERVAL=4;BYYEARDAY=366",
    f"{FROM_2026}FREQ=MONTHLY;INTERVAL=12;BYMONTH=2",
    "0 0 */31 * 1#2",
    "RRULE:FREQ=MONTHLY;INTERVAL=15;BYMONTH=2,3;BYDAY=MO,TU",
    "RRULE:FREQ=HOURLY;INTERVAL=7;BYHOUR=0;BYSETPOS=2",
    f"{FROM_2026}FREQ=DAILY;INTERVAL=7;BYDAY=MO",
    f"{FROM_2026}FREQ=DAILY;INTERVAL=36000;BYMONTH=2;BYMONTHDAY=30",
    f"{FROM_2026}FREQ=HOURLY;INTERVAL=24;BYHOUR=5",
    f"{FROM_2026}FREQ=HOURLY;INTERVAL=168;BYDAY=MO",
    f"{FROM_2026}FREQ=HOURLY;INTERVAL=878400;BYHOUR=5",
    f"{FROM_2026}FREQ=MINUTELY;INTERVAL=60;BYMINUTE=5",
    f"{FROM_2026}FREQ=SECONDLY;INTERVAL=86400;BYHOUR=5",
    f"{FROM_2026}FREQ=SECONDLY;INTERVAL=3600;BYMINUTE=5",
]

FIRES_FAR_AHEAD = {
    "0 0 29 2 */7": "2032-02-29T05:00",
    "0 0 * 2 1#5": "2044-02-29T05:00",
    "0 0 29 2 *": "2028-02-29T05:00",
    "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO": "2044-02-29T05:00",
    "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO": "2044-02-29T05:00",
    f"{FROM_2026}FREQ=YEARLY;INTERVAL=99": "2026-01-01T08:00",
    f"{FROM_2026}FREQ=WEEKLY;INTERVAL=5000": "2026-01-01T08:00",
    f"{FROM_2026}FREQ=WEEKLY;INTERVAL=5000;BYDAY=MO": "2121-10-27T07:00",
    f"{FROM_2026}FREQ=HOURLY;INTERVAL=876000": "2026-01-01T08:00",
    f"{FROM_2026}FREQ=MINUTELY;INTERVAL=52000000": "2026-01-01T08:00",
    f"{FROM_2026}FREQ=SECONDLY;INTERVAL=1000000000": "2026-01-01T08:00",
    f"{FROM_2026}FREQ=SECONDLY;COUNT=100000": "2026-01-01T08:00",
    f"{FROM_2026}FREQ=HOURLY;INTERVAL=7;COUNT=100000": "2026-01-01T08:00",
    f"{FROM_2026}FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;COUNT=1000": "2028-02-29T08:00",
    f"{FROM_2026}FREQ=WEEKLY;BYDAY=MO,TU;BYSETPOS=1;COUNT=100000": "2026-01-05T08:00",
    "R/2026-01-31T00:00:00Z/P1200M": "2026-01-31T00:00",
}


@pytest.mark.parametrize("text", NEVER_FIRES)
def test_what_never_fires_is_refused_without_much_work(text: str) -> None:
    assert ask(text) is None


@pytest.mark.parametrize("text", FIRES_FAR_AHEAD)
def test_what_fires_far_ahead_is_found_without_much_work(text: str) -> None:
    fires = ask(text)
    assert fires
    assert fires[0] == datetime.fromisoformat(FIRES_FAR_AHEAD[text]).replace(tzinfo=UTC)


@settings(PATIENT, max_examples=200)
@given(cron_texts() | rrule_texts(), zone_names)
def test_no_drawn_rule_takes_much_work(text: str, zone: str) -> None:
    # How much a drawn rule needs depends on the zones and years that were asked about before it: leave room for that.
    ask(text, zone, 4 * MAX_CALLS)


def test_the_work_counter_sees_a_long_walk() -> None:
    with pytest.raises(TooMuchWorkError), calls_at_most(100):
        [abs(number) for number in range(1000)]
