"""What a transaction needs computed is computed while none is open."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from evertick.runtime.background import TooBusy
from evertick.usecases.context import TenantContext
from evertick.usecases.transactions import Computed, compute_outside, forget_computed, retry_transaction

NOW = datetime(2026, 6, 1, tzinfo=UTC)


class Transaction:
    """Notes when it is open, and when something is computed."""

    def __init__(self, tenant: TenantContext) -> None:
        self._tenant = tenant
        self.tries = 0
        self.is_open = False
        self.open_while_computing: list[bool] = []
        self.hold_for = timedelta(hours=1)

    async def run(self) -> datetime:
        self.tries += 1
        self.is_open = True
        try:
            return await compute_outside(
                self._tenant.tenant_id, "key", self._compute, NOW + timedelta(minutes=self.tries)
            )
        finally:
            self.is_open = False

    def _compute(self) -> Computed[datetime]:
        self.open_while_computing.append(self.is_open)
        return Computed(NOW, NOW + self.hold_for)


async def test_what_a_transaction_needs_is_computed_before_it_is_tried_again(tenant: TenantContext) -> None:
    transaction = Transaction(tenant)
    assert await retry_transaction(transaction.run) == NOW
    assert transaction.tries == 2
    assert transaction.open_while_computing == [False]


async def test_one_transaction_within_another_leaves_computing_to_the_outer_one(tenant: TenantContext) -> None:
    transaction = Transaction(tenant)
    assert await retry_transaction(lambda: retry_transaction(transaction.run)) == NOW
    assert transaction.open_while_computing == [False]


async def test_an_answer_that_no_longer_holds_is_not_used(tenant: TenantContext) -> None:
    transaction = Transaction(tenant)
    transaction.hold_for = timedelta(minutes=2)

    async def run() -> datetime:
        if transaction.tries == 1:
            transaction.hold_for = timedelta(hours=1)
        return await transaction.run()

    assert await retry_transaction(run) == NOW
    assert len(transaction.open_while_computing) == 2


async def test_who_can_never_be_answered_in_time_is_told_to_wait(tenant: TenantContext) -> None:
    transaction = Transaction(tenant)
    transaction.hold_for = timedelta(0)
    with pytest.raises(TooBusy):
        await retry_transaction(transaction.run)
    assert transaction.tries < 100


async def test_a_forgotten_answer_is_computed_anew(tenant: TenantContext) -> None:
    transaction = Transaction(tenant)

    async def run() -> datetime:
        if transaction.tries == 1:
            forget_computed("key")
        return await transaction.run()

    assert await retry_transaction(run) == NOW
    assert len(transaction.open_while_computing) == 2


async def test_transactions_beside_each_other_have_their_own_answers(tenant: TenantContext) -> None:
    transactions = [Transaction(tenant) for _ in range(5)]
    await asyncio.gather(*(retry_transaction(transaction.run) for transaction in transactions))
    assert [len(transaction.open_while_computing) for transaction in transactions] == [1] * 5


async def test_without_a_transaction_it_is_computed_at_once(tenant: TenantContext) -> None:
    transaction = Transaction(tenant)
    assert await transaction.run() == NOW
