"""Whatever schedule is valid can be described, judged and previewed, in every zone and at every instant."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import assume, given, strategies as st

from evertick import InvalidSchedule, Schedule
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.preview import as_new_job, preview

ZONES = st.sampled_from(
    [
        *("UTC", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Asia/Tokyo", "Australia/Lord_Howe"),
        *("Pacific/Chatham", "Pacific/Apia", "Antarctica/Troll", "Africa/Casablanca", "Asia/Beirut", "America/Havana"),
    ]
)
INSTANTS = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


def field(low: int, high: int, *words: str) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    span = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, high).map(lambda n: f"*/{n}")
    listed = st.lists(st.one_of(number.map(str), span, *(st.just(word) for word in words)), min_size=1, max_size=4)
    return st.one_of(st.just("*"), step, st.just("H"), listed.map(",".join))


CRON = st.tuples(
    st.one_of(st.just("0"), field(0, 59)),
    field(0, 59),
    field(0, 23),
    field(1, 31, "L", "LW"),
    field(1, 12),
    field(0, 7, "1#1", "5#5", "0L", "3L"),
).map(" ".join)


def numbers(name: str, low: int, high: int, *, negative: bool = False) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    either = st.one_of(number, number.map(lambda n: -n)) if negative else number
    listed = st.lists(either.map(str), min_size=1, max_size=4, unique=True).map(",".join)
    return st.one_of(st.just(""), listed.map(lambda text: f";{name}={text}"))


def weekdays(*places: str) -> st.SearchStrategy[str]:
    names = st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"])
    days = st.lists(st.tuples(st.sampled_from(places), names), min_size=1, max_size=7)
    return days.map(lambda pairs: ";BYDAY=" + ",".join(place + name for place, name in pairs))


def joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map("".join)


# Day parts that can come together: what never does is refused, and refusals are not the subject here.
MONTHS, MONTH_DAYS = numbers("BYMONTH", 1, 12), numbers("BYMONTHDAY", 1, 28, negative=True)
YEARLY = st.one_of(
    joined(st.just(";BYMONTHDAY=29,31,-1")),
    joined(MONTHS, MONTH_DAYS),
    joined(MONTHS, st.one_of(weekdays(""), weekdays("1", "-1"))),
    weekdays("20", "-3"),
    numbers("BYYEARDAY", 1, 366, negative=True),
    joined(numbers("BYWEEKNO", 1, 52, negative=True), weekdays("")),
    numbers("BYWEEKNO", 1, 52, negative=True),
)
MONTHLY = st.one_of(
    joined(MONTHS, MONTH_DAYS), joined(MONTHS, weekdays("1", "-1", "5")), joined(weekdays(""), MONTH_DAYS)
)
WEEKLY = joined(MONTHS, weekdays(""))
FINER = st.one_of(st.just(""), WEEKLY, joined(MONTHS, MONTH_DAYS))

RRULE = joined(
    st.one_of(
        joined(st.just("RRULE:FREQ=YEARLY"), YEARLY),
        joined(st.just("RRULE:FREQ=MONTHLY"), MONTHLY),
        joined(st.just("RRULE:FREQ=WEEKLY"), WEEKLY),
        joined(st.sampled_from(["RRULE:FREQ=DAILY", "RRULE:FREQ=HOURLY", "RRULE:FREQ=MINUTELY"]), FINER),
    ),
    st.one_of(st.just(""), st.integers(1, 30).map(lambda n: f";INTERVAL={n}")),
    numbers("BYHOUR", 0, 23),
    numbers("BYMINUTE", 0, 59),
    numbers("BYSETPOS", 1, 9, negative=True),
    st.sampled_from(
        ["", ";COUNT=1", ";COUNT=40", ";UNTIL=20300101", ";UNTIL=20300101T120000", ";UNTIL=99991231T235959Z"]
    ),
    st.sampled_from(["", "", "\nDTSTART:20260308T023000", "\nEXDATE:20260308T023000\nRDATE:20260309T000100"]),
)

SPANS = st.sampled_from(["P1M", "P1Y", "P2M3D", "PT1H", "PT90S", "P1Y2M3DT4H5M6S", "P1W"])
REPEATING = st.builds("R{}/{:%Y-%m-%dT%H:%M:%S}/{}".format, st.sampled_from(["", "1", "7"]), INSTANTS, SPANS)
EVERY = st.builds("every {}{}".format, st.integers(1, 5000), st.sampled_from(["s", "m", "h", "d", "w"]))
ONE_OFF = st.one_of(
    INSTANTS.map(lambda at: at.isoformat()), INSTANTS.map(lambda at: at.replace(tzinfo=None).isoformat())
)
TEXTS = st.one_of(CRON, RRULE, REPEATING, EVERY, ONE_OFF, st.sampled_from(["now", "in 90s", "manual", "@hourly"]))


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A schedule as a job would have it; texts that are refused do not count."""
    window = sorted(draw(st.lists(INSTANTS, min_size=2, max_size=2, unique=True)))
    start_at, end_at = (at if draw(st.booleans()) else None for at in window)
    text, zone = draw(TEXTS), draw(ZONES)
    gap, overlap = draw(st.sampled_from(DstGap)), draw(st.sampled_from(DstOverlap))

    def build(anchor_at: datetime | None) -> Schedule:
        return Schedule(text, zone, gap, overlap, start_at, end_at, "a job", anchor_at=anchor_at)

    try:
        return as_new_job(build, draw(INSTANTS))
    except InvalidSchedule:
        assume(False)
        raise


@given(schedules())
def test_every_schedule_reads_as_one_sentence(schedule: Schedule) -> None:
    sentence = schedule.describe()
    assert sentence == sentence.strip()
    assert sentence[0].isupper()
    assert "\n" not in sentence
    assert "  " not in sentence
    assert "None" not in sentence


@given(schedules(), st.none() | INSTANTS)
def test_every_schedule_can_be_judged(schedule: Schedule, after: datetime | None) -> None:
    findings = schedule.lint(after=after)
    assert all(finding.message and finding.code for finding in findings)
    over = after is not None and schedule.next(after) is None and schedule.text != "manual"
    assert ("never_fires" in {finding.code for finding in findings}) == over


@given(schedules(), INSTANTS, st.integers(1, 8), st.integers(0, 3600))
def test_every_schedule_can_be_previewed(schedule: Schedule, after: datetime, count: int, jitter_seconds: int) -> None:
    ahead = preview(schedule, after, count, jitter=timedelta(seconds=jitter_seconds), job_id=7)
    if schedule.text != "now":
        assert [row.fire_at for row in ahead.rows] == schedule.upcoming(after, count)
    assert all(row.local == row.fire_at <= row.due_at for row in ahead.rows)
    assert all(note for row in ahead.rows for note in row.notes)
    assert all(after < lost.at <= ahead.rows[-1].fire_at for lost in ahead.lost)


@given(schedules(), INSTANTS)
def test_up_to_a_day_no_two_ticks_are_nearer_on_the_clock_than_the_shortest_interval(
    schedule: Schedule, after: datetime
) -> None:
    shortest = schedule.shortest_interval()
    walls = [row.local.replace(tzinfo=None) for row in preview(schedule, after, 8).rows if not row.notes]
    if shortest is None:
        assert len(walls) <= 1
    else:
        gaps = [abs(later - earlier) for earlier, later in pairwise(walls)]
        assert all(gap >= min(shortest, timedelta(days=1)) for gap in gaps)
