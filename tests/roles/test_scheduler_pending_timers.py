"""The pending timers by themselves: what is held, what leaves, and in which order."""

from collections import Counter
from datetime import datetime, timedelta

from engine import AT
from evertick.domain.ids import PARTITIONS, job_id_of
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.roles.scheduler.pending_timers import PendingTimer, PendingTimers
from evertick.store.engine.timers import Timer

NOW_US = to_us(AT)


def timer(
    number: int,
    seconds: float = 0,
    *,
    kind: str = "tick",
    partition: int = 7,
    tenant_id: int = 1,
    fire_at: datetime | None = None,
) -> Timer:
    """A timer that is due so many seconds from the start."""
    due_at = AT + timedelta(seconds=seconds)
    return Timer(job_id_of(number, partition), kind, fire_at or due_at, due_at, tenant_id, 1, 1)


def due(
    pending: PendingTimers, seconds: float = 0, most: int = 100, weights: dict[int, int] | None = None
) -> list[PendingTimer]:
    now_us = NOW_US + round(seconds * SECOND_US)
    pending.collect(now_us, weights or {})
    return pending.take(most, now_us)


def timers(entries: list[PendingTimer]) -> list[Timer]:
    return [entry.timer for entry in entries]


def pending_of(*known: Timer) -> PendingTimers:
    pending = PendingTimers(NOW_US)
    pending.add(known)
    return pending


def test_timers_leave_when_they_are_due_and_in_their_order() -> None:
    first, second, later = timer(1, 1), timer(2, 2), timer(3, 3)
    pending = pending_of(later, second, first)
    assert due(pending, 0.9) == []
    assert timers(due(pending, 2)) == [first, second]
    assert timers(due(pending, 3)) == [later]


def test_a_job_whose_tick_has_moved_is_known_once_and_due_at_its_new_time() -> None:
    pending = pending_of(timer(1, 1))
    moved = timer(1, 5)
    pending.add([moved])
    assert (len(pending), pending.count(7)) == (1, 1)
    assert due(pending, 4) == []
    assert timers(due(pending, 5)) == [moved]


def test_a_tick_that_moves_while_it_waits_for_its_turn_is_not_handed_out() -> None:
    pending = pending_of(timer(1, 1), timer(2, 1))
    pending.collect(NOW_US + SECOND_US, {})
    pending.add([timer(1, 9)])
    assert timers(pending.take(10, NOW_US + SECOND_US)) == [timer(2, 1)]
    assert timers(due(pending, 9)) == [timer(1, 9)]


def test_a_timer_that_is_read_again_while_it_waits_is_handed_out_once() -> None:
    pending = pending_of(timer(1))
    pending.collect(NOW_US, {})
    pending.add([timer(1)])
    assert len(due(pending)) == 1
    assert due(pending) == []


def test_runs_of_a_job_are_known_beside_its_tick() -> None:
    retry, manual = timer(1, kind="retry"), timer(1, kind="manual")
    pending = pending_of(timer(1), retry, manual, retry)
    assert (len(pending), pending.count(7)) == (3, 3)


def test_a_job_has_one_timer_in_a_round() -> None:
    known = [timer(1), timer(1, kind="retry"), timer(1, kind="manual")]
    pending = pending_of(*known, timer(2))
    rounds = [timers(due(pending)) for _ in range(4)]
    assert [len(each) for each in rounds] == [2, 1, 1, 0]
    assert sorted(entry.kind for each in rounds for entry in each if entry.job_id == known[0].job_id) == [
        *("manual", "retry", "tick"),
    ]


def test_what_was_handed_out_stays_known_until_it_is_settled_or_forgotten() -> None:
    pending = pending_of(timer(1), timer(2), timer(3))
    one, two, three = due(pending)
    assert len(pending) == 3
    pending.move(one, timer(1, 60))
    pending.retry_at(two, NOW_US + SECOND_US)
    pending.forget(three)
    assert len(pending) == 2
    assert timers(due(pending, 1)) == [two.timer]
    assert timers(due(pending, 60)) == [timer(1, 60)]


def test_what_was_forgotten_does_not_come_back_by_itself() -> None:
    pending = pending_of(timer(1), timer(2))
    one, two = due(pending)
    pending.keep_only([])
    pending.move(one, timer(1))
    pending.retry_at(two, NOW_US)
    pending.forget(one)
    assert (len(pending), pending.count(7), due(pending)) == (0, 0, [])


def test_timers_of_a_lost_partition_are_dropped_wherever_they_wait() -> None:
    lost_due, lost_later = timer(1, partition=8), timer(2, 5, partition=8)
    kept = timer(3, partition=7)
    pending = pending_of(lost_due, lost_later, kept, timer(1, kind="retry", partition=8))
    pending.collect(NOW_US, {})
    pending.keep_only([7])
    assert (len(pending), pending.count(8), pending.count(7)) == (1, 0, 1)
    assert timers(due(pending)) == [kept]
    assert due(pending, 60) == []


def test_timers_of_a_partition_that_came_back_are_handed_out_once() -> None:
    pending = pending_of(timer(1), timer(1, kind="retry"))
    pending.collect(NOW_US, {})
    pending.keep_only([])
    pending.add([timer(1), timer(1, kind="retry")])
    assert len([*due(pending), *due(pending), *due(pending)]) == 2


def test_timers_of_a_partition_that_came_back_do_not_count_twice_towards_the_rate_of_a_catch_up() -> None:
    left = [timer(number, -3600) for number in range(1, 21)]
    outage_us = [NOW_US] * PARTITIONS
    pending = pending_of()
    for _ in range(5):
        pending.keep_only([])
        pending.add(left)
        pending.collect(NOW_US, {}, outage_us=outage_us)
    taken = [pending.take(10, NOW_US, 10) for _ in range(3)]
    assert [len(each) for each in taken] == [10, 10, 0]


