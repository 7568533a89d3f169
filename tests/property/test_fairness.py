"""What deficit round robin promises, whatever arrives and however small the budgets. And slots that are never taken
back: whatever tenants do, and in whichever order, each gets its part at once.
"""

from collections import Counter, deque
from itertools import combinations
from random import Random

import pytest
from hypothesis import assume, given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evertick.domain.fairness import LATE_DIVISOR, PRIORITY_SHARES, DueWork, FairShare, FairSlots, TenantCounts

weights = st.lists(st.integers(1, 9), min_size=2, max_size=8)
budgets = st.lists(st.integers(0, 60), max_size=30)
quanta = st.integers(1, 20)
tenants = st.integers(0, 5)
arrivals = st.lists(st.tuples(tenants, st.integers(0, 12)), max_size=4)
rounds = st.lists(st.tuples(arrivals, st.integers(0, 20)), max_size=40)

Item = tuple[int, int]  # tenant, number
TOTAL = 256
VICTIM = 0
Moves = list[tuple[int, str]]
moves = st.lists(st.tuples(st.integers(1, 149), st.sampled_from(("take", "fill", "give back"))), max_size=300)


def play(share: FairShare[Item], arrived: list[tuple[int, int]], sent: Counter[int]) -> None:
    for tenant, count in arrived:
        share.add(tenant, [(tenant, sent[tenant] + number) for number in range(count)])
        sent[tenant] += count


@given(weights, budgets, budgets, quanta)
def test_service_per_weight_of_backlogged_tenants_differs_by_at_most_a_quantum(
    loads: list[int], before: list[int], during: list[int], quantum: int
) -> None:
    share = FairShare[int](quantum)
    for tenant, weight in enumerate(loads):
        share.add(tenant, [tenant] * sum(before + during, 1), weight)
    for budget in before:
        share.take(budget)
    served = Counter(tenant for budget in during for tenant in share.take(budget))
    for one, other in combinations(range(len(loads)), 2):
        assert abs(served[one] / loads[one] - served[other] / loads[other]) <= quantum


@given(rounds, quanta)
def test_no_budget_is_wasted_or_exceeded(played: list[tuple[list[Item], int]], quantum: int) -> None:
    share, sent, waiting = FairShare[Item](quantum), Counter[int](), 0
    for arrived, budget in played:
        play(share, arrived, sent)
        waiting += sum(count for _, count in arrived)
        taken = len(share.take(budget))
        assert taken == min(budget, waiting)
        waiting -= taken
        assert len(share) == waiting


@given(rounds, quanta)
def test_every_item_leaves_once_and_in_its_tenants_order(played: list[tuple[list[Item], int]], quantum: int) -> None:
    share, sent = FairShare[Item](quantum), Counter[int]()
    left: list[Item] = []
    for arrived, budget in played:
        play(share, arrived, sent)
        left += share.take(budget)
    left += share.take(len(share))
    for tenant, count in sent.items():
        assert [number for owner, number in left if owner == tenant] == list(range(count))


@given(weights, quanta, budgets)
def test_a_waiting_tenant_is_served_within_one_turn_of_each_other_tenant(
    loads: list[int], quantum: int, before: list[int]
) -> None:
    share = FairShare[str](quantum)
    for tenant, weight in enumerate(loads):
        share.add(tenant, ["other"] * (sum(before) + quantum * sum(loads)), weight)
    for budget in before:
        share.take(budget)
    share.add(len(loads), ["newcomer"])
    assert "newcomer" in share.take(quantum * sum(loads) + 1)


