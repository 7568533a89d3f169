"""Plans one after the other, as the scheduler makes them for a job that is late."""

from evertick.domain.misfire import Plan, plan
from evertick.domain.rule import Rule


def planned_until_caught_up(rule: Rule, fire_us: int, now_us: int) -> list[Plan]:
    """The plans of the timer that stands at `fire_us`, until it stands after now."""
    plans: list[Plan] = []
    next_us: int | None = fire_us
    while next_us is not None and next_us <= now_us:
        plans.append(plan(rule, next_us, now_us))
        next_us = plans[-1].next_us
    return plans
