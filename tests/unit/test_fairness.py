"""How due work is shared among tenants."""

import pickle
from collections import Counter

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.fairness import HIGH, LOW, NORMAL, DueWork, FairShare, first_priority


def backlog(tenant: str, count: int) -> list[str]:
    return [f"{tenant}{number}" for number in range(count)]


def served(items: list[str]) -> Counter[str]:
    return Counter(item[0] for item in items)


def test_nothing_waits_and_nothing_is_taken() -> None:
    share = FairShare[str]()
    assert share.take(10) == []
    assert len(share) == 0


def test_tenants_take_turns() -> None:
    share = FairShare[str](quantum=1)
    share.add(1, backlog("a", 3))
    share.add(2, backlog("b", 3))
    assert share.take(4) == ["a0", "b0", "a1", "b1"]


def test_a_heavier_tenant_has_longer_turns() -> None:
    share = FairShare[str](quantum=2)
    share.add(1, backlog("a", 100), weight=3)
    share.add(2, backlog("b", 100), weight=1)
    assert served(share.take(80)) == {"a": 60, "b": 20}


def test_a_flood_of_one_tenant_does_not_delay_another() -> None:
    share = FairShare[str](quantum=4)
    share.add(1, backlog("a", 100_000))
    share.add(2, ["b0"])
    assert "b0" in share.take(5)


def test_what_tenants_have_little_of_can_leave_by_itself_beside_a_flood() -> None:
    share = FairShare[str](quantum=4)
    share.add(1, backlog("a", 100))
    share.add(2, backlog("b", 4))
    share.add(3, backlog("c", 5), weight=2)
    share.add(4, backlog("d", 5))
    assert served(share.take_few(60)) == {"b": 4, "c": 5}
    assert len(share) == 105
    assert share.take_few(60) == []
    assert served(share.take(20)) == {"a": 15, "d": 5}, "who had more waits as before"


def test_where_all_tenants_have_little_nothing_leaves_by_itself() -> None:
    share = FairShare[str](quantum=4)
    share.add(1, backlog("a", 4))
    share.add(2, backlog("b", 1))
    assert share.take_few(60) == []
    assert served(share.take_few(60, are_others=True)) == {"a": 4, "b": 1}
    assert len(share) == 0


def test_what_leaves_by_itself_keeps_to_the_budget() -> None:
    share = FairShare[str](quantum=4)
    share.add(1, backlog("a", 100))
    for number, name in enumerate("bcd"):
        share.add(2 + number, backlog(name, 3))
    assert served(share.take_few(7)) == {"b": 3, "c": 3}
    assert served(share.take_few(7)) == {"d": 3}


def test_on_time_work_of_tenants_that_have_little_leaves_before_much_late_work() -> None:
    due = DueWork[str]()
    due.on_time.add(1, backlog("a", 3))
    due.late.add(2, backlog("l", 8))
    assert due.take_few(60) == []
    due.catch_up.add(2, ["k"])
    assert served(due.take_few(60)) == {"a": 3}
    assert len(due) == 9


def test_budget_that_others_leave_goes_to_whoever_waits() -> None:
    share = FairShare[str]()
    share.add(1, backlog("a", 100))
    share.add(2, backlog("b", 2))
    assert served(share.take(60)) == {"a": 58, "b": 2}


def test_a_turn_cut_short_by_the_budget_goes_on_at_the_next_call() -> None:
    share = FairShare[str](quantum=3)
    share.add(1, backlog("a", 6))
    share.add(2, backlog("b", 6))
    assert share.take(2) == ["a0", "a1"]
    assert share.take(2) == ["a2", "b0"]


def test_small_budgets_reach_every_tenant() -> None:
    share = FairShare[str](quantum=1)
    for tenant in range(5):
        share.add(tenant, backlog("abcde"[tenant], 10))
    assert served([share.take(1)[0] for _ in range(10)]) == dict.fromkeys("abcde", 2)


def test_a_tenant_that_goes_idle_keeps_no_credit() -> None:
    share = FairShare[str](quantum=4)
    share.add(1, ["a0"])
    share.add(2, backlog("b", 10))
    share.take(2)
    share.add(1, backlog("a", 10))
    assert served(share.take(11)) == {"b": 7, "a": 4}


