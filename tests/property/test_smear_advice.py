"""The smear advisor against a walk through every tick and every second of the jitter."""

from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from hypothesis import strategies as st

from evertick import Schedule
from evertick.domain.forecast.advice import Advice, advise_in_steps, reason_against
from evertick.domain.forecast.counting import Counter
from evertick.domain.forecast.horizon import Horizon, Pending, RuleLoad, horizon_of
from evertick.domain.forecast.peaks import ranked
from evertick.domain.forecast.smearing import minute_load, spread_evenly
from evertick.domain.limits import SMEAR_JITTERS_S
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.instants import SECOND_US, to_us
from strategies import AtLength

AT_LENGTH = AtLength()
holds = AT_LENGTH.holds

NOW = datetime(2026, 3, 28, 12, 0, 30, tzinfo=UTC)
"""The clocks of Berlin change within the day."""
MINUTE_US = 60 * SECOND_US
SCHEDULES = st.sampled_from(
    [
        *(
            "0 15 * * *",
            "0 * * * *",
            "5 * * * *",
            "*/5 * * * *",
            "*/15 3 * * *",
            "* * * * *",
            "30 2 * * *",
            "0 0 29 3 *",
        ),
        *("30 0 15 * * *", "45 */10 * * * *", "*/20 * * * * *"),
        *("every 1h", "every 10m", "every 90s", "RRULE:FREQ=DAILY;BYHOUR=15,16;BYMINUTE=0;BYSECOND=0"),
    ]
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin"])
JOBS = st.integers(1, 400)
BEFORE = st.integers(0, 3 * 3600)
"""For how many seconds the timers have been due, where that is beyond their tick."""
LOADS = st.lists(st.tuples(SCHEDULES, ZONES, JOBS, st.booleans(), BEFORE), min_size=1, max_size=8)


def rule_from(text: str, zone: str, number: int) -> Rule:
    # Their misfire grace makes rules of one schedule different ones.
    return rule_of(Schedule(text, zone, anchor_at=NOW), Policies(misfire_grace=timedelta(seconds=60 + number)))


def loads_of(drawn: list[tuple[str, str, int, bool, int]]) -> dict[int, RuleLoad]:
    """Rules whose timers stand at their next ticks, or some of them at one that is due already."""
    loads = {}
    for number, (text, zone, jobs, is_overdue, seconds) in enumerate(drawn):
        rule = rule_from(text, zone, number)
        fire_us = rule.ticks().next(to_us(NOW) - (seconds * SECOND_US if is_overdue else 1))
        assert fire_us is not None
        loads[number] = RuleLoad(rule, (Pending(fire_us, 0, jobs),))
    return loads


def horizon() -> Horizon:
    return horizon_of(to_us(NOW), to_us(NOW) // MINUTE_US * MINUTE_US + 1440 * MINUTE_US, MINUTE_US, to_us(NOW))


def counts_of(loads: dict[int, RuleLoad]) -> list[int]:
    counter = Counter(horizon())
    for load in loads.values():
        counter.add(load)
    return counter.counts


def walked(load: RuleLoad, jitter_s: int = 1, part: float = 1.0) -> list[float]:
    """The minutes of one load, with a part of its jobs at every second of the jitter. What is due already fires now."""
    counts = [0.0] * 1440
    from_us, until_us, _, now_us = horizon()
    for fire_us, _, jobs in load.pending:
        at_us: int | None = fire_us
        while at_us is not None and at_us < until_us:
            for offset_s in range(jitter_s if at_us >= now_us else 1):
                due_us = max(at_us + offset_s * SECOND_US, now_us)
                if due_us < until_us:
                    counts[(due_us - from_us) // MINUTE_US] += jobs * part / (jitter_s if at_us >= now_us else 1)
            at_us = load.rule.ticks().next(max(at_us, now_us - 1))
    stayed = walked(load, part=1.0) if part < 1 else counts
    return [count + (1 - part) * rest for count, rest in zip(counts, stayed, strict=True)]


def after(loads: dict[int, RuleLoad], advice: Advice) -> list[float]:
    parts = {load.key: part for load, part in advice.moved}
    total = [0.0] * 1440
    for key, load in loads.items():
        mine = walked(load, advice.jitter_s, parts[key]) if key in parts else walked(load)
        total = [sum_ + one for sum_, one in zip(total, mine, strict=True)]
    return total


def finished(steps: Generator[None, None, Advice | None]) -> Advice | None:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("Advice | None", end.value)


def advised(loads: dict[int, RuleLoad], max_jobs: int = 10**6) -> Advice | None:
    return finished(advise_in_steps(ranked(loads.items()), counts_of(loads), horizon(), max_jobs))


@holds(SCHEDULES, ZONES, JOBS, st.sampled_from(SMEAR_JITTERS_S), examples=40, at_length=500)
def test_even_jitter_is_what_a_walk_through_its_seconds_counts(text: str, zone: str, jobs: int, jitter_s: int) -> None:
    loads = loads_of([(text, zone, jobs, False, 0)])
    rule = loads[0].rule
    if reason_against(rule, jitter_s) is None and text != "every 90s":  # whose ticks are at two seconds of the minute
        found = spread_evenly(counts_of(loads), [(minute_load(0, loads[0], horizon()), 1.0)], jitter_s)
        assert found == pytest.approx(walked(loads[0], jitter_s), abs=1e-6)


@holds(LOADS, st.integers(1, 1500), examples=40, at_length=1_000)
def test_an_advice_lowers_the_peak_to_what_it_says(drawn: list[tuple[str, str, int, bool, int]], max_jobs: int) -> None:
    drawn = [each for each in drawn if each[0] != "every 90s"]
    loads = loads_of(drawn)
    advice = advised(loads, max_jobs)
    if advice is None:
        return
    counts = counts_of(loads)
    assert advice.counts == pytest.approx(after(loads, advice), abs=1e-6)
    assert advice.peak < max(counts)
    assert sum(advice.counts) <= sum(counts) + 1e-6
    assert advice.jobs <= max_jobs
    assert all(reason_against(loads[key].rule, advice.jitter_s) is None for key in advice.keys)
    if len(advice.moved) > 1:
        assert all(part == 1 for _, part in advice.moved)


@holds(SCHEDULES, ZONES, JOBS, examples=40, at_length=500)
def test_a_rule_alone_is_smeared_if_any_jitter_would_lower_its_peak(text: str, zone: str, jobs: int) -> None:
    loads = loads_of([(text, zone, jobs, False, 0)])
    peak = max(counts_of(loads))
    allowed = [jitter_s for jitter_s in SMEAR_JITTERS_S if reason_against(loads[0].rule, jitter_s) is None]
    lowest = min((max(walked(loads[0], jitter_s)) for jitter_s in allowed), default=peak)
    advice = advised(loads)
    if jobs >= 2 and text != "every 90s" and lowest <= 0.97 * peak - 1:
        assert advice is not None
        assert peak - advice.peak >= 0.8 * (peak - lowest) - 1
    if lowest == peak:
        assert advice is None


@pytest.mark.campaign
@pytest.mark.parametrize("name", AT_LENGTH.properties)
def test_at_length(name: str) -> None:
    AT_LENGTH.properties[name]()
