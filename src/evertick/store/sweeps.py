"""Sweeps over leases and lanes, for what should not be. Called by the reaper and the doctor."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from evertick.domain.attempt import Token
from evertick.store import statements
from evertick.store.lanes import new_ids
from evertick.store.statements import Connection

_SQL = statements.load("sweeps")

NOBODY = "nobody"
"""The holder of leases that are made for attempts without one."""


class Looked(NamedTuple):
    """What a look at a lane showed, of the attempts after `after_seq` up to `last_seq`.

    `is_cut`: there are more to look at. `orphans`: the seqs of open attempts without a lease.
    """

    lane_id: int
    partition: int
    swept: int
    after_seq: int
    last_seq: int
    is_cut: bool
    first_open: int | None
    orphans: list[int]


async def look(
    connection: Connection, partitions: Sequence[int], places: Mapping[int, int], *, most_per_lane: int, age: timedelta
) -> list[Looked]:
    """Look at the attempts of lanes that are older than `age`: after these places, or else after what was swept."""
    rows = await _SQL["look"].fetch(
        connection,
        partitions=partitions,
        lane_ids=list(places),
        seqs=list(places.values()),
        most=most_per_lane,
        age_seconds=age.total_seconds(),
    )
    return [Looked(*row) for row in rows]


async def adopt(connection: Connection, orphans: Sequence[Token]) -> None:
    """Give attempts without a lease to the reaper."""
    await _SQL["adopt"].execute(
        connection,
        lane_ids=[lane_id for lane_id, _ in orphans],
        seqs=[seq for _, seq in orphans],
        worker=NOBODY,
        first_lease_id=new_ids(),
    )


async def move_on(connection: Connection, places: Mapping[int, int]) -> None:
    """Note up to where all attempts of some lanes have an outcome."""
    await _SQL["move_on"].execute(connection, lane_ids=list(places), seqs=list(places.values()))


async def drop_over(connection: Connection, partitions: Sequence[int]) -> None:
    """Remove the free leases of attempts that have ended."""
    await _SQL["drop_over"].execute(connection, partitions=partitions)


async def rebase(connection: Connection, partitions: Sequence[int]) -> int:
    """Let leases run from now on that were made before the clock was set back; returns how many there were."""
    return len(await _SQL["rebase"].fetch(connection, partitions=partitions))
