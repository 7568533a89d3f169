"""A recurrence rule in English."""

from collections.abc import Iterator, Sequence

from evertick.domain.schedule.describe.english import (
    MONTHS,
    WEEKDAYS,
    counted,
    hours_phrase,
    listed,
    local,
    moment,
    months,
    numbered,
    ordinal,
    position,
    spans,
    times_phrase,
    wall_moment,
)
from evertick.domain.schedule.instants import from_us
from evertick.domain.schedule.rrule.spec import ALL_WEEKDAYS, RRule
from evertick.domain.schedule.rrule.text import Freq
from evertick.domain.schedule.zone import Zone

_PERIODS = ("year", "month", "week", "day", "hour", "minute", "second")
_THE_DAYS = [f"the {ordinal(number)}" for number in range(32)]


def rrule_phrase(spec: RRule, zone: Zone) -> str:
    """What the rule says, without its zone: `every 2 weeks on Monday and Wednesday at 09:30, 10 times`."""
    period = _PERIODS[spec.freq]
    often = f"every {period}" if spec.interval == 1 else f"every {counted(spec.interval, period)}"
    days = _days(spec)
    if spec.elapsed:
        head = " ".join(part for part in (often, _stepped_times(spec), days) if part)
    else:
        times = _times(spec)
        apart = times.startswith("every") or "when it is" in days
        head = f"{often} {days}".strip() + (", " if apart else " ") + times
    return ", ".join([head, *_limits(spec, zone)])


def _limits(spec: RRule, zone: Zone) -> Iterator[str]:
    if spec.bysetpos:
        chosen = listed(f"the {position(number)}" for number in _from_both_ends(spec.bysetpos))
        yield f"only {chosen} of these in each {_PERIODS[spec.freq]}"
    if spec.count is not None:
        yield counted(spec.count, "time")
    if spec.first is not None:
        yield f"starting {wall_moment(spec.first)}"
    if spec.until_wall is not None:
        yield f"until {wall_moment(spec.until_wall)}"
    if spec.until_us is not None:
        yield f"until {moment(local(from_us(spec.until_us), zone))}"
    if added := len(spec.rdates) + len(spec.rdates_us):
        yield f"and on {counted(added, 'extra date')}"
    if removed := len(spec.exdates) + len(spec.exdates_us):
        yield f"except on {counted(removed, 'date')}"


def _from_both_ends(numbers: Sequence[int]) -> list[int]:
    """First, second, … second-to-last, last."""
    return sorted(numbers, key=lambda number: (number < 0, number))


# Times


def _times(spec: RRule) -> str:
    second, minute, hour = (",".join(map(str, part)) for part in (spec.bysecond, spec.byminute, spec.byhour))
    return times_phrase(second, minute, hour).text


def _stepped_times(spec: RRule) -> str:
    """What the time parts add to a rule by the hour, minute or second."""
    words = []
    for numbers, unit, freq in ((spec.bysecond, "second", Freq.SECONDLY), (spec.byminute, "minute", Freq.MINUTELY)):
        # A rule by the hour is on the hour unless something else is said.
        if numbers and not (spec.freq < freq and numbers == (0,)):
            words.append(numbered(numbers, unit))
    inside = f"at {' of '.join(words)}" if words else ""
    return f"{inside} {hours_phrase(spec.byhour)}".strip() if spec.byhour else inside


# Days


def _days(spec: RRule) -> str:
    nouns = [noun for noun in (_weekdays(spec), _month_days(spec), _year_days(spec)) if noun]
    if spec.byweekno and not nouns:
        nouns = ["every day"]
    # The parts of a rule restrict each other: a Friday when it is the 13th.
    on = f"on {' when it is '.join(nouns)}" if nouns else ""
    return " ".join(part for part in (on, _weeks(spec), _in_months(spec)) if part)


def _weekdays(spec: RRule) -> str:
    if spec.byday == ALL_WEEKDAYS:
        return "" if spec.freq > Freq.MONTHLY else "every day"
    plain = spans(sorted(day for nth, day in spec.byday if not nth), WEEKDAYS)
    if plain and spec.freq < Freq.WEEKLY:
        plain[0] = f"every {plain[0]}"
    nth = [(nth, day) for nth, day in spec.byday if nth]
    nth.sort(key=lambda item: (item[0] < 0, item))
    words = [*plain, *(f"the {position(number)} {WEEKDAYS[day]}" for number, day in nth)]
    of_year = " of the year" if nth and spec.freq is Freq.YEARLY and not spec.bymonth else ""
    return listed(words) + of_year if words else ""


def _month_days(spec: RRule) -> str:
    if not spec.bymonthday:
        return ""
    if _is_one_date(spec):
        return f"{spec.bymonthday[0]} {MONTHS[spec.bymonth[0] - 1]}"
    days = spans([number for number in spec.bymonthday if number > 0], _THE_DAYS)
    days += [f"the {position(number)} day" for number in spec.bymonthday if number < 0]
    month = "" if spec.bymonth or spec.freq is Freq.MONTHLY else " of the month"
    return listed(days) + month


def _is_one_date(spec: RRule) -> bool:
    return len(spec.bymonth) == len(spec.bymonthday) == 1 and spec.bymonthday[0] > 0


def _year_days(spec: RRule) -> str:
    days = listed(f"the {_place(number)} day" for number in _from_both_ends(spec.byyearday)) if spec.byyearday else ""
    return f"{days} of the year" if days else ""


def _place(number: int) -> str:
    return ordinal(number) if number > 0 else position(number)


def _weeks(spec: RRule) -> str:
    if not spec.byweekno:
        return ""
    counted_weeks = [f"week {week}" for week in spec.byweekno if week > 0]
    from_end = [f"the {position(week)} week" for week in spec.byweekno if week < 0]
    return f"of {listed([*counted_weeks, *from_end])}"


def _in_months(spec: RRule) -> str:
    if not spec.bymonth or _is_one_date(spec):
        return ""
    counted_in_month = spec.bymonthday or any(nth for nth, _ in spec.byday)
    return f"{'of' if counted_in_month else 'in'} {months(spec.bymonth)}"
