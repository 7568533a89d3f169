"""What roles count for the metrics: equal to what they wrote, by reason, and only once."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from engine import AT, add_job, until
from evertick.domain.policies import MissedWindow
from evertick.domain.rule import Policies
from evertick.executor import attempt_times
from evertick.executor.attempt_times import EXACT, FLUSH, AttemptTimes
from evertick.executor.running import Running
from evertick.metrics.catalog import (
    DEFERRALS,
    FIRE_LAG,
    FIRED,
    LAG,
    LEG,
    LEGS,
    OUTCOMES,
    PARTITIONS_HELD,
    PUT_BACK,
    REFUSED,
    SKIPPED,
    TIMER_KINDS,
    WEBHOOK_CLASSES,
    WEBHOOKS,
)
from evertick.roles.scheduler import Scheduler
from evertick.store.engine.lanes import Leased
from roles.dispatching import PostOffice, Receiver
from roles.test_host_rates import limit
from roles.workshop import Workshop


def grown(read: Callable[[], float]) -> Callable[[], float]:
    """By how much a figure has grown since this call: other tests of the process have counted, too."""
    before = read()
    return lambda: read() - before


def started(role: str, queue: str = "default") -> Callable[[], float]:
    return grown(lambda: LAG.of(role, queue).count)


async def test_attempts_gaps_and_lags_of_a_firing_are_counted(connection: asyncpg.Connection, node: Scheduler) -> None:
    missed = Policies(missed_window=MissedWindow.RUN_ONCE)
    for partition in range(3):
        await add_job(connection, "*/5 * * * *", missed, partition=partition)
    fired = {kind: grown(lambda kind=kind: FIRED.value(kind)) for kind in TIMER_KINDS}  # type: ignore[misc]
    gaps, overlaps = grown(lambda: SKIPPED.value("missed")), grown(lambda: SKIPPED.value("overlap"))
    observed, late = grown(lambda: FIRE_LAG.of().count), grown(lambda: FIRE_LAG.of().counts[-1])
    await node.fire_due()
    attempts = await connection.fetchval("SELECT count(*) FROM attempts")
    assert {kind: count() for kind, count in fired.items() if count()} == {"tick": attempts}
    assert observed() == late() == attempts == 3, "they are days late"
    assert gaps() == await connection.fetchval("SELECT sum(ticks) FROM gaps WHERE reason = 'missed'") > 0
    # Their runs are open: the next ticks are skipped, one for each job, or two should a tick come just now.
    await connection.execute("UPDATE timers SET fire_at = fire_at - interval '5 minutes', due_at = clock_at()")
    await node.fire_due()
    skipped = await connection.fetchval("SELECT sum(ticks) FROM gaps WHERE reason = 'overlap'")
    assert overlaps() == skipped >= 3
    assert observed() == await connection.fetchval("SELECT count(*) FROM attempts")


@pytest.mark.parametrize("lost", [True, False])
async def test_a_refused_firing_is_counted_by_its_reason(
    connection: asyncpg.Connection, node: Scheduler, *, lost: bool
) -> None:
    """Another node has taken the partition, or the job was edited, between planning and firing."""
    await add_job(connection)
    await node.loading.load_due()
    if lost:
        await connection.execute("UPDATE partitions SET epoch = epoch + 1, holder = 'another'")
    else:
        await connection.execute("UPDATE timers SET due_at = due_at + interval '1 second'")
    fence, changed = (grown(lambda reason=reason: REFUSED.value(reason)) for reason in ("fence", "changed"))  # type: ignore[misc]
    await node.firing.fire_batch()
    assert (fence(), changed()) == ((1, 0) if lost else (0, 1))


async def test_held_partitions_are_shown_until_the_node_stops(node: Scheduler) -> None:
    shown = grown(_held)
    held = len(node.state.ownership.epochs)
    await node.close()
    assert shown() == -held == -256


async def test_each_attempt_is_observed_once_with_all_its_legs(workshop: Workshop) -> None:
    await workshop.ready(count=5)
    count = started("worker")
    legs = [grown(lambda leg=leg: LEG.of(leg, "worker", "default").count) for leg in LEGS]  # type: ignore[misc]
    successes = grown(lambda: OUTCOMES.value("success"))
    await workshop.work_off({"handle": _done})
    assert count() == successes() == 5
    assert [leg() for leg in legs] == [5] * 4


async def test_the_start_of_a_long_handler_is_observed_while_it_runs(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_times, "EARLY_SECONDS", 0.1)
    go_on = asyncio.Event()
    count, ends = started("worker"), grown(lambda: LEG.of(LEGS[-1], "worker", "default").count)
    job = await workshop.ready()
    async with workshop.started({"handle": go_on.wait}):

        async def is_seen() -> bool:
            return count() == 1

        await until(is_seen)
        assert ends() == 0
        go_on.set()
        await workshop.until_ended(job)
    assert (count(), ends()) == (1, 1)


async def test_an_attempt_that_is_put_back_counts_as_a_deferral_and_not_as_started(workshop: Workshop) -> None:
    await workshop.ready("missing")
    count = started("worker")
    put_back, deferred = grown(lambda: PUT_BACK.value("worker")), grown(lambda: DEFERRALS.value("worker"))
    await workshop.work_off({"handle": _done})
    assert (count(), put_back(), deferred()) == (0, 1, 1)


async def test_a_webhook_is_counted_by_the_class_of_its_response(office: PostOffice, receiver: Receiver) -> None:
    count = started("dispatcher", "http")
    results = {each: grown(lambda each=each: WEBHOOKS.value(each)) for each in WEBHOOK_CLASSES}  # type: ignore[misc]
    for status in (200, 503):
        receiver.will_answer(status)
        await office.posted(receiver.url)
        await office.deliver()
    assert count() == 2
    assert {name: result() for name, result in results.items() if result()} == {"2xx": 1, "5xx": 1}


async def test_a_delivery_that_was_not_begun_is_not_observed(office: PostOffice, receiver: Receiver) -> None:
    await limit(office, receiver.url, 0.001, 1)
    count, deferred = started("dispatcher", "http"), grown(lambda: DEFERRALS.value("dispatcher"))
    await office.posted(receiver.url, count=4)
    await office.deliver()
    assert (count(), deferred()) == (1, 3)


@pytest.mark.parametrize("ended", [EXACT, FLUSH, 4 * FLUSH + EXACT])
def test_of_very_many_a_sample_stands_for_all(ended: int) -> None:
    times = AttemptTimes("sampled", lambda _: "default")
    count, ends = started("sampled"), grown(lambda: LEG.of(LEGS[-1], "sampled", "default").count)
    for number in range(ended):
        leased: Any = Leased(
            1, number, 1, 4, AT, AT, 1, "tick", 1, "job", "handle", "UTC", None, 60, "{}", None, None, None, False
        )
        times.add(Running(leased, None, AT), AT)  # type: ignore[arg-type]
    times.observe()
    assert count() == ends() == ended


def _held() -> float:
    return sum(sample.value for sample in PARTITIONS_HELD.samples())


async def _done() -> None:
    """Nothing else."""
