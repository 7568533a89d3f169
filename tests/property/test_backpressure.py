"""The room of queues against a simple oracle, and which priorities an overloaded system refuses."""

from collections import Counter

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evertick.domain.backpressure import (
    DEFAULT_MAX_READY,
    FullQueue,
    ReadyDepth,
    ReadyRoom,
    refused_priorities,
    releases,
)
from evertick.domain.ids import PARTITIONS
from evertick.domain.policies import Priority

TENANTS = {1: 1, 2: 1, 3: 2}
"""The tenant of each queue."""
QUEUES = st.sampled_from(sorted(TENANTS))
LIMITS = {1: 5, 2: 30, 3: 12}
QUOTAS = {1: 20, 2: 8}


class OneNode(RuleBasedStateMachine):
    """One node that holds everything, and workers that lease: no limit is passed, whatever a reading missed.

    A snapshot is taken between the beginning and the end of a reading, and attempts are committed at any time between
    `take` and `settle`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.room = ReadyRoom()
        self.room.held = PARTITIONS
        self.ready: Counter[int] = Counter()
        self.in_flight: Counter[int] = Counter()
        self.committed: Counter[int] = Counter()
        self.snapshot: list[ReadyDepth] | None = None
        self.is_reading = False
        self.begin()
        self.look()
        self.end()

    @rule()
    def begin(self) -> None:
        self.room.begin_reading()
        self.is_reading, self.snapshot = True, None

    @precondition(lambda self: self.is_reading)
    @rule()
    def look(self) -> None:
        self.snapshot = [
            ReadyDepth(queue, tenant, self.ready[queue], LIMITS[queue], self.of_tenant(tenant), QUOTAS[tenant])
            for queue, tenant in TENANTS.items()
        ]

    @precondition(lambda self: self.snapshot is not None)
    @rule()
    def end(self) -> None:
        assert self.snapshot is not None
        self.room.end_reading(self.snapshot)
        self.is_reading, self.snapshot = False, None

    @rule(queue=QUEUES, most=st.integers(1, 40))
    def take(self, queue: int, most: int) -> None:
        self.in_flight[queue] += self.room.take(queue, TENANTS[queue], most)

    @rule(queue=QUEUES, most=st.integers(0, 40))
    def commit(self, queue: int, most: int) -> None:
        added = min(most, self.in_flight[queue])
        self.in_flight[queue] -= added
        self.committed[queue] += added
        self.ready[queue] += added

    @rule(is_known=st.booleans())
    def settle(self, *, is_known: bool) -> None:
        self.room.settle(self.committed if is_known else None)
        self.in_flight.clear()
        self.committed.clear()

    @rule(queue=QUEUES, most=st.integers(1, 40))
    def lease(self, queue: int, most: int) -> None:
        self.ready[queue] -= min(most, self.ready[queue])

    def of_tenant(self, tenant: int) -> int:
        return sum(ready for queue, ready in self.ready.items() if TENANTS[queue] == tenant)

    @invariant()
    def no_limit_is_passed(self) -> None:
        for queue, ready in self.ready.items():
            assert ready + self.in_flight[queue] <= LIMITS[queue]
        for tenant, quota in QUOTAS.items():
            assert self.of_tenant(tenant) <= quota


OneNode.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestOneNode = OneNode.TestCase


@given(held=st.lists(st.integers(0, PARTITIONS), min_size=1, max_size=5), limit=st.integers(1, 1000), data=st.data())
def test_nodes_that_read_at_the_same_time_pass_a_limit_by_one_each_at_most(
    held: list[int], limit: int, data: st.DataObject
) -> None:
    total = sum(held)
    nodes = [each * PARTITIONS // total if total > PARTITIONS else each for each in held]
    ready = data.draw(st.integers(0, limit))
    added = 0
    for each in nodes:
        room = ReadyRoom()
        room.held = each
        room.end_reading([ReadyDepth(1, 1, ready, limit, ready, 10_000)])
        added += room.take(1, 1, 10_000)
    assert ready + added <= limit + len(nodes) - 1
    if sum(nodes) == PARTITIONS:
        assert ready + added >= limit  # what there is room for is used


def test_a_queue_that_a_reading_left_out_has_at_least_three_quarters_of_its_room() -> None:
    room = ReadyRoom()
    room.held = PARTITIONS
    room.end_reading([])
    assert DEFAULT_MAX_READY * 3 // 4 <= room.take(1, 1, 10**9) <= DEFAULT_MAX_READY


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), min_size=3, max_size=3),
    st.integers(0, 20),
)
def test_of_one_tenants_queues_the_one_that_waits_longest_goes_first(waiting: list[tuple[int, int]], left: int) -> None:
    room = ReadyRoom()
    room.held = PARTITIONS
    room.end_reading(ReadyDepth(queue, 1, 0, 12, 100 - left, 100) for queue in (1, 2, 3))
    full = [FullQueue(queue, 1, oldest, timers) for queue, (oldest, timers) in enumerate(waiting, 1)]
    going = releases(full, room)
    assert sum(going.values()) == min(left, sum(min(12, each.timers) for each in full))
    for each in sorted(full, key=lambda queue: queue.oldest_us):
        assert going.get(each.queue_id, 0) == min(12, each.timers, left)
        left -= going.get(each.queue_id, 0)


@given(st.lists(st.integers(0, 250)), st.integers(1, 200))
def test_low_is_refused_before_normal_and_normal_before_high(depths: list[int], limit: int) -> None:
    refused: frozenset[Priority] = frozenset()
    for ready in depths:
        before, refused = refused, refused_priorities(refused, ready, limit)
        assert refused in [
            frozenset(),
            {Priority.LOW},
            {Priority.LOW, Priority.NORMAL},
            {Priority.LOW, Priority.NORMAL, Priority.HIGH},
        ]
        assert ready < limit or Priority.HIGH in refused
        assert ready >= 0.45 * limit or not refused
        for priority in before - refused:  # it takes clearly less than what it was refused for
            assert ready < {Priority.LOW: 0.45, Priority.NORMAL: 0.72, Priority.HIGH: 0.9}[priority] * limit
