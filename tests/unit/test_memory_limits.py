"""Memory for bodies: each tenant has its own bound, and the process's is shared so that newcomers find room."""

import asyncio
from contextlib import ExitStack

import pytest

from evertick.api.bodies import memory_limits
from evertick.api.bodies.memory_limits import MEBIBYTE, VALUE_BYTES, BodyLimits, Reservation
from evertick.api.problems import HttpProblem, Kind


def _hold_all(reservation: Reservation, step: int = 1) -> Kind:
    """Why no more can be held."""

    def hold_on() -> None:
        while True:
            reservation.add(step)

    with pytest.raises(HttpProblem) as refused:
        hold_on()
    assert int(refused.value.headers["Retry-After"]) > 0
    return refused.value.kind


def test_a_tenant_holds_no_more_than_its_own_bound() -> None:
    limits = BodyLimits(per_tenant=100, total=1000)
    with limits.of(1) as first, limits.of(1) as second, limits.of(2) as other:
        first.add(60)
        assert _hold_all(second) is Kind.OVER_QUOTA
        assert limits.held == 100
        other.add(100)
    assert limits.held == 0


def test_tenants_that_take_all_they_can_leave_an_equal_part_for_the_next() -> None:
    limits = BodyLimits(per_tenant=1000, total=1000)
    with ExitStack() as stack:
        for tenant_id in range(9):
            assert _hold_all(stack.enter_context(limits.of(tenant_id))) is Kind.UNAVAILABLE
        newcomer = stack.enter_context(limits.of(99))
        newcomer.add(1)
    assert limits.held == 0


def test_an_announced_size_that_cannot_fit_is_refused_before_anything_is_held() -> None:
    limits = BodyLimits(per_tenant=100, total=1000)
    with limits.of(1) as reservation:
        with pytest.raises(HttpProblem):
            reservation.check(101)
        reservation.check(100)
        assert limits.held == 0


def test_values_count_what_they_take_once_they_are_decoded() -> None:
    limits = BodyLimits(per_tenant=10 * VALUE_BYTES, total=1000 * VALUE_BYTES)
    with limits.of(1) as reservation:
        reservation.add_values(10)
        with pytest.raises(HttpProblem):
            reservation.add(1)


async def test_batches_of_a_tenant_take_turns_and_those_of_others_do_not_wait() -> None:
    limits = BodyLimits(128 * MEBIBYTE, 512 * MEBIBYTE)
    with ExitStack() as stack:
        at_work = [stack.enter_context(limits.of(1)) for _ in range(memory_limits.MAX_BATCHES_PER_TENANT)]
        for each in at_work:
            await each.begin_batch()
        next_one = stack.enter_context(limits.of(1))
        waiting = asyncio.create_task(next_one.begin_batch())
        await stack.enter_context(limits.of(2)).begin_batch()
        assert not waiting.done()
        at_work[0].release()
        await waiting
    assert not limits.batches


async def test_only_so_many_batches_of_a_tenant_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "MAX_WAITING_PER_TENANT", 1)
    limits = BodyLimits(128 * MEBIBYTE, 512 * MEBIBYTE)
    with ExitStack() as stack:
        for _ in range(memory_limits.MAX_BATCHES_PER_TENANT):
            await stack.enter_context(limits.of(1)).begin_batch()
        waiting = asyncio.create_task(stack.enter_context(limits.of(1)).begin_batch())
        await asyncio.sleep(0)
        with pytest.raises(HttpProblem) as refused:
            await stack.enter_context(limits.of(1)).begin_batch()
        assert refused.value.more == {"quota": "batches"}
        waiting.cancel()
        await asyncio.wait([waiting])
    assert not limits.batches
