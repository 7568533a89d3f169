"""From due timers to what is fired: pure, and one plan for all jobs that fire alike."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from engine import AT, MINUTE
from evertick.domain.ids import job_id_of
from evertick.domain.jitter import jitter_offset
from evertick.domain.misfire import Plan, plan
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.schedule import Schedule
from evertick.roles.scheduler import planning
from evertick.roles.scheduler.agenda import Entry
from evertick.roles.scheduler.planning import plan_firing
from evertick.store.timers import Timer

JITTER = timedelta(minutes=10)


def rule(schedule: str = "* * * * *", policies: Policies | None = None) -> Rule:
    return rule_of(Schedule(schedule, anchor_at=AT), policies or Policies())


def entry(number: int, *, kind: str = "tick", fire_at: datetime = AT, rule_id: int = 1) -> Entry:
    return Entry(number, Timer(job_id_of(number, 7), kind, fire_at, fire_at, 1, rule_id))


def test_jobs_that_fire_alike_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(rule: Rule, fire_us: int, now_us: int, *, jitter_us: int, most_fires: int) -> Plan:
        calls.append(fire_us)
        return plan(rule, fire_us, now_us, jitter_us=jitter_us, most_fires=most_fires)

    monkeypatch.setattr(planning, "plan", counted)
    entries = [entry(number, rule_id=1 + number % 2) for number in range(1, 1001)]
    planned = plan_firing(entries, {1: rule(), 2: rule("0 * * * *")}, to_us(AT))
    assert len(calls) == 2
    assert len(planned.firing) == 1000
    assert planned.entries == entries
    nexts = {AT + MINUTE if number % 2 == 0 else AT + 60 * MINUTE for number in range(1, 3)}
    assert set(planned.firing.next_fire_ats) == nexts


def test_a_tick_runs_at_its_fire_time_and_the_timer_goes_to_the_next() -> None:
    firing = plan_firing([entry(1)], {1: rule()}, to_us(AT)).firing
    assert (firing.fire_ats, firing.due_ats, firing.rule_ids) == ([AT], [AT], [1])
    assert (firing.run_ats, firing.reasons) == ([AT], ["tick"])
    assert (firing.next_fire_ats, firing.next_due_ats) == ([AT + MINUTE], [AT + MINUTE])
    assert (firing.policies, firing.limits, firing.gap_numbers) == (["SKIP"], [1], [])


def test_jitter_moves_the_due_time_of_each_job_and_never_the_fire_time() -> None:
    jittered = rule("0 * * * *", Policies(jitter=JITTER))
    entries = [entry(number) for number in range(1, 6)]
    firing = plan_firing(entries, {1: jittered}, to_us(AT + JITTER)).firing
    offsets = [jitter_offset(each.timer.job_id, JITTER) for each in entries]
    assert len(set(offsets)) == 5
    assert firing.run_ats == [AT] * 5
    assert firing.next_fire_ats == [AT + 60 * MINUTE] * 5
    assert firing.next_due_ats == [AT + 60 * MINUTE + offset for offset in offsets]


def test_a_rule_that_cannot_be_planned_is_reported_and_its_neighbours_fire() -> None:
    poison = replace(rule("0 9 * * *"), timezone="Nowhere/Land")
    entries = [entry(1), entry(2, rule_id=2), entry(3, rule_id=3), entry(4)]
    planned = plan_firing(entries, {1: rule(), 2: poison}, to_us(AT))
    assert planned.entries == [entries[0], entries[3]]
    assert planned.unreadable.keys() == {entries[1].timer.job_id, entries[2].timer.job_id}
    assert "rule 2 cannot be planned" in planned.unreadable[entries[1].timer.job_id]


def test_gaps_name_the_timer_they_belong_to_by_its_place() -> None:
    missed = rule("* * * * *", Policies(missed_window=MissedWindow.SKIP, misfire_grace=timedelta(0)))
    late = entry(3, rule_id=2, fire_at=AT - 5 * MINUTE)
    firing = plan_firing([entry(1), entry(2), late], {1: rule(), 2: missed}, to_us(AT)).firing
    assert (firing.gap_numbers, firing.gap_reasons, firing.gap_ticks) == ([3], ["missed"], [5])
    assert (firing.gap_first_ats, firing.gap_last_ats) == ([AT - 5 * MINUTE], [AT - MINUTE])
    assert firing.run_ats[2] == AT


def test_one_tick_of_an_outage_at_a_time() -> None:
    everything = rule("* * * * *", Policies(missed_window=MissedWindow.RUN_ALL, misfire_grace=timedelta(0)))
    firing = plan_firing([entry(1, fire_at=AT - 5 * MINUTE)], {1: everything}, to_us(AT)).firing
    assert (firing.run_ats, firing.reasons) == ([AT - 5 * MINUTE], ["catch_up"])
    assert firing.next_fire_ats == [AT - 4 * MINUTE]


def test_a_one_off_has_no_next_tick() -> None:
    firing = plan_firing([entry(1)], {1: rule("now")}, to_us(AT)).firing
    assert (firing.run_ats, firing.next_fire_ats, firing.next_due_ats) == ([AT], [None], [None])


def test_a_timer_that_is_not_due_by_our_clock_stays_where_it_is() -> None:
    firing = plan_firing([entry(1)], {1: rule()}, to_us(AT - MINUTE)).firing
    assert (firing.run_ats, firing.next_fire_ats) == ([None], [AT])


@pytest.mark.parametrize("kind", ["retry", "manual", "replay"])
def test_runs_that_stand_already_ask_nobody(kind: str) -> None:
    allow = rule("* * * * *", Policies(concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=5))
    firing = plan_firing([entry(1, kind=kind)], {1: allow}, to_us(AT)).firing
    assert (firing.kinds, firing.run_ats, firing.reasons) == ([kind], [AT], [None])
    assert (firing.next_fire_ats, firing.policies, firing.limits) == ([None], ["SKIP"], [1])


def test_a_run_that_waits_its_turn_asks_by_its_rule() -> None:
    allow = rule("* * * * *", Policies(concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=5))
    firing = plan_firing([entry(1, kind="queued")], {1: allow}, to_us(AT)).firing
    assert (firing.run_ats, firing.policies, firing.limits) == ([AT], ["ALLOW"], [5])