def test_a_tenant_with_many_due_does_not_hold_up_one_with_few() -> None:
    crowd = [timer(number, tenant_id=1) for number in range(1, 1001)]
    few = [timer(number, tenant_id=2) for number in range(2001, 2004)]
    pending = pending_of(*crowd, *few)
    assert Counter(entry.tenant_id for entry in timers(due(pending, most=50)))[2] == 3


def test_tenants_are_served_by_weight() -> None:
    pending = pending_of(*[timer(number, tenant_id=number % 2) for number in range(1, 2001)])
    served = Counter(entry.tenant_id for entry in timers(due(pending, most=320, weights={0: 3, 1: 1})))
    assert served == {0: 240, 1: 80}


def test_work_of_an_outage_waits_behind_what_is_on_time() -> None:
    late = [timer(number, -3600) for number in range(1, 101)]
    on_time = [timer(number, -1) for number in range(201, 211)]
    pending = pending_of(*late, *on_time)
    assert timers(due(pending, most=20))[:10] == on_time
    assert pending.due == 90


def test_the_next_due_time_is_known() -> None:
    pending = pending_of(timer(1, 2), timer(2, 1))
    assert pending.next_due_us() == NOW_US + SECOND_US
    due(pending, 2)
    assert pending.next_due_us() is None


def test_what_fires_while_the_table_is_read_is_not_put_back_as_it_was() -> None:
    """Once taken before the reading began, once meanwhile; in between the statement moves them."""
    first, second, other = timer(1, 1), timer(2, 2), timer(3, 9)
    pending = pending_of(first, second)
    (early,) = due(pending, 1)
    with pending.reading():
        pending.move(early, timer(1, 11))
        pending.release()
        (late,) = due(pending, 2)
        pending.forget(late)
        pending.release()
        assert pending.add([first, second, other]) == {7}
    assert timers(due(pending, 12)) == [other, timer(1, 11)]


def test_an_edit_is_learned_of_though_the_timer_fired_while_it_was_read() -> None:
    pending = pending_of(timer(1, 1))
    (entry,) = due(pending, 1)
    edited = timer(1, 5)
    with pending.reading():
        pending.forget(entry)
        pending.release()
        pending.add([edited])
    assert timers(due(pending, 5)) == [edited]


def test_what_is_learned_of_a_timer_in_hand_counts_more_than_how_its_firing_ended() -> None:
    pending = pending_of(timer(1, 1), timer(2, 1), timer(3, 1))
    refused, moved, failed = due(pending, 1)
    edited = [timer(number, 5) for number in (1, 2, 3)]
    with pending.reading():
        pending.add(edited)
    pending.forget(refused)
    pending.move(moved, timer(2, 3))
    pending.retry_at(failed, NOW_US)
    pending.release()
    assert due(pending, 4) == []
    assert timers(due(pending, 5)) == edited


def test_a_retry_that_follows_at_once_is_another_timer_than_the_one_in_hand() -> None:
    first = timer(1, 1, kind="retry", fire_at=AT)
    pending = pending_of(first)
    (entry,) = due(pending, 1)
    with pending.reading():
        pending.forget(entry)
        pending.release()
        pending.add([timer(1, 2, kind="retry", fire_at=AT)])
    assert timers(due(pending, 2)) == [timer(1, 2, kind="retry", fire_at=AT)]


def test_a_later_reading_is_believed_about_what_fired_before_it() -> None:
    pending = pending_of(timer(1, 1))
    (entry,) = due(pending, 1)
    pending.retry_at(entry, NOW_US)
    pending.release()
    pending.forget(entry)
    with pending.reading():
        assert pending.add([timer(1, 1)]) == {7}
    assert timers(due(pending, 1)) == [timer(1, 1)]


def test_only_what_was_not_known_is_news() -> None:
    pending = pending_of(timer(1, 1, partition=7), timer(2, 1, partition=8), timer(3, 1, partition=9))
    assert pending.add([timer(1, 1, partition=7), timer(2, 2, partition=8), timer(4, 1, partition=10)]) == {8, 10}


def test_a_tick_is_not_kept_out_by_manual_runs_of_its_job_that_never_end() -> None:
    pending = pending_of(timer(1, kind="manual", fire_at=AT), timer(1, 1))
    taken: list[str] = []
    for number in range(1, 4):
        entries = due(pending, 1)
        taken += [entry.timer.kind for entry in entries]
        for entry in entries:
            pending.forget(entry)
        pending.add([timer(1, kind="manual", fire_at=AT + timedelta(seconds=number))])
    assert taken[:2] == ["manual", "tick"]


def test_two_timers_of_one_run_do_not_fire_together() -> None:
    pending = pending_of(timer(1, kind="manual", fire_at=AT), timer(1, kind="retry", fire_at=AT))
    assert [len(due(pending)) for _ in range(3)] == [1, 1, 0]


def test_a_timer_that_moves_while_it_waits_gets_the_place_of_its_new_time() -> None:
    """Also when it moves back to its old time, and there once."""
    waiting = [timer(number, number) for number in range(1, 5)]
    pending = pending_of(*waiting)
    pending.collect(NOW_US + 10 * SECOND_US, {})
    moved = timer(1, 9)
    pending.add([moved, timer(2, 8)])
    pending.add([waiting[1]])
    assert timers(due(pending, 10)) == [waiting[1], waiting[2], waiting[3], moved]
    assert due(pending, 10) == []
