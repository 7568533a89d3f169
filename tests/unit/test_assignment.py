"""Which live node should hold each partition."""

from collections import Counter

import pytest

from evertick.domain.assignment import Changes, Member, assign, changes

THREE = [Member("a"), Member("b"), Member("c")]


def test_nobody_alive_means_nothing_assigned() -> None:
    assert assign([]) == {}


def test_a_lone_node_gets_every_partition() -> None:
    assert assign([Member("a")]) == dict.fromkeys(range(256), "a")


def test_three_nodes_share_evenly() -> None:
    assert sorted(Counter(assign(THREE).values()).values()) == [85, 85, 86]


def test_the_assignment_is_the_same_in_every_process_and_release() -> None:
    assignment = assign(THREE)
    assert "".join(assignment[partition] for partition in range(40)) == ("abaabcacabcbacbcbcabccacaabababccaabccca")


def test_the_order_and_repetition_of_members_do_not_matter() -> None:
    assert assign([*reversed(THREE), THREE[1]]) == assign(THREE)


def test_more_nodes_than_partitions_leave_some_with_none() -> None:
    held = Counter(assign(Member(f"node-{number}") for number in range(300)).values())
    assert set(held.values()) == {1}
    assert len(held) == 256


def test_regions_change_nothing() -> None:
    with_regions = [Member("a", "eu"), Member("b", "us"), Member("c", "eu")]
    assert assign(with_regions) == assign(THREE)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (set(), Changes(release=frozenset(), take=frozenset({1, 3}))),
        ({1, 3}, Changes(release=frozenset(), take=frozenset())),
        ({0, 1}, Changes(release=frozenset({0}), take=frozenset({3}))),
    ],
)
def test_a_node_releases_what_is_not_its_own_and_takes_what_is(held: set[int], expected: Changes) -> None:
    assert changes("b", held, {0: "a", 1: "b", 2: "a", 3: "b"}) == expected


def test_a_node_that_is_no_member_releases_all() -> None:
    assert changes("gone", {4, 5}, assign(THREE)) == Changes(release=frozenset({4, 5}), take=frozenset())
