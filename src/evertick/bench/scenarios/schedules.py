"""Scenario `schedules`: how fast the next fire time is computed, alone and for many jobs that share rules.

CPU seconds of this process, so that a busy machine does not change the figures.
"""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from evertick.bench.scenario import Option, Seed, machine
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.schedule.schedule import Schedule
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.planning import LOOP_STEPS, BatchPlanning
from evertick.store.engine.timers import Timer

COMMON = {
    "cron every minute, UTC": ("* * * * *", "UTC"),
    "cron every 5 minutes, New York": ("*/5 * * * *", "America/New_York"),
    "cron daily 02:30, New York": ("30 2 * * *", "America/New_York"),
    "cron weekdays 09:00, Berlin": ("0 9 * * 1-5", "Europe/Berlin"),
    "cron last day of month": ("0 0 L * *", "UTC"),
    "cron leap day": ("0 0 29 2 *", "UTC"),
    "every 5 minutes": ("every 5m", "UTC"),
    "rrule every other week, New York": (
        "DTSTART:20200106T093000\nRRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE",
        "America/New_York",
    ),
    "rrule last weekday of month": ("RRULE:FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1;BYHOUR=17", "UTC"),
    "rrule every 15 minutes since 2000": ("DTSTART:20000101T000000\nRRULE:FREQ=MINUTELY;INTERVAL=15", "UTC"),
}
START_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class SchedulesOptions:
    seconds: Annotated[float, Option("CPU seconds for each schedule.", 0.01, 60)] = 0.5
    jobs: Annotated[int, Option("Number of timers that are due at one instant.", 1, 5_000_000)] = 100_000
    rules: Annotated[int, Option("Number of rules that these timers share.", 1, 86_400)] = 1_000
    seed: Seed = 1


def run(options: SchedulesOptions, progress: Callable[[str], None]) -> dict[str, object]:
    """Measure, telling `progress` what comes next."""
    next_fires = {}
    for name, (text, timezone) in COMMON.items():
        progress(f"next fire: {name}")
        next_fires[name] = round(_next_rate(Schedule(text, timezone), options.seconds))
    progress(f"planning {options.jobs} timers of {options.rules} rules")
    plans, seconds = _plan(options)
    return {
        "scenario": "schedules",
        "runs": options.jobs,
        "seconds": round(seconds, 4),
        "rate_per_second": round(options.jobs / seconds),
        "next_fires_per_second": next_fires,
        "plans": plans,
        "settings": asdict(options),
        "machine": machine(),
    }


def _next_rate(schedule: Schedule, seconds: float) -> float:
    """Computations per CPU second, each from the fire time before it, as the scheduler does."""
    ticks = schedule.ticks(to_us(START_AT))
    done, at = 0, to_us(START_AT)
    began = time.process_time()
    while (spent := time.process_time() - began) < seconds:
        for _ in range(100):
            at = ticks.next(at) or to_us(START_AT)
        done += 100
    return done / spent


def _plan(options: SchedulesOptions) -> tuple[int, float]:
    """Plan timers that are due at one instant as a scheduler plans a batch; calendars are warm, as they are there.

    Returns the number of plans, and the CPU seconds.
    """
    choose = random.Random(options.seed)  # noqa: S311 - a repeatable load, not a secret
    rules = dict(enumerate(_distinct_rules(options.rules)))
    now_us = to_us(START_AT + timedelta(days=choose.randrange(365)))
    due_at = {number: from_us(rule.ticks().prev(now_us + 1) or now_us) for number, rule in rules.items()}
    chosen = (choose.randrange(len(rules)) for _ in range(options.jobs))
    entries = [PendingTimer(job, Timer(job, "tick", due_at[n], due_at[n], 1, n, 1)) for job, n in enumerate(chosen)]
    planning = BatchPlanning(rules, now_us, steps=LOOP_STEPS)
    began = time.process_time()
    for _ in planning.run(entries):
        pass
    groups = planning.planned.groups
    seconds = time.process_time() - began
    assert sum(len(group.entries) for group in groups) == options.jobs
    return len(groups), seconds


def _distinct_rules(count: int) -> Iterator[Rule]:
    """Daily rules that differ in their minute, spread over a few zones and policies' worth of work."""
    zones = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Tokyo", "Australia/Lord_Howe")
    for number in range(count):
        minute_of_day, round_ = number % 1440, number // 1440
        text = f"{round_ % 60} {minute_of_day % 60} {minute_of_day // 60} * * *"
        schedule = Schedule(text, zones[number % len(zones)])
        yield rule_of(schedule, Policies(misfire_grace=timedelta(days=1)))
