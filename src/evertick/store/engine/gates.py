"""Gates: letting runs in that wait for a place of their key, or for their turn. Called by all that make room."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool, Session
from evertick.store.engine.lanes import new_ids
from evertick.store.statements import Connection

GATES_AT_ONCE = 100
"""Gates that one transaction locks: the server's table of locks is small."""
RUNS_AT_ONCE = 1_000
"""Runs that one transaction lets into one gate."""
FIRST_GATE = -(2**63)


class WaitedGate(NamedTuple):
    """A gate that runs wait at. `is_mine`: it belongs to one of the partitions that were asked for."""

    gate_id: int
    is_mine: bool


_SQL = statements.load("gates")
_LOCK = _SQL["lock"].values(int)
_LET_IN = _SQL["let_in"].values(int)
_WAITING = _SQL["waiting"].rows(WaitedGate)


async def let_in(
    connection: Connection,
    gate_ids: Iterable[int],
    *,
    most: int = RUNS_AT_ONCE,
    busy: Callable[[Collection[int]], None] = lambda _: None,
) -> list[int]:
    """Let into these gates what may pass, and return the lanes of the attempts that can be leased now.

    `busy` gets the gates that another session has locked: it may not see what made room at them.
    """
    ordered = sorted(set(gate_ids))
    lane_ids: list[int] = []
    for first in range(0, len(ordered), GATES_AT_ONCE):
        part = ordered[first : first + GATES_AT_ONCE]
        while True:
            entered = await _let_in(connection, part, most, busy)
            lane_ids += entered
            if len(entered) < most:
                break  # else more may pass at one of them
    return lane_ids


async def _let_in(
    connection: Connection, gate_ids: list[int], most: int, busy: Callable[[Collection[int]], None]
) -> list[int]:
    async with _transaction(connection) as session:
        locked = await _LOCK.all(session, gate_ids=gate_ids)
        entered = await _LET_IN.all(session, gate_ids=locked, most=most, first_lease_id=new_ids())
    if others := set(gate_ids).difference(locked):
        busy(others)
    return entered


async def waiting(connection: Connection, partitions: Collection[int], *, after: int, most: int) -> list[WaitedGate]:
    """The next gates that runs wait at, in the order of their ids."""
    return await _WAITING.all(connection, partitions=list(partitions), after=after, most=most)


@asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[Session]:
    if isinstance(connection, Pool):
        async with connection.acquire() as session, session.transaction():
            yield session
    else:
        async with connection.transaction():
            yield connection
