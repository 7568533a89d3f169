"""What needs attention, and what comes next."""

from collections import Counter
from datetime import timedelta

from evertick.contract.server import NeedKind, NeedLevel
from evertick.domain.alerts import Condition
from evertick.store.tenants.overview import AttentionRow
from evertick.usecases.attention import Late, attention, needs
from evertick.usecases.context import TenantContext
from usecases.world import NOON, World, at


async def test_what_comes_next_is_in_the_order_of_due_times(world: World, tenant: TenantContext) -> None:
    assert (await attention(tenant)).next == ()
    soon = await world.minutely()
    found = await attention(tenant)
    assert [(each.job_id, each.due_at) for each in found.next] == [(soon.job_id, at(1))]
    assert (found.now, found.needs) == (at(0, 30), ())


async def test_overdue_timers_need_attention_until_they_fire(world: World, tenant: TenantContext) -> None:
    await world.minutely()
    await world.set_clock(NOON + timedelta(minutes=3))
    (need,) = (await attention(tenant)).needs
    assert (need.kind, need.level, need.count) == (NeedKind.OVERDUE, NeedLevel.WARN, 1)
    assert need.text == "timer overdue, the oldest for 120 s"
    assert (await attention(world.tenant(2))).needs == ()


def test_the_worst_comes_first() -> None:
    row = AttentionRow(letters=9, jobs=2, paused=1, replays=1, circuits=3, now_at=NOON)
    alerts = Counter({Condition.FAILURES: 2, Condition.CATCH_UP: 1})
    found = list(needs(row, Late(5, timedelta(seconds=9)), alerts))
    assert [(need.kind, need.count) for need in found] == [
        (NeedKind.DEAD_LETTERS, 9),
        (NeedKind.OPEN_BREAKERS, 3),
        (NeedKind.PAUSED_BY_ITSELF, 1),
        (NeedKind.OVERDUE, 5),
        (NeedKind.FAILURES, 2),
        (NeedKind.CATCH_UP, 1),
        (NeedKind.REPLAYS, 1),
    ]
    assert list(needs(AttentionRow(0, 0, 0, 0, 0, NOON), None, Counter())) == []