def test_a_tenant_that_comes_back_waits_for_its_turn() -> None:
    share = FairShare[str](quantum=1)
    share.add(1, ["a0"])
    share.add(2, backlog("b", 2))
    share.add(3, backlog("c", 2))
    assert share.take(1) == ["a0"]
    share.add(1, ["a1"])
    assert share.take(3) == ["b0", "c0", "a1"]


def test_items_of_one_tenant_leave_in_the_order_they_came() -> None:
    share = FairShare[str](quantum=3)
    share.add(1, ["a0", "a1", "a2", "a3"])
    first = share.take(3)
    share.add(1, ["a4", "a5"])
    assert first + share.take(9) == ["a0", "a1", "a2", "a3", "a4", "a5"]


def test_a_new_weight_counts_from_the_next_turn() -> None:
    share = FairShare[str](quantum=1)
    share.add(1, backlog("a", 10), weight=2)
    share.add(2, backlog("b", 10))
    share.take(1)
    share.add(1, [], weight=3)
    assert served(share.take(6)) == {"a": 4, "b": 2}


def test_adding_nothing_leaves_an_idle_tenant_idle() -> None:
    share = FairShare[str]()
    share.add(1, [])
    share.add(2, ["b0"])
    assert share.take(10) == ["b0"]


def test_a_tenant_that_went_idle_leaves_nothing_behind() -> None:
    share = FairShare[str]()
    share.add(1, backlog("a", 20))
    share.take(20)
    assert pickle.dumps(share) == pickle.dumps(FairShare[str]())


def test_no_budget_takes_nothing() -> None:
    share = FairShare[str]()
    share.add(1, ["a0"])
    assert share.take(0) == []
    assert share.take(-1) == []
    assert len(share) == 1


@pytest.mark.parametrize("weight", [0, -1])
def test_a_weight_below_one_is_refused(weight: int) -> None:
    with pytest.raises(InvalidInput, match="weight"):
        FairShare[str]().add(1, ["a0"], weight)


def test_a_quantum_below_one_is_refused() -> None:
    with pytest.raises(InvalidInput, match="quantum"):
        FairShare[str](quantum=0)


def test_on_time_work_goes_before_late_work_of_any_tenant_but_for_its_place() -> None:
    due = DueWork[str]()
    due.late.add(1, backlog("a", 50))
    due.on_time.add(2, backlog("b", 20))
    due.on_time.add(1, backlog("c", 20))
    assert served(due.take(40)) == {"b": 19, "c": 16, "a": 5}
    assert len(due) == 50


def test_catch_up_keeps_to_what_the_budget_leaves() -> None:
    due = DueWork[str]()
    due.catch_up.add(1, backlog("a", 50))
    due.on_time.add(2, backlog("b", 5))
    assert served(due.take(8, 2)) == {"b": 5, "a": 2}
    assert served(due.take(8)) == {"a": 8}


def test_high_goes_before_normal_before_low_and_low_goes_on() -> None:
    share = FairShare[str](quantum=1)
    for priority, name in ((LOW, "l"), (NORMAL, "n"), (HIGH, "h")):
        share.add(1, backlog(name, 100), priority=priority)
    cycle = "h" * 16 + "n" * 4 + "l"
    assert "".join(item[0] for item in share.take(42)) == 2 * cycle


def test_what_comes_with_a_higher_priority_overtakes_what_waits() -> None:
    share = FairShare[str]()
    share.add(1, backlog("l", 100), priority=LOW)
    share.take(50)
    share.add(1, backlog("h", 2), priority=HIGH)
    assert served(share.take(2)) == {"h": 2}


def test_a_tenants_high_priority_takes_nothing_from_another_tenant() -> None:
    share = FairShare[str](quantum=1)
    share.add(1, backlog("h", 100), priority=HIGH)
    share.add(2, backlog("l", 100), priority=LOW)
    assert served(share.take(40)) == {"h": 20, "l": 20}


def test_catch_up_leaves_oldest_first_whenever_it_came() -> None:
    due = DueWork[str]()
    due.catch_up.add(1, ["c", "e"])
    assert due.take(1) == ["c"]
    due.catch_up.add(1, ["d", "b", "a"])
    assert due.take(9) == ["a", "b", "d", "e"]


def test_each_priority_is_first_as_often_as_its_share_says() -> None:
    turns = [first_priority(turn) for turn in range(21)]
    assert Counter(turns) == {HIGH: 16, NORMAL: 4, LOW: 1}
    assert [turn for turn, first in enumerate(turns) if first == NORMAL] == [4, 9, 14, 19]
