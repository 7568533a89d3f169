"""From when on a reaper may take leases that have run out."""

from datetime import UTC, datetime, timedelta

import pytest

from evertick.roles.scheduler.reaping import LeaseGrace

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
SPAN = timedelta(seconds=15)


class World:
    """A monotonic clock and a database's, which run alike until somebody sets the one."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.set_by = timedelta(0)
        self.grace = LeaseGrace(SPAN, lambda: self.seconds)

    @property
    def now_at(self) -> datetime:
        return AT + timedelta(seconds=self.seconds - 1000) + self.set_by

    def look(self, *partitions: int, takes: float = 0.0) -> bool:
        """Ask the database, which reads its clock just before it answers."""
        asked = self.seconds
        self.seconds += takes
        return self.grace.look(partitions, self.now_at, asked)

    def run(self, seconds: int, *partitions: int) -> None:
        for _ in range(seconds):
            self.seconds += 1
            self.look(*partitions)


@pytest.fixture
def world() -> World:
    return World()


def test_nothing_is_reaped_before_workers_had_the_time_to_extend(world: World) -> None:
    world.look(7)
    world.run(14, 7)
    assert world.grace.over() == []
    world.run(1, 7)
    assert world.grace.over() == [7]


def test_a_partition_that_is_gained_has_a_time_of_its_own(world: World) -> None:
    world.look(7)
    world.run(15, 7)
    world.run(15, 7, 9)
    assert world.grace.over() == [7]
    world.run(1, 7, 9)
    assert world.grace.over() == [7, 9]


def test_a_partition_that_was_lost_and_gained_again_begins_anew(world: World) -> None:
    world.look(7)
    world.run(15, 7)
    world.run(1)
    world.run(1, 7)
    assert world.grace.over() == []


def test_after_an_outage_it_begins_anew(world: World) -> None:
    world.look(7)
    world.run(15, 7)
    world.grace.interrupt()
    assert world.grace.over() == []
    world.look(7)
    world.run(14, 7)
    assert world.grace.over() == []
    world.run(1, 7)
    assert world.grace.over() == [7]


def test_after_a_long_silence_it_begins_anew(world: World) -> None:
    """The reaper was stopped, or its statement hung: it cannot know what became of the workers' heartbeats."""
    world.look(7)
    world.run(15, 7)
    world.seconds += 16
    assert world.grace.over() == []
    world.look(7)
    assert world.grace.over() == []


def test_after_a_look_that_took_long_it_begins_anew(world: World) -> None:
    world.look(7)
    world.run(15, 7)
    world.look(7, takes=16)
    assert world.grace.over() == []


@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(hours=-1), timedelta(seconds=5), timedelta(seconds=-5)])
def test_after_a_step_of_the_databases_clock_it_begins_anew(world: World, by: timedelta) -> None:
    world.look(7)
    world.run(15, 7)
    world.set_by = by
    assert world.look(7)
    assert world.grace.over() == []
    world.run(15, 7)
    assert world.grace.over() == [7]


def test_a_slow_answer_is_no_step(world: World) -> None:
    world.look(7)
    world.run(15, 7)
    assert not world.look(7, takes=9)
    assert not world.look(7, takes=0)
    assert world.grace.over() == [7]


def test_it_cannot_be_later_than_the_monotonic_clock_allows(world: World) -> None:
    world.look(7, takes=2)
    world.seconds += 3
    assert world.now_at <= world.grace.latest_at() <= world.now_at + timedelta(seconds=2)
    latest_at = world.grace.latest_at()
    world.set_by = timedelta(hours=1)
    assert world.grace.latest_at() == latest_at


def test_a_short_grace_is_over_although_looks_are_seconds_apart(world: World) -> None:
    world.grace = LeaseGrace(timedelta(seconds=1), lambda: world.seconds)
    world.look(7)
    world.seconds += 4
    world.look(7)
    assert world.grace.over() == [7]
