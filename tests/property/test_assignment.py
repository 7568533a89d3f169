"""What an assignment promises for any members: balance, agreement, and little movement."""

from collections import Counter

from hypothesis import given, strategies as st

from evertick.domain.assignment import Member, assign, changes

# Besides the partitions of the node that left or joined. The most ever seen is 22, among 6,000 memberships.
EXTRA_MOVES = 32

names = st.text(min_size=1, max_size=12)
clusters = st.lists(names, min_size=2, max_size=40, unique=True).map(lambda nodes: [Member(node) for node in nodes])


def is_balanced(owners: list[str], nodes: list[str]) -> bool:
    held = Counter(owners)
    counts = [held[node] for node in nodes]
    return sum(counts) == len(owners) and max(counts) - min(counts) <= 1


@given(clusters)
def test_every_node_has_the_floor_or_ceiling_of_its_fair_share(members: list[Member]) -> None:
    assignment = assign(members)
    assert sorted(assignment) == list(range(256))
    assert is_balanced(list(assignment.values()), [member.node for member in members])


@given(st.data(), clusters)
def test_nodes_that_see_the_same_members_agree(data: st.DataObject, members: list[Member]) -> None:
    assert assign(data.draw(st.permutations(members))) == assign(members)


@given(clusters)
def test_a_leaving_node_moves_its_own_partitions_and_few_others(members: list[Member]) -> None:
    leaver, *stayers = members
    before, after = assign(members), assign(stayers)
    extra = [p for p in before if before[p] not in {leaver.node, after[p]}]
    assert len(extra) <= EXTRA_MOVES


@given(clusters)
def test_a_joining_node_takes_its_share_and_moves_few_others(members: list[Member]) -> None:
    joiner, *others = members
    before, after = assign(others), assign(members)
    moved = [p for p in before if before[p] != after[p]]
    assert len(moved) <= -(-256 // len(members)) + EXTRA_MOVES
    assert {p for p in after if after[p] == joiner.node} <= set(moved)


@given(clusters)
def test_following_the_changes_everyone_holds_each_partition_once(members: list[Member]) -> None:
    before, after = assign(members[1:]), assign(members)
    held = {member.node: {p for p in before if before[p] == member.node} for member in members}
    for node, partitions in held.items():
        steps = changes(node, partitions, after)
        assert steps.release <= partitions
        held[node] = partitions - steps.release | steps.take
    assert sorted(p for partitions in held.values() for p in partitions) == list(range(256))