class OneByOne:
    """Deficit round robin with priorities as it is described, one item at a time."""

    def __init__(self, quantum: int) -> None:
        self.quantum = quantum
        self.rotation: list[int] = []
        self.lines: dict[int, list[list[tuple[int, int, int]]]] = {}
        self.weights: dict[int, int] = {}
        self.credits: dict[int, int] = {}
        self.shares: dict[int, list[int]] = {}

    def add(self, tenant: int, items: list[tuple[int, int, int]], weight: int, priority: int) -> None:
        self.weights[tenant] = weight
        if items and tenant not in self.rotation:
            self.rotation.append(tenant)
            self.lines[tenant], self.credits[tenant] = [[], [], []], 0
            self.shares[tenant] = list(PRIORITY_SHARES)
        if items:
            self.lines[tenant][priority] += items

    def take_one(self) -> tuple[int, int, int]:
        tenant = self.rotation[0]
        self.credits[tenant] = (self.credits[tenant] or self.weights[tenant] * self.quantum) - 1
        item = self.lines[tenant][self._priority(tenant)].pop(0)
        if not any(self.lines[tenant]):
            self.rotation.pop(0)
        elif not self.credits[tenant]:
            self.rotation.append(self.rotation.pop(0))
        return item

    def _priority(self, tenant: int) -> int:
        waiting = [priority for priority in range(3) if self.lines[tenant][priority]]
        served = [priority for priority in waiting if self.shares[tenant][priority]]
        if len(waiting) == 1 or not served:
            self.shares[tenant] = list(PRIORITY_SHARES)
        first = waiting[0] if len(waiting) == 1 or not served else served[0]
        if len(waiting) > 1:
            self.shares[tenant][first] -= 1
        return first


class FairShareModel(RuleBasedStateMachine):
    """Whatever comes and is taken in whatever pieces, it is what one by one would give."""

    def __init__(self) -> None:
        super().__init__()
        self.share, self.model = FairShare[tuple[int, int, int]](3), OneByOne(3)
        self.sent = self.waiting = 0

    @rule(tenant=tenants, priority=st.integers(0, 2), count=st.integers(0, 40), weight=st.integers(1, 4))
    def add(self, tenant: int, priority: int, count: int, weight: int) -> None:
        items = [(tenant, priority, self.sent + number) for number in range(count)]
        self.share.add(tenant, items, weight, priority)
        self.model.add(tenant, items, weight, priority)
        self.sent += count
        self.waiting += count

    @rule(budget=st.integers(0, 60))
    def take(self, budget: int) -> None:
        count = min(budget, self.waiting)
        self.waiting -= count
        assert self.share.take(budget) == [self.model.take_one() for _ in range(count)]

    @invariant()
    def as_many_wait(self) -> None:
        assert len(self.share) == self.waiting


TestFairShareModel = FairShareModel.TestCase


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 30)), max_size=40),
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
)
def test_no_priority_starves_and_each_keeps_its_order(added: list[tuple[int, int]], budgets: list[int]) -> None:
    share = FairShare[tuple[int, int]]()
    waiting, passed, taken = Counter[int](), Counter[int](), list[tuple[int, int]]()
    for number, budget in enumerate(budgets):
        for priority, count in added[number : number + 1]:
            share.add(1, [(priority, 1000 * number + each) for each in range(count)], priority=priority)
            waiting[priority] += count
        for item in share.take(budget):
            taken.append(item)
            waiting[item[0]] -= 1
            passed[item[0]] = 0
            for other in {0, 1, 2} - {item[0]}:
                passed[other] = passed[other] + 1 if waiting[other] else 0
                assert passed[other] <= 2 * sum(PRIORITY_SHARES)
    for priority in range(3):
        numbers = [number for owner, number in taken if owner == priority]
        assert numbers == sorted(numbers)


