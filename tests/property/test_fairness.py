"""What deficit round robin promises, whatever arrives and however small the budgets. And slots that are never taken
back: whatever tenants do, and in whichever order, each gets its part at once.
"""

from collections import Counter, deque
from itertools import combinations
from random import Random

import pytest
from hypothesis import assume, given, strategies as st

from evertick.domain.fairness import DueWork, FairShare, FairSlots, TenantCounts

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


@given(arrivals, arrivals, st.integers(0, 60))
def test_catch_up_gets_only_what_on_time_work_leaves(on_time: list[Item], late: list[Item], budget: int) -> None:
    due = DueWork[str]()
    for tenant, count in on_time:
        due.on_time.add(tenant, ["on time"] * count)
    for tenant, count in late:
        due.catch_up.add(tenant, ["late"] * count)
    punctual = min(budget, len(due.on_time))
    caught_up = min(budget - punctual, len(due.catch_up))
    assert due.take(budget) == ["on time"] * punctual + ["late"] * caught_up


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
