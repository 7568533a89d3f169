"""Open attempts without a lease, and leases that are wrong: finding and repairing them.

Called by the reaper, for partitions that its node holds, and by the doctor.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from evertick.domain.attempt import Token
from evertick.store import statements
from evertick.store.engine.lanes import new_ids
from evertick.store.statements import Connection, columns

NOBODY = "nobody"
"""The worker in leases that are made for attempts without one."""


class CheckedLane(NamedTuple):
    """What the check of a lane found, of the attempts after `after_seq` up to `last_seq`.

    `is_cut`: there are more to check. `orphans`: the seqs of open attempts without a lease.
    """

    lane_id: int
    partition: int
    swept: int
    after_seq: int
    last_seq: int
    is_cut: bool
    first_open: int | None
    orphans: list[int]


class Rebased(NamedTuple):
    """How many leases run from now on, and the id to go on after; 0: that was the end."""

    last_id: int
    moved: int


_SQL = statements.load("orphans")
_CHECK = _SQL["check"].rows(CheckedLane)
_DROP_ENDED = _SQL["drop_ended"].values(int)
_REBASE = _SQL["rebase"].rows(Rebased)


async def check(
    connection: Connection, partitions: Sequence[int], after: Mapping[int, int], *, most_per_lane: int, age: timedelta
) -> list[CheckedLane]:
    """Check the attempts of lanes that are older than `age`: after these seqs by lane, or else after what was swept."""
    return await _CHECK.all(
        connection,
        partitions=partitions,
        lane_ids=list(after),
        seqs=list(after.values()),
        most=most_per_lane,
        age_seconds=age.total_seconds(),
    )


async def adopt(connection: Connection, orphans: Sequence[Token]) -> None:
    """Give attempts without a lease to the reaper."""
    await _SQL["adopt"].execute(
        connection,
        **columns(("lane_ids", "seqs"), orphans),
        worker=NOBODY,
        first_lease_id=new_ids(),
    )


async def mark_swept(connection: Connection, seqs: Mapping[int, int]) -> None:
    """Note up to which seq all attempts of some lanes have an outcome."""
    await _SQL["mark_swept"].execute(connection, lane_ids=list(seqs), seqs=list(seqs.values()))


async def drop_ended(connection: Connection, partitions: Sequence[int], *, after: int, most: int) -> int:
    """Remove free leases of attempts that have ended, among some after an id; returns where to go on, 0: the end."""
    return await _DROP_ENDED.one(connection, partitions=partitions, after=after, most=most)


async def rebase(connection: Connection, partitions: Sequence[int], *, after: int, most: int) -> Rebased:
    """Let leases run from now on that were made before the clock was set back, among some after an id."""
    return await _REBASE.one(connection, partitions=partitions, after=after, most=most)
