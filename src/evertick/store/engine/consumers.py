"""Attempts that a broker has accepted, and the consumers that report their outcomes."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from evertick.domain.attempt import Token
from evertick.store import statements
from evertick.store.engine.lanes import new_ids
from evertick.store.engine.outcomes import TokenRow
from evertick.store.engine.pulls import HeldAttempt
from evertick.store.statements import Connection, columns

ANY_CONSUMER = "(consumer)"
"""In place of a worker's id, in the leases of attempts that no consumer has claimed. No worker can have this id."""


class HandOver(NamedTuple):
    """An attempt that a broker has accepted. Its outcome is to be reported within `timeout_seconds`."""

    lane_id: int
    seq: int
    tenant_id: int
    timeout_seconds: float


_SQL = statements.load("consumers")
_HAND_OVER = _SQL["hand_over"].rows(TokenRow)
_REPORTABLE = _SQL["reportable"].rows(HeldAttempt)
_CLAIM = _SQL["claim"].rows(TokenRow)
_TOKENS = ("lane_ids", "seqs")


def any_consumer(tenant_id: int) -> str:
    """What the leases of a tenant's attempts are held under that any of its consumers may claim."""
    return f"{tenant_id}/{ANY_CONSUMER}"


async def hand_over(connection: Connection, holder: str, attempts: Sequence[HandOver]) -> set[Token]:
    """Give attempts to the consumers of their messages. Returns those that are over, or claimed already."""
    rows = await _HAND_OVER.all(
        connection,
        holder=holder,
        lane_ids=[each.lane_id for each in attempts],
        seqs=[each.seq for each in attempts],
        consumers=[any_consumer(each.tenant_id) for each in attempts],
        timeouts=[each.timeout_seconds for each in attempts],
        first_lease_id=new_ids(),
    )
    return set(rows)


async def reportable(
    connection: Connection, tenant_id: int, worker: str, tokens: Sequence[Token]
) -> dict[Token, HeldAttempt]:
    """Those of these attempts whose outcome this consumer of the tenant may report."""
    rows = await _REPORTABLE.all(
        connection, tenant_id=tenant_id, worker=worker, consumer=any_consumer(tenant_id), **columns(_TOKENS, tokens)
    )
    return {(row.lane_id, row.seq): row for row in rows}


async def claim(
    connection: Connection, tenant_id: int, worker: str, tokens: Sequence[Token], lease_time: timedelta
) -> set[Token]:
    """Let a consumer hold those of these attempts that it may have, and return them."""
    rows = await _CLAIM.all(
        connection,
        tenant_id=tenant_id,
        worker=worker,
        consumer=any_consumer(tenant_id),
        lease_seconds=lease_time.total_seconds(),
        first_lease_id=new_ids(),
        **columns(_TOKENS, tokens),
    )
    return set(rows)


async def release(connection: Connection, tokens: Sequence[Token]) -> None:
    """Let go of the leases of consumers' attempts, of those that have ended."""
    await _SQL["release"].execute(connection, **columns(_TOKENS, tokens))