@given(arrivals, arrivals, arrivals, st.integers(0, 200), st.none() | st.integers(0, 30))
def test_on_time_work_goes_first_and_the_others_keep_a_place(
    on_time: list[Item], late: list[Item], missed: list[Item], budget: int, most_catch_up: int | None
) -> None:
    due = DueWork[str]()
    for tenant, count in on_time:
        due.on_time.add(tenant, ["on time"] * count)
    for items, share, name in ((late, due.late, "late"), (missed, due.catch_up, "catch-up")):
        for tenant, count in items:
            share.add(tenant, [name] * count)
    waiting = {"on time": len(due.on_time), "late": len(due.late), "catch-up": len(due.catch_up)}
    if most_catch_up is not None:
        waiting["catch-up"] = min(waiting["catch-up"], most_catch_up)
    taken = Counter(due.take(budget, most_catch_up))
    assert sum(taken.values()) == min(budget, sum(waiting.values()))
    assert all(taken[name] <= count for name, count in waiting.items())
    kept = {name: min(budget // LATE_DIVISOR, waiting[name]) for name in ("late", "catch-up")}
    assert taken["on time"] == min(waiting["on time"], budget - sum(kept.values()))
    assert taken["late"] == min(waiting["late"], budget - taken["on time"] - kept["catch-up"])


def fill(places: FairSlots, tenant_id: int) -> int:
    """Let a tenant take all that it may, and give back nothing."""
    while places.may_take(tenant_id):
        places.take(tenant_id)
    return places.held(tenant_id)


def parts_fit(places: FairSlots) -> bool:
    """Whether the guarantees of all tenants fit into half of the places."""
    return sum(map(places.part, range(places.tenants.active))) + places.spare <= places.total // 2


def move_all(places: FairSlots, moves: Moves) -> None:
    for number, move in moves:
        tenant_id = 1 + number % max(places.tenants.active - 1, 1)
        if move == "give back":
            if places.held(tenant_id):
                places.give_back(tenant_id)
        elif move == "fill":
            fill(places, tenant_id)
        elif places.may_take(tenant_id):
            places.take(tenant_id)


@given(total=st.integers(8, 300), active=st.integers(2, 150), idle=st.integers(0, 300), moves=moves)
def test_no_order_of_takers_leaves_a_tenant_without_its_part(total: int, active: int, idle: int, moves: Moves) -> None:
    places = FairSlots(total, tenants=TenantCounts(min(active, total // 4), idle))
    assume(parts_fit(places))
    move_all(places, moves)
    assert places.free == total - sum(map(places.held, range(places.tenants.active)))
    for victim in range(places.tenants.active):
        assert fill(places, victim) >= places.part(victim)


@given(
    total=st.integers(8, 300),
    given_weights=st.lists(st.integers(1, 30), min_size=2, max_size=60),
    idle=st.integers(0, 300),
    moves=moves,
)
def test_no_order_of_takers_leaves_a_tenant_without_the_part_of_its_weight(
    total: int, given_weights: list[int], idle: int, moves: Moves
) -> None:
    shares = given_weights[: max(total // 4, 2)]
    tenants = TenantCounts(len(shares), idle, Counter(shares))
    places = FairSlots(total, tenants=tenants, weight_of=shares.__getitem__)
    assume(parts_fit(places))
    move_all(places, [(number, move) for number, move in moves if 1 + number % max(len(shares) - 1, 1) < len(shares)])
    for victim in range(len(shares)):
        assert fill(places, victim) >= places.part(victim)


@given(hostile=st.integers(1, 119), order=st.randoms(use_true_random=False), moves=moves)
def test_hostile_tenants_that_hang_in_all_they_may_take_leave_the_victims_part(
    hostile: int, order: Random, moves: Moves
) -> None:
    places = FairSlots(TOTAL, tenants=TenantCounts(hostile + 1))
    move_all(places, moves)
    attackers = list(range(1, hostile + 1))
    order.shuffle(attackers)
    for tenant_id in attackers:
        fill(places, tenant_id)
    assert fill(places, VICTIM) >= (TOTAL // 2 - TOTAL // 32) // (hostile + 1)


@given(tenants=st.integers(2, 56), order=st.randoms(use_true_random=False))
def test_a_tenant_that_becomes_active_last_of_all_finds_a_place(tenants: int, order: Random) -> None:
    places = FairSlots(TOTAL, tenants=TenantCounts(0, tenants))
    coming = list(range(tenants))
    order.shuffle(coming)
    for active, tenant_id in enumerate(coming, 1):
        places.share(TenantCounts(active, tenants - active))
        assert fill(places, tenant_id) >= 1
        fill(places, order.choice(coming[:active]))


@given(order=st.randoms(use_true_random=False))
def test_tenants_that_are_created_while_all_others_hang_find_places(order: Random) -> None:
    places = FairSlots(TOTAL, tenants=TenantCounts(2))
    for tenants in range(2, 2 + TOTAL // 32):
        places.share(TenantCounts(tenants))
        for tenant_id in order.sample(range(tenants), tenants):
            assert fill(places, tenant_id) >= 1


@given(
    total=st.integers(1, 300),
    tenants=st.builds(TenantCounts, st.integers(0, 300), st.integers(0, 300)),
    most_each=st.integers(1, 300),
    takes=st.lists(st.integers(0, 20), max_size=300),
)
def test_the_most_that_a_tenant_may_have_is_what_it_comes_to(
    total: int, tenants: TenantCounts, most_each: int, takes: list[int]
) -> None:
    places = FairSlots(total, most_each, tenants)
    for tenant_id in takes:
        if places.may_take(tenant_id):
            places.take(tenant_id)
    for tenant_id in range(3):
        assert places.most(tenant_id) == fill(places, tenant_id)
        assert places.held(tenant_id) <= most_each


@given(
    st.lists(st.tuples(st.integers(0, 5), st.builds(TenantCounts, st.integers(0, 12), st.integers(0, 12))), max_size=60)
)
def test_a_new_number_of_tenants_counts_for_places_that_are_taken_already(
    moves: list[tuple[int, TenantCounts]],
) -> None:
    changed = FairSlots(40)
    for tenant_id, tenants in moves:
        changed.share(tenants)
        if changed.may_take(tenant_id):
            changed.take(tenant_id)
    same = FairSlots(40, tenants=changed.tenants)
    for tenant_id in range(6):
        for _ in range(changed.held(tenant_id)):
            same.take(tenant_id)
    assert [same.may_take(each) for each in range(7)] == [changed.may_take(each) for each in range(7)]
    assert [same.most(each) for each in range(7)] == [changed.most(each) for each in range(7)]


@given(
    st.builds(TenantCounts, st.integers(0, 12), st.integers(0, 12)),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(0, 30)), max_size=20),
)
def test_places_that_are_taken_or_given_back_together_count_as_one_by_one(
    tenants: TenantCounts, moves: list[tuple[int, int, int]]
) -> None:
    together, apart = FairSlots(40, tenants=tenants), FairSlots(40, tenants=tenants)
    for tenant_id, wanted, unwanted in moves:
        count = min(wanted, together.most(tenant_id) - together.held(tenant_id))
        if count:
            together.take(tenant_id, count)
        for _ in range(count):
            assert apart.may_take(tenant_id)
            apart.take(tenant_id)
        returned = min(unwanted, together.held(tenant_id))
        if returned:
            together.give_back(tenant_id, returned)
        for _ in range(returned):
            apart.give_back(tenant_id)
        assert [together.most(each) for each in range(5)] == [apart.most(each) for each in range(5)]
        assert [together.may_take(each) for each in range(5)] == [apart.may_take(each) for each in range(5)]


def test_a_tenant_alone_may_have_all_places_and_one_among_idle_others_many() -> None:
    assert fill(FairSlots(TOTAL), 1) == TOTAL
    crowds = [
        TenantCounts(1, 1),
        TenantCounts(1, 1000),
        TenantCounts(3),
        TenantCounts(10),
        TenantCounts(51),
        TenantCounts(500),
    ]
    assert [fill(FairSlots(TOTAL, tenants=crowd), 1) for crowd in crowds] == [205, 150, 126, 98, 100, 86]


def test_two_whose_targets_hang_leave_the_third_its_part() -> None:
    places = FairSlots(TOTAL, tenants=TenantCounts(3))
    assert [fill(places, each) for each in (1, 2, 3)] == [126, 68, 50]
    assert places.free == 12


@pytest.mark.parametrize("idle", [0, 20])
def test_tenants_that_use_all_slots_start_by_their_weights(idle: int) -> None:
    """Whatever ends, the next that may start does; tenants take turns."""
    weights = {1: 1, 2: 2, 3: 4}
    slots = FairSlots(256, tenants=TenantCounts(3, idle, {1: 1, 2: 1, 4: 1}), weight_of=weights.__getitem__)
    order, started, running = deque(weights), Counter[int](), list[int]()
    random = Random(1)
    for _ in range(40_000):
        for _ in range(len(order)):
            while slots.may_take(order[0]):
                slots.take(order[0])
                started[order[0]] += 1
                running.append(order[0])
            order.rotate(-1)
        slots.give_back(running.pop(random.randrange(len(running))))
    shares = [started[each] / started.total() * 7 / weight for each, weight in weights.items()]
    assert shares == pytest.approx([1, 1, 1], rel=0.05)
