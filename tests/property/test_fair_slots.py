"""FairSlots that are never taken back: whatever tenants do, and in whichever order, each gets its part at once."""

from random import Random

from hypothesis import assume, given, strategies as st

from evertick.domain.fair_slots import FairSlots, Tenants

TOTAL = 256
VICTIM = 0


def fill(places: FairSlots, tenant_id: int) -> int:
    """Let a tenant take all that it may, and give back nothing."""
    while places.may_take(tenant_id):
        places.take(tenant_id)
    return places.held(tenant_id)


def parts_fit(places: FairSlots) -> bool:
    """Whether the guarantees of all tenants fit into half of the places."""
    return places.tenants.active * places.part + places._spare <= places.total // 2


Moves = list[tuple[int, str]]
moves = st.lists(st.tuples(st.integers(1, 149), st.sampled_from(("take", "fill", "give back"))), max_size=300)


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
    places = FairSlots(total, tenants=Tenants(min(active, total // 4), idle))
    assume(parts_fit(places))
    move_all(places, moves)
    assert places.free == total - sum(map(places.held, range(places.tenants.active)))
    for victim in range(places.tenants.active):
        assert fill(places, victim) >= places.part


@given(hostile=st.integers(1, 119), order=st.randoms(use_true_random=False), moves=moves)
def test_hostile_tenants_that_hang_in_all_they_may_take_leave_the_victims_part(
    hostile: int, order: Random, moves: Moves
) -> None:
    places = FairSlots(TOTAL, tenants=Tenants(hostile + 1))
    move_all(places, moves)
    attackers = list(range(1, hostile + 1))
    order.shuffle(attackers)
    for tenant_id in attackers:
        fill(places, tenant_id)
    assert fill(places, VICTIM) >= (TOTAL // 2 - TOTAL // 32) // (hostile + 1)


@given(tenants=st.integers(2, 56), order=st.randoms(use_true_random=False))
def test_a_tenant_that_becomes_active_last_of_all_finds_a_place(tenants: int, order: Random) -> None:
    places = FairSlots(TOTAL, tenants=Tenants(0, tenants))
    coming = list(range(tenants))
    order.shuffle(coming)
    for active, tenant_id in enumerate(coming, 1):
        places.share(Tenants(active, tenants - active))
        assert fill(places, tenant_id) >= 1
        fill(places, order.choice(coming[:active]))


@given(order=st.randoms(use_true_random=False))
def test_tenants_that_are_created_while_all_others_hang_find_places(order: Random) -> None:
    places = FairSlots(TOTAL, tenants=Tenants(2))
    for tenants in range(2, 2 + TOTAL // 32):
        places.share(Tenants(tenants))
        for tenant_id in order.sample(range(tenants), tenants):
            assert fill(places, tenant_id) >= 1


@given(
    total=st.integers(1, 300),
    tenants=st.builds(Tenants, st.integers(0, 300), st.integers(0, 300)),
    most_each=st.integers(1, 300),
    takes=st.lists(st.integers(0, 20), max_size=300),
)
def test_the_most_that_a_tenant_may_have_is_what_it_comes_to(
    total: int, tenants: Tenants, most_each: int, takes: list[int]
) -> None:
    places = FairSlots(total, most_each, tenants)
    for tenant_id in takes:
        if places.may_take(tenant_id):
            places.take(tenant_id)
    for tenant_id in range(3):
        assert places.most(tenant_id) == fill(places, tenant_id)
        assert places.held(tenant_id) <= most_each


@given(st.lists(st.tuples(st.integers(0, 5), st.builds(Tenants, st.integers(0, 12), st.integers(0, 12))), max_size=60))
def test_a_new_number_of_tenants_counts_for_places_that_are_taken_already(moves: list[tuple[int, Tenants]]) -> None:
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
    crowds = [Tenants(1, 1), Tenants(1, 1000), Tenants(3), Tenants(10), Tenants(51), Tenants(500)]
    assert [fill(FairSlots(TOTAL, tenants=crowd), 1) for crowd in crowds] == [205, 150, 126, 98, 100, 86]


def test_two_whose_targets_hang_leave_the_third_its_part() -> None:
    places = FairSlots(TOTAL, tenants=Tenants(3))
    assert [fill(places, each) for each in (1, 2, 3)] == [126, 68, 50]
    assert places.free == 12
