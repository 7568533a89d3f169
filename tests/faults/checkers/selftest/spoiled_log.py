"""A receiver's log that contradicts the records, and writes that the fence should have refused."""

from dataclasses import replace

from evertick.domain.ids import RunKey
from evertick.domain.states import RunStatus
from faults.checkers.history import Delivery, FencedWrite
from faults.checkers.selftest.corruption import Pick, breaks, deferred_once, retried_once
from faults.checkers.selftest.edits import swap_delivery
from faults.checkers.selftest.worlds import FIRST, STEP, World


@breaks("C4")
def a_success_was_never_delivered(world: World, pick: Pick) -> World:
    run = pick(world.runs(lambda run: run.status is RunStatus.SUCCESS))
    seq = run.attempts[-1].seq
    log = [line for line in world.deliveries if (line.run_key, line.seq) != (run.key, seq)]
    return replace(world, deliveries=tuple(log))


@breaks("C4")
def a_delivery_is_of_no_run(world: World, pick: Pick) -> World:
    stray = Delivery(RunKey(99, FIRST), "99", 1, 1, FIRST, "worker")
    return replace(world, deliveries=(*world.deliveries, stray))


@breaks("C4")
def a_delivery_is_of_no_attempt(world: World, pick: Pick) -> World:
    line = pick(world.deliveries)
    return swap_delivery(world, line, line, replace(line, attempt=line.attempt + 7, seq=line.seq + STEP))


@breaks("C4")
def an_attempt_has_another_idempotency_key(world: World, pick: Pick) -> World:
    key = pick(world.runs(retried_once)).key
    line = pick([line for line in world.deliveries if line.run_key == key])
    return swap_delivery(world, line, replace(line, idempotency_key="another"))


@breaks("C4")
def two_runs_share_an_idempotency_key(world: World, pick: Pick) -> World:
    shared, other = pick(world.runs(retried_once)).key, pick(world.runs(deferred_once)).key
    key = next(line.idempotency_key for line in world.deliveries if line.run_key == shared)
    log = [replace(line, idempotency_key=key) if line.run_key == other else line for line in world.deliveries]
    return replace(world, deliveries=tuple(log))


@breaks("C4")
def tokens_are_reversed(world: World, pick: Pick) -> World:
    run = pick(world.runs(retried_once))
    first, second = (attempt.seq for attempt in run.attempts)
    other = {first: second, second: first}
    log = [replace(line, seq=other[line.seq]) if line.run_key == run.key else line for line in world.deliveries]
    return replace(world, deliveries=tuple(log))


@breaks("C5")
def an_old_holder_writes(world: World, pick: Pick) -> World:
    earlier = pick(world.writes)
    late = FencedWrite(earlier.partition, earlier.epoch - 1, earlier.seq + 10**6)
    return replace(world, writes=(late, *world.writes))
