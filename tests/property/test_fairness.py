"""What deficit round robin promises, whatever arrives and however small the budgets."""

from collections import Counter
from itertools import combinations

from hypothesis import given, strategies as st

from evertick.domain.fairness import DueWork, FairShare

weights = st.lists(st.integers(1, 9), min_size=2, max_size=8)
budgets = st.lists(st.integers(0, 60), max_size=30)
quanta = st.integers(1, 20)
tenants = st.integers(0, 5)
arrivals = st.lists(st.tuples(tenants, st.integers(0, 12)), max_size=4)
rounds = st.lists(st.tuples(arrivals, st.integers(0, 20)), max_size=40)

Item = tuple[int, int]  # tenant, number


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
