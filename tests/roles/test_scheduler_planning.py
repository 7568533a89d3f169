"""From due timers to what is fired: pure, and one plan for all jobs that fire alike."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from engine import AT, MINUTE, plan_firing
from evertick.domain.ids import job_id_of
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.stable_hash import jitter_offset
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.planning import BatchPlanning
from evertick.store.engine import timers
from evertick.store.engine.timers import Timer

JITTER = timedelta(minutes=10)


def rule(schedule: str = "* * * * *", policies: Policies | None = None) -> Rule:
    return rule_of(Schedule(schedule, anchor_at=AT), policies or Policies())


def entry(number: int, *, kind: str = "tick", fire_at: datetime = AT, rule_id: int = 1) -> PendingTimer:
    return PendingTimer(number, Timer(job_id_of(number, 7), kind, fire_at, fire_at, 1, rule_id, 1))


def only_plan(entry: PendingTimer, rules: Mapping[int, Rule], now_at: datetime = AT) -> timers.FirePlan:
    [group] = plan_firing([entry], rules, to_us(now_at)).groups
    return group.plan


def test_jobs_that_fire_alike_are_planned_once() -> None:
    entries = [entry(number, rule_id=1 + number % 2) for number in range(1, 1001)]
    planning = BatchPlanning({1: rule(), 2: rule("0 * * * *")}, to_us(AT))
    pauses = list(planning.run(entries))  # one after each plan
    assert len(pauses) == 2
    planned = planning.planned
    odd, even = planned.groups
    assert (odd.plan.rule_id, odd.plan.next_fire_at) == (2, AT + 60 * MINUTE)
    assert (even.plan.rule_id, even.plan.next_fire_at) == (1, AT + MINUTE)
    assert (odd.entries, even.entries) == (entries[::2], entries[1::2])
    assert [len(jobs) for _, jobs in planned.firing] == [500, 500]


def test_a_tick_runs_at_its_fire_time_and_the_timer_goes_to_the_next() -> None:
    plan = only_plan(entry(1), {1: rule()})
    assert plan == timers.FirePlan("tick", AT, AT, 1, AT, "tick", AT + MINUTE, AT + MINUTE, "SKIP", 1, gaps=())


def test_jitter_moves_the_due_time_of_each_job_and_never_the_fire_time() -> None:
    jittered = rule("0 * * * *", Policies(jitter=JITTER))
    entries = [entry(number) for number in range(1, 6)]
    plans = [plan for plan, _ in plan_firing(entries, {1: jittered}, to_us(AT + JITTER)).firing]
    offsets = [jitter_offset(each.timer.job_id, JITTER) for each in entries]
    assert len(set(offsets)) == 5
    assert [(plan.run_at, plan.next_fire_at) for plan in plans] == [(AT, AT + 60 * MINUTE)] * 5
    assert [plan.next_due_at for plan in plans] == [AT + 60 * MINUTE + offset for offset in offsets]


def test_ticks_that_were_put_off_to_different_times_are_not_alike() -> None:
    put_off = entry(2)._replace(timer=entry(2).timer._replace(due_at=AT + timedelta(seconds=1)))
    planned = plan_firing([entry(1), put_off], {1: rule()}, to_us(AT + MINUTE))
    assert [group.plan.due_at for group in planned.groups] == [AT, AT + timedelta(seconds=1)]


def test_a_rule_that_cannot_be_planned_is_reported_and_its_neighbours_fire() -> None:
    poison = replace(rule("0 9 * * *"), timezone="Nowhere/Land")
    entries = [entry(1), entry(2, rule_id=2), entry(3, rule_id=3), entry(4)]
    planned = plan_firing(entries, {1: rule(), 2: poison}, to_us(AT))
    assert planned.entries == [entries[0], entries[3]]
    assert planned.unreadable.keys() == {entries[1].timer.job_id, entries[2].timer.job_id}
    assert "rule 2 cannot be planned" in planned.unreadable[entries[1].timer.job_id]


def test_gaps_stand_with_the_plan_they_belong_to() -> None:
    missed = rule("* * * * *", Policies(missed_window=MissedWindow.SKIP, misfire_grace=timedelta(0)))
    late = entry(3, rule_id=2, fire_at=AT - 5 * MINUTE)
    planned = plan_firing([entry(1), entry(2), late], {1: rule(), 2: missed}, to_us(AT))
    on_time, behind = planned.groups
    assert on_time.plan.gaps == ()
    assert behind.plan.gaps == (timers.PlannedGap(AT - 5 * MINUTE, AT - MINUTE, 5, "missed"),)
    assert (behind.plan.run_at, behind.entries) == (AT, [late])


def test_one_tick_of_an_outage_at_a_time() -> None:
    everything = rule("* * * * *", Policies(missed_window=MissedWindow.RUN_ALL, misfire_grace=timedelta(0)))
    plan = only_plan(entry(1, fire_at=AT - 5 * MINUTE), {1: everything})
    assert (plan.run_at, plan.reason, plan.next_fire_at) == (AT - 5 * MINUTE, "catch_up", AT - 4 * MINUTE)


def test_a_one_off_has_no_next_tick() -> None:
    plan = only_plan(entry(1), {1: rule("now")})
    assert (plan.run_at, plan.next_fire_at, plan.next_due_at) == (AT, None, None)


def test_a_timer_that_is_not_due_by_our_clock_stays_where_it_is() -> None:
    plan = only_plan(entry(1), {1: rule()}, AT - MINUTE)
    assert (plan.run_at, plan.next_fire_at) == (None, AT)


@pytest.mark.parametrize("kind", ["retry", "manual", "replay"])
def test_runs_that_stand_already_ask_nobody(kind: str) -> None:
    allow = rule("* * * * *", Policies(concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=5))
    plan = only_plan(entry(1, kind=kind), {1: allow})
    assert plan == timers.FirePlan(kind, AT, AT, 1, AT, None, None, None, "SKIP", 1)


def test_a_run_that_waits_its_turn_asks_by_its_rule() -> None:
    allow = rule("* * * * *", Policies(concurrent_policy=ConcurrentPolicy.ALLOW, max_concurrent=5))
    plan = only_plan(entry(1, kind="queued"), {1: allow})
    assert (plan.run_at, plan.policy, plan.limit) == (AT, "ALLOW", 5)


def test_what_met_a_lock_is_split_into_plain_ticks_and_others_and_then_into_halves() -> None:
    rules = {1: rule(), 2: rule(policies=Policies(concurrent_policy=ConcurrentPolicy.REPLACE))}
    entries = [entry(number, rule_id=1 + number % 2) for number in range(6)]
    plain, others = plan_firing(entries, rules, to_us(AT)).split()
    assert [each.key for each in plain.entries] == [0, 2, 4]
    halves = others.split()
    assert [[each.key for each in half.entries] for half in halves] == [[3, 5], [1]]
    assert halves[1].split() == []
