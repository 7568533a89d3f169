"""The results can pass, and each can fail: a good observation has no faults, and each way of spoiling it is told."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from hostile.attacks import ATTACKS
from hostile.evaluation import (
    LAG_CONSTANT_SECONDS,
    LOOP_SECONDS,
    MEMORY_MB,
    AttackResult,
    Call,
    Delay,
    Observation,
    Spread,
    Tick,
    evaluate,
)
from hostile.machine import Usage, usage
from hostile.server import worst_delay

BEGAN = 1000.5
SECONDS = range(1001, 1011)
SOURCES = ("webhook", "worker")
GOOD = Observation(
    began=BEGAN,
    ended=1010.5,
    sources=SOURCES,
    ticks=[Tick(source, second, second + 0.02, f"{source}-{second}") for source in SOURCES for second in SECONDS],
    calls=[Call("list", BEGAN + number / 5, 0.01) for number in range(50)],
    delays=[Delay(BEGAN + number / 50, 0.001) for number in range(500)],
    memory_mb=100.0,
    peak_mb=120.0,
    server_delay_seconds=0.01,
)
LATE = Tick("webhook", 1004, 1004 + LAG_CONSTANT_SECONDS + 0.5, "webhook-1004")


def result(attacked: Observation) -> AttackResult:
    return evaluate("test", GOOD, attacked, is_timed=True)


def without(observation: Observation, *gone: int) -> Observation:
    return replace(observation, ticks=[tick for n, tick in enumerate(observation.ticks) if n not in gone])


def with_tick(observation: Observation, tick: Tick) -> Observation:
    kept = [each for each in observation.ticks if (each.source, each.nominal) != (tick.source, tick.nominal)]
    return replace(observation, ticks=[*kept, tick])


def with_call(observation: Observation, call: Call) -> Observation:
    return replace(observation, calls=[*observation.calls, call])


SPOILED: dict[str, Callable[[Observation], Observation]] = {
    "has no run": lambda good: without(good, 3),
    "has 2 runs": lambda good: replace(good, ticks=[*good.ticks, replace(good.ticks[0], run_id="another")]),
    "p99 of lag": lambda good: with_tick(good, LATE),
    "p99 of latency": lambda good: with_call(good, Call("list", 1003.0, LAG_CONSTANT_SECONDS + 0.5)),
    "answered 500": lambda good: with_call(good, Call("create", 1003.0, 0.01, "answered 500")),
    "no call": lambda good: replace(good, calls=[]),
    "loop stood still": lambda good: replace(good, server_delay_seconds=LOOP_SECONDS),
    "does not tell": lambda good: replace(good, server_delay_seconds=None),
    "memory grew": lambda good: replace(good, peak_mb=good.memory_mb + MEMORY_MB + 1),
}


def test_a_victim_that_is_served_as_ever_has_nothing_to_say() -> None:
    assert result(GOOD).faults == ()


@pytest.mark.parametrize("words", SPOILED)
def test_each_way_of_being_served_worse_is_told(words: str) -> None:
    (fault,) = result(SPOILED[words](GOOD)).faults
    assert words in fault


def test_how_long_things_took_is_judged_in_the_campaign_only() -> None:
    slow = replace(with_tick(GOOD, LATE), server_delay_seconds=LOOP_SECONDS)
    assert len(evaluate("test", GOOD, slow, is_timed=True).faults) == 2
    assert evaluate("test", GOOD, slow).ok
    assert not evaluate("test", GOOD, without(slow, 3)).ok


def test_a_second_attempt_of_one_run_is_no_second_run() -> None:
    again = replace(GOOD.ticks[0], at=GOOD.ticks[0].at + 3)
    assert result(replace(GOOD, ticks=[*GOOD.ticks, again])).ok


def test_what_the_harness_itself_was_late_is_not_held_against_the_server() -> None:
    stood_still = sorted([*GOOD.delays, Delay(LATE.at, 1.4)], key=lambda delay: delay.at)
    assert result(replace(with_tick(GOOD, LATE), delays=stood_still)).ok


def test_a_standstill_of_the_harness_elsewhere_excuses_nothing() -> None:
    stood_still = sorted([*GOOD.delays, Delay(1009.0, 1.4)], key=lambda delay: delay.at)
    assert not result(replace(with_tick(GOOD, LATE), delays=stood_still)).ok


def test_a_machine_that_others_use_is_given_more_time() -> None:
    assert result(replace(with_tick(GOOD, LATE), slowdown=2.0)).ok
    assert result(replace(GOOD, server_delay_seconds=LOOP_SECONDS, slowdown=2.0)).ok


def test_others_slow_us_down_by_the_share_that_they_leave() -> None:
    cores = os.cpu_count() or 1
    before = Usage(at=0.0, everybody=0.0, own=0.0)
    assert Usage(at=10.0, everybody=9.0 * cores, own=9.0 * cores).slowdown_since(before) == 1.0
    assert Usage(at=10.0, everybody=9.0 * cores, own=4.0 * cores).slowdown_since(before) == 2.0
    assert Usage(at=10.0, everybody=10.0 * cores, own=0.0).slowdown_since(before) == 10.0


def test_the_usage_of_this_process_is_its_own() -> None:
    before = usage([os.getpid()])
    while usage([os.getpid()]).own < before.own + 0.1:
        pass
    assert usage([1 << 30]).own == 0.0


def test_a_tick_outside_of_the_window_belongs_to_another_one() -> None:
    assert result(with_tick(GOOD, Tick("webhook", 1011, 1019.0, "next"))).ok
    assert not result(replace(GOOD, ended=GOOD.ended + 1)).ok


def test_percentiles_are_by_the_nearest_rank() -> None:
    values = [float(number) for number in range(1, 201)]
    assert (Spread.of(values).p50, Spread.of(values).p99, Spread.of(values).max) == (100.0, 198.0, 200.0)


def test_the_servers_own_delay_is_that_between_two_looks() -> None:
    before = {0.01: 90.0, 0.1: 95.0, 1.0: 99.0, float("inf"): 100.0}
    after = {0.01: 190.0, 0.1: 196.0, 1.0: 200.0, float("inf"): 201.0}
    assert worst_delay(before, after) == 0.01
    assert worst_delay(before, {**after, float("inf"): 202.0}) == 1.0
    assert worst_delay(before, dict.fromkeys(before, 200.0) | {0.01: 190.0}) == 0.0
    assert worst_delay({}, {}) is None


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_that_is_refused_for_its_form_is_none(name: str) -> None:
    attack = ATTACKS[name]
    assert attack.missing_effects({"answers 404": 1000, "connections refused": 1000, "sent MB": 1000})
    assert not attack.missing_effects(attack.effects)
