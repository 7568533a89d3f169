"""The room of queues against a simple oracle, and which priorities an overloaded system refuses."""

from collections import Counter

from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evertick.domain.backpressure import (
    DEFAULT_MAX_READY,
    MAX_WINDOW,
    MIN_WINDOW,
    QUEUE_FACTOR,
    FullQueue,
    ParkedLine,
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
        self.room.end_reading(self.snapshot, {depth.queue_id: depth.ready for depth in self.snapshot})
        self.is_reading, self.snapshot = False, None

    @rule(queue=QUEUES, most=st.integers(1, 40), is_catch_up=st.booleans())
    def take(self, queue: int, most: int, *, is_catch_up: bool) -> None:
        self.in_flight[queue] += self.room.take(ParkedLine(queue, is_catch_up), TENANTS[queue], most)

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
        added += room.take(ParkedLine(1), 1, 10_000)
    assert ready + added <= limit + len(nodes) - 1
    if sum(nodes) == PARTITIONS:
        assert ready + added >= limit  # what there is room for is used


def test_a_queue_that_a_reading_left_out_has_at_least_three_quarters_of_its_room() -> None:
    room = ReadyRoom()
    room.held = PARTITIONS
    room.end_reading([])
    assert DEFAULT_MAX_READY * 3 // 4 <= room.take(ParkedLine(1), 1, 10**9) <= DEFAULT_MAX_READY


@given(ready=st.integers(0, 30), others=st.integers(0, 30), max_ready=st.integers(1, 40), quota=st.integers(1, 60))
def test_a_queue_is_full_if_it_has_no_room(ready: int, others: int, max_ready: int, quota: int) -> None:
    depth = ReadyDepth(1, 1, ready, max_ready, ready + others, quota)
    room = ReadyRoom()
    room.held = PARTITIONS
    room.end_reading([depth])
    assert depth.is_full == (room.of_line(ParkedLine(1), 1) == 0)
    assert not ReadyDepth(1, 1, 0, max_ready, 0, 0).is_full  # nothing of the tenant may fire, and nothing waits


def read(room: ReadyRoom, ready: int) -> None:
    """A reading of queue 1, for which a catch-up waits."""
    assert room.begin_reading([1]) == [1]
    room.end_reading([], {1: ready} if ready else {})


def catch_up(room: ReadyRoom, most: int) -> int:
    taken = room.take(ParkedLine(1, is_catch_up=True), 1, most)
    room.settle({1: taken})
    return taken


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=60))
def test_of_a_catch_up_no_more_waits_in_lanes_than_twice_what_workers_took_at_a_time(leased: list[int]) -> None:
    room = ReadyRoom()
    room.held = PARTITIONS
    ready = 0
    for number, most in enumerate(leased):
        read(room, ready)
        ready += catch_up(room, 10**6)
        assert ready <= max(1, min(MAX_WINDOW, 2 * max(leased[:number], default=0)))
        ready -= min(ready, most)


@given(st.integers(1, 3_000), st.integers(1, 1_000))
def test_a_catch_up_keeps_workers_busy(capacity: int, readings: int) -> None:
    """Or gives them as much as a window may have, however many they take."""
    room = ReadyRoom()
    room.held = PARTITIONS
    ready = done = 0
    for _ in range(readings):
        read(room, ready)
        ready += catch_up(room, 10**6)
        done += min(ready, capacity)
        ready -= min(ready, capacity)
    assert done >= min(capacity, MAX_WINDOW) * (readings - 11) / 2


@given(st.integers(1, 2_000), st.integers(1, 50))
def test_what_is_on_time_goes_before_a_catch_up_that_has_nowhere_to_wait(on_time: int, readings: int) -> None:
    """Workers take less than what falls due, so that all that waits is on time but for what the catch-up had first."""
    room = ReadyRoom()
    room.held = PARTITIONS
    ready = caught_up = 0
    for _ in range(readings):
        read(room, ready)
        granted = room.take(ParkedLine(1), 1, on_time)
        caught_up += room.take(ParkedLine(1, is_catch_up=True), 1, 10**6)
        room.settle(None)
        ready += granted
        assert granted == on_time
        assert caught_up <= MIN_WINDOW


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 20))
def test_of_one_queue_a_catch_up_gets_the_room_that_the_others_leave(others: int, left: int, room_left: int) -> None:
    room = ReadyRoom()
    room.held = PARTITIONS
    for _ in range(10):
        read(room, 0)
        catch_up(room, 10**6)
    room.begin_reading([1])
    room.end_reading([ReadyDepth(1, 1, 100 - room_left, 100, 0, 10_000)])
    lines = [FullQueue(ParkedLine(1, is_catch_up=True), 1, 0, left), FullQueue(ParkedLine(1), 1, 5, others)]
    going = releases(lines, room)
    assert going.get(ParkedLine(1), 0) == min(others, room_left)
    assert going.get(ParkedLine(1, is_catch_up=True), 0) == min(left, room_left - min(others, room_left))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30)), min_size=3, max_size=3),
    st.integers(0, 20),
)
def test_of_one_tenants_queues_the_one_that_waits_longest_goes_first(waiting: list[tuple[int, int]], left: int) -> None:
    room = ReadyRoom()
    room.held = PARTITIONS
    room.end_reading(ReadyDepth(queue, 1, 0, 12, 100 - left, 100) for queue in (1, 2, 3))
    full = [FullQueue(ParkedLine(queue), 1, oldest, timers) for queue, (oldest, timers) in enumerate(waiting, 1)]
    going = releases(full, room)
    for each in sorted(full, key=lambda queue: queue.oldest_us):
        count = 0
        while count < min(12, each.timers) and left and count < QUEUE_FACTOR * left:
            count, left = count + 1, left - 1
        assert going.get(each.line, 0) == count


@given(quota=st.integers(1, 200), wanted=st.lists(st.integers(1, 300), min_size=1, max_size=6))
def test_queues_without_workers_leave_some_of_the_quota_to_others(quota: int, wanted: list[int]) -> None:
    """Against an oracle that adds one by one, and whatever other queues took before."""
    room = ReadyRoom()
    room.held = PARTITIONS
    room.end_reading(ReadyDepth(queue, 1, 0, 10_000, 0, quota) for queue in range(len(wanted)))
    left = quota
    for queue, most in enumerate(wanted):
        before, ready = left, 0
        while ready < most and left and ready < QUEUE_FACTOR * left:
            ready, left = ready + 1, left - 1
        taken = room.take(ParkedLine(queue), 1, most)
        assert taken == ready
        assert taken or not before  # a queue that has none gets some of what is left
        assert left >= before // (1 + QUEUE_FACTOR)
        if queue % 2:
            room.settle(None)


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
