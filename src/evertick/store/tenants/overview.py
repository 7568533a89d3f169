"""What a tenant's jobs did and will do, minute by minute. Called by the use cases for pages."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection


class MinuteRow(NamedTuple):
    """What was fired in a minute, counted from 1970. What is in no other count was retried, deferred or cancelled.

    `is_cut`: a lane had more than were read.
    """

    minute: int
    succeeded: int
    failed: int
    unfinished: int
    fired: int
    is_cut: bool


class PlannedRow(NamedTuple):
    """Timers of one rule that are due in one minute, by the minute of their fire time. `is_cut`: as of `MinuteRow`."""

    minute: int
    fire_minute: int
    rule_id: int
    is_tick: bool
    timers: int
    is_cut: bool


class AttentionRow(NamedTuple):
    """What needs attention; each is counted up to a limit."""

    letters: int
    jobs: int
    paused: int
    replays: int
    circuits: int
    now_at: datetime


class RuleText(NamedTuple):
    rule_id: int
    canonical: str


_SQL = statements.load("overview")
_MINUTES = _SQL["minutes"].rows(MinuteRow)
_PLANNED = _SQL["planned"].rows(PlannedRow)
_RULES = _SQL["rules"].rows(RuleText)
_ATTENTION = _SQL["attention"].rows(AttentionRow)


async def minutes(
    connection: Connection, tenant_id: int, *, from_us: int, until_us: int, most_per_lane: int
) -> list[MinuteRow]:
    return await _MINUTES.all(connection, tenant_id=tenant_id, from_us=from_us, until_us=until_us, most=most_per_lane)


async def planned(  # noqa: PLR0913 - a stretch, and limits
    connection: Connection,
    tenant_id: int,
    *,
    from_at: datetime,
    until_at: datetime,
    most_per_lane: int,
    most_rows: int,
) -> list[PlannedRow]:
    """Those with most timers first."""
    return await _PLANNED.all(
        connection, tenant_id=tenant_id, from_at=from_at, until_at=until_at, most=most_per_lane, most_rows=most_rows
    )


async def rules(connection: Connection, rule_ids: Collection[int]) -> dict[int, str]:
    """The canonical texts of some rules."""
    return {row.rule_id: row.canonical for row in await _RULES.all(connection, rule_ids=list(rule_ids))}


async def attention(connection: Connection, tenant_id: int, most: int) -> AttentionRow:
    return await _ATTENTION.one(connection, tenant_id=tenant_id, most=most)
